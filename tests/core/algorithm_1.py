"""Algorithm 1 as printed, a loop over units: policies and tables must agree with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hrm.core.queue.estimate import simulate
from hrm.core.queue.start_rule import UnitImage
from hrm.core.vocabulary.feasibility import Vector, fits
from hrm.core.vocabulary.model import WorkloadClass

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """``row``: the chosen unit, None if no unit could ever serve.

    ``wait``: 0 if it starts at once; else seconds for batch, number of stream waiters for streams.
    """

    row: int | None
    wait: float


def estimate(
    demand: Vector,
    workload_class: WorkloadClass,
    units: Iterable[tuple[int, UnitImage]],
    now: float,
    run_s: float = math.inf,
) -> Estimate:
    """The unit with the least wait; of equals the first.

    ``units``: (row, image), in search order; ``run_s``: how long it will run.
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
            wait = simulate(demand, unit, now, run_s)
        if best.row is None or wait < best.wait:
            best = Estimate(row, wait)
    return best
