"""The unit with the least estimated wait is the one at which a container starts first.

The oracle is the queue itself, played forward until the container starts. Regret: how much longer
containers wait at the units that were chosen than at the best ones, over random clusters.
"""

from __future__ import annotations

import math
import random

import pytest

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.start_rule import end_s
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import ContainerId, NodeName, Resources, WorkloadClass
from hrm.policies.min_wait import MinWait
from hrm.testing.virtual import VirtualCluster, unit

BATCH = WorkloadClass.BATCH
CLUSTERS = 100
UNITS = 6
VCORES = 8
LENGTHS_S = (1.0, 3.0, 10.0, 30.0, 100.0)


def busy(seed: int) -> UnitQueue:
    """A unit with waiters: the same ones for the same seed."""
    draw = random.Random(seed)
    queue = UnitQueue(unit(f"n{seed}", vcores=VCORES, run_limit=64))
    for number in range(draw.randint(4, 12)):
        demand = (draw.choice((1, 1, 2, 4, VCORES)), 1, 0, 1)
        name = ContainerId(f"c{number}")
        queue.enqueue(Entry(name, BATCH, demand, draw.choice(LENGTHS_S)))
        queue.start_all(0.0)
    return queue


def wait_s(queue: UnitQueue, new: Entry) -> float:
    """How long ``new`` waits there, if no other comes after it."""
    queue.enqueue(new)
    now = 0.0
    while all(each.container_id != new.container_id for each in queue.start_all(now)):
        now, container_id = min((end_s(x), x.container_id) for x in queue.running.values())
        queue.remove(container_id)
    return now


def waits_s(seeds: range, demand: Vector, run_s: float, assumed_s: float) -> tuple[float, float]:
    """The wait at the unit that the default policy chooses, and the least of all."""
    state = SharedState()
    rows = {state.add(NodeName(f"n{seed}"), busy(seed)): seed for seed in seeds}
    new = Entry(ContainerId("new"), BATCH, demand, run_s)
    placement = Placement(BATCH, demand, (new,), 1000, math.inf, run_s=assumed_s)
    (row,) = MinWait().place(ClusterView(state), placement, 0.0)
    assert row is not None
    found_s = {each: wait_s(busy(seed), new) for each, seed in rows.items()}
    return found_s[row], min(found_s.values())


def regret(*, endless: bool) -> float:
    """``endless``: choose as if the container had no end."""
    draw = random.Random(7)
    chosen_s = best_s = 0.0
    for number in range(CLUSTERS):
        demand, run_s = (draw.choice((1, 2, 4)), 1, 0, 1), draw.choice(LENGTHS_S)
        seeds = range(number * UNITS, (number + 1) * UNITS)
        chosen, best = waits_s(seeds, demand, run_s, math.inf if endless else run_s)
        chosen_s, best_s = chosen_s + chosen, best_s + best
    return chosen_s / best_s - 1.0


def test_a_container_is_estimated_with_its_own_run_time() -> None:
    assert regret(endless=False) == pytest.approx(0.0)
    assert regret(endless=True) > 0.1, "these clusters do not distinguish the choices"


@pytest.mark.parametrize("schedulers", [1, 2, 6])
def test_a_short_container_is_backfilled_and_a_long_one_goes_where_it_waits_least(
    schedulers: int,
) -> None:
    """n1 has a free vcore, and a waiter for both of its vcores that is due in 100 s. n2 is free in
    20 s: there the long one waits, which n1 would start in 150 s."""
    cluster = VirtualCluster([unit("n1", vcores=2)], schedulers=schedulers)
    one, two = Resources(1, 256), Resources(2, 256)
    app = cluster.submit(0)
    cluster.request(app, [1], one, expected_duration_s=100.0)
    cluster.settle()
    cluster.request(app, [2], two, expected_duration_s=50.0)
    cluster.settle()
    cluster.add_node(unit("n2", vcores=2))
    cluster.request(app, [3], two, expected_duration_s=20.0)
    cluster.settle()
    for executor, run_s in ((4, 10.0), (5, 1000.0)):
        late = cluster.submit(0, name=f"late-{executor}")
        cluster.request(late, [executor], one, expected_duration_s=run_s)
        cluster.settle()
        container = cluster.container(late, executor)
        assert (container.node, container.state.value) == {
            4: ("n1", "running"),
            5: ("n2", "waiting"),
        }[executor]
