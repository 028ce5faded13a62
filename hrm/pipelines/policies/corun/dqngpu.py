"""Which ready subtasks share a GPU, by what each uses of it over its life.

The question of the DqnGPU paper, for the GPUs of one node: a ``GpuSharingPolicy`` of
``hrm.policies.shared_gpu`` names one waiting subtask after another that starts now, or waits, and
what may run together is the ``CapacityRule`` of its profiles in every tick ahead.

Offered are subtasks that a GPU runs at least as fast as a core does. One without a profile takes a
GPU that is idle, alone, which records it; until it ends, nothing joins it. What was alone twice
without leaving a profile (runs are too short, or the driver reports nothing) is taken to use
throughout what the node estimates of it. A core takes what a GPU would not end sooner, the smallest
speed-up first, as ``iawp`` with its tail guard.

Ticks are those of ``tick_of_runs``. How much pairs slow each other down follows from the node's
estimates, which learn it from co-runs.

Source: DqnGPU (Oh and Kim, Cluster Computing 2020), sections 3 and 4; where a run stands is taken
as if it had been alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.pipelines.core.feasibility import CAPS, Caps
from hrm.pipelines.core.model import (
    CO_RUN_FEATURES,
    Device,
    Estimates,
    GpuView,
    NodeView,
    ReadySubtask,
    Row,
    StartDecision,
)
from hrm.pipelines.policies.corun.scores import pair_excess
from hrm.pipelines.policies.corun.tentative import Tentative, row_on
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy, GpuSharingView, WaitingGpuJob
from hrm.policies.shared_gpu.interference import KnownPairs, SummedExcess
from hrm.policies.shared_gpu.profiles import CapacityRule, GpuUseProfile, ProfileTable
from hrm.policies.shared_gpu.recorded_use import profile_of, tick_of_runs

__all__ = ["DqnGpu"]

_RUNS_TRIED = 2
_SM = CO_RUN_FEATURES.index("sm")


class DqnGpu:
    """One object for each node; it keeps nothing between calls."""

    name = "dqngpu"

    def __init__(
        self,
        *,
        rng: np.random.Generator,
        sharing: GpuSharingPolicy,
        caps: Caps = CAPS,
        rule: CapacityRule | None = None,
    ) -> None:
        self._sharing = sharing
        self._caps = caps
        self._rule = CapacityRule() if rule is None else rule

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        """See ``NodePolicy``."""
        free = Tentative(view, self._caps)
        pairs: dict[str, _RowPairs] = {}
        for gpu in view.gpus:
            if gpu.model not in pairs:
                alike = [one for one in view.gpus if one.model == gpu.model]
                rows = [row for one in alike for row in one.running]
                rows += [row_on(one.row, gpu) for one in view.ready if self._is_faster(view, one)]
                pairs[gpu.model] = _RowPairs(view.estimates, rows)
            self._share(view, free, gpu.index, pairs[gpu.model])
        self._fill_cores(view, free)
        return free.starts

    def _share(self, view: NodeView, free: Tentative, number: int, pairs: _RowPairs) -> None:
        """Start on one GPU what its policy names, until it waits."""
        while True:
            gpu = next(one for one in free.gpus if one.index == number)
            if not all(self._use(view.estimates, row) for row in gpu.running):
                return
            faster = [one for one in free.left() if self._is_faster(view, one)]
            fitting = [one for one in faster if free.fits(one, Device.GPU, number)]
            known = [one for one in fitting if self._use(view.estimates, row_on(one.row, gpu))]
            chosen = self._named(view, gpu, known, pairs) if known else None
            if chosen is None and not gpu.running:
                chosen = next((one for one in fitting if one not in known), None)
            if chosen is None:
                return
            free.take(chosen, Device.GPU, number)

    @staticmethod
    def _use(estimates: Estimates, row: Row) -> tuple[GpuUsePart, ...]:
        """Recorded, or estimated once there is no hope of a record; empty: still to be recorded."""
        recorded = estimates.gpu_use(row)
        if recorded or estimates.runs_alone(row) < _RUNS_TRIED:
            return recorded
        load = min(1.0, max(0.0, float(estimates.gpu_features(row)[_SM])))
        return (GpuUsePart(load, estimates.gpu_memory_mib(row), load, 0.0),) * USE_PARTS

    @staticmethod
    def _is_faster(view: NodeView, subtask: ReadySubtask) -> bool:
        if Device.GPU not in subtask.devices:
            return False
        return Device.CPU not in subtask.devices or view.estimates.speedup(subtask.row) >= 1.0

    def _named(
        self,
        view: NodeView,
        gpu: GpuView,
        candidates: Sequence[ReadySubtask],
        expected: _RowPairs,
    ) -> ReadySubtask | None:
        """The next of ``candidates``, all of which have profiles and fit by their peaks."""
        estimates = view.estimates
        rows = [row_on(one.row, gpu) for one in candidates]
        tick_s = _tick_s(estimates, (*gpu.running, *rows))
        profiles = [self._profile(estimates, row, gpu, tick_s) for row in rows]
        unknown = len(gpu.running) - len(gpu.elapsed_s)
        elapsed_s = (*(0.0,) * unknown, *gpu.elapsed_s)
        progress = [since_s / tick_s for since_s in elapsed_s]
        running = [
            (profile := self._profile(estimates, row, gpu, tick_s),
             min(int(ticks), len(profile) - 1))
            for row, ticks in zip(gpu.running, progress, strict=True)
        ]  # fmt: skip
        fits = self._rule.fitting(running, ProfileTable(profiles))
        if not fits.any():
            return None
        waiting = [
            WaitingGpuJob(number, profile, int(one.since / tick_s))
            for number, (one, profile) in enumerate(zip(candidates, profiles, strict=True))
        ]
        pairs = expected.known(gpu.running, rows)
        place = self._sharing.choose(
            GpuSharingView(
                now=int(view.now / tick_s),
                running=running,
                waiting=waiting,
                fits=fits,
                rule=self._rule,
                pace=pairs.pace(),
                pairs=pairs,
                progress=progress,
                together_max=self._caps.co_runners_max,
            )
        )
        return None if place is None else candidates[place]

    def _profile(
        self, estimates: Estimates, row: Row, gpu: GpuView, tick_s: float
    ) -> GpuUseProfile:
        offered_mib = self._caps.gpu_memory_share * gpu.memory_mib
        run_s = estimates.run_s(row, Device.GPU)
        use = self._use(estimates, row)
        return profile_of(use, run_s, tick_s, offered_mib)

    def _fill_cores(self, view: NodeView, free: Tentative) -> None:
        speedup = view.estimates.speedup
        left = sorted(free.left(), key=lambda one: speedup(one.row))
        for place, subtask in enumerate(left):
            if not free.idle_cores:
                return
            ahead = [one for one in left[place + 1 :] if Device.GPU in one.devices]
            if not self._is_sooner_on_gpu(view, free, subtask, ahead):
                free.take_core(subtask)

    @staticmethod
    def _is_sooner_on_gpu(
        view: NodeView, free: Tentative, subtask: ReadySubtask, ahead: Sequence[ReadySubtask]
    ) -> bool:
        """``ahead``: what a GPU speeds up more, and takes first."""
        gpus = free.gpus_for(subtask)
        if not gpus:
            return False
        gpu_s = min(
            gpu.remaining_s
            + sum(free.work_s(one.row, gpu) for one in ahead) / len(gpus)
            + view.estimates.run_s(row_on(subtask.row, gpu), Device.GPU)
            for gpu in gpus
        )
        return gpu_s < view.estimates.run_s(subtask.row, Device.CPU)


def _tick_s(estimates: Estimates, rows: Sequence[Row]) -> float:
    return tick_of_runs([estimates.run_s(row, Device.GPU) for row in rows])


class _RowPairs:
    """The slow-downs that the node expects of pairs of ``rows``, ``speeds`` of their sums; asked
    for once for all starts of a dispatch."""

    def __init__(self, estimates: Estimates, rows: Sequence[Row]) -> None:
        self._estimates = estimates
        self._number = {row: place for place, row in enumerate(dict.fromkeys(rows))}
        self._slowdowns: SummedExcess | None = None

    def known(self, running: Sequence[Row], waiting: Sequence[Row]) -> KnownPairs:
        """Of what runs and what waits, all of them among the rows."""
        if self._slowdowns is None:
            excess = [[pair_excess(victim, partner, self._estimates) for partner in self._number]
                      for victim in self._number]  # fmt: skip
            self._slowdowns = SummedExcess(np.array(excess))
        number = self._number
        return KnownPairs(
            self._slowdowns, [number[row] for row in running], [number[row] for row in waiting]
        )
