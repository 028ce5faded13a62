"""The experiments by name, their calibration, and the summary of several runs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.simulation.catalogue import (
    CENTRALISED,
    CHOICE_SHARE,
    EXPERIMENTS,
    PAPER_DELAY_S,
    Point,
    calibrated,
    points_of,
    ratios,
    run_points,
)
from benchmarks.simulation.costs import REFERENCE, Cost, Fixed, Kind, Measured, Tally
from benchmarks.simulation.figures import interval, summary
from benchmarks.simulation.reference import reference_costs
from benchmarks.simulation.timed import Setup, simulate
from benchmarks.simulation.workload import arrivals, burst, mixed, saturated
from hrm.core.vocabulary.bounds import Bounds
from hrm.errors import InvalidRequest

SMALL = Setup(nodes=160)


@pytest.mark.parametrize("charging", ["scaled", "choice-bound"])
def test_calibrated_costs_give_the_paper_s_delay(charging: str) -> None:
    costs = calibrated("scaled" if charging == "scaled" else "choice-bound", SMALL)

    setup = Setup(nodes=SMALL.nodes, schedulers=0)
    delay_ms = simulate(setup, costs, burst(60, 0), to_completion=False).values()["delay_ms"]

    assert delay_ms == pytest.approx(1e3 * PAPER_DELAY_S, rel=0.01)


def test_choice_bound_costs_are_mostly_choice() -> None:
    costs = calibrated("choice-bound", SMALL)
    assert isinstance(costs, Fixed)

    choice_s = costs.charge_s(Kind.ROUND, 40, 0.0)
    serial_s = sum(costs.charge_s(kind, 40, 0.0) for kind in (Kind.REQUEST, Kind.COMMIT))
    serial_s += 40 * costs.charge_s(Kind.REPORT, 1, 0.0)

    assert choice_s / (choice_s + serial_s) == pytest.approx(CHOICE_SHARE)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_compares_at_least_two_systems_with_the_same_jobs(name: str) -> None:
    for points in (points_of(name), points_of(name, quick=True)):
        plans = {(point.charging, point.x): point.plan(1) for point in points}
        assert all(point.plan(1) == plans[point.charging, point.x] for point in points)
        for charging in {point.charging for point in points}:
            systems = {(p.system, p.setup.schedulers) for p in points if p.charging == charging}
            assert len(systems) > 1 or name == "mixed"
    if name == "mixed":
        assert {point.setup.lease for point in points_of(name)} == {"global", "candidates", "none"}
    asked = {(point.charging, point.x) for point in points_of(name, quick=True)}
    assert asked <= {(point.charging, point.x) for point in points_of(name)}


def like_the_others(setup: Setup) -> Setup:
    """Without what systems of one experiment may differ in."""
    return replace(setup, schedulers=0, lease="global", bounds=Bounds())


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_systems_of_an_experiment_differ_in_schedulers_and_lease_alone(name: str) -> None:
    def compared(point: Point) -> tuple[str, float | None]:
        return point.charging, None if name in ("schedulers", "conflicts") else point.x

    for points in (points_of(name), points_of(name, quick=True)):
        setups = {compared(point): like_the_others(point.setup) for point in points}
        for point in points:
            assert like_the_others(point.setup) == setups[compared(point)], point
            others = Setup(bounds=Bounds(lease_scope=point.setup.bounds.lease_scope))
            assert point.setup.bounds == others.bounds
            assert point.setup.hop_s == point.setup.network_s == 100e-6
            assert name == "mixed" or point.setup.lease == "global"
            assert name == "conflicts" or point.setup.nodes == Setup().nodes


def test_a_run_has_all_jobs_and_charges_every_cost_to_both_systems() -> None:
    """What the benchmark reports is what the simulation gives for the costs it is told, no less."""
    setups = [replace(SMALL, schedulers=count) for count in (0, 3)]
    points = [
        Point(f"with {setup.schedulers}", "scaled", 12, setup, partial(burst, 12))
        for setup in setups
    ]

    rows = run_points(points, runs=2)

    costs = calibrated("scaled", SMALL)
    assert isinstance(costs, Fixed)
    for row, setup in zip(rows, setups, strict=True):
        runs = [simulate(setup, costs, burst(12, seed), to_completion=False) for seed in (0, 1)]
        assert [len(run.jobs) for run in runs] == [12, 12]
        for name, values in row["runs"].items():
            assert values == [run.values()[name] for run in runs], name
        assert row["figures"]["rounds"]["mean"] >= 12


@pytest.mark.parametrize("kind", [Kind.COPY_SENT, Kind.COPY_TAKEN, Kind.UNITS_ENCODED])
def test_copies_for_processes_have_a_price(kind: Kind) -> None:
    assert REFERENCE.costs[kind].event_s + REFERENCE.costs[kind].container_s > 0
    free = Fixed({each: cost for each, cost in REFERENCE.costs.items() if each is not kind})
    delays = {
        (schedulers, costs is free): simulate(
            replace(SMALL, schedulers=schedulers), costs, burst(12, 0), to_completion=False
        ).values()["delay_ms"]
        for schedulers in (0, 3)
        for costs in (REFERENCE, free)
    }
    assert delays[3, True] < delays[3, False]
    assert delays[0, True] == delays[0, False], "the central system has no copy"


def test_a_hop_is_waited_for_by_processes_alone() -> None:
    def delay_ms(schedulers: int, hop_s: float) -> float:
        setup = replace(SMALL, schedulers=schedulers, hop_s=hop_s)
        return simulate(setup, REFERENCE, burst(1, 0), to_completion=False).values()["delay_ms"]

    assert delay_ms(3, 0.005) - delay_ms(3, 0.0) == pytest.approx(10.0, rel=0.2), "there and back"
    assert delay_ms(0, 0.005) == delay_ms(0, 0.0)


def test_saturated_jobs_come_when_every_slot_is_taken_and_all_of_them_wait_at_nodes() -> None:
    setup = Setup(nodes=20, schedulers=0)
    jobs = saturated(3, 1, slots=20 * 16)

    result = simulate(setup, Measured(), jobs, to_completion=False)

    assert sum(job.containers for job in jobs if not job.counted) == 20 * 16
    assert len(result.jobs) == 3
    assert result.counts["queued"] == 3 * 40
    assert result.values()["delay_ms"] > 0


def test_an_unknown_experiment_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"no experiment 'speed'; name one of delay, "):
        points_of("speed")


def test_hrm_is_faster_where_choice_is_what_costs() -> None:
    rows = run_points(
        [
            Point("HRM", "choice-bound", 60, SMALL, lambda seed: burst(60, seed)),
            Point(
                CENTRALISED,
                "choice-bound",
                60,
                Setup(nodes=SMALL.nodes, schedulers=0),
                lambda seed: burst(60, seed),
            ),
        ],
        runs=2,
    )

    ratio = ratios(rows, "HRM")["choice-bound", 60]

    assert ratio.runs == 2
    assert ratio.mean < 0.4
    assert len(rows[0]["runs"]["delay_ms"]) == 2


def test_a_faster_rate_is_the_same_pattern_sooner() -> None:
    slow, fast = (arrivals(rate, 5, 3, run_s=1.0) for rate in (10.0, 20.0))

    assert [job.at_s / 2 for job in slow] == pytest.approx([job.at_s for job in fast])


def test_mixed_jobs_come_in_order_of_time() -> None:
    jobs = mixed(100.0, 20, 50.0, 1, run_s=0.5)

    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert len({job.workload_class for job in jobs}) == 2


def test_the_interval_of_a_mean_is_student_s() -> None:
    found = interval([1.0, 2.0, 3.0])

    assert found.mean == pytest.approx(2.0)
    assert found.high - found.mean == pytest.approx(4.303 / math.sqrt(3))
    assert str(interval([5.0])) == "5"
    assert interval(list(range(50))).runs == 50


def test_a_summary_keeps_what_all_runs_have() -> None:
    found = summary([{"a": 1.0, "b": 2.0}, {"a": 3.0}])

    assert list(found) == ["a"]
    assert found["a"].mean == 2.0


def test_a_cost_is_the_line_through_two_runs() -> None:
    small, large = Tally(), Tally()
    small.add(Kind.COMMIT, 2, 0.010)
    large.add(Kind.COMMIT, 12, 0.030)
    large.add(Kind.REPORT, 1, 0.5)

    cost = small.cost(Kind.COMMIT, large)

    assert (cost.event_s, cost.container_s) == pytest.approx((0.006, 0.002))
    assert small.cost(Kind.REPORT, large) == Cost(0.5)
    assert small.cost(Kind.STORE, large) == Cost(0.0)


def test_a_cost_that_would_begin_below_zero_is_in_proportion() -> None:
    small, large = Tally(), Tally()
    small.add(Kind.COPY_TAKEN, 2, 0.001)
    large.add(Kind.COPY_TAKEN, 10, 0.030)

    cost = small.cost(Kind.COPY_TAKEN, large)

    assert (cost.event_s, cost.container_s) == pytest.approx((0.0, 0.003))


def test_the_reference_has_a_cost_of_every_kind() -> None:
    ticks = itertools.count()

    costs = reference_costs(
        Setup(nodes=30, schedulers=2), jobs=3, runs=2, clock=lambda: 1e-6 * next(ticks)
    ).costs

    assert set(costs) == set(REFERENCE.costs) == set(Kind)
    by_the_clock = {Kind.HEARTBEAT, Kind.OTHER}  # none may come in so short a run
    for kind in set(Kind) - by_the_clock:
        assert costs[kind].event_s + costs[kind].container_s > 0, kind
