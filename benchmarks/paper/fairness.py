"""Fairness on unlike platforms: the source's two levels, every policy against every other.

    python -m benchmarks.paper.fairness                        # writes results/paper-fairness.*
    python -m benchmarks.paper.fairness --quick --json FILE    # two runs of each

Real policies (``hrm.policies.sharing``, ``hrm.policies.mapping``) in a fluid model of the cluster:
no processes, no Spark. A run draws how strongly tenants disturb each other (run 0 has the values
that were chosen by hand); with ``--data``, kinds of jobs that were measured in pairs on GPUs are
drawn as well. All policies meet the same draws, and intervals are over runs.

Source: Hwang, Kim, Choi, "Achieving Fairness-Aware Two-Level Scheduling for Heterogeneous
Distributed Systems", IEEE Trans. Services Computing, 2018: tables 3 to 8, figures 3 to 7.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.fairness import measured
from benchmarks.fairness.bounds import largest_common_throughput
from benchmarks.fairness.claims import Claim, claims, fairest_counts
from benchmarks.fairness.fluid import System
from benchmarks.fairness.plots import draw_levels
from benchmarks.fairness.properties import CASES, properties
from benchmarks.fairness.published import EGOCENTRIC, RECIPROCAL
from benchmarks.fairness.report import body
from benchmarks.fairness.scale import decision_times
from benchmarks.fairness.scenarios import Scenario, arriving, scenarios
from benchmarks.fairness.systems import FIRST_LEVEL, GRID, LEARNED, VARIANTS, Label, Table, measure
from benchmarks.fairness.world import DEFAULT
from benchmarks.processes import BenchmarkError, exit_status
from benchmarks.simulation.figures import interval
from hrm.policies.sharing import Affinity, platform_affinity

__all__ = ["main"]

MODULE = "benchmarks.paper.fairness"
RUNS, QUICK_RUNS = 100, 2
QUICK_CASES = 20


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description="Two-level fairness, policy by policy."
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs of each")
    parser.add_argument("--runs", type=int, metavar="N", help=f"runs of each (default: {RUNS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument(
        "--data", type=Path, metavar="DIR",
        help="folder of Gavel's simulation_throughputs.json.gz; without it, no measured pairs",
    )  # fmt: skip
    return parser


def affinity_error() -> float:
    """The largest difference to table 3, whose inputs are rounded to two decimals."""
    errors = [
        np.abs(platform_affinity(measure, DEFAULT.run_s) - printed).max()
        for measure, printed in (
            (Affinity.EGOCENTRIC, EGOCENTRIC),
            (Affinity.RECIPROCAL, RECIPROCAL),
        )
    ]
    return float(max(errors))


def _measured(pairs: measured.Pairs, seed: int) -> list[Scenario]:
    return [
        Scenario(name, name, measured.draw(pairs, seed, equal_loads=equal))
        for name, equal in (("equal loads", True), ("unequal loads", False))
    ]


def _arrival_systems() -> dict[Label, System]:
    return {
        label: system
        for label, system in GRID.items()
        if label.division in FIRST_LEVEL
        and label.affinity in ("-", Affinity.RECIPROCAL.value)
        and label.mapping == "most-affected-first"
    }


def _variants() -> dict[Label, System]:
    """Each after what it is compared with."""
    found: dict[Label, System] = {}
    for label, (system, base) in VARIANTS.items():
        found |= {base: GRID[base], label: system}
    return found


def tables(given: argparse.Namespace) -> dict[str, Table]:
    """All runs, by what is varied."""
    parts: dict[str, tuple[Callable[[int], Sequence[Scenario]], dict[Label, System]]] = {
        "scenarios": (scenarios, GRID),
        "variants": (scenarios, _variants()),
        "learned": (lambda seed: scenarios(seed)[:1], LEARNED),
        "arrivals": (arriving, _arrival_systems()),
    }
    if given.data is not None:
        try:
            pairs = measured.load(given.data)
        except FileNotFoundError as error:
            raise BenchmarkError(
                f"no {error.filename}: --data is the folder that has Gavel's measurements; leave "
                "it out to go without them"
            ) from error
        parts["measured"] = (functools.partial(_measured, pairs), GRID)
    found = {}
    with Progress(console=CONSOLE, transient=True) as progress:
        for name, (draw, systems) in parts.items():
            task = progress.add_task(name, total=given.runs)
            found[name] = measure(
                draw, systems, range(given.runs), functools.partial(progress.advance, task)
            )
    return found


def checked_claims(found: dict[str, Table]) -> dict[str, list[Claim]]:
    """Drawn pressures together, with their kinds; measured pairs by kind of load only."""
    checked = {"drawn pressures": list(claims(found["scenarios"]))}
    if "measured" in found:
        for kind in found["measured"].kinds:
            checked[f"measured, {kind}"] = list(claims(found["measured"].of_kind(kind)))
    return checked


def _document(
    found: dict[str, Table], checked: dict[str, list[Claim]], *, quick: bool
) -> dict[str, Any]:
    table = found["scenarios"]
    count = len(table.scenarios)
    fairest = interval(fairest_counts(table).tolist())
    document: dict[str, Any] = {
        "scenarios": count,
        "runs": len(table.fairness),
        "pa_rr_fairest": fairest.mean,
        "pa_rr_fairest_run_0": float(fairest_counts(table)[0]),
        "epa_rpa_max_error": affinity_error(),
        "bound_common_throughput": largest_common_throughput(DEFAULT),
        "decisions": decision_times(),
        "properties": [each.as_json() for each in properties(QUICK_CASES if quick else CASES)],
        "claims": {name: [each.as_json() for each in rows] for name, rows in checked.items()},
    }
    for name, each in found.items():
        document[name + "_figures"] = {
            figure: np.round(getattr(each, figure).mean(axis=0), 5).tolist()
            for figure in ("fairness", "ratio", "jain", "wait_s", "moved")
        } | {
            "rows": [list(pair) for pair in each.scenarios],
            "columns": [str(label) for label in each.systems],
        }
    return document


def benchmark(given: argparse.Namespace) -> None:
    """Measure, print the claims, write the results.

    Raises:
        BenchmarkError: what was asked for makes no sense, or data is not where it should be.
    """
    if given.runs is None:
        given.runs = QUICK_RUNS if given.quick else RUNS
    if given.runs < 1:
        raise BenchmarkError(f"--runs is {given.runs}; type 1 or more")
    provenance = common.provenance(MODULE, ("numpy", "scipy", "matplotlib"))
    found = tables(given)
    checked = checked_claims(found)
    document = {"provenance": provenance} | _document(found, checked, quick=given.quick)
    text = body(document, found, checked)
    print(text)
    if given.json:
        common.write_json(given.json, document)
    elif not given.quick:
        title = "Two levels of fairness on unlike platforms"
        paths = common.write_results("paper-fairness", title, document, text)
        paths += draw_levels(common.RESULTS_DIR, found["scenarios"])
        for path in paths:
            common.note(f"wrote {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if it has measured everything."""
    return exit_status(benchmark, _parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
