"""Runs of the pipeline experiments: a setting, a seed, and the policy pairs to run on them.

A *pair* is written ``cluster+node``, as in ``ect+pats``. All pairs of a setting and seed run in one
process on the same arrivals. Every run is checked against its bound; one above it is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hrm
from benchmarks.paired_runs import run_kept, version_of
from benchmarks.pipelines.fluid_bound import Fluid
from benchmarks.pipelines.measured_run import simulate
from benchmarks.pipelines.run_measures import Result
from hrm.pipelines.sim import profiles as tables
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.scenario import APPLICATIONS, Change, Scenario, Work, arrivals, workers

__all__ = ["TEST_FIRST", "Job", "Run", "Setting", "bound_of", "run_all", "run_of", "scenario_of"]

TEST_FIRST = 1_000
"""The first of the seeds that results are measured on."""

JOIN_S, LEAVE_S = 600.0, 1_200.0
_HRM = Path(hrm.__file__).parent
_SIMULATED = (
    *(_HRM / name for name in ("core/vocabulary", "pipelines", "policies", "runtime")),
    Path(__file__).parents[1] / "pipelines",
    Path(__file__),
)
"""The code, tables and weights that a run depends on."""
_TASK_COUNTS = (50, 100, 200, 400, 700, 1_000, 1_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The input of a run, except its seed. ``x``: what its figure is plotted over."""

    name: str
    x: float
    rate_per_min: float = 60.0
    tasks: int = 1_500
    nodes: int = 11
    world: str = "measured"
    size_mb: float | None = None
    applications: tuple[str, ...] | None = None
    changes: bool = False
    known: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A setting, a seed, the pairs; ``weights``: where models are, None for the shipped ones."""

    setting: Setting
    seed: int
    pairs: tuple[str, ...]
    profiles: Path | None
    weights: Path | None


@dataclass(slots=True)
class Run:
    """Figures of one run; ``series``: tasks that ended in each minute; ``balance``: (tasks, degree,
    mean load) up to the arrival of so many tasks."""

    setting: Setting
    seed: int
    pair: str
    values: dict[str, float]
    series: list[int]
    balance: list[tuple[int, float, float]]
    log_hash: str
    seconds: float


@functools.lru_cache(maxsize=4)
def _table(path: Path | None) -> tables.MeasuredPipelines:
    return tables.load(path)


def scenario_of(setting: Setting, seed: int, profiles: Path | None) -> Scenario:
    """The scenario of a setting. With ``changes``: three workers join, later two leave."""
    every = workers(setting.nodes)
    changes: tuple[Change, ...] = ()
    if setting.changes:
        more = workers(setting.nodes + 3)[setting.nodes :]
        changes = (
            *(Change(JOIN_S, "join", one) for one in more),
            *(Change(LEAVE_S, "leave", one) for one in every[1:3]),
        )
    table = _table(profiles)
    return Scenario(
        profiles=table,
        applications=setting.applications or APPLICATIONS,
        rate_per_min=setting.rate_per_min,
        tasks=setting.tasks,
        workers=every,
        changes=changes,
        world=setting.world,
        size_mb=setting.size_mb,
        seed=seed,
    )


@functools.lru_cache(maxsize=64)
def bound_of(
    world: str,
    nodes: int,
    size_mb: float | None,
    applications: tuple[str, ...] | None,
    changes: bool,
    profiles: Path | None,
) -> Fluid:
    """The fluid bound of a cluster and a mix; the same for all rates and seeds."""
    setting = Setting(
        name="bound", x=0, world=world, nodes=nodes, size_mb=size_mb,
        applications=applications, changes=changes, tasks=1,
    )  # fmt: skip
    return Fluid(scenario_of(setting, 0, profiles))


def _fluid(setting: Setting, profiles: Path | None) -> Fluid:
    return bound_of(
        setting.world, setting.nodes, setting.size_mb, setting.applications, setting.changes,
        profiles,
    )  # fmt: skip


def _do(job: Job) -> list[Run]:
    scenario = scenario_of(job.setting, job.seed, job.profiles)
    work = arrivals(scenario)
    fluid = _fluid(job.setting, job.profiles)
    most = fluid.throughput_max(work)
    found = []
    for pair in job.pairs:
        cluster, _, node = pair.partition("+")
        began = time.process_time()
        made = policies(cluster, node, scenario, weights=job.weights, known=job.setting.known)
        result = simulate(scenario, made, work)
        assert result.throughput() <= most + 1e-6, (
            f"{pair}, seed {job.seed}: {result.throughput():.2f} tasks/min, above the bound "
            f"{most:.2f}: the simulator is wrong"
        )
        result.bound = min(fluid.rate_per_min, result.arrival_cap)
        run = run_of(job.setting, job.seed, pair, result, work)
        run.values["fluid_bound"] = fluid.rate_per_min
        run.values["of_bound"] = result.throughput() / result.bound
        run.seconds = time.process_time() - began
        found.append(run)
    return found


def run_of(setting: Setting, seed: int, pair: str, result: Result, work: Work) -> Run:
    """The figures of ``result``."""
    return Run(
        setting=setting,
        seed=seed,
        pair=pair,
        values=result.values(),
        series=_series(result),
        balance=_balance(result, work.arrives_s),
        log_hash=result.log_hash,
        seconds=0.0,
    )


def _series(result: Result) -> list[int]:
    minutes = [int(at_s // 60.0) for at_s, *_ in result.ended if at_s <= result.arrived_s]
    return np.bincount(minutes, minlength=int(result.arrived_s // 60.0)).tolist()  # type: ignore[no-any-return]


def _balance(result: Result, arrives_s: Sequence[float]) -> list[tuple[int, float, float]]:
    return [
        (count, *result.balance_until(arrives_s[count - 1]))
        for count in _TASK_COUNTS
        if count <= len(arrives_s)
    ]


def run_all(
    jobs: Sequence[Job],
    *,
    processes: int,
    on_progress: Callable[[str], None],
    kept: Path | None = None,
) -> Iterator[Run]:
    """All runs of all jobs, in the order of the jobs; see ``paired_runs.run_kept``."""
    found = run_kept(
        jobs,
        _do,
        key=_key,
        dump=lambda runs: [dataclasses.asdict(run) for run in runs],
        load=lambda held: [_run(one) for one in held],
        processes=processes,
        kept=kept,
    )
    for done, runs in enumerate(found, 1):
        first = runs[0]
        on_progress(
            f"{done} of {len(jobs)}: {first.setting.name} {first.setting.x:g}, seed {first.seed}, "
            f"{len(runs)} pairs, {sum(run.seconds for run in runs):.0f} s"
        )
        yield from runs


def _key(job: Job) -> str:
    given = [path for path in (job.profiles, job.weights) if path is not None]
    return f"{version_of(*_SIMULATED, *given)} {job!r}"


def _run(held: dict[str, Any]) -> Run:
    setting = dict(held.pop("setting"))
    if setting["applications"] is not None:
        setting["applications"] = tuple(setting["applications"])
    balance = [(int(count), degree, load) for count, degree, load in held.pop("balance")]
    return Run(setting=Setting(**setting), balance=balance, **held)
