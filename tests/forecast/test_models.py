"""The two models, and what happens where one cannot be had."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from hrm.errors import InvalidRequest
from hrm.forecast import lsp, sarimax
from hrm.forecast.gru import GruOptions, GruWeights, fit_gru
from hrm.forecast.sarimax import ArimaOrder, SameSlotMean, Sarimax, fit_seasonal
from hrm.forecast.series import Floats, VolumeSeries
from hrm.forecast.steps import DAY, HOUR

pytest.importorskip("statsmodels")

SMALL = GruOptions(networks=1, epochs_max=30, batch=32)
MONDAY_S = 4 * 86_400.0


def weeks(count: int, noise: float = 0.03, seed: int = 1) -> Floats:
    """Days with a rhythm of weeks."""
    generator = np.random.default_rng(seed)
    rhythm = np.array([100, 110, 120, 115, 105, 60, 50], dtype=float)
    return np.tile(rhythm, count) * np.exp(generator.normal(0, noise, 7 * count))


def days(values: Floats) -> VolumeSeries:
    return VolumeSeries(step=DAY, start_s=MONDAY_S, values=values)


def hours(count: int) -> Floats:
    at = np.arange(count)
    generator = np.random.default_rng(2)
    noise = np.zeros(count)
    for place in range(1, count):
        noise[place] = 0.7 * noise[place - 1] + generator.normal(0, 0.05)
    return 200 * (1.5 + np.sin(2 * np.pi * at / 24)) * np.exp(noise)


@pytest.mark.parametrize(
    ("order", "lags", "season"),
    [
        (ArimaOrder(2, 0, 1), (23, 24, 25), 24),
        (ArimaOrder(1, 1, 1), (23, 24, 25), 24),
        (ArimaOrder(1, 0, 1, 1, 0, 1), (), 7),
        (ArimaOrder(0, 1, 1, 1, 1, 0), (), 7),
    ],
    ids=str,
)
def test_paths_are_those_of_statsmodels(
    order: ArimaOrder, lags: tuple[int, ...], season: int
) -> None:
    values = np.log1p(hours(200) if lags else weeks(14))
    known = len(values) - 10
    fitted = sarimax._fitted(values[:known], season, lags, order, lambda: False)
    assert not isinstance(fitted, str)
    model = Sarimax(order=order, season=season, lags=lags, results=fitted[1], why="")
    exog = np.column_stack([values[known - x + np.arange(6)] for x in lags]) if lags else None
    found = model.paths(values, [known, known + 4], 6)
    assert found[0] == pytest.approx(np.asarray(fitted[1].forecast(6, exog=exog)), abs=1e-9)
    assert model.one_step(values, known)[4] == pytest.approx(found[1, 0])


def test_regressors_that_are_not_known_yet_are_forecasts() -> None:
    values = np.log1p(hours(240))
    model = fit_seasonal(values, HOUR)
    assert isinstance(model, Sarimax)
    path = np.expm1(model.paths(values, [240], 48)[0])
    rhythm = 200 * (1.5 + np.sin(2 * np.pi * np.arange(240, 288) / 24))
    assert np.abs(path / rhythm - 1).mean() < 0.3


def test_a_strong_week_is_found_and_carried() -> None:
    values = weeks(10)
    model = fit_seasonal(np.log1p(values), DAY)
    assert isinstance(model, Sarimax)
    path = np.expm1(model.paths(np.log1p(values), [70], 7)[0])
    assert path == pytest.approx([100, 110, 120, 115, 105, 60, 50], rel=0.1)


def test_little_history_is_the_mean_of_the_last_two_of_the_same_weekday() -> None:
    values = np.arange(21, dtype=float)
    model = fit_seasonal(values, DAY)
    assert isinstance(model, SameSlotMean)
    assert "fewer than 4 seasons" in model.why
    assert model.paths(values, [21], 8)[0].tolist() == [*np.arange(10.5, 17.5), 10.5]
    assert model.one_step(values, 20)[0] == np.mean([13, 6])


def test_a_fit_that_fails_falls_back_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_arguments: Any, **_named: Any) -> str:
        return "(1,0,0): LU decomposition error"

    monkeypatch.setattr(sarimax, "_fitted", failing)
    model = fit_seasonal(np.log1p(weeks(8)), DAY)
    assert isinstance(model, SameSlotMean)
    assert "LU decomposition error" in model.why


def test_a_fit_without_time_falls_back_and_one_that_is_under_way_is_given_up() -> None:
    values = np.log1p(weeks(8))
    assert "no time" in fit_seasonal(values, DAY, lambda: True).why
    asked = iter([*[False] * 3, *[True] * 10_000])
    assert isinstance(fit_seasonal(values, DAY, lambda: next(asked)), SameSlotMean)


@pytest.mark.parametrize("values", [np.zeros(60), np.full(60, 7.0), np.r_[np.zeros(59), 1e12]])
def test_strange_histories_are_survived(values: Floats) -> None:
    model = fit_seasonal(np.log1p(values), DAY)
    assert np.isfinite(model.paths(np.log1p(values), [60], 7)).all()


# --- the network ------------------------------------------------------------------------------


def test_numpy_runs_the_network_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    gru, head = torch.nn.GRU(3, 32, batch_first=True), torch.nn.Linear(32, 1)
    inputs = torch.randn(5, 7, 3)
    weights = GruWeights(
        of_input=gru.weight_ih_l0.detach().numpy(),
        of_state=gru.weight_hh_l0.detach().numpy(),
        input_bias=gru.bias_ih_l0.detach().numpy(),
        state_bias=gru.bias_hh_l0.detach().numpy(),
        head=head.weight.detach().numpy()[0],
        head_bias=float(head.bias.detach()[0]),
    )
    wanted = head(gru(inputs)[0][:, -1])[:, 0].detach().numpy()
    assert weights.output(inputs.numpy().astype(float)) == pytest.approx(wanted, abs=1e-5)


def test_the_same_seed_gives_the_same_network_and_it_learns_the_day() -> None:
    values = np.log1p(hours(600))
    found = [fit_gru(values[:500], HOUR, MONDAY_S, SMALL) for _ in range(2)]
    assert not any(isinstance(each, str) for each in found)
    first, second = (each.one_step(values, 500) for each in found if not isinstance(each, str))
    assert first.tolist() == second.tolist()
    latest = np.abs(values[499:-1] - values[500:]).mean()
    assert np.abs(first - values[500:]).mean() < 0.6 * latest


def test_paths_begin_with_one_step_and_go_on_from_it() -> None:
    values = np.log1p(hours(400))
    made = fit_gru(values, HOUR, MONDAY_S, SMALL)
    assert not isinstance(made, str)
    paths = made.paths(values, [390, 400], 3)
    assert paths[0, 0] == pytest.approx(made.one_step(values, 390)[0])
    longer = np.append(values, paths[1, 0])
    assert paths[1, 1] == pytest.approx(made.paths(longer, [401], 1)[0, 0])


def test_where_there_is_no_network_the_reason_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "12 intervals" in str(fit_gru(np.arange(12.0), DAY, MONDAY_S))
    assert "equal" in str(fit_gru(np.ones(60), DAY, MONDAY_S))
    assert "no time" in str(fit_gru(weeks(8), DAY, MONDAY_S, SMALL, lambda: True))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install" in str(fit_gru(weeks(8), DAY, MONDAY_S, SMALL))


# --- both together ----------------------------------------------------------------------------


def test_the_worked_sum_of_the_specification() -> None:
    assert lsp.sum_of_parts((np.array([630.0]), np.array([600.0])), 0.6)[0] == pytest.approx(618.0)


def test_alpha_is_the_weight_of_the_better_part() -> None:
    actual = weeks(4)
    assert lsp.tuned_alpha((actual, actual * 2), actual) == 1.0
    assert lsp.tuned_alpha((actual * 2, actual), actual) == 0.0
    assert lsp.tuned_alpha((actual * 1.1, actual * 0.9), actual) == pytest.approx(0.5)


def test_without_a_network_the_seasonal_model_stands_alone() -> None:
    values = weeks(3)[:20]
    made = lsp.fit(days(values), lsp.LspOptions(gru=SMALL))
    assert made.alpha == 0.0 and made.gru is None
    assert any("no GRU" in each for each in made.remarks)
    assert (made.paths(values, [20], 7) >= 0).all()


def test_forecasts_are_never_negative() -> None:
    values = np.maximum(0.0, weeks(8, noise=0.5) - 80)
    made = lsp.fit(days(values), lsp.LspOptions(gru=SMALL))
    assert (made.paths(values, list(range(30, 56)), 7) >= 0).all()
    assert (made.one_step(values, 30) >= 0).all()


def test_two_weeks_are_the_least() -> None:
    with pytest.raises(InvalidRequest, match="needs 14"):
        lsp.fit(days(weeks(2)[:13]))
