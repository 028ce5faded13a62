"""How a training job learns and how fast it runs: the physics of the simulated cluster.

With w workers an epoch takes a serial part, a part that is divided by w, and a part of
communication that grows with w. Larger w also costs accuracy: each epoch counts for a little less,
and the final accuracy falls with the average number of workers. What jobs report is their accuracy
plus correlated noise, ten times greater than a late epoch's gain.

Two families are drawn here. ``fitted_curve`` is a power law whose constants were fitted to the
first table of RLPTO (Lu et al., IEEE TPDS 2023; the fit and its target are in
``benchmarks.paper.rlpto``). ``drawn_curve`` is wider, for training: other exponents, scalings and
noise, and learning rates that drop, announced or not, behind which a flat curve rises once more.
Measured curves, for tests, are read by ``benchmarks.paper.rlpto_measured``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "FITTED_IMAGES",
    "TrainingCurve",
    "TrainingState",
    "correlated_noise",
    "drawn_curve",
    "fitted_curve",
]

Floats = npt.NDArray[np.float64]

FITTED_IMAGES = (40_000, 60_000, 120_000)
"""Images of a small, a medium and a large job."""
_MEAN_IMAGES = 73_300.0
_MEMORY = 0.93
"""Of the moving average of workers that final accuracy depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCurve:
    """One job's behaviour, known to the simulator and to the oracle, never to a policy.

    Attributes:
        gained: share of the way from ``floor`` to ``top`` after so many effective epochs.
        penalty: accuracy that each worker beyond the first costs at the end.
        serial_s, parallel_s, sync_s: seconds of an epoch, see ``seconds``.
        dilution: by which each worker beyond the first lengthens an epoch's worth.
        noise: shape (epochs_max,), what reports add to accuracy.
        drops: epochs after which the learning rate falls; ``announced``: whether the job says so.
    """

    gained: Callable[[float], float]
    floor: float
    top: float
    penalty: float
    serial_s: float
    parallel_s: float
    sync_s: float
    dilution: float
    noise: Floats
    epochs_max: int
    drops: tuple[int, ...] = ()
    announced: bool = False

    def seconds(self, workers: int) -> float:
        """Of one epoch with so many workers."""
        return self.serial_s + self.parallel_s / workers + self.sync_s * (workers - 1)

    @property
    def final(self) -> float:
        """The accuracy at the iteration limit with one worker all the time."""
        return self.floor + (self.top - self.floor) * self.gained(float(self.epochs_max))

    def reaches(self, share: float) -> float:
        """The first whole effective epoch with ``share`` of the final accuracy, on one worker."""
        wanted, rise = share * self.final, self.top - self.floor
        epochs = range(1, self.epochs_max)
        reached = (e for e in epochs if self.floor + rise * self.gained(float(e)) >= wanted)
        return float(next(reached, self.epochs_max))


class TrainingState:
    """How far a job has come. ``accuracy`` is without noise."""

    def __init__(self, curve: TrainingCurve) -> None:
        self.curve = curve
        self.epoch = 0
        self.effective = 0.0
        self.average_workers = math.nan
        self.accuracy = curve.floor

    def run_epoch(self, workers: int) -> tuple[float, float]:
        """Finish an epoch with so many workers; the loss and the accuracy that are reported.

        The loss is the cross-entropy of a classifier that gives its class that accuracy.
        """
        curve = self.curve
        first = math.isnan(self.average_workers)
        before = workers if first else self.average_workers
        self.average_workers = _MEMORY * before + (1.0 - _MEMORY) * workers
        self.effective += 1.0 / (1.0 + curve.dilution * (workers - 1))
        self.accuracy = self.accuracy_at(self.effective)
        observed = self.accuracy + float(curve.noise[self.epoch])
        self.epoch += 1
        observed = min(max(observed, 0.001), 1.0)
        return -math.log(observed), observed

    def accuracy_at(self, effective: float) -> float:
        """After so many effective epochs, with as many workers as so far."""
        curve = self.curve
        extra = 0.0 if math.isnan(self.average_workers) else self.average_workers - 1.0
        top = curve.top - curve.penalty * extra
        return curve.floor + (top - curve.floor) * curve.gained(effective)


def correlated_noise(rng: np.random.Generator, count: int, sd: float, phi: float = 0.5) -> Floats:
    """Shape (count,): a first-order autoregression, with shocks of standard deviation ``sd``."""
    found = np.empty(count)
    shocks = rng.normal(0.0, sd, count)
    value = rng.normal(0.0, sd / math.sqrt(1.0 - phi * phi))
    for number in range(count):
        value = phi * value + shocks[number]
        found[number] = value
    return found


def fitted_curve(rng: np.random.Generator, scale: int, speed: float = 1.0) -> TrainingCurve:
    """A job of ``scale`` 0, 1 or 2 (small, medium, large) as fitted to RLPTO's table II.

    ``speed``: of a worker; 0.84 where sixteen of them share one host.
    """
    size = FITTED_IMAGES[scale] / _MEAN_IMAGES
    factors = np.exp(rng.normal(0.0, 1.0, 5) * (0.1, 0.1, 0.2, 0.2, 0.15))
    tau = 5.0 * float(factors[4])
    top = 0.888 + (-1.0, -0.2, 1.0)[scale] * 0.0115 + rng.normal(0.0, 0.004)
    epochs = 110
    return TrainingCurve(
        gained=lambda effective: 1.0 - float((1.0 + effective / tau) ** -2),
        floor=0.1,
        top=float(top),
        penalty=0.00195 * float(factors[3]),
        serial_s=8.7 * size * float(factors[0]),
        parallel_s=44.0 * size * float(factors[1]) / speed,
        sync_s=0.14 * float(factors[2]),
        dilution=0.014,
        noise=correlated_noise(rng, epochs, 0.0011),
        epochs_max=epochs,
    )


def drawn_curve(rng: np.random.Generator) -> TrainingCurve:
    """A job of the family that policies are trained on."""
    epochs = int(rng.integers(40, 121))
    floor, top = float(rng.uniform(0.0, 0.2)), float(rng.uniform(0.55, 0.97))
    power, tau = float(rng.uniform(0.5, 2.2)), float(np.exp(rng.uniform(-0.7, 2.0)))
    drops: tuple[int, ...] = ()
    if rng.random() < 0.6:
        many = int(rng.integers(1, 4))
        first, last = int(0.2 * epochs), int(0.9 * epochs)
        drops = tuple(sorted(int(x) for x in rng.integers(first, last, many)))
    jumps = tuple(float(x) for x in rng.uniform(0.04, 0.25, len(drops)))
    width = float(rng.uniform(0.3, 2.5))

    def raw(effective: float) -> float:
        rise = 1.0 - float((1.0 + effective / tau) ** -power)
        for at, jump in zip(drops, jumps, strict=True):
            if effective > at:
                rise += jump * (1.0 - math.exp(-(effective - at) / width))
        return rise

    whole = raw(float(epochs))
    base_s = float(np.exp(rng.uniform(np.log(8.0), np.log(90.0))))
    serial = float(rng.uniform(0.02, 0.35))
    return TrainingCurve(
        gained=lambda effective: raw(effective) / whole,
        floor=floor,
        top=top,
        penalty=float(rng.uniform(0.0, 0.0025)),
        serial_s=base_s * serial,
        parallel_s=base_s * (1.0 - serial),
        sync_s=base_s * float(rng.uniform(0.0, 0.05)),
        dilution=float(rng.uniform(0.0, 0.03)),
        noise=correlated_noise(rng, epochs, float(np.exp(rng.uniform(-7.4, -4.4)))),
        epochs_max=epochs,
        drops=drops,
        announced=bool(rng.random() < 0.5),
    )
