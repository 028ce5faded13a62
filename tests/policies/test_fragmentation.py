"""Fragmentation: the rise of the unusable share in plain loops, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector, fits, serves
from hrm.core.vocabulary.model import ContainerId, Gpu, NodeName, ResourceUnitId, WorkloadClass
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.policies.demand_mix import DemandMix
from hrm.policies.fragmentation import Fragmentation
from hrm.policies.min_wait import MinWait
from hrm.policies.unusable_share import UnusableShare
from hrm.testing.virtual import unit
from tests.policies.states import NOW, entries

BATCH, STREAM = WorkloadClass.BATCH, WorkloadClass.STREAM
MIB = 100
"""Device memory of a GPU."""

Node = tuple[int, int]
"""Cores and GPUs. A core comes with 10 MiB."""

SIZES = st.tuples(st.integers(0, 6), st.integers(0, 60), st.sampled_from([25, 50, 80, 100]))
GPU_DEMANDS: st.SearchStrategy[Vector] = SIZES.map(lambda x: (*x, 1))
DEMANDS = st.one_of(
    GPU_DEMANDS,
    st.tuples(st.integers(1, 6), st.integers(1, 60), st.just(0), st.just(1)),
    st.tuples(st.integers(1, 6), st.integers(1, 60), st.sampled_from([100, 200]), st.just(2)),
)
NODES = st.lists(st.tuples(st.integers(2, 12), st.integers(0, 4)), min_size=1, max_size=4)
MODES = st.sampled_from([BindingMode.SHARED, BindingMode.SHARED, BindingMode.EVEN])


def cluster(
    *nodes: Node, mode: BindingMode = BindingMode.SHARED, gpus_per_unit: int = 1
) -> SharedState:
    state = SharedState()
    for number, (cores, gpus) in enumerate(nodes):
        name = NodeName(f"n{number}")
        hardware = Hardware(
            cores=(Core(None),) * max(cores, gpus),
            memory_mib=10 * max(cores, gpus),
            gpus=tuple(Gpu(index=index, memory_mib=MIB) for index in range(gpus)),
        )
        binding = Partitioning(mode=mode, gpus_per_unit=gpus_per_unit)
        for each in partition(name, hardware, binding):
            state.add(name, UnitQueue(each))
    return state


def run(state: SharedState, unit_id: str, demand: Vector, name: str = "busy") -> None:
    row = state.rows[ResourceUnitId(unit_id)]
    entry = Entry(ContainerId(f"{name}-{unit_id}"), BATCH, demand, 60.0)
    assert state.queue(row).run_if_free(entry, 0.0)
    state.refresh(row)


def batch(
    demand: Vector, count: int = 1, *, waiting_limit: int = 0, prefix: str = "new"
) -> Placement:
    return Placement(BATCH, demand, entries(count, demand, BATCH, prefix), waiting_limit, 600.0)


def placed(policy: Fragmentation, state: SharedState, placement: Placement) -> list[str | None]:
    """The unit of each."""
    view = ClusterView(state)
    view.open_to(placement.demand)
    rows = policy.place(view, placement, NOW)
    return [None if row is None else str(state.ids[row]) for row in rows]


def experienced(state: SharedState, counts: Mapping[Vector, int]) -> Fragmentation:
    """A policy that has seen so many of each demand."""
    policy = Fragmentation()
    for number, (demand, many) in enumerate(counts.items()):
        for part in range(many):
            # Their claims have failed: the state has none of them.
            placed(policy, state, batch(demand, prefix=f"seen-{number}-{part}"))
    return policy


# --- the measure ---------------------------------------------------------------------------------


def unusable(rows: list[tuple[Vector, int, int]], weights: Mapping[Vector, float]) -> float:
    """The unusable share of a pool, by its definition. ``rows``: what is free of each unit, its
    GPUs, and its device memory."""
    idle = sum(free[2] * gpus / total for free, gpus, total in rows if total)
    share = 0.0
    for free, gpus, total in rows:
        if not total:
            continue
        even = (int(free[0] / max(1, idle)), int(free[1] / max(1, idle)), *free[2:])
        usable = [
            sum(
                weight
                for demand, weight in weights.items()
                if fits((*demand[:3], 0), offer) and serves(demand, gpus, False)
            )
            for offer in (free, even)
        ]
        share += free[2] / total * gpus * (1 - sum(usable) / 2)
    return share


@settings(max_examples=150, deadline=None)
@given(NODES, MODES, st.sampled_from([1, 2]), st.lists(DEMANDS, max_size=8), st.data())
def test_the_rise_is_what_the_definition_says(
    nodes: list[Node], mode: BindingMode, size: int, running: list[Vector], data: st.DataObject
) -> None:
    state = cluster(*nodes, mode=mode, gpus_per_unit=size)
    for number, demand in enumerate(running):
        row = data.draw(st.sampled_from(sorted(state.rows.values())))
        entry = Entry(ContainerId(f"busy-{number}"), BATCH, demand, 60.0)
        if state.queue(row).could_hold(demand) and state.queue(row).run_if_free(entry, 0.0):
            state.refresh(row)
    kinds = data.draw(st.lists(GPU_DEMANDS, min_size=1, max_size=4, unique=True))
    weights = {demand: 1 / len(kinds) for demand in kinds}
    demand = data.draw(DEMANDS)
    view = ClusterView(state)
    share = UnusableShare(view)
    share.weigh(weights)
    lines = np.arange(len(share))
    rises = share.rises(lines, demand, view.free)

    def part(row: int) -> tuple[Vector, int, int]:
        free = tuple(view.free[row].tolist())
        return free, int(view.gpus[row]), int(view.total[row, 2])

    for line in range(len(share)):
        rows = share.rows[line][share.real[line]].tolist()
        before = unusable([part(row) for row in rows], weights)
        for place, row in enumerate(rows):
            offered = state.queue(row).unit
            served = serves(demand, offered.gpus_used, offered.gpu_only)
            if not (served and fits(demand, part(row)[0])):
                assert np.isinf(rises[line, place])
                continue
            fork = view.fork()
            fork.apply(row, Entry(ContainerId("one"), BATCH, demand, 60.0), NOW)
            after = [(tuple(fork.free[each].tolist()), *part(each)[1:]) for each in rows]
            assert rises[line, place] == pytest.approx(
                unusable(after, weights) - before,
                abs=1e-9,
            )


@settings(max_examples=60, deadline=None)
@given(NODES, st.lists(st.tuples(DEMANDS, st.integers(1, 3), st.booleans()), max_size=25))
def test_what_is_kept_between_rounds_changes_no_choice(
    nodes: list[Node], rounds: list[tuple[Vector, int, bool]]
) -> None:
    """Containers come and end; a policy that finds all of it again each time chooses the same."""
    state = cluster(*nodes)
    policy, fresh = Fragmentation(), Fragmentation()
    view, running = ClusterView(state), list[tuple[int, Entry]]()
    for number, (demand, many, ends) in enumerate(rounds):
        placement = batch(demand, many, prefix=f"round-{number}")
        view.renew()
        view.open_to(demand)
        rows = policy.place(view, placement, NOW)
        fresh._rises = None
        other = ClusterView(state)
        other.open_to(demand)
        assert fresh.place(other, placement, NOW) == rows
        for row, entry in zip(rows, placement.entries, strict=True):
            if row is not None:
                assert state.queue(row).run_if_free(entry, NOW)
                state.refresh(row)
                running.append((row, entry))
        if ends and running:
            row, entry = running.pop(0)
            state.queue(row).remove(entry.container_id)
            state.refresh(row)


# --- what follows from it ------------------------------------------------------------------------


def test_a_part_of_a_gpu_fills_up_another() -> None:
    state = cluster((8, 2), (8, 2))
    run(state, "n1/gpu1", (1, 1, 50, 1))
    policy = experienced(state, {(1, 1, 100, 1): 4, (1, 1, 50, 1): 4})
    assert placed(policy, state, batch((1, 1, 50, 1))) == ["n1/gpu1"]


def test_who_asks_for_many_cores_goes_where_they_are_of_no_use_to_gpus() -> None:
    state = cluster((8, 2), (8, 2))
    for index in range(2):
        run(state, f"n1/gpu{index}", (1, 1, 100, 1))
    policy = experienced(state, {(4, 1, 100, 1): 4})
    assert placed(policy, state, batch((6, 1, 0, 1))) == ["n1/cpu"]


def test_who_asks_for_few_cores_goes_to_gpus_that_have_few() -> None:
    state = cluster((16, 2), (4, 2))
    policy = experienced(state, {(8, 1, 100, 1): 4, (2, 1, 100, 1): 4})
    assert placed(policy, state, batch((2, 1, 100, 1)))[0] in ("n1/gpu0", "n1/gpu1")
    assert placed(policy, state, batch((8, 1, 100, 1)))[0] in ("n0/gpu0", "n0/gpu1")


def test_nodes_without_a_gpu_come_first_for_what_needs_none() -> None:
    state = cluster((8, 2), (4, 0), (4, 0))
    policy = experienced(state, {(4, 1, 100, 1): 4})
    units = placed(policy, state, batch((2, 1, 0, 1), 6))
    assert units == ["n1/cpu", "n2/cpu", "n1/cpu", "n2/cpu", "n0/cpu", "n0/cpu"]


def test_without_a_gpu_it_is_min_wait() -> None:
    state = SharedState()
    for number in range(5):
        state.add(NodeName(f"n{number}"), UnitQueue(unit(f"n{number}", 2)))
    placement = batch((1, 1, 0, 1), 14, waiting_limit=64)
    for index in (0, 1, 3):
        rows = [
            policy.place(ClusterView(state), placement, NOW)
            for policy in (Fragmentation(index), MinWait(index))
        ]
        assert rows[0] == rows[1] and None not in rows[0]


def test_what_fits_nowhere_waits_where_min_wait_has_it_wait() -> None:
    state = cluster((4, 2), mode=BindingMode.EVEN)
    for index, seconds in ((0, 90.0), (1, 30.0)):
        row = state.rows[ResourceUnitId(f"n0/gpu{index}")]
        entry = Entry(ContainerId(f"busy-{index}"), BATCH, (2, 1, 100, 1), seconds)
        assert state.queue(row).run_if_free(entry, 0.0)
        state.refresh(row)
    policy = Fragmentation()
    assert placed(policy, state, batch((1, 1, 50, 1), waiting_limit=64)) == ["n0/gpu1"]
    assert placed(policy, state, batch((1, 1, 50, 1), prefix="late")) == [None]


def test_the_best_is_passed_over_where_others_wait() -> None:
    state = cluster((8, 1), (8, 1))
    run(state, "n1/gpu0", (1, 1, 50, 1))
    policy = experienced(state, {(1, 1, 100, 1): 4, (1, 1, 50, 1): 4})
    row = state.rows[ResourceUnitId("n1/gpu0")]
    state.queue(row).enqueue(Entry(ContainerId("stream"), STREAM, (1, 1, 100, 1), 60.0))
    state.refresh(row)
    assert placed(policy, state, batch((1, 1, 50, 1))) == ["n0/gpu0"]


def test_schedulers_begin_at_nodes_of_their_own() -> None:
    nodes: list[Node] = [(8, 2)] * 16
    chosen = set()
    for index in range(4):
        view = ClusterView(cluster(*nodes))
        view.open_to((1, 1, 100, 1))
        chosen.add(Fragmentation(index).place(view, batch((1, 1, 100, 1)), NOW)[0])
    assert len(chosen) == 4


# --- the mix of demands --------------------------------------------------------------------------


def test_a_restart_finds_the_mix_in_what_runs() -> None:
    state = cluster((16, 4))
    for index in range(3):
        run(state, f"n0/gpu{index}", (1, 1, 80, 1))
    run(state, "n0/cpu", (1, 1, 0, 1))
    mix = DemandMix()
    mix.count_running(ClusterView(state))
    assert mix.counts == {(1, 1, 80, 1): 3}
    assert mix.settle() and mix.weights == {(1, 1, 80, 1): 1.0}


def test_before_anything_is_requested_whole_gpus_with_their_part_of_the_node_are_expected() -> None:
    """So what needs no GPU leaves cores beside each of them, whatever comes first."""
    view = ClusterView(cluster((16, 4), (8, 1)))
    prior = UnusableShare(view).whole_gpus(view)
    assert sum(prior.values()) == pytest.approx(1.0)
    mix = DemandMix(prior)
    assert mix.settle() and mix.weights == pytest.approx(prior)
    demand = (1, 1, 50, 1)
    for number in range(400):
        mix.count(demand, entries(1, demand, BATCH, f"c{number}"))
        mix.settle()
    assert mix.weights[demand] > 0.85, "what comes outweighs what was expected"


def test_a_container_that_waits_is_counted_once() -> None:
    mix, demand = DemandMix(), (1, 1, 50, 1)
    waiting = entries(3, demand, BATCH)
    for _ in range(4):
        mix.count(demand, waiting)
    assert mix.counts == {demand: 3}
    mix.count((1, 1, 0, 1), entries(5, (1, 1, 0, 1), BATCH, "cpu"))
    assert mix.counts == {demand: 3}, "they say nothing about GPUs"


def test_a_backlog_of_thousands_is_counted_once() -> None:
    mix, demand = DemandMix(), (1, 1, 50, 1)
    waiting = entries(20_000, demand, BATCH)
    for _ in range(3):
        mix.count(demand, waiting)
    assert mix.counts == {demand: 20_000}


def test_the_mix_follows_the_workload_but_not_chance() -> None:
    mix = DemandMix()
    small, large = (1, 1, 25, 1), (1, 1, 100, 1)
    settled = []
    for number in range(2000):
        demand = small if number % 2 else large
        mix.count(demand, entries(1, demand, BATCH, f"c{number}"))
        settled.append(mix.settle())
    assert sum(settled) <= 2 and mix.weights[small] == pytest.approx(0.5, abs=0.1)
    for number in range(100_000):
        mix.count(small, entries(1, small, BATCH, f"d{number}"))
        mix.settle()
    assert mix.weights[small] > 0.9 and sum(mix.counts.values()) < 70_000
