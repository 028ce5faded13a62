"""Plain ways of filling a table of measurements, which the paper's filter is compared with.

``mean``    each column's mean, regardless of the new row's own cells
``matrix``  rows and columns have a few hidden factors; the new row's are fitted to its cells

Source of ``matrix``: alternating least squares after Koren, Bell and Volinsky (2009).
"""

from __future__ import annotations

import numpy as np

from hrm.pipelines.policies.corun.predictors import Floats, column_means, filled

__all__ = ["MatrixFactors", "Mean"]


class Mean:
    """The column means."""

    name = "mean"

    def __init__(self) -> None:
        self._means: Floats = np.empty(0)

    def fit(self, table: Floats) -> None:
        self._means = column_means(table)

    def predict(self, known: Floats) -> Floats:
        return filled(known, self._means)


class MatrixFactors:
    """``rank`` hidden factors for each row and column on top of the column means."""

    name = "matrix"
    _ROUNDS = 30

    def __init__(self, rank: int = 2, ridge: float = 0.1) -> None:
        self._rank = rank
        self._ridge = ridge
        self._means: Floats = np.empty(0)
        self._columns: Floats = np.empty((0, 0))

    def fit(self, table: Floats) -> None:
        self._means = column_means(table)
        live = np.isfinite(self._means)
        rest = table - self._means
        rank = min(self._rank, int(live.sum()))
        # Any start that is not symmetric will do; a fixed one gives the same factors every time.
        columns = np.random.default_rng(0).normal(0.0, 0.3, (table.shape[1], rank))
        for _ in range(self._ROUNDS):
            rows = _least_squares(rest, columns, self._ridge)
            columns = _least_squares(rest.T, rows, self._ridge)
        self._columns = columns

    def predict(self, known: Floats) -> Floats:
        row = _least_squares((known - self._means)[None, :], self._columns, self._ridge)
        return filled(known, self._means + self._columns @ row[0])


def _least_squares(rest: Floats, factors: Floats, ridge: float) -> Floats:
    """For each row of ``rest`` the factors that fit its known cells best."""
    known = np.isfinite(rest)
    values = np.where(known, rest, 0.0)
    squares = np.einsum("rc,ck,cl->rkl", known.astype(float), factors, factors)
    squares += ridge * np.eye(factors.shape[1])
    solved: Floats = np.linalg.solve(squares, (values @ factors)[:, :, None])[:, :, 0]
    return solved
