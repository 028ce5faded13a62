"""Bugs of schedulers, backlogs, the negotiator, leases, policies and remote schedulers' state."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hrm.core.master import placement, relocation, returns
from hrm.core.master.driver_places import DriverPlaces, Verdict
from hrm.core.master.entities import Container
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.places import KeptPlaces
from hrm.core.master.state import MasterState
from hrm.core.master.subscriptions import Subscriptions
from hrm.core.messages.claims import Entry, Proposal
from hrm.core.messages.state_changes import UnitState
from hrm.core.scheduling.backlog import Backlog
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.exhaustion import Exhaustion
from hrm.core.scheduling.jobs import Cohort, Job
from hrm.core.scheduling.negotiator import Negotiator, StreamLease
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Placement, Scheduler
from hrm.core.scheduling.session import SchedulerReply, SchedulerSession
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import NO_UNIT, NodeName, WorkloadClass
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.core.vocabulary.run_times import RunTime, RunTimeKey, RunTimeTable
from hrm.policies.min_wait import MinWait

__all__ = ["BUGS"]


def double_commit(patch: pytest.MonkeyPatch) -> None:
    """A proposal that arrives twice is committed twice: nothing asks what is in flight, nor what
    its job still waits for."""
    source = textwrap.dedent(inspect.getsource(PlacementCoordinator.proposed))
    for guard, instead in (
        (" or scheduler.in_flight is None:", ":"),
        ("tuple(x for x in proposal.claims if x.entry.container_id in pending)", "proposal.claims"),
    ):
        assert guard in source, guard
        source = source.replace(guard, instead)
    names = dict(vars(placement))
    exec(source, names)
    patch.setattr(PlacementCoordinator, "proposed", names["proposed"])


def stale_lease(patch: pytest.MonkeyPatch) -> None:
    """The fencing token of a stream's lease is not checked."""
    patch.setattr(StreamLease, "holds", lambda *_: True)


def locked_units_granted(patch: pytest.MonkeyPatch) -> None:
    """Batch commits pass a stream's lease."""
    patch.setattr(StreamLease, "locks", lambda *_: False)


def delta_missed(patch: pytest.MonkeyPatch) -> None:
    """A remote scheduler drops the last unit of a message."""
    put = Replica._put

    def put_most(self: Replica, images: tuple[UnitState, ...]) -> None:
        put(self, images[:-1] if len(images) > 1 and not images[-1].unit.pool else images)

    patch.setattr(Replica, "_put", put_most)


def change_not_sent(patch: pytest.MonkeyPatch) -> None:
    """The opening or closing of a unit is not sent to schedulers."""

    def set_open(self: SharedState, unit_id: Any, is_open: bool) -> None:
        self.open[self.rows[unit_id]] = is_open

    patch.setattr(SharedState, "set_open", set_open)


def jobs_of_a_lost_scheduler(patch: pytest.MonkeyPatch) -> None:
    """The jobs of a lost remote scheduler are given to no other."""
    lose = Subscriptions._lose

    def lose_jobs(self: Subscriptions, scheduler: Any, now: float) -> None:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(self.placement, "hand_over", lambda *_: None)
            lose(self, scheduler, now)

    patch.setattr(Subscriptions, "_lose", lose_jobs)


def policy_that_ignores_the_view(patch: pytest.MonkeyPatch) -> None:
    """A policy chooses the first unit for every container."""

    def place(
        self: MinWait, view: ClusterView, placement: Placement, now: float
    ) -> list[int | None]:
        return [0] * len(placement.entries)

    patch.setattr(MinWait, "place", place)


def view_that_is_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """What a scheduler reserved tentatively in one round stays reserved in the next."""
    original_apply = ClusterView.apply

    def forget(self: ClusterView, row: int, entry: Entry, now: float) -> bool:
        ran = original_apply(self, row, entry, now)
        self._reduced.clear()
        return ran

    patch.setattr(ClusterView, "apply", forget)


def excluded_node_granted(patch: pytest.MonkeyPatch) -> None:
    """Exclusions of nodes are not checked."""
    patch.setattr(ClusterView, "avoid", lambda *_: None)
    patch.setattr(
        PlacementCoordinator, "_without_excluded", lambda self, proposal, claims, gang, now: claims
    )


def requirement_ignored(patch: pytest.MonkeyPatch) -> None:
    """What an application requires of nodes is checked neither by schedulers nor at the commit."""
    patch.setattr(ClusterView, "require", lambda *_: None)
    patch.setattr(Negotiator, "_of_suited_nodes", lambda self, proposal, _: (proposal, []))


def some_nodes_taken_for_all(patch: pytest.MonkeyPatch) -> None:
    """That nodes which meet a requirement have no capacity is taken for a lack of all nodes."""
    note = Exhaustion.note

    def note_for_all(
        self: Exhaustion,
        demand: Vector,
        requires: NodeRequirement | None = None,
        avoid: frozenset[NodeName] = frozenset(),
    ) -> None:
        note(self, demand, requires, avoid)
        if (demand, requires, avoid) in self.known:
            self.known[demand, None, frozenset()] = self.known[demand, requires, avoid]

    patch.setattr(Exhaustion, "note", note_for_all)


def data_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A container that finds no capacity near its data immediately goes elsewhere."""

    def at_once(self: Scheduler, job: Job, *about: Any) -> Any:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(self, "strict_order", True)
            return place_preferred(self, job, *about)

    place_preferred = Scheduler._place_preferred
    patch.setattr(Scheduler, "_place_preferred", at_once)


def reply_before_its_changes(patch: pytest.MonkeyPatch) -> None:
    """A remote scheduler acts on a reply before the changes that were sent before it."""
    reply_received = SchedulerSession.reply_received

    def at_once(self: SchedulerSession, reply: SchedulerReply | None, now: float) -> None:
        reply_received(self, None if reply is None else replace(reply, sequence=0), now)

    patch.setattr(SchedulerSession, "reply_received", at_once)


def place_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The request that follows a preemption is like any other."""
    patch.setattr(KeptPlaces, "take", lambda *_: NO_UNIT)


def place_not_kept_at_the_unit(patch: pytest.MonkeyPatch) -> None:
    """The replacement of a preempted container waits wherever its policy put it."""
    patch.setattr(Negotiator, "_commit_with_place", lambda *_: None)


def drivers_fill_the_cluster(patch: pytest.MonkeyPatch) -> None:
    """Whatever drivers hold, and leave to executors, another may start."""

    def verdict(self: DriverPlaces, *_: Any) -> Verdict:
        return Verdict("", np.ones_like(self._state.open))

    patch.setattr(DriverPlaces, "verdict", verdict)


def driver_of_a_late_proposal(patch: pytest.MonkeyPatch) -> None:
    """What drivers hold is not checked again when a driver's place is committed."""
    patch.setattr(PlacementCoordinator, "_may_start", lambda *_: True)


def end_of_drivers_awaited(patch: pytest.MonkeyPatch) -> None:
    """Containers wait at units for the end of drivers, as for that of executors."""
    is_stream = property(lambda entry: entry.workload_class is WorkloadClass.STREAM)
    patch.setattr(Entry, "has_no_end", is_stream)


def queued_where_cores_are_shared(patch: pytest.MonkeyPatch) -> None:
    """Batch queues at units whose cores other units may take."""
    add = SharedState.add

    def unmarked(self: SharedState, *about: Any) -> int:
        row = add(self, *about)
        self.shares[:] = False
        return row

    patch.setattr(SharedState, "add", unmarked)
    patch.setattr(Negotiator, "may_wait", lambda *_: "")


def run_times_added_up(patch: pytest.MonkeyPatch) -> None:
    """The run times of all containers are learned as one."""
    learned = RunTimeTable.learned

    def added(
        self: RunTimeTable, key: RunTimeKey, durations_s: list[float], input_bytes: int = 0
    ) -> RunTime:
        known = self.rows.get(key)
        before_s = 0.0 if known is None else known.mean_s
        row = learned(self, key, durations_s, input_bytes)
        return replace(row, mean_s=before_s + sum(durations_s))

    patch.setattr(RunTimeTable, "learned", added)


def job_in_the_cohort_of_before(patch: pytest.MonkeyPatch) -> None:
    """A job that backs off for longer stays among those that back off for as long as it did."""
    place = Backlog.place

    def stay(self: Backlog, job: Job, at_s: float | None = None) -> None:
        cohort = job.cohort
        if cohort is None or not job.delay_s:
            place(self, job, at_s)
        else:
            cohort.place(job, job.not_before_s if at_s is None else at_s)

    patch.setattr(Backlog, "place", stay)


def job_that_is_never_due(patch: pytest.MonkeyPatch) -> None:
    """The index of a backlog keeps a job whose own time has come among those to come."""

    def shared_alone(self: Cohort, now: float) -> Job | None:
        return self.shared.first() if self.level_s <= now else None

    patch.setattr(Cohort, "first_ready", shared_alone)


def freed_unit_overlooked(patch: pytest.MonkeyPatch) -> None:
    """What no unit could take counts as exhausted though a unit has changed since."""
    patch.setattr(Exhaustion, "_has_chance", lambda *_: False)


def earlier_requests_count(patch: pytest.MonkeyPatch) -> None:
    """A job that finds nothing holds back those that request what it once did."""
    choose = Scheduler.choose

    def as_ever(self: Scheduler, job: Job, *about: Any) -> Proposal:
        proposal = choose(self, job, *about)
        if job.lacks:
            job.lacks = dict.fromkeys(job.demands, 0.0)
        return proposal

    patch.setattr(Scheduler, "choose", as_ever)


def exclusions_of_all_alike(patch: pytest.MonkeyPatch) -> None:
    """A job that may not go to some nodes holds back those that may."""
    rules = Backlog._rules

    def alike(self: Backlog, job: Job) -> Any:
        return rules(self, job)._replace(excluded=frozenset())

    patch.setattr(Backlog, "_rules", alike)


def end_of_streams_awaited_in_order(patch: pytest.MonkeyPatch) -> None:
    """In strict order nothing passes what waits for a stream or a driver to end."""
    patch.setattr(Scheduler, "_waits_for_endless", lambda *_: False)


def units_of_one_node_are_one(patch: pytest.MonkeyPatch) -> None:
    """What waits at a unit is moved to other nodes, and never to another unit of its own."""
    return_waiting = returns.return_waiting

    def to_others(state: MasterState, container: Container, reason: str, now: float) -> None:
        if not reason.startswith(f"{container.node}/"):
            return_waiting(state, container, reason, now)

    patch.setattr(relocation, "return_waiting", to_others)


def batch_claims_of_a_stream(patch: pytest.MonkeyPatch) -> None:
    """What was chosen as batch is granted as batch, though it turned out to be a stream since."""
    patch.setattr(PlacementCoordinator, "_of_other_class", lambda _self, claims, _job: claims)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    double_commit,
    stale_lease,
    locked_units_granted,
    delta_missed,
    change_not_sent,
    jobs_of_a_lost_scheduler,
    policy_that_ignores_the_view,
    view_that_is_not_renewed,
    excluded_node_granted,
    requirement_ignored,
    some_nodes_taken_for_all,
    data_not_waited_for,
    reply_before_its_changes,
    place_forgotten,
    place_not_kept_at_the_unit,
    drivers_fill_the_cluster,
    driver_of_a_late_proposal,
    end_of_drivers_awaited,
    queued_where_cores_are_shared,
    run_times_added_up,
    job_in_the_cohort_of_before,
    job_that_is_never_due,
    freed_unit_overlooked,
    earlier_requests_count,
    exclusions_of_all_alike,
    end_of_streams_awaited_in_order,
    units_of_one_node_are_one,
    batch_claims_of_a_stream,
]
