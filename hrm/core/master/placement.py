"""From a request to a grant: the master's schedulers, the negotiator, and what happens between.

A scheduler is woken, reads a snapshot, and proposes (``ProposeClaims``); the proposal comes back as
``ClaimsProposed`` and is committed in order of arrival. Between the two others may commit: this is
the optimism. A stream's scheduler first takes the lease, which parks the commits of batch.

Which schedulers there are, and when each is woken, is ``scheduler_pool``'s; what follows from a
round ``settlement``'s; what schedulers of other processes are sent ``remote_updates``'.

Source: HRM paper, sections 4.3.1 (stream), 4.3.2 (batch), 4.3.3 (algorithms 2 and 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hrm.core.master import admission, gangs, locality
from hrm.core.master.driver_queue import DriverQueue
from hrm.core.master.entities import Application, Container
from hrm.core.master.gpu_shares import FairGpuParts
from hrm.core.master.head_starts import HeadStarts
from hrm.core.master.places import claims_at_places
from hrm.core.master.platform_moves import PlatformMoves
from hrm.core.master.platform_shares import PlatformShares
from hrm.core.master.priorities import Priorities
from hrm.core.master.queue_gate import QueueGate
from hrm.core.master.queue_reclaim import QueueReclaim
from hrm.core.master.remote_updates import RemoteUpdates
from hrm.core.master.scheduler_pool import SchedulerPool
from hrm.core.master.settlement import Settlement
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages.claims import Claim, Proposal
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.exhaustion import Exhaustion
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.tenancy.platform_division import PlatformDivision
from hrm.core.vocabulary.columns import Bools
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ContainerEnd,
    ContainerRequest,
    EndCause,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.transitions import ContainerHappening
from hrm.core.vocabulary.wakefulness import slept_through

__all__ = ["SPARED_MAX", "PlacementCoordinator"]

SPARED_MAX = 64
"""Rounds that may be spared in one turn."""


class PlacementCoordinator:
    """Invariant: a scheduler with jobs has been woken, waits for the lease, or is in flight."""

    def __init__(
        self,
        master_state: MasterState,
        negotiator: Negotiator,
        schedulers: list[Scheduler],
        division: PlatformDivision | None = None,
    ) -> None:
        self.master_state = master_state
        self.negotiator = negotiator
        self.pool = SchedulerPool(master_state, schedulers)
        self.schedulers = self.pool.by_name
        for scheduler in schedulers:
            limit = master_state.bounds.waiting_limit
            scheduler.exhaustion = Exhaustion(master_state.state, limit)
        self.gpu_shares = FairGpuParts(master_state, self.schedulers)
        self.head_starts = HeadStarts()
        self.drivers = DriverQueue(master_state)
        self.remotes = RemoteUpdates(
            master_state, negotiator, self.pool, self.gpu_shares, self.head_starts
        )
        self._settlement = Settlement(master_state, self.schedulers, self.drivers)
        self.platforms = PlatformShares(master_state, division)
        self.queues = QueueGate(
            master_state,
            self.schedulers,
            self._passed,
            self._take_from,
            self._refuse_hopeless,
            self.platforms,
        )
        self.priorities = Priorities(master_state, self.queues.reordered)
        self.reclaim = QueueReclaim(
            master_state,
            negotiator,
            self.queues.lines,
            self._reserve,
            self.queues.let_claim,
            self._may_have_driver,
            self.queues.reordered,
        )
        self.moves = PlatformMoves(master_state, self.platforms, self._reserve)
        self._views: dict[str, ClusterView] = {}

    def request(
        self, app: Application, request: ContainerRequest, now: float, *, is_new: bool = False
    ) -> None:
        """Record a new container and give it to the application's scheduler.

        ``is_new``: it was not requested from an earlier master. Then it need not wait until all
        nodes are back, unless they decide where it may go.
        """
        request = self.master_state.expected(app, request)
        place, places = NO_UNIT, self.master_state.places
        if places.kept:
            place = places.take(app.application_id, request.resource_profile_id, now)
        if request.place != place:
            request = replace(request, place=place)
        container = self.master_state.new_container(app, request, now)
        if self.master_state.recovering and app.recovered:
            container.held = not is_new or bool(request.gpus) or gangs.missing(app) > 0
        if not container.held:
            self.hand_over(app, container, now)

    def hand_over(self, app: Application, container: Container, now: float) -> None:
        """Let a PENDING container be scheduled, once its queue lets it pass."""
        if self.master_state.queues.accounts is not None:
            container.withheld = True
            if container.request.gpus:  # its queue is to know how much that is
                request = admission.resolve(self.master_state, container.request, app.requires)
                self.master_state.change_request(container, request)
            self.queues.put(app, container)
        elif app.is_driver:
            self._passed(app, container, now)
        else:
            self._hand_over(app, container, now)

    def _passed(self, app: Application, container: Container, now: float) -> None:
        """Its queue lets a PENDING container pass: a driver is scheduled when it is its turn."""
        if app.is_driver:
            self.drivers.put(container)
            self._hand_over_drivers(now, passed=container)
        else:
            self._hand_over(app, container, now)

    def _refuse_hopeless(
        self, app: Application, containers: Sequence[Container], now: float
    ) -> None:
        """Refuse what no node will ever serve of what its queue keeps."""
        for container, why in self._settlement.hopeless(app, containers, now):
            self.withdraw(container)
            self._settlement.refuse(container, why, now)

    def _take_from(self, container: Container) -> None:
        """Take a PENDING container that has passed from its scheduler, or the queue of drivers."""
        self._settlement.take_from(container)

    def _hand_over_drivers(self, now: float, passed: Container | None = None) -> None:
        """Those whose turn it is, if they still fit into their queues, as one that has just
        ``passed`` does; what was requested before it was known that it never can be is refused."""
        taken, hopeless = self.drivers.take(now)
        for driver in taken:
            if driver is passed or self.queues.lets_start(driver):
                self._hand_over(self.master_state.applications[driver.application_id], driver, now)
        for driver, why in hopeless:
            self._settlement.refuse(driver, why, now)

    def _hand_over(self, app: Application, container: Container, now: float) -> None:
        if container.request.gpus:
            request = admission.resolve(self.master_state, container.request, app.requires)
            self.master_state.change_request(container, request)
            if not container.request.resources.gpu_memory_mib:
                # Requested while nodes were still coming back; the next request is refused.
                message = "no GPU came back to this master"
                end = ContainerEnd(cause=EndCause.PREEMPTED, message=message)
                self.master_state.end_container(container, ContainerHappening.GIVEN_UP, end, now)
                return
        if container.request.hosts:
            container.request = locality.resolve(self.master_state, container.request)
        scheduler = self.schedulers[app.scheduler]
        container_id, workload_class = container.container_id, app.record.workload_class
        scheduler.add(app.application_id, workload_class, container_id, container.request, now)
        if self.master_state.gpus.uses:
            self.master_state.gpus.renew(app.application_id)
        self.pool.wake(scheduler, now)

    def withdraw(self, container: Container) -> None:
        """A PENDING container waits for no place any more."""
        if container.withheld:
            self.queues.drop(container)
        else:
            self._take_from(container)

    def reclassify(self, app: Application, now: float) -> None:
        self.master_state.gpus.renew(app.application_id)
        self.queues.reordered(app)
        scheduler = self.schedulers[app.scheduler]
        job = scheduler.jobs.get(app.application_id)
        if job is not None:
            scheduler.reclassify(job, app.record.workload_class, now)
            if isinstance(scheduler, RemoteScheduler):
                scheduler.changed_jobs[app.application_id] = None
            self.pool.wake(scheduler, now)

    def requirement_changed(self, app: Application, now: float) -> None:
        """What waits for a place waits for others from now on, and may be tried at once."""
        self.master_state.gpus.renew(app.application_id)
        scheduler = self.schedulers[app.scheduler]
        job = scheduler.jobs.get(app.application_id)
        if job is not None:
            requires = self.master_state.required(app)
            scheduler.restrict(job, job.gang, job.avoid, requires, job.excluded)
            scheduler.backlog.place(job, min(now, job.not_before_s))
            if isinstance(scheduler, RemoteScheduler):
                scheduler.changed_jobs[app.application_id] = None
            self.pool.wake(scheduler, now)
        if app.is_driver:
            self.drivers.changed(app)
            self._hand_over_drivers(now)

    def capacity_freed(self, now: float) -> None:
        """A container ended or capacity was added: schedulers that wait for it may try at once, the
        one whose job has waited longest first, or the others' jobs would starve behind it."""
        self.gpu_shares.rebalance(now)
        self._hand_over_drivers(now)
        self.queues.may_lend = True
        if self.master_state.gpus.uses:
            self.gpu_shares.changed()
        asleep = []
        for scheduler in self.schedulers.values():
            if scheduler.jobs:
                for application_id in scheduler.backlog.declining:
                    self.master_state.gpus.renew(application_id)
                scheduler.capacity_freed()
                if scheduler.wake_at_s is None or scheduler.wake_at_s > now:
                    asleep.append(scheduler)
        if self.head_starts.remotes:
            self.head_starts.capacity_freed(now)
        if len(asleep) > 1:
            asleep.sort(key=lambda x: x.next_rank(now))
        for scheduler in asleep:
            self.pool.wake(scheduler, now)

    def has_stream(self, name: str, now: float) -> bool:
        """Would the scheduler, were it woken now, place a stream?"""
        scheduler = self.schedulers.get(name)
        if scheduler is None or isinstance(scheduler, RemoteScheduler) or scheduler.in_flight:
            return False
        return scheduler.backlog.has_stream(now)

    def woken(self, name: str, now: float) -> None:
        """One round of one scheduler, up to its proposal."""
        scheduler = self.schedulers.get(name)
        if isinstance(scheduler, RemoteScheduler):
            scheduler.wake_at_s = None  # what was collected for it is sent after every event
            return
        if scheduler is None or scheduler.in_flight:
            return
        scheduler.wake_at_s = None
        job = self._next_job(scheduler, now)
        if job is None or job.workload_class is WorkloadClass.BATCH:
            self.negotiator.lease.withdraw(scheduler.name)
        if job is None:
            self.pool.wake_for_next(scheduler)
            return
        if self.head_starts.remotes:
            begins_at_s = self.head_starts.waits_until_s(job, now)
            if begins_at_s > now:
                self.pool.wake(scheduler, begins_at_s)
                return
        app = self._restrict(scheduler, job, now)
        if app.is_driver:
            job.rows = self._rows_of_driver(job)
        if job.gpus:
            self.gpu_shares.update({job.application_id: job}, now)
        view = self._view_of(scheduler)
        token = 0
        if job.workload_class is WorkloadClass.STREAM:
            lease = self.negotiator.lease
            granted = self.negotiator.acquire_lease(scheduler.name, job, now)
            if granted is None:
                if lease.holder is None:
                    self.lease_free(now)  # it has just expired: the first in line may be elsewhere
                pause_s = self.master_state.bounds.retry_delay_s
                self.pool.wake(scheduler, max(lease.expires_at_s, now + pause_s))
                return
            token = granted
            view.keep_open(lease.units)
        scheduler.in_flight = (job.application_id, now)
        proposal = scheduler.choose(job, view, token, now)
        self.master_state.out.append(c.ProposeClaims(proposal=proposal))

    def _reserve(self, container: Container, unit_id: ResourceUnitId, now: float) -> bool:
        """Give a PENDING container, which has passed its queue, the first place at a unit."""
        app = self.master_state.applications[container.application_id]
        scheduler = self.schedulers[app.scheduler]
        request = replace(container.request, place=unit_id)
        entry = scheduler.entry(container.container_id, app.record.workload_class, request)
        if not self.negotiator.reserve(entry, now):
            return False
        self._take_from(container)
        container.request = request
        self._settlement.reserved(app, entry, now)
        return True

    def _rows_of_driver(self, job: Job) -> Bools:
        """Where a driver may be placed; shape (rows,)."""
        container = self.master_state.drivers[next(iter(job.pending))]
        return self.drivers.at_commit(container).rows

    def _restrict(self, scheduler: Scheduler, job: Job, now: float) -> Application:
        """Set what limits a job of a scheduler inside of the master; returns its application."""
        exclusions = self.master_state.exclusions
        app = self.master_state.applications[job.application_id]
        avoid = exclusions.avoided(job.application_id, now)
        excluded = exclusions.avoided_alone(job.application_id, now) if avoid else avoid
        requires = app.requires and self.master_state.required(app)
        scheduler.restrict(job, gangs.missing(app), avoid, requires, excluded)
        return app

    def _follow_exclusions(self, now: float) -> None:
        """Jobs whose own exclusions have changed are not like others any more, or are again."""
        changed = self.master_state.exclusions.changed
        while changed:
            application_id, _ = changed.popitem()
            app = self.master_state.applications.get(application_id)
            scheduler = None if app is None else self.schedulers.get(app.scheduler)
            if scheduler is not None and not isinstance(scheduler, RemoteScheduler):
                job = scheduler.jobs.get(application_id)
                if job is not None:
                    self._restrict(scheduler, job, now)

    def _next_job(self, scheduler: Scheduler, now: float) -> Job | None:
        """The next job, after those for which it is known that a round would find nothing: they
        back off as if it had."""
        assert scheduler.exhaustion is not None, "only schedulers inside of the master are woken"
        if self.master_state.exclusions.changed:
            self._follow_exclusions(now)
        may_spare = scheduler.exhaustion.known or scheduler.backlog.gpu_jobs
        for _ in range(SPARED_MAX if may_spare else 0):
            job = scheduler.next_job(now)
            if job is not None and job.gpus:
                self._follow_shares(now, scheduler)
                job = scheduler.next_job(now)
            if job is None or job.workload_class is WorkloadClass.STREAM:
                return job
            self._restrict(scheduler, job, now)
            if job.gpus:
                self.gpu_shares.update({job.application_id: job}, now)
            if not scheduler.spare(job):
                return job
            self._settlement.settle(scheduler, job, [], now)
        return scheduler.next_job(now)

    def _follow_shares(self, now: float, here: Scheduler | None = None) -> None:
        """Jobs that may have GPUs now, and could not before, are tried at once. ``here``: a
        scheduler whose next job is about to be taken."""
        if self.master_state.gpus.uses:
            for scheduler in self.gpu_shares.follow(now):
                if scheduler is not here:
                    self.pool.wake(scheduler, now)

    def _view_of(self, scheduler: Scheduler) -> ClusterView:
        """The scheduler's own view, which costs no more than what has changed since its last."""
        view = self._views.get(scheduler.name)
        if view is None:
            view = self._views[scheduler.name] = ClusterView(self.master_state.state)
        else:
            view.renew()
        return view

    def proposed(self, proposal: Proposal, now: float) -> None:
        """Commit a proposal, or park it behind a stream's lease."""
        scheduler = self.schedulers.get(proposal.scheduler)
        if scheduler is None or scheduler.in_flight is None:
            return
        job = scheduler.jobs.get(proposal.application_id)
        pending = {} if job is None else job.pending
        wanted = tuple(x for x in proposal.claims if x.entry.container_id in pending)
        app = self.master_state.applications.get(proposal.application_id)
        gang = 0 if app is None else gangs.missing(app)
        requires = None if app is None else app.requires and self.master_state.required(app)
        wanted = self._without_excluded(proposal, wanted, gang, now)
        if job is not None and job.places:
            avoided = self.master_state.exclusions.avoided(proposal.application_id, now)
            state = self.master_state.state
            wanted = claims_at_places(scheduler, job, wanted, state, avoided)
        if app is not None and app.is_driver:
            wanted = tuple(claim for claim in wanted if self._may_start(claim))
        if app is not None and app.record.workload_class is not proposal.workload_class:
            wanted = self._of_other_class(wanted, job)
        if wanted != proposal.claims or (gang, requires) != (proposal.gang, proposal.requires):
            proposal = replace(proposal, claims=wanted, gang=gang, requires=requires)
        if job is not None and job.gpus:
            proposal = self.gpu_shares.within(proposal, job, now)
        if self.master_state.queues.accounts is not None:
            must_run = proposal.must_run | self.queues.must_run(proposal)
            proposal = replace(proposal, must_run=must_run)
        outcomes = self.negotiator.commit(proposal, now)
        if outcomes is None:
            return
        scheduler.in_flight = None
        if job is not None:
            self._settlement.settle(scheduler, job, outcomes, now)
        if proposal.workload_class is WorkloadClass.STREAM:
            self.negotiator.lease.release(scheduler.name, proposal.lease_token)
            self.lease_free(now)
        if job is not None and job.gpus:
            self._follow_shares(now)
        if isinstance(scheduler, RemoteScheduler):
            self.remotes.send_outcomes(scheduler, job, outcomes, now)
        self.pool.wake_for_next(scheduler)

    def _without_excluded(
        self, proposal: Proposal, claims: tuple[Claim, ...], gang: int, now: float
    ) -> tuple[Claim, ...]:
        """The claims without those on nodes that were excluded while they were on their way."""
        avoided = self.master_state.exclusions.avoided(proposal.application_id, now)
        if not avoided:
            return claims
        state = self.master_state.state
        app = self.master_state.applications.get(proposal.application_id)
        requires = None if app is None else self.master_state.required(app)
        kept = tuple(
            claim
            for claim in claims
            if (row := state.rows.get(claim.unit_id)) is None
            or state.node(row) not in avoided
            or not state.has_capacity_outside(avoided, claim.entry.demand, requires)
        )
        return () if gang and len(kept) < len(claims) else kept

    def _of_other_class(self, claims: tuple[Claim, ...], job: Job | None) -> tuple[Claim, ...]:
        """Of what was chosen as batch for what is a stream now, or the other way round, nothing is
        granted: its containers would count as what they were. It is tried again at once."""
        if claims and job is not None:
            job.renewed = True
        return ()

    def _may_start(self, claim: Claim) -> bool:
        """May this driver start at this unit, now that others may have been granted places? One
        that may start nowhere waits in the queue of drivers again."""
        container = self.master_state.drivers[claim.entry.container_id]
        verdict = self.drivers.at_commit(container)
        if verdict.why:
            self._take_from(container)
            self.drivers.put(container, verdict.why)
            return False
        row = self.master_state.state.rows.get(claim.unit_id)
        return row is None or bool(verdict.rows[row])

    def _may_have_driver(self, container: Container, unit_id: ResourceUnitId) -> bool:
        """May this driver have a place at this unit?"""
        verdict = self.drivers.at_commit(container)
        row = self.master_state.state.rows.get(unit_id)
        return not verdict.why and row is not None and bool(verdict.rows[row])

    def woke(self, now: float, slept_s: float) -> None:
        """This master slept: proposals and calls of schedulers may have arrived unread. A stream's
        lease gets no more time: it is a right, and ends when its time is over."""
        self.priorities.woke(now, slept_s)
        for scheduler in self.schedulers.values():
            if scheduler.in_flight is not None:
                application_id, since_s = scheduler.in_flight
                since_s += slept_through(since_s, now, slept_s)
                scheduler.in_flight = (application_id, since_s)
            if isinstance(scheduler, RemoteScheduler):
                scheduler.woke(now, slept_s)

    def tick(self, now: float) -> None:
        """End leases and proposals whose time is over; keep shares of GPUs fair."""
        if self.master_state.exclusions.changed:
            self._follow_exclusions(now)
        self.priorities.tick(now)
        self.queues.tick(now)
        self.gpu_shares.tick(now)
        self._follow_shares(now)
        self._hand_over_drivers(now)
        self.reclaim.tick(now)
        self.moves.tick(now, is_calm=self.reclaim.is_calm)
        if self.negotiator.lease.expire(now) or self.negotiator.lease.holder is None:
            self.lease_free(now)
        for scheduler in self.schedulers.values():
            if scheduler.in_flight is None:
                if scheduler.jobs and scheduler.wake_at_s is None:
                    self.pool.wake(scheduler, now)
            elif now - scheduler.in_flight[1] > self.master_state.bounds.proposal_timeout_s:
                scheduler.in_flight = None
                self._give_up(scheduler)
                self.pool.wake(scheduler, now)

    def _give_up(self, scheduler: Scheduler) -> None:
        """Forget the claims of a scheduler that have waited too long, so that they are not taken
        for its next proposal; a remote one is notified."""
        self.negotiator.forget_parked(scheduler.name)
        if isinstance(scheduler, RemoteScheduler):
            self.remotes.refuse_proposal(scheduler)

    def lease_free(self, now: float) -> None:
        """First the batch commits that waited, then the next stream."""
        for proposal in self.negotiator.unpark():
            self.proposed(proposal, now)
        waiting = self.negotiator.lease.waiting
        if not waiting:
            return
        scheduler = self.schedulers[waiting[0]]
        if isinstance(scheduler, RemoteScheduler):
            self.remotes.grant_lease(scheduler, now)
        else:
            self.pool.wake(scheduler, now)
