"""One training job as the elasticity core knows it, and what policies may see of it.

A job is *warm* after so many reports, *converging* while it is warm and its trend is below its
beta, and *flat* after several converging reports in a row at its minimum. None of these is final: a
learning rate that drops makes a flat job gain again, and it may grow again.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from hrm.core.elasticity.accuracy_trend import AccuracyTrend
from hrm.core.elasticity.elasticity_messages import (
    ReportProblem,
    TrainingReported,
    TrainingStarted,
)
from hrm.core.elasticity.stated_report import fraction_problem
from hrm.core.vocabulary.model import ApplicationId

__all__ = [
    "PACES_MAX",
    "PACE_REPORTS",
    "PACE_REPORTS_MIN",
    "ElasticJob",
    "ElasticJobView",
    "ElasticityView",
    "EpochSample",
    "ResizeEpochs",
]

HISTORY_MAX = 128
"""Reports of a job that policies may see, the latest."""
PACES_MAX = 16
"""Numbers of workers of a job whose epoch times are kept, the latest."""
PACE_REPORTS = 8
"""A number of workers' epoch time is the median over so many reports at most, the latest..."""
PACE_REPORTS_MIN = 3
"""... and is not known before so many."""


class EpochSample(NamedTuple):
    """One accepted report, and the workers that the job had."""

    epoch: int
    loss: float
    accuracy: float
    seconds: float
    workers: int


class ElasticJobView(NamedTuple):
    """What a policy sees of one running job.

    ``change``: the trend, fraction of accuracy per epoch; NaN at first. ``node_s``: workers times
    seconds of the last epoch. ``since_resize``: its own reports since its last resize, or since it
    started. ``below``: its latest converging reports in a row. ``may_grow``, ``may_shrink``: what
    the core would accept now. ``history``: oldest first, not to be changed. ``paces``: seconds
    of an epoch by the number of workers that ran, not of those it may have, where that is known;
    not to be changed either. ``silent``: it has not reported for so long that it is not resized.
    ``serves``: what waits, if anything does, could use its workers.
    """

    job_id: ApplicationId
    workers: int
    workers_min: int
    workers_max: int
    epoch: int
    epochs_max: int
    loss: float
    loss_max: float
    accuracy: float
    change: float
    beta: float
    seconds: float
    node_s: float
    since_resize: int
    below: int
    warm: bool
    points: float
    scale: int
    tenant: str
    may_grow: bool
    may_shrink: bool
    history: Sequence[EpochSample]
    paces: Mapping[int, float] = MappingProxyType({})
    silent: bool = False
    serves: bool = True

    @property
    def converging(self) -> bool:
        return self.warm and self.change < self.beta


class ElasticityView(NamedTuple):
    """One moment, after a report of ``reporter``, an index of ``jobs``; None: capacity changed.

    ``steps``: changes that were made in this moment already. ``grow_s``, ``shrink_s``: seconds that
    a job lost lately as it got workers, and as it gave some up; NaN: no job has yet.
    """

    now: float
    jobs: tuple[ElasticJobView, ...]
    reporter: int | None
    free: int
    waiting: int
    total: int
    steps: int
    grow_s: float = math.nan
    shrink_s: float = math.nan


class ResizeEpochs(NamedTuple):
    """The epochs from one number of workers to another, ``grows``: a greater one."""

    grows: bool
    seconds: float = 0.0
    epochs: int = 0


class ElasticJob:
    """The state of one job. ``workers`` is its target."""

    def __init__(self, started: TrainingStarted, trend: AccuracyTrend) -> None:
        self.about = started
        self.workers = started.workers
        self.trend = trend
        self.history: list[EpochSample] = []
        self._epochs_s: dict[int, deque[float]] = {}
        self.paces: dict[int, float] = {}
        self.first = 0
        """The first epoch that it has reported; 0: there is none."""
        self.reports = 0
        self.below = 0
        self.below_at_minimum = 0
        self.loss_max = -math.inf
        self.since_resize = 0
        self.resized = False
        """Since its last report."""
        self._transition: ResizeEpochs | None = None
        self.ran = 0
        """Workers that were running at its last report; 0: there was none."""
        self._alike = 0
        """Reports in a row before which, and at which, so many were running."""
        self.reported_at = started.now

    @property
    def epoch(self) -> int:
        return self.history[-1].epoch if self.history else 0

    def problem_of(self, report: TrainingReported) -> tuple[ReportProblem, str] | None:
        """Why ``report`` does not count; None: it does."""
        if report.sender != self.about.job_id:
            detail = f"{report.sender} may not report for {report.job_id}: only the job itself may"
            return ReportProblem.FOREIGN, detail
        for name in ("loss", "accuracy", "seconds"):
            value = getattr(report, name)
            if not math.isfinite(value):
                detail = f"{name} is {value}: report a finite number, or skip this epoch"
                return ReportProblem.NOT_FINITE, detail
        if detail := fraction_problem("accuracy", report.accuracy):
            return ReportProblem.OUT_OF_RANGE, detail
        if not report.seconds > 0.0:
            detail = f"seconds is {report.seconds}: report more than 0"
            return ReportProblem.OUT_OF_RANGE, detail
        most, off = report.epochs_max or self.about.epochs_max, self.about.counts_from - 1
        if not 1 <= report.epoch <= most:
            detail = (
                f"epoch is {report.epoch + off}: report one from {1 + off} to {most + off}, or "
                f"state more epochs"
            )
            return ReportProblem.OUT_OF_RANGE, detail
        if report.epoch <= self.epoch:
            same = report.epoch == self.epoch
            problem = ReportProblem.REPEATED if same else ReportProblem.OUT_OF_ORDER
            detail = (
                f"epoch {report.epoch + off} came after epoch {self.epoch + off}: report numbers "
                f"that grow"
            )
            return problem, detail
        if report.now < self.reported_at:
            detail = f"it came {self.reported_at - report.now:.3g} s before the one before it"
            return ReportProblem.CLOCK, detail
        return None

    def accept(self, report: TrainingReported, warm_reports: int) -> None:
        """Take in a report that has no problem."""
        running = report.running or self.workers
        self._follow_transition(running, report)
        if report.epochs_max is not None:
            self.about = replace(self.about, epochs_max=report.epochs_max)
        self.first = self.first or report.epoch
        self.trend.add(report.epoch, report.accuracy)
        self.history.append(
            EpochSample(report.epoch, report.loss, report.accuracy, report.seconds, self.workers)
        )
        if len(self.history) > 2 * HISTORY_MAX:
            del self.history[:HISTORY_MAX]
        self._alike = self._alike + 1 if running == self.ran else 0
        if self._alike > 1:
            self._pace(running, report.seconds)
        self.ran = running
        self.loss_max = max(self.loss_max, report.loss)
        self.reports += 1
        self.since_resize += 1
        self.resized = False
        self.reported_at = report.now
        is_below = self.reports >= warm_reports and self.trend.change < self.about.beta
        self.below = self.below + 1 if is_below else 0
        at_minimum = is_below and self.workers == self.about.workers_min
        self.below_at_minimum = self.below_at_minimum + 1 if at_minimum else 0

    def _follow_transition(self, running: int, report: TrainingReported) -> None:
        """Add the time since the last report, while epochs are not yet whole ones of these workers
        alone; no other change ends it."""
        changes = 0 < self.ran != running
        if changes and self._transition is None:
            self._transition = ResizeEpochs(running > self.ran)
        if self._transition is not None and (changes or self._alike < 1):
            grows, seconds, epochs = self._transition
            seconds += report.now - self.reported_at
            self._transition = ResizeEpochs(grows, seconds, epochs + report.epoch - self.epoch)

    def lost_s(self) -> tuple[bool, float] | None:
        """What its last transition took beyond as many epochs of its present workers, seconds, once
        their pace is known, and whether it grew; None: not now. To be called after each report."""
        if self._transition is None or self._alike < 2 or self.ran not in self.paces:
            return None
        grows, seconds, epochs = self._transition
        self._transition = None
        return grows, max(0.0, seconds - epochs * self.paces[self.ran])

    def _pace(self, workers: int, seconds: float) -> None:
        """Take in the time of an epoch that began and ended with so many workers, as the one before
        did: a worker's first epoch takes longer, and so may those of others meanwhile."""
        epochs_s = self._epochs_s.pop(workers, None)
        self._epochs_s[workers] = epochs_s = epochs_s or deque(maxlen=PACE_REPORTS)
        epochs_s.append(seconds)
        if len(epochs_s) >= PACE_REPORTS_MIN:
            self.paces[workers] = statistics.median(epochs_s)
        if len(self._epochs_s) > PACES_MAX:
            first = next(iter(self._epochs_s))
            del self._epochs_s[first]
            self.paces.pop(first, None)

    def restart_trend(self, trend: AccuracyTrend) -> None:
        """The learning rate has dropped: the job is no longer warm."""
        self.trend = trend
        self.reports = self.below = self.below_at_minimum = 0

    def resize(self, workers: int) -> None:
        self.workers = workers
        self.resized = True
        self.since_resize = 0
