"""The cells of a table of run times that are not known, from those that are.

Times are taken as a tenant's factor times a platform's, so that their logarithms are sums: of what
is known, the two parts that fit best (least squares). The tenants' parts follow from the
platforms', and only as many equations are solved as there are platforms. Between tenants and
platforms that no chain of known cells connects, platforms are taken as equally fast on average.
"""

from __future__ import annotations

import numpy as np

from hrm.core.vocabulary.columns import Floats

__all__ = ["completed"]


def completed(logs: Floats) -> Floats:
    """``logs``, tenants by platforms, with what its NaN cells are inferred to be; they stay NaN in
    a row or a column of which nothing is known."""
    known = np.isfinite(logs)
    if known.all() or not known.any():
        return logs
    values, marks = np.where(known, logs, 0.0), known.astype(np.float64)
    in_row, in_column = known.sum(axis=1), known.sum(axis=0)
    part = marks / np.maximum(in_row, 1)[:, None]
    means = (values * part).sum(axis=1)
    equations = np.diag(in_column.astype(np.float64)) - marks.T @ part
    wanted = np.where(known, values - means[:, None], 0.0).sum(axis=0)
    some = np.flatnonzero(in_column)  # columns of which nothing is known have no equation
    of_column = np.zeros(logs.shape[1])
    of_column[some] = np.linalg.lstsq(equations[np.ix_(some, some)], wanted[some], rcond=None)[0]
    of_row = means - part @ of_column
    inferable = (in_row > 0)[:, None] & (in_column > 0)
    inferred = np.where(inferable, of_row[:, None] + of_column, np.nan)
    return np.where(known, logs, inferred)
