"""Algorithm 1: how long would a new container wait at each resource unit, and where least?

A unit with capacity and no waiters costs nothing. Otherwise a *stream* container, which has no
natural end, ranks units by the number of stream containers that wait there; a *batch* container
ranks them by estimated seconds, found by simulating the unit's queue under its own service
discipline (``resource_unit.startable``).

Source: HRM paper, section 4.2, algorithm 1 in the repaired form (initialised minima, copies instead
of the state itself, waiters removed once started, capacity rather than free resources in the
feasibility test, run limit as a dimension).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitImage, duration_s, end_s, overtake, startable
from hrm.core.vocabulary.feasibility import Vector, fits, minus, plus
from hrm.core.vocabulary.model import ContainerId, WorkloadClass

__all__ = ["Estimate", "estimate", "simulate"]

_End: TypeAlias = tuple[float, int, Vector]


@dataclass(frozen=True, slots=True)
class Estimate:
    """``row``: the chosen unit, None where no unit could ever serve.

    ``wait``: 0 if it starts at once; else seconds for batch, number of stream waiters for streams.
    """

    row: int | None
    wait: float


def estimate(
    demand: Vector,
    workload_class: WorkloadClass,
    units: Iterable[tuple[int, UnitImage]],
    now: float,
) -> Estimate:
    """The unit with the least wait; of equals the first.

    ``units``: (row, image), in search order.
    """
    candidates = list(units)
    for row, unit in candidates:
        if unit.runs_at_once(demand, workload_class):
            return Estimate(row, 0.0)
    best = Estimate(None, math.inf)
    for row, unit in candidates:
        if not fits(demand, unit.capacity):
            continue
        if workload_class is WorkloadClass.STREAM:
            wait = float(len(unit.stream_waiting))
        else:
            wait = simulate(demand, unit, now)
        if best.row is None or wait < best.wait:
            best = Estimate(row, wait)
    return best


def simulate(demand: Vector, unit: UnitImage, now: float) -> float:
    """Seconds until a new batch container of ``demand`` would start at ``unit``.

    Infinite where streams hold what it needs for good. It is assumed to be long: it passes a waiter
    only where both fit. Takes O((r + w)(w + r log(r + w))) for r running and w
    waiting containers; both are bounded per unit.
    """
    free, room = unit.free, unit.room
    ends: list[_End] = []
    for order, entry in enumerate(unit.running):
        ends.append((max(now, end_s(entry)), order, entry.demand))
    heapq.heapify(ends)
    stream = list(unit.stream_waiting)
    batch = list(unit.batch_waiting)
    order = len(ends)
    at = now
    new = Entry(ContainerId(""), WorkloadClass.BATCH, demand, math.inf)
    while True:
        started = list(startable(stream, (*batch, new), free, room, lambda: _held(ends), at))
        if started and started[-1] is new:
            return at - now
        for entry in started:
            free = minus(free, entry.demand)
            if entry.workload_class is WorkloadClass.STREAM:
                room = minus(room, entry.demand)
                stream.remove(entry)
            else:
                overtake(batch, entry)
            heapq.heappush(ends, (at + duration_s(entry), order, entry.demand))
            order += 1
        if not ends or math.isinf(ends[0][0]):
            return math.inf
        at, _, released = heapq.heappop(ends)
        free = plus(free, released)


def _held(ends: list[_End]) -> list[tuple[float, Vector]]:
    return [(end, demand) for end, _, demand in ends]
