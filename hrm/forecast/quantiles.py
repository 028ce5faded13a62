"""How much is not exceeded with which probability, by what such forecasts were wrong by.

A forecast of the same models from earlier moments was off by some factor, of which the quantiles
are taken, for each lead by itself: split conformal prediction on log(1 + volume). Of n factors the
quantile q is the one of rank ceil((n + 1) q), so that it covers at least q of what follows, if the
future errs as the past did. Where n is too small for that rank, the largest stands in, and the
coverage is less: ``covers`` has it.

Source: Papadopoulos et al. 2002; Angelopoulos and Bates, "A Gentle Introduction to Conformal
Prediction", 2021, section 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hrm.forecast.series import Floats

__all__ = ["QUANTILES", "ResidualQuantiles"]

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class ResidualQuantiles:
    """``residuals``: log(1 + actual) - log(1 + forecast), shape (origins, leads); NaN where the
    actual volume is unknown."""

    residuals: Floats

    @classmethod
    def of(cls, forecasts: Floats, actual: Floats) -> ResidualQuantiles:
        """From forecasts and what came of them, both of shape (origins, leads)."""
        return cls(np.log1p(actual) - np.log1p(forecasts))

    def apply(self, forecasts: Floats, quantile: float) -> Floats:
        """What is not exceeded with that probability; ``forecasts``: shape (..., leads)."""
        leads = forecasts.shape[-1]
        factors = np.array([self._of_lead(lead, quantile) for lead in range(leads)])
        found: Floats = np.maximum(0.0, np.expm1(np.log1p(forecasts) + factors))
        return found

    def covers(self, quantile: float) -> float:
        """The probability that the quantile of the last lead can have at most, with so few
        residuals; ``quantile`` itself where there are enough."""
        count = int(np.isfinite(self.residuals[:, -1]).sum())
        return min(quantile, count / (count + 1))

    def _of_lead(self, lead: int, quantile: float) -> float:
        found = np.sort(self.residuals[np.isfinite(self.residuals[:, lead]), lead])
        if not len(found):
            return 0.0
        rank = math.ceil((len(found) + 1) * quantile)
        return float(found[min(max(rank, 1), len(found)) - 1])
