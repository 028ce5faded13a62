"""LDWP + IAWP: figures 5 to 13 of the paper, in the simulator, with the best heuristics.

    python -m benchmarks.paper.ldwp_figures [--quick] [--json FILE] [--seeds 10] [--processes 1]
                                    [--runs FILE]

The cluster of table 4 (``hrm.pipelines.sim``) runs the production cores under pairs of policies,
``cluster+node``. Seeds are split: learned weights come from 0 to 99, the best heuristic pair and
IAWP's variant are chosen on 100 to 119, reported values were measured on 1000 to 1019 with frozen
weights. Every throughput is shown with the arrivals and the fluid bound. At the paper's rates a
good policy serves all that arrives; the maximum of each is measured beyond them.

``--runs FILE`` keeps every run in FILE as soon as it is over: the same command continues where it
was stopped. Figures 3 and 13 with learning are ``python -m benchmarks.paper.ldwp_learning``, figure
4 (the error of the NCF) is ``python -m benchmarks.paper.ncf``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.paper.ldwp_plots import draw_all
from benchmarks.paper.ldwp_report import SHIP_SETTINGS, document_of, report
from benchmarks.paper.ldwp_runs import TEST_FIRST, Job, Run, Setting, bound_of, run_all
from hrm.errors import NotFound
from hrm.policies import model_files
from hrm.policies.model_files import Model

__all__ = ["main"]

VALIDATION_FIRST = 100

RANDOM = "random+random"
BASELINES = (
    RANDOM, "least-loaded+random", "ect+mct", "min-wait+mct", "ect+min-min", "demand+pats",
    "ect+pats", "min-wait+pats", "least-loaded+pats",
)  # fmt: skip
"""Heuristics for both stages, from which the best one is chosen on validation seeds."""
IAWP_VARIANTS = (
    "iawp:cosine", "iawp:overload", "iawp:learned", "iawp:cosine:guarded", "iawp:learned:guarded",
)  # fmt: skip
"""The paper's first, then other scores and the tail guard; one is chosen on validation seeds, under
``ect``."""
LEARNED = ("ldwp", "ldwp-set")
CLUSTER_POLICIES = ("random", "least-loaded", "min-wait", "demand", "ect")
NODE_POLICIES = ("random", "mct", "min-min", "pats")
SIZES_MB = (10.0, 20.0, 60.0, 120.0, 200.0, 400.0)
SATURATION_PER_MIN = 120.0
"""A third above the fluid bound; not in the paper."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of the experiments.

    ``seeds``: for the ship rule; ``fewer``: for the rest, which explains it.
    ``validation``: seeds of a choice, with ``choice`` tasks each; ``span_min``: how long tasks
    arrive at the paper's rates, ``main_min`` at the highest, at least ``least`` tasks. Tasks of a
    run: ``changes`` where nodes come and go, ``full`` where more arrives than can be done,
    ``sizes`` of figure 12, ``other`` of all the rest.
    """

    seeds: int
    fewer: int
    validation: int
    choice: int
    span_min: float
    main_min: float
    least: int
    changes: int
    full: int
    other: int
    sizes: int
    rates: tuple[float, ...]
    nodes: tuple[int, ...]
    worlds: tuple[str, ...]


FULL = Plan(
    seeds=10, fewer=3, validation=2, choice=600, span_min=10.0, main_min=15.0, least=150,
    changes=1_350, full=600, other=450, sizes=60, rates=(10, 20, 30, 40, 50, 60),
    nodes=(4, 7, 10), worlds=("overload", "none"),
)  # fmt: skip
QUICK = Plan(
    seeds=2, fewer=2, validation=1, choice=200, span_min=5.0, main_min=5.0, least=100,
    changes=0, full=0, other=200, sizes=30, rates=(30, 60), nodes=(6,), worlds=("none",),
)  # fmt: skip


@dataclass(slots=True)
class Chosen:
    """The choices by validation seeds, and the pairs that are measured."""

    baseline: str
    iawp: str
    learned: tuple[str, ...]
    validation: dict[str, float]

    @property
    def core(self) -> tuple[str, ...]:
        """Random, the best heuristics, and IAWP under ECT and under the learned policies."""
        ours = [f"{name}+{self.iawp}" for name in (*self.learned, "ect")]
        return tuple(dict.fromkeys((RANDOM, self.baseline, *ours)))

    @property
    def main(self) -> tuple[str, ...]:
        """With the paper's other two methods, and with those that prefer short tasks."""
        return tuple(dict.fromkeys((*self.core, "ect+min-min", "ect+mct", "demand+pats")))


def _available(weights: Path | None) -> dict[str, Model]:
    found = {}
    for name in LEARNED:
        try:
            found[name] = model_files.find(name, state_dir=weights)
        except NotFound as error:
            CONSOLE.print(f"[yellow]{name} is left out:[/yellow] {error}")
    return found


def _validate(plan: Plan, given: argparse.Namespace, learned: Sequence[str]) -> Chosen:
    """The best heuristic pair and IAWP's score by throughput at 60/min on validation seeds."""
    setting = Setting(name="validation", x=60, rate_per_min=60, tasks=plan.choice)
    pairs = (*BASELINES, *(f"ect+{name}" for name in IAWP_VARIANTS))
    seeds = range(VALIDATION_FIRST, VALIDATION_FIRST + plan.validation)
    jobs = [Job(setting, seed, (pair,), given.profiles, given.weights)
            for seed in seeds for pair in pairs]  # fmt: skip
    scores: dict[str, list[float]] = {}
    for run in run_all(jobs, processes=given.processes, on_progress=CONSOLE.print, kept=given.runs):
        scores.setdefault(run.pair, []).append(run.values["throughput"])
    means = {pair: sum(values) / len(values) for pair, values in scores.items()}
    best = max(BASELINES, key=lambda pair: means[pair])
    variant = max(IAWP_VARIANTS, key=lambda name: means[f"ect+{name}"])
    return Chosen(best, variant, tuple(learned), means)


def _settings(plan: Plan, chosen: Chosen) -> list[tuple[Setting, tuple[str, ...]]]:
    """Everything that is measured, with the pairs for it."""
    core = chosen.core
    found = []
    for rate in plan.rates:
        minutes = plan.main_min if rate == plan.rates[-1] else plan.span_min
        tasks = max(plan.least, round(minutes * rate))
        pairs = chosen.main if rate >= 50 else core
        found.append((Setting(name="rates", x=rate, rate_per_min=rate, tasks=tasks), pairs))
    if plan.full:
        rate = SATURATION_PER_MIN
        setting = Setting(name="saturation", x=rate, rate_per_min=rate, tasks=plan.full)
        found.append((setting, chosen.main))
    for nodes in plan.nodes:
        setting = Setting(name="nodes", x=nodes, rate_per_min=50, nodes=nodes, tasks=plan.other)
        found.append((setting, core))
    top = chosen.learned[-1] if chosen.learned else "ect"
    names: tuple[str, ...] = (*NODE_POLICIES, *IAWP_VARIANTS, "iawp:oracle")
    setting = Setting(name="node policies", x=50, rate_per_min=50, tasks=plan.other)
    found.append((setting, tuple(f"{top}+{name}" for name in names)))
    setting = Setting(name="cluster policies", x=60, rate_per_min=60, tasks=plan.other)
    names = (*CLUSTER_POLICIES, *chosen.learned)
    found.append((setting, tuple(f"{name}+{chosen.iawp}" for name in names)))
    for world in plan.worlds:
        setting = Setting(name=f"world {world}", x=60, world=world, tasks=plan.other)
        found.append((setting, core))
    synopsis = ("video-synopsis",)
    for rate, what in ((2.0, "idle"), (45.0, "loaded")):
        for size in SIZES_MB:
            setting = Setting(
                name=f"sizes, {what}", x=size, size_mb=size, applications=synopsis,
                rate_per_min=rate * 60.0 / size if what == "loaded" else rate, tasks=plan.sizes,
            )  # fmt: skip
            found.append((setting, core))
    changes = Setting(
        name="changes", x=50, rate_per_min=50, nodes=8, changes=True, tasks=plan.changes
    )
    learned = tuple(f"{name}+{chosen.iawp}" for name in (*chosen.learned, "ect"))
    if plan.changes:
        found.append((changes, learned))
    cold = Setting(name="cold", x=50, rate_per_min=50, known=False, tasks=plan.other)
    found.append((cold, learned))
    return found


def _measure(plan: Plan, given: argparse.Namespace, chosen: Chosen) -> list[Run]:
    count = given.seeds or plan.seeds
    jobs = [
        Job(setting, TEST_FIRST + number, pairs, given.profiles, given.weights)
        for number in range(count)
        for setting, pairs in _settings(plan, chosen)
        if number < plan.fewer or setting.name in SHIP_SETTINGS
    ]
    CONSOLE.print(f"{len(jobs)} jobs, {sum(len(job.pairs) for job in jobs)} runs")
    return list(
        run_all(jobs, processes=given.processes, on_progress=CONSOLE.print, kept=given.runs)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper.ldwp_figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--seeds", type=int, default=0, help="test seeds of each point")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, help="keep runs in this file, and go on from it")
    parser.add_argument("--profiles", type=Path, help="a table of subtask profiles")
    parser.add_argument("--weights", type=Path, help="a directory of models beside HRM's own")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write; the exit status."""
    given = _parser().parse_args(arguments)
    plan = QUICK if given.quick else FULL
    held = _available(given.weights)
    chosen = _validate(plan, given, tuple(held))
    CONSOLE.print(f"best heuristics: {chosen.baseline}; co-run score: {chosen.iawp}")
    runs = _measure(plan, given, chosen)
    fluid = bound_of("measured", 11, None, None, False, given.profiles)
    context: dict[str, Any] = {
        "provenance": common.provenance("benchmarks.paper.ldwp_figures", ["numpy", "scipy"]),
        "baseline": chosen.baseline,
        "iawp": chosen.iawp,
        "learned": list(chosen.learned),
        "random": RANDOM,
        "validation": chosen.validation,
        "fluid_bound": fluid.rate_per_min,
        "models": {name: dict(model.meta) for name, model in held.items()},
        "cpu_s": sum(run.seconds for run in runs),
    }
    document = document_of(runs, context)
    body = report(document)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not given.quick:
        title = "LDWP + IAWP: pipelines on a simulated cluster"
        for path in common.write_results("paper-ldwp-figures", title, document, body):
            CONSOLE.print(f"written: {path}")
        for path in draw_all(document, common.RESULTS_DIR):
            CONSOLE.print(f"written: {path}")
    CONSOLE.print(f"{len(runs)} runs, {context['cpu_s']:.0f} s of processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
