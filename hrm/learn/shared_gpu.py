"""One GPU and the jobs that share it, in ticks: what the policies of ``shared_gpu`` are tried on.

Policies know a job by its *believed* profile; it runs by its *true* one. How fast each of several
jobs is, a ``GpuInterference`` says. Where their memory exceeds the card's, the job that allocated
last fails: it starts again from nothing, with a quarter more memory believed; after two such
failures it runs alone. Time stands still while jobs are started.

No clock and no chance here: a run follows from jobs, world, rule and decisions.

Source: DqnGPU, sections 3 and 4; where it is silent, the choices are named below.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hrm.errors import InvalidConfig
from hrm.policies.shared_gpu.heuristics import GpuSharingView, WaitingGpuJob
from hrm.policies.shared_gpu.interference import GpuInterference, KnownPairs, PairFactors
from hrm.policies.shared_gpu.profiles import (
    MEMORY,
    Bits,
    CapacityRule,
    Floats,
    GpuUseProfile,
    ProfileTable,
)

__all__ = [
    "DrawJobs",
    "GpuEpisode",
    "GpuRun",
    "JobRecord",
    "SharedGpu",
    "SimulatedGpuJob",
]

STEP_LIMIT = 2_000
GROWTH = 1.25
FAILURES_MAX = 2
_DONE = 1e-9


@dataclass(frozen=True, slots=True)
class SimulatedGpuJob:
    """``kind``: the row of ``PairFactors``. ``arrives``: tick."""

    name: str
    kind: int
    true: GpuUseProfile
    believed: GpuUseProfile
    arrives: int = 0


class GpuEpisode(NamedTuple):
    """Jobs for one GPU. ``known``: the slowdowns of pairs that policies are given, if any."""

    jobs: Sequence[SimulatedGpuJob]
    world: GpuInterference
    known: PairFactors | None = None


DrawJobs = Callable[[int], GpuEpisode]
"""From its seed."""


@dataclass(slots=True)
class JobRecord:
    """What became of one job: ticks, those of ``started`` and ``ended`` for its last attempt."""

    started: int = -1
    ended: float = math.nan
    failures: int = 0
    lost: float = 0.0
    """Ticks of work that failures threw away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRun:
    """The outcome of a run, in ticks and shares; one record for each job, in their order.

    ``slowdowns``: of each job from its last start, its time over its time alone. ``response``: of
    each, from its arrival. ``busy``: ticks with a job. ``used``: (4,), mean over the makespan.
    """

    makespan: float
    slowdowns: Floats
    response: Floats
    failures: int
    lost: float
    busy: int
    used: Floats
    memory_peak: float
    work: float
    records: tuple[JobRecord, ...]


@dataclass(slots=True)
class _Running:
    job: int
    true: GpuUseProfile
    believed: GpuUseProfile
    kind: int
    done: float = 0.0
    memory: float = 0.0
    alone: bool = False


@dataclass(slots=True)
class _Waiting:
    job: int
    believed: GpuUseProfile
    row: int
    alone: bool = False


class SharedGpu:
    """The state of a run. Call ``start`` any number of times, then ``advance``, until ``over``."""

    def __init__(
        self,
        jobs: Sequence[SimulatedGpuJob],
        world: GpuInterference,
        rule: CapacityRule,
        *,
        known: PairFactors | None = None,
    ) -> None:
        """``known``: the slowdowns of pairs that policies are given, which may not be the true
        ones.

        Raises:
            InvalidConfig: there are no jobs, or one does not fit the card alone.
        """
        if not jobs:
            raise InvalidConfig("a run on a shared GPU needs at least one job")
        large = [one.name for one in jobs if one.true.peak[MEMORY] > 1.0]
        if large:
            raise InvalidConfig(
                f"job {large[0]!r} needs more memory than the card has; leave it out, or name a "
                f"larger card"
            )
        self.jobs = tuple(jobs)
        self.rule = rule
        self.tick = 0
        self.records = tuple(JobRecord() for _ in jobs)
        self.last_arrival = 0
        self._world = world
        self._running: list[_Running] = []
        self._waiting: list[_Waiting] = []
        self._coming = sorted(range(len(jobs)), key=lambda n: (jobs[n].arrives, n), reverse=True)
        self._busy = 0
        self._worked = 0.0
        self._used = np.zeros(4)
        self._memory_peak = 0.0
        self._left = len(jobs)
        self._failed = False
        self._view: GpuSharingView | None = None
        places = {id(one.believed): one.believed for one in jobs}
        self._table = ProfileTable(list(places.values()))
        rows = {key: row for row, key in enumerate(places)}
        self._rows = [rows[id(one.believed)] for one in jobs]
        self._known = known
        self._queue_changed()
        self._arrive()

    @property
    def over(self) -> bool:
        """All jobs have ended, or the step limit is reached (``truncated``)."""
        return self._left == 0 or self.truncated

    @property
    def truncated(self) -> bool:
        return self._left > 0 and self.tick >= STEP_LIMIT

    @property
    def saved(self) -> float:
        """Work done so far, less the ticks that passed."""
        return self._worked - self.tick

    def view(self) -> GpuSharingView:
        """What policies see now: believed profiles, and who fits."""
        if self._view is None:
            running = [(one.believed, min(int(one.done + _DONE), len(one.believed) - 1))
                       for one in self._running]  # fmt: skip
            fits = self._fits(running)
            pairs = self._known_pairs() if fits.any() else None
            self._view = GpuSharingView(
                now=self.tick,
                running=running,
                waiting=self._seen,
                fits=fits,
                rule=self.rule,
                pace=None if pairs is None else pairs.pace(),
                pairs=pairs,
                progress=[one.done for one in self._running],
            )
        return self._view

    @property
    def has_fitting(self) -> bool:
        """Some waiting job could start now."""
        if not self._waiting:
            return False
        return bool(self.view().fits.any())

    def start(self, place: int) -> None:
        """Start the waiting job at ``place``; it must fit."""
        assert self.view().fits[place], "a job was started that does not fit"
        one = self._waiting.pop(place)
        self._queue_changed()
        job = self.jobs[one.job]
        self.records[one.job].started = self.tick
        self._running.append(_Running(one.job, job.true, one.believed, job.kind, alone=one.alone))
        self._view = None

    def copy(self) -> SharedGpu:
        """The same state, to be continued differently. Jobs and profiles are shared."""
        other = copy.copy(self)
        other.records = tuple(copy.copy(record) for record in self.records)
        other._running = [copy.copy(one) for one in self._running]
        other._waiting = list(self._waiting)
        other._coming = list(self._coming)
        other._used = self._used.copy()
        return other

    def advance(self) -> float:
        """Let one tick pass; returns the work done in it, in ticks of a job alone."""
        running = self._running
        work = 0.0
        if running:
            uses = np.array([one.true.uses[int(one.done + _DONE)] for one in running])
            if len(running) > 1 and uses[:, MEMORY].sum() > 1.0 + _DONE:
                uses = self._fail(uses)
                running = self._running
            total = uses.sum(axis=0)
            self._memory_peak = max(self._memory_peak, float(total[MEMORY]))
            self._busy += 1
            self._used += np.minimum(total, 1.0)
            speeds = self._world.speeds([one.kind for one in running], uses)
            for one, use, speed in zip(running, uses, speeds, strict=True):
                left = len(one.true) - one.done
                done = min(left, speed)
                work += done
                one.memory = float(use[MEMORY])
                one.done += done
                if left - done <= _DONE:
                    self.records[one.job].ended = self.tick + left / speed
                    self._left -= 1
            self._running = [one for one in running if one.done < len(one.true) - _DONE]
        self.tick += 1
        self._worked += work
        self._arrive()
        self._view = None
        return work

    def result(self) -> GpuRun:
        """The run's outcome; a job that a truncated run did not end has ended at its last tick."""
        ends = np.array([self.tick if math.isnan(r.ended) else r.ended for r in self.records])
        lengths = np.array([len(one.true) for one in self.jobs], dtype=float)
        started = np.array([float(r.started) for r in self.records])
        arrived = np.array([float(one.arrives) for one in self.jobs])
        makespan = float(ends.max())
        return GpuRun(
            makespan=makespan,
            slowdowns=(ends - started) / lengths,
            response=(ends - arrived) / lengths,
            failures=sum(r.failures for r in self.records),
            lost=sum(r.lost for r in self.records),
            busy=self._busy,
            used=self._used / makespan,
            memory_peak=self._memory_peak,
            work=float(lengths.sum()),
            records=self.records,
        )

    def _fits(self, running: Sequence[tuple[GpuUseProfile, int]]) -> Bits:
        """By place of ``_waiting``. Profiles that several jobs share are tested once."""
        if any(one.alone for one in self._running):
            return np.zeros(len(self._waiting), dtype=np.bool_)
        of_profile = self.rule.fitting(running, self._table)
        fits: Bits = of_profile[self._waiting_rows]
        if running and self._failed:
            fits &= np.array([not one.alone for one in self._waiting], dtype=np.bool_)
        return fits

    def _known_pairs(self) -> KnownPairs | None:
        if self._known is None:
            return None
        running = [one.kind for one in self._running]
        waiting = [self.jobs[one.job].kind for one in self._waiting]
        return KnownPairs(self._known, running, waiting)

    def _fail(self, uses: Floats) -> Floats:
        """End those that allocated last until the memory of the rest fits."""
        while uses[:, MEMORY].sum() > 1.0 + _DONE:
            growing = [place for place, one in enumerate(self._running)
                       if uses[place, MEMORY] > one.memory + _DONE]  # fmt: skip
            # Of several that grow, the one that was started last.
            place = growing[-1] if growing else len(self._running) - 1
            one = self._running.pop(place)
            uses = np.delete(uses, place, axis=0)
            record = self.records[one.job]
            record.failures += 1
            record.lost += one.done
            self._worked -= one.done
            more = one.believed.uses.copy()
            more[:, MEMORY] = np.minimum(more[:, MEMORY] * GROWTH, 1.0)
            profile = GpuUseProfile(more)
            self._table = ProfileTable([*self._table.profiles, profile])
            row = len(self._table.profiles) - 1
            alone = record.failures >= FAILURES_MAX
            self._waiting.insert(0, _Waiting(one.job, profile, row, alone))
            self._failed = True
            self._queue_changed()
        return uses

    def _queue_changed(self) -> None:
        self._seen = tuple(
            WaitingGpuJob(one.job, one.believed, self.jobs[one.job].arrives)
            for one in self._waiting
        )
        self._waiting_rows = np.array([one.row for one in self._waiting], dtype=np.int64)

    def _arrive(self) -> None:
        while self._coming and self.jobs[self._coming[-1]].arrives <= self.tick:
            job = self._coming.pop()
            self._waiting.append(_Waiting(job, self.jobs[job].believed, self._rows[job]))
            self.last_arrival = self.tick
            self._queue_changed()
