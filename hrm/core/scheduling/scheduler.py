"""A distributed scheduler: takes jobs from its own queue, chooses on a snapshot, proposes.

Several run in parallel, independently of each other. A *job* is what one application waits for.
Streams go before batch. A round takes one job, has the placement policy choose a unit for each of
its containers, and passes the claims to the negotiator. What was not placed stays in the job, which
is tried again after a capped back-off, or at once when capacity appears
(``hrm.core.scheduling.backlog``).

Source: HRM paper, section 4.3.3, algorithm 2, with claims reserved tentatively in the local copy.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from hrm.core.messages.claims import Claim, Decision, Entry, Outcome, Proposal
from hrm.core.scheduling.backlog import Backlog
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.exhaustion import Exhaustion
from hrm.core.scheduling.jobs import Job, rounded_run_s
from hrm.core.scheduling.placing import Placement, PlacementPolicy, ask, ask_in_steps
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ApplicationId,
    ContainerId,
    ContainerRequest,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
    is_driver,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.errors import PolicyFault

__all__ = ["Job", "Placement", "PlacementPolicy", "Scheduler", "rank_of"]


def rank_of(job: Job) -> tuple[bool, float]:
    """Where a job stands among those of several schedulers, the least first: streams, then in order
    of arrival."""
    return job.workload_class is not WorkloadClass.STREAM, job.arrived_at_s


_AFTER_OTHERS = (
    "GPUs go first to applications that have fewer of them, or as few and came before, and wait"
)

_Members: TypeAlias = list[tuple[ContainerId, ContainerRequest]]

T = TypeVar("T", bound=tuple[Any, ...])


class Scheduler:
    """One scheduler.

    Invariants: a job is in ``backlog`` iff it has pending containers; at most one proposal is in
    flight, and then ``in_flight`` names its job and when it was sent. ``jobs`` are the backlog's,
    in order of arrival; only the backlog changes them. ``exhaustion``: what is known of the state
    on which it chooses, None where nothing is. ``_freed``: has capacity been freed since its latest
    choice? A round that was under way then has not seen it.

    ``delays_s``: of the latest grants, seconds from the request, and whether it was known in
    between that there is no place. ``_lacked_s``: when a job was last known to lack one.
    ``knows_lacks``: is that known of each job by itself? Where jobs go in strict order, or another
    process chooses, a lack of one counts for all that waited then.
    """

    knows_lacks = True

    def __init__(self, name: str, policy: PlacementPolicy, bounds: Bounds) -> None:
        self.name = name
        self.policy = policy
        self.strict_order = bool(getattr(policy, "strict_order", False))
        self.bounds = bounds
        self.backlog = Backlog(in_order=self.strict_order)
        self.jobs = self.backlog.jobs
        self.exhaustion: Exhaustion | None = None
        self.in_flight: tuple[ApplicationId, float] | None = None
        self.wake_at_s: float | None = None
        self.lease_token = 0
        self._freed = False
        self.rounds = 0
        self.placed = 0
        self.retries = 0
        self.policy_faults = 0
        self.delays_s: deque[tuple[float, bool]] = deque(maxlen=bounds.delays_kept)
        self._lacked_s = -math.inf

    def add(
        self,
        application_id: ApplicationId,
        workload_class: WorkloadClass,
        container_id: ContainerId,
        request: ContainerRequest,
        now: float,
    ) -> None:
        job = self.jobs.get(application_id)
        is_new = job is None
        if job is None:
            job = Job(application_id, workload_class, arrived_at_s=now)
        job.pending[container_id] = request
        job.requested_at_s[container_id] = now
        job.renewed = True
        changed = False
        if job.group is not None or job.lacks:
            changed = _wants_otherwise(job)
        if request.resources is not job.latest:
            job.latest = request.resources
            demand = demand_vector(request.resources)
            if demand not in job.demands:
                changed = True
                job.demands.add(demand)
                job.gpus = job.gpus or request.resources.gpu_memory_mib > 0
            if job.gpus_declined:
                self.backlog.declined(job, 0)
        if request.expected_duration_s != job.latest_s:
            job.latest_s = request.expected_duration_s
            run_s = self.run_s(request)
            if run_s < job.run_s:
                changed, job.run_s = True, run_s
        if request.near or request.platform:  # as ``request.prefers``, without a call
            job.prefers = True
        if request.place and not job.places:
            changed = job.places = True
        if request.yields and not job.yields:
            changed = job.yields = True
        if is_new:
            self.backlog.add(job)
            return
        # As ``Job.not_before_s``, without a call: each container of a large request comes here.
        due_s = job.own_s if job.own_s is not None or job.cohort is None else job.cohort.level_s
        if changed or (due_s is not None and now < due_s):
            self.backlog.place(job, min(now, job.not_before_s))

    def withdraw(self, application_id: ApplicationId, container_id: ContainerId) -> None:
        job = self.jobs.get(application_id)
        if job is None:
            return
        job.pending.pop(container_id, None)
        job.requested_at_s.pop(container_id, None)
        if not job.pending:
            self.backlog.remove(application_id)
        elif _wants_otherwise(job):
            self.backlog.place(job)

    def reclassify(self, job: Job, workload_class: WorkloadClass, now: float) -> None:
        """The class of a job's application has changed; it may be tried now."""
        job.workload_class = workload_class
        job.renewed = True
        job.group, job.lacks = None, {}
        self.backlog.place(job, now)

    def restrict(
        self,
        job: Job,
        gang: int,
        avoid: frozenset[NodeName],
        requires: NodeRequirement | None,
        excluded: frozenset[NodeName] | None = None,
    ) -> None:
        """Set how many containers a job needs at once, the nodes that it avoids, and what a node
        must meet. ``excluded``: of those to avoid at least the ones that not all avoid; None: all.
        """
        changed = job.gang != gang
        if changed:
            job.gang, job.group = gang, None
        job.avoid = avoid
        if excluded is None:
            excluded = avoid
        if requires != job.requires or excluded != job.excluded:
            changed, job.requires, job.excluded = True, requires, excluded
        if changed:
            job.lacks = {}
            self.backlog.place(job)

    def _settled(self, job: Job, container_ids: Sequence[ContainerId]) -> None:
        """These containers of a job no longer wait, if there are any; after every round."""
        for container_id in container_ids:
            job.pending.pop(container_id, None)
            job.requested_at_s.pop(container_id, None)
        if not job.pending:
            self.backlog.remove(job.application_id)

    def capacity_freed(self) -> None:
        """Containers ended or a node came: jobs that back off may be tried at once."""
        self._freed = True
        self.backlog.capacity_freed()

    def next_job(self, now: float) -> Job | None:
        """The job to place now: streams first, then in order of arrival."""
        return self.backlog.next_job(now)

    def next_rank(self, now: float) -> tuple[bool, float]:
        """Where its next job stands among those of several schedulers; last without one."""
        job = self.backlog.next_job(now)
        return (True, math.inf) if job is None else rank_of(job)

    def begin(self, job: Job) -> None:
        """A round of this job begins, before its choice: it sees what has happened until now."""
        job.renewed = self._freed = False

    def spare(self, job: Job) -> bool:
        """Would a round of this job, the next one, certainly find nothing? Then ``settle`` it
        without outcomes instead."""
        if job.gpus:
            if not job.gets_no_gpu or job.gpus_declined or self.strict_order:
                return False
        elif self.exhaustion is None or job.prefers or not self._takes_any(job):
            return False
        else:
            holds = self.exhaustion.holds
            known = map(holds, job.demands)
            if job.requires is not None or job.avoid:
                same = itertools.repeat
                known = map(holds, job.demands, same(job.requires), same(job.avoid))
            if not all(known):
                return False
        job.policy_fault = ""
        job.held_until_s = math.inf
        job.renewed = self._freed = False
        job.lacks = dict.fromkeys(job.demands, 0.0)
        return True

    def next_time_s(self) -> float | None:
        """When the next job may be tried; None without jobs."""
        return self.backlog.next_time_s()

    def choose(self, job: Job, view: ClusterView, lease_token: int, now: float) -> Proposal:
        """Claims for what the policy found a place for; reserves them tentatively in ``view``.

        No claim at all where the policy failed; then ``job.policy_fault`` has the reason.
        """
        self.rounds += 1
        job.policy_fault = ""
        job.held_until_s = math.inf
        job.renewed = self._freed = False
        claims: list[Claim] = []
        lacks: dict[Vector, float] = {}
        pending = job.pending
        wanted = dict(itertools.islice(pending.items(), job.gang)) if job.gang else pending
        if job.rows is not None:
            view.keep_rows(job.rows)
        if job.requires is not None:
            view.require(job.requires)
        if job.avoid:
            view.avoid(job.avoid)
        try:
            groups = self._groups(wanted, gang=job.gang > 0)
            for demand, members in _by_level(groups) if job.yields else groups:
                view.open_to(demand)
                asking, may_queue = _part_of(job, demand, members)
                if job.prefers:
                    asking = self._place_preferred(job, demand, asking, view, claims, now)
                placement = self._placement(job, demand, asking)
                lacks[demand] = placement.run_s
                if not may_queue:
                    placement = replace(placement, waiting_limit=0)
                rows = (ask_in_steps if job.yields or view.yielding_rows else ask)(
                    self.policy, view, placement, now
                )
                claims += _claims(view, placement.entries, rows)
                if self.strict_order and None in rows:
                    break
        except PolicyFault as fault:
            self.policy_faults += 1
            job.policy_fault = fault.message
            claims = []
        found = len(claims) >= (job.gang or 1)
        job.lacks = {} if found or not self._lacked_capacity(job) else lacks
        if self.strict_order:
            waits = _is_behind_others(job, view)
            waits = waits or self._waits_for_endless(job, view, len(claims))
            waits = waits and not job.policy_fault
            self.backlog.passed(job, is_passed=waits)
        if len(claims) < job.gang:
            claims = []
        return Proposal(
            self.name,
            job.application_id,
            job.workload_class,
            tuple(claims),
            lease_token,
            job.gang,
            requires=job.requires,
        )

    def _place_preferred(
        self,
        job: Job,
        demand: Vector,
        members: _Members,
        view: ClusterView,
        claims: list[Claim],
        now: float,
    ) -> _Members:
        """Add claims for those that can start at once where they would rather be: near their data,
        else on their platform. Returns those that are to be placed anywhere; the rest waits a
        little longer."""
        together = job.gang or job.workload_class is WorkloadClass.STREAM or self.strict_order
        for is_near in (True, False):
            by_place: dict[tuple[NodeName, ...] | str, _Members] = {}
            for member in members:
                where = member[1].near if is_near else member[1].platform
                if where:
                    by_place.setdefault(where, []).append(member)
            gone: set[ContainerId] = set()
            for where, some in by_place.items():
                view.open_to(demand)
                if not _opens(view, where, demand):
                    continue
                placement = self._placement(job, demand, some)
                placement = replace(placement, waiting_limit=0, together=False)
                rows = (ask_in_steps if job.yields or view.yielding_rows else ask)(
                    self.policy, view, placement, now
                )
                claims += _claims(view, placement.entries, rows)
                for (container_id, request), row in zip(some, rows, strict=True):
                    until_s = request.platform_until_s
                    if is_near:
                        until_s = job.requested_at_s[container_id] + request.locality_wait_s
                    if row is not None:
                        gone.add(container_id)
                    elif now < until_s and not together:
                        gone.add(container_id)
                        job.held_until_s = min(job.held_until_s, until_s)
            members = [member for member in members if member[0] not in gone]
        view.open_to(demand)
        return members

    def settle(self, job: Job, outcomes: list[Outcome], now: float) -> list[Outcome]:
        """Take what was granted out of the job; back off if anything is left. Returns grants."""
        granted = [outcome for outcome in outcomes if outcome.decision is not Decision.ABORT]
        entries = [x.claim.entry for x in granted]
        if granted:
            requested_at_s, lacked_s = job.requested_at_s, job.lacked_s
            if job.cohort is not None and job.cohort.held_s > lacked_s:
                lacked_s = job.cohort.held_s
            if self.strict_order or not self.knows_lacks:
                lacked_s = self._any_lacked_s(lacked_s, now)
            self.delays_s.extend(
                [
                    (now - (at_s := requested_at_s.get(x.container_id, now)), at_s <= lacked_s)
                    for x in entries
                ]
            )
            self.placed += len(granted)
        self._settled(job, [x.container_id for x in entries])
        if len(granted) < len(outcomes):
            refusals = [each.reason for each in outcomes if each.decision is Decision.ABORT]
            job.last_refusal = refusals[-1]
        else:
            share = _AFTER_OTHERS if job.gpus and (0, 0) in job.gpu_parts.values() else ""
            job.last_refusal = job.policy_fault or share
        if job.pending:
            self.retries += 1
            if not job.renewed:  # or what is left may have been requested during the round
                self._lacked_s = job.lacked_s = now
            least_s, most_s = self.bounds.retry_delay_s, self.bounds.retry_delay_max_s
            job.delay_s = least_s if granted else min(max(2 * job.delay_s, least_s), most_s)
            at_s = self._next_try_s(job, now, any_granted=bool(granted))
            if granted:
                job.gang, job.group = 0, None
            if not outcomes and job.lacks:
                self._note_lacks(job, now)
            self.backlog.place(job, min(at_s, job.held_until_s))
        job.lacks = {}
        job.renewed = False
        return granted

    def _any_lacked_s(self, lacked_s: float, now: float) -> float:
        """When any job was last known to lack a place; ``lacked_s``: the one that is granted some
        now, which has lacked it until now if it ever did."""
        if lacked_s > -math.inf:
            self._lacked_s = now
        return self._lacked_s

    def oldest_wait_s(self, now: float) -> float:
        """For how long the container has waited for a place that has waited longest; 0: none."""
        asked_s = [next(iter(job.requested_at_s.values()), now) for job in self.jobs.values()]
        return max(0.0, now - min(asked_s, default=now))

    def _note_lacks(self, job: Job, now: float) -> None:
        """Its round has failed: spare other jobs theirs."""
        takes_any = self._takes_any(job)
        if not takes_any and job.is_whole:
            job.group = job.wanted()
        if not self._freed:
            self.backlog.hold_back(job, now)
        if self.exhaustion is not None and takes_any:
            for demand in job.lacks:
                self.exhaustion.note(demand, job.requires, job.avoid)

    def _next_try_s(self, job: Job, now: float, *, any_granted: bool) -> float:
        """When what is left of a job after a round may be tried again: at once where that round
        has not seen all that it requests, or all capacity. For capacity that is so once in a row,
        or a job that is first would be tried for ever, and those behind it never."""
        again, job.is_retry = self._freed and not job.is_retry, False
        if job.renewed or (any_granted and job.gang):
            return now
        if again:
            job.is_retry = True
            return now
        return now + (self.bounds.retry_delay_s if self._freed else job.delay_s)

    def _waits_for_endless(self, job: Job, view: ClusterView, placed: int) -> bool:
        """Must streams or drivers end before what comes first in the job can start? ``placed``: how
        many of it have been reserved in ``view``."""
        needed = max(1, job.gang)
        if placed >= needed:
            return False
        reserved = placed if job.workload_class is WorkloadClass.STREAM else 0
        members = itertools.islice(job.pending.values(), needed)
        many = Counter(demand_vector(request.resources) for request in members)
        most = ((view.most_beside_endless(demand), count) for demand, count in many.items())
        return any(fitting + reserved < count for fitting, count in most)

    def _lacked_capacity(self, job: Job) -> bool:
        """Could a round that has placed nothing have lacked capacity alone?"""
        held = job.held_until_s < math.inf or job.rows is not None
        if held or job.policy_fault or job.places or job.yields or self.strict_order:
            return False
        if job.gpus and job.workload_class is WorkloadClass.BATCH:
            return False
        return not job.gang or len(job.pending) >= job.gang

    def _takes_any(self, job: Job) -> bool:
        """May it be placed one by one, wherever there is capacity?"""
        other_rules = job.gang or job.places or job.yields or self.strict_order
        return not (other_rules or job.gpus or job.workload_class is WorkloadClass.STREAM)

    def entry(
        self, container_id: ContainerId, workload_class: WorkloadClass, request: ContainerRequest
    ) -> Entry:
        """What a container will be in the queue of a unit."""
        duration_s = request.expected_duration_s or self.bounds.default_duration_s
        demand = demand_vector(request.resources)
        place, yields = request.place, request.yields
        return Entry(container_id, workload_class, demand, duration_s, place=place, yields=yields)

    def run_s(self, request: ContainerRequest) -> float:
        """How long a container is expected to run, as rounds count."""
        return rounded_run_s(request.expected_duration_s or self.bounds.default_duration_s)

    def _groups(
        self, wanted: dict[ContainerId, ContainerRequest], *, gang: bool
    ) -> Iterable[tuple[Vector, _Members]]:
        """Containers of one demand together; in strict order only those that follow each other. Of
        a gang the largest go first: small ones everywhere would leave them no place."""
        members = wanted.items()
        if self.strict_order and not gang:
            runs = itertools.groupby(members, key=lambda item: demand_vector(item[1].resources))
            return [(demand, list(run)) for demand, run in runs]
        groups: dict[Vector, _Members] = {}
        latest, group = None, []
        for item in members:
            resources = item[1].resources
            if resources is not latest:
                latest = resources
                group = groups.setdefault(demand_vector(resources), [])
            group.append(item)
        if gang and len(groups) > 1:
            return sorted(groups.items(), reverse=True)
        return groups.items()

    def _placement(self, job: Job, demand: Vector, members: _Members) -> Placement:
        workload_class, default_s = job.workload_class, self.bounds.default_duration_s
        durations_s = [x.expected_duration_s or default_s for _, x in members]
        container_ids = [container_id for container_id, _ in members]
        same = itertools.repeat
        constants = same(workload_class), same(demand)
        places: Iterable[ResourceUnitId] = same(NO_UNIT)
        if job.places:
            places = [request.place for _, request in members]
        zeros = same(0.0), same(0)
        yields = same(job.yields and bool(members) and members[0][1].yields)
        columns = zip(container_ids, *constants, durations_s, *zeros, places, yields, strict=False)
        together, stream = job.gang > 0, workload_class is WorkloadClass.STREAM
        entries = tuple(_each(Entry, columns))
        limit = 0 if together and not stream else self.bounds.waiting_limit
        wait_max_s = self.bounds.wait_max_s
        endless = stream or is_driver(job.application_id)
        run_s = math.inf if endless else rounded_run_s(max(durations_s, default=math.inf))
        return Placement(
            workload_class, demand, entries, limit, wait_max_s, together=together, run_s=run_s
        )


def _by_level(groups: Iterable[tuple[Vector, _Members]]) -> Iterator[tuple[Vector, _Members]]:
    """The same groups, each first without what yields."""
    later: list[tuple[Vector, _Members]] = []
    for demand, members in groups:
        plain = [member for member in members if not member[1].yields]
        if plain:
            yield demand, plain
        if len(plain) < len(members):
            later.append((demand, [member for member in members if member[1].yields]))
    yield from later


def _wants_otherwise(job: Job) -> bool:
    """What a job wants has changed: what its latest round found says nothing of others, where it is
    placed whole. Does its cohort change with that?"""
    if job.lacks and job.is_whole:
        job.lacks = {}
    was_known = job.group is not None
    job.group = None
    return was_known


def _each(kind: type[T], columns: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Named tuples of a kind from columns of their fields, as fast as plain ones are made."""
    return map(functools.partial(tuple.__new__, kind), columns)


def _is_behind_others(job: Job, view: ClusterView) -> bool:
    """Could the first of it start, if others had no right to those GPUs before it?"""
    if not job.gets_no_gpu:
        return False
    demand = demand_vector(next(iter(job.pending.values())).resources)
    view.open_to(demand)
    return view.startable_count(demand) > 0


def _claims(view: ClusterView, entries: Sequence[Entry], rows: list[int | None]) -> Iterator[Claim]:
    """A claim for each entry that got a row."""
    taken = [row for row in rows if row is not None]
    if len(taken) < len(rows):
        entries = list(itertools.compress(entries, [row is not None for row in rows]))
    return _each(Claim, zip(entries, view.unit_ids(taken), view.versions(taken), strict=True))


def _part_of(job: Job, demand: Vector, members: _Members) -> tuple[_Members, bool]:
    """Those of a group that may be placed in this round, and whether they may wait at a unit."""
    part = job.gpu_parts.get(demand) if job.gpus else None
    if part is None:
        return members, True
    return members[: part.starts or part.queues], not part.starts


def _opens(view: ClusterView, where: tuple[NodeName, ...] | str, demand: Vector) -> bool:
    """Close all rows but those of these nodes, or of this platform; see ``ClusterView``."""
    if isinstance(where, str):
        return view.open_at(where, demand)
    return view.open_only(where, demand)
