"""The contract of every placement policy.

Each test runs for every policy that HRM ships; a policy that is added to ``pyproject.toml`` is
tested here automatically, and again with slowdowns if it ``learns_from`` them. So is one that is
surrounded by a guard, with another as its candidate.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm import policies
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.co_running import introduce
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.model import ApplicationId, NodeName, Resources, WorkloadClass
from hrm.policies.guard import GuardMode
from hrm.policies.guarded import PlacementGuard
from hrm.testing.virtual import VirtualCluster, unit
from tests.policies.co_runners import Drawn
from tests.policies.states import NOW, PLACEMENTS, bound_broken, entries, states

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = sorted(PROJECT["entry-points"][policies.GROUP])
STEPPING = {"centralized-drf"}
"""Policies that leave some of a batch job for its next turn though there is capacity."""

TAUGHT = " with slowdowns"
ASKING = [name for name in NAMES if hasattr(policies.load(name), "learns_from")]

GUARDED = {
    "min-wait with best-fit in shadow": ("min-wait", "best-fit", GuardMode.SHADOW),
    "best-fit with min-wait that is on": ("best-fit", "min-wait", GuardMode.ON),
    "best-fit with worst-fit as a canary": ("best-fit", "worst-fit", GuardMode.CANARY_50),
    "fifo with fifo that is on": ("fifo", "fifo", GuardMode.ON),
}
"""By name: the policy in force, the candidate, and its mode."""

every_policy = pytest.mark.parametrize(
    "name", [*NAMES, *(name + TAUGHT for name in ASKING), *GUARDED]
)


def _load(name: str, index: int = 0) -> PlacementPolicy:
    if name in GUARDED:
        in_force, candidate, mode = GUARDED[name]
        guard = PlacementGuard(
            candidate, heuristic=in_force, origin="", clock_s=lambda: 0.0, mode=mode
        )
        return guard.around(policies.load(in_force, index), policies.load(candidate, index))
    policy = policies.load(name.removesuffix(TAUGHT), index)
    if name.endswith(TAUGHT):
        introduce(policy, Drawn())
    return policy


def _batch(count: int, vcores: int = 1, waiting_limit: int = 64) -> Placement:
    demand = (vcores, 1, 0, 1)
    return Placement(BATCH, demand, entries(count, demand, BATCH), waiting_limit, 600.0)


def _place(
    policy: PlacementPolicy, state: SharedState, placement: Placement
) -> tuple[list[int | None], ClusterView]:
    view = ClusterView(state)
    return policy.place(view, placement, NOW), view


def _columns(view: ClusterView) -> list[list[int]]:
    return [x.tolist() for x in (view.free, view.waiting_stream, view.waiting_batch)]


def test_the_registry_has_all_of_them() -> None:
    assert len(NAMES) == 12
    assert set(NAMES) <= set(policies.known())
    assert ASKING == [
        "co-runner-round-robin",
        "least-slowdown",
        "most-affected-first",
        "one-tenant-per-node",
    ]


@every_policy
def test_it_is_called_what_it_is_loaded_by(name: str) -> None:
    expected, *_ = GUARDED.get(name, (name.removesuffix(TAUGHT),))
    assert _load(name, 3).name == expected


@every_policy
@settings(max_examples=60, deadline=None)
@given(states(), PLACEMENTS, st.integers(0, 3))
def test_it_proposes_what_it_may_and_reserves_in_its_view(
    name: str, state: SharedState, placement: Placement, index: int
) -> None:
    """Open rows, large enough, within the bounds, each choice seen by the next."""
    rows, taken = _place(_load(name, index), state, placement)
    assert len(rows) == len(placement.entries)
    replayed = ClusterView(state)
    for row, entry in zip(rows, placement.entries, strict=True):
        if row is None:
            continue
        assert type(row) is int
        assert state.refusal(row, placement.demand) == ""
        assert bound_broken(replayed, placement, row) == ""
        replayed.apply(row, entry, NOW)
    assert _columns(taken) == _columns(replayed)


@every_policy
@settings(max_examples=60, deadline=None)
@given(states(), PLACEMENTS)
def test_it_leaves_no_capacity_unused(name: str, state: SharedState, placement: Placement) -> None:
    """What gets no place has no capacity; in steps, at least the first is placed."""
    large = any(
        state.open[row]
        and state.queue(row).image().runs_at_once(placement.demand, placement.workload_class)
        for row in state.rows.values()
    )
    rows, taken = _place(_load(name), state, placement)
    if large:
        assert rows[0] is not None
        first_view = ClusterView(state)
        assert first_view.image(rows[0]).runs_at_once(placement.demand, placement.workload_class)
    if None in rows and not (name in STEPPING and placement.workload_class is BATCH):
        left = [row for row in state.rows.values() if state.open[row]]
        assert not any(
            taken.image(row).runs_at_once(placement.demand, placement.workload_class)
            for row in left
        )


@every_policy
@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(states(), PLACEMENTS), min_size=1, max_size=4), st.integers(0, 3))
def test_it_chooses_the_same_again(
    name: str, rounds: list[tuple[SharedState, Placement]], index: int
) -> None:
    one, other = _load(name, index), _load(name, index)
    for state, placement in rounds:
        assert _place(one, state, placement)[0] == _place(other, state, placement)[0]


@every_policy
@settings(max_examples=20, deadline=None)
@given(states(), PLACEMENTS)
def test_it_does_not_touch_the_state(name: str, state: SharedState, placement: Placement) -> None:
    names = ("free", "total", "waiting_stream", "waiting_batch", "version", "open")
    before = [getattr(state, column).copy() for column in names]
    images = [state.queue(row).image() for row in state.rows.values()]
    _place(_load(name), state, placement)
    after = [getattr(state, column) for column in names]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert [state.queue(row).image() for row in state.rows.values()] == images


@every_policy
@pytest.mark.parametrize("workload_class", [BATCH, STREAM])
def test_an_empty_cluster_has_no_place(name: str, workload_class: WorkloadClass) -> None:
    placement = replace(_batch(3), workload_class=workload_class)
    assert _place(_load(name), SharedState(), placement)[0] == [None] * 3


@every_policy
def test_no_containers_need_no_rows(name: str) -> None:
    state = SharedState()
    state.add(NodeName("n1"), UnitQueue(unit("n1")))
    assert _place(_load(name), state, _batch(0))[0] == []


@every_policy
def test_one_row_is_filled_and_no_more(name: str) -> None:
    state = SharedState()
    row = state.add(NodeName("n1"), UnitQueue(unit("n1", vcores=4)))
    policy = _load(name)
    placed = [_place(policy, state, _batch(1, waiting_limit=0))[0] for _ in range(2)]
    assert placed == [[row], [row]]
    rows, _ = _place(policy, state, replace(_batch(9, waiting_limit=0), workload_class=STREAM))
    assert rows == [row] * 4 + [None] * 5


@every_policy
def test_given_up_rows_are_left_alone_and_reused_ones_are_used(name: str) -> None:
    """Forty units, then none, then forty others on the same rows, half of them."""
    state = SharedState()
    policy = _load(name)
    for i in range(40):
        state.add(NodeName(f"old{i}"), UnitQueue(unit(f"old{i}")))
    assert None not in _place(policy, state, replace(_batch(8), workload_class=STREAM))[0]
    for unit_id in list(state.rows):
        state.remove(unit_id)
    assert _place(policy, state, _batch(8))[0] == [None] * 8
    new = {state.add(NodeName(f"new{i}"), UnitQueue(unit(f"new{i}"))) for i in range(20)}
    rows, _ = _place(policy, state, replace(_batch(100, waiting_limit=0), workload_class=STREAM))
    assert set(rows) == {*new, None}
    assert sum(row is not None for row in rows) == 20 * 4


@every_policy
@pytest.mark.parametrize("schedulers", [1, 3])
def test_a_cluster_runs_to_its_end_under_it(name: str, schedulers: int) -> None:
    """Three batch jobs and a stream, more than fits, a node that breaks; invariants throughout."""
    cluster = VirtualCluster(
        [unit("n1"), unit("n2"), unit("n3", vcores=2)],
        schedulers=schedulers,
        policy=lambda index: _load(name, index),
        run_s=3.0,
    )
    apps: list[ApplicationId] = [
        cluster.submit(15),
        cluster.submit(4, Resources(2, 2048), STREAM),
        cluster.submit(6, Resources(3, 1024)),
        cluster.submit(15, Resources(1, 3000)),
    ]
    cluster.advance(2)
    cluster.disconnect(cluster.nodes["n2"])
    cluster.advance(2)
    cluster.register(cluster.nodes["n2"])
    cluster.advance(100)
    assert [cluster.states(app) for app in apps] == [{}, {}, {}, {}]
    assert [len(cluster.app(app).ended) for app in apps] == [15, 4, 6, 15]
    assert cluster.running() == 0
    for scheduler in cluster.master.placement.schedulers.values():
        assert scheduler.policy_faults == 0
        assert scheduler.jobs == {}
