"""How far off forecasts were: three figures, with intervals for series whose errors depend on each
other.

Source of the first two: RLPTO figure 5 reports an "accuracy" without saying of what; 1 - MAPE and
1 - WAPE are its two readings. MASE: Hyndman and Koehler, "Another look at measures of forecast
accuracy", Int. J. Forecasting 22(4), 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hrm.forecast.series import Floats

__all__ = ["Accuracy", "Estimate", "accuracy", "block_bootstrap", "block_length", "error_scale"]

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Of some forecasts.

    Attributes:
        one_minus_mape: 1 - the mean of absolute errors over volumes, where these are above 0; NaN
            where none is.
        one_minus_wape: 1 - the sum of absolute errors over that of volumes; NaN where nothing
            happened.
        mase: the mean absolute error over that of repeating the value one season ago on the
            history; below 1 is better. NaN where the history repeats itself exactly.
    """

    one_minus_mape: float
    one_minus_wape: float
    mase: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


def error_scale(history: Floats, season: int) -> float:
    """Mean absolute error of repeating the value one season ago, on ``history``, shape (n,); NaN
    where it is shorter than that."""
    changes = np.abs(history[season:] - history[:-season])
    known = changes[np.isfinite(changes)]
    return float(known.mean()) if len(known) else math.nan


def accuracy(forecasts: Floats, volumes: Floats, scale: float) -> Accuracy:
    """Figures of forecasts of ``volumes``, both of shape (n,); unknown volumes do not count.

    ``scale``: ``error_scale`` of what came before them.
    """
    known = np.isfinite(volumes)
    errors, actual = np.abs(forecasts[known] - volumes[known]), volumes[known]
    above = actual > 0
    relative = errors[above] / actual[above]
    return Accuracy(
        one_minus_mape=1.0 - float(relative.mean()) if len(relative) else math.nan,
        one_minus_wape=1.0 - float(errors.sum() / actual.sum()) if above.any() else math.nan,
        mase=float(errors.mean()) / scale if len(errors) and scale > 0 else math.nan,
    )


def block_length(count: int, season: int) -> int:
    """Of blocks that keep what depends on each other together: a season, or, where that leaves
    fewer than eight of them, what an eighth of the intervals is, and at least one."""
    return max(1, min(season, count // 8))


def block_bootstrap(
    figure: Callable[[np.ndarray[tuple[int], np.dtype[np.intp]]], float],
    count: int,
    block: int,
    seed: int = 0,
) -> Estimate:
    """``figure`` of the intervals 0 to ``count`` - 1, and the 2.5 and 97.5 % quantiles over
    resamples: circular blocks of ``block`` consecutive intervals, drawn with replacement.

    Source: Politis and Romano, "A circular block-resampling procedure for stationary data", 1992.
    """
    generator = np.random.default_rng(seed)
    blocks = math.ceil(count / block)
    found = []
    for _ in range(RESAMPLES):
        firsts = generator.integers(0, count, blocks)
        drawn = ((firsts[:, None] + np.arange(block)) % count).ravel()[:count]
        found.append(figure(drawn))
    low, high = np.nanquantile(found, (0.025, 0.975))
    return Estimate(value=figure(np.arange(count)), low=float(low), high=float(high))
