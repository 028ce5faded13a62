"""Laws of interference, fitted to measured slow-downs of pairs of jobs that share a GPU.

The worlds of ``hrm.pipelines.sim.interference`` follow such laws, and some that were fitted here
ship with it. A table has the form of Gavel's throughputs (training jobs alone and in pairs) or of
iGniter's latencies (inference models alone and in pairs); ``benchmarks.traces.measured`` has
the readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.traces.measured import gavel_pairs, igniter_pairs, igniter_profiles
from benchmarks.traces.reading import LoadReport
from hrm.errors import InvalidRequest
from hrm.pipelines.sim.interference import Law
from hrm.pipelines.sim.profiles import K80, P4

__all__ = ["Pair", "fit", "laws_of", "pairs_of"]

_ALIKE = 1e-6
_SLOWDOWN_MIN = 0.02
"""Least excess of a slow-down that a fit uses; below it is noise."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One measurement: how many times as long ``victim`` took with ``partner``."""

    gpu: str
    victim: str
    partner: str
    slowdown: float


def fit(pairs: Iterable[Pair]) -> Law:
    """The law of the pairs of one GPU, by least squares on ln(slow-down - 1).

    Raises:
        InvalidRequest: fewer than 3 jobs or fewer pairs than twice the jobs.
    """
    pairs = list(pairs)
    jobs = sorted({one.victim for one in pairs} | {one.partner for one in pairs})
    if len(jobs) < 3 or len(pairs) < 2 * len(jobs):
        raise InvalidRequest(
            f"{len(pairs)} pairs of {len(jobs)} jobs are too few for a law of interference; give "
            "at least two pairs for each of three jobs"
        )
    number = {job: place for place, job in enumerate(jobs)}
    matrix = np.zeros((len(pairs), 2 * len(jobs)))
    for row, one in enumerate(pairs):
        matrix[row, number[one.victim]] = 1.0
        matrix[row, len(jobs) + number[one.partner]] = 1.0
    excess = np.log([max(one.slowdown - 1.0, _SLOWDOWN_MIN) for one in pairs])
    weights = np.linalg.lstsq(matrix, excess, rcond=None)[0]
    rest = excess - matrix @ weights
    ln_s, ln_a = weights[: len(jobs)], np.sort(weights[len(jobs) :])
    own = np.argsort(weights[len(jobs) :], kind="stable")
    slope_a, start_a = np.polyfit(np.linspace(0.0, 1.0, len(jobs)), ln_a, 1)
    alike = np.ptp(ln_a) < _ALIKE
    slope_s, start_s = (0.0, ln_s.mean()) if alike else np.polyfit(ln_a, ln_s[own], 1)
    return Law(
        ln_a=(float(start_a), float(slope_a)),
        ln_s=(float(start_s), float(slope_s)),
        spread=float(rest.std()),
        explained=float(1.0 - rest.var() / excess.var()) if excess.var() > 0 else 1.0,
        pairs=len(pairs),
    )


def pairs_of(path: Path) -> list[Pair]:
    """Measured pairs from a table of Gavel's or iGniter's form, found by its contents.

    Raises:
        InvalidRequest: no such file, or it has neither form.
    """
    found = _training_pairs(path) if "throughputs" in _names(path) else _inference_pairs(path)
    if not found:
        raise InvalidRequest(f"{path} has no pair of jobs that share a GPU")
    return found


def _names(path: Path) -> str:
    if not path.exists():
        raise InvalidRequest(f"no such table of pairs: {path}")
    return path.name if path.is_file() else " ".join(sorted(one.name for one in path.iterdir()))


def _training_pairs(path: Path) -> list[Pair]:
    rows = [row for row in gavel_pairs(path, LoadReport()) if row.scale == 1]
    alone = {(row.gpu, row.job): row.iterations_per_s for row in rows if not row.other}
    return [
        Pair(row.gpu, row.job, row.other, alone[row.gpu, row.job] / row.iterations_per_s)
        for row in rows
        if row.other and row.other_scale == 1 and row.iterations_per_s > 0
        and alone.get((row.gpu, row.job), 0.0) > 0 and "unconsolidated" not in row.gpu
    ]  # fmt: skip


def _inference_pairs(path: Path) -> list[Pair]:
    alone = {
        (row.model, row.batch, row.gpu_percent): row.value
        for row in igniter_profiles(path, LoadReport())
        if row.metric == "latency"
    }
    found = []
    for row in igniter_pairs(path, LoadReport()):
        first = row.first, row.first_batch, row.gpu_percent
        second = row.second, row.second_batch, 100 - row.gpu_percent
        if first in alone and second in alone:
            names = [f"{model} on {percent} %" for model, _, percent in (first, second)]
            slow = row.first_latency_ms / alone[first], row.second_latency_ms / alone[second]
            found += [Pair("V100", names[0], names[1], slow[0]),
                      Pair("V100", names[1], names[0], slow[1])]  # fmt: skip
    return found


def laws_of(pairs: Sequence[Pair]) -> dict[str, Law]:
    """A law for each of the cluster's GPU models, from pairs of any models.

    Raises:
        InvalidRequest: too few pairs.
    """
    by_gpu: dict[str, list[Pair]] = {}
    for one in pairs:
        by_gpu.setdefault(one.gpu.lower(), []).append(one)
    fitted = {gpu: fit(own) for gpu, own in by_gpu.items()}
    any_law = fitted[min(fitted)]
    return {K80: fitted.get("k80", any_law), P4: fitted.get("p100", any_law)}
