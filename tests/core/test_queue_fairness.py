"""What the master observes of how queues are served, in virtual time."""

from __future__ import annotations

import pytest

from hrm.core.master.queue_report import queue_statuses
from hrm.core.messages import events as e
from hrm.core.tenancy.observed_fairness import FairnessSummary, LeafObservation
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec, spec_from
from hrm.core.tenancy.queue_status import QueueStatus
from hrm.core.tenancy.waiting_times import WaitSummary
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerState,
    ExecutorTasks,
    NodeName,
    Progress,
)
from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement
from hrm.testing.virtual import VirtualCluster, unit

HALVES = (spec_from("root.a", {"guaranteed": "50%"}), spec_from("root.b", {"guaranteed": "50%"}))


def cluster(*queues: QueueSpec, run_s: float | None = 10.0, nodes: int = 4) -> VirtualCluster:
    units = [unit(f"n{number}", 4) for number in range(nodes)]
    bounds = Bounds(queue_fairness_half_life_s=60.0)
    return VirtualCluster(units, queues=queues, run_s=run_s, bounds=bounds)


def live(virtual: VirtualCluster, seconds: int, *apps: ApplicationId, executors: int = 40) -> None:
    """Each always wants ``executors``: what has ended is requested again."""
    for _ in range(seconds):
        for app in apps:
            state = virtual.app(app)
            lacks = executors - len(state.containers)
            if lacks > 0 and not state.life.state.ended:
                first = state.last_executor_number + 1
                virtual.request(app, range(first, first + lacks))
        virtual.advance(1)


def status(virtual: VirtualCluster, name: str) -> QueueStatus:
    found = queue_statuses(virtual.master.master_state, virtual.master.placement.queues)
    return next(x for x in found if x.spec.name == name)


def observed(virtual: VirtualCluster, name: str) -> LeafObservation:
    found = status(virtual, name).observed
    assert found is not None
    return found


def throughput(virtual: VirtualCluster, name: str) -> float:
    found = observed(virtual, name).throughput
    assert found is not None
    return found


def waits(virtual: VirtualCluster, name: str) -> WaitSummary:
    found = observed(virtual, name).waits
    assert found is not None
    return found


def summary(virtual: VirtualCluster) -> FairnessSummary:
    return virtual.master.master_state.queue_fairness.summary()


def test_queues_that_get_what_is_due_to_them_are_served_alike() -> None:
    virtual = cluster(
        spec_from("root.a", {"guaranteed": "75%"}), spec_from("root.b", {"guaranteed": "25%"})
    )
    apps = [virtual.submit(40, queue=name) for name in "ab"]

    live(virtual, 100, *apps)

    assert observed(virtual, "root.a").entitled == pytest.approx(12)
    assert observed(virtual, "root.b").entitled == pytest.approx(4)
    # Containers start and end: not every core is held at each tick.
    assert 0.85 < throughput(virtual, "root.a") <= 1.05
    assert 0.85 < throughput(virtual, "root.b") <= 1.15
    found = summary(virtual)
    assert found.queues == 2
    assert found.fairness is not None and found.fairness > 0.95
    assert found.with_speeds == 0


def test_a_queue_that_its_maximum_starves_is_seen_to_be() -> None:
    """Both are alike but for a maximum of an eighth: 2 and 14 cores, where 8 are due to each."""
    virtual = cluster(
        spec_from("root.a", {"maximum": "12.5%"}),
        spec_from("root.b", {}),
        spec_from("root.default", {"guaranteed": "0%"}),
    )
    apps = [virtual.submit(20, queue=name) for name in "ab"]

    live(virtual, 180, *apps, executors=20)

    assert observed(virtual, "root.a").entitled == pytest.approx(8, abs=0.1)
    assert observed(virtual, "root.b").entitled == pytest.approx(8, abs=0.1)
    starved, favoured = throughput(virtual, "root.a"), throughput(virtual, "root.b")
    assert starved == pytest.approx(0.25, abs=0.03)
    assert favoured == pytest.approx(1.75, abs=0.15)
    found = summary(virtual)
    assert found.fairness == pytest.approx(1 - 0.75, abs=0.05)
    assert found.spread is not None and found.spread > 6
    slow, fast = waits(virtual, "root.a"), waits(virtual, "root.b")
    assert slow.p50_s is not None and fast.p50_s is not None
    assert slow.p50_s > 4 * fast.p50_s
    # 20 of each, 2 and 14 at a time, 10 s each: 20 x 10 / 2 = 100 s and 14 s in all (Little's law).
    assert slow.p50_s == pytest.approx(90, rel=0.15)
    assert fast.p50_s < 10
    assert status(virtual, "root.a").longest_wait_s == pytest.approx(90, rel=0.2)


def test_one_that_wants_less_than_its_part_is_due_what_it_wants() -> None:
    virtual = cluster(*HALVES, run_s=None)
    one, other = virtual.submit(3, queue="a"), virtual.submit(40, queue="b")

    live(virtual, 60, one, executors=3)

    assert observed(virtual, "root.a").entitled == pytest.approx(3)
    assert observed(virtual, "root.b").entitled == pytest.approx(13)
    assert throughput(virtual, "root.a") == pytest.approx(1, abs=0.1)
    assert throughput(virtual, "root.b") == pytest.approx(1, abs=0.1)
    assert virtual.states(other)["running"] == 13


def test_one_that_has_nothing_to_do_does_not_count() -> None:
    virtual = cluster(*HALVES)
    one, other = virtual.submit(40, queue="a"), virtual.submit(2, queue="b")
    live(virtual, 40, one)
    assert summary(virtual).queues == 2
    assert not virtual.app(other).containers

    live(virtual, 60, one)

    found = summary(virtual)
    assert (found.queues, found.fairness, found.jain) == (1, None, None)
    assert not observed(virtual, "root.b").takes_part
    assert observed(virtual, "root.a").entitled > 12, "alone, all is due to it"


def test_waits_are_from_the_request_to_the_start() -> None:
    virtual = cluster(*HALVES, run_s=30.0, nodes=1)
    app = virtual.submit(8, queue="a")
    virtual.advance(40)

    found = waits(virtual, "root.a")

    assert [count for count in found.buckets if count] == [4, 4]
    assert found.starts == pytest.approx(4 * 0.5 ** (40 / 60) + 4 * 0.5 ** (10 / 60), rel=0.02)
    assert found.p99_s == pytest.approx(30, rel=0.06)
    assert found.total_s == pytest.approx(4 * 30, rel=0.01)
    assert virtual.states(app).get("running") == 4
    assert status(virtual, "root.a").longest_wait_s == 0


def test_what_an_earlier_master_started_has_no_wait() -> None:
    virtual = cluster(*HALVES, run_s=None)
    app = virtual.submit(6, queue="a")
    virtual.advance(10)
    assert sum(waits(virtual, "root.a").buckets) == 6

    virtual.restart_master()
    virtual.attach(app)
    for node in virtual.nodes.values():
        virtual.register(node)
    virtual.advance(30)

    assert virtual.states(app)["running"] == 6
    assert observed(virtual, "root.a").waits is None
    assert throughput(virtual, "root.a") == pytest.approx(1.0)


def test_nothing_is_observed_where_no_queue_is_governed() -> None:
    virtual = cluster()
    virtual.submit(8)
    virtual.advance(60)
    assert status(virtual, "root.default").observed is None
    assert summary(virtual).queues == 0


def test_a_removed_queue_is_forgotten_and_others_are_not() -> None:
    virtual = cluster(*HALVES)
    one, other = virtual.submit(40, queue="a"), virtual.submit(4, queue="b")
    live(virtual, 30, one)
    virtual.finish(other)
    virtual.advance(5)
    before = throughput(virtual, "root.a")
    fairness = virtual.master.master_state.queue_fairness
    assert fairness.of(QueueName("root.b")) is not None

    virtual.change_queues(removed=["root.b"])
    virtual.advance(1)

    assert throughput(virtual, "root.a") == pytest.approx(before, abs=0.05)
    assert fairness.of(QueueName("root.b")) is None


def report_tasks(virtual: VirtualCluster, app: ApplicationId, run_s: dict[str, float]) -> None:
    """As a driver does: of each executor, tasks that ran for the last three seconds have ended,
    each after so many seconds, by the platform of the node."""
    nodes = virtual.master.master_state.nodes
    ended = tuple(
        ExecutorTasks(
            executor_id=x.request.executor_id,
            stage="map",
            tasks=round(3 / run_s[nodes[x.node].platform]),
            run_s=3.0,
        )
        for x in virtual.app(app).containers.values()
        if x.state is ContainerState.RUNNING and x.node is not None
    )
    virtual.submit_to_master(
        e.ProgressReported(now=virtual.now, application_id=app, progress=Progress(), tasks=ended)
    )


def unlike_nodes() -> VirtualCluster:
    """Two nodes of eight cores, of the platforms ``new`` and ``old``."""
    bounds = Bounds(queue_fairness_half_life_s=30.0)
    virtual = VirtualCluster(queues=HALVES, bounds=bounds)
    for name in ("new", "old"):
        virtual.add_node(unit(name, 8), properties=NodeProperties(labels=frozenset({name})))
        virtual.settle()
        virtual.master.master_state.nodes[NodeName(name)].platform = name
    return virtual


def on(platform: str) -> NodeRequirement:
    return NodeRequirement(labels=frozenset({platform}))


RUN_S = {"a": {"new": 1.0, "old": 3.0}, "b": {"new": 1.0, "old": 1.0}}
"""Tasks of root.a take three times as long on the old nodes, those of root.b as long."""


def run_tasks(virtual: VirtualCluster, seconds: int, **apps: ApplicationId) -> None:
    for _ in range(seconds // 3):
        virtual.advance(3)
        for name, app in apps.items():
            report_tasks(virtual, app, RUN_S[name])


def test_equal_cores_of_unlike_platforms_are_not_equal() -> None:
    virtual = unlike_nodes()
    first = {name: virtual.submit(16, queue=name, name=f"{name} 1") for name in "ab"}
    run_tasks(virtual, 30, **first)
    for app in first.values():
        places = {x.node for x in virtual.app(app).containers.values() if x.node}
        assert places == {"new", "old"}, "both are seen on both"
        virtual.finish(app)
    virtual.advance(5)

    # Of the next ones, root.a's may run on the old node alone, root.b's on the new one.
    apps = {
        name: virtual.submit(8, queue=name, name=f"{name} 2", requires=on(platform))
        for name, platform in (("a", "old"), ("b", "new"))
    }
    run_tasks(virtual, 300, **apps)

    slow, fast = observed(virtual, "root.a"), observed(virtual, "root.b")
    assert slow.entitled == pytest.approx(8)
    assert slow.held == pytest.approx(8, rel=0.01)
    assert slow.speed == pytest.approx(1 / 3, rel=0.1)
    assert fast.speed == pytest.approx(1, rel=0.1)
    assert throughput(virtual, "root.a") == pytest.approx(1 / 3, rel=0.1)
    assert throughput(virtual, "root.b") == pytest.approx(1, rel=0.1)
    assert slow.busy == pytest.approx(1, rel=0.1)
    found = summary(virtual)
    assert found.with_speeds == 2
    # 1/3 and 1: mean 2/3, std 1/3.
    assert found.fairness == pytest.approx(0.5, abs=0.08)


def test_where_tasks_were_seen_on_one_platform_only_speeds_are_unknown() -> None:
    virtual = unlike_nodes()
    app = virtual.submit(4, queue="a", requires=on("new"))
    run_tasks(virtual, 60, a=app)

    seen = observed(virtual, "root.a")

    assert seen.speed is None
    assert seen.busy == pytest.approx(1, rel=0.1)
    assert seen.throughput == pytest.approx(1, rel=0.05)


def test_a_driver_cannot_report_more_than_its_cores_could_run() -> None:
    virtual = unlike_nodes()
    app = virtual.submit(4, queue="a")
    virtual.advance(30)
    container = virtual.container(app, 1)
    huge = ExecutorTasks(executor_id="1", stage="map", tasks=1, run_s=1e12)
    virtual.submit_to_master(
        e.ProgressReported(now=virtual.now, application_id=app, progress=Progress(), tasks=(huge,))
    )
    virtual.advance(1)

    busy = observed(virtual, "root.a").busy

    assert container.request.resources.vcores == 1
    assert busy is not None and 0.25 < busy < 0.5, "the whole time of one of four cores, not faded"
