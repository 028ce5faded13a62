"""A waiter keeps its turn: later ones pass it where they do not delay it, and not without end."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.invariants import unit_violations
from hrm.core.messages.claims import Entry
from hrm.core.queue import reservation, resource_unit
from hrm.core.queue import wait_table as waits
from hrm.core.queue.estimate import simulate
from hrm.core.queue.pools import queues_of
from hrm.core.queue.reservation import Reservation
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.start_rule import end_s
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector, fits, minus, pooled_part
from hrm.core.vocabulary.model import ContainerId, ContainerSpec, Gpu, NodeName, WorkloadClass
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.testing.virtual import unit
from tests.core.test_lasting_preemption import Node, spec

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
FEW = 3


def entry(name: str, vcores: int, duration_s: float, cls: WorkloadClass = BATCH) -> Entry:
    return Entry(ContainerId(name), cls, (vcores, 1, 0, 1), duration_s)


def unit_of(vcores: int, *running: Entry) -> UnitQueue:
    queue = UnitQueue(unit("n1", vcores=vcores, run_limit=16))
    for each in running:
        queue.run(each, 0.0)
    return queue


def started(queue: UnitQueue, now: float, *new: Entry) -> list[str]:
    for each in new:
        queue.enqueue(each)
    return [x.container_id for x in queue.start_all(now)]


def test_one_that_ends_in_time_passes_and_one_that_does_not_waits() -> None:
    queue = unit_of(4, entry("a", 2, 100.0))
    large, short, long = entry("large", 4, 50.0), entry("short", 2, 90.0), entry("long", 2, 91.0)
    assert started(queue, 10.0, large, long, short) == ["short"]
    queue.remove(ContainerId("a"))
    assert started(queue, 100.0) == []
    queue.remove(ContainerId("short"))
    assert started(queue, 100.0) == ["large"]
    queue.remove(ContainerId("large"))
    assert started(queue, 150.0) == ["long"]


def test_one_that_fits_next_to_the_waiter_passes_however_long_it_stays() -> None:
    queue = unit_of(4, entry("a", 3, 100.0))
    assert started(queue, 0.0, entry("large", 3, 50.0), entry("beside", 1, math.inf)) == ["beside"]
    queue.remove(ContainerId("a"))
    assert started(queue, 100.0, entry("next", 1, math.inf)) == ["large"]


def test_short_ones_pass_while_what_a_waiter_waits_for_is_late() -> None:
    """10 s have become 30: that is when the waiter is expected to start now."""
    queue = unit_of(4, entry("late", 2, 10.0))
    assert started(queue, 5.0, entry("large", 4, 50.0)) == []
    assert started(queue, 20.0, entry("long", 2, 11.0)) == []
    assert started(queue, 20.0, entry("short", 2, 10.0)) == ["short"]


def test_a_waiter_that_a_running_stream_leaves_no_capacity_delays_nothing() -> None:
    queue = unit_of(4, entry("s", 1, 0.0, STREAM), entry("a", 1, 10.0))
    assert started(queue, 0.0, entry("large", 4, 50.0), entry("b", 2, 1000.0)) == ["b"]


def test_passes_are_counted_in_front_of_the_waiter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "PASSES_MAX", FEW)
    monkeypatch.setattr(resource_unit, "PASSES_MAX", FEW)
    queue = unit_of(4, entry("a", 2, 1000.0))
    queue.enqueue(entry("large", 4, 50.0))
    for number in range(FEW):
        name = f"short{number}"
        assert started(queue, float(number), entry(name, 2, 1.0)) == [name]
        assert queue.batch_waiting[ContainerId("large")].passed == number + 1
        queue.remove(ContainerId(name))
    assert started(queue, 50.0, entry("one-more", 2, 1.0)) == []
    queue.remove(ContainerId("a"))
    assert started(queue, 60.0) == ["large"]


def test_one_that_changes_its_class_goes_to_the_end_and_has_been_passed_by_none() -> None:
    queue = unit_of(2, entry("a", 1, 1000.0))
    assert started(queue, 0.0, entry("w", 2, 50.0), entry("b", 1, 5.0)) == ["b"]
    assert queue.batch_waiting[ContainerId("w")].passed == 1
    queue.reclassify(ContainerId("w"), STREAM)
    assert list(queue.line) == []
    queue.reclassify(ContainerId("w"), BATCH)
    assert queue.batch_waiting[ContainerId("w")].passed == 0
    assert list(queue.line) == ["w"]


def timed(
    name: str, vcores: int, unit_id: str, gpu_memory_mib: int, length_s: float
) -> ContainerSpec:
    made = spec(name, BATCH, vcores, unit_id, gpu_memory_mib)
    return replace(made, expected_duration_s=length_s)


def test_a_container_that_lacks_the_cores_of_the_pool_keeps_its_gpu() -> None:
    """From a replay: a GPU is free and its waiter lacks cores that siblings have for an hour more.
    Short ones may have the GPU meanwhile. One that stays for a month had it for a month."""
    node = Node(BindingMode.SHARED)
    node.assign(timed("siblings", 6, "n1/cpu", 0, 3600.0))
    node.assign(timed("waits", 4, "n1/gpu0", 1000, 60.0))
    node.assign(timed("month", 1, "n1/gpu0", 1000, 2_600_000.0))
    node.assign(timed("short", 1, "n1/gpu0", 1000, 60.0))
    node.assign(timed("beside", 1, "n1/gpu1", 1000, 2_600_000.0))
    node.assign(timed("cores", 4, "n1/gpu1", 1000, 60.0))
    assert node.started == ["siblings", "short", "beside"]
    node.ends("short")
    assert node.started[3:] == []
    node.ends("siblings")
    assert node.started[3:] == ["waits"]
    node.ends("waits")
    assert node.started[4:] == ["month"]


LENGTHS = st.sampled_from([1.0, 5.0, 5.1, 20.0, 60.0, 1000.0])
arrivals = st.lists(
    st.tuples(st.integers(1, 4), LENGTHS, st.integers(0, 9), st.booleans()), max_size=25
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), LENGTHS), max_size=10),
    st.integers(1, 4),
    st.one_of(LENGTHS, st.just(math.inf)),
)
def test_the_estimate_is_when_the_unit_starts_it(
    waiting: list[tuple[int, float]], vcores: int, run_s: float
) -> None:
    """With run times known, a container starts exactly when estimated, be it short or long."""
    queue = unit_of(4)
    for number, (each, length_s) in enumerate(waiting):
        queue.enqueue(entry(f"w{number}", each, length_s))
        queue.start_all(0.0)
    new = entry("new", vcores, run_s)
    expected_s = simulate(new.demand, queue.image(), 0.0, run_s)
    queue.enqueue(new)
    now = 0.0
    while "new" not in started(queue, now):
        now, _, name = min(
            (end_s(x), number, x.container_id) for number, x in enumerate(queue.running.values())
        )
        queue.remove(name)
    assert now == expected_s


@settings(max_examples=150, deadline=None)
@given(arrivals)
def test_no_reservation_is_broken_where_run_times_are_known(
    happenings: list[tuple[int, float, int, bool]],
) -> None:
    queue = unit_of(4)
    reserved_s: dict[ContainerId, float] = {}
    now = 0.0

    def check_reservations() -> None:
        for each in queue.start_all(now):
            assert now <= reserved_s.get(each.container_id, now)
        first = next(iter(queue.batch_waiting.values()), None)
        if first is not None and not fits(first.demand, queue.free):
            made = Reservation.to(first.demand, first.passed, queue.free, queue.held(now))
            assert made.shadow_time_s <= reserved_s.setdefault(
                first.container_id, made.shadow_time_s
            )

    def until(time_s: float) -> None:
        nonlocal now
        while ends := [x for x in queue.running.values() if end_s(x) <= time_s]:
            ended = min(ends, key=end_s)
            now = end_s(ended)
            queue.remove(ended.container_id)
            check_reservations()
        now = time_s

    for number, (vcores, length_s, pause_s, _) in enumerate(happenings):
        until(now + pause_s)
        queue.enqueue(entry(f"c{number}", vcores, length_s))
        check_reservations()
    until(1e9)
    assert not queue.waiting_count


def machine_queues(mode: BindingMode) -> list[UnitQueue]:
    binding = Partitioning(mode=mode, bound_cores=2, reserve_cores=1)
    hardware = Hardware(
        cores=tuple(Core(number) for number in range(5)),
        memory_mib=8192,
        gpus=(Gpu(index=0, memory_mib=3), Gpu(index=1, memory_mib=3)),
    )
    return list(queues_of(partition(NodeName("n1"), hardware, binding)).values())


steps = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "end", "stream", "class"]),
        st.integers(0, 2),
        st.integers(1, 5),
        st.integers(0, 3),
        st.integers(0, 30),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(BindingMode), steps)
def test_none_is_passed_more_often_than_the_bound(
    mode: BindingMode, happenings: list[tuple[str, int, int, int, int]]
) -> None:
    """Independent of run times: here each is declared as a second, and ends when the test wants."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (reservation, resource_unit, waits):
            patch.setattr(module, "PASSES_MAX", FEW)
        queues = machine_queues(mode)
        line: dict[ContainerId, UnitQueue] = {}
        passed: dict[ContainerId, int] = {}
        for number, (what, index, vcores, device, pick) in enumerate(happenings):
            queue = queues[index % len(queues)]
            held = [(q, x) for q in queues for x in q.running]
            all_entries = [*held, *((q, x) for q in queues for x in q.batch_waiting)]
            name = ContainerId(f"c{number}" if pick % 5 else f"driver-{number}")
            if what in ("come", "stream"):
                demand: Vector = (vcores, 1, device, 1)
                if not queue.could_hold(demand):
                    continue
                cls = BATCH if what == "come" else STREAM
                # Some are so long that they may only pass by fitting next to a waiter.
                queue.enqueue(Entry(name, cls, demand, 1.0 if pick % 3 else math.inf))
                line[name] = queue
            elif what == "end" and held:
                queue, name = held[pick % len(held)]
                queue.remove(name)
            elif what == "class" and all_entries:
                queue, name = all_entries[pick % len(all_entries)]
                if queue.reclassify(name, STREAM if vcores > 4 else BATCH) and vcores <= 4:
                    line.pop(name, None)
                    line[name] = queue
                    passed.pop(name, None)
            before = {q: q.free for q in queues}
            for each in queue.start_all(0.0):
                _count(queues, line, passed, each, before)
            for each_queue in queues:
                assert unit_violations(each_queue) == []
        for _ in range(500):
            held = [(q, x) for q in queues for x in q.running]
            if not held:
                break
            held[0][0].remove(held[0][1])
            held[0][0].start_all(0.0)
        assert not any(queue.waiting_count for queue in queues), "somebody waits for ever"


def _count(
    queues: list[UnitQueue],
    line: dict[ContainerId, UnitQueue],
    passed: dict[ContainerId, int],
    begun: Entry,
    free: dict[UnitQueue, Vector],
) -> None:
    """``free``: the state before; updated to what the container leaves."""
    home = next(q for q in queues if begun.container_id in q.running)
    for queue in home.pool:
        part = begun.demand if queue is home else pooled_part(begun.demand)
        free[queue] = minus(free[queue], part)
    if begun.workload_class is STREAM:
        return
    order = list(line)
    for name in order[: order.index(begun.container_id)]:
        queue = line[name]
        waiter = queue.batch_waiting.get(name)
        if waiter is None or queue not in home.pool or queue.stream_waiting:
            continue
        streams = [x for x in queue.running.values() if x.workload_class is STREAM]
        pooled = [
            x.pooled()
            for q in queue.pool
            if q is not queue
            for x in q.running.values()
            if x.workload_class is STREAM
        ]
        left_by_streams = queue.capacity
        for each in (*streams, *pooled):
            left_by_streams = minus(left_by_streams, each.demand)
        if not fits(waiter.demand, left_by_streams):
            continue
        rest = waiter.demand[2:] <= free[queue][2:] and waiter.demand[3] <= free[queue][3]
        if queue is home or (rest and not fits(pooled_part(waiter.demand), free[queue])):
            passed[name] = passed.get(name, 0) + 1
            assert passed[name] <= FEW, f"{name} is passed by {begun.container_id} as well"


def test_a_waiter_for_cores_is_seen_at_siblings_and_in_copies() -> None:
    state = SharedState()
    queues = machine_queues(BindingMode.SHARED)
    for queue in queues:
        state.add(NodeName("n1"), queue)
    cpu, gpu, other = queues
    cpu.run(entry("a", 4, 100.0), 0.0)
    gpu.enqueue(Entry(ContainerId("w"), BATCH, (3, 1, 1, 1), 50.0))
    assert gpu.start_all(0.0) == []
    assert [x.container_id for x in other.image().batch_waiting] == ["w"]
    assert not other.runs_at_once((1, 1, 1, 1), BATCH)
    assert other.runs_at_once((1, 1, 1, 1), STREAM)
    assert simulate((1, 1, 1, 1), other.image(), 0.0) == 0.0
    assert simulate((3, 1, 1, 1), other.image(), 0.0) == 150.0
    for row in state.rows.values():
        state.refresh(row)
    assert state.waiting_batch.tolist()[: len(queues)] == [1, 1, 1]
