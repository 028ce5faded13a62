"""From a request to a grant: the master's schedulers, the negotiator, and what happens between.

A scheduler is woken, reads a snapshot, and proposes (``ProposeClaims``); the proposal comes back as
``ClaimsProposed`` and is committed in order of arrival. Between the two others may commit: this is
the optimism. A stream's scheduler first takes the lease, which parks the commits of batch.

Source: HRM paper, sections 4.3.1 (stream), 4.3.2 (batch), 4.3.3 (algorithms 2 and 3).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hrm.core.master import admission, driver_places, gangs, locality
from hrm.core.master.driver_queue import DriverQueue
from hrm.core.master.gpu_shares import FairGpuParts
from hrm.core.master.head_starts import HeadStarts
from hrm.core.master.places import claims_at_places
from hrm.core.master.state import Application, Container, MasterState
from hrm.core.messages import commands as c
from hrm.core.messages.claims import Claim, Decision, Outcome, Proposal
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.exhaustion import Exhaustion
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.vocabulary.columns import Bools
from hrm.core.vocabulary.feasibility import Column, demand_vector
from hrm.core.vocabulary.history import RequestRecord
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ApplicationId,
    ContainerEnd,
    ContainerRequest,
    EndCause,
    ResourceUnitId,
    WorkloadClass,
    is_driver,
)
from hrm.core.vocabulary.node_requirement import lasting
from hrm.core.vocabulary.transitions import ContainerHappening
from hrm.errors import NotFound, Unavailable

__all__ = ["SPARED_MAX", "PlacementCoordinator"]

SPARED_MAX = 64
"""Rounds that may be spared in one turn."""


class PlacementCoordinator:
    """Invariant: a scheduler with jobs has been woken, waits for the lease, or is in flight."""

    def __init__(
        self, master_state: MasterState, negotiator: Negotiator, schedulers: list[Scheduler]
    ) -> None:
        self.master_state = master_state
        self.negotiator = negotiator
        self.schedulers = {scheduler.name: scheduler for scheduler in schedulers}
        for scheduler in schedulers:
            limit = master_state.bounds.waiting_limit
            scheduler.exhaustion = Exhaustion(master_state.state, limit)
        self.gpu_shares = FairGpuParts(master_state, self.schedulers)
        self.head_starts = HeadStarts()
        self.drivers = DriverQueue(master_state)
        self._next = 0
        self._views: dict[str, ClusterView] = {}

    def choose_scheduler(self, application_id: str = "") -> str:
        """The next scheduler in turn: applications stay with theirs. Those of drivers get one of
        this process: where a driver may go depends on all others, which it alone knows."""
        names = list(self.schedulers)
        if is_driver(ApplicationId(application_id)):
            here = [x for x, it in self.schedulers.items() if not isinstance(it, RemoteScheduler)]
            names = here or names
        name = names[self._next % len(names)]
        self._next += 1
        return name

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
        """Let a PENDING container be scheduled; a driver when it is its turn."""
        if app.is_driver:
            self.drivers.put(container)
            self._hand_over_drivers(now)
        else:
            self._hand_over(app, container, now)

    def _hand_over_drivers(self, now: float) -> None:
        """Those whose turn it is; what was requested before it was known that it never can be is
        refused."""
        taken, hopeless = self.drivers.take(now)
        for driver in taken:
            self._hand_over(self.master_state.applications[driver.application_id], driver, now)
        for driver, why in hopeless:
            self._refuse(driver, why, now)

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
        if container.request.resources.gpu_memory_mib or app.gang_min > 1:
            self.master_state.gpus.renew(app.application_id)
        self.wake(scheduler, now)

    def withdraw(self, container: Container) -> None:
        app = self.master_state.applications[container.application_id]
        if container.waits_for is not None:
            self.drivers.drop(container)
        self.schedulers[app.scheduler].withdraw(app.application_id, container.container_id)
        if app.gang_min > 1:
            self.master_state.gpus.renew(app.application_id)

    def reclassify(self, app: Application, now: float) -> None:
        self.master_state.gpus.renew(app.application_id)
        scheduler = self.schedulers[app.scheduler]
        job = scheduler.jobs.get(app.application_id)
        if job is not None:
            scheduler.reclassify(job, app.record.workload_class, now)
            if isinstance(scheduler, RemoteScheduler):
                scheduler.changed_jobs[app.application_id] = None
            self.wake(scheduler, now)

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
            self.wake(scheduler, now)
        if app.is_driver:
            self.drivers.changed(app)
            self._hand_over_drivers(now)

    def capacity_freed(self, now: float) -> None:
        """A container ended or capacity was added: schedulers that wait for it may try at once, the
        one whose job has waited longest first, or the others' jobs would starve behind it."""
        self.gpu_shares.rebalance(now)
        self._hand_over_drivers(now)
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
            self.wake(scheduler, now)

    def wake(self, scheduler: Scheduler, at_s: float) -> None:
        """Ensure that the scheduler is woken for a round at ``at_s`` or before; remote ones have
        rounds of their own."""
        if scheduler.wake_at_s is not None and scheduler.wake_at_s <= at_s:
            return
        if scheduler.in_flight is None and not isinstance(scheduler, RemoteScheduler):
            self._set_wake(scheduler, at_s)

    def _set_wake(self, scheduler: Scheduler, at_s: float) -> None:
        scheduler.wake_at_s = at_s
        self.master_state.out.append(c.WakeScheduler(scheduler=scheduler.name, at_s=at_s))

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
            self._sleep(scheduler)
            return
        if self.head_starts.remotes:
            begins_at_s = self.head_starts.waits_until_s(job, now)
            if begins_at_s > now:
                self.wake(scheduler, begins_at_s)
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
            granted = lease.acquire(scheduler.name, now, self._to_lock(job))
            if granted is None:
                if lease.holder is None:
                    self.lease_free(now)  # it has just expired: the first in line may be elsewhere
                pause_s = self.master_state.bounds.retry_delay_s
                self.wake(scheduler, max(lease.expires_at_s, now + pause_s))
                return
            token = granted
            view.keep_open(lease.units)
        scheduler.in_flight = (job.application_id, now)
        proposal = scheduler.choose(job, view, token, now)
        self.master_state.out.append(c.ProposeClaims(proposal=proposal))

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
            self._settle(scheduler, job, [], now)
        return scheduler.next_job(now)

    def _follow_shares(self, now: float, here: Scheduler | None = None) -> None:
        """Jobs that may have GPUs now, and could not before, are tried at once. ``here``: a
        scheduler whose next job is about to be taken."""
        if self.master_state.gpus.uses:
            for scheduler in self.gpu_shares.follow(now):
                if scheduler is not here:
                    self.wake(scheduler, now)

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
        if wanted != proposal.claims or (gang, requires) != (proposal.gang, proposal.requires):
            proposal = replace(proposal, claims=wanted, gang=gang, requires=requires)
        if job is not None and job.gpus:
            proposal = self.gpu_shares.within(proposal, job, now)
        outcomes = self.negotiator.commit(proposal, now)
        if outcomes is None:
            return
        scheduler.in_flight = None
        if job is not None:
            self._settle(scheduler, job, outcomes, now)
        if proposal.workload_class is WorkloadClass.STREAM:
            self.negotiator.lease.release(scheduler.name, proposal.lease_token)
            self.lease_free(now)
        if job is not None and job.gpus:
            self._follow_shares(now)
        if isinstance(scheduler, RemoteScheduler):
            self.send_changes(scheduler, now)
            result = c.ClaimsSettled(outcomes=tuple(outcomes), sequence=scheduler.sequence)
            self.master_state.reply(scheduler.call_id, result)
            scheduler.call_id = 0
            self._remote_round_over(scheduler, job, outcomes, now)
        self._sleep(scheduler)

    def _remote_round_over(
        self, scheduler: RemoteScheduler, job: Job | None, outcomes: list[Outcome], now: float
    ) -> None:
        if job is not None:
            scheduler.note_lack(job)
        any_granted = any(x.decision is not Decision.ABORT for x in outcomes)
        if self.head_starts.proposed(scheduler, now, any_granted=any_granted):
            self._wake_inside()

    def _wake_inside(self) -> None:
        """What has waited for a remote scheduler's head start goes on."""
        for scheduler in self.schedulers.values():
            if scheduler.jobs and not isinstance(scheduler, RemoteScheduler):
                self._sleep(scheduler)

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

    def _may_start(self, claim: Claim) -> bool:
        """May this driver start at this unit, now that others may have been granted places? One
        that may start nowhere waits in the queue of drivers again."""
        container = self.master_state.drivers[claim.entry.container_id]
        verdict = self.drivers.at_commit(container)
        if verdict.why:
            self.withdraw(container)
            self.drivers.put(container, verdict.why)
            return False
        row = self.master_state.state.rows.get(claim.unit_id)
        return row is None or bool(verdict.rows[row])

    def woke(self, now: float, slept_s: float) -> None:
        """This master slept: proposals and calls of schedulers may have arrived unread. A stream's
        lease gets no more time: it is a right, and ends when its time is over."""
        for scheduler in self.schedulers.values():
            if scheduler.in_flight is not None:
                application_id, since_s = scheduler.in_flight
                scheduler.in_flight = (application_id, since_s + slept_s)
            if isinstance(scheduler, RemoteScheduler):
                scheduler.woke(now, slept_s)

    def tick(self, now: float) -> None:
        """End leases and proposals whose time is over; keep shares of GPUs fair."""
        if self.master_state.exclusions.changed:
            self._follow_exclusions(now)
        self.gpu_shares.tick(now)
        self._follow_shares(now)
        self._hand_over_drivers(now)
        if self.negotiator.lease.expire(now) or self.negotiator.lease.holder is None:
            self.lease_free(now)
        for scheduler in self.schedulers.values():
            if scheduler.in_flight is None:
                if scheduler.jobs and scheduler.wake_at_s is None:
                    self.wake(scheduler, now)
            elif now - scheduler.in_flight[1] > self.master_state.bounds.proposal_timeout_s:
                scheduler.in_flight = None
                self._give_up(scheduler)
                self.wake(scheduler, now)

    def _give_up(self, scheduler: Scheduler) -> None:
        """Forget the claims of a scheduler that have waited too long, so that they are not taken
        for its next proposal; a remote one is notified."""
        self.negotiator.forget_parked(scheduler.name)
        if not isinstance(scheduler, RemoteScheduler) or not scheduler.call_id:
            return
        limit_s = self.master_state.bounds.proposal_timeout_s
        error = Unavailable(
            f"the claims have waited {limit_s:g} s for the end of a stream's lease; choose again"
        )
        self.master_state.refuse(scheduler.call_id, error)
        scheduler.call_id = 0

    def _to_lock(self, job: Job) -> frozenset[ResourceUnitId] | None:
        """The units that a stream's lease is to lock; None for all."""
        if self.master_state.bounds.lease_scope == "global":
            return None
        demands = Counter(demand_vector(request.resources) for request in job.pending.values())
        view = ClusterView(self.master_state.state)
        if job.rows is not None:
            view.keep_rows(job.rows)
        if job.requires is not None:
            view.require(job.requires)
        if job.avoid:
            view.avoid(job.avoid)
        return view.candidates(demands)

    def _settle(self, scheduler: Scheduler, job: Job, outcomes: list[Outcome], now: float) -> None:
        master_state, state = self.master_state, self.master_state.state
        app = master_state.applications[job.application_id]
        granted = scheduler.settle(job, outcomes, now)
        app.refusal = job.last_refusal
        for (entry, unit_id, _), decision, _ in granted:
            container = app.containers[entry.container_id]
            node = master_state.nodes[state.node(state.rows[unit_id])]
            container.unit_id = unit_id
            container.node = node.name
            container.assigned_at_s = container.sent_at_s = now
            container.queued = decision is Decision.QUEUE
            how = "queued at the unit" if container.queued else "starts at once"
            container.life.take(ContainerHappening.GRANTED, now, how)
            if entry.demand[Column.GPU_MEMORY_MIB]:
                master_state.gpus.changed(container)
            node.containers[entry.container_id] = container
            # Its node notifies the application: it knows whether the container runs or waits.
            master_state.send(node, c.AssignContainer(spec=master_state.spec(container, app)))
        if granted:
            if app.gang_min > 1:
                master_state.gpus.renew(app.application_id)
            gangs.granted(master_state, app)
        patience_s = self.master_state.bounds.retry_delay_max_s
        if not outcomes and job.delay_s >= patience_s:
            comes_again = now - app.gang_lost_at_s < master_state.bounds.application_grace_s
            comes_again |= job.application_id in master_state.starting
            asked_at_s = max(job.requested_at_s.values(), default=now)
            if not comes_again and now - asked_at_s >= patience_s:
                gangs.shrink(app)
            self._refuse_hopeless(app, job, now)
            if job.gang and not app.unpacked:
                self._record_unpacked(app, now)

    def _record_unpacked(self, app: Application, now: float) -> None:
        """A gang has waited: keep in its history where it may wait for ever."""
        why = gangs.unpacked(self.master_state, app)
        app.unpacked = bool(why)
        if why and self.master_state.watch is not None:
            became = RequestRecord.UNPACKED
            self.master_state.watch(
                ("application", app.application_id, None, None, became, now, why)
            )

    def _refuse_hopeless(self, app: Application, job: Job, now: float) -> None:
        """Requested before it was known that no node would ever serve it; now it is known."""
        driver = app.is_driver
        state, requires = self.master_state.state, lasting(app.requires)
        could = all(state.could_hold(demand, requires) for demand in job.demands)
        if not driver and not gangs.missing(app) and could:
            return
        refusals = {
            resources: admission.refusal(
                self.master_state, resources, driver=driver, requires=requires
            )
            or gangs.refusal(self.master_state, app, resources)
            or (driver_places.refusal(self.master_state, app, resources) if driver else "")
            for resources in dict.fromkeys(request.resources for request in job.pending.values())
        }
        for container_id in list(job.pending):
            container = app.containers[container_id]
            why = refusals[container.request.resources]
            if why:
                self._refuse(container, why, now)

    def _refuse(self, container: Container, why: str, now: float) -> None:
        self.withdraw(container)
        notice = c.RequestRefused(
            executor_ids=(container.request.executor_id,),
            resource_profile_id=container.request.resource_profile_id,
            message=why,
        )
        self.master_state.notify(container.application_id, notice)
        end = ContainerEnd(cause=EndCause.KILLED, message=why)
        self.master_state.end_container(container, ContainerHappening.GIVEN_UP, end, now)

    def lease_free(self, now: float) -> None:
        """First the batch commits that waited, then the next stream."""
        for proposal in self.negotiator.unpark():
            self.proposed(proposal, now)
        waiting = self.negotiator.lease.waiting
        if not waiting:
            return
        scheduler = self.schedulers[waiting[0]]
        if isinstance(scheduler, RemoteScheduler):
            self.grant_lease(scheduler, now)
        else:
            self.wake(scheduler, now)

    def grant_lease(self, scheduler: RemoteScheduler, now: float) -> None:
        """Answer a remote scheduler's call for the lease, if it is its turn; else it is queued."""
        lease = self.negotiator.lease
        job = scheduler.jobs.get(scheduler.lease_for)
        if job is None or not scheduler.lease_call_id:
            lease.withdraw(scheduler.name)
            if scheduler.lease_call_id:
                error = NotFound("the job waits for nothing more")
                self.master_state.refuse(scheduler.lease_call_id, error)
            scheduler.lease_call_id = 0
            return
        token = lease.acquire(scheduler.name, now, self._to_lock(job))
        if token is None:
            return
        self.send_changes(scheduler, now)
        result = c.LeaseGranted(
            token=token,
            expires_in_s=lease.expires_at_s - now,
            sequence=scheduler.sequence,
            units=lease.units,
        )
        self.master_state.reply(scheduler.lease_call_id, result)
        scheduler.lease_call_id = 0

    def send_changes(
        self, scheduler: RemoteScheduler, now: float, *, all_of_them: bool = True
    ) -> None:
        """Send a remote scheduler what has changed since the last time."""
        for job in self._perhaps_restricted(scheduler, now):
            app = self.master_state.applications[job.application_id]
            gang = gangs.missing(app)
            avoid = self.master_state.exclusions.avoided(app.application_id, now)
            requires = app.requires and self.master_state.required(app)
            if gang != job.gang or avoid != job.avoid or requires != job.requires:
                scheduler.restrict(job, gang, avoid, requires)
                scheduler.changed_jobs[app.application_id] = None
                if job.gpus:
                    scheduler.parts_changed[app.application_id] = None
            scheduler.restricted.pop(app.application_id, None)
            if app.gang_min > 1 or gang or avoid != scheduler.avoid:
                scheduler.restricted[app.application_id] = None
        if all_of_them or scheduler.changed_jobs or scheduler.parts_are_old(now):
            scheduler.parts_at_s = now
            self._update_parts(scheduler, now)
        freed_at_s = now
        if scheduler.has_freed:
            freed_at_s = self.head_starts.notified_at_s(scheduler, now)
        had_freed, notified = scheduler.has_freed, False
        changes = scheduler.changes(now, all_of_them=all_of_them, notifies=freed_at_s <= now)
        for message in changes:
            notified = message.has_freed
            self.master_state.out.append(
                c.SendToScheduler(
                    scheduler=scheduler.name, session=scheduler.session, message=message
                )
            )
        if notified:
            self.head_starts.sent(scheduler, now)
        elif had_freed and not scheduler.has_freed and self.head_starts.withdraw(scheduler):
            self._wake_inside()
        if scheduler.has_freed:
            at_s = max(scheduler.due_at_s, freed_at_s)
            if scheduler.wake_at_s is None or scheduler.wake_at_s > at_s:
                self._set_wake(scheduler, at_s)

    def _update_parts(self, scheduler: RemoteScheduler, now: float) -> None:
        """Set the parts of GPUs of its jobs; those for which they have changed are to be sent."""
        if not scheduler.backlog.gpu_jobs:
            return
        self._follow_shares(now)
        gpu_jobs, changed = scheduler.backlog.gpu_jobs, scheduler.parts_changed
        jobs = {x: gpu_jobs[x] for x in changed if x in gpu_jobs}
        changed.clear()
        for job in self.gpu_shares.update(jobs, now):
            scheduler.changed_jobs[job.application_id] = None

    def _perhaps_restricted(self, scheduler: RemoteScheduler, now: float) -> list[Job]:
        """The jobs whose gang, or whose nodes to avoid, may not be as they were sent; in order."""
        exclusions = self.master_state.exclusions
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

    def _sleep(self, scheduler: Scheduler) -> None:
        at_s = scheduler.next_time_s()
        if at_s is not None:
            self.wake(scheduler, at_s)
