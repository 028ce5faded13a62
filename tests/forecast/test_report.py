"""A forecast with its quantiles and errors; unknown intervals; too little history."""

from __future__ import annotations

import numpy as np
import pytest

from hrm.errors import InvalidRequest
from hrm.forecast.gru import GruOptions
from hrm.forecast.report import forecast, pool_report
from hrm.forecast.series import VolumeSeries
from hrm.forecast.steps import DAY, HOUR
from tests.forecast.test_models import MONDAY_S, days, weeks

pytest.importorskip("statsmodels")

SMALL = GruOptions(networks=1, epochs_max=10)


def test_quantiles_rise_and_errors_are_of_the_last_part() -> None:
    report = forecast(days(weeks(8)), 7, SMALL)
    assert report.expected.shape == (7,)
    low, middle, high = (report.quantiles[each] for each in (0.1, 0.5, 0.9))
    assert (low <= middle).all() and (middle <= high).all()
    assert report.origins == 56 - int(0.7 * 56)
    assert report.figures["LSP"].mase < report.figures["last value"].mase
    assert report.covers == pytest.approx(min(0.9, 11 / 12))  # of the seventh lead: 11 forecasts


def test_nodes_are_for_p90_by_what_busy_nodes_have_served() -> None:
    series = days(weeks(8))
    report = forecast(series, 7, SMALL)
    busy = VolumeSeries(step=DAY, start_s=MONDAY_S, values=series.values / 10)
    pool = pool_report(report, busy)
    assert pool is not None
    assert pool.tasks_per_node == pytest.approx(10.0)
    wanted = np.ceil(report.quantiles[0.9] / 10 * 1.1 - 1e-9)
    assert list(pool.nodes) == wanted.tolist()
    never = VolumeSeries(step=DAY, start_s=MONDAY_S, values=np.zeros(56))
    assert pool_report(report, never) is None


def test_unknown_days_are_estimated_from_the_same_weekdays() -> None:
    values = weeks(8, noise=0.0)
    values[[17, 18, 40]] = np.nan
    series = days(values)
    assert series.filled() == pytest.approx(weeks(8, noise=0.0))
    report = forecast(series, 7, SMALL)
    assert any("3 of 56 intervals are unknown" in each for each in report.remarks)
    assert np.isfinite(report.expected).all()


def test_a_season_that_is_unknown_everywhere_is_interpolated() -> None:
    values = np.array([1.0, np.nan, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert days(values).filled().tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert days(np.full(7, np.nan)).filled().tolist() == [0.0] * 7


def test_too_little_is_refused_with_what_to_type() -> None:
    with pytest.raises(InvalidRequest, match=r"10 known intervals of 10.*needs 14; it grows"):
        forecast(days(weeks(2)[:10]), 7)
    values = weeks(4)
    values[:20] = np.nan
    with pytest.raises(InvalidRequest, match=r"8 known intervals of 28.*hrm events --kind journal"):
        forecast(days(values), 7)


def test_a_time_limit_gives_the_best_so_far() -> None:
    report = forecast(days(weeks(8)), 7, SMALL, out_of_time=lambda: True)
    assert np.isfinite(report.quantiles[0.9]).all()
    assert any("time limit" in each for each in report.remarks)


def test_the_calendar_is_that_of_utc() -> None:
    monday = VolumeSeries(step=DAY, start_s=MONDAY_S, values=np.zeros(0)).calendar(8)
    assert monday.argmax(axis=1).tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
    noon = VolumeSeries(step=HOUR, start_s=MONDAY_S + 12 * 3600, values=np.zeros(0)).calendar(1)
    assert noon[0, :2] == pytest.approx([0.0, -1.0], abs=1e-9)
