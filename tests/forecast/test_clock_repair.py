"""Times of events whose clock has jumped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hrm.forecast.clock_repair import repaired_times

TIMES = st.lists(st.floats(-1e6, 1e6), max_size=40)


def test_a_clock_that_goes_ahead_for_a_while_keeps_its_distances() -> None:
    times = [0.0, 10.0, 5000.0, 5003.0, 20.0, 30.0, 40.0]
    assert repaired_times(times, 0.0, 10_000.0) == ([0, 10, 10, 13, 20, 30, 40], 2)


def test_a_clock_that_falls_behind_for_a_while_is_set_right() -> None:
    times = [990.0, 1000.0, 1010.0, 3.0, 5.0, 1030.0, 1040.0]
    assert repaired_times(times, 0.0, 10_000.0) == ([990, 1000, 1010, 1010, 1012, 1030, 1040], 2)


def test_no_time_after_the_present_is_right() -> None:
    times = [10.0, 9_000.0, 9_001.0, 9_002.0, 20.0]
    assert repaired_times(times, 0.0, 100.0) == ([10, 10, 11, 12, 20], 3)


def test_no_time_before_the_event_before_is_right() -> None:
    assert repaired_times([5.0, 7.0], 100.0, 1000.0) == ([100, 102], 2)


@given(TIMES)
def test_repaired_times_never_fall_and_stay_within_the_bounds(times: list[float]) -> None:
    found, wrong = repaired_times(times, 0.0, 1000.0)
    assert len(found) == len(times)
    assert found == sorted(found)
    assert all(0.0 <= each <= 1000.0 for each in found)
    assert sum(a != b for a, b in zip(found, times, strict=True)) <= wrong


@given(TIMES)
def test_right_times_stay_as_they_are(times: list[float]) -> None:
    assert repaired_times(sorted(times), -1e6, 1e6) == (sorted(times), 0)
