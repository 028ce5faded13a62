"""The simulated cluster of training jobs: virtual time around the production elasticity core.

Jobs arrive, wait in a queue, start, finish one epoch after another and report each to
``hrm.core.elasticity``, which runs here as it is. Its questions are what a run stops at, so that a
policy, a person or an environment of Gymnasium may decide::

    while (view := cluster.advance()) is not None:
        cluster.decide(policy.propose(view))

A resize keeps what the present epoch has done and costs a standstill. A worker that fails takes the
epoch with it; a job at its minimum is then interrupted, and waits with its checkpoint. What is free
goes first to jobs that wait.

Source: RLPTO (Lu et al., IEEE TPDS 2023), whose cluster was one host of containers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hrm.core.elasticity.beta_rule import ElasticityPolicy, Resize
from hrm.core.elasticity.elastic_job import ElasticityView
from hrm.core.elasticity.elasticity_core import ElasticityCore
from hrm.core.elasticity.elasticity_messages import (
    ElasticCapacityChanged,
    ElasticityCommand,
    LearningRateDropped,
    SetWorkers,
    TrainingEnded,
    TrainingFlattened,
    TrainingReported,
    TrainingStarted,
    TrainingWorkersChanged,
)
from hrm.core.vocabulary.model import ApplicationId
from hrm.learn.experiment_queue import ExperimentQueue, victim
from hrm.learn.training_curves import TrainingState
from hrm.learn.training_jobs import (
    ALMOST,
    DELIVERED,
    ClusterRules,
    TrainingJob,
    TrainingOutcome,
    TrainingRun,
)

__all__ = ["SimulatedJob", "TrainingCluster", "run_policy"]

_TIER_REPORTS = 3
_ARRIVAL, _EPOCH, _FAILURE, _REPAIR = range(4)


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """A job with its state. ``resumes_at``: when its present epoch began or goes on; ``left``: the
    share of that epoch that was to be done then."""

    job: TrainingJob
    state: TrainingState
    outcome: TrainingOutcome
    workers: int = 0
    started_at: float = math.nan
    interruptions: int = 0
    resumes_at: float = 0.0
    left: float = 1.0
    changed_at: float = 0.0
    version: int = 0
    slot: int = -1
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def priority(self) -> int:
        return self.job.priority


class TrainingCluster:
    """See the module.

    Args:
        jobs: in the order of their submission, where they arrive at the same time.
        core: a new one.
        seed: of standstills and failures, which are the same for every policy as far as that goes.
    """

    def __init__(
        self, jobs: Sequence[TrainingJob], rules: ClusterRules, core: ElasticityCore, seed: int = 0
    ) -> None:
        self.rules = rules
        self.core = core
        self.now = 0.0
        self.jobs = {
            job.job_id: SimulatedJob(
                job, TrainingState(job.curve), TrainingOutcome(job=job),
                rng=np.random.default_rng([seed, number]),
            )
            for number, job in enumerate(jobs)
        }  # fmt: skip
        self.running: dict[ApplicationId, SimulatedJob] = {}
        self.broken = 0
        self.log: list[tuple[float, ApplicationId, int]] = []
        """Time, job and workers after each change of them; 0: it ended or was interrupted."""
        self._left = len(self.jobs)
        self._queue: ExperimentQueue[SimulatedJob] = ExperimentQueue(by_priority=rules.by_priority)
        self._slots = dict(enumerate(rules.slots))
        self._events: list[tuple[float, int, int, SimulatedJob | None, int]] = []
        self._order = 0
        self._rng = np.random.default_rng([seed, len(self.jobs), 0xFA11])
        for held in self.jobs.values():
            self._at(held.job.arrives, _ARRIVAL, held)
        self._next_failure()

    @property
    def free(self) -> int:
        return self.rules.workers - self.broken - sum(x.workers for x in self.running.values())

    @property
    def waiting(self) -> list[SimulatedJob]:
        """The jobs that wait, the next one first."""
        return list(self._queue.jobs())

    def advance(self) -> ElasticityView | None:
        """Let time pass until the core asks something; None: all jobs have completed."""
        while self._left:
            view = self.core.question()
            if view is not None:
                return view
            self._settle()
            view = self.core.question()
            if view is not None:
                return view
            if not self._left:
                break
            self._pass_time()
        return None

    def epoch_share(self, held: SimulatedJob) -> float:
        """How much of its present epoch ``held`` has done, 0..1."""
        if not held.workers:
            return 0.0
        whole_s = held.job.curve.seconds(held.workers)
        done = (self.now - held.resumes_at) / whole_s
        return min(1.0, 1.0 - held.left + max(0.0, done))

    def decide(self, wanted: Resize | None) -> None:
        """The policy's decision on the view that ``advance`` has returned."""
        self._carry_out(self.core.decide(wanted))

    def result(self) -> TrainingRun:
        """Of a run that is over."""
        return TrainingRun([x.outcome for x in self.jobs.values()], self.core.rejected)

    def _pass_time(self) -> None:
        time, _, kind, held, version = heapq.heappop(self._events)
        self.now = max(self.now, time)
        if kind == _FAILURE:
            self._fail()
        elif kind == _REPAIR:
            self.broken -= 1
            self._capacity()
        elif held is not None and kind == _ARRIVAL:
            self._queue.add(held)
            # What arrives at the same time is queued before any of it starts.
            while self._events and self._events[0][0] == time and self._events[0][2] == _ARRIVAL:
                other = heapq.heappop(self._events)[3]
                assert other is not None
                self._queue.add(other)
        elif held is not None and held.version == version:
            self._end_epoch(held)

    def _at(self, time: float, kind: int, held: SimulatedJob | None, version: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, kind, held, version))

    def _settle(self) -> None:
        """Start waiting jobs on what is free; the highest may interrupt others."""
        while len(self._queue):
            first = self._queue.jobs()[0]
            given = self._offer(first)
            if not given:
                # In the order of submission nothing goes before anything else.
                able = list(self.running.values()) if self.rules.by_priority else []
                lower = victim(first, able)
                if lower is None:
                    return
                self._interrupt(lower)
                given = self._offer(first)
                if not given:
                    return
            popped = self._queue.pop()
            assert popped is first, "what may interrupt others stands first"
            self._start(first, given)

    def _offer(self, held: SimulatedJob) -> int:
        """Workers that ``held`` could start with now; 0: it has to wait."""
        if self.rules.slots:
            able = [s for s, size in self._slots.items() if size <= self.free]
            if not able:
                return 0
            held.slot = able[0]
            return self.rules.slots[held.slot]
        if 0 < self.rules.running_max <= len(self.running):
            return 0
        limit = self.rules.running_max
        part = math.ceil(self.rules.workers / limit) if limit else self.rules.workers
        given = min(held.job.workers_max, self.free, part)
        return given if given >= held.job.workers_min else 0

    def _start(self, held: SimulatedJob, workers: int) -> None:
        least, most = held.job.workers_min, held.job.workers_max
        if held.slot >= 0:
            del self._slots[held.slot]
            least = most = workers
        job = held.job
        held.started_at = self.now
        if math.isnan(held.outcome.started):
            held.outcome.started = self.now
        self.running[job.job_id] = held
        self._hold(held, workers)
        held.left, held.resumes_at = 1.0, self.now
        self._schedule(held)
        self.core.started(
            TrainingStarted(
                now=self.now, job_id=job.job_id, workers=workers, workers_min=least,
                workers_max=most, epochs_max=job.curve.epochs_max, beta=job.beta,
                points=job.points, scale=job.scale, tenant=job.tenant,
            )
        )  # fmt: skip
        self._capacity()

    def _hold(self, held: SimulatedJob, workers: int) -> None:
        held.outcome.node_s += held.workers * (self.now - held.changed_at)
        held.workers, held.changed_at = workers, self.now
        self.log.append((self.now, held.job.job_id, workers))

    def _schedule(self, held: SimulatedJob) -> None:
        held.version += 1
        ends = held.resumes_at + held.left * held.job.curve.seconds(held.workers)
        self._at(ends, _EPOCH, held, held.version)

    def _capacity(self) -> None:
        free, waiting = self.free, len(self._queue)
        self.core.capacity_changed(
            ElasticCapacityChanged(now=self.now, free=max(0, free), waiting=waiting)
        )

    def _end_epoch(self, held: SimulatedJob) -> None:
        job, outcome = held.job, held.outcome
        whole_s = job.curve.seconds(held.workers)
        loss, observed = held.state.run_epoch(held.workers)
        final = job.curve.final
        if math.isnan(outcome.almost) and held.state.accuracy >= ALMOST * final:
            outcome.almost = self.now
        if math.isnan(outcome.delivered) and held.state.accuracy >= DELIVERED * final:
            outcome.delivered = self.now
        epoch = held.state.epoch
        held.left, held.resumes_at = 1.0, self.now
        if epoch < job.curve.epochs_max:
            self._schedule(held)
        self.core.free, self.core.waiting = max(0, self.free), len(self._queue)
        commands = self.core.reported(
            TrainingReported(
                now=self.now, sender=job.job_id, job_id=job.job_id, epoch=epoch, loss=loss,
                accuracy=observed, seconds=whole_s,
            )
        )  # fmt: skip
        if epoch in job.curve.drops and job.curve.announced:
            self.core.learning_rate_dropped(LearningRateDropped(now=self.now, job_id=job.job_id))
        flat = any(isinstance(each, TrainingFlattened) for each in commands)
        stops = flat and self.rules.stops_flat
        if epoch >= job.curve.epochs_max or stops or self._reaches_last_tier(held):
            self._complete(held)

    def _reaches_last_tier(self, held: SimulatedJob) -> bool:
        """By the mean of the latest reports, for one may be too high by chance."""
        if self.rules.tiers is None:
            return False
        latest = self.core.jobs[held.job.job_id].history[-_TIER_REPORTS:]
        first, last = self.rules.tiers[held.job.scale]
        reached = sum(sample.accuracy for sample in latest) / _TIER_REPORTS
        if reached >= first and math.isnan(held.outcome.handed_over):
            held.outcome.handed_over = self.now
        return reached >= last

    def _complete(self, held: SimulatedJob) -> None:
        self._leave(held)
        outcome = held.outcome
        outcome.completed = self.now
        outcome.accuracy = held.state.accuracy
        outcome.interruptions = held.interruptions
        for name in ("almost", "delivered"):
            if math.isnan(getattr(outcome, name)):
                setattr(outcome, name, self.now)
        self._left -= 1
        self._settle()
        self._capacity()

    def _leave(self, held: SimulatedJob) -> None:
        self._hold(held, 0)
        held.version += 1
        del self.running[held.job.job_id]
        if held.slot >= 0:
            self._slots[held.slot] = self.rules.slots[held.slot]
            self._slots = dict(sorted(self._slots.items()))
            held.slot = -1
        self.core.ended(TrainingEnded(now=self.now, job_id=held.job.job_id))

    def _interrupt(self, held: SimulatedJob) -> None:
        """It waits with its last checkpoint, that of its last epoch."""
        held.interruptions += 1
        self._leave(held)
        self._queue.add(held, interrupted=True)

    def _carry_out(self, commands: Sequence[ElasticityCommand]) -> None:
        for command in commands:
            if isinstance(command, SetWorkers):
                held = self.running[command.job_id]
                self._resize(held, command.workers, self._standstill_s(held))
                held.outcome.resizes += 1

    def _standstill_s(self, held: SimulatedJob) -> float:
        return float(held.rng.uniform(*self.rules.resize_s))

    def _resize(self, held: SimulatedJob, workers: int, pause_s: float) -> None:
        whole_s = held.job.curve.seconds(held.workers)
        done = max(0.0, self.now - held.resumes_at) / whole_s
        held.left = max(0.0, held.left - done)
        held.resumes_at = max(self.now, held.resumes_at) + pause_s
        self._hold(held, workers)
        self._schedule(held)

    def _next_failure(self) -> None:
        rate = self.rules.failures_per_hour / 3600.0
        if rate > 0.0:
            self._at(self.now + float(self._rng.exponential(1.0 / rate)), _FAILURE, None)

    def _fail(self) -> None:
        """A worker, drawn from all that are up, is away for a while."""
        self._next_failure()
        draw = float(self._rng.random())
        if self.broken >= self.rules.workers - max(self.rules.slots or (1,)):
            return
        place = int(draw * (self.rules.workers - self.broken))
        self.broken += 1
        self._at(self.now + self.rules.repair_s, _REPAIR, None)
        for held in list(self.running.values()):
            place -= held.workers
            if place < 0:
                self._lose_worker(held)
                break
        self._settle()
        self._capacity()

    def _lose_worker(self, held: SimulatedJob) -> None:
        least = held.workers if held.slot >= 0 else held.job.workers_min
        if held.workers <= least:
            self._interrupt(held)
            return
        held.left, held.resumes_at = 1.0, self.now
        self._resize(held, held.workers - 1, self._standstill_s(held))
        self.core.workers_changed(
            TrainingWorkersChanged(now=self.now, job_id=held.job.job_id, workers=held.workers)
        )


def run_policy(cluster: TrainingCluster, policy: ElasticityPolicy) -> TrainingRun:
    """A whole run with ``policy``."""
    while (view := cluster.advance()) is not None:
        cluster.decide(policy.propose(view))
    return cluster.result()
