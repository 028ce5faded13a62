"""Decides how many workers each training job is to have: a machine without IO.

Reports go in, each checked; a policy proposes some workers more or one less for one job, again and
again until it is content, and each proposal is held against the limits before it counts; targets
come out. What never happens, whatever a policy proposes: a job below its minimum or above its
maximum, one that grows beyond what is free, two resizes of one job between two of its reports, more
than ``resizes_per_minute`` in the cluster, and any resize of a job that has not reported enough, or
no longer does.

The live daemons and the simulator of training jobs run this code as it is.

Source: RLPTO (Lu et al., IEEE TPDS 2023), section 3.3, turned from polling into events.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hrm.core.elasticity.accuracy_trend import AccuracyTrend, SlopeTrend
from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import ElasticityView, ElasticJob, ElasticJobView
from hrm.core.elasticity.elasticity_messages import (
    ElasticCapacityChanged,
    ElasticityCommand,
    LearningRateDropped,
    RefuseReport,
    ReportProblem,
    SetWorkers,
    TrainingEnded,
    TrainingFlattened,
    TrainingReported,
    TrainingStarted,
    TrainingWorkersChanged,
)
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import InvalidRequest

__all__ = ["ElasticityCore", "ElasticitySettings"]

MINUTE_S = 60.0
COSTS = 8
"""What a resize costs is the median of so many at most, the latest..."""
COSTS_MIN = 3
"""... and is not known before so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticitySettings:
    """The bounds of the core."""

    warm_reports: int = 8
    """Reports before a job may be resized."""
    flat_reports: int = 3
    """Converging reports in a row after which a job counts as flat."""
    flat_at_minimum: bool = True
    """Whether only those count in which it had its minimum of workers."""
    resizes_per_minute: int = 60
    """Of all jobs together."""
    silence_epochs: float = 10.0
    """A job that has not reported for so many times its last epoch is not resized..."""
    silence_s: float = 120.0
    """... but not before so many seconds."""


class _Asking(NamedTuple):
    """A moment in which the policy may decide: after a report of ``reporter``, or of capacity."""

    now: float
    reporter: ApplicationId | None
    steps: int


class ElasticityCore:
    """See the module. An interpreter passes each event, carries out the commands, and then lets a
    policy decide until there is no question left::

        commands = core.reported(event)
        while (view := core.question()) is not None:
            commands += core.decide(policy.propose(view))

    Args:
        trend: makes the estimate of a new job's change of accuracy.
    """

    def __init__(
        self,
        settings: ElasticitySettings | None = None,
        trend: Callable[[], AccuracyTrend] = SlopeTrend,
    ) -> None:
        self.settings = ElasticitySettings() if settings is None else settings
        self.jobs: dict[ApplicationId, ElasticJob] = {}
        self.free = 0
        self.waiting = 0
        self.servers: frozenset[ApplicationId] | None = None
        self.rejected = 0
        """Proposals that broke a limit."""
        self._lost_s = {grows: deque[float](maxlen=COSTS) for grows in (True, False)}
        """By whether jobs grew: what that cost them lately."""
        self._trend = trend
        self._resized_at: deque[float] = deque()
        self._asking: _Asking | None = None
        self._view: ElasticityView | None = None

    def started(self, event: TrainingStarted) -> None:
        """Take in a job; one that was interrupted starts again with a new trend.

        Raises:
            InvalidRequest: its limits contradict each other, or its beta is no number above 0.
        """
        least, most = event.workers_min, event.workers_max
        if not 1 <= least <= event.workers <= most:
            raise InvalidRequest(
                f"{event.job_id} has {event.workers} workers and may have {least} to {most}: give "
                f"1 <= minimum <= workers <= maximum"
            )
        if not 0.0 < event.beta < math.inf or event.epochs_max < 1:
            raise InvalidRequest(
                f"{event.job_id} has beta {event.beta} and {event.epochs_max} epochs: give a beta "
                f"above 0 and at least 1 epoch"
            )
        self.jobs[event.job_id] = ElasticJob(event, self._trend())

    def ended(self, event: TrainingEnded) -> None:
        self.jobs.pop(event.job_id, None)
        self._asking = None

    def workers_changed(self, event: TrainingWorkersChanged) -> None:
        """What a job holds now is its target from now on."""
        job = self.jobs.get(event.job_id)
        if job is not None:
            job.workers = event.workers
            if event.limits is not None:
                least, most = event.limits
                job.about = replace(job.about, workers_min=least, workers_max=most)
            self._asking = None

    def learning_rate_dropped(self, event: LearningRateDropped) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None:
            job.restart_trend(self._trend())
            self._asking = None

    def capacity_changed(self, event: ElasticCapacityChanged) -> None:
        """What is free now; what no waiting job takes may go to running ones."""
        self.free, self.waiting, self.servers = event.free, event.waiting, event.servers
        self._asking = _Asking(event.now, None, 0) if self.free and not self.waiting else None

    def reported(self, event: TrainingReported) -> list[ElasticityCommand]:
        """Take in a report; whether it counts, and whether its job is flat."""
        job = self.jobs.get(event.job_id)
        if job is None:
            detail = f"{event.job_id} does not run here as an elastic training job"
            problem = ReportProblem.UNKNOWN_JOB
            return [RefuseReport(job_id=event.job_id, problem=problem, detail=detail)]
        found = job.problem_of(event)
        if found is not None:
            return [RefuseReport(job_id=event.job_id, problem=found[0], detail=found[1])]
        job.accept(event, self.settings.warm_reports)
        self._learn_cost(job)
        self._asking = _Asking(event.now, event.job_id, 0)
        below = job.below_at_minimum if self.settings.flat_at_minimum else job.below
        if below < self.settings.flat_reports:
            return []
        return [TrainingFlattened(job_id=event.job_id)]

    def _learn_cost(self, job: ElasticJob) -> None:
        lost = job.lost_s()
        if lost is not None:
            grows, seconds = lost
            self._lost_s[grows].append(seconds)

    def question(self) -> ElasticityView | None:
        """What the policy is to decide next; None: nothing, until another event.

        A moment ends when the policy proposes nothing, proposes what may not be, or has changed as
        many jobs as there are.
        """
        self._view = None
        if self._asking is not None and self._asking.steps <= len(self.jobs):
            view = self.view(*self._asking)
            if any(job.may_grow or job.may_shrink for job in view.jobs):
                self._view = view
        return self._view

    def decide(self, wanted: Resize | None, why: str = "") -> list[ElasticityCommand]:
        """The policy's decision on the last question."""
        view, asking = self._view, self._asking
        assert view is not None and asking is not None, "there is no question"
        self._asking = None
        if wanted is None:
            return []
        if not _allows(view, wanted):
            self.rejected += 1
            return []
        job = self.jobs[view.jobs[wanted.place].job_id]
        job.resize(job.workers + wanted.delta)
        self.free -= wanted.delta
        self._resized_at.append(view.now)
        self._asking = asking._replace(steps=asking.steps + 1)
        return [SetWorkers(job_id=job.about.job_id, workers=job.workers, why=why)]

    def is_silent(self, job_id: ApplicationId, now: float) -> bool:
        """Whether a job has not reported for so long that it may have stopped training."""
        job = self.jobs[job_id]
        epoch_s = job.history[-1].seconds if job.history else 0.0
        limit_s = max(self.settings.silence_s, self.settings.silence_epochs * epoch_s)
        return now - job.reported_at > limit_s

    def view(self, now: float, reporter: ApplicationId | None, steps: int = 0) -> ElasticityView:
        """What a policy sees now."""
        recent = self._resized_at
        while recent and recent[0] <= now - MINUTE_S:
            recent.popleft()
        open_now = len(recent) < self.settings.resizes_per_minute
        place = None
        views = []
        for number, (job_id, job) in enumerate(self.jobs.items()):
            if job_id == reporter:
                place = number
            views.append(self._job_view(job, now, open_now))
        total = self.free + sum(job.workers for job in self.jobs.values())
        grow_s, shrink_s = (
            statistics.median(lost) if len(lost) >= COSTS_MIN else math.nan
            for lost in (self._lost_s[True], self._lost_s[False])
        )
        return ElasticityView(
            now, tuple(views), place, self.free, self.waiting, total, steps, grow_s, shrink_s
        )

    def _job_view(self, job: ElasticJob, now: float, open_now: bool) -> ElasticJobView:
        about, workers = job.about, job.workers
        warm = job.reports >= self.settings.warm_reports
        last = job.history[-1] if job.history else None
        silent = self.is_silent(job.about.job_id, now)
        may = open_now and warm and last is not None and not job.resized and not silent
        return ElasticJobView(
            about.job_id,
            workers,
            about.workers_min,
            about.workers_max,
            0 if last is None else last.epoch,
            about.epochs_max,
            math.nan if last is None else last.loss,
            job.loss_max,
            math.nan if last is None else last.accuracy,
            job.trend.change,
            about.beta,
            math.nan if last is None else last.seconds,
            0.0 if last is None else last.seconds * last.workers,
            job.since_resize,
            job.below,
            warm,
            about.points,
            about.scale,
            about.tenant,
            may and self.free > 0 and workers < about.workers_max,
            may and workers > about.workers_min,
            job.history,
            job.paces,
            silent,
            self.servers is None or about.job_id in self.servers,
        )


def _allows(view: ElasticityView, wanted: Resize) -> bool:
    if not 0 <= wanted.place < len(view.jobs):
        return False
    job = view.jobs[wanted.place]
    if wanted.delta < 1:
        return wanted.delta == -1 and job.may_shrink
    return job.may_grow and wanted.delta <= min(view.free, job.workers_max - job.workers)
