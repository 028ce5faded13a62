"""What the master learns from the times of tasks that drivers report."""

from __future__ import annotations

import pytest

from hrm.core.master.core import MasterCore
from hrm.core.master.observed_tasks import ENTRIES_MAX, LEAST_S, MOST_S, WINDOW_S
from hrm.core.messages import events as e
from hrm.core.tenancy.affinities import Affinities, kind_of
from hrm.core.vocabulary.model import (
    ApplicationId,
    ExecutorTasks,
    FirstExecutors,
    NodeName,
    Progress,
    Resources,
)
from hrm.testing.virtual import VirtualCluster, unit

DRIVER = ApplicationId("driver-20260301000000-0001")


def cluster_of(*nodes: str, vcores: int = 8) -> VirtualCluster:
    """Each node is of the platform that its name begins with."""
    cluster = VirtualCluster([unit(name, vcores=vcores) for name in nodes])
    for name in nodes:
        cluster.master.master_state.nodes[NodeName(name)].platform = name[0]
    return cluster


def tasks(executor: int | str, run_s: float = 2.0, count: int = 1) -> ExecutorTasks:
    return ExecutorTasks(executor_id=str(executor), stage="map", tasks=count, run_s=run_s)


def report(cluster: VirtualCluster, app: ApplicationId, *some: ExecutorTasks) -> None:
    event = e.ProgressReported(
        now=cluster.now, application_id=app, progress=Progress(), tasks=tuple(some)
    )
    cluster.submit_to_master(event)


def affinities(cluster: VirtualCluster) -> Affinities:
    found: Affinities = cluster.master.master_state.affinities
    return found


class Seen(Affinities):
    """Remembers what was observed."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[float] = []
        self.companies: list[dict[str, float]] = []

    def observe(self, *arguments, **named) -> None:  # type: ignore[no-untyped-def]
        super().observe(*arguments, **named)
        self.loads.append(arguments[6])
        self.companies.append({kind.name: part for kind, part in arguments[7].items()})


def watched(cluster: VirtualCluster) -> Seen:
    seen = cluster.master.master_state.affinities = Seen()
    return seen


def test_times_are_learned_for_the_platform_of_the_executors_node() -> None:
    cluster = cluster_of("a1", "b1", vcores=1)
    app = cluster.submit(2, name="etl 7")
    cluster.settle()
    for _ in range(5):
        for executor in (1, 2):
            on_a = cluster.container(app, executor).node == "a1"
            report(cluster, app, tasks(executor, 4.0 if on_a else 12.0, count=2))
    rows = affinities(cluster).estimates(kind_of("root.default", "etl 7"))
    assert [(row.kind.name, row.platform) for row in rows] == [("etl #", "a"), ("etl #", "b")]
    assert [row.run_s for row in rows] == pytest.approx([2.0, 6.0])
    assert [row.observations for row in rows] == pytest.approx([5, 5])


def test_load_and_company_are_what_runs_on_the_other_cores_of_the_node() -> None:
    cluster = cluster_of("a1", vcores=9)
    app = cluster.submit(1, Resources(3, 512), name="etl")
    other = cluster.submit(2, Resources(1, 512), name="report")
    cluster.settle()
    seen = watched(cluster)
    report(cluster, app, tasks(1))
    assert seen.loads == [pytest.approx(4 / 8)]
    assert seen.companies == [pytest.approx({"etl": 2 / 8, "report": 2 / 8})]
    cluster.release(other, 1, 2)
    cluster.settle()
    report(cluster, app, tasks(1))
    assert seen.loads[1] == pytest.approx(2 / 8)


def test_one_core_of_one_is_alone() -> None:
    cluster = cluster_of("a1", vcores=1)
    app = cluster.submit(1, name="etl")
    cluster.settle()
    seen = watched(cluster)
    report(cluster, app, tasks(1))
    assert (seen.loads, seen.companies) == ([0.0], [{}])


def test_drivers_neither_report_nor_count_as_company() -> None:
    cluster = cluster_of("a1", vcores=9)
    first = FirstExecutors(count=1, resources=Resources(1, 512))
    driver = cluster.submit(1, Resources(4, 512), new_id=DRIVER, first_executors=first)
    app = cluster.submit(1, Resources(1, 512), name="etl")
    cluster.settle()
    assert cluster.running() == 2
    seen = watched(cluster)
    report(cluster, driver, tasks(1))
    assert seen.loads == []
    report(cluster, app, tasks(1))
    assert (seen.loads, seen.companies) == ([0.0], [{}])


def test_an_application_speaks_of_executors_that_run_for_it_alone() -> None:
    cluster = cluster_of("a1", vcores=2)
    app, other = cluster.submit(1, name="etl"), cluster.submit(3, name="report")
    cluster.settle()
    assert cluster.states(other)["running"] == 1
    report(cluster, app, tasks(2), tasks("2 of another"), tasks(f"x{other}-x1"), tasks(""))
    report(cluster, other, tasks(2), tasks(3))  # these wait
    assert len(affinities(cluster)) == 0
    cluster.release(app, 1)
    cluster.settle()
    report(cluster, app, tasks(1))
    assert len(affinities(cluster)) == 0


def test_one_that_reports_without_end_is_not_learned_from_without_end() -> None:
    cluster = cluster_of("a1")
    app = cluster.submit(1, name="etl")
    cluster.settle()
    seen = watched(cluster)
    for _ in range(10):
        report(cluster, app, *[tasks(1)] * 200)
    assert len(seen.loads) == ENTRIES_MAX
    cluster.advance(WINDOW_S)
    report(cluster, app, tasks(1))
    assert len(seen.loads) == ENTRIES_MAX + 1


def test_times_are_no_part_of_what_is_kept_of_progress() -> None:
    cluster = cluster_of("a1")
    app = cluster.submit(1, name="etl")
    cluster.settle()
    report(cluster, app, tasks(1))
    assert cluster.app(app).progress == Progress()


def test_times_at_the_ends_of_what_is_accepted_are_learned() -> None:
    cluster = cluster_of("a1")
    app = cluster.submit(1, name="etl")
    cluster.settle()
    for run_s, count in [(1e308, 1), (5e-324, 2**31 - 1), (1e308, 2**31 - 1)]:
        report(cluster, app, tasks(1, run_s, count))
    core: MasterCore = cluster.master
    (row,) = core.master_state.affinities.estimates(kind_of("root.default", "etl"))
    assert LEAST_S < row.run_s < MOST_S
    assert core.master_state.affinities.kinds() == [kind_of("root.default", "etl")]
