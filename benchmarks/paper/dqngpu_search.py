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

import numpy as np

from hrm.learn.gpu_interference import GpuInterference, PairFactors
from hrm.learn.shared_gpu import GpuRun, SharedGpu, SimulatedGpuJob
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy, GpuSharingView
from hrm.policies.shared_gpu.learned import BASE
from hrm.policies.shared_gpu.profiles import CapacityRule

__all__ = ["Ordered", "area_bound", "best_order", "exhaustive", "lower_bound", "plan", "simulate"]


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


def plan(
    jobs: Sequence[SimulatedGpuJob],
    world: GpuInterference,
    rule: CapacityRule,
    known: PairFactors | None = None,
) -> GpuRun:
    """Look ahead at every decision: after each start that is possible, and after a tick of waiting,
    what runs and waits is imagined to its end, where ``FastestTogether`` decides.

    What is imagined are believed profiles and known slowdowns, the information of any policy. It
    takes some runs a decision, thousands of times the time of the others.
    """
    gpu = SharedGpu(jobs, world, rule, known=known)
    while not gpu.over:
        while gpu.has_fitting and (place := _imagined_best(gpu)) is not None:
            gpu.start(place)
        gpu.advance()
    return gpu.result()


def _imagined_best(gpu: SharedGpu) -> int | None:
    view = gpu.view()
    kinds = {id(view.waiting[int(n)].profile): int(n) for n in np.flatnonzero(view.fits)[::-1]}
    options: list[int | None] = [*kinds.values()]
    if view.running:
        options.append(None)
    if len(options) == 1:
        return options[0]
    ends = []
    for place in options:
        other = gpu.imagined()
        if place is None:
            other.advance()
        else:
            other.start(place)
        while not other.over:
            while other.has_fitting and (then := BASE.choose(other.view())) is not None:
                other.start(then)
            other.advance()
        ends.append(other.result().makespan)
    return options[int(np.argmin(ends))]


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


def best_order(
    jobs: Sequence[SimulatedGpuJob],
    world: GpuInterference,
    rule: CapacityRule,
    *,
    tries: int,
    seed: int,
) -> tuple[tuple[int, ...], bool, float]:
    """Order, strictness and makespan (ticks) of the best of ``tries`` schedules.

    Simulated annealing from the shortest, the longest, and the hungriest first; jobs of one
    application are alike, so only moves that change the sequence of applications are tried.
    """
    rng = np.random.default_rng(seed)
    lengths = [len(one.true) for one in jobs]
    work = [float(one.true.uses.sum()) for one in jobs]

    def cost(order: Sequence[int], strict: bool) -> float:
        run = simulate(jobs, Ordered(order, strict=strict), world, rule)
        return run.makespan + run.failures

    starts = [sorted(range(len(jobs)), key=lambda n: key[n], reverse=down)
              for key, down in ((lengths, False), (lengths, True), (work, True))]  # fmt: skip
    begun = [(cost(order, strict), order, strict) for order in starts for strict in (False, True)]
    now = best = min(begun, key=lambda each: each[0])
    hot = 0.02 * best[0]
    for step in range(tries - len(begun)):
        order = list(now[1])
        one, other = (int(n) for n in rng.integers(len(order), size=2))
        if jobs[order[one]].name == jobs[order[other]].name:
            continue
        if rng.random() < 0.5:
            order[one], order[other] = order[other], order[one]
        else:
            order.insert(other, order.pop(one))
        strict = now[2] if rng.random() < 0.95 else not now[2]
        found = (cost(order, strict), order, strict)
        heat = hot * (1.0 - step / tries) + 1e-9
        if found[0] <= now[0] or rng.random() < math.exp((now[0] - found[0]) / heat):
            now = found
        if now[0] < best[0]:
            best = now
    return tuple(best[1]), best[2], best[0]


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
