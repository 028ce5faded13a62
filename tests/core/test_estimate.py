"""Algorithm 1: the check values of its specification, then what must hold of any queue."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hrm.core.messages.claims import Entry
from hrm.core.queue.estimate import simulate
from hrm.core.queue.overdue import corrected_end_s, corrected_ends_s
from hrm.core.queue.start_rule import UnitImage
from hrm.core.vocabulary.bounds import YIELD_GRACE_S
from hrm.core.vocabulary.feasibility import Vector, fits, minus
from hrm.core.vocabulary.model import ContainerId, WorkloadClass
from tests.core.algorithm_1 import estimate

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
NOW = 500.0


def entry(name: str, vcores: int, left_s: float, workload_class: WorkloadClass = BATCH) -> Entry:
    """A container that has ``left_s`` seconds left if it runs, or will take them if it waits."""
    demand = (vcores, 1, 0, 1)
    return Entry(ContainerId(name), workload_class, demand, left_s, started_at_s=NOW)


def image(
    vcores: int,
    running: Iterable[Entry] = (),
    batch: Iterable[Entry] = (),
    stream: Iterable[Entry] = (),
    slots: int = 16,
) -> UnitImage:
    capacity: Vector = (vcores, 1000, 0, slots)
    free = capacity
    for each in running:
        free = minus(free, each.demand)
    waiting = tuple(stream), tuple(batch)
    return UnitImage(capacity, free, tuple(running), *waiting, YIELD_GRACE_S)


def wait_of(vcores: int, unit: UnitImage) -> float:
    return simulate((vcores, 1, 0, 1), unit, NOW)


def test_a_waiter_before_the_new_container_delays_it() -> None:
    unit = image(4, [entry("a", 4, 10)], [entry("b", 4, 20)])
    assert wait_of(1, unit) == 30.0


def test_two_long_waiters_are_worse_than_five_short_ones() -> None:
    long = image(1, [entry("r", 1, 500)], [entry("w", 1, 500)])
    short = image(1, [entry("r", 1, 2)], [entry(f"w{i}", 1, 2) for i in range(4)])
    assert wait_of(1, long) == 1000.0
    assert wait_of(1, short) == 10.0
    chosen = estimate((1, 1, 0, 1), BATCH, [(0, long), (1, short)], NOW)
    assert (chosen.row, chosen.wait) == (1, 10.0)


def test_a_stream_ranks_units_by_the_streams_that_wait_there() -> None:
    few = image(1, [entry("r", 1, 500, STREAM)], stream=[entry("w", 1, 0, STREAM)])
    many = image(1, [entry("r", 1, 2)], stream=[entry(f"w{i}", 1, 0, STREAM) for i in range(3)])
    chosen = estimate((1, 1, 0, 1), STREAM, [(0, many), (1, few)], NOW)
    assert (chosen.row, chosen.wait) == (1, 1.0)


def test_a_new_container_waits_for_the_waiter_that_it_would_delay() -> None:
    unit = image(4, [entry("a", 2, 10), entry("b", 2, 30)], [entry("c", 4, 20)])
    assert wait_of(2, unit) == 50.0


def test_a_new_container_passes_a_waiter_next_to_which_there_is_capacity() -> None:
    unit = image(4, [entry("a", 2, 10), entry("b", 2, 30)], [entry("c", 3, 20)])
    assert wait_of(1, unit) == 10.0


def test_none_waits_for_a_waiter_that_streams_hold_up() -> None:
    unit = image(4, [entry("a", 1, 10), entry("b", 1, 0, STREAM)], [entry("c", 4, 20)])
    assert wait_of(2, unit) == 0.0


def test_capacity_at_once_is_no_wait_and_the_first_such_unit_is_taken() -> None:
    full = image(4, [entry("a", 4, 10)])
    chosen = estimate((1, 1, 0, 1), BATCH, [(7, full), (8, image(4)), (9, image(4))], NOW)
    assert (chosen.row, chosen.wait) == (8, 0.0)


def test_a_unit_that_is_too_small_is_never_chosen() -> None:
    assert estimate((8, 1, 0, 1), BATCH, [(0, image(4))], NOW).row is None
    assert estimate((8, 1, 0, 1), STREAM, [(0, image(4))], NOW).row is None


def test_the_run_limit_counts_as_a_resource() -> None:
    unit = image(8, [entry("a", 1, 10)], slots=1)
    assert wait_of(1, unit) == 10.0


def test_behind_a_stream_that_never_ends_the_wait_is_infinite() -> None:
    assert math.isinf(wait_of(1, image(1, [entry("s", 1, 0, STREAM)])))


def test_batch_waits_while_a_stream_waits_even_where_it_would_fit() -> None:
    unit = image(2, [entry("a", 1, 10)], stream=[entry("s", 2, 0, STREAM)])
    assert math.isinf(wait_of(1, unit))


def test_what_a_driver_holds_is_not_waited_for() -> None:
    driver = Entry(ContainerId("driver-1-x1"), BATCH, (1, 1, 0, 1), 5.0, started_at_s=NOW)
    assert math.isinf(wait_of(1, image(1, [driver])))
    assert wait_of(1, image(2, [driver])) == 0.0


def test_a_container_that_has_outlived_its_estimate_gets_more_time() -> None:
    late = Entry(ContainerId("late"), BATCH, (1, 1, 0, 1), 5.0, started_at_s=NOW - 100)
    assert wait_of(1, image(1, [late])) == 65.0, (
        "5 s have become 165: 95 too many, and more to come"
    )


@given(st.floats(0, 1e5), st.floats(0, 1e6), st.floats(0, 1e9))
@example(1 / 3, 1.0, 128.0)  # doubled as often as needed, it is rounded to now
def test_what_runs_is_never_expected_to_end_at_once_nor_to_take_for_ever(
    run_s: float, elapsed_s: float, begin_s: float
) -> None:
    now = begin_s + elapsed_s
    end_s = corrected_end_s(begin_s, run_s, now)
    assert now <= end_s <= now + max(run_s, elapsed_s, 0.001) * (1 + 1e-6) + 1e-6
    if begin_s + run_s < now:
        assert now < end_s
        array = corrected_ends_s(np.array([begin_s]), np.array([run_s]), now)
        assert array.tolist() == [end_s]


entries = st.builds(
    lambda i, vcores, left: entry(f"c{i}", vcores, left),
    st.integers(0, 10**9),
    st.integers(1, 4),
    st.floats(0, 100),
)


def _units() -> st.SearchStrategy[UnitImage]:
    def build(running: list[Entry], waiting: list[Entry]) -> UnitImage:
        taken: list[Entry] = []
        free: Vector = (4, 1000, 0, 4)
        for each in running:
            if fits(each.demand, free):
                free = minus(free, each.demand)
                taken.append(each)
        return UnitImage((4, 1000, 0, 4), free, tuple(taken), (), tuple(waiting), YIELD_GRACE_S)

    unique = st.lists(entries, max_size=6, unique_by=lambda x: x.container_id)
    return st.builds(build, unique, unique)


@given(_units(), st.integers(1, 4))
def test_a_wait_is_never_negative_and_ends_at_some_end(unit: UnitImage, vcores: int) -> None:
    wait = wait_of(vcores, unit)
    total = sum(x.duration_s for x in (*unit.running, *unit.batch_waiting))
    assert 0.0 <= wait <= total + 1e-6


@given(_units(), st.integers(1, 3))
def test_a_larger_container_never_waits_less(unit: UnitImage, vcores: int) -> None:
    assert wait_of(vcores + 1, unit) >= wait_of(vcores, unit)


@pytest.mark.parametrize("workload_class", [BATCH, STREAM])
def test_without_units_there_is_no_choice(workload_class: WorkloadClass) -> None:
    chosen = estimate((1, 1, 0, 1), workload_class, [], NOW)
    assert chosen.row is None
    assert math.isinf(chosen.wait)
