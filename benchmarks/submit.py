"""How fast applications are submitted to a cluster of HRM, and how soon their drivers start.

    python -m benchmarks.submit                      # 900 of each; writes results/submit.md, .json
    python -m benchmarks.submit --quick --json FILE  # a few dozen of each, some minutes
    python -m benchmarks.submit --concurrency 1,4,16 --count 300

Two things are kept apart. *Accepted* is a submission that is durable at the master: its rate and
latency are the client's and the master's, so the nodes are drained meanwhile, and drivers wait.
*Start latency* runs from there until the driver's process may start, until its application is
registered, and until it has ended; it is measured on a few submissions of an idle cluster, one
after the other, because a Spark driver is a JVM of its own.

Clients: ``command`` is the process ``hrm submit``; ``spark-submit`` the stock script in deploy mode
cluster, which becomes that process; ``library`` is ``hrm.spark.submit.SubmissionClient`` in one
process, as a service uses it. ``1/s``: submission i is due at second i, and its latency runs from
then. ``max``: as many clients as the cell says submit one after the other. Processor time per
submission is given as well: other processes on the machine disturb it less.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks import common
from benchmarks.clusters import Hrm, Shape, spark_home
from benchmarks.common import CONSOLE
from benchmarks.processes import BenchmarkError, in_directory, wait_until
from benchmarks.scheduling.cells import percentile
from hrm import tls
from hrm.errors import HrmError
from hrm.spark import submit
from hrm.spark.submit_options import parse
from hrm.v1 import submission_pb2 as pb

__all__ = [
    "Accepted",
    "Cell",
    "Plan",
    "Start",
    "cells",
    "document",
    "figures",
    "main",
    "parse_arguments",
    "report",
    "submit_all",
]

APP = Path(__file__).resolve().parent / "apps" / "context.py"
PUBLISHED = (
    "Published by others, on their machines and clusters, so for orientation alone: Kubeflow's "
    "Spark operator 80 submissions/min with a JVM for each, 300 to 380 after spark-submit was "
    "rewritten in Go (kubeflow/spark-operator, issue 1574). 900 submissions at 1/s are the load of "
    "its issue 2337."
)
PACED, FASTEST = "1/s", "max"
CLIENTS = ("command", "library", "spark-submit")
_SETTINGS = {
    "spark.hrm.submit.waitAppCompletion": "false",
    "spark.driver.memory": "512m",
    "spark.executor.instances": "1",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "0.0",
    "spark.ui.enabled": "false",
}
_LATE_CLIENTS = 16
"""Of a paced cell: so many submissions may be under way at once."""
_COMMAND_LIMIT_S = 120.0
_START_LIMIT_S = 240.0
_EMPTY_LIMIT_S = 120.0
"""For killing what a cell has left behind; 900 submissions of a library are gone in seconds."""


@dataclass(frozen=True, slots=True)
class Cell:
    """``clients``: how many submit at once; of a paced cell, the most."""

    client: str
    pace: str
    clients: int

    def __str__(self) -> str:
        return f"{self.client} {self.pace} x{self.clients}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured. ``peer_count``: of the cells of the stock script."""

    count: int = 900
    peer_count: int = 30
    rate_per_s: float = 1.0
    concurrency: tuple[int, ...] = (1, 4)
    starts: int = 10
    repetitions: int = 3


QUICK = Plan(count=36, peer_count=6, starts=3, repetitions=1)


@dataclass(frozen=True, slots=True)
class Accepted:
    """One submission: when it was due or begun, and when it was accepted; seconds of one clock."""

    begun_s: float
    accepted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Of one submission: seconds from accepted until its driver may start (``running``), until its
    application is registered, and until it has ended."""

    running_s: float
    registered_s: float
    ended_s: float


def cells(plan: Plan) -> list[Cell]:
    """All of a round. The stock script is paced by nothing: it is there to be compared."""
    found = [Cell(client, PACED, _LATE_CLIENTS) for client in ("command", "library")]
    for client, clients in itertools.product(CLIENTS, plan.concurrency):
        if client != "spark-submit" or clients == max(plan.concurrency):
            found.append(Cell(client, FASTEST, clients))
    return found


def submit_all(
    one: Callable[[], object], count: int, clients: int, rate_per_s: float | None
) -> list[Accepted]:
    """``count`` submissions by ``clients`` threads; with a rate each is due at its time, and waits
    for a free client if there is none.

    Raises:
        BenchmarkError: one of them failed.
    """
    origin_s = time.monotonic()

    def run(number: int) -> Accepted:
        begun_s = time.monotonic()
        if rate_per_s is not None:
            due_s = origin_s + number / rate_per_s
            time.sleep(max(0.0, due_s - begun_s))
            begun_s = due_s
        one()
        return Accepted(begun_s, time.monotonic())

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(run, range(count)))


def figures(accepted: Sequence[Accepted]) -> dict[str, float]:
    """Rate and latencies of one cell."""
    spent_s = max(x.accepted_s for x in accepted) - min(x.begun_s for x in accepted)
    latencies_ms = [(x.accepted_s - x.begun_s) * 1000 for x in accepted]
    return {
        "count": len(accepted),
        "submissions_per_min": round(len(accepted) / spent_s * 60, 1),
        "p50_ms": round(percentile(latencies_ms, 0.5), 2),
        "p99_ms": round(percentile(latencies_ms, 0.99), 2),
    }


class Submitted(Hrm):
    """A cluster to submit to, and its clients."""

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "HRM_AGENT_CLASS_ARCHIVE": "false",  # would be built while the clock runs
            "HRM_MASTER_SUBMISSIONS_LIMIT": "10000",
            # Nothing but drivers is measured; by default they would have a fifth of the cores.
            "HRM_MASTER_DRIVER_SHARE": "1",
        }

    @property
    def target(self) -> str:
        return self.master.removeprefix("hrm://")

    def ended(self, *arguments: object) -> str:
        """What a command that must succeed has printed.

        Raises:
            BenchmarkError: it failed.
        """
        command = list(map(str, arguments))
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMMAND_LIMIT_S,
            env=self.environment(), cwd=self.directory, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchmarkError(f"{' '.join(command[:4])} …: {done.stderr.strip()[-500:]}")
        return done.stdout.strip()

    def arguments(self) -> list[str]:
        """Of every client: spark-submit's options."""
        settings = [x for key, value in _SETTINGS.items() for x in ("--conf", f"{key}={value}")]
        return ["--master", self.master, *settings, str(APP)]

    def drain(self) -> None:
        """From here on drivers wait at the master."""
        for node in self.nodes():
            self.ended(*self.command("node", "drain", node["name"], "--master", self.target))

    @contextmanager
    def library(self) -> Iterator[submit.SubmissionClient]:
        authority = tls.ca_file(self.token_file)
        with submit.connect(self.target, self.token_file, authority) as (client, _):
            yield client

    def once(self, client: submit.SubmissionClient) -> pb.Submission:
        """One submission by the library."""
        return client.submit(*submit.driver_spec(parse(self.arguments(), {})))

    def submitter(self, name: str, client: submit.SubmissionClient) -> Callable[[], object]:
        """What submits once and returns when that is accepted."""
        if name == "library":
            return lambda: self.once(client)
        if name == "command":
            command = [*self.command("submit"), *self.arguments()]
        else:
            script = str(spark_home() / "bin" / "spark-submit")
            command = [script, "--deploy-mode", "cluster", *self.arguments()]
        return lambda: self.ended(*command)

    def master_cpu_s(self) -> float:
        """Processor time of the master so far."""
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if "master" in command and str(self.state_dir / "master") in " ".join(command):
                times = process.cpu_times()
                return float(times.user + times.system)
        raise BenchmarkError("the master's process is not found")

    def end_all(self, client: submit.SubmissionClient) -> None:
        """So that each cell begins with no live submission."""
        for submission in client.call("List", pb.ListSubmissionsRequest()).submissions:
            client.call("Kill", pb.KillSubmissionRequest(submission_id=submission.submission_id))


def _clients_cpu_s() -> float:
    """Of this process and of those that it has started and that have ended."""
    usages = [resource.getrusage(x) for x in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def empty_cluster(
    cluster: Submitted, client: submit.SubmissionClient, limit_s: float = _EMPTY_LIMIT_S
) -> None:
    """End what is live, until nothing is.

    Raises:
        BenchmarkError: something still is after ``limit_s``.
    """

    def ended() -> bool:
        if not client.call("List", pb.ListSubmissionsRequest()).submissions:
            return True
        cluster.end_all(client)
        return False

    wait_until(ended, limit_s, "all submissions to end")


def measure_cell(
    cluster: Submitted, client: submit.SubmissionClient, cell: Cell, plan: Plan
) -> Any:
    """The figures of one cell.

    Raises:
        BenchmarkError: the submissions of the cell before do not end.
    """
    empty_cluster(cluster, client)
    one = cluster.submitter(cell.client, client)
    count = plan.peer_count if cell.client == "spark-submit" else plan.count
    rate_per_s = plan.rate_per_s if cell.pace == PACED else None
    clients_s, master_s = _clients_cpu_s(), cluster.master_cpu_s()
    accepted = submit_all(one, count, cell.clients, rate_per_s)
    master_s = cluster.master_cpu_s() - master_s
    clients_s = _clients_cpu_s() - clients_s
    return {
        **asdict(cell),
        **figures(accepted),
        "client_cpu_ms": round(clients_s / count * 1000, 2),
        "master_cpu_ms": round(master_s / count * 1000, 2),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def measure_start(cluster: Submitted, client: submit.SubmissionClient) -> Start:
    """One submission to its end.

    Raises:
        BenchmarkError: it failed, or took longer than ``_START_LIMIT_S``.
    """
    submission = cluster.once(client)
    accepted_s = time.monotonic()
    running_s = registered_s = 0.0
    for each in client.watch(submission.submission_id):
        after_s = time.monotonic() - accepted_s
        if each.state == pb.SUBMISSION_STATE_RUNNING:
            running_s = running_s or after_s
        if each.application_ids:
            registered_s = registered_s or after_s
        if after_s > _START_LIMIT_S:
            raise BenchmarkError(f"{each.submission_id} runs longer than {_START_LIMIT_S:.0f} s")
        if each.state in submit.ENDED:
            if each.state != pb.SUBMISSION_STATE_FINISHED or not registered_s:
                raise BenchmarkError(f"{each.submission_id} has failed: {each.message}")
            return Start(running_s=running_s, registered_s=registered_s, ended_s=after_s)
    raise BenchmarkError(f"{submission.submission_id} has no end")


def measure(cluster: Submitted, plan: Plan) -> tuple[list[Any], list[Start]]:
    """All cells, in turns, and the starts before them."""
    rows = []
    with cluster.library() as client:
        measure_start(cluster, client)  # uncounted: files of the plugin, Python's caches
        starts = []
        for number in range(plan.starts):
            starts.append(measure_start(cluster, client))
            CONSOLE.print(f"start {number + 1} of {plan.starts}: {starts[-1].registered_s:.1f} s")
        cluster.drain()
        for name in CLIENTS:
            cluster.submitter(name, client)()  # uncounted
        order = {str(cell): cell for cell in cells(plan)}
        for number, name in common.interleaved(list(order), plan.repetitions):
            rows.append(measure_cell(cluster, client, order[name], plan))
            rate = rows[-1]["submissions_per_min"]
            CONSOLE.print(f"{name}, {number + 1} of {plan.repetitions}: {rate:.0f}/min")
        cluster.end_all(client)
    return rows, starts


_FIGURES = ("submissions_per_min", "p50_ms", "p99_ms", "client_cpu_ms", "master_cpu_ms", "load_1m")


def document(rows: Sequence[Any], starts: Sequence[Start], plan: Plan) -> dict[str, Any]:
    """Everything as one JSON object; the numbers on top are for comparison over time."""
    medians = {}
    for cell in cells(plan):
        mine = [row for row in rows if Cell(row["client"], row["pace"], row["clients"]) == cell]
        medians[str(cell)] = {
            "count": mine[0]["count"],
            **{name: common.median([row[name] for row in mine]) for name in _FIGURES},
        }
    fastest = Cell("command", FASTEST, max(plan.concurrency))
    paced = Cell("command", PACED, _LATE_CLIENTS)
    return {
        "benchmark": "submit",
        "submissions_per_min": medians[str(fastest)]["submissions_per_min"],
        "submit_p50_ms": medians[str(paced)]["p50_ms"],
        "submit_p99_ms": medians[str(paced)]["p99_ms"],
        "start_running_s": common.median([x.running_s for x in starts]),
        "start_registered_s": common.median([x.registered_s for x in starts]),
        "plan": asdict(plan),
        "cells": list(rows),
        "medians": medians,
        "starts": [asdict(x) for x in starts],
    }


def _repeated(repetitions: int) -> str:
    if repetitions == 1:
        return "Each cell once: nothing says how much repetitions differ."
    return f"Medians of {repetitions} interleaved repetitions."


def report(document: dict[str, Any]) -> str:
    """The Markdown below the head of the results file."""
    plan = document["plan"]
    rows = [
        [name, each["count"], *(f"{each[figure]:,.1f}" for figure in _FIGURES)]
        for name, each in document["medians"].items()
    ]
    header = [
        "client, pace, at once", "submissions", "per min", "p50 ms", "p99 ms",
        "client CPU ms each", "master CPU ms each", "load (1 min)",
    ]  # fmt: skip
    starts = [
        [words, len(document["starts"]), common.median(values), max(values)]
        for words, values in (
            (words, [x[name] for x in document["starts"]])
            for words, name in (
                ("accepted → driver may start", "running_s"),
                ("accepted → application registered", "registered_s"),
                ("accepted → ended", "ended_s"),
            )
        )
    ]
    about = (
        f"Accepted means durable at the master. The nodes were drained, so that drivers waited; "
        f"each cell began with no live submission. {plan['count']} submissions in each cell, "
        f"{plan['peer_count']} in those of spark-submit; the p99 of fewer than 100 is the slowest. "
        f"{_repeated(plan['repetitions'])} A command's latency is that of its whole process."
    )
    alone = (
        "Start latency, one submission after the other on one node; the application makes a "
        "context and stops it. No archive of classes."
    )
    shown = common.table(["from → to", "runs", "median, s", "longest, s"], starts)
    return "\n\n".join([about, common.table(header, rows), PUBLISHED, alone, shown])


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.submit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--count", type=int, help="submissions a cell (default 900; quick 36)")
    parser.add_argument("--starts", type=int, help="start latencies (default 10; quick 3)")
    parser.add_argument("--repetitions", type=int, help="of each cell (default 3; quick 1)")
    parser.add_argument("--concurrency", help="clients at once, comma-separated (default 1,4)")
    parser.add_argument("--keep", action="store_true", help="keep logs")
    given = parser.parse_args(arguments)
    for name in ("count", "starts", "repetitions"):
        value = getattr(given, name)
        if value is not None and value <= 0:
            parser.error(f"--{name} must be more than 0, not {value}")
    if given.concurrency is not None:
        parts = given.concurrency.split(",")
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            parser.error(f"--concurrency is {given.concurrency!r}; give numbers such as 1,4")
        given.concurrency = tuple(map(int, parts))
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan of the command line: flags over ``--quick`` over the defaults."""
    names = ("count", "starts", "repetitions", "concurrency")
    flags = {name: value for name in names if (value := getattr(given, name)) is not None}
    return replace(QUICK if given.quick else Plan(), **flags)


def benchmark(given: argparse.Namespace, directory: Path) -> int:
    """Measure and write; 0, or it raises."""
    plan = plan_of(given)
    provenance = common.provenance("benchmarks.submit", ("grpcio", "protobuf"))
    shape = Shape(nodes=1, cores_per_node=2, memory_per_node_mib=3072)
    try:
        with Submitted(shape, directory / "cluster") as cluster:
            rows, starts = measure(cluster, plan)
    except (HrmError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(str(error)) from error
    result = {**document(rows, starts, plan), "provenance": provenance}
    if given.json:
        common.write_json(given.json, result)
    body = report(result)
    if not given.quick:
        title = "How fast applications are submitted"
        for path in common.write_results("submit", title, result, body):
            CONSOLE.print(f"wrote {path}")
    print(body)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 where every submission was accepted."""
    given = parse_arguments(arguments)
    return in_directory(
        "hrm-submit-", lambda directory: benchmark(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
