"""How far off the estimates of run times were, over the latest containers that have ended.

The error of one is the difference from what it really took, as a part of that: 0.25 is a quarter
too long or too short. Containers of which nothing was known ran under the default, which is no
estimate: they are only counted.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

__all__ = ["ErrorSummary", "EstimateErrors"]

KEPT = 1_000
"""Of the latest containers."""

_LEAST_S = 0.001


class ErrorSummary(NamedTuple):
    """Of the latest containers: ``known`` had an estimate, whose relative errors have this median
    and 90th percentile; ``unknown`` had none. NaN where there is no error."""

    known: int
    unknown: int
    median: float
    p90: float


class EstimateErrors:
    """Invariant: ``_latest`` has at most ``kept`` errors, NaN for containers without estimate."""

    def __init__(self, kept: int = KEPT) -> None:
        self._latest: deque[float] = deque(maxlen=kept)

    def ended(self, expected_s: float, took_s: float) -> None:
        """A container has done its work. ``expected_s``: 0 where that was unknown."""
        took_s = max(_LEAST_S, took_s)
        self._latest.append(abs(expected_s - took_s) / took_s if expected_s else math.nan)

    def summary(self) -> ErrorSummary:
        errors = sorted(error for error in self._latest if not math.isnan(error))
        unknown = len(self._latest) - len(errors)
        if not errors:
            return ErrorSummary(0, unknown, math.nan, math.nan)
        last = len(errors) - 1
        return ErrorSummary(len(errors), unknown, errors[last // 2], errors[round(0.9 * last)])
