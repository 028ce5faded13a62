"""HRM against Spark Standalone: the same applications, the same machine, run in turns.

    python -m benchmarks.spark --peer standalone [--scale-factor 0.1] [--runs 5]
    python -m benchmarks.spark --quick --json FILE

WordCount, Sort, a streaming Top-K and the 22 TPC-H queries are submitted by the stock
``spark-submit`` to both managers, interleaved (A B, B A, …). Three times are kept of every run, all
from the start of ``spark-submit``: until the first task is launched (from Spark's own event log),
until the process has ended, and the time the application measured inside. Every result is checked
against a computation without Spark; a wrong one is a failed run and never a time.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import checks, common, inputs
from benchmarks.clusters import CLUSTERS, Cluster, Finished, Shape
from benchmarks.common import CONSOLE, Ratio
from benchmarks.processes import BenchmarkError, in_directory
from benchmarks.text import build_text

__all__ = ["Measurements", "Plan", "Workload", "main", "workloads"]

APPS = Path(__file__).resolve().parent / "apps"
OURS = "hrm"
_QUERIES = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements."""

    scale_factor: float = 0.1
    runs: int = 5
    text_mb: float = 50
    sort_rows: int = 2_000_000
    batches: int = 12
    batch_rows: int = 20_000
    run_timeout_s: float = 600.0


QUICK = Plan(
    scale_factor=0.01, runs=1, text_mb=5, sort_rows=200_000, batches=5, batch_rows=2_000,
    run_timeout_s=180.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One application, its arguments for a run, and the check of its result."""

    name: str
    app: Path
    arguments: Callable[[Path], list[object]]
    check: Callable[[dict[str, Any], Path], list[str]]


@dataclass(slots=True)
class Measurements:
    """All measurements: workload → system → runs."""

    runs: dict[str, dict[str, list[Finished]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    tpch_correct: dict[str, list[int]] = field(default_factory=dict)

    def add(self, workload: str, system: str, finished: Finished) -> None:
        self.runs.setdefault(workload, {}).setdefault(system, []).append(finished)

    def values(self, workload: str, system: str, what: str) -> list[float]:
        """One kind of time over the runs: first_task, total or inside."""
        runs = self.runs.get(workload, {}).get(system, [])
        if what == "inside":
            return [float(run.result["elapsed_s"]) for run in runs]
        return [float(getattr(run, f"{what}_s")) for run in runs]


def workloads(plan: Plan, cache: Path, measurements: Measurements) -> dict[str, Workload]:
    """The four workloads, with generated inputs and computed correct results."""
    text = Path(build_text(cache, plan.text_mb).path)
    with text.open(encoding="utf-8", newline="\n") as lines:
        words = checks.expected_words(lines)
    stream = inputs.stream_files(cache, plan.batches, plan.batch_rows)
    topk = checks.expected_files_topk(stream, 10)
    tables = inputs.tpch_tables(cache, plan.scale_factor)
    reference = checks.duckdb_results(tables, plan.scale_factor)

    def check_sort(_result: dict[str, Any], directory: Path) -> list[str]:
        complaints = checks.sort_complaints(directory / "sorted", plan.sort_rows)
        shutil.rmtree(directory / "sorted", ignore_errors=True)
        return complaints

    def check_tpch(_result: dict[str, Any], directory: Path) -> list[str]:
        ours = checks.read_results(directory / "answers.json")
        found = checks.tpch_complaints(ours, reference, plan.scale_factor)
        correct = sum(not complaints for complaints in found.values())
        measurements.tpch_correct.setdefault(directory.name.split("-")[0], []).append(correct)
        return [f"{query}: {text}" for query, texts in found.items() for text in texts]

    every = [
        Workload(
            name="wordcount", app=APPS / "wordcount.py",
            arguments=lambda _: ["--input", text],
            check=lambda result, _: checks.wordcount_complaints(result, words),
        ),
        Workload(
            name="sort", app=APPS / "sort.py",
            arguments=lambda d: ["--rows", plan.sort_rows, "--output", d / "sorted"],
            check=check_sort,
        ),
        Workload(
            name="topk", app=APPS / "topk_stream.py",
            arguments=lambda d: [
                "--source", "files", "--input", stream, "--batches", plan.batches, "--k", 10,
                "--quiet", "--checkpoint", d / "checkpoint", "--timeout", plan.run_timeout_s,
            ],
            check=lambda result, _: checks.topk_complaints(result, topk),
        ),
        Workload(
            name="tpch", app=APPS / "tpch.py",
            arguments=lambda d: [
                "--data", tables, "--scale-factor", plan.scale_factor,
                "--answers", d / "answers.json",
            ],
            check=check_tpch,
        ),
    ]  # fmt: skip
    return {workload.name: workload for workload in every}


def run_once(cluster: Cluster, workload: Workload, directory: Path, timeout_s: float) -> Finished:
    """Submit, wait, check.

    Raises:
        BenchmarkError: the run failed or its result is wrong.
    """
    submission = cluster.submit(workload.app, workload.arguments(directory), directory)
    finished = submission.finish(timeout_s)
    complaints = workload.check(finished.result, directory)
    if complaints:
        raise BenchmarkError(f"wrong answer: {'; '.join(complaints[:3])}")
    return finished


def measure(
    clusters: dict[str, Cluster],
    chosen: Sequence[Workload],
    plan: Plan,
    directory: Path,
    measurements: Measurements,
) -> None:
    """Run everything, interleaved, after one uncounted run on every cluster."""
    order = common.interleaved(list(clusters), plan.runs)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(), console=CONSOLE,
    ) as progress:  # fmt: skip
        bar = progress.add_task("warm-up", total=len(clusters) + len(order) * len(chosen))
        progress.update(bar, description=f"{chosen[0].name}, uncounted")
        # Not counted, so both at once: fills the page cache, compiles what is compiled once.
        warming = []
        for system, cluster in clusters.items():
            where = directory / f"{system}-warmup"
            warming.append(cluster.submit(chosen[0].app, chosen[0].arguments(where), where))
        for submission in warming:
            submission.finish(plan.run_timeout_s)
            progress.advance(bar)
        for cluster in clusters.values():
            cluster.settle()
        for workload in chosen:
            for run, system in order:
                progress.update(bar, description=f"{workload.name} on {system}")
                where = directory / f"{system}-{workload.name}-{run}"
                try:
                    finished = run_once(clusters[system], workload, where, plan.run_timeout_s)
                    measurements.add(workload.name, system, finished)
                    progress.console.print(
                        f"{workload.name:>10} {system:<10}"
                        f"  first task {finished.first_task_s:6.2f} s"
                        f"  end {finished.total_s:6.2f} s"
                        f"  inside {finished.result['elapsed_s']:6.2f} s"
                    )
                except BenchmarkError as error:
                    measurements.failures.append(f"{workload.name} on {system}: {error}")
                    progress.console.print(
                        f"FAILED {workload.name} on {system}: {error}", markup=False
                    )
                progress.advance(bar)


def ratios(measurements: Measurements, names: Sequence[str], peer: str) -> dict[str, Any]:
    """Ratios HRM/peer for every kind of time: over all workloads, and each by itself."""
    found: dict[str, Any] = {}
    for what in ("first_task", "total", "inside"):
        pairs = {
            name: (measurements.values(name, OURS, what), measurements.values(name, peer, what))
            for name in names
        }
        whole = {name: pair for name, pair in pairs.items() if pair[0] and pair[1]}
        overall: Ratio | None = common.geometric_ratio(list(whole.values())) if whole else None
        found[what] = {
            "all": overall,
            **{name: common.ratio_of_medians(*pair) for name, pair in whole.items()},
        }
    return found


def document(
    measurements: Measurements, names: Sequence[str], systems: Sequence[str], plan: Plan,
    shape: Shape,
) -> dict[str, Any]:  # fmt: skip
    """Everything as one JSON object; the short names on top are for comparison over time."""
    peer = next((system for system in systems if system != OURS), OURS)
    found = ratios(measurements, names, peer)

    def value(what: str) -> float | None:
        ratio = found[what]["all"]
        return None if ratio is None else round(ratio.value, 4)

    def correct(system: str) -> int | None:
        counts = measurements.tpch_correct.get(system)
        return min(counts) if counts else None

    return {
        "benchmark": "spark",
        "peer": peer,
        "ratio_first_task": value("first_task"),
        "ratio_total": value("total"),
        "ratio_inside": value("inside"),
        "tpch_correct": correct(OURS if OURS in systems else peer),
        "tpch_correct_peer": correct(peer),
        "failed_runs": len(measurements.failures),
        "failures": measurements.failures,
        "plan": asdict(plan),
        "shape": asdict(shape),
        "ratios": {
            what: {name: ratio and ratio.as_json() for name, ratio in each.items()}
            for what, each in found.items()
        },
        "runs": {
            name: {system: [asdict(run) for run in runs] for system, runs in each.items()}
            for name, each in measurements.runs.items()
        },
        "medians": {
            name: {
                system: {
                    what: common.median(measurements.values(name, system, what))
                    for what in ("first_task", "total", "inside")
                }
                for system in each
            }
            for name, each in measurements.runs.items()
        },
    }


def report(document: dict[str, Any], measurements: Measurements, systems: Sequence[str]) -> str:
    """The Markdown below the head of the results file."""
    shape, plan, medians = document["shape"], document["plan"], document["medians"]
    found = document["ratios"]

    def ratio(what: str, name: str) -> str | None:
        each = found[what].get(name)
        return each and f"{each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}]"

    parts = [
        f"{shape['nodes']} nodes of {shape['cores_per_node']} cores and "
        f"{shape['memory_per_node_mib']} MiB; {shape['executors']} executors of "
        f"{shape['executor_cores']} cores and {shape['executor_memory_mib']} MiB heap; "
        f"{plan['runs']} runs each, interleaved, after one uncounted run on each and when HRM's "
        "archives of classes, which it makes by itself, were there. Both clusters are up all the "
        "time, on the same machine, with the same settings: Spark's RPC authenticated, "
        "application UI off, event log on, "
        f"{shape['shuffle_partitions']} shuffle partitions, work begins with the first executor "
        "(minRegisteredResourcesRatio 0), no JVM options beyond what each "
        "manager sets by itself. HRM isolates its executors, Standalone has no such thing.",
        f"TPC-H at scale factor {plan['scale_factor']:g}, text of {plan['text_mb']:g} MB, "
        f"{plan['sort_rows']} rows sorted, {plan['batches']} micro-batches of "
        f"{plan['batch_rows']} rows.",
    ]
    for what, title in (
        ("first_task", "From submit to the first task, seconds"),
        ("total", "From submit to the end, seconds"),
        ("inside", "Inside the application, seconds"),
    ):
        rows: list[list[object]] = [
            [name, *(each.get(system, {}).get(what) for system in systems), ratio(what, name)]
            for name, each in medians.items()
        ]
        rows.append(["all (geometric mean)", *([None] * len(systems)), ratio(what, "all")])
        header = ["workload", *(f"{s}, median" for s in systems), "ratio [95 %]"]
        parts.append(f"## {title}\n\n{common.table(header, rows)}")
    if "tpch" in medians:
        parts.append(f"## TPC-H query by query\n\n{_query_table(measurements, systems)}")
    right = ", ".join(f"{s}: {min(n)} of {_QUERIES}" for s, n in measurements.tpch_correct.items())
    parts.append(
        "## Answers\n\nEvery counted run was checked: WordCount against a Python Counter, Sort row "
        "by row, Top-K after its last micro-batches, TPC-H against DuckDB"
        f"{f' ({right})' if right else ''}. Failed runs: {document['failed_runs']}."
    )
    parts += [f"- {failure.splitlines()[0]}" for failure in measurements.failures]
    return "\n\n".join(parts)


def _query_table(measurements: Measurements, systems: Sequence[str]) -> str:
    runs = measurements.runs["tpch"]
    names = next(iter(runs.values()))[0].result["queries"]
    rows = [
        [
            name,
            *(
                common.median([run.result["queries"][name] for run in runs[system]])
                if system in runs
                else None
                for system in systems
            ),
        ]
        for name in names
    ]
    return common.table(["query", *(f"{s}, median s" for s in systems)], rows)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--peer", choices=["standalone"], default="standalone")
    parser.add_argument(
        "--systems", help="comma-separated; default hrm and the peer (others: local)"
    )
    parser.add_argument("--only", help="comma-separated: wordcount,sort,topk,tpch")
    parser.add_argument("--scale-factor", type=float, help="of TPC-H (default 0.1)")
    parser.add_argument("--runs", type=int, help="counted runs of each (default 5)")
    parser.add_argument("--text-mb", type=float, help="text of WordCount (default 50)")
    parser.add_argument("--sort-rows", type=int, help="rows of Sort (default 2,000,000)")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cores", type=int, help="per node (default: the machine's, shared out)")
    parser.add_argument("--keep", action="store_true", help="keep logs and event logs")
    given = parser.parse_args(arguments)
    for name in ("scale_factor", "runs", "text_mb", "sort_rows", "nodes", "cores"):
        value = getattr(given, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be more than 0, not {value}")
    given.systems = given.systems.split(",") if given.systems else [OURS, given.peer]
    if unknown := [system for system in given.systems if system not in CLUSTERS]:
        parser.error(f"no system {unknown[0]!r}; there are {', '.join(CLUSTERS)}")
    given.only = given.only.split(",") if given.only else ["wordcount", "sort", "topk", "tpch"]
    if unknown := [n for n in given.only if n not in ("wordcount", "sort", "topk", "tpch")]:
        parser.error(f"no workload {unknown[0]!r}; there are wordcount, sort, topk, tpch")
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of the command line: flags over ``--quick`` over the defaults."""
    base = asdict(QUICK if given.quick else Plan())
    for name in ("scale_factor", "runs", "text_mb", "sort_rows"):
        if getattr(given, name) is not None:
            base[name] = getattr(given, name)
    return Plan(**base)


def shape_of(given: argparse.Namespace) -> Shape:
    """As many executors as nodes, each with a whole node's cores."""
    machine_cores = psutil.cpu_count() or 1
    cores = given.cores or max(1, machine_cores // given.nodes)
    return Shape(
        nodes=given.nodes, cores_per_node=cores, executors=given.nodes, executor_cores=cores
    )


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; the exit status."""
    plan, shape = plan_of(given), shape_of(given)
    provenance = common.provenance("benchmarks.spark", ("duckdb", "tpchgen-cli"))
    measurements = Measurements()
    with CONSOLE.status("generating inputs and their right answers"):
        every = workloads(plan, given.cache_dir, measurements)
    chosen = [every[name] for name in given.only]
    with contextlib.ExitStack() as running:
        clusters: dict[str, Cluster] = {}
        for system in given.systems:
            with CONSOLE.status(f"starting {system}"):
                cluster = CLUSTERS[system](shape, directory / f"cluster-{system}")
                clusters[system] = running.enter_context(cluster)
        measure(clusters, chosen, plan, directory, measurements)
    result = document(measurements, given.only, given.systems, plan, shape)
    result["provenance"] = provenance
    if given.json:
        common.write_json(given.json, result)
    body = report(result, measurements, given.systems)
    whole = OURS in given.systems and len(given.systems) > 1 and len(given.only) == len(every)
    if whole and not given.quick and not measurements.failures:
        title = f"Spark on HRM and on {given.peer.title()}"
        for path in common.write_results("spark", title, result, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 1 if measurements.failures else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-benchmark-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
