"""How fast HRM schedules: three separate rates, delays, memory, and where the time goes.

    python -m benchmarks.scheduler                     # the matrix; writes results/scheduler.*
    python -m benchmarks.scheduler --quick --json FILE # a small part of it, in about two minutes
    python -m benchmarks.scheduler --profile --only decisions,durable

Published numbers mix what is measured here separately: decisions per second (in process: snapshot,
choose, commit), durable commits per second (with events, interpreter and SQLite on the disk), and
containers per second end to end (a real master, gRPC, emulated agents that get orders and report).
Each is the median of several repetitions, taken in turns, with the minimum and the maximum. Rates
per second of processor time are reported as well, which other processes on the machine disturb
less.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.processes import BenchmarkError, interruptible
from benchmarks.scheduling import backlog, decisions, durable, live, streams
from benchmarks.scheduling.cells import BATCH, NODE_SLOTS, STREAM, Cell, matrix
from hrm import policies
from hrm.core.vocabulary.bounds import SCHEDULERS, Bounds
from hrm.core.vocabulary.model import WorkloadClass
from hrm.errors import HrmError

__all__ = ["PARTS", "Plan", "main", "parse_arguments"]

PARTS = (
    "decisions", "durable", "backlog", "full", "streams", "conflicts", "live", "memory",
    "schedulers",
)  # fmt: skip
_HEADLINE = Cell(10_000, 40)
_PROFILED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements."""

    nodes: tuple[int, ...] = (1_000, 10_000, 100_000)
    tasks: tuple[int, ...] = (1, 40, 1_000)
    classes: tuple[WorkloadClass, ...] = (BATCH, STREAM)
    policies: tuple[str, ...] = ("min-wait", "best-fit", "round-robin")
    durable_nodes: tuple[int, ...] = (1_000, 10_000)
    repetitions: int = 5
    decisions: int = 20_000
    containers: int = 40_000
    backlog_nodes: int = 1_000
    backlog_jobs: tuple[int, ...] = (0, 1_000, 10_000)
    backlog_of_a_kind: int = 10_000
    queued_nodes: int = 100
    queued_waiters: int = 30
    ends: int = 1_000
    stream_requests: int = 500
    live_nodes: tuple[int, ...] = (1_000, 10_000)
    schedulers: tuple[int, ...] = (1, 2, 6)
    live_s: float = 20.0
    memory_nodes: int = 10_000
    memory_containers: int = 100_000


QUICK = Plan(
    tasks=(40,), classes=(BATCH,), policies=("min-wait",), durable_nodes=(10_000,),
    repetitions=3, decisions=8_000, containers=10_000, backlog_nodes=100, backlog_jobs=(0, 10_000),
    backlog_of_a_kind=1_000, queued_nodes=20,
    ends=300, stream_requests=150, live_nodes=(500,), live_s=8.0,
    memory_nodes=1_000,
    memory_containers=10_000,
)  # fmt: skip


@dataclass(slots=True)
class Results:
    """Numbers by name, and tables to read."""

    numbers: dict[str, Any] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.tables.append(f"## {title}\n\n{common.table(header, rows)}")


def measure_decisions(plan: Plan, results: Results) -> None:
    cells = matrix(plan.nodes, plan.tasks, plan.classes, plan.policies)
    samples = decisions.measure_decisions(cells, plan.repetitions, plan.decisions)
    results.numbers["decisions"] = {str(cell): x.as_json() for cell, x in samples.items()}
    rows = []
    for cell, sample in samples.items():
        stages = [f"{median(times):.2f}" for times in sample.stages_us.values()]
        cpu = f"{median(sample.cpu_values):,.0f}"
        rows.append([cell, sample, cpu, *stages])
    stages = ["next", "snapshot", "choose", "commit", "settle"]
    header = ["cluster and job", "decisions/s [least, greatest]", "per CPU second"]
    results.table("Decisions per second, and µs a decision", [*header, *stages], rows)
    if _HEADLINE in samples:
        results.numbers["decisions_per_s"] = samples[_HEADLINE].median
        results.numbers["decisions_per_cpu_s"] = median(samples[_HEADLINE].cpu_values)
    few, many = (samples.get(Cell(nodes, 40)) for nodes in (1_000, 100_000))
    if few and many:
        # Of neighbouring runs, so that other load on the machine affects both.
        ratios = [a / b for a, b in zip(few.cpu_values, many.cpu_values, strict=True)]
        results.numbers["growth_1k_100k"] = median(ratios)


def measure_durable(plan: Plan, results: Results) -> None:
    cells = matrix(plan.durable_nodes, plan.tasks, plan.classes, ("min-wait",))
    samples = durable.measure_durable(cells, plan.repetitions, plan.containers)
    results.numbers["durable"] = {str(cell): x.as_json() for cell, x in samples.items()}
    rows = [
        [cell, x.commits, f"{median(x.commits.cpu_values):,.0f}", x.applications]
        for cell, x in samples.items()
    ]
    header = ["cluster and job", "containers/s", "per CPU second", "applications/s"]
    results.table("Durable commits per second", header, rows)
    if _HEADLINE in samples:
        results.numbers["durable_commits_per_s"] = samples[_HEADLINE].commits.median
        rates = samples[_HEADLINE].commits.cpu_values
        results.numbers["durable_commits_per_cpu_s"] = median(rates)


def measure_backlog(plan: Plan, results: Results) -> None:
    """One cluster for each size of the backlog; the ends of its repetitions in turns."""
    sizes = [("", jobs) for jobs in plan.backlog_jobs]
    sizes += [(kind, plan.backlog_of_a_kind) for kind in backlog.KINDS]
    clusters = {
        (kind, jobs): backlog.FullCluster(plan.backlog_nodes, jobs, SCHEDULERS, kind=kind)
        for kind, jobs in sizes
    }
    runs: dict[tuple[str, int], list[backlog.Ends]] = {size: [] for size in clusters}
    for _ in range(plan.repetitions):
        for size, cluster in clusters.items():
            runs[size].append(backlog.measure_ends(cluster, plan.ends // plan.repetitions))
    rows = []
    for (kind, jobs), each in runs.items():
        ends = sum(len(x.ms) for x in each)
        ms = sorted(x.median_ms for x in each)
        rounds, placed = sum(x.rounds for x in each) / ends, sum(x.placed for x in each) / ends
        name = f"end_ms_{_short(jobs)}{'_' if kind else ''}{kind}"
        results.numbers[name] = median(ms)
        results.numbers[f"{name}_least"] = min(min(x.ms) for x in each)
        waits = f"{jobs:,} {kind}".rstrip()
        rows.append(
            [waits, f"{median(ms):.3f} [{ms[0]:.3f}, {ms[-1]:.3f}]",
             f"{min(min(x.ms) for x in each):.3f}", f"{rounds:.2f}", f"{placed:.2f}"]
        )  # fmt: skip
    header = ["jobs that wait", "CPU ms an end [least, greatest]", "fastest", "rounds", "placed"]
    title = f"An end in a full cluster ({plan.backlog_nodes:,} nodes), with all that follows"
    results.table(title, header, rows)


def _short(number: int) -> str:
    return f"{number // 1_000}k" if number >= 1_000 else str(number)


def measure_full(plan: Plan, results: Results) -> None:
    """No slot is free: what a request costs that finds none, and an end that serves large jobs."""
    jobs = max(1, plan.ends // 10)
    cluster = backlog.FullCluster(plan.backlog_nodes, jobs, SCHEDULERS, tasks=40)
    rows, ends_ms, requests_ms = [], [], []
    for _ in range(plan.repetitions):
        ends = backlog.measure_ends(cluster, plan.ends // plan.repetitions)
        ends_ms.append(ends.median_ms)
        requests_ms.append(backlog.measure_requests(cluster, plan.ends // plan.repetitions))
        placed = ends.placed / len(ends.ms)
        rows.append([f"{ends.median_ms:.3f}", f"{placed:.2f}", f"{requests_ms[-1]:.3f}"])
    results.numbers["full_end_ms"] = median(ends_ms)
    results.numbers["full_request_ms"] = median(requests_ms)
    title = f"No free slot ({plan.backlog_nodes:,} nodes), {jobs} jobs of 40 tasks wait"
    header = ["CPU ms an end", "placed an end", "CPU ms a job that finds no place"]
    results.table(title, header, rows)
    _measure_queued(plan, results)


def _measure_queued(plan: Plan, results: Results) -> None:
    """The same with queues at units, as by default: a request is placed in one."""
    limit = Bounds().waiting_limit
    cluster = backlog.FullCluster(plan.queued_nodes, 0, SCHEDULERS, waiting_limit=limit)
    ms = backlog.measure_queued(cluster, plan.queued_waiters)
    part = len(ms) // 3
    rows = []
    for third in range(3):
        some = ms[third * part : (third + 1) * part]
        waiters = f"{third * plan.queued_waiters // 3} to {(third + 1) * plan.queued_waiters // 3}"
        rows.append([waiters, f"{median(some):.2f}", f"{sorted(some)[int(0.99 * part)]:.2f}"])
    results.numbers["full_queued_ms"] = median(ms)
    results.numbers["full_queued_ms_longest_queues"] = median(ms[-part:])
    title = f"No free slot ({plan.queued_nodes:,} nodes), containers wait at units"
    results.table(title, ["waiters at each unit", "CPU ms a request, p50", "p99"], rows)


def measure_streams(plan: Plan, results: Results) -> None:
    runs = [
        streams.measure_streams(_HEADLINE, plan.stream_requests) for _ in range(plan.repetitions)
    ]
    for name in ("p50_ms", "p99_ms", "p99_cpu_ms"):
        results.numbers[f"stream_{name}"] = median(getattr(run, name) for run in runs)
    results.numbers["streams"] = [asdict(run) for run in runs]
    header = ["p50 ms", "p99 ms", "max ms", "p99 CPU ms", "batch containers/s meanwhile"]
    rows = [
        [x.p50_ms, x.p99_ms, x.max_ms, x.p99_cpu_ms, f"{x.batch_containers_per_s:,.0f}"]
        for x in runs
    ]
    results.table(f"A stream's request beside batch ({_HEADLINE.nodes:,} nodes)", header, rows)


def measure_conflicts(plan: Plan, results: Results) -> None:
    cell = Cell(1_000, 40)
    runs = [
        (filled, decisions.measure_conflicts(cell, schedulers, 20, filled))
        for filled in (0.5, 0.9, 0.97)
        for schedulers in (2, 8, 32)
    ]
    results.numbers["conflicts"] = [
        {"filled": filled, "rate": run.rate, **asdict(run)} for filled, run in runs
    ]
    rows = [
        [f"{filled:.0%}", run.schedulers, run.claims, run.stale, run.queued, run.aborted, run.rate]
        for filled, run in runs
    ]
    header = ["slots taken", "schedulers", "claims", "stale", "queued", "aborted", "conflict rate"]
    results.table("Conflicts, all schedulers choosing at once (1,000 nodes)", header, rows)


def _live_rows(runs: Sequence[live.EndToEnd]) -> list[list[object]]:
    return [
        [
            f"{x.nodes:,}", x.remote_schedulers, f"{x.containers_per_s:,.0f}",
            f"{x.containers_per_s / max(x.master_cores, 1e-9):,.0f}",
            x.p50_ms, x.p99_ms, x.master_cores, x.generator_cores, x.register_s,
        ]
        for x in runs
    ]  # fmt: skip


_LIVE_HEADER = [
    "nodes", "scheduler processes", "containers/s", "per master CPU second", "p50 ms", "p99 ms",
    "master's cores", "generator's cores", "nodes registered in s",
]  # fmt: skip


def measure_live(plan: Plan, results: Results) -> None:
    order = [nodes for _ in range(min(3, plan.repetitions)) for nodes in plan.live_nodes]
    runs = [live.measure_end_to_end(Cell(nodes, 40), plan.live_s) for nodes in order]
    results.numbers["live"] = [run.as_json() for run in runs]
    first = [run for run in runs if run.nodes == plan.live_nodes[0]]
    results.numbers["containers_per_s"] = median(run.containers_per_s for run in first)
    results.numbers["containers_per_master_cpu_s"] = median(
        run.containers_per_s / run.master_cores for run in first
    )
    results.table("End to end over gRPC, jobs of 40 tasks", _LIVE_HEADER, _live_rows(runs))


def measure_memory(plan: Plan, results: Results) -> None:
    memory, returned = live.measure_memory(plan.memory_nodes, plan.memory_containers)
    results.numbers["memory"] = asdict(memory)
    results.numbers["returned"] = asdict(returned)
    results.numbers["burst_told_per_s"] = memory.orders_per_s
    results.numbers["master_rss_mib"] = memory.rss_mib
    results.numbers["reregister_s"] = returned.all_s
    rows = [[
        f"{memory.nodes:,}", f"{memory.containers:,}", f"{memory.orders_per_s:,.0f}",
        memory.idle_mib, memory.rss_mib,
        returned.serving_s, returned.all_s,
    ]]  # fmt: skip
    header = [
        "nodes", "containers", "told/s, asked at once", "MiB at the start", "MiB",
        "serving again, s", "all nodes back, s",
    ]  # fmt: skip
    results.table("Memory of the master, and its return after kill -9", header, rows)


def measure_schedulers(plan: Plan, results: Results) -> None:
    """Schedulers inside of the master and as processes, in turns, on clusters of two sizes: the
    same load half fills the one, and more than fills the other."""
    wanted = live.CLIENTS * 40
    clusters = {"half full": 2 * wanted // NODE_SLOTS, "full": wanted // NODE_SLOTS * 5 // 8}
    kinds = [(many, 0) for many in plan.schedulers] + [(1, many) for many in plan.schedulers]
    runs: dict[tuple[str, int, int], list[live.EndToEnd]] = {}
    for _ in range(min(3, plan.repetitions)):
        for name, nodes in clusters.items():
            for inside, remote in kinds:
                cell = Cell(nodes, 40)
                one = live.measure_end_to_end(cell, plan.live_s, remote=remote, inside=inside)
                runs.setdefault((name, inside, remote), []).append(one)
    rows, found = [], []
    for (name, inside, remote), each in runs.items():
        base = runs[name, SCHEDULERS, 0]
        ratios = [
            (x.containers_per_s / x.master_cores) / (y.containers_per_s / y.master_cores)
            for x, y in zip(each, base, strict=True)
        ]
        middle = {
            key: median(getattr(x, key) for x in each)
            for key in ("containers_per_s", "p50_ms", "p99_ms", "fairness", "master_cores")
        }
        found.append({
            "cluster": name, "inside": inside, "remote": remote, **middle,
            "per_master_cpu_s_to_default": median(ratios), "runs": [x.as_json() for x in each],
        })  # fmt: skip
        rows.append([
            name, inside, remote, f"{middle['containers_per_s']:,.0f}", f"{median(ratios):.2f}",
            middle["p50_ms"], middle["p99_ms"], f"{middle['fairness']:.3f}",
            middle["master_cores"],
        ])  # fmt: skip
    results.numbers["schedulers"] = found
    header = [
        "cluster", "inside", "processes", "containers/s",
        f"per master CPU second, to {SCHEDULERS} inside", "p50 ms", "p99 ms", "Jain's index",
        "master's cores",
    ]  # fmt: skip
    title = f"Schedulers inside and as processes, {live.CLIENTS} clients with jobs of 40 tasks"
    results.table(title, header, rows)


_MEASURE: dict[str, Callable[[Plan, Results], None]] = {
    "decisions": measure_decisions,
    "durable": measure_durable,
    "backlog": measure_backlog,
    "full": measure_full,
    "streams": measure_streams,
    "conflicts": measure_conflicts,
    "live": measure_live,
    "memory": measure_memory,
    "schedulers": measure_schedulers,
}


def profiles(only: Sequence[str]) -> dict[str, str]:
    """Where time is spent, by own time: the first lines of cProfile for each part that has one."""
    found: dict[str, str] = {}
    profile = cProfile.Profile()
    if "decisions" in only:
        rounds = decisions.Rounds(decisions.HalfFull(_HEADLINE.nodes), _HEADLINE)
        rounds.run(4_000)
        rounds.run(20_000, profile)
        found["decisions"] = _lines(pstats.Stats(profile, stream=io.StringIO()))
    if "durable" in only:
        profile = cProfile.Profile()
        durable.measure_durable([_HEADLINE], 1, 20_000, profile=profile)
        found["durable"] = _lines(pstats.Stats(profile, stream=io.StringIO()))
    if "live" in only:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "master.prof"
            live.measure_end_to_end(Cell(1_000, 40), 10.0, profile=path)
            found["live"] = _lines(pstats.Stats(str(path), stream=io.StringIO()))
    return found


def _lines(stats: pstats.Stats) -> str:
    stats.strip_dirs().sort_stats("tottime").print_stats(_PROFILED)
    text: str = stats.stream.getvalue()  # type: ignore[attr-defined]
    return text.strip()


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    common.add_common_arguments(parser)
    parser.add_argument("--only", help=f"comma-separated: {','.join(PARTS)}")
    parser.add_argument("--policies", help="comma-separated; default min-wait and two more")
    parser.add_argument("--repetitions", type=int, help="counted repetitions of each")
    parser.add_argument("--profile", action="store_true", help="print where time goes, as well")
    given = parser.parse_args(arguments)
    quick_parts = [part for part in PARTS if part not in ("conflicts", "schedulers")]
    default = quick_parts if given.quick else list(PARTS)
    given.only = given.only.split(",") if given.only else default
    if unknown := [part for part in given.only if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    given.policies = tuple(given.policies.split(",")) if given.policies else None
    if unknown := [name for name in given.policies or () if name not in policies.known()]:
        parser.error(f"no policy {unknown[0]!r}; there are {', '.join(policies.known())}")
    if given.repetitions is not None and given.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, not {given.repetitions}")
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of the command line: flags over ``--quick`` over the defaults."""
    values = {
        name: getattr(given, name)
        for name in ("policies", "repetitions")
        if getattr(given, name) is not None
    }
    base = QUICK if given.quick else Plan()
    fields = {name: getattr(base, name) for name in Plan.__dataclass_fields__}
    return Plan(**{**fields, **values})


def benchmark(given: argparse.Namespace) -> int:
    """Measure, print and write; the exit status."""
    plan, results = plan_of(given), Results()
    provenance = common.provenance("benchmarks.scheduler", ("numpy", "grpcio", "protobuf"))
    loads: dict[str, float] = {}
    for part in given.only:
        begun_s = time.perf_counter()
        with CONSOLE.status(f"measuring {part}"):
            _MEASURE[part](plan, results)
        loads[part] = round(os.getloadavg()[0], 2)
        elapsed_s = time.perf_counter() - begun_s
        CONSOLE.print(f"{part}: {elapsed_s:.0f} s, load {loads[part]} on {os.cpu_count()} cores")
    if given.profile:
        for part, lines in profiles(given.only).items():
            results.tables.append(f"## Where time goes: {part}\n\n```\n{lines}\n```")
    document = {
        "benchmark": "scheduler", "provenance": provenance, "loads_1m": loads, **results.numbers
    }  # fmt: skip
    if given.json:
        common.write_json(given.json, document)
    summary = ", ".join(f"{part} {load}" for part, load in loads.items())
    body = "\n\n".join([f"Load (1 min) after each part: {summary}.", *results.tables])
    if not given.quick and set(given.only) == set(PARTS):
        for path in common.write_results("scheduler", "How fast HRM schedules", document, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if everything was measured."""
    given = parse_arguments(arguments)
    try:
        with interruptible():
            return benchmark(given)
    except (BenchmarkError, HrmError, TimeoutError) as error:
        CONSOLE.print(f"error: {error or type(error).__name__}", markup=False)
        return 1
    except KeyboardInterrupt:
        CONSOLE.print("interrupted; everything that was started has been ended")
        return 130


if __name__ == "__main__":
    sys.exit(main())
