"""Are applications that train resized within their limits, and others not at all?

The master may limit the executors of a batch application whose driver reports what it trains: never
to fewer than its gang, nor to none, and to no more than it has requested. One that has reported
nothing, or is a stream, has no limit; nor has one that has been silent for long, or whose model is
another one. An executor is taken only where something waits that would start there, with what
trainings hold there, or another training could have more. Of what is free no more is handed out at
once than there is. No more limits are changed in a minute than may be, and the master's elasticity
knows nobody who has ended.

At the AppMaster: while it has a limit, it requests no executor beyond it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Container
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.appmaster import Command, Phase, RequestContainers
from hrm.core.vocabulary.columns import Ints
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerState,
    ResourceUnitId,
    WorkloadClass,
)

__all__ = ["ElasticityChecks"]

MINUTE_S = 60.0
SILENCE_S = 120.0
SLACK_S = 2.0
"""From one tick of the master to the next."""


class ElasticityChecks:
    """``_reported``: applications that have reported to this master, with the time and seconds of
    their latest epoch; ``_most``: how many executors of its default profile each has had or waited
    for at most. ``_limits``: those that there are."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._reported: dict[ApplicationId, tuple[float, float]] = {}
        self._most: dict[ApplicationId, int] = {}
        self._changed_s: deque[float] = deque()
        self._limits: dict[ApplicationId, int] = {}

    def master_began(self) -> None:
        self._reported.clear()
        self._changed_s.clear()
        self._limits.clear()

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        """Check one event of the master."""
        apps = core.master_state.applications
        if isinstance(event, e.ProgressReported) and event.training:
            self._reports(core, event)
        if isinstance(event, e.Ticked):
            self._silent(core, event.now)
        if isinstance(event, e.ContainersRequested | e.ContainerReported | e.NodeReported):
            for name in self._reported:
                self._count(core, name)
        limits = [
            (command.application_id, command.notice)
            for command in commands
            if isinstance(command, c.NotifyApplication)
            and isinstance(command.notice, c.ExecutorLimit)
        ]
        before = dict(self._limits)
        lowered = [name for name, limit in limits if self._is_lower(name, limit)]
        for name in lowered:
            if not _is_wanted(core, name, raised=len(lowered) < len(limits)):
                self._violated(f"{name} loses an executor that nothing could use")
        if limits and not lowered:
            self._handed_out(core, {name: before[name] for name, _ in limits if name in before})
        for name, limit in limits:
            self._limited(core, name, limit, event.now)
        for name in core.elastic.core.jobs:
            app = apps.get(name)
            if app is None or app.life.state.ended:
                self._violated(f"{name} has ended, and is elastic still")

    def _reports(self, core: MasterCore, event: e.ProgressReported) -> None:
        """It has reported epochs; was that a stream, or of another model, it has no limit."""
        name, latest = event.application_id, event.training[-1]
        self._reported[name] = event.now, latest.seconds
        app = core.master_state.applications.get(name)
        if app is None or app.executors_max is None:
            return
        if app.record.workload_class is WorkloadClass.STREAM:
            self._violated(f"{name} is a stream, and is limited")
        if event.training[0].epoch <= 1:
            self._violated(f"{name} begins another model, and has the limit of the last one")

    def _silent(self, core: MasterCore, now: float) -> None:
        """Has one a limit still that trains no more, as far as its master can know?"""
        for name in self._limits:
            at_s, epoch_s = self._reported.get(name, (now, 0.0))
            app = core.master_state.live.get(name)
            slack_s = core.master_state.bounds.elastic_period_s + SLACK_S
            is_silent = now - at_s > max(SILENCE_S, 10 * epoch_s) + slack_s
            if is_silent and app is not None and app.executors_max is not None:
                self._violated(
                    f"{name} has reported nothing for {now - at_s:.0f} s, and is limited"
                )

    def _handed_out(self, core: MasterCore, before: dict[ApplicationId, int]) -> None:
        """Limits were raised or lifted, from these: by no more than what is free."""
        jobs, apps = core.elastic.core.jobs, core.master_state.applications
        for name, job in jobs.items():
            if not job.about.workers_min <= job.workers <= job.about.workers_max:
                self._violated(
                    f"{name} is to have {job.workers} executors, of {job.about.workers_min} to "
                    f"{job.about.workers_max}"
                )
        given = {x: jobs[x].workers - n for x, n in before.items() if x in jobs and jobs[x].resized}
        sizes = {
            demand_vector(x.request.resources) for name in jobs for x in _executors(apps[name])
        }
        free = max(map(core.master_state.state.startable, sizes), default=0)
        if sum(given.values()) > free:
            self._violated(f"{sum(given.values())} executors are handed out, and {free} are free")

    def _count(self, core: MasterCore, name: ApplicationId) -> None:
        app = core.master_state.applications.get(name)
        if app is not None:
            of_profile = [x for x in app.containers.values() if _is_default(x.request)]
            self._most[name] = max(len(of_profile), self._most.get(name, 0))

    def _is_lower(self, name: ApplicationId, limit: c.ExecutorLimit) -> bool:
        """Than its last one; keeps it."""
        before = self._limits.pop(name, math.inf)
        if limit.executors_max is None:
            return False
        self._limits[name] = limit.executors_max
        return limit.executors_max < before

    def _limited(
        self, core: MasterCore, name: ApplicationId, limit: c.ExecutorLimit, now: float
    ) -> None:
        if limit.executors_max is None:
            return
        app = core.master_state.applications[name]
        self._changed_s.append(now)
        while self._changed_s[0] <= now - MINUTE_S:
            self._changed_s.popleft()
        self._count(core, name)
        most, least = self._most.get(name, 0), max(1, app.record.gang_min)
        if name not in self._reported:
            self._violated(f"{name} has reported no training, and is limited")
        if not min(least, most) <= limit.executors_max <= most:
            self._violated(
                f"{name} may have {limit.executors_max} executors, its gang is of {least}, and it "
                f"has wanted {most} at most"
            )
        allowed = core.master_state.bounds.elastic_resizes_per_minute
        if len(self._changed_s) > allowed:
            self._violated(f"{len(self._changed_s)} limits within a minute, of {allowed}")

    def after_application(self, name: str, core: AppMasterCore, commands: list[Command]) -> None:
        """Check one event of an AppMaster."""
        limit = core.executors_max
        if limit is None or core.ended:
            return
        asked = [
            ask
            for command in commands
            if isinstance(command, RequestContainers) and command.again is not True
            for ask in command.asks
            if not ask.target.profile
        ]
        counted = [
            x
            for x in core.containers.values()
            if x.profile == 0 and x.phase in (Phase.REQUESTED, Phase.RUNNING)
        ]
        if asked and len(counted) > limit:
            self._violated(f"{name} requests {len(asked)} executors and has {len(counted)}, of "
                           f"the {limit} that it may have")  # fmt: skip


def _is_wanted(core: MasterCore, name: ApplicationId, *, raised: bool) -> bool:
    """Whether anything could use an executor of ``name``; ``raised``: another limit was, with
    this one."""
    elastic = core.elastic.core
    if raised:
        return True
    if elastic.waiting:
        return _serves(core, name)
    others = [(y, x) for y, x in elastic.jobs.items() if y != name]
    # One without a limit takes what it waits for, and is known with that from this moment on.
    return any(
        x.workers < x.about.workers_max or _waiting(core.master_state.applications[y])
        for y, x in others
    )


def _serves(core: MasterCore, name: ApplicationId) -> bool:
    """Whether something of another application waits that would start where ``name`` has an
    executor, or at a unit that shares memory with that, or is no larger than what that waits for
    itself."""
    apps, state = core.master_state.live, core.master_state.state
    awaited = sum(map(_vector, _waiting(apps[name])), np.zeros(4, np.int64))
    places = {x.unit_id for x in _executors(apps[name]) if x.node} & state.rows.keys()
    pools = [queue.pool for unit_id in places if (queue := state.find(unit_id)) is not None]
    places |= {x.unit.unit_id for pool in pools for x in pool} & state.rows.keys()
    for other, app in apps.items():
        demands = (
            {} if other == name else {demand_vector(x.request.resources) for x in _waiting(app)}
        )
        for demand in demands:
            if (awaited >= np.asarray(demand)).all():
                return True
            if any(_would_hold(core, other, unit_id, demand) for unit_id in places):
                return True
    return False


def _would_hold(
    core: MasterCore, waits: ApplicationId, unit_id: ResourceUnitId, demand: Vector
) -> bool:
    """Whether a unit would hold this if all trainings but the one that waits were gone."""
    state = core.master_state.state
    row, queue = state.rows[unit_id], state.find(unit_id)
    assert queue is not None
    offer = state.available()[row].copy()
    pool = {x.unit.unit_id for x in queue.pool}
    for name in core.elastic.core.jobs:
        if name != waits:
            for x in _executors(core.master_state.applications[name]):
                whole = x.unit_id == unit_id
                offer += _vector(x) if whole else _vector(x) * (1, 1, 0, 0) * (x.unit_id in pool)
    return bool((offer >= np.asarray(demand)).all() and state.serving(demand)[row])


def _vector(container: Container) -> Ints:
    return np.asarray(demand_vector(container.request.resources), np.int64)


def _waiting(app: Application) -> list[Container]:
    states = (ContainerState.PENDING, ContainerState.ASSIGNED, ContainerState.WAITING)
    return [x for x in app.containers.values() if x.state in states]


def _executors(app: Application) -> list[Container]:
    return [x for x in app.containers.values() if _is_default(x.request)]


def _is_default(request: object) -> bool:
    return getattr(request, "resource_profile_id", None) == 0
