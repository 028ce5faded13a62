"""Run times alone from tasks with company: what is learned, how certain, what is inferred."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.core.tenancy.observed_run_times import SLOPE_SPREAD
from hrm.errors import InvalidRequest
from hrm.policies.sharing import Affinity, ObservedRunTimes, platform_affinity


def test_the_time_alone_is_learned_from_nodes_that_are_never_idle() -> None:
    observed, random = ObservedRunTimes(), Random(1)
    for _ in range(2_000):
        load = random.choice([0.4, 0.7, 1.0])
        run_s = 100 * math.exp(0.5 * load + random.gauss(0, 0.05))
        observed.observe("etl", "old", run_s, load)

    found = observed.estimate("etl", "old")

    assert found is not None
    assert found.run_s == pytest.approx(100, rel=0.05)
    assert 1 < found.factor < 1.15
    assert found.observations == pytest.approx((2 - 0.05) / 0.05, rel=0.01)


def test_where_loads_are_alike_company_costs_what_it_does_elsewhere() -> None:
    observed = ObservedRunTimes()
    for _ in range(50):
        observed.observe("etl", "old", 110.5, 1.0)
    found = observed.estimate("etl", "old")
    assert found is not None
    assert found.run_s == pytest.approx(110.5 / math.exp(0.1), rel=0.01)
    # However many they are, they do not show it.
    assert found.factor == pytest.approx(math.exp(1.96 * SLOPE_SPREAD), rel=1e-3)


LOADS = {"idle": [0.0], "full": [1.0], "varied": [0.2, 0.6, 1.0]}


@pytest.mark.parametrize("observations", [5, 10, 40])
@pytest.mark.parametrize(
    ("loads", "slope"),
    [("idle", 0.5), ("full", 0.5), ("varied", 0.1), ("varied", 0.5), ("varied", 1.5)],
)
def test_intervals_contain_the_time_alone_as_often_as_they_say(
    loads: str, slope: float, observations: int
) -> None:
    random, within, draws = Random(7), 0, 300
    for _ in range(draws):
        observed = ObservedRunTimes()
        for _ in range(observations):
            load = random.choice(LOADS[loads])
            run_s = 100 * math.exp(slope * load + random.gauss(0, 0.3))
            observed.observe("etl", "old", run_s, load)
        found = observed.estimate("etl", "old")
        assert found is not None
        within += found.run_s / found.factor <= 100 <= found.run_s * found.factor
    assert within / draws >= 0.9


def test_a_straggler_changes_little_and_does_not_tilt_the_line() -> None:
    """360 times as long, on a full node: by the slope, that would lower the time alone."""
    observed = ObservedRunTimes()
    for at in range(60):
        observed.observe("etl", "old", 100.0, 0.5 + 0.5 * (at % 2))
    observed.observe("etl", "old", 36_000.0, 1.0)
    found = observed.estimate("etl", "old")
    assert found is not None
    assert found.run_s == pytest.approx(100, rel=0.05)


def test_a_change_that_lasts_is_no_outlier() -> None:
    observed, random = ObservedRunTimes(), Random(3)
    for mean_s in [100.0] * 200 + [1_000.0] * 120:
        observed.observe("etl", "old", mean_s * math.exp(random.gauss(0, 0.1)), 0.0)
    found = observed.estimate("etl", "old")
    assert found is not None
    assert found.run_s == pytest.approx(1_000, rel=0.1)


@pytest.mark.parametrize(
    "times_s", [[1e300, 1e-300, 1e300], [5e-324] * 3, [1e308, 1e-308, 1e308, 1e-308]]
)
def test_times_at_the_ends_of_what_numbers_hold_are_estimated(times_s: list[float]) -> None:
    observed = ObservedRunTimes()
    for at, run_s in enumerate(times_s):
        observed.observe("etl", "old", run_s, float(at % 2))
    found = observed.estimate("etl", "old")
    assert found is not None
    assert 0 < found.run_s < math.inf
    assert found.factor >= 1.0
    assert np.isfinite(observed.table(["etl"], ["old"])).all()


def test_two_observations_are_no_certainty_and_none_is_no_estimate() -> None:
    observed = ObservedRunTimes()
    assert observed.estimate("etl", "old") is None
    observed.observe("etl", "old", 10.0, 0.0)
    observed.observe("etl", "old", 10.0, 0.0)
    found = observed.estimate("etl", "old")
    assert found is not None
    assert (round(found.run_s, 6), found.factor) == (10.0, math.inf)


def test_the_past_fades() -> None:
    observed = ObservedRunTimes()
    for run_s in [100.0] * 500 + [50.0] * 100:
        observed.observe("etl", "old", run_s, 0.0)
    found = observed.estimate("etl", "old")
    assert found is not None
    assert found.run_s == pytest.approx(50, rel=0.02)


def test_a_platform_without_tasks_is_inferred_from_other_tenants() -> None:
    observed = ObservedRunTimes()
    for tenant, platform, run_s in [
        ("a", "old", 100.0), ("a", "new", 50.0), ("b", "old", 30.0),
    ]:  # fmt: skip
        observed.observe(tenant, platform, run_s, 0.0)

    times = observed.table(["a", "b", "c"], ["old", "new", "newest"])

    assert times[:2, :2] == pytest.approx(np.array([[100, 50], [30, 15]]), rel=1e-3)
    assert np.isnan(times[2]).all()
    assert np.isnan(times[:, 2]).all()
    affinity = platform_affinity(Affinity.RECIPROCAL, times)
    assert np.isfinite(affinity).all()
    assert affinity[2].tolist() == [1.0, 1.0, 1.0]


def test_a_tenant_that_is_forgotten_is_unknown() -> None:
    observed = ObservedRunTimes()
    observed.observe("a", "old", 1.0, 0.0)
    observed.observe("b", "old", 1.0, 0.0)
    observed.forget("a")
    assert observed.estimate("a", "old") is None
    assert observed.estimate("b", "old") is not None


@given(
    st.lists(st.floats(1, 1e4), min_size=3, max_size=3),
    st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=4),
)
def test_times_that_are_products_are_completed_where_each_row_and_column_connects(
    tenants: list[float], platforms: list[float], missing: set[tuple[int, int]]
) -> None:
    names = [f"t{at}" for at in range(3)], [f"p{at}" for at in range(4)]
    missing -= {(0, at) for at in range(4)} | {(at, 0) for at in range(3)}
    observed = ObservedRunTimes()
    for row, column in np.ndindex(3, 4):
        if (row, column) not in missing:
            run_s = tenants[row] * platforms[column]
            observed.observe(names[0][row], names[1][column], run_s, 0.0)
    expected = np.outer(tenants, platforms)
    assert observed.table(*names) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("length", [3, 8, 20])
def test_a_chain_of_tenants_on_two_platforms_each_is_completed_exactly(length: int) -> None:
    random, observed = Random(length), ObservedRunTimes()
    tenants = [random.uniform(1, 100) for _ in range(length)]
    platforms = [random.uniform(0.2, 5) for _ in range(length + 1)]
    for row in range(length):
        for column in (row, row + 1):
            run_s = tenants[row] * platforms[column]
            observed.observe(f"t{row}", f"p{column}", run_s, 0.0)
    found = observed.table(
        [f"t{row}" for row in range(length)], [f"p{column}" for column in range(length + 1)]
    )
    assert found == pytest.approx(np.outer(tenants, platforms), rel=1e-9)


def test_platforms_that_nothing_connects_are_taken_as_alike() -> None:
    observed = ObservedRunTimes()
    observed.observe("a", "old", 100.0, 0.0)
    observed.observe("b", "new", 5.0, 0.0)
    times = observed.table(["a", "b"], ["old", "new"])
    assert times == pytest.approx(np.array([[100.0, 100.0], [5.0, 5.0]]), rel=1e-9)


@pytest.mark.parametrize(("run_s", "load"), [(0.0, 0.0), (math.nan, 0.0), (1.0, 1.1), (1.0, -1.0)])
def test_what_cannot_be_is_refused(run_s: float, load: float) -> None:
    with pytest.raises(InvalidRequest, match="times are above 0, loads from 0 to 1"):
        ObservedRunTimes().observe("etl", "old", run_s, load)
