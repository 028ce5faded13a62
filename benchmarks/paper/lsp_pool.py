"""Sizes of a pool by forecasts, by what is seen, and fixed: what they leave unserved, and cost.

Demand is tasks an interval of five minutes; a node serves so many of them that the mean demand of
the training part is that of ``MEAN_NODES`` nodes. A node that is asked for comes ``BOOT`` intervals
later, one that is not needed any more goes at once. Work that finds no node is unmet: it is not
queued, so that the intervals of all policies are alike.

Every policy decides at the end of an interval from the volumes up to it. Reactive and forecasting
ones keep a node until it has not been wanted for a while. What each has to choose (nodes, headroom,
quantile, that while) is tuned on the last fifth of the training part, for least node-hours with at
most ``UNMET_TARGET`` unmet; forecasts there are by models that were fitted before it. The test
part is touched once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hrm.forecast import lsp
from hrm.forecast.accuracy import Estimate, block_bootstrap
from hrm.forecast.gru import GruOptions
from hrm.forecast.pool import PoolBounds, TasksPerNode, pool_size
from hrm.forecast.quantiles import ResidualQuantiles
from hrm.forecast.series import Floats, VolumeSeries

__all__ = ["FixedDays", "PoolFigures", "compare", "daily_pool"]

MEAN_NODES = 20
BOOT = 2
LEADS = BOOT + 1
UNMET_TARGET = 0.01
TEST_SHARE = 0.3
TUNING_SHARE = 0.2
PER_HOUR = 12
HOLDS = (1, 3, 6, 12)
HEADROOMS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2)
QUANTILES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
FIXED = tuple(np.round(np.linspace(0.5, 6.0, 56), 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """``unmet``: part of the demand that found no node; ``node_hours``: over those of a pool that
    is always exactly as large as needed."""

    setting: str
    unmet: Estimate
    node_hours: Estimate


@dataclass(frozen=True, slots=True)
class _Forecasts:
    """Of the intervals after ``first``: forecasts of the leads 1 to ``LEADS`` from each origin, and
    the residuals by which their quantiles are taken."""

    paths: Floats
    residuals: ResidualQuantiles

    def wanted(self, quantile: float) -> Floats:
        """For each origin, the volume that no lead exceeds with that probability."""
        found: Floats = self.residuals.apply(self.paths, quantile).max(axis=1)
        return found


def compare(
    series: VolumeSeries, options: GruOptions, advance: Callable[[], None]
) -> Mapping[str, PoolFigures]:
    """All policies on the last 30 % of ``series`` (steps of five minutes)."""
    volumes = series.values
    first = int(len(volumes) * (1 - TEST_SHARE))
    known = int(first * (1 - TUNING_SHARE))
    per_node = float(volumes[:first].mean()) / MEAN_NODES
    models = _Models(series, options, advance)
    earlier = models.forecasts(known, first)
    later = models.forecasts(first, len(volumes))
    tuning = _Part(volumes, known, first, per_node, earlier)
    test = _Part(volumes, first, len(volumes), per_node, later)
    found = {}
    for name, (policy, settings) in _policies().items():
        chosen = _tuned(tuning, policy, settings)
        found[f"{name}, tuned"] = test.figures(policy(test, chosen), str(chosen))
    quantile = 0.9
    for name, hold, floor in (("P90", 1, False), ("P90 and reactive floor", 2, True)):
        nodes = _forecasting(test, (quantile, hold, floor))
        found[f"forecast, {name}"] = test.figures(nodes, str((quantile, hold, floor)))
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """The intervals ``first`` to ``end`` - 1, on which policies are tried."""

    volumes: Floats
    first: int
    end: int
    per_node: float
    forecasts: _Forecasts

    @property
    def needed(self) -> Floats:
        """Nodes, as a fraction, in each interval."""
        return self.volumes[self.first : self.end] / self.per_node

    def seen(self) -> Floats:
        """For each interval, the need of the last one that was complete when its nodes had to be
        asked for."""
        found: Floats = self.volumes[self.first - LEADS : self.end - LEADS] / self.per_node
        return found

    def unmet(self, nodes: Floats) -> float:
        return float(np.maximum(0.0, self.needed - nodes).sum() / self.needed.sum())

    def node_hours(self, nodes: Floats) -> float:
        return float(nodes.sum() / np.ceil(self.needed).sum())

    def figures(self, nodes: Floats, setting: str) -> PoolFigures:
        needed, count = self.needed, self.end - self.first
        lost, exact = np.maximum(0.0, needed - nodes), np.ceil(needed)
        day = min(288, count // 8)
        return PoolFigures(
            setting=setting,
            unmet=block_bootstrap(lambda d: float(lost[d].sum() / needed[d].sum()), count, day),
            node_hours=block_bootstrap(
                lambda d: float(nodes[d].sum() / exact[d].sum()), count, day
            ),
        )


class _Models:
    """Models by the interval before which they were fitted."""

    def __init__(
        self, series: VolumeSeries, options: GruOptions, advance: Callable[[], None]
    ) -> None:
        self._series = series
        self._settings = lsp.LspOptions(alpha=lsp.ALPHA, gru=options)
        self._advance = advance
        self._fitted: dict[int, lsp.Lsp] = {}

    def forecasts(self, first: int, end: int) -> _Forecasts:
        """By models of what is before ``first``; residuals by models of the first four fifths of
        that, over its last fifth."""
        volumes, known = self._series.values, int(first * (1 - TUNING_SHARE))
        origins = range(known, first - LEADS)
        actual = np.array([volumes[o : o + LEADS] for o in origins])
        earlier = self._before(known).paths(volumes[:first], origins, LEADS)
        asked = range(first - LEADS, end - LEADS)
        paths = self._before(first).paths(volumes[:end], asked, LEADS)
        return _Forecasts(paths, ResidualQuantiles.of(earlier, actual))

    def _before(self, first: int) -> lsp.Lsp:
        if first not in self._fitted:
            self._fitted[first] = lsp.fit(self._series.head(first), self._settings)
            self._advance()
        return self._fitted[first]


Policy = Callable[[_Part, Any], Floats]


def _policies() -> dict[str, tuple[Policy, list[Any]]]:
    """By name, the policy and its settings; the cheapest that is good enough is taken."""
    pairs = list(itertools.product(HEADROOMS, HOLDS))
    quantiles = list(itertools.product(QUANTILES, HOLDS, (False,)))
    floors = list(itertools.product(QUANTILES, HOLDS, (True,)))
    return {
        "fixed": (_fixed, list(FIXED)),
        "reactive": (_reactive, pairs),
        "forecast": (_forecasting, quantiles),
        "forecast and reactive floor": (_forecasting, floors),
    }


def _fixed(part: _Part, factor: float) -> Floats:
    return np.full(part.end - part.first, float(np.ceil(MEAN_NODES * factor)))


def _reactive(part: _Part, setting: tuple[float, int]) -> Floats:
    headroom, hold = setting
    return _held(np.ceil(part.seen() * (1.0 + headroom)), hold)


def _forecasting(part: _Part, setting: tuple[float, int, bool]) -> Floats:
    quantile, hold, floor = setting
    wanted = np.ceil(part.forecasts.wanted(quantile) / part.per_node)
    if floor:
        wanted = np.maximum(wanted, np.ceil(part.seen()))
    return _held(wanted, hold)


def _held(wanted: Floats, hold: int) -> Floats:
    """A node goes once none of the last ``hold`` intervals has wanted it."""
    padded = np.concatenate([np.full(hold - 1, wanted[0]), wanted])
    windows = np.lib.stride_tricks.sliding_window_view(padded, hold)
    found: Floats = windows.max(axis=1).astype(float)
    return found


def _tuned(part: _Part, policy: Policy, settings: list[Any]) -> Any:
    """The setting of the least node-hours among those that leave at most ``UNMET_TARGET`` unmet;
    where none does, the one that leaves least."""
    tried = []
    for each in settings:
        nodes = policy(part, each)
        unmet = part.unmet(nodes)
        good = unmet <= UNMET_TARGET
        tried.append((not good, part.node_hours(nodes) if good else unmet, each))
    return min(tried, key=lambda row: row[:2])[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDays:
    """The source's figure 6, day by day of the test: nodes, tasks a node, and what was unmet."""

    nodes: Floats
    tasks_per_node: Floats
    unmet: float
    node_days: float


def daily_pool(
    volumes: Floats, forecasts: Floats, first: int, *, fixed: int | None, nodes_max: int
) -> FixedDays:
    """One size a day, by ``forecasts`` of the days from ``first`` on, or ``fixed``.

    A node can serve ``capacity`` tasks a day: half of ``nodes_max`` nodes serve the mean day of the
    training part. The pool begins with ``nodes_max``; tasks of busy nodes are learned as they come.
    """
    capacity = float(volumes[:first].mean()) / (nodes_max / 2)
    learned = TasksPerNode()
    for day in range(first):
        busy = min(nodes_max, np.ceil(volumes[day] / capacity))
        learned.observe(min(volumes[day], busy * capacity), busy)
    bounds = PoolBounds(nodes_min=1, nodes_max=nodes_max)
    sizes, served, present = [], [], nodes_max
    for day, expected in enumerate(forecasts, start=first):
        assert learned.value is not None
        if fixed is None:
            present = pool_size(float(expected), learned.value, bounds, present)
        else:
            present = fixed
        done = min(float(volumes[day]), present * capacity)
        learned.observe(done, min(present, np.ceil(done / capacity)))
        sizes.append(present)
        served.append(done)
    nodes, done_tasks, actual = np.array(sizes, float), np.array(served), volumes[first:]
    return FixedDays(
        nodes=nodes,
        tasks_per_node=done_tasks / nodes,
        unmet=float((actual - done_tasks).sum() / actual.sum()),
        node_days=float(nodes.sum()),
    )
