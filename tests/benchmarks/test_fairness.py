"""The fluid model of two-level fairness: values known from its definition, and its invariants."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fairness import in_force, measured
from benchmarks.fairness.bounds import largest_common_throughput
from benchmarks.fairness.claims import Claim, claims, fairest_counts, verdict
from benchmarks.fairness.fluid import Learning, MappingPolicy, System, Times, run
from benchmarks.fairness.interference import Pressures, drawn
from benchmarks.fairness.properties import Case, properties, useful
from benchmarks.fairness.report import _claims, _kinds, _learned, _losses
from benchmarks.fairness.scale import decision_times
from benchmarks.fairness.scenarios import arriving, scenarios
from benchmarks.fairness.systems import GRID, LEARNED, Label, Table, measure
from benchmarks.fairness.world import DEFAULT, HOUR_S, Platform, World
from benchmarks.paper.fairness import affinity_error, main
from benchmarks.simulation.figures import Interval
from hrm.policies.mapping import (
    CoRunnerRoundRobin,
    Mix,
    MostAffectedFirst,
    OneTenantPerNode,
)
from hrm.policies.sharing import (
    Affinity,
    AffinityRoundRobin,
    ApplicationAffinityFirst,
    DivisionPolicy,
    ProviderAffinityFirst,
    SimpleFairness,
    TenantDemands,
    platform_affinity,
)

THROUGHPUT, EGOCENTRIC, RECIPROCAL = Affinity.THROUGHPUT, Affinity.EGOCENTRIC, Affinity.RECIPROCAL
DISTURBED = dataclasses.replace(DEFAULT, slowdowns=drawn(0))


@pytest.mark.parametrize(
    ("division", "affinity", "fairness", "hours"),
    [
        (SimpleFairness(), RECIPROCAL, 0.8800, 6.574),
        (ProviderAffinityFirst(), THROUGHPUT, 0.6534, 6.322),
        (ProviderAffinityFirst(), EGOCENTRIC, 0.7982, 5.862),
        (ProviderAffinityFirst(), RECIPROCAL, 0.7822, 5.853),
        (ApplicationAffinityFirst(), THROUGHPUT, 0.7922, 6.466),
        (ApplicationAffinityFirst(), EGOCENTRIC, 0.8324, 6.141),
        (ApplicationAffinityFirst(), RECIPROCAL, 0.8850, 5.865),
        (AffinityRoundRobin(), THROUGHPUT, 0.9066, 6.415),
        (AffinityRoundRobin(), EGOCENTRIC, 0.9066, 6.415),
        (AffinityRoundRobin(), RECIPROCAL, 0.9334, 5.743),
    ],
)
def test_first_levels_where_nothing_is_disturbed(
    division: DivisionPolicy, affinity: Affinity, fairness: float, hours: float
) -> None:
    found = run(DEFAULT, System(division, affinity, OneTenantPerNode()))
    assert found.fairness == pytest.approx(fairness, abs=5e-5)
    assert found.makespan_s / HOUR_S == pytest.approx(hours, abs=5e-4)


@pytest.mark.parametrize(
    ("division", "mapping", "fairness", "ratio"),
    [
        (SimpleFairness(), OneTenantPerNode(), 0.875, 1.000),
        (SimpleFairness(), MostAffectedFirst(), 0.864, 0.978),
        (SimpleFairness(), CoRunnerRoundRobin(), 0.876, 0.995),
        (AffinityRoundRobin(), OneTenantPerNode(), 0.931, 0.880),
        (AffinityRoundRobin(), MostAffectedFirst(), 0.939, 0.875),
        (AffinityRoundRobin(), CoRunnerRoundRobin(), 0.934, 0.879),
    ],
)
def test_both_levels_where_tenants_disturb_each_other(
    division: DivisionPolicy, mapping: MappingPolicy, fairness: float, ratio: float
) -> None:
    plain = run(DISTURBED, System(SimpleFairness(), RECIPROCAL, OneTenantPerNode()))
    found = run(DISTURBED, System(division, RECIPROCAL, mapping))
    assert found.fairness == pytest.approx(fairness, abs=2e-3)
    assert found.makespan_s / plain.makespan_s == pytest.approx(ratio, abs=2e-3)


def test_sensitivities_give_the_published_means() -> None:
    by_hand = drawn(0)
    assert isinstance(by_hand, Pressures)
    assert np.round(by_hand.sensitivity[:, 0] * 1e5).tolist() == [3481, 431, 7906, 4994, 2938]
    assert np.round(by_hand.sensitivity[3] * 1e5).tolist() == [4994, 27357, 7653, 10246]
    worst = max(
        by_hand.slowdown(tenant, Mix(((tenant, platform.node_cores),)), at)
        for at, platform in enumerate(DEFAULT.platforms)
        for tenant in range(5)
    )
    assert worst == pytest.approx(2.64, abs=5e-3)


RATES_PER_H: list[tuple[MappingPolicy, list[float]]] = [
    (MostAffectedFirst(), [5735.8, 34992.5, 4068.3, 12911.8, 20893.1]),
    (OneTenantPerNode(), [5774.9, 36454.4, 3872.1, 12357.2, 21089.8]),
    (CoRunnerRoundRobin(), [5756.3, 36036.9, 3923.6, 12521.7, 21011.8]),
]


def mapped(mapping: MappingPolicy) -> tuple[list[dict[str, int]], list[float]]:
    """Nodes by mix on each platform, and tasks an hour of each tenant, with the default's shares
    by affinity round robin."""
    demands = TenantDemands(
        wanted=np.array(DEFAULT.tasks, np.int64),
        cores=np.array([600] * 4),
        affinity=platform_affinity(RECIPROCAL, DEFAULT.run_s),
    )
    division = AffinityRoundRobin().divide(demands)
    maps, rates = [], [0.0] * 5
    for at, platform in enumerate(DEFAULT.platforms):
        times = Times(DISTURBED, at, platform.node_cores)
        nodes = mapping.map(
            division[:, at].tolist(), platform.node_cores, times, np.random.default_rng(0)
        )
        maps.append(
            {
                " ".join(f"{DEFAULT.tenants[each]}:{count}" for each, count in mix.cores): number
                for mix, number in nodes.items()
            }
        )
        for mix, number in nodes.items():
            for tenant, count in mix.cores:
                run_s = DEFAULT.run_s[tenant, at] * DISTURBED.slowdowns.slowdown(tenant, mix, at)
                rates[tenant] += number * count * HOUR_S / run_s
    return maps, rates


@pytest.mark.parametrize(("mapping", "per_h"), RATES_PER_H, ids=lambda each: str(each)[:20])
def test_rates_of_the_default_by_mapping(mapping: MappingPolicy, per_h: list[float]) -> None:
    assert mapped(mapping)[1] == pytest.approx(per_h, abs=0.06)


def test_most_affected_first_maps_the_default() -> None:
    auto, blast, cache, montage, kaon = DEFAULT.tenants
    gene, cheetah, darth, lcloud = mapped(MostAffectedFirst())[0]
    assert gene == {
        f"{auto}:1 {cache}:1": 100, f"{blast}:1 {cache}:1": 100, f"{cache}:2": 100,
    }  # fmt: skip
    assert cheetah == {f"{auto}:8": 37, f"{kaon}:8": 37, f"{auto}:4 {kaon}:4": 1}
    assert darth == {
        f"{auto}:4 {kaon}:4": 20,
        f"{blast}:2 {cache}:2 {montage}:2 {kaon}:2": 40,
        f"{montage}:4 {kaon}:4": 5,
        f"{montage}:8": 10,
    }
    assert lcloud == {f"{blast}:6 {montage}:6": 50}


def test_two_tenants_alone_by_hand() -> None:
    """One of 100 tasks of 10 s, one of 100 tasks of 20 s, four cores each until the first ends."""
    world = World(
        platforms=(Platform("only", 4, 2),),
        tenants=("short", "long"),
        tasks=(100, 100),
        run_s=np.array([[10.0], [20.0]]),
        slowdowns=DEFAULT.slowdowns,
    )
    found = run(world, System(SimpleFairness(), RECIPROCAL, OneTenantPerNode()))
    # 100 x 10 s / 4 cores; by then the long one has done half, and goes on with all 8.
    assert found.ends_s == pytest.approx((250.0, 250.0 + 50 * 20 / 8))
    assert found.throughput == pytest.approx((1.0, (100 / 375) / (4 / 20)))
    assert found.waits_s == (0.0, 0.0)
    later = dataclasses.replace(world, arrivals_s=(0.0, 1_000.0))
    found = run(later, System(SimpleFairness(), RECIPROCAL, OneTenantPerNode()))
    assert found.ends_s == pytest.approx((125.0, 1_250.0))


def test_the_23_scenarios_of_the_source() -> None:
    found = scenarios(0)
    assert len(found) == len({each.name for each in found}) == 23
    sizes = {each.name: each.world for each in found}
    assert sizes["small cheetah"].platforms[1].nodes == 38
    assert sizes["large lcloud"].cores == 3_000
    assert sizes["no gene"].cores == 1_800
    assert sizes["small Montage"].tasks[3] == DEFAULT.tasks[3] / 2
    assert sizes["small Montage"].tasks[0] == DEFAULT.tasks[0] * 2
    # What is left keeps its own numbers of platforms and tenants.
    whole = Mix(((0, 8),))
    without = sizes["no gene"].slowdowns.slowdown(0, whole, 0)
    assert without == DISTURBED.slowdowns.slowdown(0, whole, 1) != 1.0
    fewer = sizes["no AutoDock"].slowdowns.slowdown(0, whole, 1)
    assert fewer == DISTURBED.slowdowns.slowdown(1, Mix(((1, 8),)), 1)


def test_arrivals_are_drawn_and_the_first_is_at_0() -> None:
    found = arriving(3)
    assert len(found) == 24
    for each in found:
        assert each.world.arrivals_s is not None
        assert min(each.world.arrivals_s) == 0.0
    assert found[0].world.arrivals_s != found[1].world.arrivals_s
    assert [each.world.arrivals_s for each in found] == [
        each.world.arrivals_s for each in arriving(3)
    ]


def test_run_times_that_are_learned_are_worth_most_of_those_that_are_given() -> None:
    given_, learned, unknown = (
        run(DISTURBED, LEARNED[Label("affinity-round-robin", "reciprocal", name)])
        for name in ("run times given", "learned, sigma 0.3", "nothing known")
    )
    assert unknown.fairness < learned.fairness
    gain_s, possible_s = (
        unknown.makespan_s - learned.makespan_s,
        unknown.makespan_s - given_.makespan_s,
    )
    assert possible_s > 0
    assert gain_s > 0.5 * possible_s


@dataclasses.dataclass(frozen=True)
class ByLoad:
    """Twice as long on a full node, whatever the platform, in proportion to the logarithm."""

    node_cores: tuple[int, ...]

    def slowdown(self, tenant: int, mix: Mix, platform: int) -> float:
        busy = sum(count for _, count in mix.cores)
        return float(2.0 ** ((busy - 1) / (self.node_cores[platform] - 1)))


def test_learned_times_are_near_those_alone_where_loads_vary_and_biased_where_they_do_not() -> None:
    cores = tuple(platform.node_cores for platform in DEFAULT.platforms)
    world = dataclasses.replace(DEFAULT, slowdowns=ByLoad(cores))
    learned = {
        partly: run(
            world,
            System(
                AffinityRoundRobin(), RECIPROCAL, OneTenantPerNode(),
                Learning(sigma=0.1, most=40, partly=partly),
            ),
        )
        for partly in (0.0, 0.5)
    }  # fmt: skip
    # Full nodes show a time that is twice as long, of which a slope of 0.1 is taken away.
    assert learned[0.0].error == pytest.approx(np.log(2) - 0.1, abs=0.05)
    assert learned[0.5].error < 0.1
    assert np.isnan(run(world, System(AffinityRoundRobin(), RECIPROCAL, OneTenantPerNode())).error)


def test_disturbed_times_are_those_of_a_full_node_of_the_tenants_own() -> None:
    """Where every platform doubles all times alike, they change no affinity and no division."""
    cores = tuple(platform.node_cores for platform in DEFAULT.platforms)
    world = dataclasses.replace(DEFAULT, slowdowns=ByLoad(cores))
    system = System(AffinityRoundRobin(), RECIPROCAL, OneTenantPerNode())
    plain = run(world, system)
    assert run(world, dataclasses.replace(system, disturbed=True)).ends_s == plain.ends_s
    other = run(DISTURBED, dataclasses.replace(system, disturbed=True))
    assert other.ends_s != run(DISTURBED, system).ends_s


@given(seed=st.integers(0, 10_000), label=st.sampled_from(list(GRID)))
@settings(max_examples=25, deadline=None)
def test_every_run_ends_with_figures_in_their_ranges(seed: int, label: Label) -> None:
    found = run(arriving(seed, [0.5])[0].world, GRID[label], seed)
    assert all(np.isfinite(found.ends_s))
    assert all(wait >= 0 for wait in found.waits_s)
    values = np.array(found.throughput)
    assert found.fairness == pytest.approx(1 - values.std() / values.mean())
    # The same spread by another formula.
    assert found.jain == pytest.approx(1 / (1 + (1 - found.fairness) ** 2))


def test_the_bound_is_the_known_one() -> None:
    bound = largest_common_throughput(DEFAULT)
    assert bound == pytest.approx(0.8942, abs=5e-5)


def test_affinities_are_as_printed() -> None:
    assert affinity_error() < 1e-3


@pytest.fixture(scope="module")
def gavel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six kinds; the last fits no GPU beside another."""
    names = [f"('kind {at}', 1)" for at in range(6)]
    speeds = {gpu: 1.0 + index for index, gpu in enumerate(measured.GPUS)}
    found = {
        gpu: {
            one: {"null": speed * (at + 1)}
            | {
                other: [0.0, 0.0] if 5 in (at, to) else [speed * (at + 1) / 2, 1.0]
                for to, other in enumerate(names)
            }
            for at, one in enumerate(names)
        }
        for gpu, speed in speeds.items()
    }
    directory = tmp_path_factory.mktemp("gavel")
    with gzip.open(directory / "simulation_throughputs.json.gz", "wt") as file:
        json.dump(found, file)
    return directory


def test_measured_pairs_that_fit_are_drawn(gavel: Path) -> None:
    pairs = measured.load(gavel)
    assert pairs.kinds == tuple(f"kind {at}" for at in range(6))
    world = measured.draw(pairs, 7, equal_loads=True)
    assert "kind 5" not in world.tenants
    both = Mix(((0, 1), (1, 1)))
    assert world.slowdowns.slowdown(0, both, 0) == pytest.approx(2.0)
    assert world.slowdowns.slowdown(0, Mix(((0, 2),)), 0) == pytest.approx(2.0)
    assert world.slowdowns.slowdown(0, Mix(((0, 1),)), 0) == 1.0
    assert world.run_s[:, 0] == pytest.approx(2 * world.run_s[:, 1])
    # Equal loads: an equal division of 120 slots a platform would take six hours for each.
    hours = np.array(world.tasks) / (120 * HOUR_S / world.run_s).sum(axis=1)
    assert hours == pytest.approx([6.0] * 5)
    unequal = np.array(measured.draw(pairs, 7, equal_loads=False).tasks) / np.array(world.tasks)
    assert ((unequal >= 0.5) & (unequal <= 2.0)).all()
    assert len(set(unequal.round(6))) == 5


def test_verdicts_are_of_the_whole_interval() -> None:
    assert verdict(Interval(1.0, 0.1, 1.9, 9)) == "holds"
    assert verdict(Interval(1.0, -0.1, 2.1, 9)) == "open"
    assert verdict(Interval(-1.0, -1.9, -0.1, 9)) == "fails"
    assert verdict(Interval(60.0, 51.0, 69.0, 9), above=50.0) == "holds"


def test_a_single_run_decides_nothing() -> None:
    assert verdict(Interval(1.0, 1.0, 1.0, 1)) == "open"
    decided = {each.verdict for each in claims(table_of(np.random.default_rng(0), runs=1))}
    assert decided == {"open", "-"}


def table_of(
    random: np.random.Generator, *, runs: int = 30, scenarios_of: tuple[str, ...] = ("a", "a", "b")
) -> Table:
    """Noise in every cell."""
    shape = (runs, len(scenarios_of), len(GRID))
    fairness, ratio = random.uniform(0.5, 1, shape), random.uniform(0.8, 1.1, shape)
    names = tuple((kind, f"{kind} {at}") for at, kind in enumerate(scenarios_of))
    return Table(names, tuple(GRID), fairness, ratio, *[fairness] * 4)


def by_name(table: Table) -> dict[str, Claim]:
    return {each.name: each for each in claims(table)}


def test_noise_holds_no_more_often_than_chance() -> None:
    random = np.random.default_rng(1)
    decided = [
        each
        for _ in range(40)
        for each in claims(table_of(random, scenarios_of=("a",) * 4))
        if each.verdict != "-"
    ]
    held = [each.name for each in decided if each.verdict == "holds"]
    assert len(held) / len(decided) < 0.05
    assert max(held.count(name) for name in held) <= 6


def test_opposite_kinds_of_scenarios_make_no_claim_hold() -> None:
    """A gain of 10 % in one, a loss of 4 % in the other: 3 % on average."""
    table = table_of(np.random.default_rng(2), scenarios_of=("equal loads", "unequal loads"))
    noise = np.random.default_rng(3).normal(0, 1e-3, table.fairness.shape)
    ours = table.where(division="affinity-round-robin")
    table.fairness[:] = 0.8 + noise
    table.fairness[:, 0, ours] *= 1.10
    table.fairness[:, 1, ours] *= 0.96
    found = by_name(table)["affinity round robin is fairer than simple-fairness"]
    assert found.found.mean == pytest.approx(3, abs=0.2)
    assert found.found.low > 0
    assert found.verdict == "mixed"
    assert {kind: each.verdict for kind, each in found.kinds.items()} == {
        "equal loads": "holds",
        "unequal loads": "fails",
    }


def test_ties_are_neither_for_a_claim_nor_against_it() -> None:
    """Reciprocal affinity is fairer in two fifths of the cases, and equal in all others."""
    table = table_of(np.random.default_rng(4), scenarios_of=("a",) * 5)
    table.fairness[:] = 0.8
    table.fairness[:, :2, table.where(affinity="reciprocal")] = 0.9
    found = by_name(table)
    more = found["in more pairs and scenarios, reciprocal is fairer than less fair, by"]
    assert more.verdict == "holds"
    assert more.found.mean == pytest.approx(40)
    assert found["fairer in"].found.mean == pytest.approx(40)
    ties = [each for each in claims(table) if each.name == "equal in"]
    assert ties[0].found.mean == pytest.approx(60)
    assert {each.verdict for each in ties} == {"-"}


def test_the_published_size_is_inside_or_not() -> None:
    def claim(low: float, high: float, runs: int = 30) -> Claim:
        found = Interval((low + high) / 2, low, high, runs)
        return Claim("", "10", 10.0, found, "%", "holds", {})

    assert [claim(8, 9).inside, claim(8, 11).inside, claim(10, 10, 1).inside] == ["no", "yes", "-"]


def test_losses_are_of_all_runs_and_of_the_mappings_that_claims_are_of() -> None:
    table = table_of(np.random.default_rng(5), runs=4, scenarios_of=("a", "b"))
    table.fairness[:] = 0.5
    table.fairness[:, :, table.where(division="affinity-round-robin")] = 0.7
    # Better than affinity round robin in one run of four; with the raw mapping it does not count.
    table.fairness[3, 0, table.where(division="simple-fairness")] = 0.8
    table.fairness[:, 1, table.where(mapping="most-affected-first, raw")] = 0.9
    rows = [line for line in _losses(table).splitlines() if line.startswith(("| a", "| b"))]
    assert len(rows) == 1
    assert rows[0].startswith("| a 0 | 0.700 | affinity-round-robin | 0.700 | 25 % |")
    assert rows[0].endswith("| 75 % |")


def test_tables_of_claims_state_kinds_ties_and_sizes() -> None:
    rows = list(claims(table_of(np.random.default_rng(6), runs=5)))
    text = _claims({"one": rows, "other": rows}).splitlines()
    assert text[0].count("| verdict | size |") == 2
    assert sum(line.startswith("| equal in |") for line in text) == 2
    kinds = _kinds(rows).splitlines()
    assert kinds[0] == "| claim | unit | a | b |"
    assert len(kinds) - 2 == sum(each.verdict != "-" for each in rows)


def test_learned_times_are_compared_with_both_that_could_be_given() -> None:
    table = measure(lambda seed: scenarios(seed)[:1], LEARNED, [0, 1])
    rows = {line.split(" | ")[0]: line.split(" | ") for line in _learned(table).splitlines()}
    assert rows["| run times given"][3:5] == ["-", "-"]
    assert rows["| disturbed times given"][5:7] == ["-", "-"]
    assert rows["| disturbed times given"][3] != "-"
    assert rows["| learned, sigma 0.3"][7].endswith(" %")
    assert rows["| nothing known"][7] == "-"


def test_useful_throughput_is_of_the_best_cores_up_to_the_want() -> None:
    assert useful(np.array([1.0, 5.0, 2.0]), np.array([9, 2, 3]), 4) == 2 * 5 + 2 * 2
    case = Case(np.array([[3600.0, 1800.0]]), np.array([3]), np.array([5, 2]))
    assert case.throughput(0, np.array([5, 2])) == 5.0


def test_properties_of_the_rules_in_random_cases() -> None:
    """What affinity round robin keeps with affinities of a tenant's own, no other rule does."""
    found = {(each.division, each.affinity): each for each in properties(40)}
    assert len(found) == 11
    for key, each in found.items():
        broken = (each.incentive, each.envy, each.asking)
        if key[0] == "affinity-round-robin" and key[1] != "reciprocal":
            assert broken == (0, 0, 0)
        else:
            assert all(broken)
            assert each.incentive_worst < 1
            assert each.asking_most > 1


def test_claims_of_a_small_table_name_both_levels() -> None:
    table = measure(lambda seed: scenarios(seed)[:2], GRID, [0, 1])
    found = {each.name: each for each in claims(table)}
    assert table.fairness.shape == (2, 2, len(GRID))
    assert fairest_counts(table).tolist() == [2.0, 2.0]
    fairest = found["affinity round robin is the fairest first level in"]
    assert (fairest.found.mean, fairest.verdict) == (100.0, "holds")
    assert list(fairest.kinds) == ["default", "without a platform"]
    assert found["simple fairness takes longest, by"].found.mean > 0
    assert "its makespan is shorter than that of co-runner-round-robin" in found


def test_decision_times_grow_with_tenants() -> None:
    """Of what compares each tenant with each other; the others' are too short to compare."""
    rows = {(row["policy"], row["tenants"]): row["median_ms"] for row in decision_times((5, 40))}
    assert {tenants for _, tenants in rows} == {5, 40}
    assert rows["most-affected-first, pairs", 40] > rows["most-affected-first, pairs", 5] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "--data", "/nowhere"], "leave it out to go without them"),
        (["--runs", "0"], "type 1 or more"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_rule_in_force_is_fairer_than_simple_fairness_and_bounded() -> None:
    worlds = [x.world for x in scenarios(0)[:6]]
    found = in_force._measure([worlds, worlds])

    assert found["in force, 10% at most"]["least"] > found["simple-fairness"]["least"]
    makespans = {name: np.mean(row["makespan"]) for name, row in found.items()}
    assert makespans["simple-fairness"] == 1.0
    assert makespans["source: reciprocal"] <= makespans["in force, 10% at most"] < 1.0
