"""LDWP + IAWP against all there is without learning, at equal node policy and under overload.

    python -m benchmarks.paper.ldwp [--quick] [--json FILE] [--seeds 10] [--runs FILE]
                                    [--only cells,cold,overload,pairs,published,source]

- ``cells``: cores 2, 4, 16, by length of tasks 3, 12, 48, 192, at 0.8 of the fluid bound, node
  policy ``mct``: does ``ldwp-set`` decide, and is it better than the best heuristic of the cell, in
  hindsight? Tasks arrive for ten times the 95th percentile of response of the slowest pair, which a
  pilot run on a validation seed estimates.
- ``cold``: three of the cells from the first task on, when nothing has been measured yet.
- ``overload``: an hour at 1.5 times the fluid bound of four nodes, against ``ect+min-min``.
- ``pairs``: every cluster policy with every node policy, where interference matters; the co-run
  oracle first, which says what there is to gain.
- ``published``: what the source compares, Random, ECT and PATS, at 10 to 120 tasks a minute.
- ``source``: its reward (``delta``) and its features (table 1), as they are.

Weights are frozen and were trained on seeds 0 to 99; these are 1000 and up. ``--runs FILE`` keeps
every run and goes on where it was stopped; what another version of the code has found is not used.
The figures of the paper are ``benchmarks.paper.ldwp_figures``.

Source: LDWP + IAWP, sections 4 to 6.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import hrm
from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.paired_runs import run_kept, version_of
from benchmarks.paper.ldwp_cases import (
    VALIDATION_SEED,
    Case,
    Found,
    Window,
    run_case,
    scenario_of,
    window_of,
)
from benchmarks.paper.ldwp_document import LEARNED, NODE_POLICIES, ORACLES, document_of
from benchmarks.paper.ldwp_summary import report
from benchmarks.pipelines.measured_run import simulate
from benchmarks.simulation.figures import interval
from hrm.pipelines.policies import cluster as cluster_policies
from hrm.pipelines.policies import corun
from hrm.pipelines.sim.policies import policies
from hrm.policies import model_files

__all__ = ["cases_of", "cells_of", "main"]

TEST_FIRST = 1_000
CORES, TIME_SCALES = (2, 4, 16), (3.0, 12.0, 48.0, 192.0)
HEURISTICS = ("least-loaded", "min-wait", "ect")
COLD = ((2, 12.0), (4, 12.0), (16, 3.0))
DEFAULT_PAIR = f"{cluster_policies.HEURISTIC}+{corun.HEURISTIC}"
LEARNED_PAIR = f"{LEARNED}+{corun.HEURISTIC}"
RIVAL = "ect+min-min"
WORLDS = ("measured", "measured-mps")
PUBLISHED = ("random+random", "ect+mct", "demand+pats", f"{LEARNED}+iawp:cosine")
PUBLISHED_RATES = (10.0, 20.0, 40.0, 60.0, 90.0, 120.0)
EXPERIMENTS = ("cells", "cold", "overload", "pairs", "published", "source")
HEADLINE = ("cells", "cold", "overload")
"""Without these nothing is written to the results."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent: seeds of each experiment, tasks of a cell's pilot run and the most that a cell
    may have, tasks of a cold cell, minutes of overload."""

    cells: int
    cold: int
    overload: int
    pairs: int
    published: int
    pilot_tasks: int
    tasks_most: int
    cold_tasks: int
    minutes: float
    pair_tasks: int
    published_tasks: int
    scales: Sequence[float]
    cores: Sequence[int]
    source_decisions: int


FULL = Plan(
    cells=10, cold=10, overload=10, pairs=3, published=2, pilot_tasks=300, tasks_most=4_000,
    cold_tasks=300, minutes=60.0, pair_tasks=250, published_tasks=300, scales=TIME_SCALES,
    cores=CORES, source_decisions=1_500,
)  # fmt: skip
QUICK = Plan(
    cells=2, cold=1, overload=1, pairs=1, published=1, pilot_tasks=30, tasks_most=80,
    cold_tasks=40, minutes=6.0, pair_tasks=20, published_tasks=40, scales=(12.0,), cores=(2, 4),
    source_decisions=300,
)  # fmt: skip


_HRM = Path(hrm.__file__).parent
_BENCHMARKS = Path(__file__).parents[1]
SIMULATED = (
    *(_HRM / name for name in ("core/vocabulary", "pipelines", "policies", "runtime")),
    _BENCHMARKS / "pipelines",
    _BENCHMARKS / "paper" / "ldwp_cases.py",
)
"""The code, tables and weights that a run depends on."""


class Job(NamedTuple):
    """A case and a seed."""

    case: Case
    seed: int


def _cell(cores: int, scale: float, tasks: int) -> Case:
    pairs = tuple(f"{name}+{corun.HEURISTIC}" for name in (*HEURISTICS, LEARNED))
    return Case(
        experiment="cells", name=f"{cores} cores, time x {scale:g}", pairs=pairs, tasks=tasks,
        cores=cores, time_scale=scale, load=0.8,
    )  # fmt: skip


def cells_of(plan: Plan) -> list[Case]:
    """The cells of the plan, with as many tasks as their pilot runs."""
    return [_cell(cores, scale, plan.pilot_tasks) for cores in plan.cores for scale in plan.scales]


def cases_of(
    plan: Plan, only: Sequence[str], tasks: Mapping[str, int] | None = None
) -> list[tuple[Case, int]]:
    """Every case, with its number of seeds. ``tasks``: of each cell, by name; None: the most."""
    found: list[tuple[Case, int]] = []
    if "cells" in only:
        found += [
            (replace(cell, tasks=tasks[cell.name] if tasks else plan.tasks_most), plan.cells)
            for cell in cells_of(plan)
        ]
    if "cold" in only:
        warm = [_cell(cores, scale, plan.cold_tasks) for cores, scale in COLD]
        found += [
            (
                replace(cell, experiment="cold", name=f"{cell.name}, cold", known=False),
                plan.cold,
            )
            for cell in warm
            if cell.cores in plan.cores
        ]
    if "overload" in only:
        # Four of the paper's nodes can do 32 tasks a minute.
        case = Case(
            experiment="overload", name="four nodes at 1.5 x", tasks=round(48 * plan.minutes),
            pairs=(RIVAL, DEFAULT_PAIR, LEARNED_PAIR), load=1.5,
        )  # fmt: skip
        found.append((case, plan.overload))
    if "pairs" in only:
        names = (*(name for name in cluster_policies.HEURISTICS if name != "min-min"), LEARNED)
        pairs = tuple(f"{name}+{node}" for node in NODE_POLICIES for name in names)
        pairs += tuple(f"ect+{node}" for node in ORACLES)
        found += [
            (
                Case(
                    experiment="pairs", name=f"world {world}, 2 cores{cold}", pairs=pairs,
                    tasks=plan.pair_tasks, cores=2, time_scale=48.0, load=0.8, world=world,
                    known=not cold,
                ),
                plan.pairs,
            )
            for world, cold in (*((world, "") for world in WORLDS), ("measured", ", cold"))
        ]  # fmt: skip
    if "published" in only:
        found += [
            (
                Case(
                    experiment="published", name=f"{rate:g}/min", pairs=PUBLISHED, nodes=11,
                    tasks=plan.published_tasks, rate_per_min=rate,
                ),
                plan.published,
            )
            for rate in PUBLISHED_RATES
        ]  # fmt: skip
    return found


def _key(job: Job) -> str:
    return f"{version_of(*SIMULATED)} {job!r}"


def _run(job: Job) -> list[Found]:
    return run_case(job.case, job.seed)


def _runs(jobs: Sequence[Job], given: argparse.Namespace) -> list[Found]:
    runs: list[Found] = []
    made = run_kept(
        jobs, _run, key=_key, processes=given.processes, kept=given.runs,
        dump=lambda several: [dataclasses.asdict(one) for one in several],
        load=lambda held: [Found(**one) for one in held],
    )  # fmt: skip
    for job, several in zip(jobs, made, strict=True):
        CONSOLE.print(f"{job.case.experiment}: {job.case.name}, seed {job.seed}")
        runs += several
    return runs


def _windows(plan: Plan, given: argparse.Namespace) -> list[Window]:
    """How long tasks have to arrive in each cell, by a pilot run."""
    pilots = [replace(cell, experiment="pilot") for cell in cells_of(plan)]
    runs = _runs([Job(pilot, VALIDATION_SEED) for pilot in pilots], given)
    return [window_of(pilot, runs, tasks_most=plan.tasks_most) for pilot in pilots]


def _source(plan: Plan, seeds: int) -> list[dict[str, Any]]:
    """The source's own reward and features: trained once, and measured at 50 a minute."""
    from hrm.learn.ldwp import Args, train

    case = Case(
        experiment="source", name="50/min", pairs=(), nodes=11, tasks=plan.published_tasks,
        rate_per_min=50.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="hrm-") as folder:
        args = Args(
            options=f"nodes=11,tasks={plan.published_tasks}", out=Path(folder) / "ldwp-1.npz",
            features="paper", reward="delta", target="dqn", loss="squared", clip=1e9,
            pretrain_decisions=plan.source_decisions, decisions=plan.source_decisions,
            validate_every=plan.source_decisions, validation_seeds=2,
        )  # fmt: skip
        train(args)
        model = model_files.read(args.out, kind="ldwp")
    rows = []
    for name in ("random", "ldwp", "ect"):
        slowdowns, throughputs = [], []
        for number in range(seeds):
            scenario = scenario_of(case, TEST_FIRST + number)
            policy = None
            if name == "ldwp":
                policy = cluster_policies.load("ldwp", rng=_rng(), model=model, guarded=False)
            result = simulate(scenario, policies(name, "mct", scenario, policy=policy))
            values = result.values()
            slowdowns.append(values["slowdown"])
            throughputs.append(values["throughput"])
        rows.append(
            {
                "policy": "ldwp, delta, table 1" if name == "ldwp" else name,
                "slowdown": interval(slowdowns).as_json(),
                "throughput": interval(throughputs).as_json(),
            }
        )
    return rows


def _rng() -> Any:
    import numpy as np

    return np.random.default_rng(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.ldwp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--seeds", type=int, default=0, help="test seeds of each case")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, help="keep runs in this file, and go on from it")
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="experiments, by name")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write; the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    only = [name.strip() for name in given.only.split(",") if name.strip()]
    if not only or not set(only) <= set(EXPERIMENTS):
        parser.error(f"--only {given.only}: name some of {', '.join(EXPERIMENTS)}")
    plan = QUICK if given.quick else FULL
    windows = _windows(plan, given) if "cells" in only else []
    cases = cases_of(plan, only, {one.case: one.tasks for one in windows})
    jobs = [
        Job(case, TEST_FIRST + number)
        for case, seeds in cases
        for number in range(given.seeds or seeds)
    ]
    runs = _runs(jobs, given)
    document = {
        "benchmark": "ldwp",
        "provenance": common.provenance("benchmarks.paper.ldwp", ["numpy", "scipy"]),
        **document_of(runs, [case for case, _ in cases], windows),
        "experiments": only,
    }
    if "source" in only:
        document["source"] = _source(plan, given.seeds or plan.published)
    body = report(document)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not (given.quick or given.seeds) and set(HEADLINE) <= set(only):
        title = "LDWP + IAWP: learned placement against all heuristics, at equal node policy"
        for path in common.write_results("paper-ldwp", title, document, body):
            CONSOLE.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
