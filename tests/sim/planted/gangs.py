"""Bugs of what starts whole: gangs, and streams."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hrm.core.master import gangs
from hrm.core.master.entities import Application
from hrm.core.master.gang_starts import GangStarts
from hrm.core.master.relocation import Relocation
from hrm.core.master.state import MasterState
from hrm.core.messages.claims import Claim, Entry, Outcome, Proposal
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling import backlog, negotiator
from hrm.core.scheduling.backlog import Backlog
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.jobs import Job
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.scheduler import Placement, Scheduler
from hrm.core.scheduling.shared_state import SharedState
from hrm.policies import placement_helpers

__all__ = ["BUGS"]

_missing = gangs.missing


def stream_in_parts(patch: pytest.MonkeyPatch) -> None:
    """Of a stream's first request the negotiator grants what fits."""

    def commit(self: Negotiator, proposal: Proposal, now: float) -> list[Outcome]:
        return self._count(self._commit_each(proposal.claims, now, frozenset()))

    patch.setattr(Negotiator, "_commit_stream", commit)


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

    def hasty(master_state: MasterState, app: Application, *about: Any) -> str:
        with pytest.MonkeyPatch.context() as there:
            live = {x: n for x, n in master_state.nodes.items() if n.state.value != "lost"}
            there.setattr(master_state, "nodes", live)
            return refusal(master_state, app, *about)

    patch.setattr(gangs, "refusal", hasty)


def gang_of_one_size(patch: pytest.MonkeyPatch) -> None:
    """Whatever an application requests while its gang waits counts as if all of it were so."""

    def alike(_state: Any, app: Application, coming: Any) -> Any:
        return defaultdict(lambda: app.gang_min)

    names = dict(vars(gangs), _members=alike)
    source, guard = inspect.getsource(gangs.refusal), "demand not in members"
    assert guard in source
    exec(source.replace(guard, "False"), names)
    patch.setattr(gangs, "refusal", names["refusal"])


def gang_settled_by_its_grant(patch: pytest.MonkeyPatch) -> None:
    """A gang is forgotten once it has been granted, whether all of it start or not."""

    def granted(_: MasterState, app: Application) -> None:
        if not _missing(app):
            app.gang_min = 0

    patch.setattr(gangs, "granted", granted)


def half_a_gang_kept(patch: pytest.MonkeyPatch) -> None:
    """What runs of a gang keeps its capacity, however long the rest finds no place."""
    patch.setattr(GangStarts, "_give_back", lambda *_: None)


def stream_waits_for_kept_batch(patch: pytest.MonkeyPatch) -> None:
    """A stream's first containers may wait where batch is not preempted for them."""
    add = SharedState.add

    def add_one(self: SharedState, *about: Any) -> int:
        row = add(self, *about)
        self.preempts[row] = True
        return row

    patch.setattr(SharedState, "add", add_one)


def batch_in_line_counts_for_streams(patch: pytest.MonkeyPatch) -> None:
    """No stream waits where as much waits already as batch may."""
    may_wait = Negotiator.may_wait

    def bounded(self: Negotiator, queue: UnitQueue, entry: Entry, now: float) -> str:
        if queue.waiting_count >= self.bounds.waiting_limit:
            return "others wait there already"
        return may_wait(self, queue, entry, now)

    patch.setattr(Negotiator, "may_wait", bounded)


def stream_left_with_kept_batch(patch: pytest.MonkeyPatch) -> None:
    """A stream that waits for batch which is not preempted stays, though it is elsewhere."""
    patch.setattr(Relocation, "_preempting", lambda *_: None)


def gangs_of_all_sizes_alike(patch: pytest.MonkeyPatch) -> None:
    """A gang or a stream that finds nothing holds back those that want fewer at once."""
    rules = Backlog._rules

    def alike(self: Backlog, job: Job) -> Any:
        each = rules(self, job)
        no_sizes: frozenset[Any] = frozenset()
        return each._replace(group=each.group and (0, no_sizes, no_sizes))

    patch.setattr(Backlog, "_rules", alike)


def gangs_behind_any_smaller(patch: pytest.MonkeyPatch) -> None:
    """A gang that finds nothing where it may go holds back larger ones, wherever those may go."""

    def wants_more(others: Any, rules: Any) -> bool:
        more, fewer = others.group, rules.group
        return more is not None and fewer is not None and bool(more[0] >= fewer[0])

    patch.setattr(backlog, "_wants_more", wants_more)


def stream_queued_behind_streams(patch: pytest.MonkeyPatch) -> None:
    """A stream may wait in the queue of any unit that is large enough."""
    patch.setattr(ClusterView, "streams_leave", lambda self, demand: np.ones_like(self.open))
    patch.setattr(placement_helpers, "leaves", lambda *_: True)
    patch.setattr(negotiator, "leaves", lambda *_: True)


def stream_that_stops_batch(patch: pytest.MonkeyPatch) -> None:
    """What was batch when it was queued stays there as a stream, whatever other streams hold."""
    patch.setattr(Relocation, "_return_streams", lambda *_: None)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    stream_in_parts,
    gang_in_parts,
    gang_that_waits,
    gang_refused_for_a_lost_node,
    gang_of_one_size,
    gang_settled_by_its_grant,
    half_a_gang_kept,
    stream_waits_for_kept_batch,
    stream_left_with_kept_batch,
    batch_in_line_counts_for_streams,
    gangs_of_all_sizes_alike,
    gangs_behind_any_smaller,
    stream_queued_behind_streams,
    stream_that_stops_batch,
]
