"""What the master sends to schedulers of other processes: changes, leases, outcomes of proposals.

Changes are collected and sent after every event (``RemoteScheduler.changes``). A job is sent with
what limits it: its gang, the nodes that it avoids, its requirement, its part of the GPUs. These
follow from what happens elsewhere, so they are computed here, for the jobs to which it may have
happened. A reply to a call is always preceded by all changes, since it names the latest message
that the scheduler has to have taken in before (``core.scheduling.session``).

What arrives from such a scheduler is ``core.master.subscriptions``' part.
"""

from __future__ import annotations

from collections.abc import Sequence

from hrm.core.master import gangs
from hrm.core.master.gpu_shares import FairGpuParts
from hrm.core.master.head_starts import HeadStarts
from hrm.core.master.scheduler_pool import SchedulerPool
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages.claims import Decision, Outcome
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Job
from hrm.errors import NotFound, Unavailable

__all__ = ["RemoteUpdates"]


class RemoteUpdates:
    """Sends to remote schedulers; each keeps what has been sent to it."""

    def __init__(
        self,
        master_state: MasterState,
        negotiator: Negotiator,
        pool: SchedulerPool,
        gpu_shares: FairGpuParts,
        head_starts: HeadStarts,
    ) -> None:
        self._master_state = master_state
        self._negotiator = negotiator
        self._pool = pool
        self._gpu_shares = gpu_shares
        self._head_starts = head_starts

    def send_changes(
        self, scheduler: RemoteScheduler, now: float, *, all_of_them: bool = True
    ) -> None:
        """Send what has changed since the last time."""
        self._restrict_jobs(scheduler, now)
        if all_of_them or scheduler.changed_jobs or scheduler.parts_are_old(now):
            scheduler.parts_at_s = now
            self._update_parts(scheduler, now)
        freed_at_s = now
        if scheduler.has_freed:
            freed_at_s = self._head_starts.notified_at_s(scheduler, now)
        had_freed, notified = scheduler.has_freed, False
        changes = scheduler.changes(now, all_of_them=all_of_them, notifies=freed_at_s <= now)
        for message in changes:
            notified = message.has_freed
            self._master_state.out.append(
                c.SendToScheduler(
                    scheduler=scheduler.name, session=scheduler.session, message=message
                )
            )
        if notified:
            self._head_starts.sent(scheduler, now)
        elif had_freed and not scheduler.has_freed and self._head_starts.withdraw(scheduler):
            self._pool.wake_inside()
        if scheduler.has_freed:
            self._pool.wake_to_send(scheduler, max(scheduler.due_at_s, freed_at_s))

    def send_outcomes(
        self, scheduler: RemoteScheduler, job: Job | None, outcomes: Sequence[Outcome], now: float
    ) -> None:
        """Reply to its proposal. With that its round is over."""
        self.send_changes(scheduler, now)
        result = c.ClaimsSettled(outcomes=tuple(outcomes), sequence=scheduler.sequence)
        self._master_state.reply(scheduler.call_id, result)
        scheduler.call_id = 0
        if job is not None:
            scheduler.note_lack(job)
        any_granted = any(x.decision is not Decision.ABORT for x in outcomes)
        if self._head_starts.proposed(scheduler, now, any_granted=any_granted):
            self._pool.wake_inside()

    def refuse_proposal(self, scheduler: RemoteScheduler) -> None:
        """Its claims have waited too long; without any that wait there is nothing to refuse."""
        if not scheduler.call_id:
            return
        limit_s = self._master_state.bounds.proposal_timeout_s
        error = Unavailable(
            f"the claims have waited {limit_s:g} s for the end of a stream's lease; choose again"
        )
        self._master_state.refuse(scheduler.call_id, error)
        scheduler.call_id = 0

    def grant_lease(self, scheduler: RemoteScheduler, now: float) -> None:
        """Reply to its call for the lease, if it is its turn; else it is queued."""
        lease = self._negotiator.lease
        job = scheduler.jobs.get(scheduler.lease_for)
        if job is None or not scheduler.lease_call_id:
            lease.withdraw(scheduler.name)
            if scheduler.lease_call_id:
                error = NotFound("the job waits for nothing more")
                self._master_state.refuse(scheduler.lease_call_id, error)
            scheduler.lease_call_id = 0
            return
        token = self._negotiator.acquire_lease(scheduler.name, job, now)
        if token is None:
            return
        self.send_changes(scheduler, now)
        result = c.LeaseGranted(
            token=token,
            expires_in_s=lease.expires_at_s - now,
            sequence=scheduler.sequence,
            units=lease.units,
        )
        self._master_state.reply(scheduler.lease_call_id, result)
        scheduler.lease_call_id = 0

    def _restrict_jobs(self, scheduler: RemoteScheduler, now: float) -> None:
        """Set what limits its jobs; those for which it has changed are to be sent."""
        for job in self._perhaps_restricted(scheduler, now):
            app = self._master_state.applications[job.application_id]
            gang = gangs.missing(app)
            avoid = self._master_state.exclusions.avoided(app.application_id, now)
            requires = app.requires and self._master_state.required(app)
            if gang != job.gang or avoid != job.avoid or requires != job.requires:
                scheduler.restrict(job, gang, avoid, requires)
                scheduler.changed_jobs[app.application_id] = None
                if job.gpus:
                    scheduler.parts_changed[app.application_id] = None
            scheduler.restricted.pop(app.application_id, None)
            if app.gang_min > 1 or gang or avoid != scheduler.avoid:
                scheduler.restricted[app.application_id] = None

    def _perhaps_restricted(self, scheduler: RemoteScheduler, now: float) -> list[Job]:
        """The jobs whose gang, or whose nodes to avoid, may not be as they were sent; in order."""
        exclusions = self._master_state.exclusions
        avoid = exclusions.avoided_by_all(now)
        if avoid != scheduler.avoid:
            scheduler.avoid = avoid
            return list(scheduler.jobs.values())
        for application_id in exclusions.applications:
            if application_id in scheduler.jobs:
                scheduler.restricted[application_id] = None
        if not (scheduler.restricted or scheduler.changed_jobs):
            return []
        for application_id in [x for x in scheduler.restricted if x not in scheduler.jobs]:
            del scheduler.restricted[application_id]
        perhaps = {**scheduler.restricted, **scheduler.changed_jobs}
        jobs = [scheduler.jobs[x] for x in perhaps if x in scheduler.jobs]
        return sorted(jobs, key=lambda job: job.arrival)

    def _update_parts(self, scheduler: RemoteScheduler, now: float) -> None:
        """Set the parts of GPUs of its jobs; those for which they have changed are to be sent."""
        if not scheduler.backlog.gpu_jobs:
            return
        if self._master_state.gpus.uses:
            for inside in self._gpu_shares.follow(now):
                self._pool.wake(inside, now)
        gpu_jobs, changed = scheduler.backlog.gpu_jobs, scheduler.parts_changed
        jobs = {x: gpu_jobs[x] for x in changed if x in gpu_jobs}
        changed.clear()
        for job in self._gpu_shares.update(jobs, now):
            scheduler.changed_jobs[job.application_id] = None
