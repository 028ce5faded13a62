"""Bugs of schedulers, the negotiator, gangs, leases, policies and remote schedulers' state."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.master import gangs, placement
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.state import Application, MasterState
from hrm.core.master.subscriptions import Subscriptions
from hrm.core.messages.claims import Claim, Entry, Outcome, Proposal
from hrm.core.messages.state_changes import UnitState
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.negotiator import Negotiator, StreamLease
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Job, Placement, Scheduler
from hrm.core.scheduling.session import SchedulerReply, SchedulerSession
from hrm.core.scheduling.shared_state import SharedState
from hrm.policies.min_wait import MinWait

__all__ = ["BUGS"]

_missing = gangs.missing


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


def stream_in_parts(patch: pytest.MonkeyPatch) -> None:
    """Of a stream's first request the negotiator grants what fits."""

    def commit(self: Negotiator, proposal: Proposal, now: float) -> list[Outcome]:
        return self._count(self._commit_each(proposal.claims, now, True))

    patch.setattr(Negotiator, "_commit_stream", commit)


def stale_lease(patch: pytest.MonkeyPatch) -> None:
    """The fencing token of a stream's lease is not checked."""
    patch.setattr(StreamLease, "holds", lambda *_: True)


def gang_in_parts(patch: pytest.MonkeyPatch) -> None:
    """The negotiator grants the part of a gang that fits."""

    def commit(
        self: Negotiator, claims: tuple[Claim, ...], proposal: Proposal, now: float
    ) -> list[Outcome]:
        return [self._commit_claim(claim, now) for claim in claims]

    patch.setattr(Negotiator, "_commit_together", commit)
    patch.setattr(gangs, "missing", lambda app: min(1, _missing(app)))


def gang_that_waits(patch: pytest.MonkeyPatch) -> None:
    """Some of a gang may wait in the queue of a unit."""
    commit = Negotiator._commit_claim

    def may_wait(self: Negotiator, claim: Claim, now: float, *, must_run: bool = False) -> Outcome:
        return commit(self, claim, now)

    placement = Scheduler._placement

    def in_a_queue(self: Scheduler, job: Job, *about: Any) -> Placement:
        return replace(placement(self, job, *about), waiting_limit=self.bounds.waiting_limit)

    patch.setattr(Negotiator, "_commit_claim", may_wait)
    patch.setattr(Scheduler, "_placement", in_a_queue)


def gang_refused_for_a_lost_node(patch: pytest.MonkeyPatch) -> None:
    """A gang is refused permanently while a node is away."""
    refusal = gangs.refusal

    def hasty(master_state: MasterState, app: Application, resources: Any) -> str:
        with pytest.MonkeyPatch.context() as there:
            live = {x: n for x, n in master_state.nodes.items() if n.state.value != "lost"}
            there.setattr(master_state, "nodes", live)
            return refusal(master_state, app, resources)

    patch.setattr(gangs, "refusal", hasty)


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


def data_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A container that finds no capacity near its data immediately goes elsewhere."""

    def at_once(self: Scheduler, job: Job, *about: Any) -> Any:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(self, "strict_order", True)
            return place_near(self, job, *about)

    place_near = Scheduler._place_near
    patch.setattr(Scheduler, "_place_near", at_once)


def reply_before_its_changes(patch: pytest.MonkeyPatch) -> None:
    """A remote scheduler acts on a reply before the changes that were sent before it."""
    reply_received = SchedulerSession.reply_received

    def at_once(self: SchedulerSession, reply: SchedulerReply | None, now: float) -> None:
        reply_received(self, None if reply is None else replace(reply, sequence=0), now)

    patch.setattr(SchedulerSession, "reply_received", at_once)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    stream_in_parts,
    double_commit,
    stale_lease,
    gang_in_parts,
    gang_that_waits,
    gang_refused_for_a_lost_node,
    locked_units_granted,
    delta_missed,
    change_not_sent,
    jobs_of_a_lost_scheduler,
    policy_that_ignores_the_view,
    view_that_is_not_renewed,
    excluded_node_granted,
    data_not_waited_for,
    reply_before_its_changes,
]
