"""How soon `python app.py` has its first result: Standalone, and HRM with warm drivers.

    python -m benchmarks.client_start [--runs 7]
    python -m benchmarks.client_start --quick --json FILE

Clusters of one shape run all the time and take turns. An application of plain Python, without
spark-submit, runs one job and one small SQL query; both are timed from the start of ``python``. HRM
runs it with a warm driver and warm executors, and with warm executors alone. A run counts only if
its driver started as it was meant to, and if the answers are right.

A waiting driver is measured, too: the memory of its JVM and of the processes around it that is not
mapped from files, and the processor time that it takes while nothing happens.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import common
from benchmarks.clusters import Cluster, Shape, Standalone, Submission
from benchmarks.common import CONSOLE
from benchmarks.processes import BenchmarkError, in_directory, start, tail, wait_until
from benchmarks.startup import Taken, Warm

__all__ = ["TARGETS", "Plan", "document", "main", "report"]

APP = Path(__file__).resolve().parent / "apps" / "first_task.py"
PEER = "standalone"
TARGETS = {"first_task_client_ratio": 0.25, "short_sql_ratio": 0.25}
_MEANING = {
    "first_task_client_ratio": ("first_task", "python → result of the first job"),
    "short_sql_ratio": ("short_sql", "python → result of a small SQL query after it"),
}
_READY_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements."""

    runs: int = 7
    run_timeout_s: float = 180.0
    idle_s: float = 30.0


class _Plain(Cluster):
    """Applications are plain programs of Python, all in one directory."""

    def environment(self) -> dict[str, str]:
        settings = {"spark.master": self.master, **self.submit_settings()}
        settings["spark.eventLog.enabled"] = "false"
        words = (word for name, value in settings.items() for word in ("--conf", f"{name}={value}"))
        return {
            **super().environment(),
            "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
        }

    def submit_command(
        self, app: Path, arguments: Sequence[object], settings: Mapping[str, str]
    ) -> list[str]:
        return [sys.executable, str(app), *map(str, arguments)]

    def run_plain(self, where: Path, limit_s: float) -> tuple[dict[str, Any], float]:
        """What the application has printed, and when it was started."""
        process = start(
            self.submit_command(APP, [], {}), log=where / "stderr", output=where / "stdout",
            environment=self.environment(), directory=self.directory,
        )  # fmt: skip
        submission = Submission(process, where)
        self._submissions.append(submission)
        return submission.result(limit_s), process.started_at_s


class PlainStandalone(_Plain, Standalone):
    """Spark's own manager."""


class ColdDrivers(_Plain, Warm):
    """HRM with warm executors alone."""

    name = "warm executors"
    begins = ""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "HRM_HOME": str(self.state_dir)}


class WarmDrivers(ColdDrivers):
    """HRM with warm executors, and with a warm driver for this directory."""

    name = "warm"
    begins = "warm"

    def start(self) -> None:
        super().start()
        self._command("warm", [])

    def stop(self) -> None:
        if self._up:
            self._command("warm-stop", ["--stop"])
        super().stop()

    def _command(self, name: str, arguments: list[str]) -> None:
        log = self.directory / f"{name}.log"
        command = self.command("warm", *arguments)
        environment = {**self.environment(), "HRM_MASTER": self.master[len("hrm://") :]}
        done = start(command, log=log, environment=environment, directory=self.directory)
        if done.wait(_READY_LIMIT_S) != 0:
            raise BenchmarkError(f"hrm warm failed:\n{tail(log)}")

    def settle(self) -> None:
        super().settle()
        wait_until(lambda: self.kinds()[-1]["ready"] == 1, _READY_LIMIT_S, "a warm driver", 1.0)

    def kinds(self) -> list[dict[str, Any]]:
        """What it keeps, as in ``hrm warm --status``."""
        output = self.directory / "warm.json"
        command = self.command("warm", "--status", "--output", "json")
        log = self.directory / "hrm.log"
        asked = start(command, log=log, output=output, environment=self.environment())
        if asked.wait(30.0) != 0:
            raise BenchmarkError(f"hrm warm --status failed:\n{tail(log)}")
        return list(json.loads(output.read_text())["kinds"])


def measure(clusters: Mapping[str, _Plain], plan: Plan, directory: Path) -> Taken:
    """Everything, interleaved, after one uncounted run of each.

    Raises:
        BenchmarkError: a run failed, or was not what it is meant to be.
    """
    taken = Taken()
    for number, system in common.interleaved(list(clusters), plan.runs + 1):
        cluster = clusters[system]
        cluster.settle()
        found, begun_s = cluster.run_plain(directory / f"{system}-{number}", plan.run_timeout_s)
        if not found["right"]:
            raise BenchmarkError(f"wrong answer on {system}")
        if found["start"] != getattr(cluster, "begins", ""):
            raise BenchmarkError(f"on {system} the driver's start was {found['start']!r}")
        times = {"first_task": found["task_at_s"], "short_sql": found["sql_at_s"]}
        for what, at_s in times.items():
            if number:
                taken.add(what, system, at_s - begun_s)
        shown = ", ".join(f"{what} {at_s - begun_s:.2f} s" for what, at_s in times.items())
        CONSOLE.print(f"{system:<14} run {number} of {plan.runs}: {shown}")
    return taken


def idle(cluster: WarmDrivers, plan: Plan) -> dict[str, float]:
    """Of the driver that waits: MiB that are not mapped from files, and the share of a core."""
    cluster.settle()
    around = [p for p in psutil.process_iter() if _is_waiting(p, cluster)]
    if not around:
        raise BenchmarkError("no warm driver waits")
    own = [each for p in around for each in (p, *p.children(recursive=True))]
    before_s, since_s = sum(map(_cpu_s, own)), time.monotonic()
    time.sleep(plan.idle_s)
    passed_s = time.monotonic() - since_s
    mapped = [p.memory_info() for p in own]
    return {
        "idle_mib": sum(m.rss - m.shared for m in mapped) / 2**20,
        "idle_cpu": (sum(map(_cpu_s, own)) - before_s) / passed_s,
    }


def _is_waiting(process: psutil.Process, cluster: WarmDrivers) -> bool:
    """Whether it is the parent of a warm JVM of this cluster's user."""
    try:
        return "hrm.spark.warm.holder" in process.cmdline() and (
            process.environ().get("HRM_HOME") == str(cluster.state_dir)
        )
    except psutil.Error:
        return False


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def document(
    taken: Taken, waiting: Mapping[str, float], plan: Plan, shape: Shape
) -> dict[str, Any]:
    """Everything as one JSON object; the ratios on top are for comparison over time."""
    found = {
        name: common.ratio_of_medians(
            taken.values[what][WarmDrivers.name], taken.values[what][PEER]
        )
        for name, (what, _) in _MEANING.items()
    }
    return {
        "benchmark": "client-start",
        **{name: round(ratio.value, 4) for name, ratio in found.items()},
        **{name: round(value, 4) for name, value in waiting.items()},
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
    for name, (what, words) in _MEANING.items():
        medians, ratio = document["medians"][what], document["intervals"][name]
        met = "met" if document[name] <= TARGETS[name] else "missed"
        if ratio["low"] < TARGETS[name] < ratio["high"]:
            met += " by the median; the interval reaches across"
        interval = f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
        times = [medians[PEER], medians[ColdDrivers.name], medians[WarmDrivers.name]]
        rows.append([words, *times, interval, f"≤ {TARGETS[name]}", met])
    header = ["what", "Standalone, s", "warm executors, s", "and warm driver, s"]
    header += ["ratio [95 %]", "target", ""]
    about = (
        f"{shape['nodes']} nodes, {shape['executors']} executors of {shape['executor_cores']} "
        f"cores and {shape['executor_memory_mib']} MiB heap; {plan['runs']} runs each, "
        f"interleaved, after one uncounted run on each; medians. `python` itself is in all times. "
        f"A driver that waits takes {document['idle_mib']:.0f} MiB, with the processes around it, "
        f"and {document['idle_cpu']:.4f} of a core."
    )
    return f"{about}\n\n{common.table(header, rows)}"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.client_start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--runs", type=int, help="counted runs of each (default 7; quick 3)")
    parser.add_argument("--keep", action="store_true", help="keep logs")
    given = parser.parse_args(arguments)
    if given.runs is not None and given.runs <= 0:
        parser.error(f"--runs must be more than 0, not {given.runs}")
    return given


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; 0, or it raises."""
    plan = Plan(runs=given.runs or (3 if given.quick else Plan().runs))
    shape = Shape()
    provenance = common.provenance("benchmarks.client_start")
    systems = {PEER: PlainStandalone, ColdDrivers.name: ColdDrivers, WarmDrivers.name: WarmDrivers}
    with ExitStack() as running:
        clusters: dict[str, _Plain] = {}
        for system, make in systems.items():
            CONSOLE.print(f"starting {system}")
            place = directory / system.replace(" ", "-")
            clusters[system] = running.enter_context(make(shape, place))
        taken = measure(clusters, plan, directory / "runs")
        warm = clusters[WarmDrivers.name]
        assert isinstance(warm, WarmDrivers)
        waiting = idle(warm, plan)
    result = {**document(taken, waiting, plan, shape), "provenance": provenance}
    if given.json:
        common.write_json(given.json, result)
    body = report(result)
    if not given.quick:
        title = "How soon python app.py has its first result"
        for path in common.write_results("client-start", title, result, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-client-start-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
