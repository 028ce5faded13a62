"""Which waiting jobs share a GPU: the DqnGPU paper's workloads, against honest baselines.

    python -m benchmarks.paper.dqngpu --data DIR            # writes results/paper-dqngpu.*
    python -m benchmarks.paper.dqngpu --data DIR --quick --json FILE

Thirty jobs of five workloads on one GPU in virtual time, where what shares it is slowed down as
pairs were measured (Gavel's data; without it there is nothing to do), and where it is not. Headroom
comes first: what an oracle that knows every slowdown finds, against packed SJF with true profiles.
Policies are trained on generated applications and generated slowdowns, frozen, and compared on
these. Source: Oh and Kim, Cluster Computing 2020, figures 7 to 10 and table 4.

In the JSON, by workload with measured pairs: ``makespan_gain``, by how much ``dqngpu-ddqn``, mean
of its trainings, is shorter than packed SJF, with its 95 % interval over sets of jobs, and
``share_of_headroom``, that gain over the oracle's; ``..._pairs`` are the same for the same networks
that are also given the slowdowns of pairs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import CONSOLE, note
from benchmarks.fairness import measured
from benchmarks.paper.dqngpu_methods import (
    REFERENCE,
    Method,
    figures_of,
    methods,
    trained_gradients,
    trained_models,
)
from benchmarks.paper.dqngpu_report import body_of
from benchmarks.paper.dqngpu_search import Ordered, best_order, lower_bound, simulate
from benchmarks.paper.dqngpu_workloads import JOBS, POOLS, TICK_S, Kinds, job_set, kinds_of
from benchmarks.simulation.figures import interval
from hrm.learn.dqngpu import DqnGpuArgs
from hrm.learn.dqngpu_pg import PolicyGradientArgs
from hrm.learn.gpu_interference import AdditiveOverload, GpuInterference, NoInterference
from hrm.policies.shared_gpu.profiles import CapacityRule

__all__ = ["Size", "main", "measure", "summarised"]

DATA = Path("../shared/data/gavel")
FIRST_SEED = 1_000
"""Of the sets of jobs that are measured; those before were looked at while this was written."""
WORLDS = ("pairs", "none")
VARIATIONS = ("arrivals at 70 % load", "noisy profiles", "aligned memory", "limits 1.5, overload",
              "limits 1.5", "least factor", "k80")  # fmt: skip
VARIED = ("sjf", REFERENCE, "ljf-packed", "tetris", "fastest-together", "dqngpu-ddqn",
          "dqngpu-ddqn, pairs")  # fmt: skip
KEPT = ("makespan_s", "slowdown_mean", "slowdown_p95", "failures")
ORACLE, PLANNED = "oracle", "search on profiles"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. ``tries``: schedules of each search."""

    sets: int = 10
    jobs: int = JOBS
    tries: int = 50
    trainings: tuple[DqnGpuArgs, ...] = tuple(DqnGpuArgs(seed=seed) for seed in range(3))
    gradients: tuple[PolicyGradientArgs, ...] = (PolicyGradientArgs(seed=0),)
    workloads: tuple[str, ...] = tuple(POOLS)
    varied: tuple[str, ...] = ("memory_light", "random")


QUICK = Size(
    sets=2,
    tries=30,
    trainings=(DqnGpuArgs(start_sets=10, start_steps=400, steps=0, validate_every=1),),
    gradients=(PolicyGradientArgs(start_sets=4, start_steps=50, iterations=2, sets=1),),
    workloads=("memory_light", "random"),
    varied=("random",),
)


def _world(name: str, kinds: Kinds) -> GpuInterference:
    return kinds.world() if name == "pairs" else NoInterference()


def measure(kinds: Kinds, compared: Sequence[Method], size: Size) -> dict[str, Any]:
    """By world, workload and method the runs: figures of each set of jobs and training.

    The oracle is the best that the search or any method has found for a set.
    """
    rule = CapacityRule()
    found: dict[str, Any] = {}
    for world_name in WORLDS:
        world = _world(world_name, kinds)
        for workload in size.workloads:
            runs: dict[str, list[dict[str, Any]]] = {}
            for seed in range(FIRST_SEED, FIRST_SEED + size.sets):
                jobs = job_set(workload, seed, kinds, jobs=size.jobs)
                _measure_set(runs, compared, jobs, world, kinds, rule, seed)
                _search_set(runs, jobs, world, rule, size.tries, seed)
            found.setdefault(world_name, {})[workload] = runs
            note(f"{world_name}: {workload}")
    return found


def _measure_set(
    runs: dict[str, list[dict[str, Any]]],
    compared: Sequence[Method],
    jobs: Any,
    world: GpuInterference,
    kinds: Kinds,
    rule: CapacityRule,
    seed: int,
) -> None:
    pairs = kinds.world() if not isinstance(world, NoInterference) else None
    for method in compared:
        # Where nothing slows down, pairs say nothing.
        if method.knows == "pairs" and pairs is None:
            continue
        run = method.run(jobs, world, rule, pairs)
        figures = {"seed": seed, "training": method.training, **figures_of(run)}
        runs.setdefault(method.name, []).append(figures)


def _search_set(
    runs: dict[str, list[dict[str, Any]]],
    jobs: Any,
    world: GpuInterference,
    rule: CapacityRule,
    tries: int,
    seed: int,
) -> None:
    bound = TICK_S * lower_bound(jobs, rule)
    order: tuple[int, ...] = ()
    strict = False
    for name, knows in ((ORACLE, world), (PLANNED, NoInterference())):
        if name == ORACLE or not isinstance(world, NoInterference):
            order, strict, _ = best_order(jobs, knows, rule, tries=tries, seed=seed)
        figures = figures_of(simulate(jobs, Ordered(order, strict=strict), world, rule))
        runs.setdefault(name, []).append(
            {"seed": seed, "training": -1, "bound_s": bound, **figures}
        )
    all_of_set = [each["makespan_s"] for held in runs.values() for each in held
                  if each["seed"] == seed]  # fmt: skip
    assert min(all_of_set) >= bound - 1e-6, "a makespan is below its bound"
    runs[ORACLE][-1]["makespan_s"] = min(all_of_set)


def vary(kinds: Kinds, slower: Kinds, compared: Sequence[Method], size: Size) -> dict[str, Any]:
    """The same without searches, where one thing is different."""
    chosen = [method for method in compared if method.name in VARIED]
    found: dict[str, Any] = {}
    for name in VARIATIONS:
        of = slower if name == "k80" else kinds
        world: GpuInterference = of.world("min" if name == "least factor" else "product")
        rule = CapacityRule()
        if name.startswith("limits"):
            rule = CapacityRule((1.5, 1.0, 1.5, 1.5))
            world = AdditiveOverload() if name.endswith("overload") else world
        elif name == "aligned memory":
            rule = CapacityRule(memory="aligned")
        load = 0.7 if name.startswith("arrivals") else None
        noise = name == "noisy profiles"
        for workload in size.varied:
            runs: dict[str, list[dict[str, Any]]] = {}
            for seed in range(FIRST_SEED, FIRST_SEED + size.sets):
                jobs = job_set(workload, seed, of, jobs=size.jobs, load=load, noise=noise)
                _measure_set(runs, chosen, jobs, world, of, rule, seed)
            found.setdefault(name, {})[workload] = runs
        note(f"variation: {name}")
    return found


def by_set(runs: Sequence[dict[str, Any]], figure: str) -> dict[int, float]:
    """A figure of each set of jobs, the mean of its trainings."""
    held: dict[int, list[float]] = {}
    for each in runs:
        held.setdefault(each["seed"], []).append(float(each[figure]))
    return {seed: statistics.fmean(values) for seed, values in held.items()}


def gains_of(runs: dict[str, list[dict[str, Any]]], name: str) -> list[float]:
    """By how much a method's makespan is shorter than packed SJF's, for each set of jobs."""
    ours, theirs = by_set(runs[name], "makespan_s"), by_set(runs[REFERENCE], "makespan_s")
    return [1.0 - ours[seed] / theirs[seed] for seed in sorted(ours)]


def summarised(by_workload: dict[str, Any]) -> dict[str, Any]:
    """The headline: gains and shares of the headroom, by workload."""
    found: dict[str, Any] = {}
    for suffix, name in (("", "dqngpu-ddqn"), ("_pairs", "dqngpu-ddqn, pairs")):
        for workload, runs in by_workload.items():
            if name not in runs:
                continue
            gain, oracle = gains_of(runs, name), gains_of(runs, ORACLE)
            headroom = statistics.fmean(oracle)
            share = statistics.fmean(gain) / headroom if headroom > 0.005 else None
            found.setdefault(f"makespan_gain{suffix}", {})[workload] = interval(gain).as_json()
            found.setdefault(f"share_of_headroom{suffix}", {})[workload] = share
            found.setdefault("headroom", {})[workload] = interval(oracle).as_json()
            failures = [each["failures"] for each in runs[name]]
            found.setdefault(f"out_of_memory{suffix}", {})[workload] = sum(failures)
            held = np.mean([each["classes"] for each in runs[name]], axis=0)
            found.setdefault(f"not_slowed{suffix}", {})[workload] = float(held[0])
    return found


def columns_of(found: dict[str, Any]) -> dict[str, Any]:
    """What a file keeps of the runs: figures of all sets and trainings, by method."""
    return {
        outer: {
            workload: {
                name: {
                    figure: [round(each[figure], 3) for each in held]
                    for figure in ("seed", "training", *KEPT)
                }
                for name, held in runs.items()
            }
            for workload, runs in by_workload.items()
        }
        for outer, by_workload in found.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Train, measure, print and write; exit status 2 where the data is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper.dqngpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    common.add_common_arguments(parser)
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR",
        help="the folder that has Gavel's measurements (default: %(default)s)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        pairs = measured.load(args.data)
    except FileNotFoundError as error:
        CONSOLE.print(
            f"no {error.filename}: slowdowns are not made up here; pass --data with the folder "
            "that has Gavel's measurements"
        )
        return 2
    size = QUICK if args.quick else Size()
    kinds, slower = kinds_of(pairs), kinds_of(pairs, "k80")
    models = trained_models(size.trainings, args.cache_dir / "dqngpu")
    compared = methods(models, trained_gradients(size.gradients, CapacityRule()))
    by_world = measure(kinds, compared, size)
    varied = vary(kinds, slower, compared, size)
    document = {
        "benchmark": "paper.dqngpu",
        "provenance": common.provenance("benchmarks.paper.dqngpu", ["numpy", "torch"]),
        **summarised(by_world["pairs"]),
        "sets": size.sets,
        "jobs": size.jobs,
        "tries": size.tries,
        "trained": [
            {
                "command": m.meta["command"],
                "trials": m.meta["trials"],
                "trained_s": m.meta["trained_s"],
            }
            for m in models
        ],
        "trained_s": {m.name: m.trained_s for m in compared if m.training >= 0},
        "runs": by_world,
        "variations": varied,
    }
    body = body_of(document)
    CONSOLE.print(body, markup=False)
    kept = {**document, "runs": columns_of(by_world), "variations": columns_of(varied)}
    if args.json is not None:
        common.write_json(args.json, kept)
    if not args.quick:
        title = "Which waiting jobs share a GPU: DqnGPU's workloads"
        for path in common.write_results("paper-dqngpu", title, kept, body):
            note(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
