"""A view that follows another one of its state: the same, and yet a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.model import (
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.testing.virtual import unit
from tests.policies.states import CLASSES, DEMANDS, NOW, entries, states

DEMAND = (1, 1, 0, 1)


def seen(view: ClusterView, state: SharedState) -> list[Any]:
    """All that can be seen in a view."""
    columns = (
        view.free, view.total, view.stream_headroom, view.waiting_stream, view.waiting_batch,
        view.waiting_limit, view.version, view.open, view.gpu_only, view.gpus, view.preempts,
        view.shares, view.pool,
    )  # fmt: skip
    rows = sorted(state.rows.values())
    waits_s = view.waits_s(DEMAND, np.array(rows, np.int64), NOW).tolist()
    return [
        [column.tolist() for column in columns],
        [view.image(row) for row in rows],
        waits_s,
        [view.refusal(row, DEMAND) for row in rows],
    ]


@settings(max_examples=80, deadline=None)
@given(states(), st.lists(st.tuples(st.integers(0, 5), DEMANDS, CLASSES), max_size=6), st.data())
def test_a_copy_is_as_its_original_and_apart_from_it(
    state: SharedState, steps: list[tuple[int, Any, WorkloadClass]], data: st.DataObject
) -> None:
    view, copy = ClusterView(state), ClusterView(state)
    rows = sorted(state.rows.values())

    def act(on: ClusterView, name: str) -> None:
        for number, (index, demand, workload_class) in enumerate(steps if rows else ()):
            entry = entries(1, demand, workload_class, f"{name}-{number}")[0]
            on.apply(rows[index % len(rows)], entry, NOW)

    act(copy, "left")  # what it has done before is gone
    act(view, "first")
    view.avoid(frozenset(data.draw(st.sets(st.sampled_from([NodeName("n0"), NodeName("n1")])))))
    view.open_to(DEMAND)
    before = seen(view, state)
    copy.follow(view)
    assert seen(copy, state) == before
    act(copy, "second")
    copy.keep_rows(np.zeros_like(copy.open))
    assert seen(view, state) == before
    act(view, "third")
    view.follow(copy)
    assert seen(view, state) == seen(copy, state)


def test_a_copy_sees_what_has_happened_to_the_state() -> None:
    state = SharedState()
    for name in ("n1", "n2"):
        state.add(NodeName(name), UnitQueue(unit(name)))
    view = ClusterView(state)
    copy = view.fork()
    queue = state.queue(0)
    queue.run(entries(1, DEMAND, WorkloadClass.BATCH)[0], NOW)
    state.refresh(0)
    state.add(NodeName("n3"), UnitQueue(unit("n3")))
    view.renew()
    copy.follow(view)
    assert seen(copy, state) == seen(view, state)
    assert copy.free[0].tolist() == [3, 8191, 0, 3]
    assert copy.open.sum() == 3


def test_units_that_share_cores_are_followed_together() -> None:
    state = SharedState()
    for number in range(2):
        each = ResourceUnit(
            unit_id=ResourceUnitId(f"n/gpu{number}"),
            capacity=Resources(4, 8192, 1000),
            run_limit=2,
            pool=ResourceUnitId("n/gpu0"),
        )
        state.add(NodeName("n"), UnitQueue(each))
    view = ClusterView(state)
    view.apply(0, entries(1, (1, 1, 10, 1), WorkloadClass.BATCH)[0], NOW)
    copy = view.fork()
    assert (
        copy.free[:2].tolist() == view.free[:2].tolist() == [[3, 8191, 990, 1], [3, 8191, 1000, 2]]
    )
    copy.apply(1, entries(1, (1, 1, 10, 1), WorkloadClass.BATCH, "more")[0], NOW)
    assert view.free[0].tolist() == [3, 8191, 990, 1]
    assert copy.free[0].tolist() == [2, 8190, 990, 1]
    copy.follow(view)
    assert copy.free[:2].tolist() == view.free[:2].tolist()
    assert [copy.image(row) for row in (0, 1)] == [view.image(row) for row in (0, 1)]


def test_a_view_follows_none_of_another_state() -> None:
    one, other = ClusterView(SharedState()), ClusterView(SharedState())
    assert one.is_of(one.fork()) and not one.is_of(other)
    with pytest.raises(AssertionError, match="own state"):
        one.follow(other)


@settings(max_examples=60, deadline=None)
@given(states(), st.lists(st.integers(0, 3), max_size=12), st.data())
def test_what_has_changed_is_listed(
    state: SharedState, steps: list[int], data: st.DataObject
) -> None:
    """Rows that are not in the list are as they were when the mark was given."""
    view = ClusterView(state)
    mark, changed = view.changed_since(-1)
    assert changed is None
    before = view.free.copy()
    for number, step in enumerate(steps):
        rows = sorted(state.rows.values())
        row = data.draw(st.sampled_from(rows)) if rows else None
        entry = entries(1, DEMAND, WorkloadClass.BATCH, f"step-{number}")[0]
        if step == 0:
            view.renew()
        elif step == 1 and row is not None:
            view.apply(row, entry, NOW)
        elif step == 2 and row is not None:
            state.queue(row).run_if_free(entry, NOW)
            state.refresh(row)
        elif step == 3:
            mark, changed = view.changed_since(mark)
            assert changed is not None
            others = np.setdiff1d(np.arange(len(before)), changed)
            assert np.array_equal(view.free[others], before[others])
            before = view.free.copy()


def test_after_a_change_of_units_any_row_may_have_changed() -> None:
    state = SharedState()
    state.add(NodeName("n1"), UnitQueue(unit("n1")))
    view = ClusterView(state)
    mark, _ = view.changed_since(-1)
    state.add(NodeName("n2"), UnitQueue(unit("n2")))
    view.renew()
    mark, changed = view.changed_since(mark)
    assert changed is None
    assert view.changed_since(mark) == (mark, [])
