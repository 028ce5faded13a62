"""The negotiator: the single place where claims become grants.

Schedulers choose on snapshots, in parallel, and may choose the same capacity. Here each claim is
checked against the authoritative state, in order of arrival:

======================================  ==========================================================
the claim                               what becomes of it
======================================  ==========================================================
fits, and no waiter is before it        RUN: its resources are taken
fits the unit but not what is free      QUEUE: it waits at that unit, no second round of choosing
the same, for a preempted container     QUEUE: first at the unit where that one was, if the wait
                                        there is bounded; else as any other
the same, but the queue is at a bound,  ABORT: back to its scheduler, which tries a new snapshot
or it is batch and the unit shares
cores with others
unit gone, closed or too small, or of   ABORT
a node that does not meet what the
application requires
fits once containers there have yielded QUEUE, in every case: it starts within their grace period
it yields itself, and does not fit      QUEUE: behind all others
a batch claim on what a stream's lease  PARK until the lease ends, then as above
locks
a stream claim without the lease, or    ABORT, whole proposal: the fencing token is stale
outside of what it locks
======================================  ==========================================================

Proposals are committed claim by claim, but for the gang of an application that starts
(``hrm.core.master.gangs``), which is all or nothing: half of it does no work and holds capacity
that others need. Each claim of a batch gang must RUN, or start as soon as others have yielded
(``hrm.core.queue.yielding``). A stream may also QUEUE where batch is
preempted for it (``ResourceUnit.preempts``), and nowhere else: other streams have no end, nor has
batch, for all that is known, on a node that does not preempt it.

Batch queues at no unit that shares its cores: containers of siblings take them before, and which
unit of which node is free first cannot be estimated. At its scheduler it waits for all of them.

Source: HRM paper, section 4.3 (algorithms 2 and 3, table of conflicts).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace

from hrm.core.messages.claims import Claim, Decision, Entry, Outcome, Proposal
from hrm.core.queue.estimate import simulate
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.start_rule import duration_s
from hrm.core.queue.yielding import starts_once_yielded
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.jobs import Job
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector, demand_vector, leaves
from hrm.core.vocabulary.model import NO_UNIT, ResourceUnitId, WorkloadClass
from hrm.core.vocabulary.node_requirement import NodeRequirement, unmet

__all__ = ["Negotiator", "StreamLease"]

_HELD = "streams and drivers hold what it needs there, and have no end"
_GANG = "a gang must run at once"
_NOT_PREEMPTED = "a stream's first executors wait only where batch is preempted for them"
_SHARED = "what several applications or queues want is not queued for"


class StreamLease:
    """The pessimistic lock of streams: one holder, a fencing token, a time limit.

    It locks the whole state, as in the paper, or only the units that its holder considers
    (``lease_scope``): then batch commits on other units pass.

    Invariants: ``token`` rises with every grant and is the token of the latest grant; ``holder`` is
    None iff the lease is free; a holder whose time is over holds nothing. ``units`` is what
    the latest grant locks, None for everything.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.holder: str | None = None
        self.token = 0
        self.expires_at_s = 0.0
        self.units: frozenset[ResourceUnitId] | None = None
        self.waiting: deque[str] = deque()

    def acquire(
        self, scheduler: str, now: float, units: frozenset[ResourceUnitId] | None = None
    ) -> int | None:
        """The token, or None: the scheduler is queued and gets the lease after a ``release``.

        ``units``: what to lock, None for everything. A present holder keeps what it has.
        """
        self.expire(now)
        if self.holder == scheduler:
            return self.token
        if self.holder is not None or (self.waiting and self.waiting[0] != scheduler):
            if scheduler not in self.waiting:
                self.waiting.append(scheduler)
            return None
        if self.waiting:
            self.waiting.popleft()
        self.holder = scheduler
        self.token += 1
        self.expires_at_s = now + self.timeout_s
        self.units = units
        return self.token

    def locks(self, unit_id: ResourceUnitId) -> bool:
        """Is the unit the holder's alone? Call ``expire`` first."""
        return self.holder is not None and self.covers(unit_id)

    def covers(self, unit_id: ResourceUnitId) -> bool:
        """Does the latest grant lock the unit, or did it?"""
        return self.units is None or unit_id in self.units

    def holds(self, scheduler: str, token: int, now: float) -> bool:
        self.expire(now)
        return self.holder == scheduler and token == self.token

    def release(self, scheduler: str, token: int) -> bool:
        """Give the lease back; False if it is not held under this token (any more)."""
        if self.holder != scheduler or token != self.token:
            return False
        self.holder = None
        return True

    def withdraw(self, scheduler: str) -> None:
        """The scheduler no longer waits for the lease."""
        if scheduler in self.waiting:
            self.waiting.remove(scheduler)

    def expire(self, now: float) -> bool:
        if self.holder is not None and now >= self.expires_at_s:
            self.holder = None
            return True
        return False


class Negotiator:
    """Owns the state and the lease.

    Invariant: every container in a unit's queue of ``state`` got there through ``commit`` or
    through the report of its node.
    """

    def __init__(self, state: SharedState, bounds: Bounds) -> None:
        self.state = state
        self.bounds = bounds
        self.lease = StreamLease(bounds.lease_timeout_s)
        self.parked: deque[Proposal] = deque()
        self.committed = 0
        self.queued = 0
        self.aborted = 0

    def acquire_lease(self, scheduler: str, job: Job, now: float) -> int | None:
        """The token of the lease for a stream's job, on what that may be placed on
        (``lease_scope``); None: the scheduler is queued for it."""
        return self.lease.acquire(scheduler, now, self._to_lock(job))

    def commit(self, proposal: Proposal, now: float) -> list[Outcome] | None:
        """Outcomes in the order of the claims; None if the proposal was parked behind the lease."""
        if proposal.workload_class is WorkloadClass.STREAM:
            return self._commit_stream(proposal, now)
        self.lease.expire(now)
        if self.lease.holder is not None and any(
            self.lease.locks(claim.unit_id)
            or (claim.entry.place and self.lease.locks(claim.entry.place))
            for claim in proposal.claims
        ):
            if len(self.parked) >= self.bounds.parked_proposals_limit:
                return self._abort_all(proposal, "too many commits wait for a stream's lease")
            self.parked.append(proposal)
            return None
        return self._commit(proposal, now, proposal.must_run)

    def may_reserve(self, places: Mapping[ResourceUnitId, int]) -> bool:
        """Could so many batch containers wait first at each of these units?"""
        most, find = max(1, self.bounds.waiting_limit), self.state.rows.get
        rows = {find(unit_id): many for unit_id, many in places.items()}
        return self.lease.holder is None and all(
            row is not None and self.state.open[row] and
            self.state.queue(row).first_count + many <= most
            for row, many in rows.items()
        )  # fmt: skip

    def reserve(self, entry: Entry, now: float) -> bool:
        """Let a batch container wait first at the unit that is its ``place``, whatever the estimate
        is: what holds that capacity is ordered to end. Is there such a place?"""
        row = self.state.rows.get(entry.place)
        self.lease.expire(now)
        if row is None or not self.state.open[row] or self.lease.holder is not None:
            return False
        queue = self.state.queue(row)
        is_full = queue.first_count >= max(1, self.bounds.waiting_limit)
        if is_full or not queue.could_hold(entry.demand) or entry.container_id in queue:
            return False
        queue.enqueue(entry)
        self.state.refresh(row)
        self.queued += 1
        return True

    def unpark(self) -> list[Proposal]:
        """The proposals that waited for the lease, if it is free; the caller commits them again."""
        if self.lease.holder is not None:
            return []
        proposals = list(self.parked)
        self.parked.clear()
        return proposals

    def forget_parked(self, scheduler: str) -> None:
        """What this scheduler proposed is not committed any more."""
        self.parked = deque(x for x in self.parked if x.scheduler != scheduler)

    def may_wait(self, queue: UnitQueue, entry: Entry, now: float) -> str:
        """Why ``entry`` may not wait at ``queue``; empty if it may (sections 3.4.2, 3.4.3). Of
        streams as many may as batch can make capacity for, whatever waits behind them."""
        limit, waiting = self.bounds.waiting_limit, queue.ranked_count
        if entry.workload_class is WorkloadClass.STREAM:
            if not limit:
                return "containers wait at no resource unit (waiting_limit = 0)"
            return "" if leaves(queue.stream_headroom, entry.demand) else _HELD
        if waiting >= limit:
            return f"{limit} containers wait there already (waiting_limit)"
        row = self.state.rows.get(queue.unit.unit_id)
        if row is not None and waiting >= self.state.waiting_limit[row]:
            limit = self.state.waiting_limit[row]
            return f"{limit} may wait there, as many as it finishes meanwhile (waiting_bound)"
        if len(queue.pool) > 1:
            return "it shares its cores with other units, whose containers would take them before"
        wait_s = simulate(entry.demand, queue.image(), now, duration_s(entry))
        if math.isinf(wait_s):
            return _HELD
        if wait_s >= self.bounds.wait_max_s:
            return f"the wait there would be {wait_s:.0f} s (wait_max_s)"
        return ""

    def _to_lock(self, job: Job) -> frozenset[ResourceUnitId] | None:
        """The units that a stream's lease is to lock; None for all."""
        if self.bounds.lease_scope == "global":
            return None
        demands = Counter(demand_vector(request.resources) for request in job.pending.values())
        view = ClusterView(self.state)
        if job.rows is not None:
            view.keep_rows(job.rows)
        if job.requires is not None:
            view.require(job.requires)
        if job.avoid:
            view.avoid(job.avoid)
        return view.candidates(demands)

    def _commit_stream(self, proposal: Proposal, now: float) -> list[Outcome]:
        if not self.lease.holds(proposal.scheduler, proposal.lease_token, now):
            return self._abort_all(proposal, "the stream's lease has ended")
        if not all(self.lease.covers(claim.unit_id) for claim in proposal.claims):
            reason = "a claim is outside of what the stream's lease locks"
            return self._abort_all(proposal, reason)
        return self._commit(proposal, now, proposal.must_run)

    def _commit(self, proposal: Proposal, now: float, must_run: frozenset[Vector]) -> list[Outcome]:
        """First the gang, then the rest one by one."""
        unsuited: list[Outcome] = []
        requires = proposal.requires
        if requires is not None and self.state.restricts(requires):
            proposal, unsuited = self._of_suited_nodes(proposal, requires)
            if unsuited and proposal.gang:
                self._count(unsuited)
                return unsuited + self._abort_all(proposal, unsuited[0].reason)
        gang = self._commit_together(proposal.claims[: proposal.gang], proposal, now)
        if gang and gang[0].decision is Decision.ABORT:
            return self._abort_all(proposal, gang[0].reason)
        rest = self._commit_each(proposal.claims[proposal.gang :], now, must_run)
        return self._count(unsuited + gang + rest)

    def _of_suited_nodes(
        self, proposal: Proposal, requires: NodeRequirement
    ) -> tuple[Proposal, list[Outcome]]:
        """The proposal without the claims on nodes that do not meet ``requires``, nor places there;
        and those claims, aborted."""
        state, suited = self.state, self.state.suited(requires)
        find = state.rows.get
        asked = [find(unit_id) for entry, unit_id, _ in proposal.claims]
        asked += [find(entry.place) for entry, _, _ in proposal.claims if entry.place]
        rows = [row for row in asked if row is not None]
        if suited[rows].all():  # the common case
            return proposal, []
        kept: list[Claim] = []
        aborted: list[Outcome] = []
        for claim in proposal.claims:
            place = find(claim.entry.place)
            if place is not None and not suited[place]:
                claim = claim._replace(entry=claim.entry._replace(place=NO_UNIT))
            row = find(claim.unit_id)
            if row is None or suited[row]:
                kept.append(claim)
            else:
                why = unmet(requires, state.properties[row])
                aborted.append(_abort(claim, f"{state.node(row)} {why}"))
        return replace(proposal, claims=tuple(kept)), aborted

    def _commit_together(
        self, claims: tuple[Claim, ...], proposal: Proposal, now: float
    ) -> list[Outcome]:
        """Grants for all of ``claims``, or none."""
        if len(claims) < proposal.gang:
            reason = f"all or nothing: {len(claims)} claims for a gang of {proposal.gang}"
            return [_abort(c, reason) for c in claims]
        outcomes: list[Outcome] = []
        stream = proposal.workload_class is WorkloadClass.STREAM
        for claim in claims:
            at_once = not stream or claim.entry.demand in proposal.must_run
            must_run = _GANG if at_once else self._must_run(claim)
            outcome = self._commit_claim(claim, now, must_run=must_run)
            outcomes.append(outcome)
            if outcome.decision is Decision.ABORT:
                for done in outcomes[:-1]:
                    self._undo(done.claim)
                reason = f"all or nothing: {outcome.reason}"
                return [_abort(c, reason) for c in claims]
        self._publish(outcomes)
        return outcomes

    def _must_run(self, claim: Claim) -> str:
        """Why this claim of a stream that starts may not wait; empty if it may."""
        row = self.state.rows.get(claim.unit_id)
        return "" if row is None or self.state.preempts[row] else _NOT_PREEMPTED

    def _commit_each(
        self, claims: tuple[Claim, ...], now: float, shared: frozenset[Vector]
    ) -> list[Outcome]:
        """Claim by claim, and in one pass where all of them fit: the common case."""
        find, queues = self.state.rows.get, self.state.queues
        rows = [row for _, unit_id, _ in claims if (row := find(unit_id)) is not None]
        all_open = len(rows) == len(claims) and self.state.all_open(rows)
        demand = claims[0].entry.demand if claims else None
        alike = True
        outcomes: list[Outcome] = []
        if all_open:
            for claim, row in zip(claims, rows, strict=True):
                entry = claim.entry
                queue = queues[row]
                if queue is None or not queue.run_if_free(entry, now):
                    break
                alike = alike and entry.demand == demand and not entry.yields
                outcomes.append(_runs(claim))
            if len(outcomes) == len(claims) and alike and demand is not None:
                self.state.taken(rows, demand, no_end=claims[0].entry.has_no_end)
                return outcomes
        outcomes += [
            self._commit_claim(claim, now, must_run=_SHARED if claim.entry.demand in shared else "")
            for claim in claims[len(outcomes) :]
        ]
        self._publish(outcomes)
        return outcomes

    def _commit_claim(self, claim: Claim, now: float, *, must_run: str = "") -> Outcome:
        """Change the queue, if the claim may have it; ``_publish`` updates the table. ``must_run``:
        why it may not wait there."""
        entry, unit_id, _ = claim
        if entry.place and not must_run:
            outcome = self._commit_with_place(claim, now)
            if outcome is not None:
                return outcome
        row = self.state.rows.get(unit_id)
        if row is None:
            return _abort(claim, "the resource unit no longer exists")
        if not self.state.open[row]:
            return _abort(claim, "the node accepts no new containers")
        queue = self.state.queue(row)
        if queue.run_if_free(entry, now):
            return _runs(claim)
        if not queue.could_hold(entry.demand):
            return _abort(claim, "the resource unit is too small, or kept for its GPU")
        if entry.container_id in queue:
            return _abort(claim, "the container is there already")
        if entry.yields_now and must_run != _GANG:
            refusal = self._may_wait_last(queue)
        elif not entry.yields_now and starts_once_yielded(queue, entry):
            refusal = ""
        elif must_run:
            refusal = f"another claim took the capacity, and {must_run}"
        else:
            refusal = self.may_wait(queue, entry, now)
        if refusal:
            return _abort(claim, refusal)
        queue.enqueue(entry)
        return Outcome(claim, Decision.QUEUE)

    def _may_wait_last(self, queue: UnitQueue) -> str:
        """Why one that yields may not wait there; empty if it may. It is in the way of none."""
        limit = self.bounds.waiting_limit
        if len(queue.yielding_waiting) < limit:
            return ""
        return f"{limit} containers that yield wait there already (waiting_limit)"

    def _commit_with_place(self, claim: Claim, now: float) -> Outcome | None:
        """For the replacement of a preempted container: it runs where it was claimed, or stands
        first where it was; None: neither can be. Those that stand first at a unit are bounded by
        themselves, so that a full queue costs none its place."""
        entry = claim.entry
        claimed, queue = self._open_queue(claim.unit_id), self._open_queue(entry.place)
        if claimed is not None and claimed.run_if_free(entry, now):
            return _runs(claim)
        if queue is None or entry.workload_class is WorkloadClass.STREAM:
            return None
        if not queue.could_hold(entry.demand) or entry.container_id in queue:
            return None
        if queue.first_count >= self.bounds.waiting_limit:
            return None
        if simulate(entry.demand, queue.image_at_place(), now) >= self.bounds.wait_max_s:
            return None
        queue.enqueue(entry)
        return Outcome(claim._replace(unit_id=entry.place), Decision.QUEUE)

    def _open_queue(self, unit_id: ResourceUnitId) -> UnitQueue | None:
        row = self.state.rows.get(unit_id)
        return None if row is None or not self.state.open[row] else self.state.queue(row)

    def _publish(self, outcomes: list[Outcome]) -> None:
        rows, run = self.state.rows, Decision.RUN
        if outcomes and all(x.decision is run for x in outcomes):
            first = outcomes[0].claim.entry
            demand = first.demand
            if all(x.claim.entry.demand == demand and not x.claim.entry.yields for x in outcomes):
                changed = [rows[x.claim.unit_id] for x in outcomes]
                self.state.taken(changed, demand, no_end=first.has_no_end)
                return
        abort = Decision.ABORT
        self.state.refresh_all({rows[x.claim.unit_id] for x in outcomes if x.decision is not abort})

    def _undo(self, claim: Claim) -> None:
        self.state.queue(self.state.rows[claim.unit_id]).remove(claim.entry.container_id)

    def _abort_all(self, proposal: Proposal, reason: str) -> list[Outcome]:
        return self._count([_abort(claim, reason) for claim in proposal.claims])

    def _count(self, outcomes: list[Outcome]) -> list[Outcome]:
        decisions = [decision for _, decision, _ in outcomes]
        self.committed += decisions.count(Decision.RUN)
        self.queued += decisions.count(Decision.QUEUE)
        self.aborted += decisions.count(Decision.ABORT)
        return outcomes


def _runs(claim: Claim) -> Outcome:
    return tuple.__new__(Outcome, (claim, Decision.RUN, ""))


def _abort(claim: Claim, reason: str) -> Outcome:
    return Outcome(claim, Decision.ABORT, reason)
