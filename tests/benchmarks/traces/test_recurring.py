"""Learned run times of applications that come back every night."""

from __future__ import annotations

import pytest

from benchmarks.traces.recurring import Workload, measure


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
