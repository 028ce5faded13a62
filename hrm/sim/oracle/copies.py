"""Copies of the state are what the state was: remote schedulers' copies, and schedulers' views."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hrm.core.invariants import table_violations
from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Job
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.model import ApplicationId, ContainerId, ResourceUnitId, WorkloadClass

__all__ = ["Copies", "Views"]

_COLUMNS = (
    "free",
    "total",
    "stream_headroom",
    "waiting_stream",
    "waiting_batch",
    "version",
    "waiting_limit",
    "open",
    "gpu_only",
    "gpus",
    "preempts",
)
_PROBE = Entry(ContainerId("nobody"), WorkloadClass.BATCH, (1, 256, 0, 1), 1.0)

_Units: TypeAlias = dict[ResourceUnitId, tuple[Any, ...]]
_Jobs: TypeAlias = dict[ApplicationId, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Picture:
    """``moving``: units and applications that had changed again when it was taken."""

    units: _Units
    jobs: _Jobs
    moving: frozenset[str]


class Copies:
    """Snapshot + deltas = state: what a remote scheduler has after message n is what the master
    had.

    When the master sends message n, a snapshot of its state is kept: of everything but what has
    changed again within the same event, which a later message will contain. When a scheduler has
    taken message n in, its copy is compared with that snapshot, unit by unit and job by job.
    """

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._pictures: dict[tuple[int, int, int], _Picture] = {}

    def master_began(self) -> None:
        self._pictures.clear()

    def after(self, core: MasterCore, commands: Iterable[c.MasterCommand]) -> None:
        """Keep a snapshot for the latest message to each scheduler."""
        latest = {
            command.scheduler: command
            for command in commands
            if isinstance(command, c.SendToScheduler)
        }
        for command in latest.values():
            scheduler = core.placement.schedulers.get(command.scheduler)
            if isinstance(scheduler, RemoteScheduler) and scheduler.session == command.session:
                moving = frozenset({*scheduler.units, *scheduler.changed_jobs})
                key = (core.epoch, command.session, command.message.sequence)
                units = _units(core.master_state.state)
                self._pictures[key] = _Picture(units, _jobs(scheduler.jobs), moving)

    def taken(self, name: str, epoch: int, session: int, replica: Replica) -> None:
        """A scheduler has taken in a message."""
        picture = self._pictures.pop((epoch, session, replica.sequence), None)
        for what in table_violations(replica.state):
            self._violated(f"in the copy of {name}: {what}")
        for what in replica.scheduler.backlog.violations():
            self._violated(f"{name}: {what}")
        if picture is None:
            return
        there = _units(replica.state)
        self._compare(name, replica.sequence, picture.units, there, picture.moving)
        jobs = _jobs(replica.scheduler.jobs)
        self._compare(name, replica.sequence, picture.jobs, jobs, picture.moving)

    def _compare(
        self, name: str, sequence: int, here: Any, there: Any, moving: frozenset[str]
    ) -> None:
        for key in dict.fromkeys((*here, *there)):
            if key not in moving and here.get(key) != there.get(key):
                self._violated(
                    f"after message {sequence}, {name} has {key} as {there.get(key)}, the master "
                    f"had {here.get(key)}"
                )


class Views:
    """A scheduler's view is renewed, not copied; what is renewed must be what a copy would be.

    The oracle keeps a view of its own over each life of the master. Whenever a scheduler has
    chosen, it is renewed, compared with a fresh one, and gets tentative reservations, as in a
    round.
    """

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._view: ClusterView | None = None

    def master_began(self) -> None:
        self._view = None

    def after(self, core: MasterCore, commands: Iterable[c.MasterCommand], now: float) -> None:
        if not any(isinstance(command, c.ProposeClaims) for command in commands):
            return
        state = core.master_state.state
        if self._view is None:
            self._view = ClusterView(state)
        view, fresh = self._view, ClusterView(state)
        view.renew()
        for name in _COLUMNS:
            renewed, copied = getattr(view, name), getattr(fresh, name)
            if not np.array_equal(renewed, copied):
                self._violated(f"a renewed view has {name} as {renewed}, a fresh one as {copied}")
        for unit_id, row in state.rows.items():
            if view.image(row) != fresh.image(row):
                self._violated(f"a renewed view shows {unit_id} as {view.image(row)}")
        for row in state.rows.values():
            if view.open[row]:
                view.apply(row, _PROBE, now)


def _units(state: SharedState) -> _Units:
    return {
        unit_id: (
            state.queue(row).unit,
            state.node(row),
            bool(state.open[row]),
            int(state.waiting_limit[row]),
            state.queue(row).image(),
            sorted(state.queue(each).unit.unit_id for each in state.siblings(row)),
        )
        for unit_id, row in state.rows.items()
    }


def _jobs(jobs: dict[ApplicationId, Job]) -> _Jobs:
    return {
        application_id: (job.workload_class, job.gang, tuple(job.pending.items()))
        for application_id, job in jobs.items()
    }
