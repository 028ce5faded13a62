"""What runs of one kind use of a GPU over their lives, from all of them, and as a profile in ticks.

Shares are running means of what each run measured. Memory rises at once, and falls by a twentieth
of the difference with each run that takes less, so that what counts is about the greatest of the
latest twenty.

A tick is a power of two seconds, such that the mean run has eight to sixteen of them, as in the
sets that policies are trained on: the decision is the same whether runs take seconds or minutes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.policies.shared_gpu.profiles import GpuUseProfile

__all__ = ["RecordedUse", "in_parts", "in_ticks", "profile_of", "tick_of_runs"]

_RUNS_REMEMBERED = 20
_MEMORY = GpuUsePart._fields.index("memory_mib")
_NEAR = 1e-9
_TICKS_OF_A_RUN = 8.0
_TICK_LEAST_S = 2.0**-10
_TICKS_MOST = 4_096
"""Of one profile: a run that takes hundreds of times the mean is shown by longer ticks."""


@dataclass(frozen=True, slots=True)
class RecordedUse:
    """``parts``: the use so far; ``runs``: how many have gone into it, of which the latest
    ``_RUNS_REMEMBERED`` weigh most. The count has no bound: of two profiles the one of more runs
    is taken."""

    parts: tuple[GpuUsePart, ...]
    runs: int = 1

    def observed(self, use: Sequence[GpuUsePart]) -> RecordedUse:
        """With one more run, which has as many parts."""
        runs = self.runs + 1
        before, now = np.array(self.parts), np.array(use)
        uses = before + (now - before) / min(runs, _RUNS_REMEMBERED)
        slowly = before[:, _MEMORY] + (now - before)[:, _MEMORY] / _RUNS_REMEMBERED
        uses[:, _MEMORY] = np.maximum(now[:, _MEMORY], slowly)
        return RecordedUse(tuple(GpuUsePart(*part) for part in uses.tolist()), runs)


def in_ticks(
    parts: Sequence[GpuUsePart], *, run_s: float, tick_s: float, memory_mib: float
) -> GpuUseProfile:
    """Of a run of ``run_s`` on a card of ``memory_mib``: in each tick the greatest use of all parts
    that it touches; at least one tick."""
    uses = np.array(parts, dtype=np.float64)
    uses[:, _MEMORY] /= memory_mib
    ticks = max(1, math.ceil(run_s / tick_s - _NEAR))
    parts_per_tick = USE_PARTS * tick_s / run_s if run_s > 0.0 else float(USE_PARTS)
    rows = []
    for tick in range(ticks):
        first = min(USE_PARTS - 1, int(tick * parts_per_tick + _NEAR))
        last = math.ceil((tick + 1) * parts_per_tick - _NEAR)
        rows.append(uses[first : max(last, first + 1)].max(axis=0))
    return GpuUseProfile(np.array(rows))


def tick_of_runs(runs_s: Sequence[float]) -> float:
    """Seconds of a tick for runs that take so long, at least one of them: a power of two, for
    profiles to be made once and not with every change of an estimate."""
    mean_s = sum(runs_s) / len(runs_s)
    least_s = max(_TICK_LEAST_S, max(runs_s) / _TICKS_MOST)
    exponent = math.floor(math.log2(max(mean_s / _TICKS_OF_A_RUN, _TICK_LEAST_S)))
    return max(2.0**exponent, 2.0 ** math.ceil(math.log2(least_s)))


def profile_of(
    parts: tuple[GpuUsePart, ...], run_s: float, tick_s: float, memory_mib: float
) -> GpuUseProfile:
    """``in_ticks`` of whole ticks, upwards, for estimates move by a little with every run; the same
    object for the same profile: policies treat jobs with one profile as alike."""
    return _profile_of(parts, tick_s * max(1, math.ceil(run_s / tick_s)), tick_s, memory_mib)


@functools.lru_cache(maxsize=1_024)
def _profile_of(
    parts: tuple[GpuUsePart, ...], run_s: float, tick_s: float, memory_mib: float
) -> GpuUseProfile:
    return in_ticks(parts, run_s=run_s, tick_s=tick_s, memory_mib=memory_mib)


def in_parts(
    at_s: Sequence[float], samples: Sequence[Sequence[float]], ran_s: float
) -> tuple[GpuUsePart, ...]:
    """The use in each part of a life of ``ran_s``: the greatest sample within it, the one before it
    and the one after it included. ``samples``, as ``GpuUsePart``, were taken ``at_s`` seconds after
    the start, in this order. Empty: there are fewer than two, or it did not run."""
    if len(at_s) < 2 or ran_s <= 0.0:
        return ()
    times, held = np.array(at_s), np.array(samples, dtype=np.float64)
    edges = np.linspace(0.0, ran_s, USE_PARTS + 1)
    first = np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)
    last = np.minimum(np.searchsorted(times, edges[1:]), len(held) - 1)
    parts = [np.max(held[a : max(a, b) + 1], axis=0)
             for a, b in zip(first.tolist(), last.tolist(), strict=True)]  # fmt: skip
    return tuple(GpuUsePart(*part.tolist()) for part in parts)
