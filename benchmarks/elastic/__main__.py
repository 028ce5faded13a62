"""Three trainings on one cluster: static thirds, dynamic allocation, queues, and elasticity.

    python -m benchmarks.elastic                        # writes results/elastic.md, .json and .svg
    python -m benchmarks.elastic --quick --json FILE    # one run of each arm, shorter trainings
    python -m benchmarks.elastic --only static,elastic  # nothing written

Three applications of PyTorch train at once on an embedded cluster, as ``hrm up`` makes it. Two of
them converge early and go on, as trainings do, until their patience ends; the third learns to the
end. Gradients are real; the time that tasks hold their slots for a device is a wait. Accuracies are
compared with those of a training without Spark, and must be the same in all arms.
``benchmarks.elastic.plan`` has the load.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.elastic.arms import Run, Trainers, run_arm
from benchmarks.elastic.inputs import prepare
from benchmarks.elastic.plan import ARMS, COMPARED, QUICK, Plan
from benchmarks.elastic.plot import draw
from benchmarks.elastic.report import Outcome, document, report
from benchmarks.processes import BenchmarkError, in_directory

__all__ = ["main", "measure", "parse_arguments", "plan_of"]

_TITLE = "Three trainings on one cluster, with and without elasticity"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--only", help=f"comma-separated: {','.join(ARMS)}")
    parser.add_argument("--runs", type=int, help="of each arm (default 3; quick 1)")
    parser.add_argument("--keep", action="store_true", help="keep logs and event logs")
    given = parser.parse_args(arguments)
    if given.runs is not None and given.runs <= 0:
        parser.error(f"--runs must be more than 0, not {given.runs}")
    given.chosen = given.only.split(",") if given.only else list(COMPARED)
    if unknown := [name for name in given.chosen if name not in ARMS]:
        parser.error(f"no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of the command line: flags over ``--quick`` over the defaults."""
    plan = QUICK if given.quick else Plan()
    return replace(plan, runs=given.runs or plan.runs)


def measure(chosen: Sequence[str], plan: Plan, directory: Path) -> Outcome:
    """All chosen arms, interleaved; what fails is noted, and the rest goes on."""
    with CONSOLE.status("generating data, and training without Spark"):
        outcome = Outcome(prepare(plan, directory / "data"))
    for number, name in common.interleaved([x for x in ARMS if x in chosen], plan.runs):
        where = directory / f"{name}-{number}"
        try:
            with CONSOLE.status(f"{name}, run {number + 1} of {plan.runs}"):
                cluster = Trainers(plan, ARMS[name], where / "cluster")
                run = run_arm(name, cluster, directory / "data", outcome.expected, where)
        except BenchmarkError as error:
            outcome.failures.append(f"{name}, run {number + 1}: {error}")
            common.note(f"FAILED {name}: {error}")
            continue
        outcome.runs.setdefault(name, []).append(run)
        common.note(_line(run))
    return outcome


def _line(run: Run) -> str:
    ends = ", ".join(f"{x.name} {x.ended_s:.1f} s ({x.accuracies[-1]:.4f})" for x in run.trained)
    wrong = [text for each in run.trained for text in each.complaints]
    return (
        f"{run.arm:<8} all ended after {run.makespan_s:6.1f} s: {ends}, machine busy "
        f"{run.machine_busy:.2f}{', WRONG: ' + wrong[0] if wrong else ''}"
    )


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; the exit status."""
    plan = plan_of(given)
    provenance = common.provenance("benchmarks.elastic", ("torch",))
    result = {**document(measure(given.chosen, plan, directory), plan), "provenance": provenance}
    if given.json:
        common.write_json(given.json, result)
    plot = None
    if not given.only and result["answers_right"]:
        name = "elastic-quick" if given.quick else "elastic"
        plot = f"{name}.svg"
        written = [
            *common.write_results(name, _TITLE, result, report(result, plot)),
            draw(common.RESULTS_DIR / plot, result),
        ]
        for path in written:
            CONSOLE.print(f"wrote {path}")
    print(report(result, plot))
    return 0 if result["answers_right"] else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted and every accuracy was right."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-elastic-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
