"""A forecast with all that says how far it can be relied on.

Models of the first 70 % of the history forecast the rest from many moments in it, as they would
have then: what they were wrong by gives the errors that are shown and the quantiles. Then models of
all of the history, with the alpha of the first, forecast what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hrm.errors import InvalidRequest
from hrm.forecast import lsp
from hrm.forecast.accuracy import Accuracy, accuracy, error_scale
from hrm.forecast.gru import GruOptions
from hrm.forecast.pool import PoolBounds, TasksPerNode, pool_size
from hrm.forecast.quantiles import QUANTILES, ResidualQuantiles
from hrm.forecast.series import Floats, VolumeSeries

__all__ = ["ForecastReport", "PoolReport", "forecast", "pool_report"]

FITTED_SHARE = 0.7
ORIGINS_MAX = 200
POOL_QUANTILE = 0.9
UNKNOWN_SHARE_MAX = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """Attributes:
    series: the history that counts.
    expected: the forecasts of the intervals that follow it, shape (leads,).
    quantiles: by probability, what is not exceeded with it, shape (leads,).
    covers: the most that the largest quantile can cover, with so few forecasts to learn from.
    figures: errors of forecasts of the first lead, by method: LSP and two that need no model.
    origins: how many forecasts they are of.
    remarks: what the models are, and what is not as it should be.
    """

    series: VolumeSeries
    expected: Floats
    quantiles: dict[float, Floats]
    covers: float
    figures: dict[str, Accuracy]
    origins: int
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """``tasks_per_node``: of an interval; ``nodes``: for each lead, by the largest quantile."""

    tasks_per_node: float
    nodes: tuple[int, ...]


def forecast(
    series: VolumeSeries,
    leads: int,
    options: GruOptions | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> ForecastReport:
    """The next ``leads`` intervals.

    Raises:
        InvalidRequest: too little is known; the message says how much is needed.
    """
    step = series.step
    series = series.tail(step.history_max)
    known = int(np.isfinite(series.values).sum())
    if len(series) < step.needed or known < UNKNOWN_SHARE_MAX * len(series):
        raise InvalidRequest(_too_little(series, known))
    volumes = series.filled()
    options = options or GruOptions()
    fitted = max(step.needed, int(FITTED_SHARE * len(volumes)))
    settings = lsp.LspOptions(gru=options, out_of_time=out_of_time)
    past = series.head(fitted)
    earlier = lsp.fit(past, settings)
    origins = _origins(fitted, len(volumes), leads)
    figures: dict[str, Accuracy] = {}
    residuals = ResidualQuantiles(np.zeros((0, leads)))
    if origins:
        wanted = np.array([_padded(series.values, origin, leads) for origin in origins])
        made = earlier.paths(volumes, origins, leads)
        residuals = ResidualQuantiles.of(made, wanted)
        figures = _figures(series, made[:, 0], origins, fitted)
    final = lsp.fit(series, lsp.LspOptions(alpha=earlier.alpha or lsp.ALPHA, gru=options,
                                           out_of_time=out_of_time))  # fmt: skip
    expected = final.paths(volumes, [len(volumes)], leads)[0]
    remarks = list(final.remarks)
    if known < len(series):
        remarks.append(f"{len(series) - known} of {len(series)} intervals are unknown: estimated")
    if out_of_time():
        remarks.append("the time limit ended the search for models")
    quantiles = {each: residuals.apply(expected, each) for each in QUANTILES}
    return ForecastReport(
        series=series,
        expected=expected,
        quantiles=quantiles,
        covers=residuals.covers(max(QUANTILES)) if origins else 0.0,
        figures=figures,
        origins=len(origins),
        remarks=tuple(remarks),
    )


def pool_report(
    report: ForecastReport, busy_nodes: VolumeSeries, bounds: PoolBounds | None = None
) -> PoolReport | None:
    """Nodes for what is not exceeded with ``POOL_QUANTILE``. None: no node has been busy yet.

    ``busy_nodes``: means over the intervals of which ``report.series`` has the last ones.
    """
    per_node = TasksPerNode()
    busy = busy_nodes.tail(len(report.series)).values
    for tasks, nodes in zip(report.series.values[-len(busy) :], busy, strict=True):
        per_node.observe(float(tasks), float(nodes))
    if per_node.value is None:
        return None
    wanted = report.quantiles[POOL_QUANTILE]
    nodes = tuple(pool_size(float(each), per_node.value, bounds) for each in wanted)
    return PoolReport(tasks_per_node=per_node.value, nodes=nodes)


def _origins(first: int, end: int, leads: int) -> list[int]:
    """Where forecasts begin: at most ``ORIGINS_MAX`` of those whose first lead is known."""
    count = end - first
    if count <= ORIGINS_MAX:
        return list(range(first, end))
    return [int(each) for each in np.unique(np.linspace(first, end - 1, ORIGINS_MAX).astype(int))]


def _padded(values: Floats, origin: int, leads: int) -> Floats:
    found = np.full(leads, np.nan)
    seen = values[origin : origin + leads]
    found[: len(seen)] = seen
    return found


def _figures(
    series: VolumeSeries, made: Floats, origins: list[int], fitted: int
) -> dict[str, Accuracy]:
    values, filled = series.values, series.filled()
    scale = error_scale(values[:fitted], series.step.season)
    places = np.array(origins)
    methods = {
        "LSP": made,
        "last value": filled[places - 1],
        "a season ago": filled[places - series.step.season],
    }
    return {name: accuracy(found, values[places], scale) for name, found in methods.items()}


def _too_little(series: VolumeSeries, known: int) -> str:
    step = series.step
    have = f"the history has {known} known intervals of {len(series)}"
    if len(series) >= step.needed:
        return (
            f"{have}, and a forecast by {step.name} needs half of them; what the journal lacks: "
            "hrm events --kind journal --since 7d"
        )
    return (
        f"{have} ({step.name}), and a forecast needs {step.needed}; it grows with hrm autoscale, "
        "or a daily hrm forecast"
    )
