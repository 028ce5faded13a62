"""How long a tenant's tasks take on each platform, learned from tasks that had company.

Affinities need the time of a task that is alone on its node, and tasks rarely are. So the logarithm
of a run time is taken as a straight line in the node's *load*, the part of its other cores that was
at work: the line at load 0 is the time alone, its slope what company costs. Logarithms, because
errors are relative. The past fades: the latest observation counts at least ``SHARE_MIN``.

Until loads have differed, the slope is not seen, and is the ``SLOPE`` that is common elsewhere,
give or take ``SLOPE_SPREAD``; an interval includes what that leaves open, and where nodes are
always full it stays as wide, however many tasks are seen. An observation far from the line counts
as one at ``OUTLIER_SPREADS`` of the usual deviation: a straggler on a full node would tilt the line
and *lower* the time alone. A change that lasts is followed all the same, since deviations grow by
it. A platform on which a tenant has run nothing gets what its other platforms and the other tenants
suggest (``completion``).

Limits: one line for all company, mild or not. Tasks must be of like size, or a tenant's larger
inputs on one platform pass for slowness of it. Intervals are of the line, not of its being one.

Source: two-level fairness paper takes run times as given; the estimates are this project's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hrm.core.tenancy.completion import completed
from hrm.core.tenancy.fading_line import NORMAL_95, FadingLine, student_95
from hrm.core.vocabulary.columns import Floats
from hrm.errors import InvalidRequest

__all__ = ["ObservedRunTimes", "RunTimeEstimate"]

SLOPE = 0.1
"""A full node's tasks take about e**0.1 as long, where nothing else is known."""

SLOPE_SPREAD = 0.8
"""Standard deviation of true slopes around ``SLOPE``: full nodes' tasks may take five times as
long. 3.3 times at most were published."""

SLOPE_WEIGHT = 0.1
"""Of that assumption, as a variance of loads times observations: the variance of logarithms within
a tenant, 0.25 squared, over that of slopes. Where more is seen, the line follows what is seen."""

OUTLIER_SPREADS = 3.0
OUTLIER_LEAST = 0.3
"""A logarithm is no outlier below this; observations that were alike so far say little."""

OUTLIERS_FROM = 5
"""Observations before which no deviation is usual."""

_LOG_MOST = 700.0
"""Logarithms of times; beyond, they are no numbers any more."""


@dataclass(frozen=True, slots=True)
class RunTimeEstimate:
    """Of a task that is alone on a node.

    Attributes:
        run_s: the estimate, in seconds.
        factor: above 1; the time lies between ``run_s / factor`` and ``run_s * factor`` with a
            confidence of 95 %, as far as observations are alike; infinite where there are none.
        observations: how many count, after fading; 0 where it is inferred from other cells.
    """

    run_s: float
    factor: float
    observations: float


class _Line(FadingLine):
    """With what is assumed of its slope, and of its outliers."""

    __slots__ = ()

    def clipped(self, load: float, log: float) -> float:
        """``log``, but no further from the line than what is usual."""
        if self.count < OUTLIERS_FROM:
            return log
        slope = self.slope(SLOPE, SLOPE_WEIGHT)
        expected = self.at(load, slope)
        usual = math.sqrt(self.squared_deviation(slope))
        most = max(OUTLIER_SPREADS * usual, OUTLIER_LEAST)
        return min(max(log, expected - most), expected + most)

    def alone(self) -> tuple[float, float]:
        """Logarithm of the time at load 0, and half of its 95 % interval."""
        slope = self.slope(SLOPE, SLOPE_WEIGHT)
        at_0 = min(max(self.at(0.0, slope), -_LOG_MOST), _LOG_MOST)
        if self.count < 3:
            return at_0, math.inf
        count, seen = self.observations, self.loads
        weight = SLOPE_WEIGHT / (seen + SLOPE_WEIGHT)  # of the assumption, in the slope
        freedom = max(count - 1 - (1 - weight), 1.0)
        variance = self.squared_deviation(slope) * count / freedom
        of_slope = seen / (seen + SLOPE_WEIGHT) ** 2
        observed = student_95(freedom) * math.sqrt(variance * (1 / count + self.load**2 * of_slope))
        assumed = NORMAL_95 * self.load * weight * SLOPE_SPREAD
        return at_0, math.hypot(observed, assumed)


class ObservedRunTimes:
    """Estimates by tenant and platform; both go by name."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], _Line] = {}

    def observe(self, tenant: str, platform: str, run_s: float, load: float) -> None:
        """A task of ``tenant`` took ``run_s`` seconds on a node of ``platform``, where the part
        ``load`` (0 to 1) of the other cores worked.

        Raises:
            InvalidRequest: a time that is not above 0, or a load outside of 0 to 1.
        """
        if not (0 < run_s < math.inf and 0 <= load <= 1):
            raise InvalidRequest(
                f"a task of {tenant} took {run_s} s at a load of {load}; times are above 0, loads "
                "from 0 to 1"
            )
        line = self._lines.setdefault((tenant, platform), _Line())
        line.add(load, line.clipped(load, math.log(run_s)))

    def forget(self, tenant: str) -> None:
        """It does not come back."""
        self._lines = {key: line for key, line in self._lines.items() if key[0] != tenant}

    def estimate(self, tenant: str, platform: str) -> RunTimeEstimate | None:
        """From tasks of this tenant on this platform; None without any."""
        line = self._lines.get((tenant, platform))
        if line is None:
            return None
        log, half = line.alone()
        factor = math.exp(half) if half < _LOG_MOST else math.inf
        return RunTimeEstimate(math.exp(log), factor, line.observations)

    def table(self, tenants: Sequence[str], platforms: Sequence[str]) -> Floats:
        """Run times alone in seconds, by tenant and platform: for ``platform_affinity``.

        NaN for a tenant of which nothing is known, and on a platform on which nothing has run.
        """
        logs = np.full((len(tenants), len(platforms)), np.nan)
        for row, tenant in enumerate(tenants):
            for column, platform in enumerate(platforms):
                line = self._lines.get((tenant, platform))
                if line is not None:
                    logs[row, column] = line.alone()[0]
        times: Floats = np.exp(np.clip(completed(logs), -_LOG_MOST, _LOG_MOST))
        return times
