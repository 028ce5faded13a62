"""``benchmarks.paper.lsp``: its methods see nothing of what they forecast, and its pools add up."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import lsp_pool
from benchmarks.paper.lsp import QUICK, benchmark, made_up, main
from benchmarks.paper.lsp_series import METHODS, forecasts_of
from hrm.forecast.quantiles import ResidualQuantiles
from hrm.forecast.steps import DAY, HOUR, ForecastStep

pytest.importorskip("statsmodels")


@pytest.fixture(autouse=True)
def _few_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for orders is not what these tests are of."""
    monkeypatch.setattr("hrm.forecast.sarimax.FITS_MAX", 1)
    monkeypatch.setattr("hrm.forecast.sarimax.LONG_SEASON_FITS_MAX", 1)
    monkeypatch.setattr("benchmarks.paper.lsp.QUICK_DAYS", 30)


@pytest.mark.parametrize("step", [HOUR, DAY], ids=["hour", "day"])
def test_no_method_sees_what_it_forecasts(step: ForecastStep) -> None:
    """What comes after an interval changes no forecast up to it."""
    series = made_up(step, days=45).head(16 * 24 if step is HOUR else 45)
    first = int(0.7 * len(series))
    later = series.values.copy()
    later[first + 5 :] *= 3
    before, _ = forecasts_of(series, first, 1, QUICK, lambda: None)
    after, _ = forecasts_of(replace(series, values=later), first, 1, QUICK, lambda: None)
    assert set(before) == set(METHODS)
    for name in METHODS:
        assert before[name].shape == (1, len(series) - first)
        assert after[name][:, :6] == pytest.approx(before[name][:, :6]), name
        assert not np.allclose(after[name][:, 6:], before[name][:, 6:]), name


def test_the_quick_run_writes_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "lsp.json"
    benchmark(argparse.Namespace(quick=True, json=file, data=None, trace=None))
    found = json.loads(file.read_text())
    assert found["mase_hour"] < found["series"]["hour"]["figures"]["last value"]["mase"]["value"]
    assert {"mase_day", "best_other_day"} <= found.keys()


def test_data_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 1
    assert "--data is missing" in capsys.readouterr().err
    assert main(["--data", str(tmp_path)]) == 1
    assert "--data is the folder" in " ".join(capsys.readouterr().err.split())


def part(volumes: list[float], first: int) -> lsp_pool._Part:
    values = np.array(volumes)
    paths = np.stack([values[first - 3 : -3]] * 3, axis=1)
    forecasts = lsp_pool._Forecasts(paths, ResidualQuantiles(np.zeros((20, 3))))
    return lsp_pool._Part(values, first, len(values), 10.0, forecasts)


def test_a_reactive_pool_is_late_by_the_time_of_a_boot() -> None:
    subject = part([10.0] * 6 + [50.0] * 6, 3)
    nodes = lsp_pool._reactive(subject, (0.0, 1))
    assert nodes.tolist() == [1, 1, 1, 1, 1, 1, 5, 5, 5]
    assert subject.unmet(nodes) == pytest.approx(3 * 4 / (3 + 6 * 5))
    assert subject.node_hours(nodes) == pytest.approx(21 / 33)


def test_nodes_are_held_while_they_have_been_wanted() -> None:
    wanted = np.array([1.0, 4.0, 1.0, 1.0, 1.0])
    assert lsp_pool._held(wanted, 3).tolist() == [1, 4, 4, 4, 1]


def test_the_cheapest_setting_that_is_good_enough_is_taken() -> None:
    subject = part([10.0] * 40, 3)
    assert lsp_pool._tuned(subject, lsp_pool._fixed, [0.01, 0.05, 0.5]) == 0.01
    rising = part([float(10 * n) for n in range(1, 40)], 3)
    assert lsp_pool._tuned(rising, lsp_pool._fixed, [0.1, 1.95, 3.0]) == 1.95


def test_a_day_pool_follows_demand() -> None:
    volumes = np.array([600.0] * 20)
    forecasts = np.full(6, 600.0)
    found = lsp_pool.daily_pool(volumes, forecasts, 14, fixed=None, nodes_max=60)
    assert found.nodes[-1] == 33  # 30 and a tenth, reached a fifth at a time
    assert found.unmet == 0
    fixed = lsp_pool.daily_pool(volumes, forecasts, 14, fixed=15, nodes_max=60)
    assert fixed.unmet == pytest.approx(0.5)
