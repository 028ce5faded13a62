"""The experiments by name, their calibration, and the summary of several runs."""

from __future__ import annotations

import itertools
import math

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
