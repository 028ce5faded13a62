"""A straight line through observations of which the past fades.

Kept are means of what is needed to fit the line, and no observation. The latest counts at least
``SHARE_MIN``, so that at most some forty of them are behind an estimate.
"""

from __future__ import annotations

import numpy as np

__all__ = ["NORMAL_95", "SHARE_MIN", "FadingLine", "student_95"]

SHARE_MIN = 0.05
"""What the latest observation counts for at least."""

NORMAL_95 = 1.96
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.131, 2.086, 2.042,
    2.009,
)  # fmt: skip
_FREEDOM = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 50)
"""Two-sided 95 % quantiles of Student's t, and the degrees of freedom that they are for."""


class FadingLine:
    """Fading means of load, logarithm of run time, and their products."""

    __slots__ = ("_squares", "count", "load", "load_load", "load_log", "log", "log_log")

    def __init__(self) -> None:
        self.count = 0
        self._squares = 0.0
        self.load = self.log = self.load_load = self.load_log = self.log_log = 0.0

    def add(self, load: float, log: float) -> None:
        self.count += 1
        share = max(SHARE_MIN, 1 / self.count)
        self._squares = (1 - share) ** 2 * self._squares + share**2
        self.load += share * (load - self.load)
        self.log += share * (log - self.log)
        self.load_load += share * (load * load - self.load_load)
        self.load_log += share * (load * log - self.load_log)
        self.log_log += share * (log * log - self.log_log)

    @property
    def observations(self) -> float:
        """As many of equal weight would be as certain; 0 where there is none."""
        return 1 / self._squares if self.count else 0.0

    @property
    def loads(self) -> float:
        """The variance of loads times observations: how well the slope is seen."""
        return self.observations * max(self.load_load - self.load**2, 0.0)

    @property
    def together(self) -> float:
        """The covariance of loads and logarithms times observations."""
        return self.observations * (self.load_log - self.load * self.log)

    def slope(self, assumed: float, weight: float) -> float:
        """What is seen and what is assumed; ``weight`` is of the assumption, as ``loads``."""
        return (self.together + weight * assumed) / (self.loads + weight)

    def at(self, load: float, slope: float) -> float:
        """The logarithm that a line of this slope has at ``load``."""
        return self.log + slope * (load - self.load)

    def squared_deviation(self, slope: float) -> float:
        """Mean of the squares, from the line of this slope; at least 0."""
        together = self.load_log - self.load * self.log
        loads = self.load_load - self.load**2
        squares = self.log_log - self.log**2 - 2 * slope * together + slope**2 * loads
        return max(squares, 0.0)


def student_95(freedom: float) -> float:
    """Between what is tabulated along the inverse, in which the quantile is nearly straight."""
    inverse = [0.0, *(1 / each for each in reversed(_FREEDOM))]
    return float(np.interp(1 / freedom, inverse, [NORMAL_95, *reversed(_T_95)]))
