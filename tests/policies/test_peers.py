"""The purpose of each policy: its rule, compared with the rule in plain loops."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import NodeName, Resources, WorkloadClass
from hrm.policies.best_fit import BestFit
from hrm.policies.centralized_drf import TURN_SHARE, CentralizedDrf
from hrm.policies.fifo import Fifo
from hrm.policies.min_wait import MinWait
from hrm.policies.random import Random
from hrm.policies.round_robin import RoundRobin
from hrm.policies.worst_fit import WorstFit
from hrm.testing.virtual import VirtualCluster, unit
from tests.policies.states import NOW, PLACEMENTS, bound_broken, entries, states

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM


def _cluster(*vcores: int, memory_mib: int = 8192) -> SharedState:
    state = SharedState()
    for index, each in enumerate(vcores):
        state.add(NodeName(f"n{index}"), UnitQueue(unit(f"n{index}", each, memory_mib)))
    return state


def _batch(count: int, demand: Vector = (1, 1, 0, 1)) -> Placement:
    return Placement(BATCH, demand, entries(count, demand, BATCH), 64, 600.0)


def _rows(policy: PlacementPolicy, state: SharedState, placement: Placement) -> list[int | None]:
    return policy.place(ClusterView(state), placement, NOW)


def _feasible(view: ClusterView, placement: Placement) -> list[int]:
    return [
        row
        for row in np.flatnonzero(view.open).tolist()
        if view.image(row).runs_at_once(placement.demand, placement.workload_class)
    ]


def _fullness(view: ClusterView, row: int) -> float:
    parts: list[float] = [
        (total - free) / total
        for total, free in zip(view.total[row].tolist(), view.free[row].tolist(), strict=True)
        if total > 0
    ]
    return sum(parts) / len(parts)


def _greedy(view: ClusterView, placement: Placement, sign: int) -> list[int | None]:
    """One container after another to the fullest (-1) or emptiest (1) unit with capacity; then to
    wait where the fewest do."""
    chosen: list[int | None] = []
    for entry in placement.entries:
        admitting = [
            row
            for row in np.flatnonzero(view.open & view.could_ever_fit(placement.demand)).tolist()
            if not bound_broken(view, placement, row)
        ]
        if placement.workload_class is STREAM:
            admitting = [row for row in admitting if view.streams_leave(placement.demand)[row]]
        feasible = _feasible(view, placement)
        row: int | None
        if feasible:
            row = min(feasible, key=lambda row: (round(sign * _fullness(view, row), 9), row))
        else:
            row = min(admitting, key=lambda row: (view.waiting_at(row), row), default=None)
        if row is not None:
            view.apply(row, entry, NOW)
        chosen.append(row)
    return chosen


@settings(max_examples=200, deadline=None)
@given(states(), PLACEMENTS)
def test_best_fit_takes_the_fullest_and_worst_fit_the_emptiest(
    state: SharedState, placement: Placement
) -> None:
    for policy, sign in ((BestFit(), -1), (WorstFit(), 1)):
        assert _rows(policy, state, placement) == _greedy(ClusterView(state), placement, sign)


def test_best_fit_keeps_a_unit_whole_for_a_large_container() -> None:
    state = _cluster(4, 4)
    state.queue(1).run(Entry(entries(1, (1, 1, 0, 1), BATCH)[0].container_id, BATCH,
                             (1, 1, 0, 1), 60.0), 0.0)  # fmt: skip
    state.refresh(1)
    assert _rows(BestFit(), state, _batch(3)) == [1, 1, 1]
    assert _rows(WorstFit(), state, _batch(3)) == [0, 0, 1]


def test_round_robin_goes_on_where_it_stopped() -> None:
    state = _cluster(4, 4, 4)
    policy = RoundRobin()
    assert _rows(policy, state, _batch(2)) == [0, 1]
    assert _rows(policy, state, _batch(2)) == [2, 0]
    assert _rows(RoundRobin(1), state, _batch(2)) == [1, 2]


def test_round_robin_lets_wait_in_turn_whatever_the_wait_is() -> None:
    """One unit is free in a second, the other in an hour: only min-wait cares."""
    state = _cluster(1, 1)
    for row, length_s in ((0, 3600.0), (1, 1.0)):
        queue = state.queue(row)
        queue.run(Entry(entries(1, (1, 1, 0, 1), BATCH, f"r{row}")[0].container_id, BATCH,
                        (1, 1, 0, 1), length_s), NOW)  # fmt: skip
        state.refresh(row)
    placement = Placement(BATCH, (1, 1, 0, 1), _batch(4).entries, 64, 10_000.0)
    assert _rows(RoundRobin(), state, placement) == [0, 1, 0, 1]
    assert _rows(MinWait(), state, placement) == [1, 1, 1, 1]


def test_at_random_every_unit_is_as_likely() -> None:
    state = _cluster(*[4] * 8)
    policy = Random(0)
    counts = Counter(_rows(policy, state, _batch(1))[0] for _ in range(1600))
    assert set(counts) == set(range(8))
    assert all(140 <= count <= 260 for count in counts.values()), counts


def test_schedulers_draw_differently_and_the_same_in_every_run() -> None:
    state = _cluster(*[4] * 50)
    drawn = [_rows(Random(index), state, _batch(20)) for index in (0, 1, 0)]
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]


def test_fifo_takes_the_first_unit_until_it_is_full_and_queues_nothing() -> None:
    state = _cluster(2, 3)
    assert _rows(Fifo(), state, _batch(7)) == [0, 0, 1, 1, 1, None, None]


def test_drf_gives_steps_of_equal_dominant_share() -> None:
    """A thousand vcores and a million MiB: a step is 62.5 of the one or 62,500 of the other."""
    state = _cluster(*[100] * 10, memory_mib=100_000)
    for demand, share in (((1, 100, 0, 1), 0.001), ((1, 10_000, 0, 1), 0.01)):
        placed = [
            row for row in _rows(CentralizedDrf(), state, _batch(500, demand)) if row is not None
        ]
        assert len(placed) == int(TURN_SHARE / share)
    assert None not in _rows(CentralizedDrf(), state, _batch(1, (100, 1, 0, 1)))


def test_drf_fills_two_jobs_evenly_where_first_come_takes_all() -> None:
    """One job is heavy in vcores, one in memory; both want more than there is."""
    shares = {}
    for policy in (CentralizedDrf, Fifo):
        nodes = [unit(f"n{i}", vcores=16, memory_mib=16 * 1024) for i in range(8)]
        cluster = VirtualCluster(nodes, schedulers=1, policy=policy)
        first = cluster.submit(200, Resources(1, 256))
        second = cluster.submit(200, Resources(1, 1024))
        cluster.advance(30)
        shares[policy.name] = [
            cluster.states(app).get("running", 0) / 128 for app in (first, second)
        ]
    assert shares["fifo"] == [1.0, 0.0]
    a, b = shares["centralized-drf"]
    assert a + b == 1.0
    assert abs(a - b) <= 2 * TURN_SHARE, shares


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60))
def test_a_stream_is_placed_whole_by_drf_too(count: int) -> None:
    state = _cluster(*[8] * 8)
    demand = (1, 1, 0, 1)
    placement = Placement(STREAM, demand, entries(count, demand, STREAM), 0, 600.0)
    assert None not in _rows(CentralizedDrf(), state, placement)
