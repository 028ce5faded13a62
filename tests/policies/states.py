"""Random clusters: overdue containers, streams, waiters, ties, closed and reused rows."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from hrm.core.messages.claims import Entry
from hrm.core.queue.estimate import simulate
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector, fits
from hrm.core.vocabulary.model import ContainerId, NodeName, WorkloadClass
from hrm.testing.virtual import unit

__all__ = ["CLASSES", "DEMANDS", "NOW", "PLACEMENTS", "bound_broken", "entries", "queues", "states"]

NOW = 20.0
BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
CLASSES = st.sampled_from([BATCH, BATCH, STREAM])
DEMANDS: st.SearchStrategy[Vector] = st.tuples(
    st.integers(1, 3), st.integers(1, 40), st.just(0), st.just(1)
)


@st.composite
def queues(draw: st.DrawFn, name: str) -> UnitQueue:
    """A unit's queue. Few different times, so that containers end together and some are overdue."""
    queue = UnitQueue(unit(name, draw(st.integers(1, 4)), 100, draw(st.integers(1, 4))))
    for number in range(draw(st.integers(0, 6))):
        demand = draw(DEMANDS)
        if not fits(demand, queue.capacity):
            continue
        duration_s = float(draw(st.sampled_from([0, 5, 10, 10.1, 20, 50])))
        queue.enqueue(Entry(ContainerId(f"{name}-{number}"), draw(CLASSES), demand, duration_s))
        if draw(st.integers(0, 3)):
            queue.start_all(float(draw(st.sampled_from([0, 5, 7.3]))))
    if queue.running and draw(st.integers(0, 3)) == 0:
        queue.remove(next(iter(queue.running)))  # waiters may start, but have not yet
    return queue


@st.composite
def states(draw: st.DrawFn, units_max: int = 6) -> SharedState:
    """A table with some rows closed, some given up, and some of those reused."""
    state = SharedState()
    for index in range(draw(st.integers(0, units_max))):
        queue = draw(queues(f"n{index}"))
        row = state.add(NodeName(f"n{index}"), queue)
        outcome = draw(st.integers(0, 8))
        if outcome == 0:
            state.set_open(queue.unit.unit_id, False)
        elif outcome == 1:
            state.remove(queue.unit.unit_id)
        elif outcome == 2:
            state.remove(queue.unit.unit_id)
            assert state.add(NodeName(f"m{index}"), draw(queues(f"m{index}"))) == row
    return state


def entries(
    count: int, demand: Vector, workload_class: WorkloadClass, prefix: str = "new"
) -> tuple[Entry, ...]:
    return tuple(
        Entry(ContainerId(f"{prefix}-{i}"), workload_class, demand, 20.0) for i in range(count)
    )


def bound_broken(view: ClusterView, placement: Placement, row: int) -> str:
    """Which bound one more container on ``row`` of ``view`` would break; by the literal forms."""
    image = view.image(row)
    if image.runs_at_once(placement.demand, placement.workload_class):
        return ""
    if placement.workload_class is STREAM:
        return "" if placement.waiting_limit else "waiting_limit"
    if image.waiting >= placement.waiting_limit:
        return "waiting_limit"
    wait_s = simulate(placement.demand, image, NOW, placement.run_s)
    return "" if wait_s < placement.wait_max_s and not math.isinf(wait_s) else "wait_max_s"


PLACEMENTS: st.SearchStrategy[Placement] = st.builds(
    lambda workload_class, demand, count, limit, wait_max_s: Placement(
        workload_class, demand, entries(count, demand, workload_class), limit, wait_max_s
    ),
    CLASSES,
    DEMANDS,
    st.integers(1, 12),
    st.integers(0, 3),
    st.sampled_from([0.0, 15.0, 60.0]),
)
