"""What may be learned of a job from its reports: how long an epoch takes with other workers, and
how its loss goes on. Plain least squares; an estimate is as good as what has been seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hrm.core.elasticity.elastic_job import EpochSample

__all__ = ["EpochTime", "LossCurve", "fit_epoch_time", "fit_loss", "fit_rise"]

_SERIAL = 0.2
"""Share of an epoch that is not divided by workers, while only one number of them was seen."""
_LEVELS = (0.0, 0.8, 0.95, 0.99)
"""Limits of a loss that are tried, as shares of its least."""


class EpochTime(NamedTuple):
    """Seconds of an epoch with w workers: divided / w + fixed + each * w."""

    divided: float
    fixed: float
    each: float

    def seconds(self, workers: int) -> float:
        return self.divided / workers + self.fixed + self.each * workers


def fit_epoch_time(history: Sequence[EpochSample]) -> EpochTime:
    """From at least one report; with fewer than three numbers of workers, fewer terms."""
    by_workers: dict[int, list[float]] = {}
    for sample in history:
        by_workers.setdefault(sample.workers, []).append(sample.seconds)
    seen = sorted(by_workers)
    means = np.array([float(np.mean(by_workers[w])) for w in seen])
    workers = np.array(seen, dtype=np.float64)
    if len(seen) == 1:
        return EpochTime((1.0 - _SERIAL) * means[0] * seen[0], _SERIAL * means[0], 0.0)
    columns = np.stack((1.0 / workers, np.ones_like(workers), workers), axis=1)
    for terms in ((0, 1, 2), (0, 1), (0,)):
        if len(seen) < len(terms):
            continue
        found, *_ = np.linalg.lstsq(columns[:, terms], means, rcond=None)
        if (found >= 0.0).all():
            whole = np.zeros(3)
            whole[list(terms)] = found
            return EpochTime(*whole.tolist())
    return EpochTime(0.0, float(means.mean()), 0.0)


class LossCurve(NamedTuple):
    """The loss after k epochs: 1 / (a k^2 + b k + c) + d."""

    a: float
    b: float
    c: float
    d: float

    def loss(self, epoch: float) -> float:
        return 1.0 / max(1e-9, (self.a * epoch + self.b) * epoch + self.c) + self.d


def fit_loss(history: Sequence[EpochSample], memory: float = 0.8) -> LossCurve | None:
    """Fit by least squares of the inverse, for several limits ``d``, with weights ``memory`` to the
    power of a report's age; None: fewer than four reports, or nothing falls.

    Source: SLAQ (Zhang et al., SoCC 2017), section 4.2.
    """
    if len(history) < 4:
        return None
    epochs = np.array([sample.epoch for sample in history], dtype=np.float64)
    losses = np.array([sample.loss for sample in history])
    weights = memory ** np.arange(len(history) - 1, -1, -1, dtype=np.float64)
    best, least = None, np.inf
    for share in _LEVELS:
        limit = share * float(losses.min())
        inverse = 1.0 / (losses - limit + 1e-9)
        scale = np.sqrt(weights) / inverse**2
        for powers in ((2, 1, 0), (1, 0)):
            columns = np.stack([epochs**power for power in powers], axis=1)
            found, *_ = np.linalg.lstsq(columns * scale[:, None], inverse * scale, rcond=None)
            if (found[:-1] < 0.0).any() or not (columns @ found > 0.0).all():
                continue
            square, slope, level = [0.0] * (3 - len(powers)) + found.tolist()
            curve = LossCurve(square, slope, level, limit)
            error = float((weights * (1.0 / (columns @ found) + limit - losses) ** 2).sum())
            if error < least:
                best, least = curve, error
            break
    return best


def fit_rise(history: Sequence[EpochSample], target: float) -> float:
    """The epoch at which a power law through the accuracies reaches ``target``; inf: never.

    The law is 1 - accuracy = a k^-b, so it never stops rising; with fewer than four reports, inf.
    """
    if len(history) < 4 or target >= 1.0:
        return np.inf
    epochs = np.log([sample.epoch for sample in history])
    lacking = np.log([max(1e-6, 1.0 - sample.accuracy) for sample in history])
    slope, level = np.polyfit(epochs, lacking, 1)
    if slope >= 0.0:
        return np.inf
    with np.errstate(over="ignore"):
        return float(np.exp((np.log(1.0 - target) - level) / slope))
