"""A job, what one application waits for at its scheduler; and a cohort of jobs that are alike.

What happens to a job happens to all of its cohort: all may be tried at once, or none before a time.
So a cohort has one time for its members, but for those with a time of their own, and what happens
to all costs no more than there are of these. ``core.scheduling.backlog`` has the cohorts of one
scheduler, and says which jobs are alike.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from hrm.core.messages.claims import GpuPart
from hrm.core.vocabulary.columns import Bools
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    NodeName,
    Resources,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = [
    "SLACK",
    "Cohort",
    "CohortKey",
    "Group",
    "Job",
    "PlacementRules",
    "first_ready",
    "rounded_run_s",
]

SLACK = 32
"""So many entries of jobs that have left an index may always stay in it."""
_STEPS = 32

Group: TypeAlias = tuple[int, frozenset[tuple[Vector, int]], frozenset[tuple[Vector, int]]]
"""What is requested together: how many, and where these are of several sizes how many of each, of
the gang and of all."""


class PlacementRules(NamedTuple):
    """Where and how jobs are placed, as of ``Job``."""

    requires: NodeRequirement | None = None
    excluded: frozenset[NodeName] = frozenset()
    group: Group | None = None


CohortKey: TypeAlias = tuple[WorkloadClass, frozenset[Vector], float, float, PlacementRules]
"""What the jobs of a cohort have in common: class, demands, run time, back-off, rules; no demands
where they are never held back."""

_NO_PART = GpuPart(0, 0)


def rounded_run_s(run_s: float) -> float:
    """A run time as rounds count with it, up to a sixteenth more: so that there are few."""
    if math.isinf(run_s):
        return run_s
    part, exponent = math.frexp(run_s)
    return math.ldexp(math.ceil(part * _STEPS), exponent) / _STEPS


@dataclass(slots=True, eq=False)
class Job:
    """What one application still waits for.

    Invariants: ``pending`` holds all and only the application's PENDING containers, in order of
    request. ``delay_s`` is the latest back-off; 0 after a round that placed everything.
    ``policy_fault`` states how the policy failed in the latest round; empty if it did not.
    ``gang`` is how many of ``pending``, the first, must be granted together and run at once.
    ``demands`` has those of all of ``pending``, and may have some of others that it waited for;
    that of ``latest`` is among them. ``run_s``: none of ``pending`` is expected to run for less, as
    rounds count; ``latest_s`` is what the latest request states of that.
    ``lacks``: demands for which the latest round found nothing for lack of capacity,
    and of nothing else, each with how long those that it tried run; empty until then.
    ``group``: what the latest round wanted of a gang or a stream, and did not find; None: it has
    changed since, or there was none.
    ``avoid``: nodes that are excluded for it; ``excluded``: of these at least those that are not
    excluded for all. ``requires``: what a node must meet; None: nothing.
    ``gpus``: some of ``pending`` may use a GPU. ``gpu_parts``: what it may have of them in the next
    round, by demand; without one: all that it requests. ``gpus_declined``: in how many rounds, one
    after the other, it could have started some, and its policy proposed none of those.
    ``prefers``: some of ``pending`` would rather be on some nodes than on others;
    ``held_until_s``: when the first of those that wait for that in the latest round waits no more,
    infinite where none does. ``places``: some of ``pending`` may have a place
    (``ContainerRequest.place``). ``yields``: some may yield. ``rows``: of a driver, where it may go
    in this round, shape (rows,); None: anywhere.

    ``arrived_at_s``: since when it has waited for something, without a break. ``lacked_s``: when it
    was last known that there is no place for what it requested until then; of those that were held
    back with its cohort since, ``Cohort.held_s``. ``renewed``: has it
    requested more, or has it changed, since its latest round began? ``is_retry``: is it to be tried
    at once because capacity was freed during that round?

    Its backlog owns ``arrival`` (its place in the order), ``cohort``, ``own_s`` (its own time, None
    where the cohort's counts) and ``stamp``, which changes with each of these; and is notified
    (``Backlog.place``) where ``workload_class``, ``demands``, ``run_s``, ``delay_s``, ``gang``,
    ``group``, ``gpus``, ``gpu_parts``, ``places``, ``yields``, ``requires`` or ``excluded`` change.
    """

    application_id: ApplicationId
    workload_class: WorkloadClass
    pending: dict[ContainerId, ContainerRequest] = field(default_factory=dict)
    requested_at_s: dict[ContainerId, float] = field(default_factory=dict)
    delay_s: float = 0.0
    last_refusal: str = ""
    policy_fault: str = ""
    gang: int = 0
    gpus: bool = False
    gpu_parts: Mapping[Vector, GpuPart] = field(default_factory=dict)
    gpus_declined: int = 0
    demands: set[Vector] = field(default_factory=set)
    latest: Resources | None = None
    latest_s: float = -1.0
    run_s: float = math.inf
    lacks: dict[Vector, float] = field(default_factory=dict)
    group: Group | None = None
    avoid: frozenset[NodeName] = frozenset()
    excluded: frozenset[NodeName] = frozenset()
    requires: NodeRequirement | None = None
    prefers: bool = False
    held_until_s: float = math.inf
    places: bool = False
    yields: bool = False
    rows: Bools | None = None
    arrived_at_s: float = 0.0
    lacked_s: float = -math.inf
    renewed: bool = False
    is_retry: bool = False
    arrival: int = 0
    cohort: Cohort | None = None
    own_s: float | None = None
    stamp: int = 0

    @property
    def not_before_s(self) -> float:
        """When it may be tried next."""
        if self.own_s is not None:
            return self.own_s
        return 0.0 if self.cohort is None else self.cohort.level_s

    @property
    def is_whole(self) -> bool:
        """Is it a stream, or does it wait for a gang?"""
        return self.gang > 0 or self.workload_class is WorkloadClass.STREAM

    @property
    def gets_no_gpu(self) -> bool:
        """Does nothing go to it, of all that it requests?"""
        parts = self.gpu_parts
        if not parts or self.gang or self.workload_class is WorkloadClass.STREAM:
            return False
        return all(parts.get(demand) == _NO_PART for demand in self.demands)

    def wanted(self) -> Group | None:
        """What its round wants together; None: there is not all of its gang yet."""
        if len(self.pending) < self.gang:
            return None
        if len(self.demands) < 2 or not self.gang:
            return self.gang, frozenset(), frozenset()
        each = [demand_vector(request.resources) for request in self.pending.values()]
        first, whole = Counter(each[: self.gang]), Counter(each)
        return self.gang, frozenset(first.items()), frozenset(whole.items())


class _Heap:
    """Jobs by a number, the least first. A job leaves by getting another stamp; its entry is
    removed when it comes up, or when such entries are most of all."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, Job]] = []

    def push(self, number: float, job: Job) -> None:
        heapq.heappush(self.entries, (number, job.stamp, job))

    def first(self) -> Job | None:
        entries = self.entries
        while entries:
            _, stamp, job = entries[0]
            if stamp == job.stamp:
                return job
            heapq.heappop(entries)
        return None

    def pop(self) -> None:
        """Remove ``first``."""
        heapq.heappop(self.entries)

    def trim(self) -> None:
        """Remove the entries of jobs that have left."""
        self.entries = [entry for entry in self.entries if entry[1] == entry[2].stamp]
        heapq.heapify(self.entries)


class Cohort:
    """Jobs to which the same happens.

    Invariants: a member without a time of its own is in ``shared``, by arrival. One with its own
    is in ``times`` and in one of ``_upcoming`` (both by that time) and ``_due`` (by arrival). The
    heaps have no more than ``_placed`` entries each, which is bounded by the number of members.
    """

    __slots__ = (
        "_due", "_placed", "_stamps", "_upcoming", "held_s", "key", "level_s", "members", "shared",
        "times",
    )  # fmt: skip

    def __init__(self, key: CohortKey, stamps: Iterator[int]) -> None:
        self.key = key
        self.level_s = 0.0
        self.held_s = -math.inf
        self.members = 0
        self._placed = 0
        self._stamps = stamps
        self.shared, self._due, self.times, self._upcoming = _Heap(), _Heap(), _Heap(), _Heap()

    def place(self, job: Job, at_s: float) -> None:
        """Give a member the time at which it may be tried."""
        if at_s == self.level_s and job.own_s is None and job.stamp:
            return
        job.stamp = next(self._stamps)
        if at_s == self.level_s:
            job.own_s = None
            self.shared.push(job.arrival, job)
        else:
            job.own_s = at_s
            self.times.push(at_s, job)
            self._upcoming.push(at_s, job)
        self._placed += 1
        if self._placed > 2 * self.members + SLACK:
            self._trim()

    def leave(self, job: Job) -> None:
        """A member is one of another cohort from now on, or of none."""
        if job.lacked_s < self.held_s:
            job.lacked_s = self.held_s
        job.cohort, job.stamp = None, 0
        self.members -= 1
        if self._placed > 2 * self.members + SLACK:
            self._trim()

    def _trim(self) -> None:
        for heap in (self.shared, self._due, self.times, self._upcoming):
            heap.trim()
        self._placed = self.members

    def free(self) -> None:
        """All members may be tried at once."""
        self.level_s = 0.0
        times = self.times
        while times.entries and (job := times.first()) is not None:
            self.place(job, 0.0)

    def hold(self, until_s: float, now: float) -> None:
        """No member may be tried before ``until_s``: none would find a place now."""
        self.held_s = now
        if self.level_s < until_s:
            self.level_s = until_s
        times = self.times
        while times.entries and (job := times.first()) is not None and job.not_before_s < until_s:
            self.place(job, until_s)

    def first_ready(self, now: float) -> Job | None:
        """The first in order of arrival that may be tried now."""
        shared = self.shared.first() if self.level_s <= now else None
        own = self.times.first() if self.times.entries else None
        if own is None or own.not_before_s > now:
            return shared
        while (job := self._upcoming.first()) is not None and job.not_before_s <= now:
            self._upcoming.pop()
            self._due.push(job.arrival, job)
        while (job := self._due.first()) is not None and job.not_before_s > now:
            # Another process's clock: the master's time, as it sees it, may go back a little.
            self._due.pop()
            self._upcoming.push(job.not_before_s, job)
        if job is None or shared is None:
            return job or shared
        return min(job, shared, key=_arrival)

    def next_time_s(self) -> float:
        """When the next member may be tried."""
        own = self.times.first() if self.times.entries else None
        if own is None:
            return self.level_s if self.members else math.inf
        at_s = own.not_before_s
        return at_s if self.shared.first() is None else min(at_s, self.level_s)


def first_ready(cohorts: Mapping[CohortKey, Cohort], now: float) -> Job | None:
    """The first in order of arrival, of all these, that may be tried now."""
    best, earliest = None, math.inf
    for cohort in cohorts.values():
        if cohort.times.entries:
            job = cohort.first_ready(now)
        else:  # the common case, without a call
            job = cohort.shared.first() if cohort.level_s <= now else None
        if job is not None and job.arrival < earliest:
            best, earliest = job, job.arrival
    return best


def _arrival(job: Job) -> int:
    return job.arrival
