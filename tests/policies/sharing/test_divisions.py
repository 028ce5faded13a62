"""Division policies: the paper's example to the core, what all hold, and what some promise."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fairness import world
from hrm.errors import InvalidRequest
from hrm.policies.sharing import (
    DEFAULT,
    DIVISIONS,
    Affinity,
    AffinityRoundRobin,
    ApplicationAffinityFirst,
    DivisionPolicy,
    DominantShare,
    ProviderAffinityFirst,
    SimpleFairness,
    TenantDemands,
    fair_share,
    platform_affinity,
)

THROUGHPUT, EGOCENTRIC, RECIPROCAL = Affinity.THROUGHPUT, Affinity.EGOCENTRIC, Affinity.RECIPROCAL
PAF, AAF, PA_RR = ProviderAffinityFirst, ApplicationAffinityFirst, AffinityRoundRobin

TASKS = tuple(map(int, world.DEFAULT.tasks))
"""Of the five tenants, table 6: more than there are cores."""

EXACT: list[tuple[DivisionPolicy, Affinity, str]] = [
    (SimpleFairness(), RECIPROCAL, "120 120 120 120 / " * 4 + "120 120 120 120"),
    (PAF(), RECIPROCAL, "0 300 0 0 / 300 0 0 0 / 300 0 0 0 / 0 0 300 300 / 0 300 300 300"),
    (PAF(), EGOCENTRIC, "0 300 0 0 / 300 0 0 0 / 300 0 0 0 / 0 0 300 300 / 0 300 300 300"),
    (PAF(), THROUGHPUT, "0 0 0 0 / 300 300 300 300 / 0 0 0 0 / 0 0 0 0 / 300 300 300 300"),
    (
        AAF(),
        RECIPROCAL,
        "0 300 0 150 / 300 0 0 150 / 300 0 300 0 / 0 0 300 150 / 0 300 0 150",
    ),
    (
        AAF(),
        EGOCENTRIC,
        "200 150 0 120 / 200 150 0 120 / 200 150 0 120 / 0 0 600 120 / 0 150 0 120",
    ),
    (
        AAF(),
        THROUGHPUT,
        "0 150 0 120 / 200 150 0 120 / 0 150 0 120 / 200 0 600 120 / 200 150 0 120",
    ),
    (
        PA_RR(),
        RECIPROCAL,
        "100 300 80 0 / 100 0 80 300 / 400 0 80 0 / 0 0 180 300 / 0 300 180 0",
    ),
    (
        PA_RR(),
        EGOCENTRIC,
        "120 150 120 90 / 120 150 120 90 / 120 150 120 90 / 120 0 120 240 / 120 150 120 90",
    ),
    (
        PA_RR(),
        THROUGHPUT,
        "120 150 120 90 / 120 150 120 90 / 120 150 120 90 / 120 0 120 240 / 120 150 120 90",
    ),
    (
        PA_RR(step=7),
        RECIPROCAL,
        "103 301 76 0 / 98 0 81 301 / 399 0 81 0 / 0 0 181 299 / 0 299 181 0",
    ),
    (
        PA_RR(step=200),
        RECIPROCAL,
        "80 400 0 0 / 80 0 0 400 / 440 0 40 0 / 0 0 280 200 / 0 200 280 0",
    ),
]


def matrix(text: str) -> list[list[int]]:
    return [[int(cell) for cell in row.split()] for row in text.split(" / ")]


def demands_of(
    measure: Affinity, *, wanted: tuple[int, ...] = TASKS, gone: tuple[int, ...] = ()
) -> TenantDemands:
    run_s = np.delete(world.DEFAULT.run_s, gone, axis=0)
    return TenantDemands(
        wanted=np.array([x for i, x in enumerate(wanted) if i not in gone]),
        cores=np.array([600, 600, 600, 600]),
        affinity=platform_affinity(measure, run_s),
    )


def many_cores_wanted(tenants: int, sizes: tuple[int, ...]) -> TenantDemands:
    return TenantDemands(
        wanted=np.full(tenants, 10_000),
        cores=np.array(sizes),
        affinity=np.ones((tenants, len(sizes))),
    )


@pytest.mark.parametrize(("policy", "measure", "expected"), EXACT)
def test_the_sources_default_is_divided_to_the_core(
    policy: DivisionPolicy, measure: Affinity, expected: str
) -> None:
    assert policy.divide(demands_of(measure)).tolist() == matrix(expected)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PA_RR(), "100 300 100 100 / 500 0 100 0 / 0 0 200 400 / 0 300 200 100"),
        (PAF(), "300 300 0 0 / 300 0 0 0 / 0 0 300 300 / 0 300 300 300"),
        (AAF(), "0 300 0 200 / 600 0 300 0 / 0 0 300 200 / 0 300 0 200"),
    ],
)
def test_after_blast_has_left(policy: DivisionPolicy, expected: str) -> None:
    assert policy.divide(demands_of(RECIPROCAL, gone=(1,))).tolist() == matrix(expected)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PA_RR(), "0 100 0 0 / 475 0 0 300 / 50 0 0 0 / 75 0 400 300 / 0 500 200 0"),
        (AAF(), "0 100 0 0 / 550 0 0 200 / 50 0 0 0 / 0 0 600 200 / 0 500 0 200"),
        (PAF(), "0 100 0 0 / 550 0 0 0 / 50 0 0 0 / 0 0 600 400 / 0 500 0 200"),
        (
            SimpleFairness(),
            "25 25 25 25 / 194 194 194 193 / 13 12 12 13 / 193 194 194 194 / 175 175 175 175",
        ),
    ],
)
def test_tenants_that_want_less_than_their_part_leave_it(
    policy: DivisionPolicy, expected: str
) -> None:
    wanted = (100, 248_800, 50, 72_950, 700)
    assert fair_share(wanted, 2_400) == [100, 775, 50, 775, 700]
    assert policy.divide(demands_of(RECIPROCAL, wanted=wanted)).tolist() == matrix(expected)


def test_dominant_shares_are_equal_and_blind_to_platforms() -> None:
    division = DominantShare().divide(demands_of(RECIPROCAL))
    assert division.sum(axis=1).tolist() == [480] * 5
    assert (np.abs(division - 120) <= 1).all()


@pytest.mark.parametrize("tenants", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("sizes", [(600, 600, 600, 600), (600, 600), (300, 700, 50)])
def test_dominant_shares_have_the_same_part_of_every_platform(
    tenants: int, sizes: tuple[int, ...]
) -> None:
    """Not a platform each, as the platform with the most free cores would have it."""
    division = DominantShare().divide(many_cores_wanted(tenants, sizes))
    assert (np.abs(division - np.array(sizes) / tenants) <= 1 + 1e-9).all()


@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=6),
    st.permutations([11, 24, 37, 60]),
)
def test_dominant_shares_do_not_depend_on_the_order_of_platforms(
    wanted: list[int], sizes: list[int]
) -> None:
    ordered = dataclasses.replace(
        many_cores_wanted(len(wanted), (11, 24, 37, 60)), wanted=np.array(wanted)
    )
    permuted = dataclasses.replace(ordered, cores=np.array(sizes))
    columns = [ordered.cores.tolist().index(size) for size in sizes]
    expected = DominantShare().divide(ordered)[:, columns]
    assert DominantShare().divide(permuted).tolist() == expected.tolist()


def test_provider_affinity_first_keeps_a_tenant_where_it_runs() -> None:
    """Every tenant is already where it is preferred least; only stickiness keeps it there."""
    demands = demands_of(RECIPROCAL)
    alone = ProviderAffinityFirst().divide(demands)
    here = np.zeros((5, 4), np.int64)
    here[3, 0] = 200  # Montage on gene, where platforms and tenant prefer others
    stuck = ProviderAffinityFirst().divide(dataclasses.replace(demands, previous=here))
    assert alone[3, 0] == 0
    assert stuck[3, 0] == 200


def literal_round_robin(demands: TenantDemands, step: int, margin: float) -> list[list[int]]:
    """Algorithm 2 as it is written, turn by turn; cores that one had are weighed by ``margin``."""
    tenants, platforms = demands.affinity.shape
    target = fair_share(demands.wanted.tolist(), demands.total)
    free = demands.cores.tolist()
    share = [[0] * platforms for _ in range(tenants)]
    while any(sum(share[u]) < target[u] for u in range(tenants)):
        for u in range(tenants):
            lack = target[u] - sum(share[u])
            having = [p for p in range(platforms) if free[p] > 0]
            if lack <= 0 or not having:
                continue
            had = share[u] if demands.previous is None else demands.previous[u].tolist()
            weight = [1 + margin if had[p] > share[u][p] else 1.0 for p in range(platforms)]
            best = max(having, key=lambda p: (demands.affinity[u, p] * weight[p], -p))
            cores = min(step, lack, free[best])
            share[u][best] += cores
            free[best] -= cores
    return share


@st.composite
def all_demands(draw: st.DrawFn) -> TenantDemands:
    tenants, platforms = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    some = st.sampled_from([0, 1, 2, 3, 7, 40, 600])
    affinity = st.sampled_from([0.5, 0.9, 1.0, 1.1, 2.0])
    rows = st.lists(affinity, min_size=platforms, max_size=platforms)
    weights = st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=tenants, max_size=tenants)
    chosen = draw(st.none() | weights)
    held = st.lists(some, min_size=platforms, max_size=platforms)
    previous = draw(st.none() | st.lists(held, min_size=tenants, max_size=tenants))
    return TenantDemands(
        wanted=np.array(draw(st.lists(some, min_size=tenants, max_size=tenants)), np.int64),
        cores=np.array(draw(st.lists(some, min_size=platforms, max_size=platforms)), np.int64),
        affinity=np.array(draw(st.lists(rows, min_size=tenants, max_size=tenants))),
        weights=None if chosen is None else np.array(chosen),
        previous=None if previous is None else np.array(previous, np.int64),
    )


@given(all_demands(), st.sampled_from([1, 2, 7]), st.sampled_from([0.0, 0.05, 0.5]))
def test_rounds_at_once_give_what_turns_give(
    demands: TenantDemands, step: int, margin: float
) -> None:
    unweighted = dataclasses.replace(demands, weights=None)
    division = AffinityRoundRobin(step=step, margin=margin).divide(unweighted)
    assert division.tolist() == literal_round_robin(unweighted, step, margin)


def test_with_a_margin_cores_do_not_move_for_a_little() -> None:
    demands = TenantDemands(
        wanted=np.array([10, 10]),
        cores=np.array([10, 10]),
        affinity=np.array([[1.0, 1.0], [1.0, 1.0]]),
        previous=np.array([[10, 0], [0, 10]]),
    )
    noisy = dataclasses.replace(demands, affinity=np.array([[0.99, 1.01], [1.01, 0.99]]))
    clear = dataclasses.replace(demands, affinity=np.array([[0.9, 1.1], [1.1, 0.9]]))
    policy = AffinityRoundRobin(margin=0.05)
    assert policy.divide(noisy).tolist() == [[10, 0], [0, 10]]
    assert policy.divide(clear).tolist() == [[0, 10], [10, 0]]
    assert AffinityRoundRobin().divide(noisy).tolist() == [[0, 10], [10, 0]]


EQUAL_IN_CORES: list[DivisionPolicy] = [SimpleFairness(), AffinityRoundRobin(), DominantShare()]


@pytest.mark.parametrize("policy", [*DIVISIONS.values(), PA_RR(step=7)], ids=lambda p: p.name)
@given(demands=all_demands())
def test_nothing_is_given_twice_and_nothing_wanted_is_left(
    policy: DivisionPolicy, demands: TenantDemands
) -> None:
    if policy.name not in {each.name for each in EQUAL_IN_CORES}:
        demands = dataclasses.replace(demands, weights=None)
    division = policy.divide(demands)
    assert (division >= 0).all()
    assert (division.sum(axis=1) <= demands.wanted).all()
    assert (division.sum(axis=0) <= demands.cores).all()
    assert division.sum() == min(demands.wanted.sum(), demands.total)
    assert (policy.divide(demands) == division).all()


@pytest.mark.parametrize("policy", EQUAL_IN_CORES, ids=lambda p: p.name)
@given(demands=all_demands())
def test_none_has_two_cores_more_than_another_that_wants_more(
    policy: DivisionPolicy, demands: TenantDemands
) -> None:
    held = policy.divide(dataclasses.replace(demands, weights=None)).sum(axis=1)
    for one, other in np.ndindex(len(held), len(held)):
        assert held[one] <= held[other] + 1 or held[other] == demands.wanted[other]


@pytest.mark.parametrize("policy", EQUAL_IN_CORES, ids=lambda p: p.name)
@given(demands=all_demands(), more=st.integers(1, 1_000))
def test_to_want_more_leaves_others_their_fair_share(
    policy: DivisionPolicy, demands: TenantDemands, more: int
) -> None:
    plain = dataclasses.replace(demands, weights=None)
    wanted = plain.wanted.copy()
    wanted[0] += more
    greedy = policy.divide(dataclasses.replace(plain, wanted=wanted)).sum(axis=1)
    equal = plain.total // len(wanted)
    for tenant in range(1, len(wanted)):
        assert greedy[tenant] >= min(wanted[tenant], equal)


def useful(run_s: list[float], held: list[int], wanted: int) -> float:
    """Tasks a second on the fastest ``wanted`` of the cores ``held``."""
    total, left = 0.0, wanted
    for each_s, cores in sorted(zip(run_s, held, strict=True)):
        total += min(left, cores) / each_s
        left -= min(left, cores)
    return total


@st.composite
def timed_demands(draw: st.DrawFn) -> tuple[list[list[float]], list[int], list[int]]:
    """Run times, wants and cores."""
    tenants, platforms = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    times = st.sampled_from([10.0, 11.0, 20.0, 35.0, 100.0])
    row = st.lists(times, min_size=platforms, max_size=platforms)
    run_s = draw(st.lists(row, min_size=tenants, max_size=tenants))
    wanted = draw(st.lists(st.integers(0, 60), min_size=tenants, max_size=tenants))
    return run_s, wanted, draw(st.lists(st.integers(0, 40), min_size=platforms, max_size=platforms))


def divided(
    policy: DivisionPolicy,
    measure: Affinity,
    run_s: list[list[float]],
    wanted: list[int],
    cores: list[int],
) -> list[list[int]]:
    affinity = platform_affinity(measure, np.array(run_s))
    demands = TenantDemands(wanted=np.array(wanted), cores=np.array(cores), affinity=affinity)
    division: list[list[int]] = policy.divide(demands).tolist()
    return division


@pytest.mark.parametrize("measure", [THROUGHPUT, EGOCENTRIC])
@given(drawn=timed_demands(), more=st.integers(1, 1_000))
def test_to_want_more_than_is_true_gains_nothing_that_is_of_use(
    measure: Affinity, drawn: tuple[list[list[float]], list[int], list[int]], more: int
) -> None:
    """With affinities that order platforms as the tenant's own run times do."""
    run_s, wanted, cores = drawn
    honest = divided(PA_RR(), measure, run_s, wanted, cores)[0]
    greedy = divided(PA_RR(), measure, run_s, [wanted[0] + more, *wanted[1:]], cores)[0]
    gained = useful(run_s[0], greedy, wanted[0]) - useful(run_s[0], honest, wanted[0])
    assert gained <= 1e-9


@pytest.mark.parametrize("measure", [THROUGHPUT, EGOCENTRIC])
@given(drawn=timed_demands())
def test_none_is_slower_than_with_its_part_of_every_platform(
    measure: Affinity, drawn: tuple[list[list[float]], list[int], list[int]]
) -> None:
    run_s, wanted, cores = drawn
    division = divided(PA_RR(), measure, run_s, wanted, cores)
    part = [each // len(wanted) for each in cores]
    for times_s, held, want in zip(run_s, division, wanted, strict=True):
        assert useful(times_s, held, want) >= useful(times_s, part, want) - 1e-9


@pytest.mark.parametrize(
    ("policy", "run_s", "cores", "wanted", "honest", "greedy"),
    [
        (PA_RR(), [[10, 20], [10, 100]], [20, 5], (5, 99), [0, 5], [8, 5]),
        (SimpleFairness(), [[10, 20], [10, 20]], [100, 100], (50, 999), [25, 25], [50, 50]),
        (DominantShare(), [[10, 20], [10, 20]], [100, 100], (50, 999), [25, 25], [50, 50]),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_to_want_more_than_is_true_gains_with_the_other_rules(
    policy: DivisionPolicy,
    run_s: list[list[float]],
    cores: list[int],
    wanted: tuple[int, int],
    honest: list[int],
    greedy: list[int],
) -> None:
    """Known, and stated in the documentation: who asks for more has more fast cores to choose."""
    assert divided(policy, RECIPROCAL, run_s, list(wanted), cores)[0] == honest
    more = 99 if isinstance(policy, AffinityRoundRobin) else 100
    assert divided(policy, RECIPROCAL, run_s, [more, wanted[1]], cores)[0] == greedy
    gained = useful(run_s[0], greedy, wanted[0]) - useful(run_s[0], honest, wanted[0])
    assert gained > 0


def test_reciprocal_affinity_may_make_a_tenant_slower_than_its_part_would() -> None:
    """The example of the documentation: the second tenant does 1.000 tasks a second, 1.026 with
    half of each platform; the first does 2.0 instead of 1.5."""
    run_s = [[100.0, 50.0], [100.0, 95.0]]
    division = divided(PA_RR(), RECIPROCAL, run_s, [500, 500], [100, 100])
    assert division == [[0, 100], [100, 0]]
    assert [useful(run_s[at], division[at], 500) for at in range(2)] == pytest.approx([2.0, 1.0])
    parts = [useful(run_s[at], [50, 50], 500) for at in range(2)]
    assert parts == pytest.approx([1.5, 1.026], abs=5e-4)


def test_of_more_tenants_than_cores_the_first_have_them() -> None:
    """The same at each call: queues that are to serve all in turn must order tenants by turn."""
    demands = many_cores_wanted(6, (3,))
    for policy in EQUAL_IN_CORES:
        assert policy.divide(demands).ravel().tolist() == [1, 1, 1, 0, 0, 0]


@given(all_demands(), st.sampled_from([1, 7]))
def test_none_prefers_what_another_holds_but_for_one_turn(
    demands: TenantDemands, step: int
) -> None:
    """By its own affinities, if it has not all that it wants; and no two gain by exchanging."""
    plain = dataclasses.replace(demands, weights=None)
    division = AffinityRoundRobin(step=step).divide(plain)
    held = division.sum(axis=1)
    for one, other in np.ndindex(len(held), len(held)):
        affinity = plain.affinity[one]
        if held[one] < plain.wanted[one]:
            gain = affinity @ (division[other] - division[one])
            assert gain <= step * affinity.max() + 1e-9
        for mine, yours in np.ndindex(*division.shape[1:] * 2):
            if division[one, mine] and division[other, yours]:
                assert (
                    affinity[yours] <= affinity[mine]
                    or plain.affinity[other, mine] <= plain.affinity[other, yours]
                )


def test_weights_are_in_proportion() -> None:
    demands = demands_of(RECIPROCAL)
    weights = np.array([1.0, 1.0, 2.0, 3.0, 1.0])
    for policy in EQUAL_IN_CORES:
        held = policy.divide(dataclasses.replace(demands, weights=weights)).sum(axis=1)
        assert held.tolist() == pytest.approx([300, 300, 600, 900, 300], abs=1)


@pytest.mark.parametrize("policy", EQUAL_IN_CORES, ids=lambda p: p.name)
def test_every_rule_that_knows_weights_keeps_quotas(policy: DivisionPolicy) -> None:
    """Half of the weight is one tenant's: 74.5 of 149 cores, and 1.49 each for fifty others."""
    weights = np.array([50.0] + [1.0] * 50)
    demands = dataclasses.replace(many_cores_wanted(51, (100, 49)), weights=weights)
    held = policy.divide(demands).sum(axis=1).tolist()
    assert held[0] in (74, 75)
    assert set(held[1:]) == {1, 2}


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from([1e-3, 0.5, 1.0, 5.0, 60.0])),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 2_000),
)
def test_a_weighted_share_is_the_quota_rounded_up_or_down(
    tenants: list[tuple[int, float]], total: int
) -> None:
    """The quota of max-min fairness: by exact fractions, those satisfied taken out one by one."""
    wanted, weights = [want for want, _ in tenants], [weight for _, weight in tenants]
    given_ = fair_share(wanted, total, weights)
    left, active = Fraction(total), {at for at, want in enumerate(wanted) if want}
    while active:
        heavy = sum(Fraction(weights[at]) for at in active)
        quotas = {at: left * Fraction(weights[at]) / heavy for at in active}
        satisfied = {at for at in active if wanted[at] <= quotas[at]}
        if not satisfied:
            break
        left -= sum(wanted[at] for at in satisfied)
        active -= satisfied
        assert all(given_[at] == wanted[at] for at in satisfied)
    assert sum(given_) == min(total, sum(wanted))
    for at in active:
        assert math.floor(quotas[at] - Fraction(1, 10**9)) <= given_[at]
        assert given_[at] <= math.ceil(quotas[at] + Fraction(1, 10**9))


@pytest.mark.parametrize(
    ("weights", "total", "expected"),
    [
        ([50.0] + [1.0] * 50, 149, [75] + [2] * 24 + [1] * 26),
        ([1e308, 1e308], 7, [4, 3]),
        ([5e-324, 1.0], 7, [0, 7]),
        ([1e-300, 1e-300], 7, [4, 3]),
        ([3.0, 1.0, 1.0], 2, [1, 1, 0]),
    ],
)
def test_shares_of_very_unlike_weights(
    weights: list[float], total: int, expected: list[int]
) -> None:
    assert fair_share([1_000] * len(weights), total, weights) == expected


@pytest.mark.parametrize("policy", [PAF(), AAF()], ids=lambda p: p.name)
def test_rules_without_weights_refuse_them(policy: DivisionPolicy) -> None:
    weighted = dataclasses.replace(demands_of(RECIPROCAL), weights=np.ones(5))
    with pytest.raises(InvalidRequest, match="leave them out, or divide by affinity-round-robin"):
        policy.divide(weighted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"affinity": np.ones((2, 4))}, "there are 5 tenants and 4 platforms"),
        ({"previous": np.ones((2, 4), np.int64)}, "the previous division has shape"),
        ({"wanted": np.array([-1, 0, 0, 0, 0])}, "number of cores is negative"),
        ({"wanted": np.array([np.nan, 1, 1, 1, 1])}, "numbers of cores are of type float64"),
        ({"cores": np.full(4, 0.5)}, "numbers of cores are of type float64"),
        ({"affinity": np.full((5, 4), np.nan)}, "an affinity is negative or not finite"),
        ({"affinity": np.full((5, 4), -1.0)}, "an affinity is negative or not finite"),
        ({"weights": np.array([1.0, 0.0, 1.0, 1.0, 1.0])}, "weights are one for each tenant"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        dataclasses.replace(demands_of(RECIPROCAL), **changes)  # type: ignore[arg-type]


def test_the_default_is_one_of_them_by_name() -> None:
    assert isinstance(DIVISIONS[DEFAULT], AffinityRoundRobin)


@pytest.mark.parametrize("arguments", [{"step": 0}, {"margin": -0.1}, {"margin": float("nan")}])
def test_turns_without_cores_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="1 and 0 or more"):
        AffinityRoundRobin(**arguments)  # type: ignore[arg-type]
