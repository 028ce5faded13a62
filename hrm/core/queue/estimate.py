"""Algorithm 1: how long would a new batch container wait at a resource unit?

The unit's queue is simulated under its own service discipline (``start_rule.startable``). (A
stream, which has no natural end, ranks units by the number of streams that wait there.)

Source: HRM paper, section 4.2, algorithm 1 in the repaired form (initialised minima, copies instead
of the state itself, waiters removed once started, capacity rather than free resources in the
feasibility test, run limit as a dimension).
"""

from __future__ import annotations

import heapq
import math
from typing import TypeAlias

from hrm.core.messages.claims import Entry
from hrm.core.queue.start_rule import UnitImage, due_s, duration_s, overtake, startable
from hrm.core.vocabulary.feasibility import Vector, minus, plus
from hrm.core.vocabulary.model import ContainerId, WorkloadClass

__all__ = ["play", "simulate"]

_End: TypeAlias = tuple[float, int, Vector]


def simulate(demand: Vector, unit: UnitImage, now: float, run_s: float = math.inf) -> float:
    """Seconds until a new batch container of ``demand`` that runs for ``run_s`` would start at
    ``unit``.

    Infinite where streams and drivers hold what it needs for good. A short one is backfilled: it
    passes a waiter if it will have ended by the shadow time of that. One that is endless, as by
    default, passes only where both fit; none waits longer than one that runs longer. Takes
    O((r + w)(w + r log(r + w))) for r running and w waiting containers; both are bounded per unit.
    """
    return play(demand, unit, now, run_s)[0] - now


def play(
    demand: Vector, unit: UnitImage, now: float, run_s: float = math.inf
) -> tuple[float, bool]:
    """When it would start, and whether it or one that waits could start at once."""
    free, stream_free = unit.free, unit.stream_free
    ends: list[_End] = []
    for order, entry in enumerate(unit.running):
        ends.append((due_s(entry, now, unit.yield_grace_s), order, entry.demand))
    heapq.heapify(ends)
    stream = list(unit.stream_waiting)
    batch = list(unit.batch_waiting)
    order = len(ends)
    at, at_once = now, None
    new = Entry(ContainerId(""), WorkloadClass.BATCH, demand, run_s)
    while True:
        started = list(startable(stream, (*batch, new), free, stream_free, lambda: _held(ends), at))
        if at_once is None:
            at_once = bool(started)
        if started and started[-1] is new:
            return at, at_once
        for entry in started:
            free = minus(free, entry.demand)
            if entry.has_no_end:
                stream_free = minus(stream_free, entry.demand)
            if entry.workload_class is WorkloadClass.STREAM:
                stream.remove(entry)
            else:
                overtake(batch, entry)
            heapq.heappush(ends, (at + duration_s(entry), order, entry.demand))
            order += 1
        if not ends or math.isinf(ends[0][0]):
            return math.inf, at_once
        at, _, released = heapq.heappop(ends)
        free = plus(free, released)


def _held(ends: list[_End]) -> list[tuple[float, Vector]]:
    return [(end, demand) for end, _, demand in ends]
