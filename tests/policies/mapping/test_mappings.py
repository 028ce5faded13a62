"""Mappings of tenants to nodes: an example by hand, what all hold, faster forms beside literal."""

from __future__ import annotations

import itertools
from random import Random
from typing import Protocol

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from hrm.errors import InvalidRequest
from hrm.policies.mapping import (
    Combination,
    CoRunnerAffinity,
    CoRunnerRoundRobin,
    CoRunnerTimes,
    Mapping,
    Mix,
    MostAffectedFirst,
    OneTenantPerNode,
    RandomCombinations,
    SeparableSlowdowns,
    co_runner_affinity,
    most_affected_first_of_pairs,
    round_robin_of_pairs,
)
from hrm.policies.mapping.combinations import Shares

A, B, C = 0, 1, 2
RUN_S: dict[tuple[int, Combination], float] = {
    (A, (A,)): 150, (A, (A, B)): 130, (A, (A, C)): 110,
    (B, (B,)): 120, (B, (A, B)): 115, (B, (B, C)): 105,
    (C, (C,)): 101, (C, (A, C)): 103, (C, (B, C)): 102,
}  # fmt: skip


class ByHand:
    def alone_s(self, tenant: int) -> float:
        return 100.0

    def run_s(self, tenant: int, combination: Combination) -> float:
        return RUN_S[tenant, combination]


class Policy(Protocol):
    @property
    def name(self) -> str: ...

    def map(
        self, cores: list[int], node_cores: int, times: CoRunnerTimes, random: np.random.Generator
    ) -> Mapping: ...


def nodes(**counts: int) -> Mapping:
    """``nodes(AB=2)``: two nodes with A and B, four cores each."""
    return {
        Mix(tuple(("ABC".index(letter), 4 // len(name)) for letter in name)): count
        for name, count in counts.items()
    }


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (OneTenantPerNode(), nodes(A=2, B=1, C=1)),
        (MostAffectedFirst(largest=2), nodes(AC=2, AB=2)),
        (CoRunnerRoundRobin(largest=2), nodes(AC=1, BC=1, AB=1, A=1)),
    ],
)
def test_four_nodes_of_four_cores_by_hand(policy: Policy, expected: Mapping) -> None:
    assert policy.map([8, 4, 4], 4, ByHand(), default_rng(0)) == expected


def test_what_a_tenant_suffers_in_the_example() -> None:
    pool = Shares([8, 4, 4], 4, largest=2)

    def of(tenant: int, measure: CoRunnerAffinity) -> float:
        return round(co_runner_affinity(measure, tenant, pool.of(tenant), ByHand()), 2)

    assert [of(x, CoRunnerAffinity.NORMALISED) for x in (A, B, C)] == [30.0, 13.33, 2.0]
    assert [of(x, CoRunnerAffinity.RAW) for x in (A, B, C)] == [30.0, 13.33, 2.0]


class Drawn:
    """Run times that depend on the tenant and on all that it is with."""

    def __init__(self, tenants: int, seed: int) -> None:
        random = Random(seed)
        self._alone_s = [random.choice([1.0, 10.0, 400.0]) for _ in range(tenants)]
        self._slowdown = {
            (tenant, each): random.choice([1.0, 1.1, 1.5, 3.0])
            for size in (1, 2, 4)
            for each in itertools.combinations(range(tenants), size)
            for tenant in each
        }

    def alone_s(self, tenant: int) -> float:
        return self._alone_s[tenant]

    def run_s(self, tenant: int, combination: Combination) -> float:
        return self._alone_s[tenant] * self._slowdown[tenant, combination]


POLICIES: list[Policy] = [
    OneTenantPerNode(),
    RandomCombinations(),
    MostAffectedFirst(),
    MostAffectedFirst(CoRunnerAffinity.RAW, largest=2, again=False),
    CoRunnerRoundRobin(),
    CoRunnerRoundRobin(step=20),
]
SHARES = st.lists(st.integers(0, 60), min_size=1, max_size=6)
NODE_CORES = st.sampled_from([1, 2, 3, 8, 12])


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(cores=SHARES, node_cores=NODE_CORES, seed=st.integers(0, 99))
def test_every_core_is_on_some_node_and_none_is_too_full(
    policy: Policy, cores: list[int], node_cores: int, seed: int
) -> None:
    times = Drawn(len(cores), seed)
    mapping = policy.map(cores, node_cores, times, default_rng(seed))

    placed = [0] * len(cores)
    for mix, count in mapping.items():
        assert count > 0
        assert sum(part for _, part in mix.cores) <= node_cores
        for tenant, part in mix.cores:
            placed[tenant] += part * count
    assert placed == cores
    assert sum(mapping.values()) == -(-sum(cores) // node_cores)
    assert mapping == policy.map(cores, node_cores, times, default_rng(seed))


def turn_by_turn(
    cores: list[int], node_cores: int, times: CoRunnerTimes, step: int, largest: int = 4
) -> tuple[Mapping, list[int]]:
    """Co-runner round robin with the pool made again in each turn, and what is left over."""
    left, latest = list(cores), -1
    found: dict[Mix, int] = {}
    while True:
        pool = [
            each
            for size in (1, 2, 4)
            if size <= largest and node_cores % size == 0
            for each in itertools.combinations(range(len(cores)), size)
            if all(left[tenant] >= node_cores // size for tenant in each)
        ]
        live = sorted({tenant for each in pool for tenant in each})
        if not live:
            return found, left
        tenant = next((x for x in live if x > latest), live[0])
        mine = [each for each in pool if tenant in each]
        best = min(mine, key=lambda c: (times.run_s(tenant, c), len(c), c))
        part = node_cores // len(best)
        count = min(step, min(left[x] for x in best) // part)
        for each in best:
            left[each] -= count * part
        mix = Mix(tuple((x, part) for x in best))
        found[mix] = found.get(mix, 0) + count
        latest = tenant


def assert_same_but_for_leftovers(
    mapping: Mapping, chosen: Mapping, left: list[int], node_cores: int
) -> None:
    """Leftovers, mixed at random, may by chance make a mix that was chosen, too."""
    rest = {mix: count - chosen.get(mix, 0) for mix, count in mapping.items()}
    assert chosen.keys() <= mapping.keys()
    assert all(count >= 0 for count in rest.values())
    assert sum(rest.values()) == -(-sum(left) // node_cores)
    mixed = [0] * len(left)
    for mix, count in rest.items():
        for tenant, part in mix.cores:
            mixed[tenant] += part * count
    assert mixed == left


@given(cores=SHARES, node_cores=NODE_CORES, seed=st.integers(0, 99), step=st.sampled_from([1, 3]))
def test_rounds_at_once_give_what_turns_give(
    cores: list[int], node_cores: int, seed: int, step: int
) -> None:
    times = Drawn(len(cores), seed)
    mapping = CoRunnerRoundRobin(step=step).map(cores, node_cores, times, default_rng(seed))
    chosen, left = turn_by_turn(cores, node_cores, times, step)
    assert_same_but_for_leftovers(mapping, chosen, left, node_cores)


def most_sensitive_first(
    cores: list[int], node_cores: int, slowdowns: SeparableSlowdowns
) -> tuple[Mapping, list[int]]:
    """The same choice with every pair compared."""
    shares = Shares(cores, node_cores, largest=2)
    while live := shares.live():
        tenant = max(live, key=lambda x: (slowdowns.sensitivity[x], -x))
        pressure = {
            each: slowdowns.pressure[next((x for x in each if x != tenant), tenant)]
            for each in shares.of(tenant)
        }
        partner = {each: next((x for x in each if x != tenant), tenant) for each in pressure}
        best = min(pressure, key=lambda each: (pressure[each], partner[each]))
        shares.place(best, shares.nodes(best))
    return dict(shares.placed), shares.left


@given(
    cores=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    node_cores=st.sampled_from([2, 4, 12]),
    seed=st.integers(0, 999),
)
def test_pairs_of_separable_slowdowns_by_two_sorts(
    cores: list[int], node_cores: int, seed: int
) -> None:
    random = Random(seed)
    slowdowns = SeparableSlowdowns(
        [random.uniform(1, 400) for _ in cores],
        [random.choice([0.1, 0.5, 2.0]) for _ in cores],
        [random.choice([0.0, 0.3, 1.0, 5.0]) for _ in cores],
    )
    fast = most_affected_first_of_pairs(cores, node_cores, slowdowns, default_rng(seed))
    slow, left = most_sensitive_first(cores, node_cores, slowdowns)

    assert_same_but_for_leftovers(fast, slow, left, node_cores)


@given(
    cores=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    node_cores=st.sampled_from([2, 4, 12]),
    seed=st.integers(0, 999),
    step=st.sampled_from([1, 3]),
)
def test_turns_over_pairs_of_separable_slowdowns(
    cores: list[int], node_cores: int, seed: int, step: int
) -> None:
    """No two press alike: of those, the literal form takes the one alone first."""
    random = Random(seed)
    slowdowns = SeparableSlowdowns(
        [1.0] * len(cores),
        [random.uniform(0.1, 2.0) for _ in cores],
        random.sample([x / 10 for x in range(20)], len(cores)),
    )
    fast = round_robin_of_pairs(cores, node_cores, slowdowns, step, default_rng(seed))
    chosen, left = turn_by_turn(cores, node_cores, slowdowns, step, largest=2)

    assert_same_but_for_leftovers(fast, chosen, left, node_cores)


def test_a_node_without_cores_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a node has 1 or more"):
        OneTenantPerNode().map([1], 0, ByHand(), default_rng(0))


@pytest.mark.parametrize("node_cores", [0, 1, 3])
def test_pairs_on_nodes_that_have_no_halves_are_refused(node_cores: int) -> None:
    slowdowns = SeparableSlowdowns([1.0], [0.1], [1.0])
    with pytest.raises(InvalidRequest, match="by MostAffectedFirst"):
        most_affected_first_of_pairs([4], node_cores, slowdowns, default_rng(0))
    with pytest.raises(InvalidRequest, match="or CoRunnerRoundRobin"):
        round_robin_of_pairs([4], node_cores, slowdowns, 1, default_rng(0))


def test_turns_without_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        CoRunnerRoundRobin(step=0)
