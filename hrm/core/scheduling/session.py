"""A remote scheduler's side of one subscription: rounds, the lease, and when a reply is valid.

    idle ──► requests the lease (a stream's job) ──► proposes ──► takes the outcomes in ──► idle
      └────────────── proposes (a batch job) ──────────┘

Replies to calls do not travel on the stream of changes. Each names the message that was sent before
it, and waits here until that has been taken in; so the scheduler never takes for pending what it
was granted, nor for free what a lease shows taken. If the message does not arrive in time, the
session ends. A call that fails costs the job a pause.

The machine makes no call itself: ``step`` returns the next one.

Source: HRM paper, section 4.3.3 (several schedulers that synchronise copies); the protocol is
HRM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hrm.core.messages.claims import Outcome
from hrm.core.messages.commands import ClaimsSettled, LeaseGranted
from hrm.core.messages.events import ClaimsProposed, LeaseRequested, LeaseReturned
from hrm.core.messages.state_changes import StateChanged
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.vocabulary.model import ApplicationId, WorkloadClass
from hrm.errors import Unavailable

__all__ = ["CALL_TIMEOUT_S", "SchedulerCall", "SchedulerReply", "SchedulerSession"]

CALL_TIMEOUT_S = 15.0
"""Longer than the master's own limit, after which it replies with the reason."""

SchedulerCall: TypeAlias = LeaseRequested | ClaimsProposed | LeaseReturned
SchedulerReply: TypeAlias = LeaseGranted | ClaimsSettled


class SchedulerSession:
    """One subscription, from its first change to its end.

    Invariant: at most one of ``_call``, which the master has not answered yet, and ``_reply``,
    which waits for the changes before it, is set; while one is, no round begins. Times are of this
    process's clock, but for those of ``replica``, which are the master's.

    Args:
        scheduler: chooses; with the bounds of the master's first message.
        number: of the session, from the same message.
        changes_limit_s: how long an answer waits for the changes before it.
    """

    def __init__(
        self, scheduler: Scheduler, number: int, *, changes_limit_s: float = CALL_TIMEOUT_S
    ) -> None:
        self.scheduler = scheduler
        self.number = number
        self.replica = Replica(scheduler)
        self._view = ClusterView(self.replica.state)
        self._changes_limit_s = changes_limit_s
        self._offset_s = 0.0
        self._call: SchedulerCall | None = None
        self._reply: tuple[SchedulerCall, SchedulerReply] | None = None
        self._overdue_s = 0.0

    @property
    def idle(self) -> bool:
        """May a round begin?"""
        return self._call is None and self._reply is None

    def changed(self, change: StateChanged, now: float) -> None:
        """Take in a message of the stream, in order."""
        self._offset_s = change.now - now
        self.replica.apply(change)

    def reply_received(self, reply: SchedulerReply | None, now: float) -> None:
        """The master's reply to the latest call; None: it refused, or none came in time."""
        call, self._call = self._call, None
        assert call is not None, "no call is outstanding"
        if isinstance(call, LeaseReturned):
            return  # refused: its time was over; lost: its time ends
        if reply is None:
            self._settle(_application_of(call), (), now)
            return
        self._reply = (call, reply)
        self._overdue_s = now + self._changes_limit_s

    def step(self, now: float) -> SchedulerCall | None:
        """Go on as far as possible: the next call to make, or None until ``due_s``, a change or
        an answer.

        Raises:
            Unavailable: the changes before an answer do not arrive; the session is over.
        """
        if self._call is not None:
            return None
        if self._reply is None:
            self._call = self._begin(now)
            return self._call
        call, reply = self._reply
        if self.replica.sequence < reply.sequence:
            if now >= self._overdue_s:
                raise Unavailable("the master's changes do not arrive")
            return None
        self._reply = None
        if isinstance(reply, LeaseGranted):
            self._call = self._use(_application_of(call), reply, now)
        else:
            self._settle(_application_of(call), reply.outcomes, now)
        return self._call

    def due_s(self) -> float | None:
        """When ``step`` has something to do though nothing arrives; None: never."""
        if self._call is not None:
            return None
        if self._reply is not None:
            reached = self.replica.sequence >= self._reply[1].sequence
            return float("-inf") if reached else self._overdue_s
        at_s = self.scheduler.next_time_s()
        return None if at_s is None else at_s - self._offset_s

    def _begin(self, now: float) -> SchedulerCall | None:
        due_s, at_s = self.due_s(), self.scheduler.next_time_s()
        if due_s is None or at_s is None or now < due_s:
            return None
        # At ``due_s`` it is due: the sum may have been rounded to a moment before that.
        job = self.scheduler.next_job(max(at_s, now + self._offset_s))
        if job is None:
            return None
        if job.workload_class is WorkloadClass.BATCH:
            return self._propose(job, None, now)
        self.scheduler.begin(job)
        name, application_id = self.scheduler.name, job.application_id
        return LeaseRequested(
            now=0.0, call_id=0, scheduler=name, session=self.number, application_id=application_id
        )

    def _use(self, application_id: ApplicationId, lease: LeaseGranted, now: float) -> SchedulerCall:
        """Propose under the lease, or give it back where the job is gone meanwhile."""
        job = self.scheduler.jobs.get(application_id)
        if job is not None:
            return self._propose(job, lease, now)
        name = self.scheduler.name
        return LeaseReturned(
            now=0.0, call_id=0, scheduler=name, session=self.number, token=lease.token
        )

    def _propose(self, job: Job, lease: LeaseGranted | None, now: float) -> ClaimsProposed:
        self._view.renew()
        self._view.keep_open(lease.units if lease else None)
        token = lease.token if lease else 0
        proposal = self.scheduler.choose(job, self._view, token, now + self._offset_s)
        return ClaimsProposed(
            now=0.0,
            proposal=proposal,
            call_id=0,
            session=self.number,
            problem=job.policy_fault,
            sequence=self.replica.sequence,
        )

    def _settle(
        self, application_id: ApplicationId, outcomes: Sequence[Outcome], now: float
    ) -> None:
        """Without outcomes the job backs off."""
        job = self.scheduler.jobs.get(application_id)
        if job is not None:
            self.scheduler.settle(job, list(outcomes), now + self._offset_s)


def _application_of(call: SchedulerCall) -> ApplicationId:
    assert not isinstance(call, LeaseReturned)
    if isinstance(call, ClaimsProposed):
        return call.proposal.application_id
    return call.application_id
