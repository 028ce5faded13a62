"""From tasks to nodes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.forecast.pool import PoolBounds, TasksPerNode, pool_size

EXACT = PoolBounds(headroom=0.0)


def test_the_worked_example_of_the_specification() -> None:
    learned = TasksPerNode()
    learned.observe(20, 1)
    learned.observe(25 * 3, 3)
    assert learned.value is not None
    assert learned.value == pytest.approx(21.0)
    assert pool_size(618.0, learned.value, EXACT) == 30  # 29.429


@pytest.mark.parametrize("start", [60, 10])
def test_a_pool_of_the_wrong_size_finds_the_right_one(start: int) -> None:
    """600 tasks a day, of which a node serves 20: by the nodes that are on, 60 would stay 60."""
    served = min(600, start * 20)
    learned = TasksPerNode()
    learned.observe(served, math.ceil(served / 20))
    assert learned.value is not None
    assert pool_size(600, learned.value, EXACT) == 30


@pytest.mark.parametrize("seen", [(0.0, 3.0), (5.0, 0.0), (math.nan, 1.0), (4.0, math.nan)])
def test_an_interval_without_work_or_unknown_says_nothing(seen: tuple[float, float]) -> None:
    learned = TasksPerNode(value=7.0)
    learned.observe(*seen)
    assert learned.value == 7.0


def test_a_pool_shrinks_by_a_fifth_at_once() -> None:
    assert pool_size(1.0, 10.0, EXACT, present=50) == 40
    assert pool_size(1.0, 10.0, EXACT, present=3) == 3
    assert pool_size(1000.0, 10.0, EXACT, present=50) == 100


@given(st.floats(0, 1e6), st.floats(0.1, 1e3), st.integers(0, 200), st.integers(0, 100))
def test_a_size_is_within_its_bounds(tasks: float, each: float, present: int, least: int) -> None:
    bounds = PoolBounds(nodes_min=least, nodes_max=least + 50)
    assert least <= pool_size(tasks, each, bounds, present) <= least + 50
