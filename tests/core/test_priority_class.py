"""Classes and priorities: the source's arithmetic, as it is repaired here."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.vocabulary.priority_class import (
    INTERRUPTIONS_MAX,
    PriorityClass,
    Standing,
    class_of,
    declared,
    priority_text,
    requested,
)

RANGES = {
    PriorityClass.NORMAL: range(10, 31),
    PriorityClass.URGENT: range(35, 50),
    PriorityClass.HIGHEST: range(50, 51),
}
TENTHS = st.sampled_from([x for each in RANGES.values() for x in each])
STEPS = st.integers(-5, 5).filter(bool)


@pytest.mark.parametrize(
    ("tenths", "net", "after"),
    [
        (10, 3, 13),
        (13, -1, 12),
        (28, 2, 30),
        (30, 1, 40),
        (40, -5, 35),
        (35, -1, 25),
        (25, 5, 30),
        (30, 1, 40),
    ],
)
def test_the_vector_of_the_specification(tenths: int, net: int, after: int) -> None:
    assert requested(tenths, net) == after


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-7, "1.0 (normal)"),
        (0, "1.0 (normal)"),
        (1, "1.0 (normal)"),
        (2, "2.0 (normal)"),
        (3, "3.0 (normal)"),
        (4, "4.0 (urgent)"),
        (5, "5.0 (highest)"),
        (100, "5.0 (highest)"),
    ],
)
def test_a_number_declares_a_class(number: int, text: str) -> None:
    assert priority_text(declared(number)) == text


@given(TENTHS, st.integers(-1_000, 1_000))
def test_a_priority_stays_in_the_range_of_a_class(tenths: int, net: int) -> None:
    after = requested(tenths, net)
    assert after in RANGES[class_of(after)]
    assert (class_of(tenths) is PriorityClass.HIGHEST) == (class_of(after) is PriorityClass.HIGHEST)


@given(TENTHS, st.integers(-5, 5), st.integers(-5, 5))
def test_what_has_been_converted_is_not_converted_back_within_a_period(
    tenths: int, first: int, second: int
) -> None:
    """Each period has five steps at most."""
    there = requested(tenths, first)
    back = requested(there, second)
    if class_of(there) is not class_of(tenths):
        assert class_of(back) is class_of(there)


@given(TENTHS, st.lists(STEPS, min_size=1, max_size=8))
def test_requests_of_a_period_are_summed_before_anything_is_converted(
    tenths: int, steps: list[int]
) -> None:
    standing = Standing(tenths=tenths, base=tenths).begun(100.0, 60.0)
    for each in steps:
        standing = standing.begun(120.0, 60.0).after_request(each, "ana")
    assert standing.tenths == requested(tenths, sum(steps))
    assert standing.steps == sum(map(abs, steps))


def test_a_new_period_begins_where_the_last_one_ended() -> None:
    standing = Standing.as_declared(3).begun(0.0, 60.0).after_request(1, "ana")
    assert (standing.tenths, standing.base) == (40, 30)

    later = standing.begun(60.0, 60.0)

    assert (later.tenths, later.base, later.net, later.steps) == (40, 40, 0, 0)
    assert standing.begun(59.9, 60.0) is standing
    assert standing.begun(-1.0, 60.0).base == 40, "a clock that went back begins a period"


@given(TENTHS, st.integers(1, 60))
def test_waiting_raises_within_a_class_alone(tenths: int, times: int) -> None:
    standing = Standing(tenths=tenths, base=tenths)
    *_, last = accumulate(range(times), lambda x, _: x.after_waiting(), initial=standing)
    assert class_of(last.tenths) is class_of(tenths)
    assert last.tenths == min(tenths + times, max(RANGES[class_of(tenths)]))
    assert last.aged == last.tenths - tenths


def test_the_order_of_classes() -> None:
    highest, urgent, normal = (Standing.as_declared(x) for x in (5, 4, 1))
    interrupted = Standing.as_declared(1).after_interruption(50.0)
    ranks = [x.rank(10.0) for x in (highest, interrupted, urgent, normal)]
    assert ranks == sorted(ranks)
    assert Standing.as_declared(2).rank(99.0) < normal.rank(10.0)
    assert normal.rank(10.0) < normal.rank(11.0)
    assert interrupted.rank(99.0) < Standing.as_declared(1).after_interruption(51.0).rank(10.0)


def test_an_application_is_interrupted_twice_at_most() -> None:
    standing = Standing.as_declared(2)
    for times in range(1, INTERRUPTIONS_MAX + 1):
        assert standing.may_be_interrupted
        standing = standing.after_interruption(float(times)).after_interruption(times + 0.5)
        assert (standing.interruptions, standing.owed) == (times, 2 + (times > 1))
        assert standing.interrupted_at_s == times, "what it loses more is of the same interruption"
        standing = standing.after_start()
    assert not standing.may_be_interrupted
    assert standing.after_start().after_start().after_start().owed == 0
