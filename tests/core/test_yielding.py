"""Containers that yield: they use what is idle, and end as soon as anything else wants it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.node.core import NodeCore
from hrm.core.node.preemption import preemptions
from hrm.core.queue.estimate import simulate
from hrm.core.queue.pools import queues_of
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.wait_table import WaitTable
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.bounds import YIELD_GRACE_S
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    EndCause,
    Gpu,
    NodeName,
    Resources,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.testing.virtual import unit

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
ONE = Resources(1, 1024)
TWO = Resources(2, 1024)
GPU = Resources(1, 1024, 1000)
HALVES = (spec_from("root.a", {"guaranteed": "50%"}), spec_from("root.b", {"guaranteed": "50%"}))
SOON_S = int(YIELD_GRACE_S) + 2


def entry(
    name: str, vcores: int, *, yields: bool = False, cls: WorkloadClass = BATCH, run_s: float = 60.0
) -> Entry:
    return Entry(ContainerId(name), cls, (vcores, 512, 0, 1), run_s, yields=yields)


def lazy(name: str, vcores: int = 1) -> Entry:
    return entry(name, vcores, yields=True)


def unit_with(*running: Entry, vcores: int = 4, grace_s: float = YIELD_GRACE_S) -> UnitQueue:
    """A unit where these run, started one second after the other."""
    of_node = unit("n1", vcores=vcores, run_limit=16)
    queue = UnitQueue(replace(of_node, yield_grace_s=grace_s))
    for number, each in enumerate(running):
        queue.run(each, 10.0 + number)
    return queue


def victims(queue: UnitQueue, *ending: str, preempts_batch: bool = True) -> list[tuple[str, str]]:
    named = set(map(ContainerId, ending))
    found = preemptions(queue, named, {}, 100.0, preempts_batch=preempts_batch)
    return [(x.victim, x.waiter) for x in found]


def started(queue: UnitQueue) -> list[str]:
    return [x.container_id for x in queue.start_all(100.0)]


# --- the order of starts at a unit ------------------------------------------------------------


def test_among_themselves_those_start_that_fit_in_order_of_arrival() -> None:
    queue = unit_with(entry("b", 1))
    for each in (lazy("y1", 2), lazy("y2", 2), lazy("y3", 1), lazy("y4", 1)):
        queue.enqueue(each)
    assert started(queue) == ["y1", "y3"]


def test_batch_that_came_later_starts_before() -> None:
    queue = unit_with()
    queue.enqueue(lazy("y", 3))
    queue.enqueue(entry("b", 2))
    assert started(queue) == ["b"]


def test_nothing_is_idle_for_batch_that_waits_for_other_batch() -> None:
    queue = unit_with(entry("b", 3, run_s=1_000.0))
    queue.enqueue(entry("large", 2))
    queue.enqueue(lazy("y", 1))
    assert started(queue) == ["y"]
    queue.remove(ContainerId("b"))
    assert started(queue) == ["large"]


def test_none_takes_what_others_yield_to_batch() -> None:
    queue = unit_with(entry("b", 1), lazy("y1", 1), lazy("y2", 1))
    queue.enqueue(entry("large", 3))
    queue.enqueue(lazy("y3", 1))
    assert started(queue) == []
    queue.remove(ContainerId("y1"))
    assert started(queue) == [], "the rest of it is to come"
    queue.remove(ContainerId("y2"))
    assert started(queue) == ["large"]


def test_none_takes_what_is_about_to_be_free_for_batch() -> None:
    """Or each short one before it would cost the large one another grace period."""
    queue = unit_with(entry("short", 1, run_s=95.0), entry("stopped", 1, run_s=1_000.0))
    queue.enqueue(entry("large", 4))
    queue.enqueue(lazy("y", 1))
    ending = {ContainerId("stopped")}
    assert [x.container_id for x in queue.start_all(100.0, ending)] == []
    assert started(queue) == ["y"], "the other one goes on for long"


@pytest.mark.parametrize(("grace_s", "expected"), [(5.0, ["y"]), (60.0, [])])
def test_about_to_be_free_is_what_ends_within_the_grace_period(
    grace_s: float, expected: list[str]
) -> None:
    queue = unit_with(entry("b", 2, run_s=120.0), grace_s=grace_s)
    queue.enqueue(entry("large", 4))
    queue.enqueue(lazy("y", 1))
    assert started(queue) == expected, "b is due in half a minute"


def test_what_streams_alone_keep_from_starting_holds_up_none() -> None:
    queue = unit_with(entry("s", 3, cls=STREAM))
    queue.enqueue(entry("large", 2))
    queue.enqueue(lazy("y", 1))
    assert started(queue) == ["y"]


def test_none_starts_while_a_stream_waits() -> None:
    queue = unit_with(entry("b", 3))
    queue.enqueue(entry("s", 2, cls=STREAM))
    queue.enqueue(lazy("y", 1))
    assert started(queue) == []


def test_what_has_become_a_stream_yields_no_more() -> None:
    queue = unit_with(lazy("y", 4))
    queue.reclassify(ContainerId("y"), STREAM)
    queue.enqueue(entry("b", 1))
    assert victims(queue) == []
    queue.reclassify(ContainerId("y"), BATCH)
    assert victims(queue) == [("y", "b")]


# --- what is ordered to end ---------------------------------------------------------------------


def test_as_few_as_needed_end_the_newest_first() -> None:
    queue = unit_with(lazy("y1"), lazy("y2"), lazy("y3"), lazy("y4"))
    queue.enqueue(entry("b", 2))
    assert victims(queue) == [("y4", "b"), ("y3", "b")]


def test_what_is_ending_counts_as_capacity_to_come() -> None:
    queue = unit_with(lazy("y1"), lazy("y2"), entry("old", 1), lazy("y4"))
    queue.enqueue(entry("b", 2))
    assert victims(queue, "old") == [("y4", "b")]
    assert victims(queue, "old", "y4") == []


def test_none_ends_for_another_that_yields() -> None:
    queue = unit_with(lazy("y1", 4))
    queue.enqueue(lazy("y2"))
    assert victims(queue) == []


def test_none_ends_where_that_would_not_be_enough() -> None:
    queue = unit_with(entry("old", 3), lazy("y"))
    queue.enqueue(entry("b", 2))
    assert victims(queue) == []


@pytest.mark.parametrize(("run_s", "ends"), [(1_000.0, False), (5.0, True)])
def test_none_ends_for_what_a_reservation_would_hold_up(run_s: float, ends: bool) -> None:
    queue = unit_with(entry("old", 2, run_s=130.0), lazy("y1"), lazy("y2"))
    queue.enqueue(entry("first", 4))
    queue.enqueue(entry("b", 1, run_s=run_s))
    assert victims(queue) == ([("y2", "b")] if ends else [])


def test_a_stream_takes_from_what_yields_before_other_batch() -> None:
    queue = unit_with(lazy("y1"), lazy("y2"), entry("young", 2))
    queue.enqueue(entry("s", 1, cls=STREAM))
    assert victims(queue) == [("y2", "s")]
    queue.enqueue(entry("s2", 3, cls=STREAM))
    assert victims(queue) == [("y2", "s"), ("y1", "s2"), ("young", "s2")]


def test_where_batch_is_not_preempted_for_streams_what_yields_is() -> None:
    queue = unit_with(lazy("y"), entry("b", 3))
    queue.enqueue(entry("s", 1, cls=STREAM))
    assert victims(queue, preempts_batch=False) == [("y", "s")]
    queue.enqueue(entry("s2", 2, cls=STREAM))
    assert victims(queue, preempts_batch=False) == [("y", "s")]


def test_what_yields_at_a_sibling_ends_for_the_cores_that_they_share() -> None:
    hardware = Hardware(
        cores=tuple(Core(number) for number in range(4)),
        memory_mib=8192,
        gpus=(Gpu(index=0, memory_mib=1000),),
    )
    queues = queues_of(partition(NodeName("n1"), hardware, Partitioning(mode=BindingMode.SHARED)))
    cpu, gpu = (queues[x] for x in queues)
    cpu.run(lazy("y", 4), 10.0)
    gpu.enqueue(Entry(ContainerId("b"), BATCH, (1, 512, 900, 1), 60.0))
    assert victims(gpu) == victims(cpu) == [("y", "b")]
    cpu.enqueue(lazy("y2"))
    cpu.remove(ContainerId("y"))
    assert started(cpu) == ["b", "y2"]


def spec(name: str, resources: Resources, *, yields: bool = False) -> ContainerSpec:
    return ContainerSpec(
        container_id=ContainerId(name),
        application_id=ApplicationId(f"app-of-{name}"),
        executor_id="1",
        resource_profile_id=0,
        workload_class=BATCH,
        resources=resources,
        unit_id=ResourceUnitId("n1/cpu"),
        yields=yields,
    )


def test_its_node_gives_it_time_to_end_its_step_also_when_its_agent_has_restarted() -> None:
    core = NodeCore(NodeName("n1"), (unit("n1", vcores=4),), yield_grace_s=3.0)
    core.handle(
        e.ContainerAdopted(now=1.0, spec=spec("y", Resources(4, 512), yields=True), started_at_s=0)
    )
    out = core.handle(e.AssignReceived(now=2.0, epoch=1, spec=spec("b", ONE)))
    (stop,) = (x for x in out if isinstance(x, c.StopProcess))
    assert (stop.container_id, stop.cause, stop.decommission) == ("y", EndCause.PREEMPTED, True)
    assert stop.grace_s == 3.0
    (ended,) = (x for x in core.statuses() if x.container_id == "y")
    assert ended.yields and not ended.preempted, "its replacement stands first nowhere"


HARDWARE = Hardware(
    cores=tuple(Core(number) for number in range(4)),
    memory_mib=8192,
    gpus=(Gpu(index=0, memory_mib=1000),),
)


def node(grace_s: float, mode: BindingMode = BindingMode.SHARED) -> NodeCore:
    name, binding = NodeName("n1"), Partitioning(mode=mode)
    units = partition(name, HARDWARE, binding)
    return NodeCore(name, units, hardware=HARDWARE, binding=binding, yield_grace_s=grace_s)


def test_the_units_of_a_node_have_its_grace_period_however_it_is_partitioned() -> None:
    core = node(60.0)
    assert core.settled
    for mode in BindingMode:
        core.handle(e.RebindReceived(now=1.0, epoch=1, request_id=1, mode=mode))
        assert core.settled
        of_core = [queue.unit for queue in core.units.values()]
        assert {x.yield_grace_s for x in (*of_core, *core.offers)} == {60.0}


def test_so_does_a_unit_of_an_earlier_layout_where_something_is_found() -> None:
    core = node(60.0, BindingMode.EVEN)
    found = replace(spec("y", ONE, yields=True), unit_id=ResourceUnitId("n1/gpu7"))
    core.handle(e.ContainerAdopted(now=1.0, spec=found, started_at_s=0.0))
    assert core.units[found.unit_id].unit.draining
    assert {x.unit.yield_grace_s for x in core.units.values()} == {60.0}
    core.handle(
        e.ProcessEnded(
            now=2.0, container_id=found.container_id, end=ContainerEnd(cause=EndCause.EXITED)
        )
    )
    assert core.settled


# --- estimates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grace_s", [0.0, YIELD_GRACE_S, 60.0])
def test_what_yields_is_due_within_the_grace_period_of_its_unit(grace_s: float) -> None:
    lasting = entry("y1", 2, yields=True, run_s=900.0)
    queue = unit_with(lasting, entry("b", 2, run_s=500.0), grace_s=grace_s)
    assert simulate((2, 512, 0, 1), queue.image(), 100.0) == grace_s
    assert simulate((4, 512, 0, 1), queue.image(), 100.0) > 100.0


@pytest.mark.parametrize(("grace_s", "starts"), [(60.0, ["short"]), (5.0, [])])
def test_a_reservation_is_for_the_end_of_that_grace_period(
    grace_s: float, starts: list[str]
) -> None:
    lasting = entry("y", 3, yields=True, run_s=900.0)
    queue = unit_with(lasting, grace_s=grace_s)
    queue.enqueue(entry("first", 4))
    queue.enqueue(entry("short", 1, run_s=30.0))
    assert started(queue) == starts


@pytest.mark.parametrize("runs", [True, False])
def test_a_view_keeps_it_when_something_is_put_on_a_unit(runs: bool) -> None:
    state = SharedState()
    row = state.add(NodeName("n1"), unit_with(lazy("y1", 2), grace_s=60.0))
    view = ClusterView(state)
    view.apply(row, entry("b", 1 if runs else 4), 100.0)
    image = view.image(row)
    assert image.yield_grace_s == 60.0
    assert len(image.running) == (2 if runs else 1)


def test_the_table_of_waits_agrees_at_any_time() -> None:
    queues = [
        unit_with(lazy("y1", 2), entry("b", 2, run_s=500.0)),
        unit_with(entry("b", 2, run_s=95.0), entry("y", 2, yields=True, run_s=92.0)),
        unit_with(entry("b", 4, run_s=95.0)),
        unit_with(entry("y1", 3, yields=True, run_s=900.0), lazy("y2"), grace_s=60.0),
        unit_with(entry("y1", 2, yields=True, run_s=900.0), entry("b", 2, run_s=95.0), grace_s=0.3),
    ] * 2
    table = WaitTable()
    table.stale.update(range(len(queues)))
    table.update(lambda row: queues[row].image(), len(queues))
    rows = np.arange(len(queues))
    for now in (100.0, 101.0, 104.0, 120.0):
        for demand in ((2, 512, 0, 1), (4, 512, 0, 1)):
            waits = table.waits_s(demand, rows, now)
            expected = [simulate(demand, queue.image(), now) for queue in queues]
            assert waits.tolist() == expected
