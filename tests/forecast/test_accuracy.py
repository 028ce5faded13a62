"""Errors of forecasts, and what they are not exceeded by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hrm.forecast.accuracy import accuracy, block_bootstrap, block_length, error_scale
from hrm.forecast.quantiles import ResidualQuantiles


def test_figures_of_a_small_example() -> None:
    scale = error_scale(np.array([1.0, 3.0, 1.0, 5.0]), season=2)
    assert scale == 1.0
    found = accuracy(np.array([8.0, 6.0]), np.array([10.0, 5.0]), scale)
    assert found.one_minus_mape == pytest.approx(0.8)
    assert found.one_minus_wape == pytest.approx(1 - 3 / 15)
    assert found.mase == pytest.approx(1.5)


def test_unknown_and_empty_intervals_do_not_spoil_figures() -> None:
    found = accuracy(np.array([9.0, 1.0, 7.0]), np.array([10.0, 0.0, np.nan]), 1.0)
    assert found.one_minus_mape == pytest.approx(0.9)
    assert found.mase == pytest.approx(1.0)
    nothing = accuracy(np.array([1.0]), np.array([np.nan]), 1.0)
    assert all(map(math.isnan, (nothing.one_minus_mape, nothing.one_minus_wape, nothing.mase)))


def test_the_interval_of_dependent_values_is_wider_with_blocks() -> None:
    generator = np.random.default_rng(3)
    values = np.repeat(generator.normal(size=40), 10)
    alone, blocks = (
        block_bootstrap(lambda d: float(values[d].mean()), len(values), block) for block in (1, 10)
    )
    assert alone.value == blocks.value == pytest.approx(values.mean())
    assert blocks.high - blocks.low > 2 * (alone.high - alone.low)


def test_blocks_are_a_season_or_what_leaves_eight() -> None:
    assert (block_length(433, 24), block_length(16, 7), block_length(3, 7)) == (24, 2, 1)


def test_quantiles_cover_what_they_say_on_what_follows() -> None:
    generator = np.random.default_rng(5)
    covered = []
    for _ in range(300):
        actual = np.exp(generator.normal(3, 0.4, size=(40, 1)))
        known = ResidualQuantiles.of(np.full((39, 1), np.exp(3.0)), actual[:39])
        covered.append(actual[39, 0] <= known.apply(np.array([np.exp(3.0)]), 0.9)[0])
    assert 0.86 < np.mean(covered) < 0.96


def test_too_few_errors_say_so() -> None:
    few = ResidualQuantiles(np.log(np.array([[1.1], [1.3], [0.9]])))
    assert few.covers(0.9) == pytest.approx(0.75)
    assert few.apply(np.array([9.0]), 0.9)[0] == pytest.approx(12.0)  # the largest: 10 * 1.3 - 1
    none = ResidualQuantiles(np.zeros((0, 1)))
    assert none.apply(np.array([9.0]), 0.9)[0] == pytest.approx(9.0)
