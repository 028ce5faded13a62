"""The experiments by name, and how each is run.

An experiment is a list of points; a point is one system with one workload at one x value, run with
several seeds. Systems take turns seed by seed, so that other load on the machine affects all alike.

There are three ways of charging decisions, because they answer different questions:

``measured``
    What the decision costs this implementation on this machine: the absolute figure.
``scaled``
    ``REFERENCE`` times one factor, such that the centralised mean delay of 60 jobs at once is the
    paper's 50 ms: the curve can then be compared with the paper's. The serial part of this
    implementation (requests, commits, reports of nodes) keeps its share.
``choice-bound``
    The same delay, but four fifths of a job's cost are the choice of units, the part that
    schedulers do in parallel: a slow policy, such as a learned one, or a search task by task and
    unit by unit, like the paper's algorithm 1 implemented as printed.

Source: HRM paper, section 6.1, figures 6 and 7.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.simulation.costs import REFERENCE, CostModel, Fixed, Kind, Measured
from benchmarks.simulation.figures import Interval, interval, summary
from benchmarks.simulation.timed import Setup, TimedCluster, simulate
from benchmarks.simulation.workload import TASKS_A_JOB, JobPlan, arrivals, burst, mixed, saturated
from hrm.errors import InvalidRequest

__all__ = [
    "CENTRALISED",
    "EXPERIMENTS",
    "PAPER_DELAY_S",
    "PAPER_SCHEDULERS",
    "Point",
    "calibrated",
    "points_of",
    "ratios",
    "run_points",
    "work_of",
]

PAPER_JOBS = (60, 120, 180)
PAPER_DELAY_S = 0.050
PAPER_SCHEDULERS = 6
CENTRALISED = "centralised"
BASE_RATE_PER_S = 60.0
"""1x of the load experiment, jobs a second; at 10x the calibrated centralised system is full."""
LOAD_JOBS = 120
LOAD_RUN_S = 0.25
MIXED_RATE = 5
CHOICE_SHARE = 0.8
_FIT_STEPS = 6
_FIT_WITHIN = 0.002

Charging = Literal["measured", "scaled", "choice-bound"]


@dataclass(frozen=True)
class Point:
    """One system at one x value. ``plan`` draws the workload of a seed."""

    system: str
    charging: Charging
    x: float
    setup: Setup
    plan: Callable[[int], list[JobPlan]]
    to_completion: bool = False


def _system(schedulers: int) -> str:
    if schedulers == 0:
        return CENTRALISED
    return f"HRM, {schedulers} scheduler{'s' * (schedulers > 1)}"


def _delay(base: Setup, chargings: Sequence[Charging], sizes: Sequence[float]) -> Iterator[Point]:
    for charging in chargings:
        for jobs in sizes:
            for schedulers in (0, PAPER_SCHEDULERS):
                yield Point(
                    _system(schedulers),
                    charging,
                    jobs,
                    replace(base, schedulers=schedulers),
                    functools.partial(burst, int(jobs)),
                    to_completion=charging == "measured",
                )


def _saturated(
    base: Setup, chargings: Sequence[Charging], sizes: Sequence[float]
) -> Iterator[Point]:
    for charging in chargings:
        for jobs in sizes:
            for schedulers in (0, PAPER_SCHEDULERS):
                setup = replace(base, schedulers=schedulers)
                slots = base.nodes * base.vcores
                plan = functools.partial(saturated, int(jobs), slots=slots)
                yield Point(_system(schedulers), charging, jobs, setup, plan)


def _order(base: Setup, chargings: Sequence[Charging], sizes: Sequence[float]) -> Iterator[Point]:
    for charging in chargings:
        for jobs in sizes:
            for schedulers in (0, PAPER_SCHEDULERS):
                setup = replace(base, schedulers=schedulers, reports_last=True)
                plan = functools.partial(burst, int(jobs))
                yield Point(_system(schedulers), charging, jobs, setup, plan)


def _load(base: Setup, chargings: Sequence[Charging], rates: Sequence[float]) -> Iterator[Point]:
    for charging in chargings:
        for times in rates:
            for schedulers in (0, PAPER_SCHEDULERS):
                yield Point(
                    _system(schedulers),
                    charging,
                    times,
                    replace(base, schedulers=schedulers),
                    functools.partial(
                        arrivals, times * BASE_RATE_PER_S, LOAD_JOBS, run_s=LOAD_RUN_S
                    ),
                )


def _schedulers(
    base: Setup, chargings: Sequence[Charging], counts: Sequence[float]
) -> Iterator[Point]:
    for charging in chargings:
        for schedulers in (0, *map(int, counts)):
            system = CENTRALISED if schedulers == 0 else "HRM"
            setup = replace(base, schedulers=schedulers)
            plan = functools.partial(burst, PAPER_JOBS[-1])
            yield Point(system, charging, schedulers, setup, plan)


def _conflicts(
    base: Setup, chargings: Sequence[Charging], counts: Sequence[float]
) -> Iterator[Point]:
    """A cluster with one slot per container: the later a scheduler looks, the less is left."""
    nodes = min(base.nodes, PAPER_JOBS[-1] * TASKS_A_JOB // base.vcores)
    return _schedulers(replace(base, nodes=nodes), chargings, counts)


def _mixed(base: Setup, chargings: Sequence[Charging], rates: Sequence[float]) -> Iterator[Point]:
    scopes: tuple[Literal["global", "candidates", "none"], ...] = ("global", "candidates", "none")
    for charging in chargings:
        for streams_per_s in rates:
            for scope in scopes:
                bounds = base.bounds
                if scope != "none":
                    bounds = replace(bounds, lease_scope=scope)
                setup = replace(base, lease=scope, bounds=bounds, large_nodes=base.nodes // 10)
                rate_per_s = MIXED_RATE * BASE_RATE_PER_S
                plan = functools.partial(
                    mixed, rate_per_s, LOAD_JOBS, streams_per_s, run_s=LOAD_RUN_S
                )
                yield Point(f"lease {scope}", charging, streams_per_s, setup, plan)


@dataclass(frozen=True)
class Experiment:
    """``xs``: the default x values, ``quick_xs`` the few of a quick run."""

    about: str
    x_name: str
    chargings: tuple[Charging, ...]
    xs: tuple[float, ...]
    quick_xs: tuple[float, ...]
    points: Callable[[Setup, Sequence[Charging], Sequence[float]], Iterator[Point]]


EXPERIMENTS: dict[str, Experiment] = {
    "delay": Experiment(
        "scheduling delay and completion of 60, 120, 180 jobs at once (figure 6)",
        "jobs at once",
        ("measured", "scaled", "choice-bound"),
        PAPER_JOBS,
        PAPER_JOBS,
        _delay,
    ),
    "saturated": Experiment(
        "scheduling delay of jobs at once where every slot is taken: all of them wait at nodes",
        "jobs at once",
        ("measured",),
        PAPER_JOBS,
        PAPER_JOBS[-1:],
        _saturated,
    ),
    "order": Experiment(
        "the same if the master took in reports of nodes only when nothing else waited",
        "jobs at once",
        ("scaled", "choice-bound"),
        PAPER_JOBS,
        PAPER_JOBS[-1:],
        _order,
    ),
    "load": Experiment(
        "scheduling delay as jobs arrive up to 10 times as fast (figure 7a)",
        "arrival rate, times 60 jobs/s",
        ("scaled", "choice-bound"),
        (1, 4, 7, 10),
        (10,),
        _load,
    ),
    "schedulers": Experiment(
        "scheduling delay of 180 jobs at once with 1 to 32 schedulers (figure 7b)",
        "schedulers (0: centralised)",
        ("scaled", "choice-bound"),
        (1, 2, 4, 6, 8, 16, 32),
        (1, 6, 32),
        _schedulers,
    ),
    "conflicts": Experiment(
        "conflicts of 1 to 32 schedulers where 180 jobs at once fill the cluster to the last slot",
        "schedulers (0: centralised)",
        ("scaled",),
        (1, 6, 16, 32),
        (6,),
        _conflicts,
    ),
    "mixed": Experiment(
        "delay of streams among 300 batch jobs/s: lease on all, on candidates, or none",
        "streams a second",
        ("scaled", "choice-bound"),
        (30, 600),
        (600,),
        _mixed,
    ),
}


def points_of(name: str, *, quick: bool = False, base: Setup | None = None) -> list[Point]:
    """The points of an experiment.

    Raises:
        InvalidRequest: there is none of that name.
    """
    experiment = EXPERIMENTS.get(name)
    if experiment is None:
        known = ", ".join(EXPERIMENTS)
        raise InvalidRequest(f"no experiment {name!r}; name one of {known}")
    xs = experiment.quick_xs if quick else experiment.xs
    return list(experiment.points(base or Setup(), experiment.chargings, xs))


def calibrated(charging: Charging, base: Setup | None = None) -> CostModel:
    """The cost model of a way of charging; others are fitted to the paper's 50 ms."""
    return Measured() if charging == "measured" else _fitted(charging, base or Setup())


@functools.cache
def _fitted(charging: Charging, base: Setup) -> Fixed:
    costs = REFERENCE if charging == "scaled" else _choice_bound(REFERENCE)
    setup, jobs = replace(base, schedulers=0), burst(PAPER_JOBS[0], 0)

    def delay_s(factor: float) -> float:
        result = simulate(setup, costs.scaled(factor), jobs, to_completion=False)
        return result.values()["delay_ms"] / 1e3

    # The delay is linear in the costs except for network and heartbeats, so the secant converges.
    low, high = 0.5, 1.0
    low_s, high_s = delay_s(low), delay_s(high)
    for _ in range(_FIT_STEPS):
        factor = low + (PAPER_DELAY_S - low_s) * (high - low) / (high_s - low_s)
        found_s = delay_s(factor)
        if abs(found_s - PAPER_DELAY_S) < _FIT_WITHIN * PAPER_DELAY_S:
            break
        low, low_s, high, high_s = high, high_s, factor, found_s
    return costs.scaled(factor)


def _choice_bound(costs: Fixed) -> Fixed:
    """The same costs, with rounds that are ``CHOICE_SHARE`` of what a job of the paper costs."""
    one = TASKS_A_JOB
    serial_s = sum(costs.charge_s(kind, one, 0.0) for kind in (Kind.REQUEST, Kind.COMMIT))
    serial_s += one * costs.charge_s(Kind.REPORT, 1, 0.0)
    choice_s = serial_s * CHOICE_SHARE / (1 - CHOICE_SHARE)
    return costs.scaled(choice_s / costs.charge_s(Kind.ROUND, one, 0.0), (Kind.ROUND,))


def run_points(
    points: Sequence[Point],
    *,
    seed: int = 0,
    runs: int = 7,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Each point with ``runs`` seeds from ``seed`` on, in turns; one JSON object per point.

    ``figures`` of the object holds the means and intervals over the runs, ``runs`` every run's.
    """
    found: list[list[dict[str, float]]] = [[] for _ in points]
    if any(point.charging == "measured" for point in points):
        warm = points[0]
        simulate(warm.setup, Measured(), warm.plan(seed), to_completion=False)
    for number in range(runs):
        order = range(len(points)) if number % 2 == 0 else reversed(range(len(points)))
        for index in order:
            point = points[index]
            costs = calibrated(point.charging, Setup(nodes=point.setup.nodes))
            result = simulate(
                point.setup, costs, point.plan(seed + number), to_completion=point.to_completion
            )
            found[index].append(result.values())
        on_progress(f"run {number + 1} of {runs}")
    return [
        {
            "system": point.system,
            "charging": point.charging,
            "x": point.x,
            "figures": {name: each.as_json() for name, each in summary(runs_of).items()},
            "runs": {name: [run[name] for run in runs_of] for name in runs_of[0]},
        }
        for point, runs_of in zip(points, found, strict=True)
    ]


def work_of(points: Sequence[Point], *, seed: int = 0) -> list[dict[str, Any]]:
    """What each kind of work takes of the processor, one object for each point and kind.

    Virtual time has fixed costs here, whatever ``charging`` a point has, so two revisions of the
    core have the same schedule to work through, and can be compared.
    """
    rows = []
    for point in points:
        costs = calibrated("scaled", Setup(nodes=point.setup.nodes))
        cluster = TimedCluster(point.setup, costs, point.plan(seed))
        cluster.run(to_completion=False)
        for kind, used_s in sorted(cluster.tally.used_s.items(), key=lambda pair: -pair[1]):
            events = cluster.tally.events[kind]
            rows.append(
                {
                    "system": point.system,
                    "x": point.x,
                    "kind": kind.value,
                    "events": events,
                    "used_ms": round(1e3 * used_s, 3),
                    "event_ms": round(1e3 * used_s / events, 4),
                }
            )
    return rows


def ratios(
    rows: Sequence[dict[str, Any]], ours: str, peer: str = CENTRALISED, figure: str = "delay_ms"
) -> dict[tuple[str, float], Interval]:
    """(charging, x) → the ratio of ``figure``, ours over the peer's, run by run of one seed."""
    by_key = {(row["system"], row["charging"], row["x"]): row["runs"] for row in rows}
    found = {}
    for (system, charging, x), runs in by_key.items():
        peers = by_key.get((peer, charging, x))
        if system == ours and peers:
            pairs = zip(runs[figure], peers[figure], strict=True)
            found[charging, x] = interval([mine / its for mine, its in pairs])
    return found
