"""Three tenants on two unlike platforms: shares divided by affinities that HRM has learned.

    python -m benchmarks.platforms                       # writes results/platforms.md and .json
    python -m benchmarks.platforms --quick --json FILE   # one run of each arm
    python -m benchmarks.platforms --only alone          # tenants by themselves, nothing written

One node's containers are throttled by the kernel. The tenants' tasks compute for unlike parts of
their time, so that the slow node slows one of them five times and another hardly at all. They run
alone on each platform, and together with queues' shares divided over platforms by simple fairness
and by affinity round robin, whose affinities are learned in each run. Every job's result is
compared with a computation without Spark. ``benchmarks.platforms.plan`` has the load.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.platforms.arms import Alone, Together, run_alone, run_together
from benchmarks.platforms.cluster import UnlikeNodes
from benchmarks.platforms.inputs import Inputs, prepare
from benchmarks.platforms.plan import ARMS, FAST, QUICK, SLOW, Plan
from benchmarks.platforms.report import Outcome, fairness, normalised, outcome_document
from benchmarks.platforms.report import outcome_report as report
from benchmarks.processes import BenchmarkError, in_directory

__all__ = ["main", "measure", "parse_arguments", "plan_of"]

ALONE, CROWDS = "alone", "crowds"
_DEFAULT_ARMS = ("simple", "reciprocal")
_FLAGS = ("runs", "warm_up_s", "jobs", "quota_cores")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.platforms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--only", help=f"comma-separated: {','.join((ALONE, CROWDS, *ARMS))}")
    parser.add_argument("--runs", type=int, help="of each arm (default 3; quick 1)")
    parser.add_argument(
        "--warm-up-s", type=float, help="while tenants run on both platforms (default 25)"
    )
    parser.add_argument("--jobs", type=int, help="of each tenant that count (default 2; quick 1)")
    parser.add_argument("--quota-cores", type=float, help="of a slow container (default 0.08)")
    parser.add_argument("--keep", action="store_true", help="keep logs and event logs")
    given = parser.parse_args(arguments)
    for name in _FLAGS:
        value = getattr(given, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be more than 0, not {value}")
    known = (ALONE, CROWDS, *ARMS)
    default = (ALONE, *_DEFAULT_ARMS) if given.quick else (ALONE, CROWDS, *_DEFAULT_ARMS)
    given.chosen = given.only.split(",") if given.only else list(default)
    if unknown := [name for name in given.chosen if name not in known]:
        parser.error(f"nothing is called {unknown[0]!r}; there are {', '.join(known)}")
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of the command line: flags over ``--quick`` over the defaults."""
    plan = QUICK if given.quick else Plan()
    return replace(plan, **{name: getattr(given, name) for name in _FLAGS if getattr(given, name)})


def measure(chosen: Sequence[str], plan: Plan, inputs: Inputs, directory: Path) -> Outcome:
    """Everything that is chosen; what fails is noted, and the rest goes on."""
    outcome = Outcome(steps_per_s=inputs.steps_per_s)
    if ALONE in chosen or CROWDS in chosen:
        _measure_alone(chosen, plan, inputs, directory / "alone", outcome)
    arms = [name for name in ARMS if name in chosen]
    for number, name in common.interleaved(arms, plan.runs):
        try:
            with CONSOLE.status(f"{name}, run {number + 1} of {plan.runs}"):
                where = directory / f"{name}-{number}"
                run = run_together(name, ARMS[name], plan, inputs, where)
        except BenchmarkError as error:
            outcome.failures.append(f"{name}, run {number + 1}: {error}")
            common.note(f"FAILED {name}: {error}")
            continue
        outcome.together.setdefault(name, []).append(run)
        common.note(_line(outcome, run))
    return outcome


def _measure_alone(
    chosen: Sequence[str], plan: Plan, inputs: Inputs, directory: Path, outcome: Outcome
) -> None:
    with UnlikeNodes(plan, directory / "cluster", None) as cluster:
        if ALONE in chosen:
            for tenant in plan.tenants:
                for platform in (FAST, SLOW):
                    with CONSOLE.status(f"{tenant.name} alone on {platform}"):
                        where = directory / f"{tenant.name}-{platform}"
                        found = run_alone(cluster, plan, inputs, tenant, platform, where)
                    outcome.alone.append(found)
                    common.note(_alone_line(found))
        if CROWDS in chosen:
            for count in (1, plan.slots):
                tenant = plan.tenants[0]
                with CONSOLE.status(f"{tenant.name} with {count} executors on {FAST}"):
                    where = directory / f"{tenant.name}-{count}"
                    found = run_alone(cluster, plan, inputs, tenant, FAST, where, count)
                outcome.crowds.append(found)
                common.note(_alone_line(found))


def _alone_line(found: Alone) -> str:
    tasks = found.run.by_platform.get(found.platform)
    taken = "no task" if tasks is None else f"a task {tasks.mean_s:6.3f} s"
    wrong = f", WRONG: {found.run.complaints[0]}" if found.run.complaints else ""
    return (
        f"{found.run.tenant:<8} alone on {found.platform} with {found.executors}: {taken}, "
        f"{found.run.tasks_per_s:6.3f} tasks/s, machine busy {found.machine_busy:.2f}{wrong}"
    )


def _line(outcome: Outcome, run: Together) -> str:
    shown = f"{run.arm:<12} makespan {run.makespan_s:6.1f} s, preempted {run.preempted}"
    if outcome.alone:
        each = normalised(outcome, run)
        values = ", ".join(f"{name} {value:.3f}" for name, value in each.items())
        shown += f", fairness {fairness(list(each.values())):.3f} ({values})"
    wrong = [text for tenant in run.runs for text in tenant.complaints]
    return f"{shown}, busy {run.machine_busy:.2f}{', WRONG: ' + wrong[0] if wrong else ''}"


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; the exit status."""
    plan = plan_of(given)
    provenance = common.provenance("benchmarks.platforms")
    with CONSOLE.status("generating inputs and their right answers"):
        inputs = prepare(plan, directory / "inputs", given.cache_dir)
    outcome = measure(given.chosen, plan, inputs, directory)
    result = {**outcome_document(outcome, plan), "provenance": provenance}
    if given.json:
        common.write_json(given.json, result)
    body = report(result)
    if not given.only and result["answers_right"]:
        name = "platforms-quick" if given.quick else "platforms"
        title = "Three tenants on two unlike platforms"
        for path in common.write_results(name, title, result, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 0 if result["answers_right"] else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted and every result was right."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-platforms-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
