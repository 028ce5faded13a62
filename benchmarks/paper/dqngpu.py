"""Which waiting jobs share a GPU: the DqnGPU paper's workloads, against honest baselines.

    python -m benchmarks.paper.dqngpu --data DIR            # writes results/paper-dqngpu.*
    python -m benchmarks.paper.dqngpu --data DIR --quick --json FILE

Thirty jobs of five workloads on one GPU in virtual time, where what shares it is slowed down as
pairs were measured (Gavel's data; without it there is nothing to do), and where it is not. Headroom
comes first: what an oracle that knows every slowdown finds, against packed SJF with true profiles.
Policies are trained on generated applications and generated slowdowns, frozen, and compared on
these. Source: Oh and Kim, Cluster Computing 2020, figures 7 to 10 and table 4.

In the JSON, by workload with measured pairs: ``makespan_gain``, by how much the policy that
``ships`` (looking ahead, with slowdowns of pairs known) is shorter than packed SJF, with its 95 %
interval over sets of jobs, and ``share_of_headroom``, the sum of its gains over that of the
oracle's, with a bootstrap's interval over sets in ``share_of_headroom_interval``; None where the
oracle gains less than half a percent. ``..._learned`` and ``..._learned_pairs`` are the same of
``dqngpu-ddqn`` by itself, mean of its trainings, without and with known slowdowns of pairs,
``..._guarded`` and ``..._guarded_pairs`` as it would be in use, behind its guard. ``decision_ms``
is the processor time of each decision of what ships.
"""

from __future__ import annotations

import argparse
import math
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
    JOIN_GAINS,
    LEARNED,
    REFERENCE,
    SHIPS,
    Method,
    Timed,
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
from hrm.learn.shared_gpu import SimulatedGpuJob
from hrm.policies.shared_gpu.interference import (
    AdditiveOverload,
    GpuInterference,
    NoInterference,
    PairFactors,
)
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.policies.shared_gpu.profiles import CapacityRule

__all__ = ["Size", "decision_times", "main", "measure", "share_of", "summarised", "unslowed"]

DATA = Path("../shared/data/gavel")
FIRST_SEED = 1_000
"""Of the sets of jobs that are measured; those before were looked at while this was written."""
WORLDS = ("pairs", "none")
VARIATIONS = ("arrivals at 70 % load", "noisy profiles", "aligned memory", "limits 1.5, overload",
              "limits 1.5", "least factor", "k80")  # fmt: skip
VARIED = ("sjf", REFERENCE, "ljf-packed", "tetris", "fastest-together", SHIPS, LEARNED,
          f"{LEARNED}, pairs")  # fmt: skip
KEPT = ("makespan_s", "slowdown_mean", "slowdown_p95", "failures")
ORACLE, PLANNED = "oracle", "search on profiles"
REPORTED = (
    ("", SHIPS),
    ("_learned", LEARNED),
    ("_learned_pairs", f"{LEARNED}, pairs"),
    ("_guarded", f"{LEARNED} guarded"),
    ("_guarded_pairs", f"{LEARNED} guarded, pairs"),
)
HEADROOM_LEAST = 0.005
RESAMPLES = 10_000
Share = tuple[float, float, float]
"""A share, and the limits of its interval."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. ``tries``: schedules of each search."""

    sets: int = 10
    jobs: int = JOBS
    tries: int = 1_000
    trainings: tuple[DqnGpuArgs, ...] = tuple(DqnGpuArgs(seed=seed) for seed in range(3))
    gradients: tuple[PolicyGradientArgs, ...] = (PolicyGradientArgs(seed=0),)
    workloads: tuple[str, ...] = tuple(POOLS)
    varied: tuple[str, ...] = ("memory_light", "random")


QUICK = Size(
    sets=2,
    tries=100,
    trainings=(DqnGpuArgs(start_sets=10, start_steps=400, steps=0, validate_every=1),),
    gradients=(PolicyGradientArgs(start_sets=4, start_steps=50, iterations=2, sets=1),),
    workloads=("memory_light", "random"),
    varied=("random",),
)


def _world(name: str, kinds: Kinds) -> PairFactors | NoInterference:
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
                best = _measure_set(runs, compared, jobs, world, kinds, rule, seed)
                _search_set(runs, jobs, world, rule, size.tries, seed, best)
            found.setdefault(world_name, {})[workload] = runs
            note(f"{world_name}: {workload}")
    return found


def _measure_set(
    runs: dict[str, list[dict[str, Any]]],
    compared: Sequence[Method],
    jobs: Sequence[SimulatedGpuJob],
    world: GpuInterference,
    kinds: Kinds,
    rule: CapacityRule,
    seed: int,
) -> list[int]:
    """The order in which jobs started in the shortest run without failures."""
    pairs = kinds.world() if not isinstance(world, NoInterference) else None
    best: tuple[float, list[int]] = (math.inf, list(range(len(jobs))))
    for method in compared:
        # Where nothing slows down, pairs say nothing.
        if method.knows == "pairs" and pairs is None:
            continue
        run = method.run(jobs, world, rule, pairs)
        figures = {"seed": seed, "training": method.training, **figures_of(run)}
        runs.setdefault(method.name, []).append(figures)
        if not run.failures and run.makespan < best[0]:
            order = sorted(range(len(jobs)), key=lambda n: (run.records[n].started, n))
            best = run.makespan, order
    return best[1]


def _search_set(
    runs: dict[str, list[dict[str, Any]]],
    jobs: Sequence[SimulatedGpuJob],
    world: PairFactors | NoInterference,
    rule: CapacityRule,
    tries: int,
    seed: int,
    best: Sequence[int],
) -> None:
    """Search with what is true, from the ``best`` order of a method too, and with profiles."""
    bound = TICK_S * lower_bound(jobs, rule)
    nothing = NoInterference()
    searched = [(ORACLE, best_order(jobs, world, rule, tries=tries, seed=seed, begin=[best]))]
    if not isinstance(world, NoInterference):
        searched.append((PLANNED, best_order(jobs, nothing, rule, tries=tries, seed=seed)))
    for name, made in searched:
        run = simulate(jobs, Ordered(made.order, strict=made.strict), world, rule)
        runs.setdefault(name, []).append(
            {"seed": seed, "training": -1, "bound_s": bound, "tries": made.tries,
             **figures_of(run)}
        )  # fmt: skip
    all_of_set = [each["makespan_s"] for held in runs.values() for each in held
                  if each["seed"] == seed]  # fmt: skip
    assert min(all_of_set) >= bound - 1e-6, "a makespan is below its bound"
    runs[ORACLE][-1]["makespan_s"] = min(all_of_set)


def decision_times(kinds: Kinds, size: Size) -> dict[str, dict[str, float]]:
    """By workload, quantiles of the processor time of each decision of what ships, ms; of each set
    of jobs a policy that has seen none of its profiles before."""
    found = {}
    rule, world = CapacityRule(), kinds.world()
    for workload in size.workloads:
        took: list[float] = []
        for seed in range(FIRST_SEED, FIRST_SEED + size.sets):
            policy = Timed(LookAhead())
            simulate(job_set(workload, seed, kinds, jobs=size.jobs), policy, world, rule, world)
            took += policy.took_ms
        quantiles = np.percentile(took, [50, 99, 100]).round(2).tolist()
        found[workload] = dict(zip(("p50", "p99", "max"), quantiles, strict=True))
    return found


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


def share_of(gains: Sequence[float], oracle: Sequence[float]) -> Share | None:
    """The sum of ``gains`` over that of the ``oracle``'s, both by set of jobs, with a 95 % interval
    of resampled sets (bootstrap, percentiles). None where the oracle gains next to nothing."""
    ours, most = np.asarray(gains), np.asarray(oracle)
    if most.mean() <= HEADROOM_LEAST:
        return None
    drawn = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
    below = most[drawn].sum(axis=1)
    # Sets that have no headroom may all be the same one; it then has no share.
    ratios = ours[drawn].sum(axis=1)[below > 1e-9] / below[below > 1e-9]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(ours.sum() / most.sum()), float(low), float(high)


def summarised(by_workload: dict[str, Any]) -> dict[str, Any]:
    """The headline: gains and shares of the headroom, by workload."""
    found: dict[str, Any] = {"ships": SHIPS}
    for suffix, name in REPORTED:
        for workload, runs in by_workload.items():
            if name not in runs:
                continue
            gain, oracle = gains_of(runs, name), gains_of(runs, ORACLE)
            share = share_of(gain, oracle)
            failures = [each["failures"] for each in runs[name]]
            held = np.mean([each["classes"] for each in runs[name]], axis=0)
            for key, value in (
                ("makespan_gain", interval(gain).as_json()),
                ("share_of_headroom", None if share is None else share[0]),
                ("share_of_headroom_interval", None if share is None else list(share[1:])),
                ("out_of_memory", sum(failures)),
                ("not_slowed", float(held[0])),
            ):
                found.setdefault(f"{key}{suffix}", {})[workload] = value
            found.setdefault("headroom", {})[workload] = interval(oracle).as_json()
    return found


def unslowed(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What it costs that jobs are not slowed down: of policies that let a job join others only
    where that adds a least gain, how many jobs run as fast as alone, and the makespan."""
    names = [SHIPS, *(f"{name}, gain {least:g}" for name in ("look-ahead", "fastest-together")
                      for least in JOIN_GAINS), "sjf"]  # fmt: skip
    found = []
    for name in names:
        if name in runs:
            held = [float(each["classes"][0]) for each in runs[name]]
            found.append({
                "method": name,
                "not_slowed": interval(held).as_json(),
                "makespan_gain": interval(gains_of(runs, name)).as_json(),
            })  # fmt: skip
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
        "unslowed": {name: unslowed(runs) for name, runs in by_world["pairs"].items()},
        "decision_ms": decision_times(kinds, size),
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
