"""Load sequence prediction: alpha * GRU + (1 - alpha) * SARIMAX, of volumes of tasks.

Both models work on log(1 + volume): load grows and falls by factors, and a forecast cannot become
negative. Alpha is the source's 0.6, or tuned: of the weights 0, 0.05 ... 1 the one with the least
absolute error on the last fifth of the history, forecast by models that were fitted without it.
With fewer than ``TUNING_MIN`` such intervals the source's value stands.

Where one model cannot be had, the other one stands alone, and ``Lsp.remarks`` has the reason.

Source: RLPTO, eq. 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hrm.errors import InvalidRequest
from hrm.forecast.gru import GruEnsemble, GruOptions, fit_gru
from hrm.forecast.sarimax import SeasonalModel, fit_seasonal
from hrm.forecast.series import Floats, VolumeSeries
from hrm.forecast.steps import ForecastStep

__all__ = ["ALPHA", "Lsp", "LspOptions", "fit", "sum_of_parts"]

ALPHA = 0.6
"""The source's weight of the GRU."""
TUNING_SHARE = 0.2
TUNING_MIN = 7
_WEIGHTS = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True, slots=True, kw_only=True)
class LspOptions:
    """``alpha``: the weight of the GRU, 0 to 1; None: tuned. ``seasonal``: fits the seasonal model.
    ``out_of_time``: true once models are to be taken as they are."""

    alpha: float | None = None
    gru: GruOptions = field(default_factory=GruOptions)
    seasonal: Callable[[Floats, ForecastStep, Callable[[], bool]], SeasonalModel] = fit_seasonal
    out_of_time: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lsp:
    """Fitted models. Volumes that are given to it begin where those that it was fitted on did.

    Attributes:
        alpha: the weight of the GRU; 0 where there is none.
        remarks: what the models are, and what is not as it should be.
    """

    seasonal: SeasonalModel
    gru: GruEnsemble | None
    alpha: float
    remarks: tuple[str, ...]

    def one_step(self, volumes: Floats, first: int) -> Floats:
        """Forecasts of ``volumes[first:]``, each from what comes before it, shape (n - first,)."""
        return sum_of_parts(self.parts(volumes, first), self.alpha)

    def parts(self, volumes: Floats, first: int) -> tuple[Floats, Floats]:
        """``one_step`` of the GRU and of the seasonal model, each alone; where there is no GRU, of
        the latter twice."""
        values = np.log1p(volumes)
        seasonal = _volumes(self.seasonal.one_step(values, first))
        if self.gru is None:
            return seasonal, seasonal
        return _volumes(self.gru.one_step(values, first)), seasonal

    def paths(self, volumes: Floats, origins: Sequence[int], leads: int) -> Floats:
        """Forecasts of ``volumes[o : o + leads]`` from ``volumes[:o]``, for each origin o, shape
        (len(origins), leads)."""
        values = np.log1p(volumes)
        seasonal = _volumes(self.seasonal.paths(values, origins, leads))
        if self.gru is None:
            return seasonal
        return sum_of_parts(
            (_volumes(self.gru.paths(values, origins, leads)), seasonal), self.alpha
        )


def sum_of_parts(parts: tuple[Floats, Floats], alpha: float) -> Floats:
    """alpha times the first, and the rest of the second (eq. 1)."""
    gru, seasonal = parts
    return alpha * gru + (1.0 - alpha) * seasonal


def fit(series: VolumeSeries, options: LspOptions | None = None) -> Lsp:
    """Models of a history, of which the last ``step.history_max`` intervals count.

    Raises:
        InvalidRequest: the history is too short.
    """
    options = options or LspOptions()
    step, volumes = series.step, series.filled()
    if len(volumes) < step.needed:
        raise InvalidRequest(
            f"a forecast by {step.name} needs {step.needed} intervals of history, and there are "
            f"{len(volumes)}"
        )
    remarks: list[str] = []
    alpha = ALPHA if options.alpha is None else options.alpha
    tuning = int(TUNING_SHARE * len(volumes))
    if options.alpha is None and tuning >= TUNING_MIN:
        known = len(volumes) - tuning
        earlier = _models(volumes[:known], series, options)
        if earlier.gru is not None:
            alpha = tuned_alpha(earlier.parts(volumes, known), volumes[known:])
    elif options.alpha is None:
        remarks.append(f"alpha is {ALPHA}: {tuning} intervals are too few to tune it")
    made = _models(volumes, series, options)
    alpha = alpha if made.gru is not None else 0.0
    return Lsp(
        seasonal=made.seasonal,
        gru=made.gru,
        alpha=alpha,
        remarks=(*made.remarks, *remarks, f"alpha is {alpha:.2f}"),
    )


def tuned_alpha(parts: tuple[Floats, Floats], volumes: Floats) -> float:
    """The weight with the least absolute error."""
    errors = [float(np.abs(sum_of_parts(parts, each) - volumes).mean()) for each in _WEIGHTS]
    return float(_WEIGHTS[int(np.argmin(errors))])


def _models(volumes: Floats, series: VolumeSeries, options: LspOptions) -> Lsp:
    values = np.log1p(volumes)
    seasonal = options.seasonal(values, series.step, options.out_of_time)
    gru = fit_gru(values, series.step, series.start_s, options.gru, options.out_of_time)
    if isinstance(gru, str):
        return Lsp(seasonal=seasonal, gru=None, alpha=0.0, remarks=(seasonal.why, f"no GRU: {gru}"))
    return Lsp(seasonal=seasonal, gru=gru, alpha=ALPHA, remarks=(seasonal.why, gru.why))


def _volumes(values: Floats) -> Floats:
    """Back from the logarithm; a forecast that has run away is no number that anyone counts with,
    and stays finite."""
    return np.maximum(0.0, np.expm1(np.minimum(values, 60.0)))
