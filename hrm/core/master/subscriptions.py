"""The master's side of the protocol with schedulers of other processes;
``core.scheduling.remote_scheduler`` has the idea.

Nothing that they send is trusted: claims are for containers that wait in their own jobs, once each,
with the demand that the application requested, under the job's own class.
"""

from __future__ import annotations

from dataclasses import replace

from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Claim
from hrm.core.messages.state_changes import SCHEDULER_BOUNDS, Subscribed
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Job
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import Followed
from hrm.errors import AlreadyExists, InvalidRequest, NotFound

__all__ = ["Subscriptions"]


class Subscriptions:
    """Invariant: a scheduler of ``placement.schedulers`` is remote iff it has a live session."""

    def __init__(
        self, master_state: MasterState, placement: PlacementCoordinator, negotiator: Negotiator
    ) -> None:
        self.master_state = master_state
        self.placement = placement
        self.negotiator = negotiator

    def connected(self, event: e.SchedulerConnected) -> None:
        if event.scheduler in self.placement.schedulers:
            message = (
                f"another scheduler is called {event.scheduler}; give this one another name "
                f"(--name), or stop the other"
            )
            self.master_state.refuse(event.call_id, AlreadyExists(message))
            return
        state, bounds = self.master_state.state, self.master_state.bounds
        scheduler = RemoteScheduler(event.scheduler, event.session, state, bounds, event.now)
        self.placement.schedulers[scheduler.name] = scheduler
        self.placement.head_starts.joined(scheduler)
        hello = Subscribed(
            session=event.session,
            followed=Followed(self.master_state.epoch, self.master_state.epoch_id),
            bounds=Bounds(**{x: getattr(bounds, x) for x in SCHEDULER_BOUNDS}),
        )
        self.master_state.reply(event.call_id, hello)
        self.placement.remotes.send_changes(scheduler, event.now)

    def disconnected(self, event: e.SchedulerDisconnected) -> None:
        scheduler = self._find(event.scheduler, event.session)
        if scheduler is not None:
            self._lose(scheduler, event.now)

    def proposed(self, event: e.ClaimsProposed) -> None:
        """Claims of a remote scheduler; those of the others go to ``placement`` straight away."""
        name = event.proposal.scheduler
        if not event.call_id:
            if not isinstance(self.placement.schedulers.get(name), RemoteScheduler):
                self.placement.proposed(event.proposal, event.now)
            return
        scheduler = self._find(name, event.session)
        if scheduler is None:
            self.master_state.refuse(event.call_id, _over(name))
            return
        if scheduler.in_flight is not None:
            message = f"a proposal of {name} waits for a stream's lease; wait for its outcome"
            self.master_state.refuse(event.call_id, InvalidRequest(message))
            return
        scheduler.heard_at_s = event.now
        scheduler.seen_sequence = event.sequence
        scheduler.rounds += 1
        scheduler.call_id = event.call_id
        scheduler.in_flight = (event.proposal.application_id, event.now)
        proposal = event.proposal
        job = scheduler.jobs.get(proposal.application_id)
        if job is not None:
            job.policy_fault = event.problem
            claims = _checked(scheduler, job, proposal.claims)
            proposal = replace(proposal, claims=claims, workload_class=job.workload_class)
        self.placement.proposed(proposal, event.now)

    def lease_requested(self, event: e.LeaseRequested) -> None:
        scheduler = self._find(event.scheduler, event.session)
        if scheduler is None:
            self.master_state.refuse(event.call_id, _over(event.scheduler))
            return
        scheduler.heard_at_s = event.now
        job = scheduler.jobs.get(event.application_id)
        if job is None:
            message = f"{event.application_id} waits for nothing at {event.scheduler}"
            self.master_state.refuse(event.call_id, NotFound(message))
            return
        if scheduler.lease_call_id:
            self.master_state.refuse(
                scheduler.lease_call_id, InvalidRequest("a later call requests the lease")
            )
        scheduler.lease_call_id = event.call_id
        scheduler.lease_for = event.application_id
        self.placement.remotes.grant_lease(scheduler, event.now)

    def lease_returned(self, event: e.LeaseReturned) -> None:
        scheduler = self._find(event.scheduler, event.session)
        if scheduler is None:
            self.master_state.refuse(event.call_id, _over(event.scheduler))
            return
        self.negotiator.lease.expire(event.now)
        if not self.negotiator.lease.release(event.scheduler, event.token):
            message = (
                f"{event.scheduler} does not hold the lease under token {event.token}: it has "
                f"been released, or has expired"
            )
            self.master_state.refuse(event.call_id, InvalidRequest(message))
            return
        self.placement.lease_free(event.now)
        self.master_state.reply(event.call_id, c.Done())

    def tick(self, now: float) -> None:
        for scheduler in list(self.placement.schedulers.values()):
            if isinstance(scheduler, RemoteScheduler) and scheduler.silent(now):
                drop = c.DropScheduler(scheduler=scheduler.name, session=scheduler.session)
                self.master_state.out.append(drop)
                self._lose(scheduler, now)

    def flush(self, now: float) -> None:
        """Send each session the changes that concern it; after every event."""
        for scheduler in self.placement.schedulers.values():
            if isinstance(scheduler, RemoteScheduler):
                self.placement.remotes.send_changes(scheduler, now, all_of_them=False)

    def _lose(self, scheduler: RemoteScheduler, now: float) -> None:
        """Give its jobs to other schedulers, and release what it held."""
        del self.placement.schedulers[scheduler.name]
        self.master_state.state.unwatch(scheduler.units)
        self.negotiator.forget_parked(scheduler.name)
        self.placement.head_starts.left(scheduler)
        lease = self.negotiator.lease
        lease.withdraw(scheduler.name)
        if lease.holder == scheduler.name:
            lease.release(scheduler.name, lease.token)
        for call_id in (scheduler.call_id, scheduler.lease_call_id):
            if call_id:
                self.master_state.refuse(call_id, _over(scheduler.name))
        for app in self.master_state.applications.values():
            if app.scheduler == scheduler.name:
                app.scheduler = self.placement.pool.choose_scheduler(app.application_id)
        for application_id, job in scheduler.jobs.items():
            app = self.master_state.applications[application_id]
            for container_id in job.pending:
                self.placement.hand_over(app, app.containers[container_id], now)
        self.placement.lease_free(now)

    def _find(self, name: str, session: int) -> RemoteScheduler | None:
        scheduler = self.placement.schedulers.get(name)
        if isinstance(scheduler, RemoteScheduler) and scheduler.session == session:
            return scheduler
        return None


def _checked(scheduler: RemoteScheduler, job: Job, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """The claims for what the job waits for, each container once, with what it requested."""
    asked = {claim.entry.container_id: claim for claim in reversed(claims)}
    wanted = {x: asked[x] for x in job.pending if x in asked}
    entries = {
        x: scheduler.entry(x, job.workload_class, request) for x, request in job.pending.items()
    }
    return tuple(claim._replace(entry=entries[x]) for x, claim in wanted.items())


def _over(name: str) -> NotFound:
    return NotFound(f"no scheduler {name} is subscribed in this session; subscribe again")
