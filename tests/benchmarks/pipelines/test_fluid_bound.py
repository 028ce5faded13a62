"""Bounds of small cases by hand and by exhaustion, and that no simulated policy exceeds its own."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.pipelines.fluid_bound import (
    Fluid,
    assignment_bound,
    best_makespan,
    fluid_rate,
    makespans,
)
from benchmarks.pipelines.measured_run import simulate
from hrm.errors import InvalidRequest
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.profiles import load
from hrm.pipelines.sim.scenario import SATURATION_PER_MIN, Scenario, arrivals, workers
from tests.sim.pipelines.invented import sample

pytest.importorskip("scipy")

CPU_S = (8.0, 6.0, 10.0, 4.0, 12.0, 9.0)
SPEEDUPS = (1.6, 6.0, 10.0, 0.8, 3.0, 4.5)
TIMES = [(cpu_s, cpu_s / speedup) for cpu_s, speedup in zip(CPU_S, SPEEDUPS, strict=True)]


def test_the_papers_dispatch_case() -> None:
    """Six tasks, one core, one GPU: the optimum is 12, the relaxation 9.53846."""
    found = makespans(TIMES)
    assert len(found) == 64
    assert statistics.fmean(found) == pytest.approx(25.4531, abs=5e-5)
    assert best_makespan(TIMES) == pytest.approx(12.0)
    assert assignment_bound(TIMES) == pytest.approx(9.53846, abs=5e-6)


def test_a_device_without_a_version_is_not_used() -> None:
    never = float("inf")
    assert best_makespan([(3.0, never), (never, 2.0)]) == 3.0
    assert assignment_bound([(3.0, never), (never, 2.0)]) == pytest.approx(3.0)


def test_too_many_assignments_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="assignment_bound"):
        makespans([(1.0,) * 10] * 10)


def test_the_fluid_bound_of_the_note() -> None:
    """GPU-seconds A 6 and 4, B 3 and 3; 2 and 4 GPUs; half of each: 102.857 a minute."""
    work = [[[6.0], [4.0]], [[3.0], [3.0]]]
    capacity = [[2.0], [4.0]]
    assert 60 * fluid_rate([0.5, 0.5], work, capacity) == pytest.approx(102.857, abs=5e-4)
    half = [[[3.0 + 1.5]]]  # a 50:50 split gives node 1 half of each class
    assert 60 * 2 * fluid_rate([1.0], half, [[2.0]]) == pytest.approx(53.333, abs=5e-4)


def test_the_papers_cluster_is_scaled_to_its_rates() -> None:
    assert Fluid(Scenario(profiles=sample())).rate_per_min == pytest.approx(
        SATURATION_PER_MIN, rel=0.05
    )


def test_interference_only_lowers_the_bound() -> None:
    rates = {
        world: Fluid(Scenario(profiles=sample(), world=world)).rate_per_min
        for world in ("none", "overload", "measured")
    }
    assert rates["overload"] < rates["none"] and rates["measured"] < rates["none"]


def test_fewer_nodes_can_do_less() -> None:
    rates = [
        Fluid(Scenario(profiles=sample(), workers=workers(count))).rate_per_min
        for count in (3, 6, 11)
    ]
    assert rates == sorted(rates) and rates[0] < 0.5 * rates[2]


@pytest.mark.parametrize("pair", ["random+random", "ect+pats", "ect+iawp:oracle"])
def test_no_policy_is_above_its_bound(pair: str) -> None:
    cluster, _, node = pair.partition("+")
    scenario = Scenario(profiles=sample(), rate_per_min=200.0, tasks=60, workers=workers(3))
    work = arrivals(scenario)
    result = simulate(scenario, policies(cluster, node, scenario), work)
    assert len(result.ended) == 60
    assert result.throughput() <= Fluid(scenario).throughput_max(work)
    latest = max(a + work.least_s(t) for a, t in zip(work.arrives_s, work.tasks, strict=True))
    assert max(at_s for at_s, *_ in result.ended) >= latest


def test_the_measured_table_is_scaled_too() -> None:
    """A new measurement requires a new ``profiles.TIME_SCALE``, which is the value of this test."""
    rate = Fluid(Scenario(profiles=load())).rate_per_min
    times = rate / SATURATION_PER_MIN
    assert times == pytest.approx(1.0, rel=0.05), f"multiply TIME_SCALE by {times:.3f}"
