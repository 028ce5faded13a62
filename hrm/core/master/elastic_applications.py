"""Applications that train a model and say so: their executors follow what they learn.

An application whose driver reports epochs (``hrm.report``) is elastic. While it has no limit, it
gets what it requests, as any other, as far as its queue and the cluster have it; what it waits for
beyond that is worth to it what more executors are, not what the first is to one that has none.
``hrm.core.elasticity`` decides on its reports; what comes out is a limit of its executors
(``MasterState.limit_executors``), never less than its gang, or than one, and never more than what
it last requested without a limit. Where the limit is that, there is none. Which executors end, and
when, is Spark's to say: those are decommissioned, with what they run.

So capacity is freed where a model has converged, and schedulers give it to whatever waits and could
use it there (``hrm.core.master.elastic_demand``). What is free while nothing waits that it would
hold goes back to those that learn, and where none of them could have more, to the others.

An application that reports nothing is never touched, nor a stream, nor a driver of a submission.
One that has been silent for long, or whose epochs begin again, as those of another model do, begins
again without a limit.
A progress report may have the last epochs of one model and the first of the next.
An accuracy that is not stated is taken from the loss: the part of the greatest loss that is gone
(``hrm.core.elasticity.stated_report``). What a driver states that cannot be does not count, and
ends nothing.

To look at all that waits, and at all rows for what is free, costs as much as the cluster is large.
That is done ``_LOOKS_S`` apart for an application, however much it reports.

Limits: a limit is this master's, and the next one begins without. ``free`` is counted in executors
of the application that is asked about; other sizes see it as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hrm.core.elasticity.beta_rule import ElasticityPolicy
from hrm.core.elasticity.elasticity_core import ElasticityCore, ElasticitySettings
from hrm.core.elasticity.elasticity_messages import (
    ElasticCapacityChanged,
    RefuseReport,
    SetWorkers,
    TrainingEnded,
    TrainingReported,
    TrainingStarted,
    TrainingWorkersChanged,
)
from hrm.core.elasticity.speed_up_rule import speed_up
from hrm.core.elasticity.stated_report import EPOCHS_MAX, LossScale, problem_in
from hrm.core.master.elastic_demand import ElasticDemand, wanted_executors
from hrm.core.master.entities import Application, Container
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.state import MasterState
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.vocabulary.feasibility import demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerState,
    TrainingReport,
    WorkloadClass,
)

__all__ = ["ElasticApplications"]

_FIRST_EPOCH = 1
"""Some count from 0, and some from 1."""
_LEAST_S = 1e-3
_LOOKS_S = 0.1


@dataclass(slots=True)
class _Training:
    """``losses``: what its losses are worth. ``problem``: why its latest report does not count;
    empty if it does. ``looked_s``: when it was last decided on a report of its."""

    losses: LossScale = field(default_factory=LossScale)
    problem: str = ""
    looked_s: float = -math.inf


@runtime_checkable
class _HearsOfEnds(Protocol):
    """A policy that compares what it decided with how it ended."""

    def ended(self, job_id: ApplicationId, *, now: float, ok: bool) -> None: ...


class ElasticApplications:
    """The elastic ones among the applications. ``policy`` None: there are none."""

    def __init__(
        self,
        master_state: MasterState,
        placement: PlacementCoordinator,
        policy: ElasticityPolicy | None,
    ) -> None:
        self._master_state = master_state
        self._placement = placement
        self.policy = policy
        self.core = ElasticityCore(
            ElasticitySettings(resizes_per_minute=master_state.bounds.elastic_resizes_per_minute)
        )
        self._demand = ElasticDemand(master_state, placement)
        self._trainings: dict[ApplicationId, _Training] = {}
        self._view: ClusterView | None = None
        self._next_tick_s = -math.inf

    def reported(self, app: Application, reports: tuple[TrainingReport, ...], now: float) -> None:
        """An application has reported epochs, the latest last."""
        if not reports:
            return
        is_stream = app.record.workload_class is WorkloadClass.STREAM
        if self.policy is None or app.is_driver or is_stream:
            sound = [report for report in reports if not problem_in(report)]
            app.training = sound[-1] if sound else app.training
            self.forget(app, now)
            return
        training = self._trainings.setdefault(app.application_id, _Training())
        is_due = now >= training.looked_s + _LOOKS_S
        is_known, has_looked = False, False
        running = sum(x.state is ContainerState.RUNNING for x in wanted_executors(app))
        for report in reports:
            training.problem = problem_in(report)
            if training.problem:
                continue
            if self._begins_another(app, report):
                training, is_known = self._begin_another(app, training, now), False
            is_known = is_known or self._follow(app, report, now)
            if not is_known:
                app.training = report
                continue
            if is_due and not has_looked:
                training.looked_s, has_looked = now, True
                self._capacity(app, now)
            self._take(app, training, report, now, running)
        if has_looked:
            self._decide()

    def forget(self, app: Application, now: float) -> None:
        """It has ended, or is not elastic after all: then it has what it requests."""
        if self._trainings.pop(app.application_id, None) is not None:
            self.core.ended(TrainingEnded(now=now, job_id=app.application_id))
            if isinstance(self.policy, _HearsOfEnds):
                ok = app.life.state is not ApplicationState.FAILED
                self.policy.ended(app.application_id, now=now, ok=ok)
            if not app.life.state.ended:
                self._master_state.limit_executors(app, None)

    def tick(self, now: float) -> None:
        """What is free while nothing waits goes to those that have a limit."""
        if now < self._next_tick_s or not self._trainings:
            return
        self._next_tick_s = now + self._master_state.bounds.elastic_period_s
        apps = self._master_state.applications
        for name in [x for x in self._trainings if self._trains_no_more(x, now)]:
            self.forget(apps[name], now)
        limited = [apps[x] for x in self._trainings if apps[x].executors_max is not None]
        sizes = [x for app in limited if (x := self._sample(app)) is not None]
        if sizes:
            # What suffices for the largest suffices for each.
            largest = max(sizes, key=lambda x: demand_vector(x.request.resources))
            self._capacity(apps[largest.application_id], now)
            self._decide()

    def _begins_another(self, app: Application, report: TrainingReport) -> bool:
        """Whether it is the first epoch of another model, such as the next of a grid search: its
        numbers begin again, where they did before or at 0 or 1."""
        job = self.core.jobs.get(app.application_id)
        if job is None or job.reports < self.core.settings.warm_reports:
            return False
        return report.epoch <= max(_FIRST_EPOCH, job.first - 1)

    def _begin_another(self, app: Application, training: _Training, now: float) -> _Training:
        """What is known of its other models says nothing of this one."""
        self.forget(app, now)
        self._trainings[app.application_id] = another = _Training(looked_s=training.looked_s)
        return another

    def _trains_no_more(self, name: ApplicationId, now: float) -> bool:
        """Whether it has been silent for long: it scores, writes, or does what it has not said."""
        return name in self.core.jobs and self.core.is_silent(name, now)

    def line(self, app: Application) -> str:
        """For ``hrm app why``; empty where it is not elastic."""
        training = self._trainings.get(app.application_id)
        job = self.core.jobs.get(app.application_id)
        if training is not None and training.problem:
            return f"its latest report of its training does not count: {training.problem}"
        if training is None or job is None:
            return ""
        gain = job.trend.change
        says = "has reported too few epochs to say what it gains"
        if job.reports >= self.core.settings.warm_reports and math.isfinite(gain):
            beta = job.about.beta
            side = "below" if gain < beta else "not below"
            says = f"gains {gain:.2g} of accuracy an epoch, {side} {beta:g}"
        most = job.about.workers_max
        line = f"its training {says}; it may have {job.workers} of the {most} executors it requests"
        if job.workers == most:
            return line
        more = speed_up(job.paces, job.workers + 1)
        return f"{line}; another would add {more:.2f} of the speed of one"

    def _follow(self, app: Application, report: TrainingReport, now: float) -> bool:
        """Know it with as many executors as it has, or may have by its limit; False: it wants
        none."""
        name, wanted = app.application_id, len(wanted_executors(app))
        job = self.core.jobs.get(name)
        least = min(wanted, max(1, app.record.gang_min))
        has = max(least, _placed(app))
        if job is None:
            if not wanted:
                return False
            self.core.started(
                TrainingStarted(
                    now=now,
                    job_id=name,
                    workers=has,
                    workers_min=least,
                    workers_max=wanted,
                    epochs_max=_last_epoch(report) or EPOCHS_MAX + 1,
                    beta=self._master_state.bounds.elastic_beta,
                    tenant=str(app.record.queue),
                    counts_from=0,
                )
            )
        elif app.executors_max is None and wanted:
            known = job.workers, job.about.workers_min, job.about.workers_max
            if known != (has, least, wanted):
                self.core.workers_changed(
                    TrainingWorkersChanged(
                        now=now, job_id=name, workers=has, limits=(least, wanted)
                    )
                )
        return True

    def _capacity(self, app: Application, now: float) -> None:
        """How many more of its executors could start, and how many others wait for what trainings
        could give up, be it with their schedulers, at nodes, or in their queues for more of the
        cluster."""
        others = self._demand.of_others(app, self.core.jobs)
        sample = self._sample(app)
        free = 0 if others.has_use or sample is None else self._startable(sample)
        self.core.capacity_changed(
            ElasticCapacityChanged(
                now=now, free=free, waiting=others.waiting, servers=others.servers
            )
        )

    def _startable(self, container: Container) -> int:
        if self._view is None:
            self._view = ClusterView(self._master_state.state)
        else:
            self._view.renew()
        app = self._master_state.applications[container.application_id]
        if app.requires is not None:
            self._view.require(app.requires)
        demand = demand_vector(container.request.resources)
        self._view.open_to(demand)
        return self._view.startable_count(demand)

    def _sample(self, app: Application) -> Container | None:
        return next(iter(wanted_executors(app)), None)

    def _decide(self) -> None:
        assert self.policy is not None
        while (view := self.core.question()) is not None:
            for command in self.core.decide(self.policy.propose(view)):
                if isinstance(command, SetWorkers):
                    self._set(command)

    def _take(
        self,
        app: Application,
        training: _Training,
        report: TrainingReport,
        now: float,
        running: int,
    ) -> None:
        """Let a report count, or keep why it does not."""
        for command in self.core.reported(_event(app, training.losses, report, now, running)):
            if isinstance(command, RefuseReport):
                training.problem = command.detail
        if not training.problem:
            training.losses.accept(report.loss)
            app.training = report

    def _set(self, command: SetWorkers) -> None:
        app = self._master_state.applications[command.job_id]
        most = self.core.jobs[command.job_id].about.workers_max
        workers = command.workers
        if app.executors_max is None and workers >= _placed(app):
            return  # without a limit, it takes by itself what is free
        self._master_state.limit_executors(app, None if workers >= most else workers)


def _placed(app: Application) -> int:
    """The executors that it has, those that start included, without what it waits for."""
    placed = (ContainerState.ASSIGNED, ContainerState.RUNNING)
    return sum(x.state in placed and not _waits(x) for x in wanted_executors(app))


def _waits(container: Container) -> bool:
    return container.queued and container.state is ContainerState.ASSIGNED


def _last_epoch(report: TrainingReport) -> int | None:
    """As the core counts them; None: not stated. An application may count from 1, too."""
    return report.epochs + 1 if report.epochs else None


def _event(
    app: Application, losses: LossScale, report: TrainingReport, now: float, running: int
) -> TrainingReported:
    """As the core takes it: epochs from 1, and an accuracy in any case."""
    since_s = report.seconds or now - (app.record.first_running_at_s or now)
    stated = report.accuracy
    return TrainingReported(
        now=now,
        sender=app.application_id,
        job_id=app.application_id,
        epoch=report.epoch + 1,
        loss=report.loss,
        accuracy=losses.accuracy(report.loss) if stated is None else stated,
        seconds=max(_LEAST_S, since_s),
        running=running,
        epochs_max=_last_epoch(report),
    )
