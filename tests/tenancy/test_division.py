"""The division of a queue among its children, each resource by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.tenancy.division import divide, water_fill

NUMBERS = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
CHILDREN = st.lists(
    st.tuples(NUMBERS, NUMBERS, st.floats(1e-3, 1e3)), min_size=1, max_size=6
)  # fmt: skip


def test_guarantees_come_first_and_the_rest_goes_by_weight() -> None:
    shares = divide(
        np.array([100.0]),
        np.array([[50.0], [20.0], [0.0]]),
        np.array([[10.0], [90.0], [90.0]]),
        np.array([1.0, 3.0, 1.0]),
    )
    assert shares[:, 0].tolist() == pytest.approx([10.0, 20 + 52.5, 17.5])


def test_water_stands_at_one_level() -> None:
    parts = water_fill(10.0, np.array([1.0, 20.0, 20.0]), np.array([1.0, 1.0, 2.0]))
    assert parts.tolist() == pytest.approx([1.0, 3.0, 6.0])
    assert water_fill(0.0, np.array([1.0]), np.array([1.0])).tolist() == [0.0]
    assert water_fill(9.0, np.array([1.0, 2.0]), np.array([1.0, 1.0])).tolist() == [1.0, 2.0]


@given(NUMBERS, CHILDREN)
def test_none_has_too_much_nothing_is_left_and_guarantees_hold(
    total: float, children: list[tuple[float, float, float]]
) -> None:
    wanted = np.array([[each[1]] for each in children])
    least = np.array([[each[0]] for each in children])
    least *= min(1.0, total / least.sum()) if least.sum() else 1.0
    shares = divide(np.array([total]), least, wanted, np.array([each[2] for each in children]))
    slack = 1e-9 * max(1.0, total)
    assert (shares <= wanted + slack).all()
    assert shares.sum() == pytest.approx(min(total, wanted.sum()), rel=1e-9, abs=1e-9)
    assert (shares >= np.minimum(least, wanted) - slack).all()


@given(NUMBERS, CHILDREN)
def test_more_for_all_is_less_for_none(
    total: float, children: list[tuple[float, float, float]]
) -> None:
    wanted, weights = np.array([x[1] for x in children]), np.array([x[2] for x in children])
    before = water_fill(total, wanted, weights)
    after = water_fill(total * 1.5 + 1, wanted, weights)
    assert (after >= before - 1e-9 * max(1.0, total)).all()
