"""Interference-aware dispatch: which subtask a core takes, and which ones share a GPU.

Two steps, repeated until neither changes anything:

*fill*: an idle core takes the ready subtask that a GPU would speed up least; the one that it would
speed up most moves into the GPU queue, while that is shorter than ``queue_length`` for each GPU.

*admit*: of all pairs of a queued subtask and a GPU that fit, the one with the smallest co-run score
starts, an idle GPU before a shared one that would cost nothing (``scores.loss``). Ties go to the
GPU on which fewer run, then to the larger speed-up, the older, the lower GPU. A subtask that has
waited for ``patience`` times its own run time goes first; if it fits nowhere, the GPU that is free
for it soonest is reserved for it.

Three options extend the paper. ``tail_guard``: a core refuses what a GPU would end sooner, waiting
included. ``steal``: an idle core for which nothing else is ready takes the smallest speed-up out of
the GPU queue, by the rule of the tail guard. ``gain_min``: a subtask joins others on a GPU only if
all of them together are then expected to do at least that much more work in a second than those
alone, in seconds alone (``scores.progress``); 0 keeps out what costs the others more than it does
itself. One that has waited for too long joins all the same.

Source: LDWP + IAWP, algorithm 2 with the repairs of sections 3.1 and 3.4.
"""

from __future__ import annotations

import math

import numpy as np

from hrm.pipelines.core.feasibility import CAPS, QUEUED_MAX, Caps
from hrm.pipelines.core.model import (
    Device,
    GpuView,
    NodeView,
    ReadySubtask,
    Row,
    StartDecision,
    SubtaskKey,
)
from hrm.pipelines.policies.corun.scores import CoRunScore, loss, progress
from hrm.pipelines.policies.corun.tentative import Tentative, row_on

__all__ = ["Iawp"]

_ROUNDING = 1e-9


class Iawp:
    """One object for each node; it keeps the GPU queue, each entry with its time of arrival."""

    name = "iawp"

    def __init__(
        self,
        *,
        rng: np.random.Generator,
        score: CoRunScore,
        caps: Caps = CAPS,
        queue_length: int = QUEUED_MAX,
        patience: float = 5.0,
        tail_guard: bool = False,
        steal: bool = False,
        gain_min: float | None = None,
    ) -> None:
        self._score = score
        self._caps = caps
        self._queue_length = queue_length
        self._patience = patience
        self._tail_guard = tail_guard
        self._steal = steal
        self._gain_min = gain_min
        self._queued_at_s: dict[SubtaskKey, float] = {}

    @property
    def queue(self) -> tuple[SubtaskKey, ...]:
        """The GPU queue, in the order of arrival."""
        return tuple(self._queued_at_s)

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        present = {subtask.key for subtask in view.ready}
        self._queued_at_s = {k: at for k, at in self._queued_at_s.items() if k in present}
        turn = _Turn(view, self._caps, self._score)
        while True:
            before = len(turn.free.starts)
            self._fill(turn)
            self._admit(turn)
            if len(turn.free.starts) == before:
                return turn.free.starts

    def _fill(self, turn: _Turn) -> None:
        outside = [one for one in turn.free.left() if one.key not in self._queued_at_s]
        outside.sort(key=turn.speedup)
        for subtask in list(outside):
            if not turn.free.idle_cores:
                break
            if self._core_takes(turn, subtask, guarded=self._tail_guard):
                outside.remove(subtask)
        free = self._queue_length * len(turn.free.gpus) - len(self._queued_at_s)
        outside.sort(key=lambda one: -turn.speedup(one))
        fitting = [one for one in outside if turn.free.gpus_for(one)]
        for subtask in fitting[: max(0, free)]:
            self._queued_at_s[subtask.key] = turn.view.now

    def _core_takes(self, turn: _Turn, subtask: ReadySubtask, *, guarded: bool) -> bool:
        if guarded and self._sooner_on_gpu(turn, subtask):
            return False
        taken = turn.free.take_core(subtask)
        if taken:
            self._queued_at_s.pop(subtask.key, None)
        return taken

    def _sooner_on_gpu(self, turn: _Turn, subtask: ReadySubtask) -> bool:
        estimates = turn.view.estimates
        gpus = turn.free.gpus_for(subtask)
        if not gpus:
            return False
        ahead = [one.row for one in self._queued(turn) if one.key != subtask.key]
        gpu_s = min(
            turn.free.wait_s(subtask, gpu)
            + sum(turn.free.work_s(row, gpu) for row in ahead) / len(gpus)
            + estimates.run_s(row_on(subtask.row, gpu), Device.GPU)
            for gpu in gpus
        )
        return gpu_s < estimates.run_s(subtask.row, Device.CPU)

    def _queued(self, turn: _Turn) -> list[ReadySubtask]:
        left = {one.key: one for one in turn.free.left()}
        return [left[key] for key in self._queued_at_s if key in left]

    def _admit(self, turn: _Turn) -> None:
        while True:
            queued = self._queued(turn)
            overdue = [one for one in queued if self._is_overdue(turn, one)]
            first = next((one for one in overdue if turn.free.fitting(one)), None)
            held = None if first else next((turn.soonest(one) for one in overdue), None)
            pairs = [
                (turn.rank(one, gpu), one, gpu.index)
                for one in ([first] if first else queued)
                for gpu in turn.free.fitting(one)
                if gpu.index != held and (first or self._gains(turn, one, gpu))
            ]
            if not pairs:
                break
            _, subtask, number = min(pairs, key=lambda pair: pair[0])
            turn.free.take(subtask, Device.GPU, number)
            del self._queued_at_s[subtask.key]
        if self._steal:
            for subtask in sorted(self._queued(turn), key=turn.speedup):
                if not turn.free.idle_cores:
                    break
                self._core_takes(turn, subtask, guarded=True)

    def _gains(self, turn: _Turn, subtask: ReadySubtask, gpu: GpuView) -> bool:
        return (
            self._gain_min is None
            or not gpu.running
            or turn.gain(subtask, gpu) >= self._gain_min - _ROUNDING
        )

    def _is_overdue(self, turn: _Turn, subtask: ReadySubtask) -> bool:
        waited_s = turn.view.now - self._queued_at_s[subtask.key]
        return waited_s > self._patience * turn.view.estimates.run_s(subtask.row, Device.GPU)


class _Turn:
    """One call: what is left of the node, and what was computed for it."""

    def __init__(self, view: NodeView, caps: Caps, score: CoRunScore) -> None:
        self.view = view
        self.free = Tentative(view, caps)
        self._score = score
        self._order = {subtask.key: index for index, subtask in enumerate(view.ready)}
        self._speedups: dict[Row, float] = {}
        self._scores: dict[tuple[Row, tuple[Row, ...]], float] = {}
        self._progress: dict[tuple[Row, ...], float] = {}

    def speedup(self, subtask: ReadySubtask) -> float:
        """0 for what only a core can run, inf for what only a GPU can."""
        if Device.GPU not in subtask.devices:
            return 0.0
        if Device.CPU not in subtask.devices:
            return math.inf
        found = self._speedups.get(subtask.row)
        if found is None:
            found = self._speedups[subtask.row] = self.view.estimates.speedup(subtask.row)
        return found

    def soonest(self, subtask: ReadySubtask) -> int | None:
        """The GPU that is free first of those on which it may ever run."""
        gpus = self.free.gpus_for(subtask)
        return min(gpus, key=lambda gpu: (gpu.remaining_s, gpu.index)).index if gpus else None

    def gain(self, subtask: ReadySubtask, gpu: GpuView) -> float:
        """By how much the progress of ``gpu`` rises if ``subtask`` joins those that run there."""
        together = (*gpu.running, row_on(subtask.row, gpu))
        return self._progress_of(together) - self._progress_of(gpu.running)

    def _progress_of(self, rows: tuple[Row, ...]) -> float:
        found = self._progress.get(rows)
        if found is None:
            found = self._progress[rows] = progress(rows, self.view.estimates)
        return found

    def rank(
        self, subtask: ReadySubtask, gpu: GpuView
    ) -> tuple[float, bool, float, int, float, float, int, int]:
        """A sort key: the smallest goes first."""
        row = row_on(subtask.row, gpu)
        known = (row, gpu.running)
        score = self._scores.get(known)
        if score is None:
            score = self._score.score(row, gpu.running, self.view.estimates)
            self._scores[known] = score
        order = self._order[subtask.key]
        taken = (loss(score), bool(gpu.running), score, len(gpu.running))
        return (*taken, -self.speedup(subtask), subtask.since, order, gpu.index)
