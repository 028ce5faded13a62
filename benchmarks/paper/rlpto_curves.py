"""Measured training curves and step times, of Pollux's data, as jobs of the simulated cluster.

Each application was trained with several batch sizes, its validation metric kept each epoch, and
its step was timed on one to four GPUs, one a node or all on one. A job takes one of these runs,
stretched to another number of epochs, over a least-squares fit of its application's step times, and
reports with the run's own ups and downs. So shape, jumps of the learning rate and noise are
measured; which job has which, and how many epochs it runs, is drawn.

Accuracy is a fraction that rises: one minus a word error rate, and one minus a loss over 26, for
those applications that have no other. Runs of fewer than 40 epochs have nothing to flatten.

Data: Pollux (Qiao et al., OSDI 2021), artifact, simulator.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hrm.learn.training_curves import TrainingCurve
from hrm.learn.training_workloads import DrawCurve

__all__ = ["MeasuredRuns", "drawing_measured", "load_measured"]

Floats = npt.NDArray[np.float64]

_ACCURACY: dict[str, Callable[[Floats], Floats]] = {
    "cifar10": lambda metric: metric,
    "imagenet": lambda metric: metric,
    "deepspeech2": lambda metric: 1.0 - metric / 100.0,
    "yolov3": lambda metric: 1.0 - metric / 26.0,
}
EPOCH_S = (20.0, 90.0)
"""Seconds of an epoch on one worker, between which a job's are drawn."""
_SMOOTHED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """One application.

    Attributes:
        runs: accuracies by epoch, one array for each batch size.
        scalings: rows of (divided, fixed, each), shares of the epoch on one worker: with w workers
            it takes divided / w + fixed + each (w - 1). One row for each local batch and placement.
    """

    name: str
    runs: tuple[Floats, ...]
    scalings: Floats


def load_measured(directory: Path) -> list[MeasuredRuns]:
    """The applications in ``directory``.

    Raises:
        FileNotFoundError: a file is missing.
    """
    found = []
    for name, accuracy in _ACCURACY.items():
        files = sorted((directory / name).glob("validation-*.csv.gz"))
        if not files:
            raise FileNotFoundError(
                2, "no such runs", str(directory / name / "validation-*.csv.gz")
            )
        runs = [accuracy(np.array([float(row["metric"]) for row in _rows(f)])) for f in files]
        scalings = _scalings(_rows(directory / name / "placements.csv.gz"))
        found.append(MeasuredRuns(name=name, runs=tuple(runs), scalings=scalings))
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def _scalings(rows: list[dict[str, str]]) -> Floats:
    """Of each local batch, on one node and across nodes: an epoch of a fixed number of samples has
    1 / w as many steps with w workers."""
    placements = {"local": ("1", "2", "3", "4"), "across": ("1", "11", "111", "1111")}
    found = []
    batches = sorted({int(row["local_bsz"]) for row in rows})
    for names in placements.values():
        for batch in batches:
            steps = {
                row["placement"]: float(row["step_time"])
                for row in rows
                if int(row["local_bsz"]) == batch and row["placement"] in names
            }
            if len(steps) < len(names):
                continue
            epochs = np.array([steps[name] / (n + 1) for n, name in enumerate(names)])
            found.append(_nonnegative(epochs / epochs[0]))
    return np.array(found)


def _nonnegative(epochs: Floats) -> Floats:
    """Least squares with no negative term, over one to four workers."""
    from scipy.optimize import nnls

    workers = np.arange(1, len(epochs) + 1, dtype=np.float64)
    columns = np.stack((1.0 / workers, np.ones_like(workers), workers - 1.0), axis=1)
    solution, _ = nnls(columns, epochs)
    return np.asarray(solution, dtype=np.float64)


def drawing_measured(applications: list[MeasuredRuns]) -> DrawCurve:
    """Draws a job: an application, a run, its epochs, and a scaling."""

    def draw(rng: np.random.Generator) -> TrainingCurve:
        application = applications[int(rng.integers(len(applications)))]
        run = application.runs[int(rng.integers(len(application.runs)))]
        epochs = int(len(run) * rng.uniform(0.6, 1.2))
        stretch = (len(run) - 1) / max(1, epochs - 1)
        clean = _smoothed(run)
        places = np.minimum(np.rint(np.arange(epochs) * stretch), len(run) - 1).astype(np.int64)
        noise = (run - clean)[places] * float(rng.choice([-1.0, 1.0]))
        floor, top = float(clean[0]), float(clean[-1])
        rise = max(top - floor, 1e-6)
        divided, fixed, each = application.scalings[int(rng.integers(len(application.scalings)))]
        base_s = float(np.exp(rng.uniform(*np.log(EPOCH_S))))

        def gained(effective: float) -> float:
            at = max(0.0, (effective - 1.0) * stretch)
            return float((np.interp(at, np.arange(len(clean)), clean) - floor) / rise)

        return TrainingCurve(
            gained=gained,
            floor=floor,
            top=top,
            penalty=0.00195 * rise,
            serial_s=base_s * float(fixed),
            parallel_s=base_s * float(divided),
            sync_s=base_s * float(each),
            dilution=0.014,
            noise=noise,
            epochs_max=epochs,
        )

    return draw


def _smoothed(run: Floats) -> Floats:
    """A running median, which keeps the jump of a learning rate that drops."""
    half = _SMOOTHED // 2
    padded = np.concatenate((np.full(half, run[0]), run, np.full(half, run[-1])))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _SMOOTHED)
    found: Floats = np.median(windows, axis=1)
    found[0] = run[0]
    return found
