"""Executors near their data: preferred, waited for briefly, never required."""

from __future__ import annotations

import pytest

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.appmaster.appmaster_limits import AppMasterLimits
from hrm.core.master.explain import explain
from hrm.core.messages import events as e
from hrm.core.messages.appmaster import (
    Command,
    ContainerListed,
    ContainerSeen,
    Phase,
    ProfileTarget,
    RequestContainers,
    SessionOpened,
    TargetsChanged,
)
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.ends import Blame
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    EndCause,
    NodeName,
    Resources,
    ResourceUnit,
    WorkloadClass,
)
from hrm.policies import known, load
from hrm.testing.virtual import VirtualCluster, unit
from tests.virtual_scheduler import VirtualScheduler

DATA = ("n3",)


def nodes(*names: str, vcores: int = 4) -> list[ResourceUnit]:
    return [unit(name, vcores=vcores) for name in names]


def placed(cluster: VirtualCluster, app: ApplicationId) -> list[str]:
    containers = cluster.app(app).containers.values()
    return sorted(x.node for x in containers if x.node is not None)


def pump(cluster: VirtualCluster, seconds: float) -> None:
    """Time passes in steps shorter than any wait here."""
    cluster.advance(seconds)
    cluster.submit_to_master(e.Ticked(now=cluster.now))


@pytest.mark.parametrize("policy", sorted(known()))
def test_every_policy_puts_executors_where_their_data_is(policy: str) -> None:
    cluster = VirtualCluster(nodes("n1", "n2", "n3"), policy=lambda index: load(policy, index))
    app = cluster.submit(0)
    cluster.request(app, range(1, 5), hosts=DATA)
    cluster.settle()
    assert placed(cluster, app) == ["n3"] * 4


def test_what_finds_no_capacity_there_waits_and_then_goes_anywhere() -> None:
    cluster = VirtualCluster(nodes("n1", "n2", "n3", vcores=2))
    app = cluster.submit(0)
    began_s = cluster.now
    cluster.request(app, range(1, 6), hosts=DATA, locality_wait_s=2.0)
    pump(cluster, 1.0)
    assert placed(cluster, app) == ["n3", "n3"], "the others do not queue there either"
    summary, _ = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    assert "for 1.0 s more it is placed only where it could start at once on n3" in summary
    pump(cluster, 1.5)
    assert placed(cluster, app) == ["n1", "n1", "n2", "n3", "n3"] or placed(cluster, app) == [
        "n1", "n2", "n2", "n3", "n3"
    ]  # fmt: skip
    late = [x for x in cluster.app(app).containers.values() if x.node != "n3"]
    assert all(abs(x.assigned_at_s - began_s - 2.0) < 0.01 for x in late), "not sooner, not later"


def test_capacity_that_appears_there_in_time_is_taken() -> None:
    cluster = VirtualCluster(nodes("n1", "n3", vcores=1))
    first = cluster.submit(0)
    cluster.request(first, [1], hosts=DATA)
    cluster.settle()
    second = cluster.submit(0)
    cluster.request(second, [1], hosts=DATA)
    cluster.settle()
    assert placed(cluster, second) == []
    cluster.end_process(first, 1)
    cluster.settle()
    assert placed(cluster, second) == ["n3"]


def test_hosts_are_addresses_or_names_and_unknown_ones_cost_nothing() -> None:
    cluster = VirtualCluster(nodes("n1", "n2"))
    everywhere, nowhere, too_small = cluster.submit(0), cluster.submit(0), cluster.submit(0)
    cluster.request(everywhere, range(1, 3), hosts=("127.0.0.1",))
    cluster.request(nowhere, [1], hosts=("storage-7.example",), locality_wait_s=100.0)
    cluster.add_node(unit("n3", vcores=1))
    cluster.request(too_small, [1], Resources(2, 1024), hosts=DATA, locality_wait_s=100.0)
    cluster.settle()
    assert cluster.states(everywhere) == {"running": 2}
    assert placed(cluster, nowhere)
    assert placed(cluster, too_small) != []
    assert "n3" not in placed(cluster, too_small), "n3 could never hold it"


def test_without_a_wait_it_is_a_preference() -> None:
    cluster = VirtualCluster(nodes("n1", "n3", vcores=2))
    app = cluster.submit(0)
    cluster.request(app, range(1, 4), hosts=DATA, locality_wait_s=0.0)
    cluster.settle()
    assert placed(cluster, app) == ["n1", "n3", "n3"]


@pytest.mark.parametrize(
    ("gang_min", "kind"), [(0, WorkloadClass.STREAM), (4, WorkloadClass.BATCH)]
)
def test_streams_and_gangs_prefer_and_do_not_wait(gang_min: int, kind: WorkloadClass) -> None:
    cluster = VirtualCluster(nodes("n1", "n3", vcores=3))
    app = cluster.submit(0, workload_class=kind, gang_min=gang_min)
    cluster.request(app, range(1, 5), hosts=DATA, locality_wait_s=100.0)
    cluster.settle()
    assert placed(cluster, app) == ["n1", "n3", "n3", "n3"]


def test_one_that_waits_for_its_data_delays_nothing() -> None:
    cluster = VirtualCluster(nodes("n1", "n3", vcores=2), schedulers=1)
    cluster.submit(0)
    picky, plain = cluster.submit(0), cluster.submit(0)
    cluster.request(picky, range(1, 4), hosts=DATA, locality_wait_s=60.0)
    cluster.request(plain, range(1, 3))
    cluster.settle()
    assert placed(cluster, picky) == ["n3", "n3"]
    assert placed(cluster, plain) == ["n1", "n1"]


def test_an_excluded_host_is_not_waited_for() -> None:
    cluster = VirtualCluster(nodes("n1", "n3"))
    app = cluster.submit(0)
    crash = ContainerEnd(cause=EndCause.EXITED, exit_code=1)
    for _ in range(Bounds().node_failures):
        cluster.master.master_state.exclusions.failed(app, NodeName("n3"), crash, cluster.now)
    cluster.request(app, [1], hosts=DATA, locality_wait_s=100.0)
    cluster.settle()
    assert placed(cluster, app) == ["n1"]


def test_a_scheduler_of_another_process_keeps_to_it() -> None:
    cluster = VirtualCluster(nodes("n1", "n3", vcores=2), schedulers=1)
    VirtualScheduler(cluster, "outside")
    apps = [cluster.submit(0) for _ in range(2)]
    app = next(x for x in apps if cluster.app(x).scheduler == "outside")
    cluster.request(app, range(1, 4), hosts=DATA, locality_wait_s=2.0)
    pump(cluster, 1.5)
    assert placed(cluster, app) == ["n3", "n3"]
    pump(cluster, 1.5)
    assert placed(cluster, app) == ["n1", "n3", "n3"]


# --- the AppMaster ------------------------------------------------------------------------------


def target(count: int, local: int) -> ProfileTarget:
    return ProfileTarget(
        profile=0,
        count=count,
        vcores=1,
        heap_mib=512,
        memory_mib=896,
        hosts=("h1", "h2"),
        local_executors=local,
    )


def hosts_asked(commands: list[Command]) -> list[tuple[str, ...]]:
    return [ask.hosts for c in commands if isinstance(c, RequestContainers) for ask in c.asks]


def test_only_as_many_executors_are_bound_to_hosts_as_their_tasks_fill() -> None:
    core = AppMasterCore(limits=AppMasterLimits(locality_wait_s=1.5))
    core.handle(SessionOpened(now=0, epoch=1, containers=(), last_executor_number=0))
    commands = core.handle(TargetsChanged(now=0, targets=(target(4, local=2),)))
    assert hosts_asked(commands) == [("h1", "h2"), ("h1", "h2"), (), ()]
    (request,) = [c for c in commands if isinstance(c, RequestContainers)]
    assert [ask.locality_wait_s for ask in request.asks] == [1.5, 1.5, 0.0, 0.0]
    more = core.handle(TargetsChanged(now=1, targets=(target(6, local=3),)))
    assert hosts_asked(more) == [("h1", "h2"), ()], "two of the three are there already"
    again = core.handle(SessionOpened(now=2, epoch=2, containers=(), last_executor_number=6))
    assert sorted(hosts_asked(again)) == [(), (), (), *[("h1", "h2")] * 3], "the same, under its id"
    ended = ContainerSeen(executor_id="1", profile=0, phase=Phase.ENDED, blame=Blame.NODE)
    replaced = core.handle(ContainerListed(now=3, container=ended))
    assert hosts_asked(replaced) == [("h1", "h2")]
