"""The order of tasks under overload: short and nearly finished first, and nothing passed for ever.

The simulated overload is one server and arrivals of one and a half times what it can do.
"""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.pipelines.core.model import Device, Row
from hrm.pipelines.core.order import STRETCH, DueOrder, due_at_s, known_s
from tests.core.pipeline.building import CPU, subtask
from tests.core.pipeline.running_means import RunningMeans

tasks = st.lists(
    st.tuples(st.floats(0.0, 1e4), st.floats(0.1, 1e3)), min_size=1, max_size=40, unique=True
)


@given(tasks)
def test_no_task_is_passed_by_one_that_came_more_than_its_stretch_later(
    several: list[tuple[float, float]],
) -> None:
    order: DueOrder[int] = DueOrder()
    for number, (at_s, remaining_s) in enumerate(several):
        order.add(number, due_at_s(at_s, remaining_s))
    waiting: list[int] = list(order)
    for place, passed in enumerate(waiting):
        at_s, remaining_s = several[passed]
        for earlier in waiting[:place]:
            assert several[earlier][0] <= at_s + STRETCH * remaining_s


@given(tasks, st.data())
def test_the_order_is_that_of_a_sorted_list(
    several: list[tuple[float, float]], data: st.DataObject
) -> None:
    order: DueOrder[int] = DueOrder()
    due = {number: due_at_s(*one) for number, one in enumerate(several)}
    for number, due_s in due.items():
        order.add(number, due_s)
    for gone in data.draw(st.sets(st.integers(0, len(several) + 3))):
        order.discard(gone)
        due.pop(gone, None)
    assert list(order) == sorted(due, key=lambda number: due[number])
    assert len(order) == len(due) and all(number in order for number in due)
    assert not due or order.first() == next(iter(order))


def test_what_was_never_measured_is_due_at_once() -> None:
    estimates, row = RunningMeans(), Row("kind/a", 0, "")
    estimates.declare(row, subtask("a"))
    assert known_s(estimates, row, CPU) == 0.0
    estimates.observe_run(row, Device.CPU, 7.0, 0.0, 0.0, ())
    assert known_s(estimates, row, CPU) == 7.0
    assert known_s(estimates, row, frozenset()) == 0.0


def _served(order: str, *, seed: int) -> tuple[int, float, float]:
    """Tasks done in an hour of 1.5 x load, the mean and the greatest slow-down of all tasks, those
    that end later included."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(0.0, np.log(40.0), 200))
    arrivals = np.cumsum(rng.exponential(sizes.mean() / 1.5, 200))
    last, now, done = float(arrivals[-1]), 0.0, 0
    waiting: list[tuple[float, int]] = []
    slowdowns: list[float] = []
    following = 0
    while len(slowdowns) < 200:
        if not waiting:
            now = max(now, float(arrivals[following]))
        while following < 200 and arrivals[following] <= now:
            at_s, size_s = float(arrivals[following]), float(sizes[following])
            rank = {"due": due_at_s(at_s, size_s), "arrival": at_s}[order]
            heapq.heappush(waiting, (rank, following))
            following += 1
        _, which = heapq.heappop(waiting)
        now += float(sizes[which])
        slowdowns.append((now - float(arrivals[which])) / float(sizes[which]))
        done += now <= last
    return done, float(np.mean(slowdowns)), max(slowdowns)


@pytest.mark.parametrize("seed", range(3))
def test_under_overload_more_ends_than_in_order_of_arrival_and_nothing_starves(seed: int) -> None:
    done, mean, worst = _served("due", seed=seed)
    first_come, their_mean, their_worst = _served("arrival", seed=seed)
    assert done >= first_come
    assert mean < 0.8 * their_mean
    assert worst < their_worst
