"""Schedulers in processes of their own: what the master keeps of each, and what it sends to it.

A remote scheduler chooses on a copy of the state and commits through the negotiator, as one inside
the master does. It subscribes, and gets a stream of ``StateChanged``: first everything, then what
has changed since. A unit or job that changed is sent whole, so a change never depends on the one
before it. Units that share their cores travel together. A unit is one object for all schedulers
until it changes (``SharedState.unit_state``), so that its bytes are made once.

Replies to its calls do not travel on that stream, so each names the latest message sent before it:
see ``hrm.core.scheduling.session``.

The master keeps every job (``RemoteScheduler``), so when a subscription breaks, nothing is lost:
another scheduler gets the jobs, the lease goes back, and what the old one still proposes is
refused, because its session is over.

Source: HRM paper, section 4.3.3 (several schedulers that synchronise copies); the messages are
HRM's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.messages.state_changes import JobImage, StateChanged
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.exhaustion import Exhaustion
from hrm.core.scheduling.scheduler import Job, Placement, Scheduler
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import UNKNOWN_PROPERTIES, NodeProperties, NodeRequirement
from hrm.core.vocabulary.wakefulness import excused

__all__ = ["SEND_INTERVAL_S", "Chances", "RemoteScheduler"]

UNITS_PER_MESSAGE = 500
"""At most, but for a node that has more: its units go together."""
SEND_INTERVAL_S = 0.02
"""Changes of units, and that capacity was freed, are collected that long; jobs and replies take
them along at once."""
_Lack: TypeAlias = tuple[Vector, NodeRequirement | None, frozenset[NodeName]]
_LACKING_MAX = 256
_SPARED_MAX = 64
_PASSED_MAX = 8
"""Jobs at which a look for one with a chance stops: that have none, and that may have had one all
along. What is behind them counts as having one."""


@dataclass(frozen=True, slots=True)
class Chances:
    """``any``: may some job find a place, for all that is known? ``new``: the first that may now,
    and of which it was known before that it could not."""

    any: bool
    new: Job | None = None


class _Elsewhere:
    """In place of the policy, which the other process has."""

    name = "elsewhere"

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        raise AssertionError("a remote scheduler chooses in its own process")


class RemoteScheduler(Scheduler):
    """The master's state of one remote scheduler.

    Invariants: what is in neither ``units`` nor ``changed_jobs`` is at the other side as it is
    here, once it has taken in message number ``sequence``; from ``due_at_s`` on, what was collected
    is sent. ``call_id`` is of the proposal that is
    parked behind a lease, ``lease_call_id`` of the call that waits for it, 0 where none does;
    ``lease_for`` is the application for which it has requested or holds it. ``avoid``: the nodes
    that all jobs were found to avoid; of those in neither ``changed_jobs`` nor ``restricted``, each
    avoids these alone and has no gang. ``seen_sequence``: of the latest message that it had taken
    in when it made its latest proposal; ``_freed_sequence``: of the latest one with ``has_freed``.
    ``_lacking``: demands, with the nodes on which they may be placed, that no unit could take,
    until a round that has seen one that can leaves them waiting all the same. When a job may be
    tried again is the other side's to know; the times of the backlog here only serve to find the
    first one that has a chance.
    ``parts_changed``: those whose parts of GPUs may not be as ``Job.gpu_parts`` states.
    ``_described``: of the units at the other side, the properties of the node that were sent with
    them; without any, nothing is known of the node.
    """

    knows_lacks = False

    def __init__(
        self, name: str, session: int, state: SharedState, bounds: Bounds, now: float
    ) -> None:
        super().__init__(name, _Elsewhere(), bounds)
        self.session = session
        self.state = state
        self.units = state.watch()
        self.changed_jobs: dict[ApplicationId, None] = {}
        self.restricted: dict[ApplicationId, None] = {}
        self.avoid: frozenset[NodeName] = frozenset()
        self.exhaustion: Exhaustion = Exhaustion(state, bounds.waiting_limit)
        self.has_freed = False
        self.sequence = 0
        self.seen_sequence = 0
        self._freed_sequence = 0
        self._lacking: dict[_Lack, None] = {}
        self.due_at_s = now + SEND_INTERVAL_S
        self.heard_at_s = now
        self.excused_s = 0.0
        self.parts_at_s = now
        self.parts_changed: dict[ApplicationId, None] = {}
        self.call_id = 0
        self.lease_call_id = 0
        self.lease_for = ApplicationId("")
        self._described: dict[ResourceUnitId, NodeProperties] = {}

    def add(
        self,
        application_id: ApplicationId,
        workload_class: WorkloadClass,
        container_id: ContainerId,
        request: ContainerRequest,
        now: float,
    ) -> None:
        if not self.jobs:
            self.heard_at_s = now  # until now it had nothing to send
        super().add(application_id, workload_class, container_id, request, now)
        self.changed_jobs[application_id] = None

    def withdraw(self, application_id: ApplicationId, container_id: ContainerId) -> None:
        super().withdraw(application_id, container_id)
        self.changed_jobs[application_id] = None

    def _settled(self, job: Job, container_ids: Sequence[ContainerId]) -> None:
        super()._settled(job, container_ids)
        self.changed_jobs[job.application_id] = None

    def capacity_freed(self) -> None:
        super().capacity_freed()
        self.has_freed = True

    def chances(self, now: float) -> Chances:
        """Which of its jobs may find a place, could each be tried now?"""
        super().capacity_freed()
        least_s = self.bounds.retry_delay_s
        spared = passed = 0
        while spared < _SPARED_MAX and passed < _PASSED_MAX:
            job = self.next_job(now)
            if job is None:
                return Chances(any=passed > 0)
            if self.spare(job):
                self.backlog.hold_back(job, now)
                job.lacks = {}
                spared += 1
            elif self._could_not(job):
                return Chances(any=True, new=job)
            else:
                passed += 1
            self.backlog.place(job, now + least_s)
        return Chances(any=True)

    def _could_not(self, job: Job) -> bool:
        """Was it known that no unit could take any of it?"""
        if job.prefers or not self._takes_any(job):
            return False
        nodes = job.requires, job.avoid
        return all((demand, *nodes) in self._lacking for demand in job.demands)

    def note_lack(self, job: Job) -> None:
        """A round has left some of a job waiting: keep what no unit can take. Where one can, that
        round did not know yet, or its policy did not want it."""
        if not (job.pending and self._takes_any(job)):
            return
        has_seen = not self.has_freed and self.seen_sequence >= self._freed_sequence
        for demand in job.demands:
            key = (demand, job.requires, job.avoid)
            self.exhaustion.note(*key)
            if self.exhaustion.holds(*key):
                self._lacking[key] = None
            elif has_seen:
                self._lacking.pop(key, None)
        while len(self._lacking) > _LACKING_MAX:
            del self._lacking[next(iter(self._lacking))]

    def parts_are_old(self, now: float) -> bool:
        """Is it time to compute its jobs' parts of GPUs again?"""
        return now - self.parts_at_s >= SEND_INTERVAL_S

    def silent(self, now: float) -> bool:
        """It has jobs and has sent nothing for too long: it hangs, connected or not."""
        since_s = max(self.heard_at_s, self.excused_s)
        return bool(self.jobs) and now - since_s > self.bounds.scheduler_timeout_s

    def woke(self, now: float, slept_s: float) -> None:
        """The master slept, and has not read what this one may have sent."""
        self.excused_s = excused(self.heard_at_s, self.excused_s, now, slept_s)

    def changes(
        self, now: float, *, all_of_them: bool, notifies: bool = True
    ) -> Iterator[StateChanged]:
        """The messages that bring the other side up to date; none where that can wait.

        ``notifies``: of freed capacity, too, where some job may use it."""
        due = all_of_them or now >= self.due_at_s
        notifies = notifies and self.has_freed
        if not (self.changed_jobs or (due and (notifies or self.units))):
            return
        has_freed = notifies and self.chances(now).any
        if notifies:
            self.has_freed = False
        if not (self.changed_jobs or self.units or has_freed):
            return
        changed, gone = self._by_node()
        self.units.clear()
        batch: list[ResourceUnitId] = []
        for units in changed:
            if batch and len(batch) + len(units) > UNITS_PER_MESSAGE:
                yield self._message(now, batch, gone)
                batch, gone = [], []
            batch += units
        jobs = tuple(self._image(application_id) for application_id in self.changed_jobs)
        yield self._message(now, batch, gone, jobs, has_freed)
        self.changed_jobs.clear()

    def _by_node(self) -> tuple[list[list[ResourceUnitId]], list[ResourceUnitId]]:
        """The units that have changed, each node's together, and those that are no more.

        Units that share cores are one thing to the other side: with one come all, owner first.
        """
        state = self.state
        nodes: dict[NodeName, dict[ResourceUnitId, None]] = {}
        for unit_id in sorted(self.units & state.rows.keys()):
            row = state.rows[unit_id]
            units = nodes.setdefault(state.node(row), {})
            pool = state.queue(row).pool
            if len(pool) == 1:  # most of them: a node's only unit
                units[unit_id] = None
                continue
            for unit in sorted((queue.unit for queue in pool), key=lambda unit: bool(unit.pool)):
                if unit.unit_id in state.rows:
                    units[unit.unit_id] = None
        gone = sorted(self.units - state.rows.keys())
        return [list(units) for units in nodes.values()], gone

    def _message(
        self,
        now: float,
        units: list[ResourceUnitId],
        gone: list[ResourceUnitId],
        jobs: tuple[JobImage, ...] = (),
        has_freed: bool = False,
    ) -> StateChanged:
        self.sequence += 1
        if has_freed:
            self._freed_sequence = self.sequence
        self.due_at_s = now + SEND_INTERVAL_S
        for unit_id in gone:
            self._described.pop(unit_id, None)
        return StateChanged(
            sequence=self.sequence,
            now=now,
            units=tuple(map(self.state.unit_state, units)),
            gone=tuple(gone),
            jobs=jobs,
            has_freed=has_freed,
            properties=tuple(self._new_properties(units)),
        )

    def _new_properties(
        self, units: list[ResourceUnitId]
    ) -> Iterator[tuple[ResourceUnitId, NodeProperties]]:
        """What the other side does not know yet of the nodes of these units."""
        rows, known, described = self.state.rows, self.state.properties, self._described
        for unit_id in units:
            properties = known[rows[unit_id]]
            if properties is not described.get(unit_id, UNKNOWN_PROPERTIES):
                described[unit_id] = properties
                yield unit_id, properties

    def _image(self, application_id: ApplicationId) -> JobImage:
        job = self.jobs.get(application_id) or Job(application_id, WorkloadClass.BATCH)
        return JobImage(
            application_id=application_id,
            workload_class=job.workload_class,
            gang=job.gang,
            pending=tuple(
                (container_id, request, job.requested_at_s.get(container_id, 0.0))
                for container_id, request in job.pending.items()
            ),
            avoid=tuple(sorted(job.avoid)),
            gpu_parts=job.gpu_parts,
            requires=job.requires,
        )
