"""What a wrong estimate costs: how much longer containers wait at the unit that is chosen by
estimated run times than at the best of all.

Units are busy with containers of which the estimate and the true run time are known, and the
default policy chooses one for a new container, at a random moment, by the estimates alone. The
oracle is each unit's queue, played forward with the true run times until the new one starts; what
its reservations assume are the estimates, as in production. *Regret* is the time waited at the
chosen units over that at the best ones, less one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.model import (
    ContainerId,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.policies.min_wait import MinWait

__all__ = ["CHOICES", "Pair", "regret"]

CHOICES = 300
"""Choices of a measurement, each on units of its own."""

Pair: TypeAlias = tuple[float, float]
"""Seconds that a container is expected to run, and those that it runs."""

_UNITS = 6
_VCORES = 8
_WAIT_MAX_S = 1e9


def regret(pairs: Sequence[Pair], seed: int, choices: int = CHOICES) -> float:
    """Containers are drawn from ``pairs``; 0: each was chosen as if the truth were known."""
    draw = random.Random(seed)  # nosec B311
    chosen_s = best_s = 0.0
    for _ in range(choices):
        chosen, best = _choose(pairs, draw)
        chosen_s, best_s = chosen_s + chosen, best_s + best
    return chosen_s / best_s - 1.0 if best_s else 0.0


def _choose(pairs: Sequence[Pair], draw: random.Random) -> Pair:
    """The wait at the unit that the default policy chooses, and the least of all."""
    state, truths = SharedState(), dict[ContainerId, float]()
    now = draw.uniform(0.0, min(true_s for _, true_s in pairs))
    queues = [_busy(f"n{number}", pairs, draw, truths, now) for number in range(_UNITS)]
    rows = {state.add(NodeName(x.unit.unit_id), x): x for x in queues}
    expected_s, truths[ContainerId("new")] = draw.choice(pairs)
    demand = (draw.choice((1, 2, 4)), 1, 0, 1)
    new = Entry(ContainerId("new"), WorkloadClass.BATCH, demand, expected_s)
    placement = Placement(WorkloadClass.BATCH, demand, (new,), 1_000, _WAIT_MAX_S, run_s=expected_s)
    (row,) = MinWait().place(ClusterView(state), placement, now)
    if row is None:
        return 0.0, 0.0
    waited_s = {each: _wait_s(queue, new, truths, now) for each, queue in rows.items()}
    return waited_s[row], min(waited_s.values())


def _busy(
    name: str,
    pairs: Sequence[Pair],
    draw: random.Random,
    truths: dict[ContainerId, float],
    until_s: float,
) -> UnitQueue:
    """A unit with waiters, as of ``until_s``, before which none of its containers has ended."""
    capacity = Resources(_VCORES, 1_024)
    queue = UnitQueue(
        ResourceUnit(unit_id=ResourceUnitId(f"{name}/cpu"), capacity=capacity, run_limit=64)
    )
    for number in range(draw.randint(4, 12)):
        container_id = ContainerId(f"{name}-c{number}")
        expected_s, truths[container_id] = draw.choice(pairs)
        demand = (draw.choice((1, 1, 2, 4, _VCORES)), 1, 0, 1)
        queue.enqueue(Entry(container_id, WorkloadClass.BATCH, demand, expected_s))
        queue.start_all(draw.uniform(0.0, until_s) if number else 0.0)
    queue.start_all(until_s)
    return queue


def _wait_s(queue: UnitQueue, new: Entry, truths: Mapping[ContainerId, float], now: float) -> float:
    """How long ``new`` waits there, if no other comes after it."""
    queue.enqueue(new)
    at = now
    while all(each.container_id != new.container_id for each in queue.start_all(at)):
        ends = (
            (x.started_at_s + truths[x.container_id], x.container_id)
            for x in queue.running.values()
        )
        at, container_id = min(ends, default=(math.inf, ContainerId("")))
        queue.remove(container_id)
    return at - now
