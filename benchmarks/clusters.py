"""The clusters that applications are submitted to: HRM, Spark Standalone, and Spark's local mode.

All three are used alike: ``with Standalone(shape, directory) as cluster: cluster.submit(…)``. They
get the same shape, and applications the same settings (``submit_settings``), so a difference in
time is a difference between the managers. HRM authenticates Spark's RPC by default; Standalone gets
``spark.authenticate`` and a secret, too.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.common import REPOSITORY
from benchmarks.processes import (
    MARK,
    BenchmarkError,
    Started,
    free_port,
    new_mark,
    start,
    sweep,
    wait_until,
)
from benchmarks.processes import tail as log_tail

__all__ = [
    "CLUSTERS",
    "Cluster",
    "Finished",
    "Hrm",
    "Local",
    "Shape",
    "Standalone",
    "Submission",
    "spark_home",
]

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_ARCHIVES_TIMEOUT_S = 300.0
_EVENTS_MAX = 100_000


def spark_home() -> Path:
    """Spark as installed by the pyspark package.

    Raises:
        BenchmarkError: pyspark is not installed.
    """
    try:
        import pyspark
    except ImportError as error:
        raise BenchmarkError("no pyspark here; pip install 'hrm-spark[spark]'") from error
    return Path(str(pyspark.__file__)).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a cluster consists of, and the size of one of its executors."""

    nodes: int = 2
    cores_per_node: int = 1
    memory_per_node_mib: int = 4096
    executor_memory_mib: int = 1024
    executor_overhead_mib: int = 1024
    executors: int = 2
    executor_cores: int = 1
    shuffle_partitions: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One application that succeeded.

    Times in seconds from the start of ``spark-submit``.
    """

    result: dict[str, Any]
    context_s: float
    first_executor_s: float | None
    first_task_s: float
    total_s: float


class Submission:
    """One running ``spark-submit``."""

    def __init__(self, process: Started, directory: Path) -> None:
        self.process = process
        self.directory = directory
        self.output = directory / "stdout"
        self.total_s = 0.0

    @property
    def running(self) -> bool:
        return self.process.running

    def stop(self) -> None:
        """End driver and submitter."""
        self.process.end()

    def result(self, timeout_s: float) -> dict[str, Any]:
        """Wait for its end and read the JSON line that the application printed last.

        Raises:
            BenchmarkError: it failed, ran past ``timeout_s`` or printed no result.
        """
        try:
            status = self.process.wait(timeout_s)
        except BaseException:
            self.process.end()
            raise
        self.total_s = time.time() - self.process.started_at_s
        if status != 0:
            raise BenchmarkError(
                f"spark-submit ended with status {status}; the end of {self.process.log}:\n"
                f"{log_tail(self.process.log)}\n"
                f"and of what the application printed:\n{log_tail(self.output, 8)}"
            )
        return _last_json_line(self.output)

    def finish(self, timeout_s: float) -> Finished:
        """Wait for its end, read its result and its event log.

        Raises:
            BenchmarkError: it failed, ran past ``timeout_s`` or printed no result.
        """
        result = self.result(timeout_s)
        moments = _moments(self.directory / "events")
        begin_s = self.process.started_at_s
        executor = moments.get("SparkListenerExecutorAdded")
        return Finished(
            result=result,
            context_s=moments["SparkListenerApplicationStart"] - begin_s,
            first_executor_s=None if executor is None else executor - begin_s,
            first_task_s=moments["SparkListenerTaskStart"] - begin_s,
            total_s=self.total_s,
        )


def _last_json_line(path: Path) -> dict[str, Any]:
    for line in reversed(path.read_text(errors="replace").splitlines()):
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                return value
    raise BenchmarkError(f"the application printed no result to {path}")


def _moments(directory: Path) -> dict[str, float]:
    """First time of some kinds of events in an application's event log, seconds since epoch."""
    wanted = (
        "SparkListenerApplicationStart", "SparkListenerExecutorAdded", "SparkListenerTaskStart",
    )  # fmt: skip
    found: dict[str, float] = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and p.suffix != ".crc"):
        with path.open(errors="replace") as lines:
            for line in lines:
                if not line.startswith('{"Event":"SparkListener'):
                    continue
                kind = line[10 : line.index('"', 10)]
                if kind not in wanted:
                    continue
                event = json.loads(line)
                stamp = event.get("Timestamp") or event["Task Info"]["Launch Time"]
                found[kind] = min(found.get(kind, float("inf")), stamp / 1000)
    for kind in ("SparkListenerApplicationStart", "SparkListenerTaskStart"):
        if kind not in found:
            raise BenchmarkError(f"the event log in {directory} has no {kind}")
    return found


class Cluster:
    """A cluster that is started and stopped; subclasses define how, and how to reach it."""

    name = ""

    def __init__(self, shape: Shape, directory: Path) -> None:
        self.shape = shape
        self.directory = directory
        self.mark = new_mark()
        self.left_behind: list[str] = []
        self._submissions: list[Submission] = []
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    @property
    def master(self) -> str:
        """The value of ``--master``."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until every node accepts work."""

    def settle(self) -> None:
        """Wait until what the next run uses is ready, as on a cluster that has run for long."""

    def stop(self) -> None:
        """Stop it."""

    def close(self) -> None:
        """End every submission, the cluster, and what is left of either."""
        try:
            for submission in self._submissions:
                if submission.running:
                    submission.stop()
            self.stop()
        finally:
            self.left_behind = sweep(self.mark)

    def environment(self) -> dict[str, str]:
        """The environment of every process that is started for this cluster."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        return {
            **kept,
            MARK: self.mark,
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
        }

    def submit_settings(self) -> dict[str, str]:
        """Spark's settings, the same for every manager."""
        shape = self.shape
        return {
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.instances": str(shape.executors),
            "spark.executor.cores": str(shape.executor_cores),
            "spark.cores.max": str(shape.executors * shape.executor_cores),
            "spark.executor.memory": f"{shape.executor_memory_mib}m",
            "spark.executor.memoryOverhead": f"{shape.executor_overhead_mib}m",
            "spark.scheduler.minRegisteredResourcesRatio": "0.0",
            "spark.sql.shuffle.partitions": str(shape.shuffle_partitions),
            "spark.default.parallelism": str(shape.shuffle_partitions),
        }

    def submit_command(
        self, app: Path, arguments: Sequence[object], settings: Mapping[str, str]
    ) -> list[str]:
        """The whole ``spark-submit`` command."""
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", self.master]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        return [*command, str(app), *map(str, arguments)]

    def submit(
        self,
        app: Path,
        arguments: Sequence[object],
        directory: Path,
        settings: Mapping[str, str] | None = None,
    ) -> Submission:
        """Start ``spark-submit`` for ``app``; its output and event log go to ``directory``.

        ``settings`` are used as they are; without them, those of every measured run.
        """
        events = directory / "events"
        events.mkdir(parents=True, exist_ok=True)
        if settings is None:
            settings = {**self.submit_settings(), "spark.eventLog.dir": events.as_uri()}
        process = start(
            self.submit_command(app, arguments, settings),
            log=directory / "stderr",
            output=directory / "stdout",
            environment=self.environment(),
            directory=directory,
        )
        submission = Submission(process, directory)
        self._submissions.append(submission)
        return submission


class Local(Cluster):
    """Spark's local mode, without a manager. For tests of the applications themselves."""

    name = "local"

    @property
    def master(self) -> str:
        return f"local[{self.shape.executors * self.shape.executor_cores}]"


class Standalone(Cluster):
    """Spark's own manager: one Master and a Worker per node, from the jars of pyspark."""

    name = "standalone"

    def __init__(self, shape: Shape, directory: Path) -> None:
        super().__init__(shape, directory)
        self.port = free_port()
        self.ui_port = free_port()
        self._processes: list[Started] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_NO_DAEMONIZE": "1",
        }

    def start(self) -> None:
        conf = self.directory / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        # Daemons and applications both read it: like HRM's, Spark's RPC is authenticated.
        defaults = conf / "spark-defaults.conf"
        descriptor = os.open(defaults, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(
                f"spark.authenticate true\nspark.authenticate.secret {secrets.token_hex(16)}\n"
            )
        self._daemon(
            "master", "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", self.port, "--webui-port", self.ui_port,
        )  # fmt: skip
        for number in range(self.shape.nodes):
            self._daemon(
                f"worker-{number}", "org.apache.spark.deploy.worker.Worker",
                "--host", "127.0.0.1", "--webui-port", 0,
                "--cores", self.shape.cores_per_node,
                "--memory", f"{self.shape.memory_per_node_mib}m",
                "--work-dir", self.directory / f"work-{number}", self.master,
            )  # fmt: skip
        wait_until(self._all_workers, _START_TIMEOUT_S, "the Standalone workers to register")

    def _daemon(self, name: str, java_class: str, *arguments: object) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), java_class, *map(str, arguments)]
        log = self.directory / f"{name}.log"
        self._processes.append(start(command, log=log, environment=self.environment()))

    def _all_workers(self) -> bool:
        for process in self._processes:
            if not process.running:
                raise BenchmarkError(
                    f"a Standalone daemon ended; {process.log}:\n{log_tail(process.log)}"
                )
        try:
            url = f"http://127.0.0.1:{self.ui_port}/json/"
            with urllib.request.urlopen(url, timeout=5) as response:
                return bool(json.load(response)["aliveworkers"] == self.shape.nodes)
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.end()
        self._processes.clear()


class Hrm(Cluster):
    """HRM as ``hrm up`` starts it: one master and an agent per node, each its own process."""

    name = "hrm"

    def __init__(self, shape: Shape, directory: Path) -> None:
        super().__init__(shape, directory)
        self.port = free_port()
        self.state_dir = directory / "state"
        self._up = False

    @property
    def master(self) -> str:
        return f"hrm://127.0.0.1:{self.port}"

    @property
    def token_file(self) -> Path:
        return self.state_dir / "token"

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "SPARK_CONF_DIR": str(REPOSITORY / "spark-conf"),
            "HRM_TOKEN_FILE": str(self.token_file),
            "HRM_PYTHON": sys.executable,
        }

    def command(self, verb: str, *arguments: object) -> list[str]:
        """An ``hrm`` command of this environment."""
        candidate = Path(sys.executable).parent / "hrm"
        program = str(candidate) if candidate.exists() else shutil.which("hrm")
        if program is None:
            raise BenchmarkError("no hrm command beside this Python; pip install -e .")
        return [program, verb, *map(str, arguments)]

    def up_command(self) -> list[str]:
        shape = self.shape
        return self.command(
            "up", "--nodes", shape.nodes, "--cores", shape.cores_per_node,
            "--memory", f"{shape.memory_per_node_mib}m",
            "--state-dir", self.state_dir, "--port", self.port,
        )  # fmt: skip

    def down_command(self) -> list[str]:
        return self.command("down", "--state-dir", self.state_dir)

    def _run(self, command: list[str], timeout_s: float) -> None:
        log = self.directory / "hrm.log"
        process = start(command, log=log, environment=self.environment())
        # Not `end` on success: the daemons may share the group of the command that started them.
        status = process.wait(timeout_s)
        if status != 0:
            raise BenchmarkError(
                f"{' '.join(command)} ended with status {status}; {log}:\n{log_tail(log)}"
            )

    def start(self) -> None:
        self._up = True
        self._run(self.up_command(), _START_TIMEOUT_S)

    def stop(self) -> None:
        if self._up:
            self._up = False
            self._run(self.down_command(), _STOP_TIMEOUT_S)

    def _queried(self, verb: str, *arguments: object) -> dict[str, Any] | None:
        """What an ``hrm`` command prints as JSON; None: it failed."""
        output = self.directory / f"{verb}.json"
        address = self.master[len("hrm://") :]
        command = self.command(verb, *arguments, "--output", "json", "--master", address)
        asked = start(
            command, log=self.directory / "hrm.log", output=output, environment=self.environment()
        )
        if asked.wait(30.0) != 0:
            return None
        found: dict[str, Any] = json.loads(output.read_text())
        return found

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes' reports of their shortcuts, as in ``hrm nodes``; none, where it fails."""
        found = self._queried("nodes")
        return [] if found is None else list(found["nodes"])

    def applications(self) -> list[dict[str, Any]]:
        """All applications, ended ones included, as in ``hrm apps --all``.

        Raises:
            BenchmarkError: the master does not list them.
        """
        return self._listed("applications", "apps", "--all")

    def containers(self, application_id: str) -> list[dict[str, Any]]:
        """All that the master knows of an application, as in ``hrm app show``.

        Raises:
            BenchmarkError: the master does not show it.
        """
        return self._listed("containers", "app", "show", application_id)

    def events(self, kind: str, age_s: float) -> list[dict[str, Any]]:
        """What has changed lately, as in ``hrm events``.

        Raises:
            BenchmarkError: the master does not list it.
        """
        since = ("--since", f"{math.ceil(age_s)}s")
        return self._listed("events", "events", "--kind", kind, *since, "--limit", _EVENTS_MAX)

    def _listed(self, key: str, verb: str, *arguments: object) -> list[dict[str, Any]]:
        found = self._queried(verb, *arguments)
        if found is None:
            log = self.directory / "hrm.log"
            raise BenchmarkError(f"hrm {verb} failed; {log}:\n{log_tail(log)}")
        return list(found[key])

    def is_ready(self, name: str) -> bool:
        """Whether every node has this shortcut."""
        nodes = self.nodes()
        states = [
            shortcut["state"]
            for node in nodes
            for shortcut in node["shortcuts"]
            if shortcut["name"] == name
        ]
        return len(states) == self.shape.nodes and set(states) == {"ready"}

    def settle(self) -> None:
        """Wait until what the next run uses is ready."""
        wait_until(
            lambda: self.is_ready("executor-archive"), _ARCHIVES_TIMEOUT_S, "the archives", 1.0
        )

    def used(self, name: str) -> int:
        """How often the nodes have used a shortcut."""
        return sum(s["used"] for n in self.nodes() for s in n["shortcuts"] if s["name"] == name)


CLUSTERS: dict[str, type[Cluster]] = {kind.name: kind for kind in (Hrm, Standalone, Local)}
