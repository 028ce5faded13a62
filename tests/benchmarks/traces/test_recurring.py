"""Learned run times of applications that come back every night."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from benchmarks.traces import recurring
from benchmarks.traces.recurring import Workload, measure
from hrm.core.vocabulary.estimate_errors import EstimateErrors


def error_of_the_median(sigma: float, share: float) -> float:
    """The percentile of ``|m / x - 1|`` where x is log-normal around m: found by halving."""
    normal, low, high = NormalDist(), 0.0, 50.0
    for _ in range(60):
        error = (low + high) / 2
        above = normal.cdf(math.log(1 + error) / sigma)
        below = normal.cdf(math.log(1 - error) / sigma) if error < 1 else 0.0
        low, high = (error, high) if above - below < share else (low, error)
    return low


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.3])
def test_estimates_of_recurring_applications_are_within_a_quarter(sigma: float) -> None:
    errors = measure(Workload(sigma=sigma), seed=0)
    assert errors.learned <= 0.25
    assert errors.learned < errors.last_run < errors.default
    assert errors.learned < 1.5 * errors.bound


def test_a_measurement_repeats() -> None:
    workload = Workload(sigma=0.2, applications=5, nights=10)
    assert measure(workload, seed=3) == measure(workload, seed=3)
    assert measure(workload, seed=3) != measure(workload, seed=4)


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.3])
def test_stated_sizes_make_up_for_inputs_that_vary(sigma: float) -> None:
    errors = measure(Workload(sigma=sigma, size_sigma=0.7), seed=0)
    assert errors.stated < 0.7 * errors.learned
    assert errors.stated < 1.5 * errors.bound


@pytest.mark.parametrize("sigma", [0.2, 0.3, 0.4])
def test_errors_are_those_that_arithmetic_gives_and_none_knows_its_own_run(sigma: float) -> None:
    """Runs around a median: who knows it errs by a percentile that can be computed, and who learns
    it from a few nights errs a little more."""
    plain = Workload(sigma=sigma, rare=0.0, spread=0.0, applications=150, nights=80, executors=1)
    errors = measure(plain, seed=1)
    median, p90 = (error_of_the_median(sigma, share) for share in (0.5, 0.9))
    assert errors.bound == pytest.approx(median, rel=0.04)
    assert 0.98 * median < errors.learned < 1.25 * median
    assert 0.95 * p90 < errors.learned_p90 < 1.35 * p90
    # The last run is off by as much again, and independently.
    assert errors.last_run == pytest.approx(error_of_the_median(sigma * 2**0.5, 0.5), rel=0.06)
    assert errors.stated == pytest.approx(errors.learned, rel=0.05), "inputs are all alike"


def test_no_estimate_knows_the_size_that_is_not_stated() -> None:
    varied = Workload(
        sigma=0.2, size_sigma=0.7, rare=0.0, spread=0.0, applications=150, executors=1
    )
    errors = measure(varied, seed=1)
    assert errors.bound == pytest.approx(error_of_the_median(0.2, 0.5), rel=0.04)
    assert errors.stated > 0.98 * errors.bound
    assert errors.learned > 2 * errors.bound


def test_the_first_half_of_the_nights_is_learned_and_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[float, float]] = []

    class Counting(EstimateErrors):
        def ended(self, expected_s: float, took_s: float) -> None:
            counted.append((expected_s, took_s))
            super().ended(expected_s, took_s)

    monkeypatch.setattr(recurring, "EstimateErrors", Counting)
    workload = Workload(sigma=0.3, rare=0.0, applications=5, nights=11, executors=3)
    measure(workload, seed=0)
    kinds_of_estimate = 5
    assert len(counted) == kinds_of_estimate * 5 * 3 * 5, "the last five nights of eleven"
    assert min(expected for expected, _ in counted) > 0, "all were known by then"
