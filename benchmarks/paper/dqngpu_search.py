"""How good a schedule of jobs on one GPU can be: bounds, exhaustive search, local search.

A schedule is an order of the jobs. *Skipping*, each tick starts whatever fits, in this order;
*strictly*, a job waits for those before it, which also leaves capacity idle on purpose. The local
search swaps and moves jobs of the best orders in both ways; it knows the world as it is, so that
what it finds is a lower bound of the headroom: an oracle, and no policy. Given the world as the
profiles have it, it is a policy with the same information as the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hrm.learn.shared_gpu import STEP_LIMIT, GpuRun, SharedGpu, SimulatedGpuJob
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy, GpuSharingView
from hrm.policies.shared_gpu.imagined import GpuJobKinds, ImaginedRun, ProfileFit
from hrm.policies.shared_gpu.interference import GpuInterference, PairFactors, PairSlowdowns
from hrm.policies.shared_gpu.profiles import CapacityRule

__all__ = [
    "Ordered",
    "Schedule",
    "area_bound",
    "best_order",
    "exhaustive",
    "lower_bound",
    "simulate",
]


def simulate(
    jobs: Sequence[SimulatedGpuJob],
    policy: GpuSharingPolicy,
    world: GpuInterference,
    rule: CapacityRule,
    known: PairFactors | None = None,
    ended: Callable[[int, float, float, bool], None] | None = None,
) -> GpuRun:
    """Let ``policy`` decide until all jobs have ended, or the step limit.

    ``ended`` is called for each attempt that is over: the job's number, the tick, the ticks that it
    ran, and whether it is done; else it ran out of memory.
    """
    gpu = SharedGpu(jobs, world, rule, known=known)
    failures = [0] * len(jobs)
    done = [False] * len(jobs)
    while not gpu.over:
        while gpu.has_fitting and (place := policy.choose(gpu.view())) is not None:
            gpu.start(place)
        gpu.advance()
        if ended is None:
            continue
        for job, record in enumerate(gpu.records):
            if record.failures > failures[job]:
                failures[job] = record.failures
                ended(job, gpu.tick, gpu.tick - record.started, False)
            elif not done[job] and not math.isnan(record.ended):
                done[job] = True
                ended(job, gpu.tick, record.ended - record.started, True)
    return gpu.result()


class Ordered:
    """Starts jobs in a given order: ``order`` are indices of jobs."""

    def __init__(self, order: Sequence[int], *, strict: bool) -> None:
        self.name = "ordered"
        self._rank = {job: place for place, job in enumerate(order)}
        self._strict = strict

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        ranks = [self._rank[one.key] for one in view.waiting]
        if self._strict:
            first = int(np.argmin(ranks))
            if view.fits[first]:
                return first
            if view.running:
                return None
        fitting = np.flatnonzero(view.fits)
        return int(min(fitting, key=ranks.__getitem__)) if len(fitting) else None


class _StartsInOrder:
    """``Ordered`` in imagined runs: ``places`` has, by kind, where its jobs are in the order."""

    def __init__(self, order: Sequence[int], kinds: int, *, strict: bool) -> None:
        self._places: list[list[int]] = [[] for _ in range(kinds)]
        for place, kind in enumerate(order):
            self._places[kind].append(place)
        self._order = order
        self._strict = strict

    def next_start(self, run: ImaginedRun, fitting: int) -> int:
        """See ``StartRule``."""
        places, waiting = self._places, run.waiting
        first, best = len(self._order), -1
        bits = run.waiting_bits if self._strict else fitting
        while bits:
            kind = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            place = places[kind][-waiting[kind]]
            if place < first:
                first, best = place, kind
        if fitting >> best & 1:
            return best
        if run.running:
            return -1
        # Nothing runs, and what is next fits no idle GPU: another one does.
        return (fitting & -fitting).bit_length() - 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """``order``: indices of jobs. ``makespan``: ticks. ``tries``: schedules that were tried."""

    order: tuple[int, ...]
    strict: bool
    makespan: float
    tries: int


class _Orders:
    """Makespans of orders of ``jobs``, whose true profiles and slowdowns are known."""

    def __init__(
        self, jobs: Sequence[SimulatedGpuJob], world: PairSlowdowns, rule: CapacityRule
    ) -> None:
        numbers: dict[tuple[int, int], int] = {}
        self.kind_of = [numbers.setdefault((id(one.true), one.kind), len(numbers)) for one in jobs]
        first = [jobs[self.kind_of.index(number)] for number in range(len(numbers))]
        fit = ProfileFit([one.true for one in first], rule)
        self._kinds = GpuJobKinds(fit, [one.kind for one in first], world)
        self._places = [[job for job, kind in enumerate(self.kind_of) if kind == number]
                        for number in range(len(numbers))]  # fmt: skip

    @property
    def alike(self) -> bool:
        return len(self._places) == 1

    def makespan(self, order: Sequence[int], strict: bool) -> float:
        """In ticks; infinite beyond the step limit."""
        run = ImaginedRun(self._kinds, self._places)
        kinds = [self.kind_of[job] for job in order]
        rule = _StartsInOrder(kinds, len(self._places), strict=strict)
        run.go_on(rule, starts=len(kinds), steps=STEP_LIMIT)
        return run.last_end if run.over else math.inf


def best_order(
    jobs: Sequence[SimulatedGpuJob],
    world: PairSlowdowns,
    rule: CapacityRule,
    *,
    tries: int,
    seed: int,
    begin: Sequence[Sequence[int]] = (),
) -> Schedule:
    """The best of ``tries`` schedules of jobs that are all there at the start, or the first that is
    as short as the lower bound.

    Simulated annealing from the shortest, the longest, the hungriest first, and orders to ``begin``
    with; jobs of one application are alike, so only moves that change the sequence of applications
    are tried. As all is known, runs are imagined, which has the simulated GPU's makespans some
    thirty times as fast.
    """
    assert not any(one.arrives for one in jobs), "orders are of jobs that are all there"
    rng = np.random.default_rng(seed)
    orders = _Orders(jobs, world, rule)
    bound = lower_bound(jobs, rule)
    lengths = [len(one.true) for one in jobs]
    work = [float(one.true.uses.sum()) for one in jobs]
    starts = [sorted(range(len(jobs)), key=key.__getitem__, reverse=down)
              for key, down in ((lengths, False), (lengths, True), (work, True))]  # fmt: skip
    starts += [list(order) for order in begin]
    begun = [(orders.makespan(order, strict), order, strict)
             for order in starts for strict in (False, True)]  # fmt: skip
    now = best = min(begun, key=lambda each: each[0])
    hot = 0.02 * best[0]
    tried = len(begun)
    while tried < tries and best[0] > bound + 1e-9 and not orders.alike:
        order = list(now[1])
        one, other = (int(n) for n in rng.integers(len(order), size=2))
        if orders.kind_of[order[one]] == orders.kind_of[order[other]]:
            continue
        if rng.random() < 0.5:
            order[one], order[other] = order[other], order[one]
        else:
            order.insert(other, order.pop(one))
        strict = now[2] if rng.random() < 0.95 else not now[2]
        found = (orders.makespan(order, strict), order, strict)
        tried += 1
        heat = hot * (1.0 - tried / tries) + 1e-9
        if found[0] <= now[0] or rng.random() < math.exp((now[0] - found[0]) / heat):
            now = found
        if now[0] < best[0]:
            best = now
    return Schedule(tuple(best[1]), best[2], best[0], tried)


def exhaustive(
    jobs: Sequence[SimulatedGpuJob], world: GpuInterference, rule: CapacityRule
) -> tuple[float, float]:
    """The least makespan (ticks) and the least mean slowdown of response, of all start times.

    All decisions of every tick are tried, waiting among them: for at most six short jobs.
    """
    assert len(jobs) <= 6, "exhaustive search is for a few jobs"
    best = [math.inf, math.inf]
    seen: set[tuple[object, ...]] = set()

    def explore(gpu: SharedGpu) -> None:
        """``gpu`` is at the begin of a tick, or within one in which the last job was started."""
        if gpu.over:
            run = gpu.result()
            best[0] = min(best[0], run.makespan)
            best[1] = min(best[1], float(run.response.mean()))
            return
        state = (gpu.tick, tuple((r.started, r.ended) for r in gpu.records))
        if state in seen:
            return
        seen.add(state)
        view = gpu.view()
        for place in np.flatnonzero(view.fits):
            started = gpu.copy()
            started.start(int(place))
            explore(started)
        if view.running or not view.fits.any():
            gpu.advance()
            explore(gpu)

    explore(SharedGpu(jobs, world, rule))
    return best[0], best[1]


def area_bound(jobs: Sequence[SimulatedGpuJob], rule: CapacityRule) -> tuple[float, ...]:
    """Ticks that each resource alone would need at full use."""
    total = sum((one.true.uses.sum(axis=0) for one in jobs), np.zeros(4))
    return tuple(float(each) for each in total / np.asarray(rule.limits))


def lower_bound(jobs: Sequence[SimulatedGpuJob], rule: CapacityRule) -> float:
    """No makespan is below it: the area of one resource, or a job from its arrival on."""
    longest = max(one.arrives + len(one.true) for one in jobs)
    alone = max(float(one.true.peak.max()) for one in jobs)
    # A job that is alone may exceed the limits of what is not memory.
    scale = 1.0 if alone <= 1.0 else alone
    return max(longest, max(area_bound(jobs, rule)) / scale)
