"""How long a tenant's tasks take on each platform, learned from tasks that had company.

Affinities need the time of a task that is alone on its node, and tasks rarely are. So the logarithm
of a run time is taken as a straight line in the node's *load*, the part of its other cores that was
at work: the line at load 0 is the time alone, its slope what company costs. Logarithms, because
errors are relative. The past fades: each observation counts at least ``SHARE_MIN``.

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

from hrm.core.vocabulary.columns import Floats
from hrm.errors import InvalidRequest
from hrm.policies.sharing.completion import completed

__all__ = ["SHARE_MIN", "ObservedRunTimes", "RunTimeEstimate"]

SHARE_MIN = 0.05
"""What the latest observation counts for at least."""

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

_OUTLIERS_FROM = 5
"""Observations before which no deviation is usual."""

_LOG_MOST = 700.0
"""Logarithms of times; beyond, they are no numbers any more."""

_NORMAL_95 = 1.96
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.131, 2.086, 2.042,
    2.009,
)  # fmt: skip
_FREEDOM = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 50)
"""Two-sided 95 % quantiles of Student's t, and the degrees of freedom that they are for."""


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


class _Line:
    """Fading means of load, logarithm of run time, and their products."""

    __slots__ = ("count", "load", "load_load", "load_log", "log", "log_log", "squares")

    def __init__(self) -> None:
        self.count = 0
        self.squares = 0.0
        self.load = self.log = self.load_load = self.load_log = self.log_log = 0.0

    def add(self, load: float, log: float) -> None:
        self.count += 1
        share = max(SHARE_MIN, 1 / self.count)
        self.squares = (1 - share) ** 2 * self.squares + share**2
        self.load += share * (load - self.load)
        self.log += share * (log - self.log)
        self.load_load += share * (load * load - self.load_load)
        self.load_log += share * (load * log - self.load_log)
        self.log_log += share * (log * log - self.log_log)

    @property
    def observations(self) -> float:
        """As many of equal weight would be as certain."""
        return 1 / self.squares

    def clipped(self, load: float, log: float) -> float:
        """``log``, but no further from the line than what is usual."""
        if self.count < _OUTLIERS_FROM:
            return log
        slope = self._slope()
        expected = self.log + slope * (load - self.load)
        usual = math.sqrt(max(self._squared_deviation(slope), 0.0))
        most = max(OUTLIER_SPREADS * usual, OUTLIER_LEAST)
        return min(max(log, expected - most), expected + most)

    def alone(self) -> tuple[float, float]:
        """Logarithm of the time at load 0, and half of its 95 % interval."""
        slope = self._slope()
        at_0 = min(max(self.log - slope * self.load, -_LOG_MOST), _LOG_MOST)
        if self.count < 3:
            return at_0, math.inf
        count, seen = self.observations, self._seen()
        weight = SLOPE_WEIGHT / (seen + SLOPE_WEIGHT)  # of the assumption, in the slope
        freedom = max(count - 1 - (1 - weight), 1.0)
        variance = max(self._squared_deviation(slope), 0.0) * count / freedom
        of_slope = seen / (seen + SLOPE_WEIGHT) ** 2
        observed = _student_95(freedom) * math.sqrt(
            variance * (1 / count + self.load**2 * of_slope)
        )
        assumed = _NORMAL_95 * self.load * weight * SLOPE_SPREAD
        return at_0, math.hypot(observed, assumed)

    def _seen(self) -> float:
        """The variance of loads times observations."""
        return self.observations * max(self.load_load - self.load**2, 0.0)

    def _slope(self) -> float:
        together = self.observations * (self.load_log - self.load * self.log)
        return (together + SLOPE_WEIGHT * SLOPE) / (self._seen() + SLOPE_WEIGHT)

    def _squared_deviation(self, slope: float) -> float:
        """Mean of the squares, from the line."""
        together = self.load_log - self.load * self.log
        loads = self.load_load - self.load**2
        return self.log_log - self.log**2 - 2 * slope * together + slope**2 * loads


def _student_95(freedom: float) -> float:
    """Between what is tabulated along the inverse, in which the quantile is nearly straight."""
    inverse = [0.0, *(1 / each for each in reversed(_FREEDOM))]
    return float(np.interp(1 / freedom, inverse, [_NORMAL_95, *reversed(_T_95)]))


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
