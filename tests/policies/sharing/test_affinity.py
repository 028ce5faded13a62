"""Affinities against the paper's table 3, and what they do where little is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fairness.published import EGOCENTRIC, PER_HOUR, RECIPROCAL
from benchmarks.fairness.world import DEFAULT
from hrm.errors import InvalidRequest
from hrm.policies.sharing import Affinity, platform_affinity

RUN_S = DEFAULT.run_s
AS_PRINTED = 1e-3
"""The throughputs that the others are computed from are rounded, too."""


def test_table_3_is_computed_from_its_run_times() -> None:
    throughput = platform_affinity(Affinity.THROUGHPUT, RUN_S)
    egocentric = platform_affinity(Affinity.EGOCENTRIC, RUN_S)
    reciprocal = platform_affinity(Affinity.RECIPROCAL, RUN_S)

    assert throughput == pytest.approx(PER_HOUR)
    assert np.abs(egocentric - EGOCENTRIC).max() < AS_PRINTED
    assert np.abs(reciprocal - RECIPROCAL).max() < AS_PRINTED
    assert (np.round(egocentric, 3) == EGOCENTRIC).sum() == 17
    assert (np.round(reciprocal, 3) == RECIPROCAL).sum() == 19


def test_reciprocal_affinity_changes_when_a_tenant_leaves() -> None:
    left = platform_affinity(Affinity.RECIPROCAL, np.delete(RUN_S, 1, axis=0))

    expected = [
        [0.966, 1.169, 0.916, 0.976],
        [1.474, 0.854, 0.986, 0.848],
        [0.684, 0.892, 1.201, 1.486],
        [0.678, 1.341, 1.058, 1.104],
    ]
    assert np.abs(left - np.array(expected)).max() < AS_PRINTED


@pytest.mark.parametrize("measure", [Affinity.EGOCENTRIC, Affinity.RECIPROCAL])
def test_a_platform_that_is_the_only_one_is_neither_preferred_nor_not(measure: Affinity) -> None:
    assert platform_affinity(measure, np.array([[3.0], [7.0]])).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("measure", list(Affinity))
def test_what_was_not_measured_is_1_and_changes_only_what_is_compared_with_it(
    measure: Affinity,
) -> None:
    run_s = np.array([[10.0, 20.0, np.nan], [30.0, 30.0, 30.0]])

    affinity = platform_affinity(measure, run_s)

    assert affinity[0, 2] == 1.0
    assert np.isfinite(affinity).all()
    if measure is Affinity.EGOCENTRIC:
        assert affinity[0, :2].tolist() == [2.0, 0.5]
        assert affinity[1].tolist() == [1.0, 1.0, 1.0]


@given(
    st.lists(st.lists(st.floats(0.1, 1e4), min_size=3, max_size=3), min_size=1, max_size=6),
    st.floats(0.01, 100),
)
def test_relative_affinities_do_not_depend_on_the_unit_of_time(
    rows: list[list[float]], factor: float
) -> None:
    run_s = np.array(rows)
    for measure in (Affinity.EGOCENTRIC, Affinity.RECIPROCAL):
        assert platform_affinity(measure, run_s * factor) == pytest.approx(
            platform_affinity(measure, run_s), rel=1e-9
        )


@given(st.lists(st.lists(st.floats(0.1, 1e4), min_size=3, max_size=3), min_size=2, max_size=6))
def test_a_platform_that_is_slower_for_all_alike_changes_no_reciprocal_affinity(
    rows: list[list[float]],
) -> None:
    run_s = np.array(rows)
    slower = run_s * np.array([1.0, 4.0, 1.0])
    assert platform_affinity(Affinity.RECIPROCAL, slower) == pytest.approx(
        platform_affinity(Affinity.RECIPROCAL, run_s), rel=1e-9
    )


@pytest.mark.parametrize("unknown", [np.nan, np.inf])
def test_a_tenant_of_long_tasks_makes_no_platform_seem_slow_where_it_was_measured_alone(
    unknown: float,
) -> None:
    """Alike on both platforms, both tenants; the first was not measured on the second."""
    found = platform_affinity(Affinity.RECIPROCAL, np.array([[1_000.0, unknown], [10.0, 10.0]]))
    assert found == pytest.approx(np.ones((2, 2)))


@given(
    st.lists(st.floats(1, 1e4), min_size=3, max_size=5),
    st.lists(st.floats(0.1, 10), min_size=3, max_size=3),
    st.sets(st.tuples(st.integers(1, 4), st.integers(1, 2)), max_size=4),
)
def test_times_that_are_products_have_no_preferences_whatever_is_missing(
    tenants: list[float], platforms: list[float], missing: set[tuple[int, int]]
) -> None:
    run_s = np.outer(tenants, platforms)
    for row, column in missing:
        if row < len(tenants):
            run_s[row, column] = np.nan
    found = platform_affinity(Affinity.RECIPROCAL, run_s)
    assert found == pytest.approx(np.ones(run_s.shape), rel=1e-9)


def test_a_tenant_of_which_nothing_is_known_changes_nothing() -> None:
    run_s = np.array([[10.0, 20.0], [30.0, 10.0]])
    more = np.vstack([run_s, [np.nan, np.nan]])
    found = platform_affinity(Affinity.RECIPROCAL, more)
    assert found[:2] == pytest.approx(platform_affinity(Affinity.RECIPROCAL, run_s))
    assert found[2].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("run_s", [0.0, -5.0])
def test_times_that_cannot_be_are_refused(run_s: float) -> None:
    with pytest.raises(InvalidRequest, match="state NaN where nothing was measured"):
        platform_affinity(Affinity.EGOCENTRIC, np.array([[run_s, 10.0]]))
