"""Containers that yield, in a cluster: they use what is idle, and end for what others want."""

from __future__ import annotations

import pytest

from hrm.core.tenancy.queue_spec import QueueName, QueueSpec, spec_from
from hrm.core.vocabulary.bounds import YIELD_GRACE_S, Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerState,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.testing.virtual import VirtualCluster, unit
from tests.core import test_yielding

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
ONE = Resources(1, 1024)
TWO = Resources(2, 1024)
GPU = Resources(1, 1024, 1000)
HALVES = (spec_from("root.a", {"guaranteed": "50%"}), spec_from("root.b", {"guaranteed": "50%"}))
SOON_S = int(YIELD_GRACE_S) + 2


def cluster(
    *queues: QueueSpec, nodes: int = 2, bounds: Bounds | None = None, schedulers: int = 2
) -> VirtualCluster:
    """Whatever is preempted takes all of its grace period."""
    units = [unit(f"n{number}", 4) for number in range(nodes)]
    return VirtualCluster(
        units, queues=queues, bounds=bounds, schedulers=schedulers, drain_s=1_000.0
    )


def fill(
    virtual: VirtualCluster, executors: int, size: Resources = ONE, queue: str = ""
) -> ApplicationId:
    """An application whose containers yield, and that wants so many."""
    app = virtual.submit(0, queue=queue)
    virtual.request(app, range(1, executors + 1), size, yields=True)
    virtual.settle()
    return app


def master_graces_s(virtual: VirtualCluster) -> dict[str, float]:
    state = virtual.master.master_state.state
    return {x: state.queue(row).image().yield_grace_s for x, row in state.rows.items()}


def running(virtual: VirtualCluster, app: ApplicationId) -> int:
    return len(virtual.app(app).in_state(ContainerState.RUNNING))


def test_each_node_reports_its_grace_period_also_another_one_after_a_restart() -> None:
    virtual = cluster(nodes=1)
    virtual.add_core(test_yielding.node(60.0))
    virtual.settle()
    assert master_graces_s(virtual) == {"n0/cpu": 10.0, "n1/cpu": 60.0, "n1/gpu0": 60.0}
    virtual.nodes["n1"].core = test_yielding.node(3.0)
    virtual.register(virtual.nodes["n1"])
    virtual.settle()
    assert master_graces_s(virtual) == {"n0/cpu": 10.0, "n1/cpu": 3.0, "n1/gpu0": 3.0}


def test_what_is_idle_is_used() -> None:
    virtual = cluster()
    idle = fill(virtual, 20)
    assert running(virtual, idle) == 8


def test_batch_gets_what_others_yield_within_the_grace_period() -> None:
    virtual = cluster()
    idle = fill(virtual, 20)
    spark = virtual.submit(3, TWO)
    virtual.advance(SOON_S)
    assert running(virtual, spark) == 3
    assert running(virtual, idle) == 2, "no more than needed ended, and all is used"


def test_no_more_is_taken_than_is_wanted_by_several() -> None:
    virtual = cluster()
    idle = fill(virtual, 8)
    first, second = virtual.submit(2, TWO), virtual.submit(2, ONE)
    virtual.advance(SOON_S)
    assert (running(virtual, first), running(virtual, second)) == (2, 2)
    assert running(virtual, idle) == 2


def test_what_others_yield_is_taken_rather_than_a_place_behind_batch() -> None:
    virtual = cluster()
    other = virtual.submit(0)
    virtual.request(other, [1], Resources(4, 1024), expected_duration_s=3.0)
    idle = fill(virtual, 4)
    assert (running(virtual, other), running(virtual, idle)) == (1, 4)
    spark = virtual.submit(4)
    virtual.advance(SOON_S)
    assert running(virtual, spark) == 4


def test_a_gang_starts_once_others_have_yielded() -> None:
    virtual = cluster()
    fill(virtual, 8)
    spark = virtual.submit(3, TWO, gang_min=3)
    virtual.advance(SOON_S)
    assert running(virtual, spark) == 3


def test_a_stream_takes_from_what_yields_and_from_no_other_batch() -> None:
    virtual = cluster()
    idle = fill(virtual, 4)
    batch = virtual.submit(4)
    virtual.settle()
    stream = virtual.submit(2, TWO, STREAM)
    virtual.advance(SOON_S)
    assert (running(virtual, stream), running(virtual, batch)) == (2, 4)
    assert running(virtual, idle) == 0


def test_a_new_master_knows_what_yields() -> None:
    virtual = cluster()
    idle = fill(virtual, 8)
    virtual.restart_master()
    virtual.attach(idle)
    for node in virtual.nodes.values():
        virtual.register(node)
    virtual.advance(virtual.bounds.recovery_window_s + 2.0)
    assert running(virtual, idle) == 8
    spark = virtual.submit(2, TWO, gang_min=2)
    virtual.advance(SOON_S)
    assert running(virtual, spark) == 2


@pytest.mark.parametrize("queue", ["a", "b"])
@pytest.mark.parametrize("schedulers", [1, 2])
def test_queues_do_not_keep_it_from_what_others_yield(queue: str, schedulers: int) -> None:
    """Nothing is reclaimed, and both queues want more than they have."""
    virtual = cluster(*HALVES, bounds=Bounds(queue_preemption=False), schedulers=schedulers)
    idle = fill(virtual, 30, queue="a")
    other = fill(virtual, 30, queue="b")
    assert running(virtual, idle) + running(virtual, other) == 8
    spark = virtual.submit(4, queue=queue)
    virtual.advance(SOON_S + 2)
    assert running(virtual, spark) == 4


def test_it_waits_at_a_unit_whatever_others_want_and_claims_no_guarantee() -> None:
    virtual = cluster(*HALVES)
    batch = virtual.submit(30, queue="b")
    virtual.settle()
    assert running(virtual, batch) == 8
    idle = fill(virtual, 1, queue="a")
    virtual.advance(Bounds().queue_reclaim_wait_s + 30)
    assert virtual.states(idle) == {"waiting": 1}
    assert virtual.master.placement.reclaim.preempted == 0


def test_it_stays_where_it_waits_though_its_queue_holds_more_than_its_share() -> None:
    """Taken back, it would be lent the same place again."""
    virtual = cluster(*HALVES, nodes=1, bounds=Bounds(queue_preemption=False))
    batch = virtual.submit(4, queue="b")
    virtual.settle()
    idle = fill(virtual, 6, queue="a")
    virtual.request(batch, range(5, 9))
    virtual.advance(5)
    assert virtual.states(batch) == {"running": 4, "pending": 4}
    assert virtual.states(idle) == {"waiting": 6}
    assert virtual.app(idle).ended_ids == set(), "none was returned"


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_what_waits_last_takes_nothing_of_its_queues_share(schedulers: int) -> None:
    """The queue's own batch gets what it is guaranteed."""
    virtual = cluster(*HALVES, schedulers=schedulers)
    other = virtual.submit(8, queue="b")
    virtual.settle()
    idle = fill(virtual, 6, queue="a")
    virtual.request(other, range(9, 13))
    virtual.advance(5)
    assert virtual.states(idle) == {"waiting": 6}
    batch = virtual.submit(3, queue="a")
    virtual.advance(60)
    assert running(virtual, batch) == 3
    assert running(virtual, other) == 5


def test_what_waits_last_is_checked_against_what_yields_and_has_no_place() -> None:
    virtual = cluster(*HALVES)
    virtual.submit(8, queue="b")
    virtual.settle()
    idle = fill(virtual, 6, queue="a")
    assert virtual.states(idle) == {"waiting": 6}
    state = virtual.master.master_state
    usage, apps = state.queues, state.applications.values()
    assert usage.accounts is not None
    account = usage.accounts.of[QueueName("root.a")]
    assert account.waits_last == (6.0, 6 * 1024.0, 0.0)
    assert usage.violations(apps) == []
    account.waits_last = (5.0, 5 * 1024.0, 0.0)
    (found,) = usage.violations(apps)
    assert "root.a counts (5.0, 5120.0, 0.0) last" in found
    account.waits_last = (6.0, 6 * 1024.0, 0.0)
    usage._idle.popitem()
    (found,) = usage.violations(apps)
    assert "wait last on one side only" in found


def test_a_queue_that_claims_its_guarantee_takes_from_what_yields_first() -> None:
    """Nodes do not let it wait for what yields there."""
    virtual = cluster(*HALVES, bounds=Bounds(queue_reclaim_wait_s=0.0))
    idle = fill(virtual, 4, queue="a")
    young = virtual.submit(4, queue="a")
    virtual.settle()
    claimant = virtual.submit(2, TWO, queue="b")
    virtual.advance(30)
    assert running(virtual, claimant) == 2
    assert (running(virtual, young), running(virtual, idle)) == (4, 0)


def _most_held(virtual: VirtualCluster, queue: str, seconds: int) -> float:
    """The most cores that containers of a queue hold at nodes, running or waiting, meanwhile."""
    most = 0
    for _ in range(seconds):
        virtual.advance(1)
        apps = virtual.master.master_state.applications.values()
        some = [x for app in apps if app.record.queue == queue for x in app.containers.values()]
        most = max(most, sum(x.request.resources.vcores for x in some if x.node is not None))
    return most


def test_a_stream_exceeds_no_maximum_that_waiting_containers_of_its_queue_fill() -> None:
    half = {"guaranteed": "50%", "maximum": "50%"}
    virtual = cluster(spec_from("root.a", half), HALVES[1])
    virtual.submit(8, queue="b")
    virtual.advance(2)
    idle = fill(virtual, 6, queue="a")
    assert virtual.states(idle) == {"waiting": 4, "pending": 2}

    stream = virtual.submit(2, queue="a", workload_class=STREAM)

    assert _most_held(virtual, "root.a", 30) == 4
    assert running(virtual, stream) == 2
    assert virtual.states(idle) == {"waiting": 2, "pending": 2}, "no more than needed is returned"


def test_what_yields_and_waits_below_a_maximum_keeps_no_sibling_from_its_guarantee() -> None:
    none = {"guaranteed": {"cores": 0, "memory": 0}}
    virtual = cluster(
        spec_from("root.g", {"guaranteed": "50%", "maximum": "50%"}),
        spec_from("root.g.a", none),
        spec_from("root.g.b", {}),
        spec_from("root.c", {"guaranteed": "50%"}),
        bounds=Bounds(queue_reclaim_wait_s=0.0),
    )
    virtual.submit(8, queue="c")
    virtual.advance(2)
    idle = fill(virtual, 4, queue="root.g.a")
    assert virtual.states(idle) == {"waiting": 4}

    batch = virtual.submit(2, queue="root.g.b")
    virtual.advance(30)

    assert running(virtual, batch) == 2
    assert virtual.states(idle) == {"waiting": 2}


def test_batch_that_waits_moves_to_where_others_yield() -> None:
    virtual = cluster(nodes=1)
    virtual.submit(4)
    virtual.settle()
    waits = virtual.submit(1)
    virtual.settle()
    assert virtual.states(waits) == {"waiting": 1}
    virtual.add_node(unit("n2", 4))
    idle = fill(virtual, 4)
    assert running(virtual, idle) == 4
    virtual.advance(virtual.bounds.relocation_wait_s + 2)
    assert virtual.states(waits) == {}, "it is returned"
    virtual.request(waits, [2])
    virtual.advance(SOON_S)
    assert running(virtual, waits) == 1


def test_it_takes_a_core_beside_batch_that_waits_for_more() -> None:
    """Though by the estimates it would start sooner at another unit: only its node passes it."""
    virtual = cluster()
    spark, sizes = virtual.submit(0), ((1, 3, 20.0), (2, 4, 40.0), (3, 4, 900.0))
    for number, vcores, run_s in sizes:
        virtual.request(spark, [number], Resources(vcores, 1024), expected_duration_s=run_s)
        virtual.settle()
    assert virtual.states(spark) == {"running": 2, "waiting": 1}
    idle = fill(virtual, 3)
    assert running(virtual, idle) == 1


def test_it_moves_to_a_core_beside_batch_that_waits_for_more() -> None:
    virtual = VirtualCluster([unit("n0", 4), unit("n1", 2)])
    spark = virtual.submit(0)
    for number, vcores, run_s in ((1, 3, 100.0), (2, 2, 50.0), (3, 1, 100.0)):
        virtual.request(spark, [number], Resources(vcores, 1024), expected_duration_s=run_s)
        virtual.settle()
    idle = fill(virtual, 1)
    virtual.request(spark, [4], Resources(4, 1024), expected_duration_s=900.0)
    virtual.settle()
    assert [x.node for x in virtual.app(idle).in_state(ContainerState.WAITING)] == ["n1"]
    assert [x.node for x in virtual.app(spark).in_state(ContainerState.WAITING)] == ["n0"]
    virtual.end_process(spark, 3)
    virtual.advance(virtual.bounds.relocation_wait_s + 2)
    assert virtual.states(idle) == {}, "it is returned"
    virtual.request(idle, [2], yields=True)
    virtual.settle()
    assert running(virtual, idle) == 1


def gpu_unit(node: str) -> ResourceUnit:
    return ResourceUnit(
        unit_id=ResourceUnitId(f"{node}/gpu0"), capacity=Resources(16, 20_000, 4_000), run_limit=16
    )


@pytest.mark.parametrize("preemption", [False, True])
def test_gpus_that_are_yielded_are_shared_fairly_by_those_that_want_them(preemption: bool) -> None:
    bounds = Bounds(gpu_preemption=preemption)
    virtual = VirtualCluster([gpu_unit("n1"), gpu_unit("n2")], bounds=bounds, drain_s=1_000.0)
    idle = fill(virtual, 20, GPU)
    assert running(virtual, idle) == 8
    first, second = virtual.submit(20, GPU), virtual.submit(20, GPU)
    virtual.advance(SOON_S + 2)
    assert (running(virtual, first), running(virtual, second)) == (4, 4)
    assert running(virtual, idle) == 0


@pytest.mark.parametrize("schedulers", [1, 2])
def test_what_waits_for_the_cores_of_a_gpu_stays_though_another_wants_the_gpu(
    schedulers: int,
) -> None:
    """What yields there holds no device memory. Returned, it would be placed there again."""
    virtual = cluster(nodes=0, schedulers=schedulers)
    virtual.add_node(gpu_unit("n1"))
    idle = fill(virtual, 16)
    assert running(virtual, idle) == 16
    first, second = (virtual.submit(1, Resources(2, 1024, 3_000)) for _ in range(2))
    virtual.advance(SOON_S)
    assert (running(virtual, first), running(virtual, second)) == (1, 0)
    assert virtual.app(first).ended_ids == set(), "none was returned"


def test_what_waits_for_others_to_yield_stays_where_no_other_application_could_start() -> None:
    """The other has fewer GPUs, but needs more cores than the node would have."""
    virtual = cluster(nodes=0, schedulers=1)
    virtual.add_node(gpu_unit("n1"))
    first = virtual.submit(1, Resources(1, 1024, 1_000))
    virtual.settle()
    other = virtual.submit(1, Resources(16, 1024, 1_000))
    fill(virtual, 15)
    virtual.request(first, [2], Resources(1, 1024, 1_000))
    virtual.advance(SOON_S)
    assert (running(virtual, first), running(virtual, other)) == (2, 0)
    assert virtual.app(first).ended_ids == set(), "none was returned"


def test_what_waits_for_others_to_yield_stays_where_a_gang_could_not_start_together() -> None:
    """Any one of the gang would fit."""
    virtual = cluster(nodes=0, schedulers=1)
    virtual.add_node(gpu_unit("n1"))
    long = virtual.submit(13)
    virtual.settle()
    gang = virtual.submit(4, GPU, gang_min=4)
    fill(virtual, 3)
    first = virtual.submit(1, GPU)
    virtual.advance(SOON_S)
    assert [running(virtual, x) for x in (long, gang, first)] == [13, 0, 1]
    assert virtual.app(first).ended_ids == set(), "none was returned"


def test_what_waits_for_others_to_yield_stays_where_a_later_application_has_no_less() -> None:
    """Whichever is returned, the first is the first again."""
    virtual = cluster(nodes=0, schedulers=1)
    virtual.add_node(gpu_unit("n1"))
    long = virtual.submit(15)
    virtual.settle()
    gang = virtual.submit(2, GPU, gang_min=2)
    fill(virtual, 1)
    first, second = virtual.submit(1, GPU), virtual.submit(1, Resources(1, 1024, 2_000))
    virtual.advance(SOON_S)
    assert [running(virtual, x) for x in (long, gang, first, second)] == [15, 0, 1, 0]
    assert virtual.app(first).ended_ids == set(), "none was returned"


def test_what_waits_for_others_to_yield_is_not_returned_to_claim_a_guarantee_elsewhere() -> None:
    virtual = cluster(*HALVES, bounds=Bounds(queue_reclaim_wait_s=0.0), schedulers=1)
    virtual.submit(4, queue="a")
    virtual.settle()
    fill(virtual, 4, queue="a")
    spark = virtual.submit(2, queue="b")
    virtual.advance(SOON_S)
    assert running(virtual, spark) == 2
    assert virtual.app(spark).ended_ids == set(), "none was returned"
    assert virtual.master.placement.reclaim.preempted == 0
