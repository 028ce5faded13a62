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

from benchmarks.fairness import measured
from benchmarks.fairness.bounds import largest_common_throughput
from benchmarks.fairness.claims import claims, fairest_counts, verdict
from benchmarks.fairness.fluid import MappingPolicy, System, run
from benchmarks.fairness.interference import Pressures, drawn
from benchmarks.fairness.published import MEAN_PERCENT
from benchmarks.fairness.scale import decision_times
from benchmarks.fairness.scenarios import arriving, scenarios
from benchmarks.fairness.systems import GRID, LEARNED, Label, measure
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
    assert MEAN_PERCENT.shape == DEFAULT.run_s.shape


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


@given(seed=st.integers(0, 10_000), label=st.sampled_from(list(GRID)))
@settings(max_examples=25, deadline=None)
def test_every_run_ends_with_figures_in_their_ranges(seed: int, label: Label) -> None:
    found = run(arriving(seed, [0.5])[0].world, GRID[label], seed)
    assert all(np.isfinite(found.ends_s))
    assert all(wait >= 0 for wait in found.waits_s)
    assert 1 / 5 <= found.jain <= 1 + 1e-9
    assert found.fairness <= 1.0


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


def test_claims_of_a_small_table_name_both_levels() -> None:
    table = measure(lambda seed: scenarios(seed)[:2], GRID, [0, 1])
    found = {each.name: each for each in claims(table)}
    assert table.fairness.shape == (2, 2, len(GRID))
    assert table.ratio[:, :, 0].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert fairest_counts(table).tolist() == [2.0, 2.0]
    fairest = found["affinity round robin is the fairest first level in"]
    assert (fairest.found.mean, fairest.verdict) == (100.0, "holds")
    assert found["simple fairness takes longest, by"].found.mean > 0
    assert "its makespan is shorter than that of co-runner-round-robin" in found


def test_decision_times_grow_with_tenants() -> None:
    rows = decision_times(tenants=(5, 20))
    assert {row["tenants"] for row in rows} == {5, 20}
    assert all(row["median_ms"] >= 0 for row in rows)


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
