"""A demonstration of HRM's main purpose: batch, a stream and pipelines on one small cluster.

    python -m benchmarks.demo [--keep]

Starts a cluster of two nodes on this machine, submits a structured-streaming Top-K and WordCount
over a real text with the stock ``spark-submit``, and a pipeline over blocks of the same text,
watches all three through HRM's AdminService, compares their results with counts computed without
Spark, reports what ran where and how long containers waited, and shuts everything down. The cluster
is smaller than the demand on purpose: the stream has one slot, WordCount requests two, and workers
of the pipeline take what these leave, and end as others want it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import checks
from benchmarks.apps.word_blocks import WORDS, blocks_of
from benchmarks.clusters import Hrm, Shape, Submission
from benchmarks.common import CONSOLE, add_common_arguments, note, write_json
from benchmarks.processes import BenchmarkError, in_directory
from benchmarks.text import Text, build_text
from hrm import rpc
from hrm.pipelines import Client, Task
from hrm.v1 import admin_pb2, admin_pb2_grpc, common_pb2

__all__ = ["Admin", "History", "application_table", "container_table", "main"]

APPS = Path(__file__).resolve().parent / "apps"
WORDCOUNT, STREAM, PIPELINE = "WordCount", "Top-K stream", WORDS.name
_BLOCKS = 24
_OUT = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
_CALL_TIMEOUT_S = 5.0
_PLACED_TIMEOUT_S = 60.0
_RUN_TIMEOUT_S = 300.0


class Admin:
    """The demo's calls of HRM's AdminService."""

    def __init__(self, target: str, token_file: Path) -> None:
        self.target = target
        self._channel = rpc.sync_channel(target, rpc.read_token(token_file))
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def applications(self) -> dict[str, admin_pb2.Application]:
        """Every application, ended ones included, in full, by name.

        Raises:
            BenchmarkError: the master does not respond.
        """
        try:
            listed = self._stub.ListApplications(
                admin_pb2.ListApplicationsRequest(include_ended=True), timeout=_CALL_TIMEOUT_S
            )
            return {
                each.name: self._stub.GetApplication(
                    admin_pb2.GetApplicationRequest(application_id=each.application_id),
                    timeout=_CALL_TIMEOUT_S,
                )
                for each in listed.applications
            }
        except grpc.RpcError as error:
            raise BenchmarkError(rpc.error_from(error, self.target).message) from error


def _short(enum: Any, value: int) -> str:
    """The last word of an enum value's name, in lower case."""
    prefixes = ("APPLICATION_STATE_", "CONTAINER_STATE_", "WORKLOAD_CLASS_", "END_CAUSE_")
    name = str(enum.Name(value))
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name.replace("_", " ").lower()


def _seconds(begin_s: float, end_s: float) -> str:
    return f"{max(0.0, end_s - begin_s):.1f} s" if begin_s and end_s else "-"


@dataclass(slots=True)
class History:
    """The classification of each application from its beginning to its end, with the evidence."""

    classes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, applications: Iterable[admin_pb2.Application]) -> None:
        """Note each application's class, if it has changed."""
        for app in applications:
            now = _short(common_pb2.WorkloadClass, app.workload_class).upper()
            known = self.classes.setdefault(app.name, [])
            if not known or known[-1][0] != now:
                known.append((now, app.class_evidence or "no streaming query seen"))

    def names(self, application: str) -> list[str]:
        return [name for name, _ in self.classes.get(application, [])]

    def table(self) -> Table:
        """The classes of each application, and on what evidence."""
        table = Table(title="Classed by what was seen", title_justify="left")
        for column in ("application", "class", "because"):
            table.add_column(column, overflow="fold")
        for application, classes in self.classes.items():
            for number, (name, evidence) in enumerate(classes):
                table.add_row("" if number else application, name, evidence)
        return table


def application_table(applications: Iterable[admin_pb2.Application]) -> Table:
    """How each application ended and how long it waited for its first executor."""
    table = Table(title="Applications", title_justify="left")
    for column in ("application", "id", "state", "first executor after", "ran"):
        table.add_column(column, overflow="fold")
    for app in applications:
        table.add_row(
            app.name,
            app.application_id,
            _short(common_pb2.ApplicationState, app.state),
            _seconds(app.submitted_at_s, app.first_running_at_s),
            _seconds(app.submitted_at_s, app.ended_at_s),
        )
    return table


def container_table(applications: Iterable[admin_pb2.Application]) -> Table:
    """What ran where, and how long it waited."""
    table = Table(title="Executors", title_justify="left")
    for column in ("application", "no.", "where", "size", "waited", "ran", "end"):
        table.add_column(column, overflow="fold")
    for app in applications:
        for each in sorted(app.containers, key=lambda c: (c.requested_at_s, c.executor_id)):
            started = each.started_at_s > 0
            until_s = each.started_at_s or each.ended_at_s
            state = _short(common_pb2.ContainerState, each.state)
            if state == "ended":
                cause = _short(common_pb2.EndCause, each.end.cause)
                state = f"{cause}: {each.end.message}" if each.end.message else cause
            table.add_row(
                app.name,
                each.executor_id,
                each.resource_unit_id or each.node or "-",
                f"{each.resources.vcores} vcores, {each.resources.memory_mib} MiB",
                _seconds(each.requested_at_s, until_s) + ("" if started else ", never started"),
                _seconds(each.started_at_s, each.ended_at_s),
                state,
            )
    return table


def _print_command(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    words = [f"{key}={value}" for key, value in (environment or {}).items()]
    CONSOLE.print(f"$ {shlex.join([*words, *command])}", markup=False, soft_wrap=True, style="cyan")


def expected_counts(text: Text) -> dict[str, Any]:
    """The correct result of WordCount, computed by plain Python and cached with the text."""
    kept = Path(text.path).with_suffix(".words.json")
    if kept.exists() and kept.stat().st_mtime >= Path(text.path).stat().st_mtime:
        known: dict[str, Any] = json.loads(kept.read_text())
        return known
    with Path(text.path).open(encoding="utf-8", newline="\n") as lines:
        expected = checks.expected_words(lines)
    write_json(kept, expected)
    return expected


def shape_of_machine() -> Shape:
    """Two nodes of two slots each; a slot has half of the machine's cores, at most two."""
    cores = min(2, max(1, (psutil.cpu_count() or 1) // 2))
    return Shape(
        nodes=2, cores_per_node=2 * cores, memory_per_node_mib=3072, executor_memory_mib=768,
        executor_overhead_mib=768, executors=2, executor_cores=cores,
    )  # fmt: skip


def settings(shape: Shape, executors: int) -> dict[str, str]:
    """The few Spark settings that the demo's applications are submitted with."""
    return {
        "spark.executor.instances": str(executors),
        "spark.executor.cores": str(shape.executor_cores),
        "spark.executor.memory": f"{shape.executor_memory_mib}m",
        "spark.executor.memoryOverhead": f"{shape.executor_overhead_mib}m",
        "spark.sql.shuffle.partitions": "2",
    }


def submit(
    cluster: Hrm, app: Path, arguments: Sequence[object], name: str, executors: int
) -> Submission:
    """Submit like a user, and show the command."""
    chosen = settings(cluster.shape, executors)
    environment = cluster.environment()
    shown = {key: environment[key] for key in ("SPARK_CONF_DIR", "HRM_TOKEN_FILE", "HRM_PYTHON")}
    every = [*arguments, "--name", name]
    _print_command(cluster.submit_command(app, every, chosen), shown)
    return cluster.submit(app, every, cluster.directory / name.replace(" ", "-"), chosen)


def wait_placed(admin: Admin, stream: Submission) -> None:
    """Return once the stream has requested its executor, so that it precedes WordCount.

    Raises:
        BenchmarkError: it has not within a minute, or it ended.
    """
    deadline = time.monotonic() + _PLACED_TIMEOUT_S
    with CONSOLE.status("waiting until the stream has its place"):
        while True:
            app = admin.applications().get(STREAM)
            if app is not None and any(each.node for each in app.containers):
                return
            if not stream.running:
                stream.result(1.0)
                raise BenchmarkError("the stream ended before it had an executor")
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the stream had no executor in {_PLACED_TIMEOUT_S:.0f} s")
            time.sleep(0.25)


def _describe(app: admin_pb2.Application) -> str:
    waiting = app.containers_waiting + app.containers_pending
    text = f"{_short(common_pb2.WorkloadClass, app.workload_class).upper():<6} "
    text += f"{app.containers_running} running"
    return f"{text}, {waiting} waiting" if waiting else text


def _batches(output: Path) -> list[dict[str, Any]]:
    """The micro-batches that the stream has printed so far."""
    found = []
    for line in output.read_text(errors="replace").splitlines():
        if line.startswith('{"batch":'):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the line is still being written
    return found


def watch(
    admin: Admin, stream: Submission, wordcount: Submission, tasks: Sequence[Task],
    seconds: float, history: History,
) -> None:  # fmt: skip
    """Show progress until both applications and all tasks have ended, and note their classes.

    Raises:
        BenchmarkError: they exceeded the limit, or the master stopped responding.
    """
    seen: dict[str, admin_pb2.Application] = {}
    deadline = time.monotonic() + _RUN_TIMEOUT_S
    with Progress(
        TextColumn("{task.description:<13}"), BarColumn(), TextColumn("{task.fields[count]:>16}"),
        TextColumn("{task.fields[state]}"), TimeElapsedColumn(), console=CONSOLE,
    ) as progress:  # fmt: skip
        bars: dict[str, TaskID] = {
            name: progress.add_task(name, total=total, count="", state="starting")
            for name, total in ((STREAM, seconds), (WORDCOUNT, None), (PIPELINE, len(tasks)))
        }
        while stream.running or wordcount.running or not all(task.done() for task in tasks):
            if time.monotonic() > deadline:
                raise BenchmarkError(f"not done after {_RUN_TIMEOUT_S:.0f} s")
            seen.update(admin.applications())
            history.add(seen.values())
            batches = _batches(stream.output)
            done_s = batches[-1]["at_s"] - batches[0]["at_s"] if batches else 0.0
            progress.update(
                bars[STREAM], completed=min(seconds, done_s), count=f"{len(batches)} batches",
                state=_describe(seen[STREAM]) if STREAM in seen else "starting",
            )  # fmt: skip
            if (app := seen.get(WORDCOUNT)) is not None:
                ran = app.progress
                progress.update(
                    bars[WORDCOUNT], completed=ran.tasks_completed,
                    total=ran.tasks_total or None, state=_describe(app),
                    count=f"{ran.tasks_completed}/{ran.tasks_total} tasks",
                )  # fmt: skip
            done = sum(task.done() for task in tasks)
            progress.update(
                bars[PIPELINE], completed=done, count=f"{done}/{len(tasks)} tasks",
                state=_describe(seen[PIPELINE]) if PIPELINE in seen else "starting",
            )  # fmt: skip
            time.sleep(0.25)


def wait_ended(admin: Admin) -> dict[str, admin_pb2.Application]:
    """Both applications once the master has recorded their end and that of their containers.

    Raises:
        BenchmarkError: it does not within 20 s.
    """
    deadline = time.monotonic() + 20
    while True:
        found = admin.applications()
        both = [found[name] for name in (STREAM, WORDCOUNT) if name in found]
        if len(both) == 2 and all(
            app.ended_at_s and all(c.state == common_pb2.CONTAINER_STATE_ENDED
                                   for c in app.containers)
            for app in both
        ):  # fmt: skip
            return found
        if time.monotonic() > deadline:
            known = {app.name: _short(common_pb2.ApplicationState, app.state) for app in both}
            raise BenchmarkError(f"20 s after both ended, the master says {known}")
        time.sleep(0.2)


def complaints_of(
    applications: dict[str, admin_pb2.Application],
    history: History,
    words: dict[str, Any],
    top: dict[str, Any],
    blocks: Sequence[dict[str, Any]],
    expected: dict[str, Any],
) -> list[str]:
    """All deviations from the expected results; empty: the demo worked. ``blocks``: what the tasks
    of the pipeline returned."""
    found = [f"WordCount: {text}" for text in checks.wordcount_complaints(words, expected)]
    found += [f"Top-K: {text}" for text in checks.rate_complaints(top)]
    counted = sum(block["words"] for block in blocks)
    if counted != expected["words"]:
        found.append(f"{PIPELINE}: {counted} words, expected {expected['words']}")
    for name, wanted in ((STREAM, "STREAM"), (WORDCOUNT, "BATCH")):
        app = applications[name]
        # A stream is one while its query runs; before and after, there is no sign of one.
        classes = history.names(name)
        if wanted not in classes or ("STREAM" in classes) != (wanted == "STREAM"):
            found.append(f"{name} was classed {', '.join(classes) or 'nothing'}, not {wanted}")
        if app.state != common_pb2.APPLICATION_STATE_SUCCEEDED:
            state = _short(common_pb2.ApplicationState, app.state)
            found.append(f"{name} is {state}, not succeeded: {app.message}")
    return found


def print_results(words: dict[str, Any], top: dict[str, Any], text: Text) -> None:
    """The twenty most frequent words and the stream's last micro-batches."""
    table = Table(
        title=f"The {len(words['top'])} commonest of {words['words']:,} words in {text}",
        title_justify="left",
    )
    for _ in range(4):
        table.add_column("word")
        table.add_column("times", justify="right")
    cells = [(word, f"{count:,}") for word, count in words["top"]]
    rows = (len(cells) + 3) // 4
    for row in range(rows):
        line = [
            cells[row + column * rows] for column in range(4) if row + column * rows < len(cells)
        ]
        table.add_row(*(cell for pair in line for cell in pair))
    _OUT.print(table)
    batches = Table(
        title=f"The stream's last of {top['batches']} micro-batches", title_justify="left"
    )
    batches.add_column("batch", justify="right")
    batches.add_column("rows so far", justify="right")
    batches.add_column("the five commonest keys")
    for each in top["last"]:
        batches.add_row(
            str(each["batch"]),
            f"{sum(count for _, count in each['top']):,}",
            ", ".join(f"{key} {count}" for key, count in each["top"][:5]),
        )
    _OUT.print(batches)


def run(cluster: Hrm, text: Text, expected: dict[str, Any], seconds: float) -> list[str]:
    """All three on a running cluster; returns what went wrong.

    Raises:
        BenchmarkError: an application failed or a limit passed.
    """
    address = f"127.0.0.1:{cluster.port}"
    admin = Admin(address, cluster.token_file)
    try:
        checkpoint = cluster.directory / "checkpoint"
        stream = submit(
            cluster, APPS / "topk_stream.py",
            ["--source", "rate", "--rate", 200, "--seconds", f"{seconds:g}", "--trigger-s", 1,
             "--k", 50, "--checkpoint", checkpoint],
            STREAM, executors=1,
        )  # fmt: skip
        wait_placed(admin, stream)
        wordcount = submit(
            cluster, APPS / "wordcount.py",
            ["--input", text.path, "--api", "rdd", "--partitions", 8],
            WORDCOUNT, executors=2,
        )  # fmt: skip
        history = History()
        with Client(address, token_path=cluster.token_file) as client:
            tasks = [client.submit(WORDS, each) for each in blocks_of(Path(text.path), _BLOCKS)]
            watch(admin, stream, wordcount, tasks, seconds, history)
            blocks = [task.result(_CALL_TIMEOUT_S) for task in tasks]
        top, words = stream.result(_CALL_TIMEOUT_S), wordcount.result(_CALL_TIMEOUT_S)
        applications = wait_ended(admin)
    finally:
        admin.close()
    print_results(words, top, text)
    ran_on = Counter(block.node for block in blocks)
    where = ", ".join(f"{many} on {node}" for node, many in sorted(ran_on.items()))
    note(f"{PIPELINE}: {len(blocks)} tasks, {where}")
    shown = [applications[name] for name in (STREAM, WORDCOUNT, PIPELINE)]
    history.add(shown)
    _OUT.print(history.table())
    _OUT.print(application_table(shown))
    _OUT.print(container_table(shown))
    values = [block.value for block in blocks]
    return complaints_of(applications, history, words, top, values, expected)


def demonstrate(given: argparse.Namespace, directory: Path) -> int:
    """Run the whole demo; returns the exit status."""
    with CONSOLE.status("collecting a text from this machine, and counting its words"):
        text = build_text(given.cache_dir, 5 if given.quick else given.megabytes)
        expected = expected_counts(text)
    note(f"{text}: {text.path}")
    cluster = Hrm(shape_of_machine(), directory)
    begin = time.monotonic()
    _print_command(cluster.up_command())
    try:
        with cluster:
            note(f"the cluster is up after {time.monotonic() - begin:.1f} s")
            wrong = run(cluster, text, expected, 10 if given.quick else given.seconds)
            _print_command(cluster.down_command())
    finally:
        if cluster.left_behind:
            note("had to be ended by hand: " + "; ".join(cluster.left_behind))
    wrong += [f"left running by hrm down: {name}" for name in cluster.left_behind]
    for complaint in wrong:
        note(f"WRONG: {complaint}")
    took_s = time.monotonic() - begin
    if given.json:
        write_json(given.json, {"benchmark": "demo", "elapsed_s": took_s, "complaints": wrong})
    if not wrong:
        note(f"all answers are right; all is shut down after {took_s:.0f} s")
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if every part of it worked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_common_arguments(parser)
    parser.add_argument("--keep", action="store_true", help="keep state and logs")
    parser.add_argument("--megabytes", type=float, default=50, help="of text (default 50)")
    parser.add_argument("--seconds", type=float, default=25, help="of streaming (default 25)")
    given = parser.parse_args(arguments)
    return in_directory(
        "hrm-demo-", lambda directory: demonstrate(given, directory), keep=given.keep
    )


if __name__ == "__main__":
    sys.exit(main())
