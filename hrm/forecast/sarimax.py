"""The part of a forecast that carries the season: SARIMAX of statsmodels, chosen by AICc.

A season of up to twelve intervals (days of a week) is a seasonal ARIMA (p,d,q)(P,D,Q) with p, q up
to 2 and d, D, P, Q up to 1. D is decided by the strength of the season (AICc of models that are
differenced over a season do not compare with others: they explain fewer values), all else by a
stepwise search for the least AICc. Longer seasons, whose state would have hundreds of dimensions,
are regressors instead: the values one season ago and their neighbours. With errors of an ARMA
model that is a multiplicative seasonal autoregression, fitted on what follows the first season.

Where the history is short, or no model can be fitted in time, the mean of the last two values at
the same place in the season stands in, and the reason is stated.

Source: RLPTO, eq. 1; orders and search as in Hyndman and Khandakar, "Automatic time series
forecasting: the forecast package for R", J. Stat. Software 27(3), 2008, section 3.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hrm.forecast.series import Floats
from hrm.forecast.steps import ForecastStep

__all__ = ["ArimaOrder", "SameSlotMean", "Sarimax", "SeasonalModel", "fit_seasonal"]

SEASONS_MIN = 4
"""Of history; with less the mean of the last two values of the same slot is as good."""
ITERATIONS_MAX = 50
FITS_MAX = 16
LONG_SEASON_FITS_MAX = 8
SEASON_STRENGTH_MIN = 0.64
"""Above it a series is differenced over its season (Hyndman's ``nsdiffs`` has the same bound)."""

OutOfTime = Callable[[], bool]


class SeasonalModel(Protocol):
    """A fitted model; it works on transformed volumes, of which it is given all so far."""

    @property
    def why(self) -> str:
        """What it is, and why it is not a better one."""
        ...

    def one_step(self, values: Floats, first: int) -> Floats:
        """Forecasts of ``values[first:]``, each from what comes before it, shape (n - first,)."""
        ...

    def paths(self, values: Floats, origins: Sequence[int], leads: int) -> Floats:
        """Forecasts of ``values[o : o + leads]`` from ``values[:o]``, for each origin o; shape
        (len(origins), leads)."""
        ...


@dataclass(frozen=True, slots=True)
class ArimaOrder:
    """(p, d, q)(P, D, Q)."""

    p: int
    d: int
    q: int
    seasonal_p: int = 0
    seasonal_d: int = 0
    seasonal_q: int = 0

    def __str__(self) -> str:
        seasonal = (self.seasonal_p, self.seasonal_d, self.seasonal_q)
        shown = f"({self.p},{self.d},{self.q})"
        return f"{shown}({','.join(map(str, seasonal))})" if any(seasonal) else shown

    @property
    def in_bounds(self) -> bool:
        large = all(0 <= each <= 2 for each in (self.p, self.q))
        return large and all(0 <= each <= 1 for each in (self.d, self.seasonal_p, self.seasonal_q))

    def neighbours(self) -> Iterator[ArimaOrder]:
        """Orders that differ in one figure, or in p and q together."""
        steps = [
            *((sign, 0, 0, 0, 0) for sign in (1, -1)),
            *((0, 0, sign, 0, 0) for sign in (1, -1)),
            *((sign, 0, sign, 0, 0) for sign in (1, -1)),
            *((0, 0, 0, sign, 0) for sign in (1, -1)),
            *((0, 0, 0, 0, sign) for sign in (1, -1)),
        ]
        for p, d, q, seasonal_p, seasonal_q in steps:
            yield ArimaOrder(
                self.p + p,
                self.d + d,
                self.q + q,
                self.seasonal_p + seasonal_p,
                self.seasonal_d,
                self.seasonal_q + seasonal_q,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SameSlotMean:
    """The mean of the last two values at the same place in the season."""

    season: int
    why: str

    def one_step(self, values: Floats, first: int) -> Floats:
        return np.array([self._at(values[:place], place) for place in range(first, len(values))])

    def paths(self, values: Floats, origins: Sequence[int], leads: int) -> Floats:
        return np.array(
            [[self._at(values[:o], o + lead) for lead in range(leads)] for o in origins]
        ).reshape(len(origins), leads)

    def _at(self, past: Floats, place: int) -> float:
        same = [past[at] for at in range(place - self.season, -1, -self.season) if at < len(past)]
        return float(np.mean(same[:2])) if same else float(past.mean())


@dataclass(slots=True, kw_only=True)
class Sarimax:
    """A fitted SARIMAX; ``lags``: of the regressors, in intervals; none: the season is in the
    model itself."""

    order: ArimaOrder
    season: int
    lags: tuple[int, ...]
    results: Any
    why: str

    def one_step(self, values: Floats, first: int) -> Floats:
        return self.paths(values, range(first, len(values)), 1)[:, 0]

    def paths(self, values: Floats, origins: Sequence[int], leads: int) -> Floats:
        """One pass of the filter gives the state before each interval; from there the model runs
        on without observations, and regressors that are not known yet are its own forecasts."""
        skipped = max(self.lags, default=0)
        endog, exog = _regressed(values, self.lags)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            filtered = self.results.apply(endog, exog=exog, copy_initialization=False)
        places = np.asarray(origins, dtype=int)
        states = filtered.predicted_state[:, places - skipped].copy()
        system = filtered.filter_results
        transition, design = system.transition[:, :, -1], system.design[0, :, -1]
        drift = system.state_intercept[:, -1:]
        intercepts = self.results.model.k_trend  # the weights of the regressors follow them
        weights = np.asarray(self.results.params)[intercepts : intercepts + len(self.lags)]
        # Of each origin only what regressors reach: all of its past would be too much memory.
        known = np.zeros((len(places), skipped + leads))
        known[:, :skipped] = values[places[:, None] + np.arange(-skipped, 0)]
        for lead in range(leads):
            at = skipped + lead
            regressed = sum(w * known[:, at - x] for w, x in zip(weights, self.lags, strict=True))
            known[:, at] = design @ states + regressed
            states = transition @ states + drift
        found: Floats = known[:, skipped:]
        return found


def fit_seasonal(
    values: Floats, step: ForecastStep, out_of_time: OutOfTime = lambda: False
) -> SeasonalModel:
    """The best model of ``values``, shape (n,), transformed and complete.

    ``out_of_time``: true once no further model is to be fitted, and the one that is being fitted is
    to be given up. Never raises for what the values are.
    """
    season = step.season
    if len(values) < SEASONS_MIN * season:
        why = (
            f"{len(values)} intervals are fewer than {SEASONS_MIN} seasons of {season}: the mean "
            "of the last two of the same slot"
        )
        return SameSlotMean(season=season, why=why)
    if np.ptp(values) < 1e-9:
        return SameSlotMean(season=season, why="all volumes are equal: the mean of the last two")
    lags = (season - 1, season, season + 1) if step.is_long_season else ()
    search = _Search(values, season, lags, out_of_time)
    search.run()
    if search.best is None:
        reason = search.failures[-1] if search.failures else "there was no time for it"
        return SameSlotMean(
            season=season, why=f"no SARIMAX could be fitted ({reason}): the mean of the last two"
        )
    _, order, results = search.best
    shown = f"SARIMAX {order}, "
    shown += f"regressed on {', '.join(map(str, lags))} ago" if lags else f"season {season}"
    return Sarimax(order=order, season=season, lags=lags, results=results, why=shown)


def season_strength(values: Floats, season: int) -> float:
    """How much of what the trend leaves is the season, 0 to 1 (Wang, Smith, Hyndman 2006)."""
    from statsmodels.tsa.seasonal import STL

    parts = STL(values, period=season, robust=True).fit()
    spread = float(np.var(parts.seasonal + parts.resid))
    return max(0.0, 1.0 - float(np.var(parts.resid)) / spread) if spread > 0 else 0.0


@dataclass(slots=True)
class _Search:
    """A stepwise search: all of the starts, then neighbours of the best for as long as one is
    better."""

    values: Floats
    season: int
    lags: tuple[int, ...]
    out_of_time: OutOfTime
    tried: set[ArimaOrder] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    best: tuple[float, ArimaOrder, Any] | None = None

    def run(self) -> None:
        starts = self._starts()
        for order in starts:
            self._is_better(order)
        while self.best is not None:
            if not any(self._is_better(order) for order in self.best[1].neighbours()):
                return

    def _starts(self) -> list[ArimaOrder]:
        if self.lags:
            return [ArimaOrder(2, 0, 2), ArimaOrder(2, 1, 2), ArimaOrder(1, 0, 1)]
        differenced = int(season_strength(self.values, self.season) > SEASON_STRENGTH_MIN)
        return [
            ArimaOrder(2, 0, 2, 0, differenced, 0),
            ArimaOrder(1, 0, 0, 1, differenced, 0),
            ArimaOrder(0, 1, 1, 0, differenced, 1),
            ArimaOrder(2, 1, 2, 0, differenced, 0),
        ]

    def _is_better(self, order: ArimaOrder) -> bool:
        """Fit a model of this order, if it is to be; is it the best so far?"""
        limit = LONG_SEASON_FITS_MAX if self.lags else FITS_MAX
        is_seasonal = order.seasonal_p or order.seasonal_q
        if order in self.tried or not order.in_bounds or (self.lags and is_seasonal):
            return False
        if len(self.tried) >= limit or self.out_of_time():
            return False
        self.tried.add(order)
        fitted = _fitted(self.values, self.season, self.lags, order, self.out_of_time)
        if isinstance(fitted, str):
            self.failures.append(fitted)
            return False
        aicc, results = fitted
        if self.best is not None and aicc >= self.best[0]:
            return False
        self.best = (aicc, order, results)
        return True


class _GivenUp(Exception):
    """The fit that is under way has no time left."""


def _fitted(
    values: Floats, season: int, lags: tuple[int, ...], order: ArimaOrder, out_of_time: OutOfTime
) -> tuple[float, Any] | str:
    """The AICc and the results; the reason where there are none."""
    from statsmodels.tsa.statespace.sarimax import SARIMAX

    def check(_parameters: Floats) -> None:
        if out_of_time():
            raise _GivenUp

    endog, exog = _regressed(values, lags)
    differenced = order.d + order.seasonal_d > 0
    seasonal = (order.seasonal_p, order.seasonal_d, order.seasonal_q, 0 if lags else season)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of starting values and of convergence, checked below
            model = SARIMAX(
                endog,
                exog=exog,
                order=(order.p, order.d, order.q),
                seasonal_order=seasonal,
                trend="n" if differenced else "c",
            )
            results = model.fit(disp=0, maxiter=ITERATIONS_MAX, callback=check)
    except _GivenUp:
        return "there was no time for it"
    except (ValueError, ArithmeticError, np.linalg.LinAlgError, IndexError) as error:
        return f"{order}: {error}"
    aicc = float(results.aicc)
    if not np.isfinite(aicc) or not np.isfinite(results.params).all():
        return f"{order}: the likelihood is not finite"
    if not np.isfinite(results.forecast(1, exog=None if exog is None else exog[-1:])).all():
        return f"{order}: its forecast is not finite"
    return aicc, results


def _regressed(values: Floats, lags: tuple[int, ...]) -> tuple[Floats, Floats | None]:
    """The values to be explained, and the regressors of each."""
    if not lags:
        return values, None
    skipped = max(lags)
    return values[skipped:], np.column_stack(
        [values[skipped - lag : len(values) - lag] for lag in lags]
    )
