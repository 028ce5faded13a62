"""The jobs that wait at one scheduler, and which of them is to be tried when.

A backlog can be thousands of jobs long, and two things happen to all of it again and again: a
container ends, and every job may be tried at once; a round finds no place, and all jobs that
request no less go back to their back-off. Neither may cost as much as there are jobs.

So jobs are kept in *cohorts*: those of one class that request the same of the same nodes, in a
gang or one by one, are expected to run and back off for as long, to which both happen alike. A
cohort has one time for its members, but for those that got a time of their own since, by a round or
a request of theirs. These join the others again when the common time passes theirs, so each costs
no more than the event that gave it that time. What happens to the backlog then costs as much as
there are cohorts: distinct demands, run times (rounded), back-offs, sizes of gangs, requirements
and exclusions of each.

The order does not depend on cohorts: streams go first, then jobs in order of arrival.

A job is held back only where the round of another has shown that its own would fail. That round
tried what it tried: one whose containers run for longer may find no queue where a short one is
backfilled, units kept for GPUs were not among those it looked at, nor nodes that do not meet its
requirement, and what stands first somewhere needs no capacity. What is held back without a reason
is held back for ever, since the other job, which came before, is tried before it every time.
Between batch jobs that are placed one by one this is known of each demand. A stream, or a gang, is
held back by one that requests exactly the same: what would let it start lets the other one start.
So is a gang of one demand by one that wants fewer of that: fewer are a part of it.

Where nodes are excluded, a demand may still go to them if no other node could hold it, so a larger
demand may have more nodes than a smaller one: there, too, only what is the same is held back.

What batch may have of the GPUs depends on what all others have. Jobs to which nothing goes now are
a cohort, and the round of one is that of all; one that gets some (``gpu_parts``) leaves it.

Limits: a cohort's jobs request exactly the same. A backlog in which no two do is looked at whole,
and so are jobs that may have GPUs and find none, and gangs with GPUs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping

from hrm.core.scheduling.jobs import (
    SLACK,
    Cohort,
    CohortKey,
    Group,
    Job,
    PlacementRules,
    first_ready,
)
from hrm.core.vocabulary.feasibility import Vector, fits
from hrm.core.vocabulary.model import ApplicationId, WorkloadClass

__all__ = ["Backlog"]

_NO_DEMANDS: frozenset[Vector] = frozenset()
_NO_RULES = PlacementRules()
_NO_GPUS: Group = (-1, frozenset(), frozenset())
"""In place of a group: nothing goes to these of the GPUs that they want."""


class Backlog:
    """All jobs of one scheduler.

    Invariants: ``jobs`` is in order of arrival. Each job is in the cohort of its fields
    (``violations`` compares), and none is empty but those of jobs that are never held back, one a
    class. ``_streams`` are the cohorts of streams. ``gpu_jobs`` are those with ``gpus``,
    ``declining`` those with ``gpus_declined``.

    Args:
        in_order: only the first job is ever tried, streams before batch (``strict_order``), and
            what waits for streams or drivers to end: none of these ends because it waits, so the
            next one goes first (``passed``). The application of such a driver may be behind it. So
            may be what has a right to the GPUs before it, which it waits for as well.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self.in_order = in_order
        self.jobs: dict[ApplicationId, Job] = {}
        self.gpu_jobs: dict[ApplicationId, Job] = {}
        self._cohorts: dict[CohortKey, Cohort] = {}
        self._streams: dict[CohortKey, Cohort] = {}
        self.declining: dict[ApplicationId, Job] = {}
        self._passed: dict[ApplicationId, Job] = {}
        self._arrivals = itertools.count(1)
        self._stamps = itertools.count(1)
        self._order: dict[WorkloadClass, list[tuple[int, ApplicationId]]] = {}

    def add(self, job: Job) -> None:
        """A job that has just arrived. It may be tried at once."""
        job.arrival = next(self._arrivals)
        self.jobs[job.application_id] = job
        if job.gpus:
            self.gpu_jobs[job.application_id] = job
        self._join(job, 0.0)

    def remove(self, application_id: ApplicationId) -> None:
        """It waits for nothing any more."""
        job = self.jobs.pop(application_id, None)
        if job is None:
            return
        if job.gpus:
            self.gpu_jobs.pop(application_id, None)
            self.declining.pop(application_id, None)
        self._passed.pop(application_id, None)
        self._leave(job)
        job.own_s = 0.0

    def clear(self) -> None:
        for application_id in list(self.jobs):
            self.remove(application_id)

    def place(self, job: Job, at_s: float | None = None) -> None:
        """Some of its fields have changed, or it may be tried at ``at_s`` and not before."""
        at_s = job.not_before_s if at_s is None else at_s
        if job.gpus:
            self.gpu_jobs[job.application_id] = job
        elif self.gpu_jobs:
            self.gpu_jobs.pop(job.application_id, None)
        cohort = job.cohort
        assert cohort is not None, f"the job of {job.application_id} has been removed"
        if cohort.key == self._key(job):
            cohort.place(job, at_s)
        else:
            self._leave(job)
            self._join(job, at_s)

    def declined(self, job: Job, rounds: int) -> None:
        """Set ``gpus_declined``."""
        job.gpus_declined = rounds
        if rounds:
            self.declining[job.application_id] = job
        else:
            self.declining.pop(job.application_id, None)

    def passed(self, job: Job, *, is_passed: bool) -> None:
        """Does it wait for what has no end, or for its part of the GPUs? Then others go first,
        until capacity is freed."""
        if is_passed:
            self._passed[job.application_id] = job
        elif self._passed.pop(job.application_id, None) is not None:
            self._enter(job)

    def waits_for_others(self, job: Job) -> bool:
        """Has it been passed, so that others go first?"""
        return job.application_id in self._passed

    def capacity_freed(self) -> None:
        """Every job may be tried at once."""
        while self._passed:
            self._enter(self._passed.popitem()[1])
        for cohort in self._cohorts.values():
            cohort.free()
        for job in self.declining.values():
            job.gpus_declined = 0
        self.declining.clear()

    def hold_back(self, job: Job, now: float) -> None:
        """What ``job`` lacks is not there now: jobs that want no less have been tried and may be
        held back (see ``_key``) wait for another back-off from now on. Those want no less that
        request as much or more, run for as long, and have the same requirement (where there is
        none, any); of a gang, a stream, what avoids nodes or gets no GPU, those that want the same,
        or, of one demand, as many or more at once.
        """
        lacks = job.lacks
        whole = job.gang > 0 or job.workload_class is WorkloadClass.STREAM or job.gpus
        if whole or job.avoid:
            rules = self._rules(job)
            alike = job.is_whole and len(job.demands) == 1
            for (kind, wanted, run_s, delay_s, others), cohort in self._cohorts.items():
                same = kind is job.workload_class and bool(wanted)
                same = same and (others == rules or (alike and _wants_more(others, rules)))
                if same and all(
                    demand in lacks and (whole or lacks[demand] <= run_s) for demand in wanted
                ):
                    cohort.hold(now + delay_s, now)
            return
        requires = job.requires
        for (_, wanted, run_s, delay_s, rules), cohort in self._cohorts.items():
            covers = rules.group is None and (requires is None or rules.requires == requires)
            if wanted and covers and _is_covered(wanted, run_s, lacks):
                cohort.hold(now + delay_s, now)

    def next_job(self, now: float) -> Job | None:
        """The job to place now: streams first, then in order of arrival."""
        if self.in_order:
            firsts = (self._first(), *self._passed.values())
            ready = [x for x in firsts if x is not None and x.not_before_s <= now]
            return min(ready, key=_is_batch, default=None)
        stream = first_ready(self._streams, now) if self._streams else None
        return stream if stream is not None else first_ready(self._cohorts, now)

    def has_stream(self, now: float) -> bool:
        """Is ``next_job`` a stream's?"""
        if self.in_order:
            first = self.next_job(now)
            return first is not None and first.workload_class is WorkloadClass.STREAM
        return self._ready_stream(now) is not None

    def _ready_stream(self, now: float) -> Job | None:
        return first_ready(self._streams, now) if self._streams else None

    def next_time_s(self) -> float | None:
        """When the next job may be tried; None without jobs."""
        if self.in_order:
            firsts = (self._first(), *self._passed.values())
            return min((x.not_before_s for x in firsts if x is not None), default=None)
        if not self.jobs:
            return None
        return min(
            [
                cohort.next_time_s() if cohort.times.entries else cohort.level_s
                for cohort in self._cohorts.values()
                if cohort.members
            ]
        )

    def violations(self) -> list[str]:
        """What the index states otherwise than the jobs do; for tests and simulators, linear."""
        found = []
        members = dict.fromkeys(self._cohorts.values(), 0)
        for application_id, job in self.jobs.items():
            cohort = self._cohorts.get(self._key(job))
            if cohort is None or job.cohort is not cohort:
                found.append(f"the job of {application_id} is in another cohort than its own")
            else:
                members[cohort] += 1
        for cohort, many in members.items():
            if cohort.members != many or (not many and cohort.key[1]):
                found.append(f"a cohort counts {cohort.members} jobs and has {many}")
        if self.in_order:
            return found
        earliest_s = min((job.not_before_s for job in self.jobs.values()), default=None)
        if self.next_time_s() != earliest_s:
            found.append(f"the next job is due at {earliest_s}, not at {self.next_time_s()}")
        if earliest_s is not None:
            ready = (x for x in self.jobs.values() if x.not_before_s <= earliest_s)
            first, indexed = min(ready, key=_rank), self.next_job(earliest_s)
            if first is not indexed:
                name = None if indexed is None else indexed.application_id
                found.append(f"the next job is that of {first.application_id}, not of {name}")
        return found

    def _join(self, job: Job, at_s: float) -> None:
        key = self._key(job)
        cohort = self._cohorts.get(key)
        if cohort is None:
            cohort = self._cohorts[key] = Cohort(key, self._stamps)
            if key[0] is WorkloadClass.STREAM:
                self._streams[key] = cohort
            if key[1]:  # its first member: there is no other time than its own
                cohort.level_s = at_s
        job.cohort = cohort
        cohort.members += 1
        cohort.place(job, at_s)
        if self.in_order:
            self._enter(job)

    def _enter(self, job: Job) -> None:
        """It is one of those of which the first is tried."""
        order = self._order.setdefault(job.workload_class, [])
        heapq.heappush(order, (job.arrival, job.application_id))
        if len(order) > 2 * len(self.jobs) + SLACK:
            order[:] = sorted((x.arrival, x.application_id) for x in self._of(job))

    def _leave(self, job: Job) -> None:
        cohort = job.cohort
        assert cohort is not None, f"the job of {job.application_id} has been removed"
        cohort.leave(job)
        if not cohort.members and cohort.key[1]:
            del self._cohorts[cohort.key]
            self._streams.pop(cohort.key, None)

    def _first(self) -> Job | None:
        """The first job of all that are not passed, ready or not."""
        for workload_class in (WorkloadClass.STREAM, WorkloadClass.BATCH):
            order = self._order.get(workload_class, [])
            while order:
                arrival, application_id = order[0]
                job = self.jobs.get(application_id)
                there = job is not None and job.arrival == arrival
                there = there and application_id not in self._passed
                if job is not None and there and job.workload_class is workload_class:
                    return job
                heapq.heappop(order)
        return None

    def _of(self, job: Job) -> Iterator[Job]:
        """All jobs of the same class."""
        return (x for x in self.jobs.values() if x.workload_class is job.workload_class)

    def _key(self, job: Job) -> CohortKey:
        """What a job shares with those of its cohort. Jobs that are never held back need no more
        than their class in common: batch that may have GPUs, what may stand first at a unit, what
        yields, and what has not been tried as it is now."""
        if job.places or job.yields or not job.delay_s or self.in_order:
            return job.workload_class, _NO_DEMANDS, 0.0, 0.0, _NO_RULES
        demands, stream = frozenset(job.demands), job.workload_class is WorkloadClass.STREAM
        if not job.gang and not stream:  # the common case, without a call
            if job.gpus:
                if job.gpu_parts and job.gets_no_gpu:
                    return job.workload_class, demands, 0.0, job.delay_s, self._rules(job)
                return job.workload_class, _NO_DEMANDS, 0.0, 0.0, _NO_RULES
            plain = job.requires is None and not job.excluded
            rules = _NO_RULES if plain else self._rules(job)
            return job.workload_class, demands, job.run_s, job.delay_s, rules
        if job.group is not None and (stream or not job.gpus):
            return job.workload_class, demands, 0.0, job.delay_s, self._rules(job)
        return job.workload_class, _NO_DEMANDS, 0.0, 0.0, _NO_RULES

    def _rules(self, job: Job) -> PlacementRules:
        group = job.group if job.is_whole else _NO_GPUS if job.gpus and job.gets_no_gpu else None
        return PlacementRules(job.requires, job.excluded, group)


def _is_covered(wanted: frozenset[Vector], run_s: float, lacks: Mapping[Vector, float]) -> bool:
    """Is there, for each of ``wanted``, no place for one that requests no more and runs for no
    longer?"""
    for one in wanted:
        for demand, least_s in lacks.items():
            if least_s <= run_s and fits(demand, one):
                break
        else:
            return False
    return True


def _wants_more(others: PlacementRules, rules: PlacementRules) -> bool:
    """Are as many or more wanted at once, of one demand, with the same rules?"""
    more, fewer = others.group, rules.group
    if more is None or fewer is None or more[1] or more[0] < fewer[0]:
        return False
    return others.requires == rules.requires and others.excluded == rules.excluded


def _is_batch(job: Job) -> bool:
    return job.workload_class is WorkloadClass.BATCH


def _rank(job: Job) -> tuple[bool, int]:
    return job.workload_class is WorkloadClass.BATCH, job.arrival
