"""Spark and pipelines on one pool, against the same nodes with half of them for either.

    python -m benchmarks.one_pool                        # writes results/one-pool.md and .json
    python -m benchmarks.one_pool --quick --json FILE    # one run of each arm
    python -m benchmarks.one_pool --only pool,halves --runs 1   # nothing written
    python -m benchmarks.one_pool --only pool-chaos

On one embedded cluster: word counts and parts of TPC-H by the stock ``spark-submit``, a
structured-streaming Top-K whose load rises and falls, and pipeline tasks of one to three steps, all
at once. In one pool all share all slots; in halves labels keep Spark to one half of the nodes and
pipelines to the other. In ``pool-chaos`` an agent and the master are killed midway (SIGKILL) and
started again. Every result is compared with a computation without HRM, and every task must end
once. ``benchmarks.one_pool.plan`` describes the load.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.one_pool.arms import Run, run_arm
from benchmarks.one_pool.cluster import Labelled
from benchmarks.one_pool.plan import ALONE, ARMS, CHAOS, QUICK, Plan, rounds
from benchmarks.one_pool.report import Taken, document, report
from benchmarks.processes import BenchmarkError, in_directory
from benchmarks.sharing.inputs import prepare
from benchmarks.text import build_text

__all__ = ["chosen_arms", "main", "parse_arguments", "plan_of"]

_TITLE = "Spark and pipelines on one pool, and on two halves of it"
_OF_OFFER = ("runs", "window_s", "trigger_s")
_OF_PLAN = ("tasks", "jobs")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.one_pool",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--only", help=f"comma-separated: {','.join(ARMS)}")
    parser.add_argument("--runs", type=int, help="of each arm (default 3; quick 1)")
    parser.add_argument("--tasks", type=int, help="of pipelines (default 300; quick 100)")
    parser.add_argument("--jobs", type=int, help="of Spark (default 3; quick 2)")
    parser.add_argument(
        "--window-s", type=float, help="of the stream's load (default 120; quick 60)"
    )
    parser.add_argument("--trigger-s", type=float, help="of the stream (default 5)")
    parser.add_argument(
        "--chaos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=f"with the arm {CHAOS}, once, at the end",
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and event logs")
    given = parser.parse_args(arguments)
    for name in (*_OF_OFFER, *_OF_PLAN):
        value = getattr(given, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be more than 0, not {value}")
    given.only = given.only.split(",") if given.only else []
    if unknown := [name for name in given.only if name not in ARMS]:
        parser.error(f"no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of the command line: flags over ``--quick`` over the defaults."""
    plan = QUICK if given.quick else Plan()
    offer = {name: getattr(given, name) for name in _OF_OFFER if getattr(given, name)}
    own = {name: getattr(given, name) for name in _OF_PLAN if getattr(given, name)}
    return replace(plan, offer=replace(plan.offer, **offer), **own)


def chosen_arms(given: argparse.Namespace) -> list[str]:
    """The arms of the command line, in the order of a round."""
    chosen = given.only or [name for name in ARMS if given.chaos or name != CHAOS]
    return [name for name in ARMS if name in chosen]


def measure(given: argparse.Namespace, plan: Plan, directory: Path, taken: Taken) -> None:
    """Everything, interleaved; what fails is noted, and the rest goes on."""
    with CONSOLE.status("generating inputs and their right answers"):
        inputs = prepare(plan.offer, given.cache_dir)
        text = Path(build_text(given.cache_dir, plan.offer.text_mb).path)
    with Labelled(plan, directory / "cluster") as cluster:
        for number, name in rounds(chosen_arms(given), plan.runs):
            where = directory / f"{name}-{number}"
            try:
                with CONSOLE.status(f"{name}, run {number + 1} of {plan.runs}"):
                    run = run_arm(ARMS[name], cluster, inputs, text, plan, where)
            except BenchmarkError as error:
                taken.failures.append(f"{name}, run {number + 1}: {error}")
                common.note(f"FAILED {name}: {error}")
                continue
            taken.runs.setdefault(name, []).append(run)
            common.note(_line(run, plan))


def _line(run: Run, plan: Plan) -> str:
    used = run.utilisation(plan.capacity)
    work = "" if run.arm == ALONE else (
        f"makespan {run.makespan_s or float('nan'):6.1f} s  slots used {used or 0.0:6.1%}  wrong "
        f"{run.wrong} failed {run.failed} lost {run.lost} twice {run.twice}  "
    )  # fmt: skip
    longest_s = max(run.durations_s, default=float("nan"))
    wrong = f"  WRONG: {run.complaints[0]}" if run.complaints else ""
    return f"{run.arm:<11} {work}longest micro-batch {longest_s:5.2f} s{wrong}"


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; the exit status."""
    plan = plan_of(given)
    provenance = common.provenance("benchmarks.one_pool", ("duckdb", "tpchgen-cli"))
    taken = Taken()
    measure(given, plan, directory, taken)
    result = {**document(taken, plan), "provenance": provenance}
    if given.json:
        common.write_json(given.json, result)
    body = report(result)
    if not given.only and result["answers_right"]:
        name = "one-pool-quick" if given.quick else "one-pool"
        for path in common.write_results(name, _TITLE, result, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 0 if result["answers_right"] else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted and every result was right."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-one-pool-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
