"""Batch and streams on one shared pool, against the same machines split in two fixed parts.

    python -m benchmarks.sharing                          # writes results/sharing.md and .json
    python -m benchmarks.sharing --quick --json FILE      # HRM alone, one run of each arm
    python -m benchmarks.sharing --systems hrm --runs 1   # nothing written
    python -m benchmarks.sharing --queues                 # writes results/sharing-queues

A structured-streaming Top-K whose load rises and falls, and a backlog of word counts and TPC-H, by
the stock ``spark-submit``: on one pool of HRM, on one of Standalone, and on each with half of the
machines for the stream and half for batch; and the stream by itself. How many slots work is taken
from Spark's own event logs, how long micro-batches take from its progress reports. Every result is
compared with a computation without Spark. ``benchmarks.sharing.plan`` describes the load.

With ``--queues``: the stream in a queue that is guaranteed what it needs at its peak, next to two
queues of batch with more work than either may have, against the stream alone and against one pool
without queues.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.processes import BenchmarkError, in_directory
from benchmarks.sharing import feedback
from benchmarks.sharing.arms import Run, clusters_of, run_arm
from benchmarks.sharing.inputs import prepare
from benchmarks.sharing.plan import ALONE, ARMS, QUEUES, QUICK, QUICK_QUEUES, Plan
from benchmarks.sharing.queue_report import QUEUE_ARMS, queue_document, queue_report
from benchmarks.sharing.report import Taken, document, report

__all__ = ["chosen_arms", "main", "parse_arguments", "plan_of"]

SYSTEMS = ("hrm", "standalone")
_TITLE = "Batch and streams on one pool, and on two halves of it"
_FLAGS = ("runs", "window_s", "trigger_s")
_OTHER_ARMS = tuple(name for name, arm in ARMS.items() if not arm.queues)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sharing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument(
        "--systems",
        help="comma-separated: hrm,standalone (default: both; --quick without --only: hrm)",
    )
    parser.add_argument("--only", help=f"comma-separated: {','.join(ARMS)},feedback")
    parser.add_argument(
        "--queues", action="store_true", help=f"compare {', '.join(QUEUE_ARMS)} instead"
    )
    parser.add_argument(
        "--runs", type=int, help="counted runs of each arm (default 2; with --queues 3; quick 1)"
    )
    parser.add_argument(
        "--window-s", type=float, help="length of the window (default 120; quick 60)"
    )
    parser.add_argument("--trigger-s", type=float, help="of the stream (default 5)")
    parser.add_argument("--keep", action="store_true", help="keep logs and event logs")
    given = parser.parse_args(arguments)
    for name in _FLAGS:
        value = getattr(given, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be more than 0, not {value}")
    default = SYSTEMS[:1] if given.quick and not given.only else SYSTEMS
    given.systems = given.systems.split(",") if given.systems else list(default)
    if unknown := [system for system in given.systems if system not in SYSTEMS]:
        parser.error(f"no system {unknown[0]!r}; there are {', '.join(SYSTEMS)}")
    given.only = given.only.split(",") if given.only else []
    if unknown := [name for name in given.only if name not in (*ARMS, "feedback")]:
        parser.error(f"no arm {unknown[0]!r}; there are {', '.join(ARMS)} and feedback")
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of the command line: flags over ``--quick`` over the defaults."""
    plan = QUICK if given.quick else Plan()
    if given.queues:
        plan = QUICK_QUEUES if given.quick else QUEUES
    changes = {name: getattr(given, name) for name in _FLAGS if getattr(given, name)}
    return replace(plan, **changes)


def chosen_arms(given: argparse.Namespace) -> list[str]:
    """The arms of the command line, in the order of a round."""
    chosen = given.only or (QUEUE_ARMS if given.queues else _OTHER_ARMS)
    return [name for name, arm in ARMS.items() if arm.manager in given.systems and name in chosen]


def measure(given: argparse.Namespace, plan: Plan, directory: Path, taken: Taken) -> None:
    """Everything, interleaved; what fails is noted, and the rest goes on."""
    with CONSOLE.status("generating inputs and their right answers"):
        inputs = prepare(plan, given.cache_dir)
    names = chosen_arms(given)
    with contextlib.ExitStack() as running:
        with CONSOLE.status("starting the clusters"):
            pools = clusters_of(plan, [ARMS[name] for name in names], directory, running)
        for number, name in common.interleaved(names, plan.runs):
            arm = ARMS[name]
            where = directory / f"{name}-{number}"
            try:
                with CONSOLE.status(f"{name}, run {number + 1} of {plan.runs}"):
                    run = run_arm(arm, pools[arm.manager, arm.pool], inputs, plan, where)
            except BenchmarkError as error:
                taken.failures.append(f"{name}, run {number + 1}: {error}")
                common.note(f"FAILED {name}: {error}")
                continue
            taken.runs.setdefault(name, []).append(run)
            common.note(_line(run, plan))
    if "hrm" in given.systems and "feedback" in (
        given.only or ([] if given.queues else ["feedback"])
    ):
        for queues in (True, False):
            with CONSOLE.status(f"the feedback gap {'with' if queues else 'without'} queues"):
                taken.gaps[queues] = feedback.measure(directory, plan.gaps, queues=queues)


def _line(run: Run, plan: Plan) -> str:
    used = (run.stream.slot_s + run.batch.slot_s) / run.window_s / plan.capacity
    ended = f", {len(run.jobs)} jobs ended" if run.arm != ALONE else ""
    wrong = f", WRONG: {run.complaints[0]}" if run.complaints else ""
    return (
        f"{run.arm:<18} slots used {used:6.1%}  micro-batch p99 {run.p99_s:5.2f} s  "
        f"late {run.late} of {len(run.durations_s)}{ended}{wrong}"
    )


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; the exit status."""
    plan = plan_of(given)
    provenance = common.provenance("benchmarks.sharing", ("duckdb", "tpchgen-cli"))
    taken = Taken()
    measure(given, plan, directory, taken)
    figures = queue_document if given.queues else document
    result = {**figures(taken, plan), "provenance": provenance}
    if given.json:
        common.write_json(given.json, result)
    body = queue_report(result) if given.queues else report(result)
    needs = {"hrm"} if given.queues else set(SYSTEMS)
    whole = not given.only and (given.quick or needs <= set(given.systems))
    whole |= given.queues and {ALONE, QUEUE_ARMS[0]} <= set(given.only)
    if whole and result["answers_right"]:
        name = "sharing-queues" if given.queues else "sharing"
        name += "-quick" if given.quick else ""
        title = "A stream's queue next to two queues of batch" if given.queues else _TITLE
        for path in common.write_results(name, title, result, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 0 if result["answers_right"] else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted and every answer was right."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-sharing-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
