"""Placement that follows a mapping: the source's example by hand, and what it never does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.co_running import CoRunning, UnknownCoRunning, introduce
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.model import (
    Gpu,
    Resources,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.policies.best_fit import BestFit
from hrm.policies.corunning import PlaceInTurn, PlaceMostAffectedFirst, PlaceTenantsApart
from hrm.testing.virtual import unit
from tests.policies.co_runners import Drawn, Stated
from tests.policies.corunning.small_cluster import SmallCluster
from tests.policies.states import NOW, PLACEMENTS, states

BY_HAND = {
    ("A", "A"): 1.5, ("A", "B"): 1.2, ("A", "C"): 0.9,
    ("B", "A"): 1.125, ("B", "B"): 1.2, ("B", "C"): 0.975,
    ("C", "A"): 1.04, ("C", "B"): 1.025, ("C", "C"): 1.01,
}  # fmt: skip
"""With these a full unit of four cores has the run times of the source's example by hand."""

SHARES = {"A": 8, "B": 4, "C": 4}
MAPPED = {
    PlaceTenantsApart: Counter(AAAA=2, BBBB=1, CCCC=1),
    PlaceMostAffectedFirst: Counter(AACC=2, AABB=2),
    PlaceInTurn: Counter(AACC=1, BBCC=1, AABB=1, AAAA=1),
}
POLICIES = list(MAPPED)

every_policy = pytest.mark.parametrize("policy", POLICIES)


def taught(policy: Callable[[], PlacementPolicy], co_running: CoRunning) -> PlacementPolicy:
    made = policy()
    introduce(made, co_running)
    return made


@every_policy
@given(st.permutations("AAAAAAAABBBBCCCC"))
@settings(max_examples=30, deadline=None)
def test_units_become_what_the_mapping_says_in_whatever_order_containers_come(
    policy: type[PlaceInTurn], order: list[str]
) -> None:
    made = taught(policy, Stated(BY_HAND, SHARES))
    cluster = SmallCluster.of_cores(4, 4, 4, 4)
    for name in order:
        cluster.run(made, name)
    assert cluster.mixes() == MAPPED[policy]


@every_policy
@pytest.mark.parametrize("order", ["ABC", "CBA", "BAC"])
def test_so_they_do_where_all_of_a_tenant_come_at_once(
    policy: type[PlaceInTurn], order: str
) -> None:
    made = taught(policy, Stated(BY_HAND, SHARES))
    cluster = SmallCluster.of_cores(4, 4, 4, 4)
    for name in order:
        cluster.run(made, name, SHARES[name])
    assert cluster.mixes() == MAPPED[policy]


@every_policy
def test_what_ends_is_replaced_by_the_like(policy: type[PlaceInTurn]) -> None:
    made = taught(policy, Stated(BY_HAND, SHARES))
    cluster = SmallCluster.of_cores(4, 4, 4, 4)
    for name in "ABC":
        cluster.run(made, name, SHARES[name])
    ends = [(row, x) for row in range(4) for x in "ABC" if x in _at(cluster, row)]
    for row, name in ends:
        cluster.end(row, name)
    for _, name in reversed(ends):
        cluster.run(made, name)
    assert cluster.mixes() == MAPPED[policy]


def _at(cluster: SmallCluster, row: int) -> set[str]:
    return {x.partition("-x")[0] for x in cluster.state.queue(row).running}


@every_policy
def test_no_core_idles_for_an_ideal_neighbour(policy: type[PlaceInTurn]) -> None:
    """A cluster that only A uses, though B and C are wanted, too, and A suffers from itself."""
    made = taught(policy, Stated(BY_HAND, SHARES))
    cluster = SmallCluster.of_cores(4, 4, 4, 4)
    assert len(cluster.run(made, "A", 20)) == 16
    assert cluster.mixes() == Counter(AAAA=4)


def test_where_no_combination_lacks_it_a_container_goes_where_it_costs_least() -> None:
    """B hurts and is hurt by A; C is indifferent to both. None wants half a unit, so there is no
    target."""
    known = Stated({("A", "B"): 2.0, ("B", "A"): 1.4})
    cluster = SmallCluster.of_cores(8, 8, 8)
    policy = taught(PlaceMostAffectedFirst, known)
    assert cluster.run(policy, "A", 3) == [0, 0, 0]
    assert cluster.run(policy, "B", 3) == [1, 1, 1]
    assert cluster.run(policy, "C", 1) == [0], (
        "of units that cost the same, the first of the fullest"
    )
    assert cluster.run(policy, "B", 3) == [1, 1, 1]
    assert cluster.run(policy, "B", 3) == [1, 1, 2]
    assert cluster.run(policy, "A", 3) == [0, 0, 0]


def test_a_tenant_that_hurts_itself_is_spread() -> None:
    known = Stated({("A", "A"): 1.5})
    cluster = SmallCluster.of_cores(8, 8, 8)
    policy = taught(PlaceMostAffectedFirst, known)
    assert sorted(cluster.run(policy, "A", 3)) == [0, 1, 2]


def test_a_tenant_alone_takes_an_empty_unit_rather_than_one_of_others() -> None:
    cluster = SmallCluster.of_cores(4, 4, 4)
    policy = PlaceTenantsApart()
    assert cluster.run(policy, "A", 2) == [0, 0]
    assert cluster.run(policy, "B", 3) == [1, 1, 1]
    assert cluster.run(policy, "A", 3) == [0, 0, 2]
    assert cluster.run(policy, "B", 3) == [1, 2, 2]
    assert cluster.run(policy, "C", 2) == [2], "and one without a place"


@given(st.lists(st.tuples(states(), PLACEMENTS), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_where_nothing_is_known_of_slowdowns_they_are_best_fit(
    rounds: list[tuple[SharedState, Placement]],
) -> None:
    for made in (PlaceMostAffectedFirst(), PlaceInTurn(), taught(PlaceInTurn, UnknownCoRunning())):
        for state, placement in rounds:
            rows = made.place(ClusterView(state), placement, NOW)
            assert rows == BestFit().place(ClusterView(state), placement, NOW)


@every_policy
def test_tentative_reservations_are_seen_and_forgotten(policy: type[PlaceInTurn]) -> None:
    """What was proposed and refused leaves no trace: the same is chosen again."""
    made = taught(policy, Stated(BY_HAND, SHARES))
    cluster = SmallCluster.of_cores(4, 4, 4, 4)
    first = [row for _, row in cluster.choose(made, "A", 5)]
    for _ in range(3):
        assert [row for _, row in cluster.choose(made, "A", 5)] == first
    for name in "ABC":
        cluster.run(made, name, SHARES[name])
    assert cluster.mixes() == MAPPED[policy]


def test_gpus_are_mapped_by_their_slots() -> None:
    """Two slots a GPU: A and B each hurt themselves and suit each other."""
    gpu = Gpu(uuid="GPU-1", name="any", memory_mib=16_384, index=0)
    units = [
        ResourceUnit(
            unit_id=ResourceUnitId(f"n{number}/gpu0"),
            capacity=Resources(8, 8_192, 16_384),
            run_limit=2,
            gpu=gpu,
        )
        for number in range(4)
    ]
    hurt = {("A", "A"): 1.8, ("B", "B"): 1.8, ("A", "B"): 1.1, ("B", "A"): 1.1}
    for order in ("AAAABBBB", "ABABABAB", "BBAAABBA"):
        cluster = SmallCluster(units)
        policy = taught(PlaceMostAffectedFirst, Slots(hurt))
        for name in order:
            cluster.run(policy, name, demand=(1, 1, 4_096, 1))
        assert cluster.mixes() == Counter(AB=4)


class Slots(Stated):
    """Tenants that want four slots of GPUs each."""

    def wanted(self):  # type: ignore[no-untyped-def]
        return {("A",): (4, 4, 16_384, 4), ("B",): (4, 4, 16_384, 4)}


def test_larger_units_and_smaller_ones_have_mappings_of_their_own() -> None:
    """Units of 2 and of 4 cores, all of them wanted by A and B, which suit each other."""
    hurt = {("A", "A"): 1.8, ("B", "B"): 1.8, ("A", "B"): 1.1, ("B", "A"): 1.1}
    policy = taught(PlaceMostAffectedFirst, Stated(hurt, {"A": 6, "B": 6}))
    cluster = SmallCluster.of_cores(2, 4, 2, 4)
    for _ in range(6):
        cluster.run(policy, "A")
        cluster.run(policy, "B")
    assert cluster.mixes() == Counter(AB=2, AABB=2)


def test_units_of_odd_cores_have_one_tenant_in_a_combination() -> None:
    policy = taught(PlaceMostAffectedFirst, Stated(BY_HAND, {"A": 3, "C": 3}))
    cluster = SmallCluster.of_cores(3, 3)
    for name in "ACACAC":
        cluster.run(policy, name)
    assert cluster.mixes() == Counter(AAA=1, CCC=1)


def test_a_policy_that_cannot_be_taught_is_named() -> None:
    class Stubborn(BestFit):
        name = "stubborn"

        def learns_from(self, co_running: CoRunning) -> None:
            raise RuntimeError("no")

    from hrm.errors import InvalidConfig

    with pytest.raises(InvalidConfig, match="'stubborn' failed in learns_from: RuntimeError: no"):
        introduce(Stubborn(), UnknownCoRunning())
    introduce(BestFit(), Drawn())


@given(states(), PLACEMENTS)
@settings(max_examples=60, deadline=None)
def test_mixes_are_those_of_the_view(state: SharedState, placement: Placement) -> None:
    """Also after tentative reservations, and after they were undone."""
    policy = taught(PlaceInTurn, Drawn())
    view = ClusterView(state)
    mixes = policy._mixes  # type: ignore[attr-defined]
    for undo in (False, True, False):
        if undo:
            view.renew()
        policy.place(view, placement, NOW)
        policy._target.follow(mixes.update(view))  # type: ignore[attr-defined]
        for row in range(len(view.open)):
            running = view.image(row).running if view.total[row, 0] else ()
            expected = Counter[int]()
            for entry in running:
                expected[mixes.number_of(entry.container_id)] += entry.demand[0]
            assert mixes.mixes[row] == expected
            assert mixes.used[row] == sum(expected.values())
            shown = zip(mixes.who[row].tolist(), mixes.cores[row].tolist(), strict=True)
            assert {x: n for x, n in shown if x} == expected


@given(states(), PLACEMENTS)
@settings(max_examples=60, deadline=None)
def test_goals_are_kept_in_number(state: SharedState, placement: Placement) -> None:
    """No more units have a goal than are wanted, and each runs a part of it."""
    policy = taught(PlaceInTurn, Drawn(2))
    view = ClusterView(state)
    target, mixes = policy._target, policy._mixes  # type: ignore[attr-defined]
    for step in range(3):
        policy.place(view, placement, NOW + step)
        target.follow(mixes.update(view))
        wanted = target.wanted
        taken = Counter(target.goal[target.goal >= 0].tolist())
        for number, each in enumerate(wanted.combinations):
            assert each.left >= 0
            still = number in wanted.still[each.group, each.tenants[0]]
            assert still == (each.left > 0)
            assert taken[number] + each.left >= 1
        for row in np.flatnonzero(target.goal >= 0).tolist():
            assert mixes.mixes[row]
            assert wanted.admits(int(target.goal[row]), mixes.mixes[row])


def test_units_that_cost_the_same_are_filled_as_by_best_fit() -> None:
    policy = taught(PlaceMostAffectedFirst, Stated({("X", "Y"): 2.0}))
    cluster = SmallCluster([unit(f"n{x}", vcores=8) for x in range(4)])
    cluster.run(policy, "B", 9)
    assert cluster.run(policy, "A", 2) == [1, 1]
