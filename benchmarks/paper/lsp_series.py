"""Forecasts of a public series by every method, each from what came before, and their errors.

The last 30 % of a series is the test. Intervals of a day are forecast by models that are fitted
again each week on all before it, shorter ones by models that were fitted once on the first 70 %;
all see every earlier volume. Nothing is chosen by the test: orders by AICc, alpha, anchors and when
training stops by the last fifths of the training part, Holt and Winters' form by its AICc.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hrm.forecast import lsp
from hrm.forecast.accuracy import (
    Accuracy,
    Estimate,
    accuracy,
    block_bootstrap,
    block_length,
    error_scale,
)
from hrm.forecast.gru import GruOptions
from hrm.forecast.sarimax import SeasonalModel, fit_seasonal
from hrm.forecast.series import Floats, VolumeSeries
from hrm.forecast.steps import ForecastStep

__all__ = ["AR_LAGS", "METHODS", "SIMPLE", "SeriesResult", "forecasts_of", "measure"]

TEST_SHARE = 0.3
REFIT_DAYS = 7
AR_LAGS = {"5min": (1, 2, 3, 288, 2016), "hour": (1, 2, 3, 24, 25), "day": (1, 7)}
"""Of the specification's autoregression by least squares."""

SIMPLE = ("last value", "seasonal naive", "AR", "Holt-Winters")
METHODS = (*SIMPLE, "GRU", "SARIMAX", "LSP, alpha 0.6", "LSP")

Forecasts = Mapping[str, Floats]
"""By method, shape (seeds, tested intervals); of methods without seeds the rows are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesResult:
    """What came of one step. ``differences``: MASE of LSP less that of each other method."""

    step: ForecastStep
    volumes: Floats
    first: int
    forecasts: Forecasts
    figures: Mapping[str, Accuracy]
    intervals: Mapping[str, Mapping[str, Estimate]]
    differences: Mapping[str, Estimate]
    remarks: tuple[str, ...] = field(default=())


def measure(
    series: VolumeSeries, seeds: int, options: GruOptions, advance: Callable[[], None]
) -> SeriesResult:
    """All methods on the last 30 %; ``advance`` is called after each seed of the network."""
    volumes = series.values
    first = int(len(volumes) * (1 - TEST_SHARE))
    forecasts, remarks = forecasts_of(series, first, seeds, options, advance)
    actual, scale = volumes[first:], error_scale(volumes[:first], series.step.season)
    count, block = len(actual), block_length(len(actual), series.step.season)

    def figure_of(name: str, which: str) -> Callable[[Any], float]:
        rows = forecasts[name]
        return lambda drawn: float(
            np.mean([getattr(accuracy(r[drawn], actual[drawn], scale), which) for r in rows])
        )

    figures, intervals, differences = {}, {}, {}
    whole = np.arange(count)
    for name in forecasts:
        of_name = {w: figure_of(name, w) for w in ("one_minus_mape", "one_minus_wape", "mase")}
        figures[name] = Accuracy(**{w: f(whole) for w, f in of_name.items()})
        intervals[name] = {w: block_bootstrap(f, count, block) for w, f in of_name.items()}
        if name != "LSP":
            ours, other = figure_of("LSP", "mase"), figure_of(name, "mase")
            differences[name] = block_bootstrap(
                lambda drawn, a=ours, b=other: a(drawn) - b(drawn),  # type: ignore[misc]
                count,
                block,
            )
    return SeriesResult(
        step=series.step, volumes=volumes, first=first, forecasts=forecasts, figures=figures,
        intervals=intervals, differences=differences, remarks=remarks,
    )  # fmt: skip


def forecasts_of(
    series: VolumeSeries, first: int, seeds: int, options: GruOptions, advance: Callable[[], None]
) -> tuple[Forecasts, tuple[str, ...]]:
    """One step ahead of ``series.values[first:]``, by every method."""
    volumes, step = series.values, series.step
    origins = [first] if step.is_long_season else list(range(first, len(volumes), REFIT_DAYS))
    ends = [*origins[1:], len(volumes)]
    parts: dict[str, list[list[Floats]]] = {name: [[] for _ in range(seeds)] for name in METHODS}
    remarks: tuple[str, ...] = ()
    kept: dict[int, SeasonalModel] = {}

    def seasonal(values: Floats, step: ForecastStep, out_of_time: Any) -> SeasonalModel:
        if len(values) not in kept:  # it has no seed
            kept[len(values)] = fit_seasonal(values, step, out_of_time)
        return kept[len(values)]

    for seed in range(seeds):
        for origin, end in zip(origins, ends, strict=True):
            settings = lsp.LspOptions(
                gru=GruOptions(
                    networks=options.networks, epochs_max=options.epochs_max, batch=options.batch,
                    seed=seed,
                ),
                seasonal=seasonal,
            )  # fmt: skip
            made = lsp.fit(series.head(origin), settings)
            gru, sarimax = made.parts(volumes[:end], origin)
            found = {
                "GRU": gru,
                "SARIMAX": sarimax,
                "LSP, alpha 0.6": lsp.sum_of_parts((gru, sarimax), lsp.ALPHA),
                "LSP": lsp.sum_of_parts((gru, sarimax), made.alpha),
            }
            if seed == 0:
                remarks = made.remarks
                found |= _simple(volumes[:end], origin, step)
            for name, values in found.items():
                parts[name][seed].append(values)
        advance()
    stacked = {
        name: np.array([np.concatenate(one) for one in rows if one]) for name, rows in parts.items()
    }
    return stacked, remarks


def _simple(volumes: Floats, first: int, step: ForecastStep) -> dict[str, Floats]:
    places = np.arange(first, len(volumes))
    return {
        "last value": volumes[places - 1],
        "seasonal naive": volumes[places - step.season],
        "AR": _autoregression(volumes, first, AR_LAGS[step.name]),
        "Holt-Winters": _holt_winters(volumes, first, step.season),
    }


def _autoregression(volumes: Floats, first: int, lags: tuple[int, ...]) -> Floats:
    skipped = max(lags)
    inputs = np.column_stack(
        [np.ones(len(volumes) - skipped)] + [volumes[skipped - x : len(volumes) - x] for x in lags]
    )
    learned = first - skipped
    weights = np.linalg.lstsq(inputs[:learned], volumes[skipped:first], rcond=None)[0]
    found: Floats = inputs[learned:] @ weights
    return found


def _holt_winters(volumes: Floats, first: int, season: int) -> Floats:
    """Of additive and multiplicative seasons, with no trend, a trend and a damped one, that of the
    least AICc; on after the fit with the fitted weights."""
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    known = volumes[:first] / volumes[:first].mean()
    scale = float(volumes[:first].mean())
    best: tuple[float, Any, dict[str, Any]] | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in ("add", "mul"):
            for trend, damped in ((None, False), ("add", False), ("add", True)):
                form = {
                    "trend": trend, "damped_trend": damped, "seasonal": kind,
                    "seasonal_periods": season,
                }  # fmt: skip
                model = ExponentialSmoothing(known, initialization_method="heuristic", **form)
                fitted = model.fit(use_brute=season < 100)
                if np.isfinite(fitted.aicc) and (best is None or fitted.aicc < best[0]):
                    best = (fitted.aicc, fitted, form)
        assert best is not None
        _, fitted, form = best
        given = fitted.params
        names = ("smoothing_level", "smoothing_trend", "smoothing_seasonal", "damping_trend")
        fixed = {
            name: float(given[name]) for name in names if name in given and np.isfinite(given[name])
        }
        fixed = {n: v for n, v in fixed.items() if form["trend"] or "trend" not in n}
        fixed = {n: v for n, v in fixed.items() if form["damped_trend"] or "damping" not in n}
        start = {"initial_level": float(given["initial_level"]),
                 "initial_seasonal": given["initial_seasons"]}  # fmt: skip
        if form["trend"]:
            start["initial_trend"] = float(given["initial_trend"])
        whole = ExponentialSmoothing(
            volumes / scale, initialization_method="known", **start, **form
        ).fit(optimized=False, **fixed)
    found: Floats = np.asarray(whole.fittedvalues)[first:] * scale
    return found
