"""How fast executors start: HRM with archives, HRM with warm JVMs, and Spark Standalone.

    python -m benchmarks.startup [--runs 7]
    python -m benchmarks.startup --quick --json FILE

Three clusters of one shape run all the time and take turns. Two times are kept of every run: from
the start of an executor's process until its driver has registered it (``launch``), and from
``spark-submit`` until the first task. A warm JVM has started long before; there the clock runs from
HRM's order to be an executor, as the agent records it. A short word count is timed from
``spark-submit`` to its end.

Archives are made before the clock runs, and warm JVMs are ready: what is measured is a cluster in
use, not one that has just been set up.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.checks import expected_words, wordcount_complaints
from benchmarks.clusters import Cluster, Finished, Hrm, Shape, Standalone
from benchmarks.common import CONSOLE, Ratio
from benchmarks.processes import BenchmarkError, in_directory, start, tail, wait_until
from benchmarks.text import build_text
from hrm.config import hrm_home

__all__ = ["TARGETS", "Plan", "Taken", "document", "launches", "main", "report"]

APPS = Path(__file__).resolve().parent / "apps"
PEER = "standalone"
TARGETS = {
    "launch_archive_ratio": 0.65,
    "launch_warm_ratio": 0.15,
    "first_task_ratio": 0.8,
    "wordcount_warm_ratio": 0.55,
}
_MEANING = {
    "launch_archive_ratio": ("launch", "archive", "executor launch → registered, archive"),
    "launch_warm_ratio": ("launch", "warm", "executor launch → registered, warm pool"),
    "first_task_ratio": ("first_task", "archive", "submit → first task, default settings"),
    "wordcount_warm_ratio": ("wordcount", "warm", "submit → end of a short word count, warm pool"),
}
_TRAINING_LIMIT_S = 300.0
_READY_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements."""

    runs: int = 7
    text_mb: float = 1.0
    run_timeout_s: float = 180.0


QUICK = Plan(runs=3)


@dataclass(slots=True)
class Taken:
    """Seconds: what → system → one value per run (of launches: one per executor)."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, what: str, system: str, *seconds: float) -> None:
        self.values.setdefault(what, {}).setdefault(system, []).extend(seconds)


class Started(Hrm):
    """HRM whose archives and plugin are kept for the clusters of later runs."""

    name = "archive"
    warm = 0

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "HRM_AGENT_WARM_EXECUTORS": str(self.warm)}

    def configure(self) -> None:
        """Before anything of the cluster starts; its state directory is there."""

    def start(self) -> None:
        self.state_dir.mkdir(mode=0o700, parents=True)
        for name, home in (("archives", common.cache_dir()), ("plugins", hrm_home())):
            (home / name).mkdir(parents=True, exist_ok=True)
            (self.state_dir / name).symlink_to(home / name)
        self.configure()
        environment = {**self.environment(), "HRM_HOME": str(self.state_dir)}
        log = self.directory / "archive.log"
        made = start(self.command("env", "--archive"), log=log, environment=environment)
        if made.wait(_TRAINING_LIMIT_S) != 0:
            raise BenchmarkError(f"no archive:\n{tail(log)}")
        super().start()
        self.settle()

    def ordered(self, application: str) -> dict[str, float]:
        """When each executor of an application was ordered to start, seconds since the epoch."""
        found = {}
        for record in self.state_dir.glob("nodes/*/containers/*/container.json"):
            spec = json.loads(record.read_text())["spec"]
            if spec["applicationId"] == application:
                process = json.loads(record.with_name("process.json").read_text())
                found[spec["executorId"]] = float(process["started_at_s"])
        return found


class Warm(Started):
    """The same with one warm JVM on every node."""

    name = "warm"
    warm = 1

    def settle(self) -> None:
        super().settle()
        shortcuts = [s for n in self.nodes() for s in n["shortcuts"]]
        asked = sum(s["used"] + s["missed"] for s in shortcuts if s["name"] == "warm-executors")
        if asked:  # the first executors determine the kind
            wait_until(lambda: self.is_ready("warm-executors"), _READY_LIMIT_S, "warm JVMs", 1.0)


SYSTEMS: dict[str, type[Cluster]] = {PEER: Standalone, "archive": Started, "warm": Warm}


def registered(events: Path) -> tuple[str, dict[str, float]]:
    """The application's id, and when its driver registered each executor, from its event log."""
    application, found = "", {}
    for path in sorted(p for p in events.rglob("*") if p.is_file() and p.suffix != ".crc"):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith('{"Event":"SparkListenerExecutorAdded"'):
                event = json.loads(line)
                found[event["Executor ID"]] = event["Timestamp"] / 1000
            elif line.startswith('{"Event":"SparkListenerApplicationStart"'):
                application = json.loads(line)["App ID"]
    return application, found


def launches(cluster: Cluster, finished: Finished, directory: Path) -> list[float]:
    """How long each executor took, from its start until it was registered."""
    application, at = registered(directory / "events")
    began: dict[str, float] = finished.result["executors"]
    if isinstance(cluster, Warm):
        began = cluster.ordered(application)
    found = [at[executor] - began[executor] for executor in at if executor in began]
    if not found:
        raise BenchmarkError(f"no start of an executor is known; see {directory}")
    return found


def run(
    cluster: Cluster, app: str, arguments: Sequence[object], directory: Path, plan: Plan
) -> Any:
    """One application, when the cluster is ready for it."""
    cluster.settle()
    return cluster.submit(APPS / app, arguments, directory).finish(plan.run_timeout_s)


def measure(clusters: dict[str, Cluster], plan: Plan, directory: Path, cache: Path) -> Taken:
    """Everything, interleaved, after one uncounted run of each.

    Raises:
        BenchmarkError: a run failed, or did not use what it is meant to measure.
    """
    text = Path(build_text(cache, plan.text_mb).path)
    with text.open(encoding="utf-8", newline="\n") as lines:
        words = expected_words(lines)
    taken = Taken()
    for system, cluster in clusters.items():
        executors = ["--executors", cluster.shape.executors]
        run(cluster, "launch.py", executors, directory / f"{system}-warmup", plan)
    for number, system in common.interleaved(list(clusters), plan.runs):
        cluster = clusters[system]
        where = directory / f"{system}-launch-{number}"
        before = _used(cluster)
        executors = ["--executors", cluster.shape.executors]
        finished = run(cluster, "launch.py", executors, where, plan)
        taken.add("launch", system, *launches(cluster, finished, where))
        taken.add("first_task", system, finished.first_task_s)
        if system != "archive":
            place = directory / f"{system}-wordcount-{number}"
            finished = run(cluster, "wordcount.py", ["--input", text], place, plan)
            if complaints := wordcount_complaints(finished.result, words):
                raise BenchmarkError(f"wrong answer on {system}: {complaints[0]}")
            taken.add("wordcount", system, finished.total_s)
        _check_use(cluster, before, system)
        CONSOLE.print(f"{system:<10} run {number + 1} of {plan.runs}")
    return taken


def _used(cluster: Cluster) -> int:
    if not isinstance(cluster, Started):
        return 0
    return cluster.used("warm-executors" if isinstance(cluster, Warm) else "executor-archive")


def _check_use(cluster: Cluster, before: int, system: str) -> None:
    """A cold start must not count as a warm one."""
    if not isinstance(cluster, Started):
        return
    wanted = cluster.shape.executors * (2 if isinstance(cluster, Warm) else 1)
    # The nodes report it with their heartbeats.
    wait_until(
        lambda: _used(cluster) - before >= wanted, 10.0, f"{system} to use its shortcut", 0.5
    )


def document(taken: Taken, plan: Plan, shape: Shape) -> dict[str, Any]:
    """Everything as one JSON object; the ratios on top are for comparison over time."""
    found: dict[str, Ratio] = {}
    for name, (what, system, _) in _MEANING.items():
        each = taken.values[what]
        found[name] = common.ratio_of_medians(each[system], each[PEER])
    return {
        "benchmark": "startup",
        **{name: round(ratio.value, 4) for name, ratio in found.items()},
        "intervals": {name: ratio.as_json() for name, ratio in found.items()},
        "targets": TARGETS,
        "plan": asdict(plan),
        "shape": asdict(shape),
        "seconds": taken.values,
        "medians": {
            what: {system: common.median(values) for system, values in each.items()}
            for what, each in taken.values.items()
        },
    }


def report(document: dict[str, Any]) -> str:
    """The Markdown below the head of the results file."""
    shape, plan = document["shape"], document["plan"]
    rows: list[list[object]] = []
    for name, (what, system, words) in _MEANING.items():
        medians, ratio = document["medians"][what], document["intervals"][name]
        met = "met" if document[name] <= TARGETS[name] else "missed"
        if ratio["low"] < TARGETS[name] < ratio["high"]:
            met += " by the median; the interval reaches across"
        interval = f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
        rows.append([words, medians[PEER], medians[system], interval, f"≤ {TARGETS[name]}", met])
    header = ["what", "Standalone, s", "HRM, s", "ratio [95 %]", "target", ""]
    about = (
        f"{shape['nodes']} nodes, {shape['executors']} executors of {shape['executor_cores']} "
        f"cores and {shape['executor_memory_mib']} MiB heap; {plan['runs']} runs each, "
        f"interleaved, after one uncounted run on each; medians. Word count over "
        f"{plan['text_mb']:g} MB. Spark's RPC is authenticated on both; archives had been made, "
        f"and one warm JVM a node was ready, before the clock ran. TPC-H with default settings is "
        f"measured by `benchmarks.spark` (target ≤ 0.95)."
    )
    return f"{about}\n\n{common.table(header, rows)}"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--runs", type=int, help="counted runs of each (default 7; quick 3)")
    parser.add_argument("--keep", action="store_true", help="keep logs and event logs")
    given = parser.parse_args(arguments)
    if given.runs is not None and given.runs <= 0:
        parser.error(f"--runs must be more than 0, not {given.runs}")
    return given


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; 0, or it raises."""
    plan = QUICK if given.quick else Plan()
    if given.runs is not None:
        plan = Plan(runs=given.runs)
    shape = Shape()
    provenance = common.provenance("benchmarks.startup")
    with ExitStack() as running:
        clusters: dict[str, Cluster] = {}
        for system, make in SYSTEMS.items():
            CONSOLE.print(f"starting {system}")
            clusters[system] = running.enter_context(make(shape, directory / system))
        taken = measure(clusters, plan, directory / "runs", given.cache_dir)
    result = {**document(taken, plan, shape), "provenance": provenance}
    if given.json:
        common.write_json(given.json, result)
    body = report(result)
    if not given.quick:
        for path in common.write_results("startup", "How fast executors start", result, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-startup-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
