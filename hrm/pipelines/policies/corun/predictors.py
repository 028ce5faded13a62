"""Filling a table of measurements: estimates for the cells of a row that were never measured.

A table has a row for each kind of work and a column for each metric, all in 0..1, NaN where
unknown. New work is measured in two columns only; rows of other work, measured in more, show how
metrics correlate. Two methods:

``neighbours``  mean of the rows that are closest in the cells that both have
``gaussian``    rows are draws of one normal distribution: the conditional mean, in closed form

Others, and the comparison that chose these, are in ``benchmarks.paper.ncf``.

Sources: LDWP + IAWP, section 3.3; the mean and covariance of incomplete rows by expectation
maximisation after Dempster, Laird and Rubin (1977).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Gaussian", "Neighbours", "Predictor", "column_means", "distances", "filled"]

Floats: TypeAlias = npt.NDArray[np.float64]


class Predictor(Protocol):
    """Fitted to a table periodically, then called for a row at a time."""

    name: str

    def fit(self, table: Floats) -> None:
        """Learn from ``table``, shape (rows, columns), NaN where unknown."""

    def predict(self, known: Floats) -> Floats:
        """The row whose known cells are ``known``, (columns,), NaN elsewhere; returns that shape.

        Known cells are returned unchanged, all others within 0..1; NaN only in columns in which the
        fitted table has no value.
        """


def distances(table: Floats, known: Floats) -> Floats:
    """Of each row to ``known``: root mean square over the cells that both have; inf: none."""
    apart = (table - known) ** 2
    shared = np.isfinite(apart)
    count = shared.sum(axis=1)
    total = np.where(shared, apart, 0.0).sum(axis=1)
    result: Floats = np.where(count > 0, np.sqrt(total / np.maximum(count, 1)), np.inf)
    return result


def column_means(table: Floats) -> Floats:
    """NaN for a column without values."""
    known = np.isfinite(table)
    total = np.where(known, table, 0.0).sum(axis=0)
    count = known.sum(axis=0)
    means: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return means


def filled(known: Floats, predicted: Floats) -> Floats:
    """The known cells, completed by the predicted ones as shares."""
    result: Floats = np.where(np.isfinite(known), known, np.clip(predicted, 0.0, 1.0))
    return result


class Neighbours:
    """The mean of the ``count`` closest rows that have the column, close ones weighing more.

    ``softness``: a distance at which a row weighs half as much as one that is equal.
    """

    name = "neighbours"

    def __init__(self, count: int = 10, softness: float = 0.05) -> None:
        self._count = count
        self._softness = softness
        self._table: Floats = np.empty((0, 0))
        self._means: Floats = np.empty(0)

    def fit(self, table: Floats) -> None:
        self._table = table.copy()
        self._means = column_means(table)

    def predict(self, known: Floats) -> Floats:
        far = distances(self._table, known)
        order = np.argsort(far, kind="stable")
        order = order[np.isfinite(far[order])]
        table, far = self._table[order], far[order]
        has = np.isfinite(table)
        chosen = has & (np.cumsum(has, axis=0) <= self._count)
        weight = chosen * (1.0 / (1.0 + far / self._softness))[:, None]
        total = weight.sum(axis=0)
        mean = (weight * np.where(has, table, 0.0)).sum(axis=0) / np.maximum(total, 1e-12)
        return filled(known, np.where(total > 0, mean, self._means))


class Gaussian:
    """The mean of a row's unknown cells given its known ones, if rows are normally distributed.

    ``ridge`` is added to the variances: the error of a cell by itself. ``shrink`` pulls the
    covariances towards 0, for tables of few rows.
    """

    name = "gaussian"
    _ROUNDS = 25

    def __init__(self, ridge: float = 1e-4, shrink: float = 0.01) -> None:
        self._ridge = ridge
        self._shrink = shrink
        self._means: Floats = np.empty(0)
        self._covariance: Floats = np.empty((0, 0))

    def fit(self, table: Floats) -> None:
        means = column_means(table)
        live = np.flatnonzero(np.isfinite(means))
        mean, covariance = self._maximised(table[:, live], means[live])
        self._means = means
        self._means[live] = mean
        self._covariance = np.zeros((len(means), len(means)))
        self._covariance[np.ix_(live, live)] = covariance

    def _maximised(self, table: Floats, mean: Floats) -> tuple[Floats, Floats]:
        known = np.isfinite(table)
        patterns, which = np.unique(known, axis=0, return_inverse=True)
        groups = [
            (np.flatnonzero(has), np.flatnonzero(~has), table[which == index])
            for index, has in enumerate(patterns)
        ]
        size = table.shape[1]
        variance = np.where(known, (np.where(known, table, mean) - mean) ** 2, 0.0).sum(axis=0)
        covariance = np.diag(variance / np.maximum(known.sum(axis=0), 1) + self._ridge)
        for _ in range(self._ROUNDS):
            total, squares = np.zeros(size), np.zeros((size, size))
            for has, lacks, rows in groups:
                complete = np.where(np.isfinite(rows), rows, 0.0)
                if len(lacks):
                    gain, left = _regression(covariance, has, lacks)
                    complete[:, lacks] = mean[lacks] + (rows[:, has] - mean[has]) @ gain
                    squares[np.ix_(lacks, lacks)] += len(rows) * left
                total += complete.sum(axis=0)
                squares += complete.T @ complete
            mean, before = total / len(table), covariance
            covariance = self._shrunk(squares / len(table) - np.outer(mean, mean))
            if np.abs(covariance - before).max() < 1e-3 * covariance.max():
                break
        return mean, covariance

    def _shrunk(self, covariance: Floats) -> Floats:
        diagonal = np.diag(np.diag(covariance))
        mixed: Floats = (1 - self._shrink) * covariance + self._shrink * diagonal
        mixed += self._ridge * np.eye(len(mixed))
        return mixed

    def predict(self, known: Floats) -> Floats:
        live = np.isfinite(self._means)
        has = np.flatnonzero(np.isfinite(known) & live)
        lacks = np.flatnonzero(~np.isfinite(known) & live)
        predicted = self._means.copy()
        if len(has) and len(lacks):
            gain, _ = _regression(self._covariance, has, lacks)
            predicted[lacks] += (known[has] - self._means[has]) @ gain
        return filled(known, predicted)


def _regression(
    covariance: Floats, has: npt.NDArray[np.intp], lacks: npt.NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Slopes (has, lacks) of the unknown cells on the known ones, and the residual covariance."""
    between = covariance[np.ix_(has, lacks)]
    if not len(has):
        return between, covariance[np.ix_(lacks, lacks)]
    gain = np.asarray(np.linalg.solve(covariance[np.ix_(has, has)], between), np.float64)
    return gain, covariance[np.ix_(lacks, lacks)] - between.T @ gain
