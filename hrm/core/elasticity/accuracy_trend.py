"""How much a training still gains an epoch, from reports that are mostly noise.

Late in a training the accuracy changes by some 0.0001 an epoch, and the noise of one report is ten
times that: a single difference lies above any sensible threshold about as often as below it. Two
estimates are steadier. The slope of a least-squares line through the last K reports has a standard
deviation of s sqrt(12 / (K^3 - K)), s that of one report: 0.00005 with 16 reports of 0.0009. The
change of a moving average, smoothed once more, weighs the latest most.

Both follow the epochs that reports name, so that a gap is a gap and no sudden gain.

Source: RLPTO (Lu et al., IEEE TPDS 2023) compares raw changes with a threshold; it does not smooth.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

__all__ = ["AccuracyTrend", "ChangeTrend", "SlopeTrend"]

SLOPE_REPORTS = 16
"""With it the slope's standard deviation is half of a threshold of 0.0001."""


class AccuracyTrend(Protocol):
    """An estimate of the change of accuracy per epoch."""

    def add(self, epoch: int, accuracy: float) -> None:
        """The next report; ``epoch`` is greater than that of the one before."""
        ...

    @property
    def change(self) -> float:
        """Fraction of accuracy per epoch; NaN while there is too little to say."""
        ...


class SlopeTrend:
    """The slope of a least-squares line through the last ``reports`` reports, or all so far."""

    def __init__(self, reports: int = SLOPE_REPORTS) -> None:
        assert reports >= 2, "a line needs two reports"
        self._held: deque[tuple[int, float]] = deque(maxlen=reports)
        self.change = math.nan

    def add(self, epoch: int, accuracy: float) -> None:
        self._held.append((epoch, accuracy))
        count = len(self._held)
        if count < 2:
            return
        mean_epoch = sum(epoch for epoch, _ in self._held) / count
        mean = sum(accuracy for _, accuracy in self._held) / count
        spread = sum((epoch - mean_epoch) ** 2 for epoch, _ in self._held)
        joint = sum((epoch - mean_epoch) * (each - mean) for epoch, each in self._held)
        self.change = joint / spread


class ChangeTrend:
    """The moving average, of weight ``change_weight``, of the changes of the moving average, of
    weight ``level_weight``, of what was reported."""

    def __init__(self, level_weight: float = 0.2, change_weight: float = 0.3) -> None:
        self._weights = level_weight, change_weight
        self._level = math.nan
        self._epoch = 0
        self.change = math.nan

    def add(self, epoch: int, accuracy: float) -> None:
        level_weight, change_weight = self._weights
        if math.isnan(self._level):
            self._level, self._epoch = accuracy, epoch
            return
        gained = level_weight * (accuracy - self._level)
        self._level += gained
        gained /= epoch - self._epoch
        self._epoch = epoch
        first = math.isnan(self.change)
        self.change = gained if first else self.change + change_weight * (gained - self.change)
