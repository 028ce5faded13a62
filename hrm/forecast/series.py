"""A series of volumes at equal intervals, some of which may be unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hrm.forecast.steps import DAY_S, WEEK_S, ForecastStep

__all__ = ["Floats", "VolumeSeries"]

Floats: TypeAlias = NDArray[np.float64]

_MONDAY_S = 4 * DAY_S
"""Midnight of the first Monday of the epoch, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSeries:
    """Volumes of consecutive intervals.

    Attributes:
        step: their length.
        start_s: when the first one begins, seconds since the epoch.
        values: shape (n,), not negative; NaN where the volume is unknown.
    """

    step: ForecastStep
    start_s: float
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @property
    def end_s(self) -> float:
        """When the last interval ends, and the first one that is forecast begins."""
        return self.start_s + len(self.values) * self.step.seconds

    def head(self, count: int) -> VolumeSeries:
        """The first ``count`` intervals."""
        return VolumeSeries(step=self.step, start_s=self.start_s, values=self.values[:count])

    def tail(self, count: int) -> VolumeSeries:
        """The last ``count`` intervals."""
        skipped = max(0, len(self.values) - count)
        start_s = self.start_s + skipped * self.step.seconds
        return VolumeSeries(step=self.step, start_s=start_s, values=self.values[skipped:])

    def filled(self) -> Floats:
        """The values, with an estimate in place of what is unknown, shape (n,).

        An unknown one is the mean of the nearest known ones a season or several before and after
        it; where there is none, of the nearest known ones in time. 0 where nothing is known.
        """
        values = self.values.copy()
        known = np.isfinite(self.values)
        if known.all() or not known.any():
            return np.where(known, values, 0.0)
        places = np.arange(len(values))
        nearest = np.interp(places, places[known], values[known])
        for place in places[~known]:
            before = _first_known(self.values, place, -self.step.season)
            after = _first_known(self.values, place, self.step.season)
            found = [each for each in (before, after) if each is not None]
            values[place] = np.mean(found) if found else nearest[place]
        return values

    def calendar(self, count: int) -> Floats:
        """Where the intervals 0 to ``count`` - 1 stand in the day and in the week, UTC.

        Returns:
            Shape (count, k): of days the weekday, one-hot (k = 7); of less, sine and cosine of the
            time of day and of the time of week (k = 4).
        """
        at_s = self.start_s - _MONDAY_S + np.arange(count) * float(self.step.seconds)
        if self.step.seconds >= DAY_S:
            weekday = np.floor(at_s / DAY_S).astype(int) % 7
            one_hot: Floats = np.eye(7)[weekday]
            return one_hot
        angles = [2 * np.pi * (at_s % period) / period for period in (DAY_S, WEEK_S)]
        return np.column_stack([f(angle) for angle in angles for f in (np.sin, np.cos)])


def _first_known(values: Floats, place: int, stride: int) -> float | None:
    at = place + stride
    while 0 <= at < len(values):
        if np.isfinite(values[at]):
            return float(values[at])
        at += stride
    return None
