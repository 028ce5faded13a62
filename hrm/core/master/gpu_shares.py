"""Fair shares of GPUs among batch applications, whichever schedulers place them.

Each scheduler sees its own jobs only; two that each give their job what is free give one
application all of it. So the parts are computed here, over all jobs and what their applications
hold, for every round (``Job.gpu_parts``), and once more when its claims arrive: then others may
have been faster.

An application that wants GPUs alone gets all that it requests, and queues for more at units. Once
another wants some, too, free ones go to the one that holds least (``hrm.core.master.max_min``). A
place in a unit's queue is a share of the future: none may have more containers queued than it lacks
to its share, and what is queued beyond that, as by an application that was alone when
it queued, is taken back. Until its application requests it again, it counts as what waits
(``hrm.core.master.gpu_index``).

With ``gpu_preemption`` one that holds less than its share, and waits, does not wait for containers
to end: see ``hrm.core.master.gpu_preemption``. Without it nothing that runs is ended.

What is shared out, and how executors count that differ in size, is in
``hrm.core.master.gpu_contest``.

All this is computed again only when something has changed, and of applications that are alike and
hold nothing only for the first (``hrm.core.master.gpu_lines``). What is not seen to change, as that
a part of a gang is ordered to stop, counts from the next tick on.

Limits: gangs and streams are placed whole, and count as what they hold. While something is held for
an application (``hrm.core.master.gpu_holds``), all is computed again at each event. Jobs of remote
schedulers get their parts when changes are sent to them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.gpu_contest import Contest, GpuUser
from hrm.core.master.gpu_holds import GpuHolds
from hrm.core.master.gpu_lines import GpuLines, Line, Nodes
from hrm.core.master.gpu_preemption import Lack, lacking, lacking_together, victims
from hrm.core.master.gpu_queues import GpuQueues, queued_for
from hrm.core.master.returns import may_return, return_waiting, starts_where_it_waits
from hrm.core.master.state import MasterState
from hrm.core.messages.claims import Claim, Entry, GpuPart, Proposal
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.yielding import instead_of, to_come, yields_there
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector, fits, plus, times
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    EndCause,
    NodeName,
    WorkloadClass,
)

__all__ = ["FairGpuParts"]

_Parts = Mapping[Vector, GpuPart]
_UNBOUND: _Parts = {}


class FairGpuParts:
    """Parts of GPUs, for the jobs of ``schedulers``."""

    def __init__(self, master_state: MasterState, schedulers: Mapping[str, Scheduler]) -> None:
        self._master_state = master_state
        self._schedulers = schedulers
        self._users = GpuLines(master_state, schedulers)
        self._known: dict[ApplicationId, dict[Vector, GpuPart]] = {}
        self._known_at: tuple[object, ...] = ()
        self._known_s = 0.0
        self._shared: set[int] = set()
        self._stale: dict[ApplicationId, None] = {}
        self._changes = 0
        self._unseen = False
        self._view: ClusterView | None = None
        self._counted_at: tuple[int, ...] = ()
        self._counts: dict[tuple[Vector, Nodes], int] = {}
        self._could_start: dict[tuple[ApplicationId | Line, int], Sequence[int]] = {}
        self._next_run_s = 0.0
        self._preempted_s: dict[ContainerId, float] = {}
        self._holds = GpuHolds(master_state)

    def changed(self) -> None:
        """Something that is not seen to change may have: compute the parts again."""
        self._changes += 1

    def follow(self, now: float) -> list[Scheduler]:
        """Set ``gpu_parts`` of all jobs for which they have changed, of remote schedulers when
        their changes are sent; returns the schedulers inside of the master that have jobs which may
        have GPUs now and could not before. These may be tried at once."""
        self._renew(now)
        found: dict[str, Scheduler] = {}
        stale, self._stale = self._stale, {}
        for application_id in stale:
            app = self._master_state.applications.get(application_id)
            scheduler = None if app is None else self._schedulers.get(app.scheduler)
            job = None if scheduler is None else scheduler.jobs.get(application_id)
            if scheduler is None or job is None or not job.gpus:
                continue
            if isinstance(scheduler, RemoteScheduler):
                scheduler.parts_changed[application_id] = None
                continue
            got_none = job.gets_no_gpu
            if self._set(scheduler, job, now) and got_none and not job.gets_no_gpu:
                found[scheduler.name] = scheduler
        return list(found.values())

    def update(self, jobs: Mapping[ApplicationId, Job], now: float) -> list[Job]:
        """Set ``gpu_parts`` of these jobs, which use GPUs; returns those for which they have
        changed, in order of arrival."""
        if not jobs:
            return []
        self._renew(now)
        changed = []
        for job in jobs.values():
            app = self._master_state.applications[job.application_id]
            if self._set(self._schedulers[app.scheduler], job, now):
                changed.append(job)
        return sorted(changed, key=lambda job: job.arrival)

    def _set(self, scheduler: Scheduler, job: Job, now: float) -> bool:
        """Set its parts. Have they changed? One that gets some and got none may be tried now."""
        own = self._part_of(job.application_id) if _is_bound(job) else _UNBOUND
        if own == job.gpu_parts:
            return False
        got_none, job.gpu_parts = job.gets_no_gpu, own
        is_due = got_none and not job.gets_no_gpu
        scheduler.backlog.place(job, min(now, job.not_before_s) if is_due else None)
        return True

    def within(self, proposal: Proposal, job: Job, now: float) -> Proposal:
        """The proposal with no more claims for GPUs than its job may have now."""
        if not job.gpus or job.workload_class is not WorkloadClass.BATCH:
            return proposal
        claimed: dict[Vector, list[Claim]] = {}
        for claim in proposal.claims:
            if claim.entry.demand[Column.GPU_MEMORY_MIB]:
                claimed.setdefault(claim.entry.demand, []).append(claim)
        self._note_declined(proposal.scheduler, job, claimed.keys(), now)
        if not claimed or not _is_bound(job):
            return proposal
        self._renew(now)
        parts = self._part_of(job.application_id)
        dropped = {
            claim
            for demand, part in parts.items()
            for claim in claimed.get(demand, [])[part.starts or part.queues :]
        }
        if dropped:
            kept = tuple(x for x in proposal.claims if x not in dropped)
            proposal = replace(proposal, claims=kept)
        must_run = frozenset(demand for demand, part in parts.items() if part.starts)
        return replace(proposal, must_run=must_run)

    def _note_declined(
        self, scheduler: str, job: Job, claimed: Collection[Vector], now: float
    ) -> None:
        """Could the job have started some in the round that claims these, and starts none? A gang
        that found no place for all of it leaves GPUs to others until capacity is freed."""
        parts: _Parts = job.gpu_parts
        if job.gang and not claimed:
            self._renew(now)
            parts = self._part_of(job.application_id)
        could_start = {demand for demand, part in parts.items() if part.starts}
        if could_start and could_start.isdisjoint(claimed):
            declined = job.gpus_declined + 1
        elif job.gang and not claimed:
            return
        else:
            declined = 0
        if declined != job.gpus_declined:
            self._master_state.gpus.renew(job.application_id)
        self._schedulers[scheduler].backlog.declined(job, declined)

    def tick(self, now: float) -> None:
        """Take back from time to time what is queued where it should not be."""
        self.changed()
        self._unseen = True
        if now >= self._next_run_s:
            self._next_run_s = now + self._master_state.bounds.relocation_period_s
            self.rebalance(now)
            if self._master_state.bounds.gpu_preemption and self._master_state.sees_all(now):
                self._preempt(now)

    def rebalance(self, now: float) -> None:
        """Take back what is queued beyond a fair share, and what could start elsewhere now and is
        due to, while several applications want GPUs."""
        if not self._master_state.sees_all(now) or len(self._master_state.gpus.uses) < 2:
            return
        reason = "another application has fewer GPUs and waits for one"
        for users in self._kinds(now):
            if not _is_contested(users) or not any(user.queued_mib for user in users):
                continue
            contest = self._contest(users, now)
            for container in contest.misplaced():
                if self._stays(container, contest, now):
                    continue
                if may_return(self._master_state, container, now, just_queued=True):
                    return_waiting(self._master_state, container, reason, now)

    def _stays(self, container: Container, contest: Contest, now: float) -> bool:
        """Would it be placed there again? So it is where what it waits for is free, by all that is
        known here, and where others yield it if no application that comes before its own could
        start there."""
        state = self._master_state.state
        queue, row = state.find(container.unit_id), state.rows.get(container.unit_id)
        if queue is None or row is None or not starts_where_it_waits(self._master_state, container):
            return False
        if not yields_there(queue):
            return True
        left = instead_of(queue, container.container_id)
        for user in contest.before(container):
            name = user.application_id
            requires = self._master_state.applications[name].requires
            if container.node in self._avoided(name, now):
                continue
            if requires is not None and not state.suited(requires)[row]:
                continue
            if self._could_start_at(queue, left, user, now):
                return False
        return True

    def _could_start_at(self, queue: UnitQueue, left: Vector, user: GpuUser, now: float) -> bool:
        """Could any of what it wants start at a unit if ``left`` were there, and not what is now?
        Of a gang all have to, at once, there and wherever there is capacity."""
        if not any(lot.waiting and fits(lot.demand, left) for lot in user.lots):
            return False
        app, nodes = self._master_state.applications[user.application_id], self._nodes(user, now)
        members = self._gang_members(user.job, app)
        if members is None:
            return True
        offer = plus(queue.free, to_come(queue))
        return bool(members) and all(
            self._startable(demand, nodes) - times(demand, offer) + times(demand, left) >= many
            for demand, many in members.items()
        )

    def _preempt(self, now: float) -> None:
        """Preempt for applications that hold less than their share, and wait."""
        resend_s = self._master_state.bounds.resend_delay_s
        recent = {x: at_s for x, at_s in self._preempted_s.items() if now - at_s < resend_s}
        self._preempted_s = recent
        for users in self._kinds(now):
            if len(users) < 2 or not any(user.waits for user in users):
                continue
            found = self._victims(self._contest(users, now), now)
            ends: dict[ApplicationId, list[Container]] = {}
            for lack, chosen in found:
                if lack.together:
                    ends.setdefault(lack.application_id, []).extend(chosen)
            for lack, chosen in found:
                gang = ends.get(lack.application_id, ())
                self._holds.begin(lack.application_id, lack.demand, chosen, now, gang)
                for container in chosen:
                    self._preempt_one(container, now)

    def _preempt_one(self, container: Container, now: float) -> None:
        self._preempted_s[container.container_id] = now
        self.changed()
        assert container.node is not None
        self._master_state.send_stop(
            self._master_state.nodes[container.node],
            container,
            EndCause.PREEMPTED,
            "another application has less than its fair share of the GPUs, and waits",
            now,
            grace_s=self._master_state.bounds.gpu_preemption_grace_s,
            decommission=True,
        )

    def _victims(self, contest: Contest, now: float) -> list[tuple[Lack, list[Container]]]:
        """What is preempted of one kind of GPUs, and for what."""
        master_state = self._master_state
        lacks, running = list[Lack](), list[Container]()
        above_mib: dict[ApplicationId, int] = {}
        kept_mib: dict[ApplicationId, int] = {}
        coming = list[Container]()
        shares_mib = contest.shares_mib()
        for user, share_mib, starting_mib, startable in zip(
            contest.users, shares_mib, contest.starting_mib, contest.startable, strict=True
        ):
            app = master_state.applications[user.application_id]
            demands = {lot.demand for lot in user.lots}
            live = [
                x for x in app.containers.values() if demand_vector(x.request.resources) in demands
            ]
            going = [
                x
                for x in live
                if x.state is ContainerState.STOPPING or x.container_id in self._preempted_s
            ]
            going_mib = sum(x.request.resources.gpu_memory_mib for x in going)
            coming += going
            kept_mib[user.application_id] = user.placed_mib - going_mib
            lacks_mib = share_mib - user.placed_mib - starting_mib
            own = self._lacks(user, lacks_mib, startable, now)
            if own and not user.declines:
                lacks += own
            elif kept_mib[user.application_id] > share_mib:
                above_mib[user.application_id] = kept_mib[user.application_id] - share_mib
                spared = {*map(_id_of, going), *_needed(app)}
                some = (x for x in live if x.state is ContainerState.RUNNING)
                running += [x for x in some if x.container_id not in spared]
        coming_mib = sum(x.request.resources.gpu_memory_mib for x in coming)

        def could_start(application_id: ApplicationId, ending: Sequence[Container]) -> bool:
            return self._gang_could_start_after(application_id, (*coming, *ending), now)

        closed = self._holds.paused(now)
        found = victims(
            master_state, lacks, running, above_mib, kept_mib, closed, coming_mib, could_start
        )
        return list(found)

    def _lacks(
        self, user: GpuUser, lacks_mib: int, startable: Sequence[int], now: float
    ) -> list[Lack]:
        """Those of a user that cannot start now, and would if it held ``lacks_mib`` more."""
        if not user.waits:
            return []
        name = user.application_id
        app, nodes = self._master_state.applications[name], self._nodes(user, now)
        members = self._gang_members(user.job, app)
        if members is None:
            found = lacking(user, lacks_mib, startable)
        else:
            counts = [self._startable(x.demand, nodes) for x in user.lots]
            found = lacking_together(user, lacks_mib, counts, members)
        gang, lacks = members is not None, list[Lack]()
        for lot, many in found:
            queued_at = frozenset(x.unit_id for x in lot.queued)
            lacks.append(Lack(name, lot.demand, many, nodes.avoided, queued_at, app.requires, gang))
        return lacks

    def _avoided(self, application_id: ApplicationId, now: float) -> frozenset[NodeName]:
        return self._master_state.exclusions.avoided(application_id, now)

    def _renew(self, now: float) -> None:
        """Compute the parts again if what they depend on has changed."""
        self._users.refresh(now)
        state = self._master_state.state
        held_at_s = now if self._holds else None
        at = state.shape, state.position, self._users.version, self._changes, held_at_s
        if at == self._known_at:
            return
        unseen, self._unseen = self._unseen, False
        self._known_at, self._known_s = at, now
        known, shared = self._known, self._shared
        self._compute(now)
        self._stale.update(self._users.renewed)
        for application_id in {**known, **self._known}:
            if unseen or known.get(application_id) != self._known.get(application_id):
                self._stale[application_id] = None
        self._users.renewed.clear()
        for slots in shared ^ self._shared:
            if slots in self._users.kinds:
                self._stale.update(dict.fromkeys(self._users.kinds[slots].users))

    def _compute(self, now: float) -> None:
        """The parts of each application that waits for GPUs of which others want some, too, but for
        those of lines to which nothing goes; and the kinds of these GPUs."""
        self._known, self._shared = {}, set()
        for users in self._kinds(now):
            if _is_contested(users) or self._holds.of_kind(users[0].slots, now):
                self._shared.add(users[0].slots)
                for application_id, some in self._contest(users, now).parts():
                    self._known.setdefault(application_id, {}).update(some)

    def _part_of(self, application_id: ApplicationId) -> _Parts:
        """What an application may have, as of the latest ``_renew``."""
        own: _Parts = self._known.get(application_id, _UNBOUND)
        line = self._users.line_of(application_id)
        for slots, nothing in () if line is None else line.nothing.items():
            if slots in self._shared:
                own = {**nothing, **own}
        return own

    def violations(self) -> list[str]:
        """What the parts state otherwise than those over all applications, as of the latest change;
        for tests and simulators, linear."""
        found, state = self._users.violations(), self._master_state.state
        at = state.shape, state.position, self._users.version, self._changes, None
        if found or self._holds or self._known_at != at or self._master_state.gpus.renewed:
            return found
        parts: dict[ApplicationId, dict[Vector, GpuPart]] = {}
        for users in self._users.everyone():
            if _is_contested(users):
                startable = [self._startable_of(user, self._known_s) for user in users]
                starting_mib, behind = self._queues(users, self._known_s)
                contest = Contest(users, startable, starting_mib=starting_mib, behind=behind)
                for application_id, some in contest.parts():
                    parts.setdefault(application_id, {}).update(some)
        names = {user.application_id for users in self._users.everyone() for user in users}
        return [
            f"{name} may have {self._part_of(name)} of the GPUs, and is due {parts.get(name)}"
            for name in names
            if self._part_of(name) != parts.get(name, _UNBOUND)
        ]

    def _kinds(self, now: float) -> list[list[GpuUser]]:
        """The batch applications that use GPUs or wait for some, by how many each uses; of those
        that are alike and have none, as many as could get one."""
        self._users.refresh(now)
        return [self._first(slots, now) for slots in self._users.kinds]

    def _first(self, slots: int, now: float) -> list[GpuUser]:
        users = list(self._users.samples(slots))
        queues = self._queues(users, now)
        free_mib = sum(queues.starting_mib) + max(
            (
                (count + more) * lot.size_mib
                for user, behind in zip(users, queues.behind, strict=True)
                for lot, count, more in zip(
                    user.lots, self._startable_of(user, now), behind, strict=True
                )
            ),
            default=0,
        )
        return self._users.first(slots, free_mib)

    def _contest(self, users: list[GpuUser], now: float) -> Contest:
        startable = [self._startable_of(user, now) for user in users]
        may_queue = self._master_state.bounds.waiting_limit > 0
        starting_mib, behind = self._queues(users, now)
        contest = Contest(
            users, startable, may_queue=may_queue, starting_mib=starting_mib, behind=behind
        )
        if holds := self._holds.of_kind(users[0].slots, now):
            contest.keep(holds, self._ending_mib)
        return contest

    def _queues(self, users: Sequence[GpuUser], now: float) -> GpuQueues:
        return queued_for(self._master_state.state, users, [self._nodes(x, now) for x in users])

    def _nodes(self, user: GpuUser, now: float) -> Nodes:
        """Where it may be."""
        name = user.application_id
        return Nodes(self._avoided(name, now), self._master_state.applications[name].requires)

    def _ending_mib(self, user: GpuUser) -> int:
        """What of that which it holds is about to end."""
        containers = self._master_state.applications[user.application_id].containers.values()
        return sum(
            x.request.resources.gpu_memory_mib
            for x in containers
            if (x.state is ContainerState.STOPPING or x.container_id in self._preempted_s)
            and demand_vector(x.request.resources)[Column.SLOTS] == user.slots
        )

    def _startable_of(self, user: GpuUser, now: float) -> Sequence[int]:
        """How many of each lot could start now."""
        if not user.waits:
            return user.nothing
        state = self._master_state.state
        counted_at = state.shape, state.position, self._users.version, self._changes
        if self._counted_at != counted_at:
            self._counted_at = counted_at
            self._counts.clear()
            self._could_start.clear()
        key = self._users.line_of(user.application_id) or user.application_id, user.slots
        known = self._could_start.get(key)
        if known is None:
            known = self._could_start[key] = self._counted(user, now)
        return known

    def _counted(self, user: GpuUser, now: float) -> Sequence[int]:
        app = self._master_state.applications[user.application_id]
        nodes = self._nodes(user, now)
        members = None if user.job is None else self._gang_members(user.job, app)
        if members is not None and not self._gang_could_start(members, nodes):
            return user.nothing
        many = [lot.pending if user.late else lot.waiting for lot in user.lots]
        return [
            min(count, self._startable(lot.demand, nodes)) if count else 0
            for lot, count in zip(user.lots, many, strict=True)
        ]

    def _gang_members(self, job: Job | None, app: Application) -> Counter[Vector] | None:
        """What of an application's gang has no place, by demand: nothing while not all of it has
        been requested. None: it has no gang to be placed."""
        gang = gangs.missing(app)
        if not gang:
            return None
        requests = () if job is None else itertools.islice(job.pending.values(), gang)
        members = Counter(demand_vector(request.resources) for request in requests)
        return members if members.total() == gang else Counter()

    def _gang_could_start(self, members: Counter[Vector], nodes: Nodes) -> bool:
        """Is there capacity for all of a gang, also for those of it that use no GPU?"""
        if not members:
            return False
        if any(self._startable(demand, nodes) < many for demand, many in members.items()):
            return False
        return len(members) == 1 or self._could_start_together(members, nodes)

    def _gang_could_start_after(
        self, application_id: ApplicationId, ending: Iterable[Container], now: float
    ) -> bool:
        """Is there, once these have ended?"""
        app = self._master_state.applications[application_id]
        scheduler = self._schedulers.get(app.scheduler)
        job = None if scheduler is None else scheduler.jobs.get(application_id)
        members = self._gang_members(job, app)
        nodes = Nodes(self._avoided(application_id, now), app.requires)
        return bool(members) and self._could_start_together(members or Counter(), nodes, ending)

    def _could_start_together(
        self, members: Counter[Vector], nodes: Nodes, ending: Iterable[Container] = ()
    ) -> bool:
        """Is there a place for each where the larger ones take the first that they find, once
        these have ended?"""
        view = self._renewed_view(nodes)
        for container in ending:
            row = self._master_state.state.rows.get(container.unit_id)
            if row is not None:
                view.give_back(row, demand_vector(container.request.resources))
        for demand, left in sorted(members.items(), reverse=True):
            view.open_to(demand)
            while left:
                rows = view.immediately_feasible(demand, WorkloadClass.BATCH, 0, left)
                if not len(rows):
                    return False
                entry = Entry(ContainerId(""), WorkloadClass.BATCH, demand, 0.0)
                left -= sum(view.apply(row, entry, 0.0) for row in rows.tolist())
        return True

    def _renewed_view(self, nodes: Nodes) -> ClusterView:
        if self._view is None:
            self._view = ClusterView(self._master_state.state)
        else:
            self._view.renew()
        if nodes.requires is not None:
            self._view.require(nodes.requires)
        if nodes.avoided:
            self._view.avoid(nodes.avoided)
        return self._view

    def _startable(self, demand: Vector, nodes: Nodes) -> int:
        key = demand, nodes
        if key not in self._counts:
            view = self._renewed_view(nodes)
            view.open_to(demand)
            self._counts[key] = view.startable_count(demand)
        return self._counts[key]


def _id_of(container: Container) -> ContainerId:
    return container.container_id


def _needed(app: Application) -> list[ContainerId]:
    """Those without which an application has fewer than its gang: its oldest executors that are
    not ordered to stop."""
    many = app.record.gang_min if app.record.gang_min > 1 else 0
    there = app.in_state(ContainerState.RUNNING, ContainerState.ASSIGNED)
    placed = [x for x in there if x.stop_cause is None]
    oldest = sorted(placed, key=lambda x: (x.started_at_s or math.inf, x.number))
    return [x.container_id for x in oldest[:many]]


def _is_contested(users: list[GpuUser]) -> bool:
    """Do several applications want more than they have?"""
    return sum(user.waits for user in users) > 1


def _is_bound(job: Job) -> bool:
    """Streams and gangs are placed whole."""
    return job.gpus and not job.gang and job.workload_class is WorkloadClass.BATCH
