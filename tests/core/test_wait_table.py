"""The waits of all units at once are those of Algorithm 1, one by one: the same bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.messages.claims import Entry
from hrm.core.queue import wait_table
from hrm.core.queue.estimate import simulate
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector, fits
from hrm.core.vocabulary.model import ContainerId, NodeName, WorkloadClass
from hrm.testing.virtual import unit
from tests.policies.states import CLASSES, DEMANDS, NOW, queues, states

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
ONE: Vector = (1, 1, 0, 1)


def _entry(name: str, vcores: int, duration_s: float, cls: WorkloadClass = BATCH) -> Entry:
    return Entry(ContainerId(name), cls, (vcores, 1, 0, 1), duration_s)


RUN_S = st.sampled_from([0.0, 3.0, 5.0, 12.5, 20.0, 60.0, math.inf])


@pytest.fixture(scope="module", params=[0, 8], ids=["together", "few"], autouse=True)
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """All units are played together, and some of them one by one where they are few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wait_table, "_FEW", request.param)
        yield


def _agree(state: SharedState, demand: Vector, now: float, run_s: float = math.inf) -> None:
    rows = np.array(sorted(state.rows.values()), np.int64)
    literal = [simulate(demand, state.queue(row).image(), now, run_s) for row in rows.tolist()]
    assert state.waits_s(demand, rows, now, run_s).tolist() == literal


def test_one_wait_for_each_row_in_the_order_asked() -> None:
    state = SharedState()
    for index, length_s in enumerate((30.0, 10.0, 20.0)):
        queue = UnitQueue(unit(f"n{index}", vcores=1))
        queue.enqueue(_entry(f"c{index}", 1, length_s))
        queue.start_all(0.0)
        state.add(NodeName(f"n{index}"), queue)
    assert state.waits_s(ONE, np.array([2, 0, 1]), 4.0).tolist() == [16.0, 26.0, 6.0]


def test_a_row_out_of_use_has_an_infinite_wait() -> None:
    state = SharedState()
    queue = UnitQueue(unit("n0"))
    row = state.add(NodeName("n0"), queue)
    assert state.waits_s(ONE, np.array([row]), 0.0).tolist() == [0.0]
    state.remove(queue.unit.unit_id)
    assert state.waits_s(ONE, np.array([row, 5]), 0.0).tolist() == [math.inf, math.inf]
    assert state.waits_s(ONE, np.array([], np.int64), 0.0).tolist() == []


def test_an_overdue_container_moves_the_wait_with_the_clock() -> None:
    """The cached start time ends with the first container that is due."""
    state = SharedState()
    queue = UnitQueue(unit("n0", vcores=1))
    queue.enqueue(_entry("runs", 1, 10.0))
    queue.start_all(0.0)
    queue.enqueue(_entry("waits", 1, 5.0))
    row = np.array([state.add(NodeName("n0"), queue)])
    waits = [state.waits_s(ONE, row, now).tolist()[0] for now in (0.0, 4.0, 10.0, 11.0, 500.0)]
    assert waits == [15.0, 11.0, 5.0, 6.5, 155.0], "due at 10, at 12.5, at 650"


def test_a_new_container_passes_a_waiter_only_where_there_is_capacity_for_both() -> None:
    """``long`` may pass ``large``, whose shadow time is 20 s: next to it, one vcore is spare. A
    new one of one vcore would need the same, and one of two waits until ``large`` has ended."""
    state = SharedState()
    queue = UnitQueue(unit("n0", vcores=5, run_limit=9))
    queue.enqueue(_entry("p", 3, 20.0))
    queue.enqueue(_entry("q", 1, 5.0))
    queue.start_all(0.0)
    for name, vcores, length_s in (("large", 4, 100.0), ("long", 1, 300.0)):
        queue.enqueue(_entry(name, vcores, length_s))
    row = np.array([state.add(NodeName("n0"), queue)])
    for vcores, wait_s in ((1, 120.0), (2, 120.0), (5, 300.0)):
        demand = (vcores, 1, 0, 1)
        assert simulate(demand, queue.image(), 0.0) == wait_s
        assert state.waits_s(demand, row, 0.0).tolist() == [wait_s]


@settings(max_examples=300, deadline=None)
@given(states(), DEMANDS, st.sampled_from([0.0, 5.0, 10.0, 17.3, NOW, 60.0]), RUN_S)
def test_all_at_once_is_one_by_one(
    state: SharedState, demand: Vector, now: float, run_s: float
) -> None:
    _agree(state, demand, now, run_s)


@st.composite
def _yielding_queues(draw: st.DrawFn, name: str) -> UnitQueue:
    """The queue of a unit with its own grace period, where some of what runs yields."""
    grace_s = draw(st.sampled_from([0.0, 0.7, 10.0, 60.0]))
    queue = UnitQueue(replace(unit(name, 4), yield_grace_s=grace_s))
    for number in range(draw(st.integers(1, 6))):
        each = _entry(f"{name}-{number}", draw(st.integers(1, 3)), draw(RUN_S), draw(CLASSES))
        each = each._replace(yields=draw(st.booleans()))
        if fits(each.demand, queue.free) and draw(st.booleans()):
            queue.run(each, float(draw(st.sampled_from([0, 5, 7.3]))))
        else:
            queue.enqueue(each)
    return queue


@settings(max_examples=200, deadline=None)
@given(
    st.data(), st.integers(1, 10), DEMANDS, st.sampled_from([7.3, 10.0, 17.3, 60.0, 200.0]), RUN_S
)
def test_so_it_is_where_nodes_give_what_yields_unlike_times(
    data: st.DataObject, units: int, demand: Vector, now: float, run_s: float
) -> None:
    state = SharedState()
    for index in range(units):
        state.add(NodeName(f"n{index}"), data.draw(_yielding_queues(f"n{index}")))
    _agree(state, demand, now, run_s)
    _agree(state, demand, now + 3.0, run_s)


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "end", "enqueue", "start", "reclassify", "leave", "come"]),
        st.integers(0, 40),
        CLASSES,
        DEMANDS,
    ),
    min_size=5,
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(st.data(), states(), RUN_S, steps)
def test_what_is_remembered_stays_true_while_the_state_changes(
    data: st.DataObject,
    state: SharedState,
    run_s: float,
    happenings: list[tuple[str, int, WorkloadClass, Vector]],
) -> None:
    now = 0.0
    asked: list[Vector] = [ONE, (2, 30, 0, 1)]
    for number, (what, pick, cls, demand) in enumerate(happenings):
        rows = sorted(state.rows.values())
        if what == "ask":
            now += pick % 7
            asked.append(demand)
        elif what == "come":
            for extra in range(pick % 12):
                name = f"x{number}-{extra}"
                state.add(NodeName(name), data.draw(queues(name)))
        elif rows:
            row = rows[pick % len(rows)]
            queue = state.queue(row)
            held = [*queue.running, *queue.stream_waiting, *queue.batch_waiting]
            if what == "leave":
                state.remove(queue.unit.unit_id)
                continue
            if what == "enqueue":
                name = f"y{number}" if pick % 4 else f"driver-{number}"
                queue.enqueue(Entry(ContainerId(name), cls, demand, float(pick)))
            elif what == "start":
                queue.start_all(now)
            elif held and what == "end":
                queue.remove(held[pick % len(held)])
            elif held:
                queue.reclassify(held[pick % len(held)], cls)
            state.refresh(row)
        for each in asked[-3:]:
            _agree(state, each, now, run_s)
            _agree(state, each, now)


@settings(max_examples=100, deadline=None)
@given(states(), DEMANDS, RUN_S, st.lists(st.integers(0, 30), max_size=6))
def test_a_view_adds_what_was_put_on_it(
    state: SharedState, demand: Vector, run_s: float, picks: list[int]
) -> None:
    view = ClusterView(state)
    rows = np.flatnonzero(view.open)
    for number, pick in enumerate(picks):
        if len(rows):
            entry = Entry(ContainerId(f"new-{number}"), BATCH, demand, 20.0)
            view.apply(int(rows[pick % len(rows)]), entry, NOW)
    literal = [simulate(demand, view.image(row), NOW, run_s) for row in rows.tolist()]
    assert view.waits_s(demand, rows, NOW, run_s).tolist() == literal
    assert [view.wait_s(demand, row, NOW, run_s) for row in rows.tolist()] == literal


def test_more_demands_than_are_kept_are_still_computed_right() -> None:
    state = SharedState()
    queue = UnitQueue(unit("n0", vcores=64, memory_mib=64))
    queue.enqueue(_entry("runs", 64, 10.0))
    queue.start_all(0.0)
    state.add(NodeName("n0"), queue)
    for vcores in [*range(1, 40), *range(1, 40)]:
        _agree(state, (vcores, 1, 0, 1), 1.0)
