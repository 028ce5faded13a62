"""Are applications that train resized within their limits, and others not at all?

The master may limit the executors of a batch application whose driver reports what it trains: never
to fewer than its gang, nor to none, and to no more than it has requested. One that has reported
nothing, or is a stream, has no limit. An executor is taken only where something waits, or another
training could have more. No more limits are changed in a minute than may be, and the master's
elasticity knows nobody who has ended.

At the AppMaster: while it has a limit, it requests no executor beyond it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.appmaster import Command, Phase, RequestContainers
from hrm.core.vocabulary.model import ApplicationId, WorkloadClass

__all__ = ["ElasticityChecks"]

MINUTE_S = 60.0


class ElasticityChecks:
    """``_reported``: applications that have reported to this master; ``_most``: how many executors
    of its default profile each has had or waited for at most. ``_limits``: those that there are."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._reported: set[ApplicationId] = set()
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
            self._reported.add(event.application_id)
            app = apps.get(event.application_id)
            of_stream = app is not None and app.record.workload_class is WorkloadClass.STREAM
            if app is not None and of_stream and app.executors_max is not None:
                self._violated(f"{event.application_id} is a stream, and is limited")
        if isinstance(event, e.ContainersRequested | e.ContainerReported | e.NodeReported):
            for name in self._reported:
                self._count(core, name)
        limits = [
            (command.application_id, command.notice)
            for command in commands
            if isinstance(command, c.NotifyApplication)
            and isinstance(command.notice, c.ExecutorLimit)
        ]
        lowered = [name for name, limit in limits if self._is_lower(name, limit)]
        for name in lowered:
            if not _is_wanted(core, name, raised=len(lowered) < len(limits)):
                self._violated(f"{name} loses an executor that nothing could use")
        for name, limit in limits:
            self._limited(core, name, limit, event.now)
        for name in core.elastic.core.jobs:
            app = apps.get(name)
            if app is None or app.life.state.ended:
                self._violated(f"{name} has ended, and is elastic still")

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
    others = (job for other, job in elastic.jobs.items() if other != name)
    serves = elastic.servers is None or name in elastic.servers
    return (
        raised
        or (elastic.waiting > 0 and serves)
        or any(x.workers < x.about.workers_max for x in others)
    )


def _is_default(request: object) -> bool:
    return getattr(request, "resource_profile_id", None) == 0
