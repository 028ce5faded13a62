"""A row's use of a GPU over its life, from all of its runs alone, and as a profile in ticks.

Shares are running means of what each run measured. Memory rises at once, and falls by a twentieth
of the difference with each run that takes less, so that what counts is about the greatest of the
latest twenty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hrm.pipelines.core.gpu_use import USE_PARTS, GpuUsePart
from hrm.policies.shared_gpu.profiles import GpuUseProfile

__all__ = ["RecordedUse", "in_ticks"]

_RUNS_REMEMBERED = 20
_MEMORY = GpuUsePart._fields.index("memory_mib")
_NEAR = 1e-9


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
