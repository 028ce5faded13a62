"""Filling in a table: every predictor's contract, and the strengths of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.paper.plain_predictors import MatrixFactors, Mean
from hrm.pipelines.policies.corun.predictors import (
    Floats,
    Gaussian,
    Neighbours,
    Predictor,
    distances,
)

PLAIN: dict[str, Callable[[], Predictor]] = {
    "mean": Mean,
    "neighbours": Neighbours,
    "matrix": MatrixFactors,
    "gaussian": Gaussian,
}
"""Those that HRM uses, and those that benchmarks compare them with: one contract for all."""
every = pytest.mark.parametrize("name", PLAIN)


def low_rank(rows: int, seed: int = 0) -> Floats:
    """Six columns that two numbers per row determine."""
    rng = np.random.default_rng(seed)
    return np.clip(0.5 + rng.normal(0, 0.15, (rows, 2)) @ rng.normal(0, 1, (2, 6)), 0, 1)


def fitted(name: str, table: Floats) -> Predictor:
    made = PLAIN[name]()
    made.fit(table)
    return made


@every
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), holes=st.floats(0, 0.9), known=st.integers(0, 6))
def test_known_cells_stay_and_the_rest_is_a_share(
    name: str, seed: int, holes: float, known: int
) -> None:
    rng = np.random.default_rng(seed)
    table = np.where(rng.random((12, 6)) < holes, np.nan, rng.random((12, 6)))
    row = np.full(6, np.nan)
    row[rng.permutation(6)[:known]] = 0.5
    found = fitted(name, table).predict(row)
    assert np.array_equal(found[np.isfinite(row)], row[np.isfinite(row)])
    nowhere = ~np.isfinite(table).any(axis=0) & ~np.isfinite(row)
    assert np.array_equal(np.isnan(found), nowhere)
    assert ((found[~nowhere] >= 0) & (found[~nowhere] <= 1)).all()


@every
def test_the_same_table_gives_the_same_row(name: str) -> None:
    row = np.array([0.4, np.nan, np.nan, 0.6, np.nan, np.nan])
    one, other = (fitted(name, low_rank(20)).predict(row) for _ in range(2))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("name", ["neighbours", "matrix", "gaussian"])
def test_two_cells_predict_better_than_the_means(name: str) -> None:
    whole = low_rank(60)
    table, rows = whole[:45], whole[45:]
    known = rows.copy()
    known[:, 2:] = np.nan

    def error(method: str) -> float:
        model = fitted(method, table)
        return float(
            np.mean([np.abs(model.predict(k) - r) for k, r in zip(known, rows, strict=True)])
        )

    assert error(name) < 0.7 * error("mean")


def test_the_conditional_mean_is_the_textbooks() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0.5, 0.1, 20_000)
    y = 0.2 + 0.5 * x + rng.normal(0, 0.01, 20_000)
    model = Gaussian(ridge=0.0, shrink=0.0)
    model.fit(np.stack([x, y], axis=1))
    assert model.predict(np.array([0.7, np.nan]))[1] == pytest.approx(0.55, abs=2e-3)


def test_holes_in_the_table_do_not_bias_it() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0.5, 0.1, 4000)
    table = np.stack([x, x], axis=1)
    table[x > 0.5, 1] = np.nan
    model = Gaussian(ridge=1e-6, shrink=0.0)
    model.fit(table)
    assert model.predict(np.array([0.8, np.nan]))[1] == pytest.approx(0.8, abs=0.04)


def test_distance_counts_what_both_know() -> None:
    table = np.array([[0.0, 0.4, np.nan], [np.nan, np.nan, 0.1]])
    found = distances(table, np.array([0.3, 0.0, np.nan]))
    assert found[0] == pytest.approx(np.sqrt((0.09 + 0.16) / 2))
    assert found[1] == np.inf
