"""Runs Spark's own bundled Python examples, unchanged, on a cluster of HRM.

    python -m benchmarks.examples                      # all; writes results/examples.*
    python -m benchmarks.examples --only 'sql/*' --at-once 2     # --only may be given again
    python -m benchmarks.examples --again failed       # those that have not passed, new ones first

Each example is a file of the pyspark package and is passed to the stock ``spark-submit`` with a
working directory that has the files it names. It passes when it ends with status 0 and the master
has it as an application that succeeded with an executor on one of its nodes. A streaming example
passes when its output shows words that were sent to it while the master had it as running; it is
stopped then. One that ends with an error is tried on Spark's local mode, too: if that ends with the
same error, the table says so. The JVMs compile quickly rather than well, since there are many; that
changes no result. Anything else that an example is given and Spark would not give it is in its
note. Examples that are run again replace their rows; each row names the commit of its run.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib.util
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.clusters import Cluster, Hrm, Local, Shape, Submission, spark_home
from benchmarks.common import CONSOLE, RESULTS_DIR
from benchmarks.examples import data
from benchmarks.examples.plan import Plan, discover, plan_of
from benchmarks.processes import BenchmarkError, interruptible, tail, wait_until
from benchmarks.startup import Started
from hrm import rpc
from hrm.errors import HrmError
from hrm.v1 import admin_pb2, admin_pb2_grpc, common_pb2

__all__ = ["Outcome", "main"]

LIMIT_S = 300.0
_SHAPE = Shape(nodes=2, cores_per_node=2, memory_per_node_mib=4096, executors=1, executor_cores=2)
_QUICK = "-XX:TieredStopAtLevel=1"
_APPLICATION = re.compile(r"app-\d{14}-\d+-\d{4,}")
_PASSED, _FAILED, _SKIPPED, _ALIKE = "passed", "failed", "skipped", "fails without HRM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one example. ``seconds``: from spark-submit to the end, or to the stop.
    ``commit``, ``date``: of the run."""

    example: str
    result: str
    seconds: float = 0.0
    kind: str = ""
    note: str = ""
    commit: str = ""
    date: str = ""


class _Unbuffered(Started):
    """An example's output is written immediately, since streaming ones are stopped when it appears.
    Class archives exist from the first one on."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONUNBUFFERED": "1"}


class Ended(BenchmarkError):
    """It ended by itself although it must not; the message has its output."""

    def __init__(self, status: int, submission: Submission) -> None:
        summary = [tail(path, 400) for path in (submission.process.log, submission.output)]
        super().__init__("\n".join([f"status {status}:", *summary]))


class Runner:
    """Runs examples on one cluster."""

    def __init__(self, cluster: Hrm, directory: Path, limit_s: float) -> None:
        self._cluster = cluster
        self._directory = directory
        self._limit_s = limit_s
        self._home = spark_home()
        self._resources = directory / "resources"
        data.resources(self._resources)
        token = rpc.read_token(cluster.token_file)
        self._channel = rpc.sync_channel(cluster.master.removeprefix("hrm://"), token)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def run(self, example: str) -> Outcome:
        """One example, to its end."""
        plan = plan_of(example)
        missing = [name for name in plan.modules if importlib.util.find_spec(name) is None]
        if plan.skip or missing:
            note = plan.skip or f"needs {', '.join(missing)}, not installed here"
            return Outcome(example=example, result=_SKIPPED, note=note)
        work = self._directory / example.removesuffix(".py").replace("/", "-")
        data.lay_out(work, self._home, self._resources)
        began_s = time.monotonic()
        try:
            with self._input(plan, work) as arguments:
                note = self._result_of(
                    plan, work, self._submit(example, plan, work, arguments, self._cluster)
                )
            result = _PASSED
        except (BenchmarkError, HrmError) as error:
            note, result = _short(str(error)), _FAILED
            if isinstance(error, Ended) and _alike(self._without(example, plan, work), note):
                result = _ALIKE
        seconds = time.monotonic() - began_s
        kind = "stream" if plan.until else "batch"
        return Outcome(example=example, result=result, seconds=seconds, kind=kind, note=note)

    @contextlib.contextmanager
    def _input(self, plan: Plan, work: Path) -> Iterator[list[str]]:
        """The arguments, while the inputs that they name are active."""
        with contextlib.ExitStack() as stack:
            port = stack.enter_context(data.serve_lines()) if "{port}" in plan.arguments else 0
            if plan.feed:
                stack.enter_context(data.feed_files(work / plan.feed))
            yield [x.format(port=port, work=work) for x in plan.arguments]

    def _without(self, example: str, plan: Plan, there: Path) -> str:
        """How the example ends on Spark's local mode; empty: not by an error of its own."""
        work = there.with_name(f"{there.name}-local")
        data.lay_out(work, self._home, self._resources)
        local = Local(self._cluster.shape, work / "local")
        try:
            with self._input(plan, work) as arguments:
                submission = self._submit(example, plan, work, arguments, local)
                status = submission.process.wait(self._limit_s)
        except BenchmarkError:
            submission.stop()
            return ""
        return _short(str(Ended(status, submission))) if status else ""

    def _submit(
        self, example: str, plan: Plan, work: Path, arguments: list[str], cluster: Cluster
    ) -> Submission:
        events = work / "events"
        settings = {
            **cluster.submit_settings(),
            "spark.eventLog.dir": events.as_uri(),
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.executor.extraJavaOptions": _QUICK,
            **dict(plan.settings),
        }
        events.mkdir()
        path = self._home / "examples" / "src" / "main" / "python" / example
        return cluster.submit(path, arguments, work, settings)

    def _result_of(self, plan: Plan, work: Path, submission: Submission) -> str:
        """Wait for its end, or for its output; returns a note.

        Raises:
            BenchmarkError: it failed, or the master does not have it.
        """
        if plan.until:
            return self._watch(plan, work, submission)
        status = submission.process.wait(self._limit_s)
        if status != 0:
            raise Ended(status, submission)
        app = self._application(work)
        if app.state != common_pb2.APPLICATION_STATE_SUCCEEDED:
            state = common_pb2.ApplicationState.Name(app.state)
            raise BenchmarkError(f"ended with status 0, and the master says {state}: {app.message}")
        if not any(container.started_at_s for container in app.containers):
            raise BenchmarkError("no executor ran")
        return ""

    def _watch(self, plan: Plan, work: Path, submission: Submission) -> str:
        pattern = re.compile(plan.until)
        shown = submission.process.log if plan.in_log else submission.output

        def seen() -> bool:
            if not submission.running:
                raise Ended(submission.process.wait(1.0), submission)
            return pattern.search(shown.read_text(errors="replace")) is not None

        try:
            wait_until(seen, self._limit_s, f"no {plan.until!r} in its output", 0.5)
            app = self._application(work)
            if app.state != common_pb2.APPLICATION_STATE_RUNNING:
                raise BenchmarkError("its output is there, and the master does not say it runs")
        finally:
            submission.stop()
        kind = common_pb2.WorkloadClass.Name(app.workload_class).rpartition("_")[2].lower()
        return f"stopped after its output; class {kind}"

    def _application(self, work: Path) -> admin_pb2.Application:
        """The master's record of the application whose event log is in ``work``."""
        ids = {
            x[0] for path in (work / "events").iterdir() if (x := _APPLICATION.search(path.name))
        }
        if not ids:
            raise BenchmarkError("it made no application on this cluster")
        request = admin_pb2.GetApplicationRequest(application_id=sorted(ids)[-1])
        response: admin_pb2.Application = self._admin.GetApplication(request, timeout=10.0)
        return response


def _short(message: str) -> str:
    """The most informative line of a failure: its cause, if it names one."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [x for x in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", x)]
    causes = [x.removeprefix("Caused by: ") for x in lines if x.startswith("Caused by: ")]
    summary = (causes or errors or lines or ["no word"])[-1]
    return re.sub(r"(file:)?/\S*hrm-examples-\w+/[^/]+/", "", summary).replace("|", "/")[:160]


def _alike(one: str, other: str) -> bool:
    """The same failure, except for the numbers of objects and tasks."""
    return re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)


def _report(document: dict[str, Any]) -> str:
    outcomes = document["examples"]
    counts = {
        kind: sum(x["result"] == kind for x in outcomes)
        for kind in (_PASSED, _FAILED, _ALIKE, _SKIPPED)
    }
    rows = [
        (
            x["example"],
            x["result"],
            x["kind"] or None,
            round(x["seconds"]) or None,
            "; ".join(filter(None, (x["note"], _given(x["example"])))) or None,
            x["commit"] or None,
        )
        for x in outcomes
    ]
    summary = ", ".join(f"{many} {kind}" for kind, many in counts.items())
    dates = sorted(x["date"] for x in outcomes if x["date"])
    commits = {x["commit"] for x in outcomes if x["commit"]}
    taken = ["", f"Rows of {len(commits)} commits, {dates[0]} to {dates[-1]}."] if dates else []
    return "\n".join(
        [
            f"Spark's own examples ({len(outcomes)} of {document['known']} run), unchanged, each "
            f"by the stock spark-submit on two nodes of HRM: {summary}.",
            *taken,
            "",
            common.table(("example", "result", "kind", "s", "note", "commit"), rows),
        ]
    )


def _given(example: str) -> str:
    """The settings that an example needs in addition to those of all, for its note."""
    settings = ", ".join(f"{name}={value}" for name, value in plan_of(example).settings)
    return f"run with {settings}" if settings else ""


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.examples", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="of names, such as 'sql/*' (again: or)"
    )
    parser.add_argument("--at-once", type=int, default=1, help="how many run at once")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each")
    parser.add_argument(
        "--again", choices=("all", "failed"), default="all",
        help="failed: those that have not run with this Spark; where there are none, that failed",
    )  # fmt: skip
    parser.add_argument("--most", type=int, default=1_000, help="run no more than so many now")
    parser.add_argument("--name", default="examples", help="of the results")
    return parser.parse_args(arguments)


def _known(name: str, version: str) -> dict[str, Outcome]:
    """Outcomes of earlier runs with this Spark."""
    try:
        document = json.loads((RESULTS_DIR / f"{name}.json").read_text())
    except FileNotFoundError:
        return {}
    if document["provenance"]["versions"]["pyspark"] != version:
        return {}
    return {x["example"]: Outcome(**x) for x in document["examples"]}


@contextlib.contextmanager
def _pool(at_once: int) -> Iterator[ThreadPoolExecutor]:
    """Threads; an interrupt does not wait for their queued work."""
    pool = ThreadPoolExecutor(at_once)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected examples; 1 if anything failed."""
    options = parse_arguments(arguments)
    root = spark_home() / "examples" / "src" / "main" / "python"
    names = discover(root)
    document: dict[str, Any] = {"provenance": common.provenance("benchmarks.examples")}
    known = _known(options.name, document["provenance"]["versions"]["pyspark"])
    only = options.only or ["*"]
    wanted = [name for name in names if any(fnmatch.fnmatch(name, x) for x in only)]
    if options.again == "failed":
        new = [name for name in wanted if name not in known]
        wanted = new or [name for name in wanted if known[name].result == _FAILED]
    elif options.only is None:
        known = {}

    def write() -> None:
        document["known"] = len(names)
        document["examples"] = [asdict(known[name]) for name in names if name in known]
        common.write_results(options.name, "Spark's examples on HRM", document, _report(document))

    with (
        interruptible(),
        tempfile.TemporaryDirectory(prefix="hrm-examples-") as scratch,
        _Unbuffered(_SHAPE, Path(scratch) / "cluster") as cluster,
        contextlib.closing(Runner(cluster, Path(scratch), options.limit)) as runner,
        _pool(options.at_once) as pool,
    ):
        for outcome in pool.map(runner.run, wanted[: options.most]):
            run = {key: document["provenance"][key] for key in ("commit", "date")}
            known[outcome.example] = replace(outcome, **run)
            summary = f"{outcome.result} {outcome.example} {outcome.seconds:.0f} s {outcome.note}"
            CONSOLE.print(summary, markup=False)
            write()
    return int(any(x.result == _FAILED for x in known.values()))


if __name__ == "__main__":
    sys.exit(main())
