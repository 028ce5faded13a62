"""A distributed scheduler: takes jobs from its own queue, chooses on a snapshot, proposes.

Several run in parallel, independently of each other. A *job* is what one application waits for.
Streams go before batch. A round takes one job, has the placement policy choose a unit for each of
its containers, and passes the claims to the negotiator. What was not placed stays in the job, which
is tried again after a capped back-off, or at once when capacity appears.

Source: HRM paper, section 4.3.3, algorithm 2, with claims reserved tentatively in the local copy.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from hrm.core.messages.claims import Claim, Decision, Entry, GpuPart, Outcome, Proposal
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector, fits
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.errors import PolicyFault

__all__ = ["Job", "Placement", "PlacementPolicy", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Like containers of one job to be placed: as many as ``entries``, all of one demand.

    ``together``: a place for some of them is worth nothing; ``waiting_limit`` is 0 where they must
    start at once.
    """

    workload_class: WorkloadClass
    demand: Vector
    entries: tuple[Entry, ...]
    waiting_limit: int
    wait_max_s: float
    together: bool = False


class PlacementPolicy(Protocol):
    """Chooses units; commits nothing. One instance serves one scheduler.

    A policy may be third-party code: what it returns is checked, and what it raises is caught. One
    that has the attribute ``strict_order = True`` is called for the oldest job only, streams
    before batch, and within it in order of request, until one container is not placed.
    """

    name: str

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """A row of ``view`` for each entry, None where none admits it; reserves in ``view``."""
        ...


@dataclass(slots=True)
class Job:
    """What one application still waits for.

    Invariants: ``pending`` holds all and only the application's PENDING containers, in order of
    request. ``delay_s`` is the latest back-off; 0 after a round that placed everything.
    ``policy_fault`` states how the policy failed in the latest round; empty if it did not.
    ``gang`` is how many of ``pending``, the first, must be granted together and run at once.
    ``demands`` has those of all of ``pending``, and may have some of others that it waited for;
    that of ``latest`` is among them. ``avoid``: nodes that are excluded for it.
    ``gpus``: some of ``pending`` may use a GPU. ``gpu_part``: what it may have of them in the next
    round; None: all that it requests. ``gpus_declined``: in how many rounds, one after the other,
    it could have started some, and its policy proposed none.
    ``near``: some of ``pending`` may be near their data; ``held_until_s``: when the first of those
    that wait for that in the latest round waits no more, infinite where none does.
    """

    application_id: ApplicationId
    workload_class: WorkloadClass
    pending: dict[ContainerId, ContainerRequest] = field(default_factory=dict)
    requested_at_s: dict[ContainerId, float] = field(default_factory=dict)
    not_before_s: float = 0.0
    delay_s: float = 0.0
    last_refusal: str = ""
    policy_fault: str = ""
    gang: int = 0
    gpus: bool = False
    gpu_part: GpuPart | None = None
    gpus_declined: int = 0
    demands: set[Vector] = field(default_factory=set)
    latest: Resources | None = None
    avoid: frozenset[NodeName] = frozenset()
    near: bool = False
    held_until_s: float = math.inf

    @property
    def gpu_pending(self) -> int:
        """How many of ``pending`` use a GPU."""
        if not self.gpus:
            return 0
        return sum(1 for x in self.pending.values() if x.resources.gpu_memory_mib)


_HAS_SHARE = "it has its fair share of the GPUs, and other applications wait for theirs"

_Members: TypeAlias = list[tuple[ContainerId, ContainerRequest]]
_ROWS = frozenset({int, type(None)})

T = TypeVar("T", bound=tuple[Any, ...])


class Scheduler:
    """One scheduler.

    Invariants: a job is in ``jobs`` iff it has pending containers; at most one proposal is in
    flight, and then ``in_flight`` names its job and when it was sent.
    """

    def __init__(self, name: str, policy: PlacementPolicy, bounds: Bounds) -> None:
        self.name = name
        self.policy = policy
        self.strict_order = bool(getattr(policy, "strict_order", False))
        self.bounds = bounds
        self.jobs: dict[ApplicationId, Job] = {}
        self.in_flight: tuple[ApplicationId, float] | None = None
        self.wake_at_s: float | None = None
        self.lease_token = 0
        self.rounds = 0
        self.placed = 0
        self.retries = 0
        self.policy_faults = 0
        self.delays_s: deque[float] = deque(maxlen=bounds.delays_kept)

    def add(
        self,
        application_id: ApplicationId,
        workload_class: WorkloadClass,
        container_id: ContainerId,
        request: ContainerRequest,
        now: float,
    ) -> None:
        job = self.jobs.get(application_id)
        if job is None:
            job = self.jobs[application_id] = Job(application_id, workload_class)
        job.pending[container_id] = request
        if request.resources is not job.latest:
            job.latest = request.resources
            job.demands.add(demand_vector(request.resources))
            job.gpus = job.gpus or request.resources.gpu_memory_mib > 0
            job.gpus_declined = 0
        if request.near:
            job.near = True
        job.requested_at_s[container_id] = now
        if now < job.not_before_s:
            job.not_before_s = now

    def withdraw(self, application_id: ApplicationId, container_id: ContainerId) -> None:
        job = self.jobs.get(application_id)
        if job is None:
            return
        job.pending.pop(container_id, None)
        job.requested_at_s.pop(container_id, None)
        if not job.pending:
            del self.jobs[application_id]

    def _settled(self, job: Job, container_ids: Sequence[ContainerId]) -> None:
        """These containers of a job no longer wait."""
        for container_id in container_ids:
            job.pending.pop(container_id, None)
            job.requested_at_s.pop(container_id, None)
        if not job.pending:
            self.jobs.pop(job.application_id, None)

    def capacity_freed(self) -> None:
        """Containers ended or a node came: jobs that back off may be tried at once."""
        for job in self.jobs.values():
            job.not_before_s = 0.0
            job.gpus_declined = 0

    def next_job(self, now: float) -> Job | None:
        """The job to place now: streams first, then in order of arrival."""
        ready = (job for job in self._candidates() if job.not_before_s <= now)
        return min(ready, key=_is_batch, default=None)

    def next_time_s(self) -> float | None:
        """When the next job may be tried; None without jobs."""
        return min((job.not_before_s for job in self._candidates()), default=None)

    def choose(self, job: Job, view: ClusterView, lease_token: int, now: float) -> Proposal:
        """Claims for what the policy found a place for; reserves them tentatively in ``view``.

        No claim at all where the policy failed; then ``job.policy_fault`` has the reason.
        """
        self.rounds += 1
        job.policy_fault = ""
        job.held_until_s = math.inf
        claims: list[Claim] = []
        pending = job.pending
        wanted = dict(itertools.islice(pending.items(), job.gang)) if job.gang else pending
        if job.avoid:
            view.avoid(job.avoid)
        try:
            for demand, members in self._groups(wanted):
                view.open_to(demand)
                asking, may_queue = _part_of(job, demand, members, claims)
                if job.near:
                    asking = self._place_near(job, demand, asking, view, claims, now)
                placement = self._placement(job, demand, asking)
                if not may_queue:
                    placement = replace(placement, waiting_limit=0)
                rows = _ask(self.policy, view, placement, now)
                claims += _claims(view, placement.entries, rows)
                if self.strict_order and None in rows:
                    break
        except PolicyFault as fault:
            self.policy_faults += 1
            job.policy_fault = fault.message
            claims = []
        if len(claims) < job.gang:
            claims = []
        return Proposal(
            self.name, job.application_id, job.workload_class, tuple(claims), lease_token, job.gang
        )

    def _place_near(
        self,
        job: Job,
        demand: Vector,
        members: _Members,
        view: ClusterView,
        claims: list[Claim],
        now: float,
    ) -> _Members:
        """Add claims for those that can start near their data at once; returns those that are to be
        placed anywhere. The rest waits a little longer."""
        together = job.gang or job.workload_class is WorkloadClass.STREAM or self.strict_order
        by_place: dict[tuple[NodeName, ...], _Members] = {}
        for member in members:
            if member[1].near:
                by_place.setdefault(member[1].near, []).append(member)
        gone: set[ContainerId] = set()
        for nodes, some in by_place.items():
            view.open_to(demand)
            if not view.open_only(nodes, demand):
                continue
            placement = replace(self._placement(job, demand, some), waiting_limit=0, together=False)
            rows = _ask(self.policy, view, placement, now)
            claims += _claims(view, placement.entries, rows)
            for (container_id, request), row in zip(some, rows, strict=True):
                until_s = job.requested_at_s[container_id] + request.locality_wait_s
                if row is not None:
                    gone.add(container_id)
                elif now < until_s and not together:
                    gone.add(container_id)
                    job.held_until_s = min(job.held_until_s, until_s)
        view.open_to(demand)
        return [member for member in members if member[0] not in gone]

    def settle(self, job: Job, outcomes: list[Outcome], now: float) -> list[Outcome]:
        """Take what was granted out of the job; back off if anything is left. Returns grants."""
        granted = [outcome for outcome in outcomes if outcome.decision is not Decision.ABORT]
        requested_at_s, entries = job.requested_at_s, [x.claim.entry for x in granted]
        self.delays_s.extend([now - requested_at_s.get(x.container_id, now) for x in entries])
        self._settled(job, [x.container_id for x in entries])
        self.placed += len(granted)
        refusals = [outcome.reason for outcome in outcomes if outcome.decision is Decision.ABORT]
        share = _HAS_SHARE if job.gpus and job.gpu_part == (0, 0) else ""
        job.last_refusal = refusals[-1] if refusals else job.policy_fault or share
        if job.pending:
            self.retries += 1
            least_s, most_s = self.bounds.retry_delay_s, self.bounds.retry_delay_max_s
            job.delay_s = least_s if granted else min(max(2 * job.delay_s, least_s), most_s)
            # What comes after a gang has not been tried yet.
            job.not_before_s = now if granted and job.gang else now + job.delay_s
            job.not_before_s = min(job.not_before_s, job.held_until_s)
            if not outcomes and self._lacked_capacity(job):
                self._hold_back(job, now)
        if granted:
            job.gang = 0
        return granted

    def _lacked_capacity(self, job: Job) -> bool:
        """Did the latest round place nothing for lack of capacity, and of nothing else?"""
        other_reasons = job.gang or job.policy_fault or self.strict_order or job.avoid
        held = job.held_until_s < math.inf
        gpus = any(demand[Column.GPU_MEMORY_MIB] for demand in job.demands)
        return not (other_reasons or held or gpus or job.workload_class is WorkloadClass.STREAM)

    def _hold_back(self, job: Job, now: float) -> None:
        """Spare other jobs the round that has just failed: those that request no less go back to
        where they were before capacity appeared."""
        for other in self.jobs.values():
            if (
                other is not job
                and other.delay_s
                and not other.gang
                and other.workload_class is WorkloadClass.BATCH
                and all(any(fits(x, demand) for x in job.demands) for demand in other.demands)
            ):
                other.not_before_s = max(other.not_before_s, now + other.delay_s)

    def entry(
        self, container_id: ContainerId, workload_class: WorkloadClass, request: ContainerRequest
    ) -> Entry:
        """What a container will be in the queue of a unit."""
        duration_s = request.expected_duration_s or self.bounds.default_duration_s
        return Entry(container_id, workload_class, demand_vector(request.resources), duration_s)

    def _candidates(self) -> Iterable[Job]:
        """The jobs that may be placed at all: every one, or in strict order the first alone."""
        if not self.strict_order or not self.jobs:
            return self.jobs.values()
        return (min(self.jobs.values(), key=_is_batch),)

    def _groups(
        self, wanted: dict[ContainerId, ContainerRequest]
    ) -> Iterable[tuple[Vector, _Members]]:
        """Containers of one demand together; in strict order only those that follow each other."""
        members = wanted.items()
        if self.strict_order:
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
        return groups.items()

    def _placement(self, job: Job, demand: Vector, members: _Members) -> Placement:
        workload_class, default_s = job.workload_class, self.bounds.default_duration_s
        durations_s = [x.expected_duration_s or default_s for _, x in members]
        container_ids = [container_id for container_id, _ in members]
        same = itertools.repeat
        constants = same(workload_class), same(demand)
        columns = zip(container_ids, *constants, durations_s, same(0.0), same(0), strict=False)
        together, stream = job.gang > 0, workload_class is WorkloadClass.STREAM
        entries = tuple(_each(Entry, columns))
        limit = 0 if together and not stream else self.bounds.waiting_limit
        wait_max_s = self.bounds.wait_max_s
        return Placement(workload_class, demand, entries, limit, wait_max_s, together=together)


def _each(kind: type[T], columns: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Named tuples of a kind from columns of their fields, as fast as plain ones are made."""
    return map(functools.partial(tuple.__new__, kind), columns)


def _claims(view: ClusterView, entries: Sequence[Entry], rows: list[int | None]) -> Iterator[Claim]:
    """A claim for each entry that got a row."""
    taken = [row for row in rows if row is not None]
    if len(taken) < len(rows):
        entries = list(itertools.compress(entries, [row is not None for row in rows]))
    versions = view.version[taken].tolist()
    return _each(Claim, zip(entries, view.unit_ids(taken), versions, strict=True))


def _part_of(
    job: Job, demand: Vector, members: _Members, claims: Sequence[Claim]
) -> tuple[_Members, bool]:
    """Those of a group that may be placed in this round, after ``claims``, and whether they may
    wait at a unit."""
    part = job.gpu_part
    if part is None or not demand[Column.GPU_MEMORY_MIB]:
        return members, True
    claimed = sum(1 for claim in claims if claim.entry.demand[Column.GPU_MEMORY_MIB])
    if part.starts:
        return members[: max(0, part.starts - claimed)], False
    return members[: max(0, part.queues - claimed)], True


def _is_batch(job: Job) -> bool:
    return job.workload_class is WorkloadClass.BATCH


def _ask(
    policy: PlacementPolicy, view: ClusterView, placement: Placement, now: float
) -> list[int | None]:
    """The policy's result, if it is valid.

    Raises:
        PolicyFault: it raised, or returned something else than an open row for each container.
    """
    name = f"placement policy {getattr(policy, 'name', type(policy).__name__)!r}"
    try:
        chosen_rows = list(policy.place(view, placement, now))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}"
        raise PolicyFault(f"{name} failed: {what} ({where.filename}:{where.lineno})") from error
    wanted = len(placement.entries)
    if len(chosen_rows) != wanted:
        raise PolicyFault(f"{name} returned {len(chosen_rows)} rows for {wanted} containers")
    if set(map(type, chosen_rows)) <= _ROWS:
        taken = np.array([each for each in chosen_rows if each is not None], np.int64)
        if view.may_propose(taken, placement.demand):
            return chosen_rows
    rows: list[int | None] = []
    for each in chosen_rows:
        if each is None:
            rows.append(None)
            continue
        try:
            row = operator.index(each)
        except TypeError:
            raise PolicyFault(f"{name} returned {each!r}, which is no row") from None
        refusal = view.refusal(row, placement.demand)
        if refusal:
            raise PolicyFault(f"{name} returned row {row}: {refusal}")
        rows.append(row)
    return rows
