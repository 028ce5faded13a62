"""Batch containers are preempted for streams: which, how many, and what happens to them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.master.explain import explain
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.node.core import NodeCore
from hrm.core.node.preemption import preemptions
from hrm.core.queue.pools import queues_of
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import fits, plus
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    ContainerState,
    EndCause,
    Gpu,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.testing.virtual import VirtualCluster, unit

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
BIG = Resources(4, 1024)


def entry(name: str, workload_class: WorkloadClass, vcores: int) -> Entry:
    return Entry(ContainerId(name), workload_class, (vcores, 512, 0, 1), 60.0)


def unit_running(*entries: tuple[str, WorkloadClass, int, float], vcores: int = 4) -> UnitQueue:
    queue = UnitQueue(unit("n1", vcores=vcores, run_limit=16))
    for name, workload_class, cores, started_at_s in entries:
        queue.run(entry(name, workload_class, cores), started_at_s)
    return queue


def victims(queue: UnitQueue, ending: set[str] | None = None) -> list[str]:
    named = {ContainerId(x) for x in ending or ()}
    return [x.victim for x in preemptions(queue, named, {}, 100.0)]


def test_the_one_that_loses_least_work_is_preempted() -> None:
    queue = unit_running(("old", BATCH, 2, 10.0), ("young", BATCH, 2, 90.0))
    queue.enqueue(entry("s", STREAM, 1))
    assert victims(queue) == ["young"]


def test_no_more_are_preempted_than_needed() -> None:
    queue = unit_running(("old", BATCH, 3, 10.0), ("young", BATCH, 1, 90.0))
    queue.enqueue(entry("s", STREAM, 3))
    assert victims(queue) == ["old"], "the young one's room would not help"


def test_none_is_preempted_in_vain() -> None:
    queue = unit_running(("b", BATCH, 2, 90.0), ("other", STREAM, 2, 10.0))
    queue.enqueue(entry("s", STREAM, 3))
    assert victims(queue) == []


def test_none_is_preempted_for_its_own_application() -> None:
    queue = unit_running(("old", BATCH, 2, 10.0), ("young", BATCH, 2, 90.0))
    queue.enqueue(entry("s", STREAM, 1))
    app, other = ApplicationId("app"), ApplicationId("other")
    owners = {ContainerId("s"): app, ContainerId("young"): app, ContainerId("old"): other}
    assert [x.victim for x in preemptions(queue, (), owners, 100.0)] == ["old"]


def test_what_is_ending_counts_as_capacity() -> None:
    queue = unit_running(("a", BATCH, 2, 10.0), ("b", BATCH, 2, 90.0))
    queue.enqueue(entry("s1", STREAM, 2))
    assert victims(queue, ending={"b"}) == []
    queue.enqueue(entry("s2", STREAM, 2))
    assert victims(queue, ending={"b"}) == ["a"]


def test_batch_that_waits_takes_unowned_capacity() -> None:
    queue = unit_running(("a", BATCH, 4, 10.0))
    queue.enqueue(entry("b", BATCH, 1))
    assert victims(queue) == []


def test_containers_of_siblings_are_preempted_for_a_stream_that_lacks_the_cores_they_share() -> (
    None
):
    hardware = Hardware(
        cores=tuple(Core(number) for number in range(4)),
        memory_mib=8192,
        gpus=(Gpu(index=0, memory_mib=1000), Gpu(index=1, memory_mib=1000)),
    )
    queues = queues_of(partition(NodeName("n1"), hardware, Partitioning(mode=BindingMode.SHARED)))
    cpu, gpu0, gpu1 = (queues[x] for x in queues)
    cpu.run(entry("cores", BATCH, 2), 10.0)
    gpu1.run(Entry(ContainerId("other-gpu"), BATCH, (2, 512, 900, 1), 60.0), 90.0)
    gpu0.enqueue(Entry(ContainerId("s"), STREAM, (1, 512, 900, 1), 60.0))
    assert victims(gpu0) == ["other-gpu"]
    gpu0.enqueue(Entry(ContainerId("s2"), STREAM, (1, 512, 900, 1), 60.0))
    assert victims(gpu0) == ["other-gpu"], "the device memory of the first is the first's"


sizes = st.lists(st.tuples(st.sampled_from([BATCH, STREAM]), st.integers(1, 4)), max_size=8)


@given(sizes, st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(0, 255))
def test_victims_are_batch_are_enough_and_none_is_too_many(
    running: list[tuple[WorkloadClass, int]], waiting: list[int], ending_mask: int
) -> None:
    queue = UnitQueue(unit("n1", vcores=8, run_limit=8))
    for number, (workload_class, cores) in enumerate(running):
        each = entry(f"r{number}", workload_class, cores)
        if fits(each.demand, queue.free):
            queue.run(each, float(number))
    for number, cores in enumerate(waiting):
        queue.enqueue(entry(f"w{number}", STREAM, cores))
    ending = {x for number, x in enumerate(queue.running) if ending_mask >> number & 1}
    found = preemptions(queue, ending, {}, 100.0)
    assert len({x.victim for x in found}) == len(found)
    for each_found in found:
        assert queue.running[each_found.victim].workload_class is BATCH
        assert each_found.victim not in ending
    first = queue.stream_waiting[ContainerId("w0")]
    chosen = [queue.running[x.victim] for x in found if x.waiter == "w0"]
    coming = queue.free
    for name in sorted(ending):
        coming = plus(coming, queue.running[name].demand)
    total = coming
    for each in chosen:
        total = plus(total, each.demand)
    assert not chosen or fits(first.demand, total)
    for fewer in itertools.combinations(chosen, max(0, len(chosen) - 1)):
        total = coming
        for each in fewer:
            total = plus(total, each.demand)
        assert not chosen or not fits(first.demand, total)


def test_a_stream_runs_at_once_and_the_batch_application_is_notified_of_the_reason() -> None:
    cluster = VirtualCluster([unit("n1")])
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(2, workload_class=STREAM)
    cluster.advance(2.0)
    assert cluster.states(stream) == {"running": 2}
    assert cluster.states(batch) == {"running": 2}
    ends = [x.end for x in cluster.app(batch).ended]
    assert [end.cause for end in ends if end] == [EndCause.PREEMPTED] * 2
    assert all("preempted for the stream" in end.message for end in ends if end)


def test_the_grace_period_is_limited() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=3.0, drain_s=1e6)
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(2.0)
    assert cluster.states(stream) == {"waiting": 1}
    assert cluster.states(batch) == {"running": 3, "stopping": 1}
    cluster.advance(2.0)
    assert cluster.states(stream) == {"running": 1}


def why(cluster: VirtualCluster, app: ApplicationId) -> tuple[str, str]:
    """The summary, and the line about the first container that waits at a node."""
    summary, details = explain(cluster.master.master_state, cluster.app(app), cluster.now)
    return summary, next((line for line in details if "waits at" in line), "")


def test_a_stream_that_waits_for_preemption_learns_until_when() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=30.0, drain_s=1e6)
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(2, workload_class=STREAM)
    cluster.advance(10.0)
    summary, line = why(cluster, stream)
    ending = "2 batch containers are being preempted for streams and have 20 s more to end"
    assert summary.startswith("0 of 2 containers run; the others wait")
    assert f", where {ending} (preemption_grace_s of the agent)" in summary
    assert f"4 run there ({ending} (preemption_grace_s of the agent));" in line
    cluster.finish(stream)
    other = cluster.submit(1)
    cluster.settle()
    summary, line = why(cluster, other)
    assert "preempted" not in summary, "not for batch"
    cluster.finish(batch)


@pytest.mark.parametrize(
    ("executors", "bounds"),
    [
        (1, Bounds(waiting_limit=8)),
        (12, Bounds(waiting_limit=8)),
        (2, Bounds(waiting_bound="feedback")),
    ],
)
@pytest.mark.parametrize("behind", [0, 8, 40])
def test_no_batch_that_waits_keeps_a_stream_from_preempting(
    executors: int, bounds: Bounds, behind: int
) -> None:
    """Nor does a stream of more executors than batch may wait at one unit."""
    cluster = VirtualCluster([unit("n1", vcores=16, run_limit=16)], bounds=bounds)
    batch = cluster.submit(16 + behind, Resources(1, 64))
    cluster.advance(5.0)
    stream = cluster.submit(executors, Resources(1, 64), workload_class=STREAM)
    cluster.advance(30.0)
    assert cluster.states(stream) == {"running": executors}
    assert cluster.states(batch)["running"] == 16 - executors


def test_where_nothing_waits_at_units_nothing_is_preempted() -> None:
    cluster = VirtualCluster([unit("n1")], bounds=Bounds(waiting_limit=0))
    cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(30.0)
    assert cluster.states(stream) == {"pending": 1}


def test_one_that_waits_where_nothing_is_preempted_learns_of_none() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=None)
    cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(10.0)
    text = "".join(why(cluster, stream))
    assert "batch is not preempted there (preemption = false of the agent)" in text
    assert "being preempted" not in text


def test_of_an_agent_that_does_not_state_its_grace_period_no_end_is_named() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=30.0, drain_s=1e6)
    cluster.submit(4)
    cluster.settle()
    cluster.master.master_state.nodes[NodeName("n1")].preemption_grace_s = None
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(10.0)
    assert why(cluster, stream)[0].endswith(
        "where 1 batch container is being preempted for streams"
    )


def test_after_a_restart_of_the_master_the_whole_grace_period_is_the_bound() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=30.0, drain_s=1e6)
    cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(10.0)
    cluster.restart_master()
    cluster.register(cluster.nodes["n1"])
    cluster.attach(stream)
    cluster.settle()
    assert "and has 29 s more to end" in why(cluster, stream)[0]


def test_what_is_released_in_its_grace_period_ends_at_once() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=1000.0, drain_s=1e6)
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(2.0)
    assert cluster.states(stream) == {"waiting": 1}
    cluster.finish(batch)
    cluster.advance(2.0)
    assert cluster.states(stream) == {"running": 1}


def test_preemption_can_be_switched_off() -> None:
    cluster = VirtualCluster([unit("n1")], preemption_grace_s=None)
    batch = cluster.submit(4)
    cluster.settle()
    stream = cluster.submit(1, workload_class=STREAM)
    cluster.advance(60.0)
    assert cluster.states(stream) == {"waiting": 1}
    assert cluster.states(batch) == {"running": 4}


def test_a_stream_waits_where_batch_can_be_preempted() -> None:
    cluster = VirtualCluster([unit("n1"), unit("n2"), unit("n3")])
    first = cluster.submit(2, BIG, WorkloadClass.STREAM)
    cluster.settle()
    batch = cluster.submit(1, BIG)
    cluster.settle()
    second = cluster.submit(1, BIG, WorkloadClass.STREAM)
    cluster.advance(2.0)
    assert cluster.states(first) == {"running": 2}
    assert cluster.states(second) == {"running": 1}
    assert [x.end.cause for x in cluster.app(batch).ended if x.end] == [EndCause.PREEMPTED]


def spec(name: str, workload_class: WorkloadClass) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(name),
        application_id=ApplicationId(f"app-{name}"),
        executor_id=name,
        resource_profile_id=0,
        workload_class=workload_class,
        resources=BIG,
        unit_id=unit("n1").unit_id,
    )


@pytest.fixture
def preempting_node() -> NodeCore:
    node = NodeCore(NodeName("n1"), (unit("n1"),), preemption_grace_s=30.0)
    for number, (name, workload_class) in enumerate([("b", BATCH), ("s", STREAM)]):
        assign = e.AssignReceived(now=float(number), epoch=1, spec=spec(name, workload_class))
        commands = node.handle(assign)
    stops = [x for x in commands if isinstance(x, c.StopProcess)]
    assert [(x.container_id, x.decommission, x.grace_s) for x in stops] == [("b", True, 30.0)]
    return node


def state_of_b(node: NodeCore) -> ContainerState:
    return node.containers[ContainerId("b")].life.state


def test_a_node_needs_no_master_to_let_a_stream_in(preempting_node: NodeCore) -> None:
    preempting_node.handle(e.MasterDisconnected(now=3.0))
    assert state_of_b(preempting_node) is ContainerState.STOPPING
    ended = e.ProcessEnded(
        now=4.0, container_id=ContainerId("b"), end=ContainerEnd(cause=EndCause.PREEMPTED)
    )
    started = [x for x in preempting_node.handle(ended) if isinstance(x, c.StartProcess)]
    assert [x.spec.container_id for x in started] == ["s"]
    assert state_of_b(preempting_node) is ContainerState.ENDED


def test_memory_over_its_limit_ends_the_grace(preempting_node: NodeCore) -> None:
    over = e.ContainerOverLimit(now=3.0, container_id=ContainerId("b"), message="too much")
    for expected in (1, 0):
        stops = [x for x in preempting_node.handle(over) if isinstance(x, c.StopProcess)]
        assert len(stops) == expected
    assert not preempting_node.containers[ContainerId("b")].decommissioning


def test_a_driver_is_never_preempted() -> None:
    queue = unit_running(("x1", BATCH, 2, 90.0), ("x2", BATCH, 2, 10.0))
    queue.enqueue(entry("s", STREAM, 2))
    owners = {
        ContainerId("x1"): ApplicationId("driver-20260101000000-0001"),
        ContainerId("x2"): ApplicationId("app-1"),
    }
    assert [x.victim for x in preemptions(queue, set(), owners, 100.0)] == ["x2"]
    queue.enqueue(entry("t", STREAM, 2))
    found = preemptions(queue, set(), owners, 100.0)
    assert [(x.victim, x.waiter) for x in found] == [("x2", "s")], "the other stream waits"
