"""The lengths of time for which volumes are forecast, and what the models look at for each."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DAY", "FIVE_MINUTES", "HOUR", "STEPS", "ForecastStep"]

DAY_S = 86_400
WEEK_S = 7 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastStep:
    """One length of interval.

    Attributes:
        season: intervals after which the pattern repeats: a week of days, a day of anything less.
        gru_lags: intervals that the network sees.
        gru_seasons: beside each of them, the volume so many intervals before the one that
            follows it. Of days there is none: the first of seven is a week ago.
        leads: intervals that ``hrm forecast`` shows.
        history_max: intervals of which models learn; older ones add little and cost time.
    """

    name: str
    seconds: int
    season: int
    gru_lags: int
    gru_seasons: tuple[int, ...]
    leads: int
    history_max: int

    @property
    def needed(self) -> int:
        """Intervals without which there is no forecast: two seasons."""
        return 2 * self.season

    @property
    def is_long_season(self) -> bool:
        """Is the season too long for the state of a seasonal ARIMA?"""
        return self.season > 12


FIVE_MINUTES = ForecastStep(
    name="5min", seconds=300, season=288, gru_lags=12, gru_seasons=(288, 2016), leads=12,
    history_max=60 * 288,
)  # fmt: skip
HOUR = ForecastStep(
    name="hour", seconds=3600, season=24, gru_lags=12, gru_seasons=(24,), leads=24,
    history_max=120 * 24,
)  # fmt: skip
DAY = ForecastStep(
    name="day", seconds=DAY_S, season=7, gru_lags=7, gru_seasons=(), leads=7, history_max=400
)  # fmt: skip

STEPS = {step.name: step for step in (FIVE_MINUTES, HOUR, DAY)}
"""By name; sizes of the network's input were chosen on the training part of a public series."""
