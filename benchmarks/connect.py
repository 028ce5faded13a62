"""How soon a Python program has its first result: at a warm Connect server, a new one, or alone.

    python -m benchmarks.connect [--runs 7]
    python -m benchmarks.connect --quick --json FILE

One cluster of HRM, three ways to one small query with a shuffle, interleaved. ``warm``: a new
session at the server of ``hrm connect``. ``first``: the first session at a Connect server that was
submitted as any driver is, as soon as it accepts connections. ``alone``: a driver of its own, in
client mode. Two times of each: of the session, from the end of Python's imports to the result, and
from the start of the process, imports included.

On a busy machine compare the processor time of warm sessions, which is kept of the client and of
the server with its executors: the other two are times of a clock.

Archives of classes have been made before the clock runs, and Python's files are in the page cache
after an uncounted session.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.clusters import Shape
from benchmarks.common import CONSOLE
from benchmarks.processes import (
    BenchmarkError,
    free_port,
    in_directory,
    processor_s,
    start,
    tail,
    wait_until,
)
from benchmarks.startup import Started
from hrm.spark_servers import CONNECT_CLASS

__all__ = ["TARGETS", "Seconds", "document", "main", "report"]

APP = Path(__file__).resolve().parent / "apps" / "small_query.py"
TOTAL = 49_995_000
"""Of the numbers below 10,000: the answer."""
WAYS = {
    "warm": "a session at the server of `hrm connect`",
    "first": "the first session at a submitted Connect server",
    "alone": "`python app.py`, a driver of its own",
}
TARGETS = {"session_warm_s": 1.0}
RUNS, QUICK_RUNS = 7, 3
SERVER_LIMIT_S = 600.0
RUN_LIMIT_S = 600.0
_SHAPE = Shape(nodes=2, cores_per_node=4, memory_per_node_mib=6144)
_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
}
"""Of all three; ``first`` and ``alone`` have one executor, as ``warm`` keeps one."""
_ONE = {"spark.executor.instances": "1"}


@dataclass(slots=True)
class Seconds:
    """Of each way, one value per run: of the session, and of the whole process. ``client``,
    ``server``: processor time of warm sessions."""

    session: dict[str, list[float]] = field(default_factory=dict)
    process: dict[str, list[float]] = field(default_factory=dict)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)


class Shared(Started):
    """Two servers at a time; none waits for executors of the other."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "HRM_MASTER_DRIVER_SHARE": "0.5"}


def options(settings: Mapping[str, str]) -> list[str]:
    return [each for key, value in settings.items() for each in ("--conf", f"{key}={value}")]


class Ways:
    """The three ways on one cluster."""

    def __init__(self, cluster: Started, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.warm = self._warm()

    def run(self, way: str, number: int, taken: Seconds) -> None:
        """One run; adds its times.

        Raises:
            BenchmarkError: it failed, or its answer was wrong.
        """
        log = self.directory / f"{way}-{number}.log"
        before_s = processor_s(self.cluster.state_dir, "java")
        answer = self._result(way, log)
        if way == "warm":
            taken.client.append(answer["processor_s"])
            taken.server.append(processor_s(self.cluster.state_dir, "java") - before_s)
        taken.session.setdefault(way, []).append(answer["session_s"])
        taken.process.setdefault(way, []).append(answer["process_s"])

    def _result(self, way: str, log: Path) -> dict[str, float]:
        if way == "warm":
            return self._client(self.warm, log)
        if way == "alone":
            words = ["--master", self.cluster.master, *options({**_SETTINGS, **_ONE})]
            return self._client({"PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])}, log)
        return self._first(log)

    def _client(self, variables: Mapping[str, str], log: Path) -> dict[str, float]:
        output = log.with_suffix(".out")
        process = start(
            [sys.executable, str(APP)], log=log, output=output,
            environment={**self.cluster.environment(), **variables}, directory=self.directory,
        )  # fmt: skip
        if process.wait(RUN_LIMIT_S) != 0:
            raise BenchmarkError(f"the program failed:\n{tail(log)}")
        answer = json.loads(output.read_text().splitlines()[-1])
        if answer["total"] != TOTAL:
            raise BenchmarkError(f"wrong answer: {answer['total']}, not {TOTAL}")
        return {**answer, "process_s": answer["ended_at_s"] - process.started_at_s}

    def _warm(self) -> dict[str, str]:
        """What `hrm connect` exports. An administrator's home keeps its record."""
        command = self.cluster.command(
            "connect", "--export", "--output", "json", "--master", self.cluster.master,
            "--timeout", SERVER_LIMIT_S, *options(_SETTINGS),
        )  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=2 * SERVER_LIMIT_S,
            env={**self.cluster.environment(), "HRM_HOME": str(self.cluster.state_dir)},
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchmarkError(f"hrm connect failed: {done.stderr.strip()[-500:]}")
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def _first(self, log: Path) -> dict[str, float]:
        """A server of this run alone."""
        port = free_port()
        settings = {**_SETTINGS, **_ONE, "spark.connect.grpc.binding.port": str(port)}
        command = self.cluster.command(
            "submit", "--master", self.cluster.master, "--class", CONNECT_CLASS,
            *options({**settings, "spark.hrm.submit.tied": "30s"}), "spark-internal",
        )  # fmt: skip
        server = start(
            command, log=log.with_suffix(".server"), environment=self.cluster.environment()
        )

        def accepts() -> bool:
            if not server.running:
                raise BenchmarkError(f"the server ended:\n{tail(server.log)}")
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 5)):
                return True
            return False

        try:
            wait_until(accepts, SERVER_LIMIT_S, "the server accepts connections", 0.2)
            return self._client({"SPARK_REMOTE": f"sc://localhost:{port}"}, log)
        finally:
            server.end()


def measure(ways: Ways, runs: int, others: int) -> Seconds:
    """All three, interleaved, after an uncounted warm session; of all but ``warm`` the first
    ``others`` runs alone.

    Raises:
        BenchmarkError: a run failed, or its answer was wrong.
    """
    taken = Seconds()
    ways.run("warm", -1, Seconds())
    for number, way in common.interleaved(list(WAYS), runs):
        if way != "warm" and number >= others:
            continue
        ways.run(way, number, taken)
        session_s, process_s = taken.session[way][-1], taken.process[way][-1]
        CONSOLE.print(
            f"{way:<6} run {number + 1} of {runs}: {session_s:.2f} s, with imports {process_s:.2f}"
        )
    return taken


def document(taken: Seconds, loads: Sequence[float]) -> dict[str, Any]:
    """Everything as one JSON object; ``loads``: the machine's, before and after."""
    session = {way: common.median(values) for way, values in taken.session.items()}
    process = {way: common.median(values) for way, values in taken.process.items()}
    return {
        "benchmark": "connect",
        "session_warm_s": session["warm"],
        "targets": TARGETS,
        "loads_1m": list(loads),
        "seconds": {"session": taken.session, "process": taken.process},
        "processor_s": {"client": taken.client, "server": taken.server},
        "medians": {"session": session, "process": process},
        "processor_medians_s": {
            "client": common.median(taken.client),
            "server": common.median(taken.server),
        },
    }


def report(document: Mapping[str, Any]) -> str:
    """The Markdown below the head of the results file."""
    medians, every = document["medians"], document["seconds"]["session"]
    rows = [
        [
            words, len(every[way]), medians["session"][way], min(every[way]), max(every[way]),
            medians["process"][way], medians["process"]["warm"] / medians["process"][way],
        ]
        for way, words in WAYS.items()
    ]  # fmt: skip
    header = [
        "",
        "runs",
        "session, s",
        "least",
        "greatest",
        "with Python's imports, s",
        "warm / this",
    ]
    target = TARGETS["session_warm_s"]
    met = "met" if document["session_warm_s"] < target else "missed"
    before, after = document["loads_1m"]
    worked = document["processor_medians_s"]
    about = (
        f"Small SQL with a shuffle, interleaved, after an uncounted warm session; medians. Load of "
        f"the machine {before:.1f} before, {after:.1f} after. A warm session in less than "
        f"{target:g} s: {met}. Its processor time: {worked['client']:.2f} s of the client (without "
        f"imports), {worked['server']:.2f} s of the server and its executors."
    )
    return f"{about}\n\n{common.table(header, rows)}"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.connect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--runs", type=int, help=f"of each (default {RUNS}; quick {QUICK_RUNS})")
    parser.add_argument("--others", type=int, help="of all but warm (default: as --runs)")
    parser.add_argument("--keep", action="store_true", help="keep logs")
    given = parser.parse_args(arguments)
    for name in ("runs", "others"):
        if (value := getattr(given, name)) is not None and value <= 0:
            parser.error(f"--{name} must be more than 0, not {value}")
    return given


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; 0, or it raises."""
    runs = given.runs or (QUICK_RUNS if given.quick else RUNS)
    provenance = common.provenance("benchmarks.connect")
    (directory / "runs").mkdir()
    with Shared(_SHAPE, directory / "cluster") as cluster:
        ways = Ways(cluster, directory / "runs")
        before, begun_s = os.getloadavg()[0], time.monotonic()
        taken = measure(ways, runs, given.others or runs)
        CONSOLE.print(f"measured for {time.monotonic() - begun_s:.0f} s")
    result = {**document(taken, (before, os.getloadavg()[0])), "provenance": provenance}
    if given.json:
        common.write_json(given.json, result)
    body = report(result)
    if not given.quick:
        title = "A first result at a warm Connect server"
        for path in common.write_results("connect", title, result, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-connect-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
