"""A real cluster for these tests: master and agents are processes, Spark is Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from hrm.cli.app import app as hrm
from tests.conftest import PATIENCE
from tests.spark_tools import SparkTools

REPOSITORY = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
BIN = Path(sys.executable).parent

UP_TIMEOUT_S = 60.0
CLEAN_UP_TIMEOUT_S = 30.0


@dataclass
class Submitted:
    """A running spark-submit. Its output goes to ``log``."""

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = 120.0) -> int:
        try:
            return self.process.wait(PATIENCE * timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s:\n{self.output()[-4000:]}")


class Cluster:
    """A cluster of ``hrm up`` and a user's commands."""

    def __init__(self, directory: Path, tools: SparkTools) -> None:
        self.directory = directory
        home = directory / "home"
        tools.furnish(home)
        self.state = directory / "state"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HRM_", "SPARK_"))}
        kept |= tools.environment(kept)
        self.environment = {
            **kept,
            "PATH": f"{BIN}{os.pathsep}{kept['PATH']}",
            "HRM_HOME": str(home),
            "HRM_TOKEN_FILE": str(self.state / "token"),
            "HRM_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(REPOSITORY / "spark-conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._submitted: list[Submitted] = []

    def up(self, *arguments: str) -> None:
        done = self.run("up", "--state-dir", str(self.state), "--port", "0", *arguments)
        assert done.returncode == 0, done.stderr

    def down(self) -> None:
        self.end_drivers()
        done = self.run("down", "--state-dir", str(self.state))
        assert done.returncode == 0, done.stderr

    def end_drivers(self) -> None:
        """End submitted applications that still run."""
        for submitted in self._submitted:
            if submitted.process.poll() is None:
                submitted.process.kill()
                submitted.process.wait(10)

    def leftovers(self) -> str:
        """What a test has left for the next one; empty if all is as it was."""
        status = self.ask("status")
        nodes = self.ask("nodes")["nodes"]
        left = [
            *(f"{status[x]} {x}" for x in ("applications_live", "containers_running") if status[x]),
            *(f"{x['name']}: {x['state']}" for x in nodes if x["state"] != "NODE_STATE_ALIVE"),
        ]
        if status["free"] != status["capacity"]:
            left.append(f"free: {status['free']} of {status['capacity']}")
        return ", ".join(left)

    @property
    def cluster(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.state / "cluster.json").read_text())
        return document

    @property
    def address(self) -> str:
        address: str = (self.state / "master" / "address").read_text().strip()
        return address

    def run(self, *arguments: str, timeout_s: float = UP_TIMEOUT_S) -> Any:
        """One ``hrm`` command."""
        return subprocess.run(
            [str(BIN / "hrm"), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE * timeout_s,
            check=False,
        )

    def start(
        self,
        log: Path,
        *arguments: str,
        program: Sequence[str] = (str(BIN / "hrm"),),
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """One ``hrm`` command that stays; ``more`` is for Popen."""
        with log.open("wb") as file:
            return subprocess.Popen(
                [*program, *arguments],
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **more,
            )

    def ask(self, *arguments: str) -> dict[str, Any]:
        """The JSON output of one ``hrm`` command, which runs in this process: tests poll until a
        condition holds, and a process for each call would keep a core busy."""
        words = [*arguments, "--output", "json", "--master", self.address]
        ours = {k: v for k, v in self.environment.items() if k.startswith("HRM_")}
        done = CliRunner().invoke(hrm, words, prog_name="hrm", env=ours)
        assert done.exit_code == 0, done.stderr or repr(done.exception)
        response: dict[str, Any] = json.loads(done.stdout)
        return response

    def submit(
        self,
        *arguments: str,
        master: str | None = None,
        environment: dict[str, str] | None = None,
        program: str = "spark-submit",
    ) -> Submitted:
        """The stock spark-submit (or another of Spark's programs, or ``hrm submit``)."""
        log = self.directory / f"submit-{len(self._submitted)}.log"
        address = master or f"hrm://{self.address}"
        name, *words = program.split()
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    str(BIN / name),
                    *words,
                    "--master",
                    address,
                    "--conf",
                    "spark.ui.enabled=false",
                    "--conf",
                    "spark.executor.memory=512m",
                    "--conf",
                    "spark.executor.cores=1",
                    *arguments,
                ],
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )
        submitted = Submitted(process, log)
        self._submitted.append(submitted)
        return submitted

    def application(self, name: str) -> dict[str, Any] | None:
        """The latest application of this name, with its containers; None if there is none yet."""
        listed = self.ask("apps", "--all")["applications"]
        ids = [app["application_id"] for app in listed if app["name"] == name]
        return self.ask("app", "show", ids[-1]) if ids else None

    def free_vcores(self) -> int:
        return int(self.ask("status")["free"]["vcores"])


def command_of(process: psutil.Process) -> str:
    """Its command line; empty once it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def executors_of(application_id: str) -> list[psutil.Process]:
    """The executor JVMs of an application, without forks of them that look alike."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "--app-id" in command and application_id in command and "java" in command[0]:
            found.append(process)
    pids = {process.pid for process in found}
    return [process for process in found if parent_of(process) not in pids]


def parent_of(process: psutil.Process) -> int:
    """Its parent's pid; 0 once it is gone."""
    try:
        return process.ppid()
    except psutil.Error:
        return 0


class SharedCluster:
    """The cluster of all tests of a session that need none of their own; replaced if a test has
    left something in it."""

    def __init__(self, directory: Callable[[], Path], tools: SparkTools) -> None:
        self._directory = directory
        self._tools = tools
        self._cluster: Cluster | None = None

    def whole(self) -> Cluster:
        if self._cluster is None:
            subject = Cluster(self._directory(), self._tools)
            subject.environment["HRM_MASTER_DRIVER_SHARE"] = "1"  # two drivers on four cores
            subject.up("--nodes", "2", "--cores", "2", "--memory", "3g")
            self._cluster = subject
        return self._cluster

    def end(self) -> None:
        if self._cluster is not None:
            subject, self._cluster = self._cluster, None
            subject.down()


@pytest.fixture(scope="session")
def _shared(
    tmp_path_factory: pytest.TempPathFactory, _tools: SparkTools
) -> Iterator[SharedCluster]:
    shared = SharedCluster(lambda: tmp_path_factory.mktemp("cluster"), _tools)
    yield shared
    shared.end()


@pytest.fixture
def cluster(_shared: SharedCluster) -> Iterator[Cluster]:
    """Two nodes, with applications of earlier tests in their history and nothing else of them. A
    test that leaves something fails, and the next one gets another cluster."""
    subject = _shared.whole()
    yield subject
    subject.end_drivers()
    deadline = time.monotonic() + PATIENCE * CLEAN_UP_TIMEOUT_S
    while left := subject.leftovers():
        if time.monotonic() > deadline:
            _shared.end()
            pytest.fail(f"left in the cluster: {left}")
        time.sleep(0.1)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """``figure(name, value)``: something measured, for the report of ``--junitxml``."""

    def record(name: str, value: object) -> None:
        request.node.user_properties.append((name, value))

    return record


@pytest.fixture
def running_app(cluster: Cluster, eventually: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """``running_app(name, executors)``: waits until the application runs that many."""

    def wait(name: str, executors: int, timeout_s: float = 60.0) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            app = cluster.application(name)
            return app if app and app["containers_running"] == executors else None

        found: dict[str, Any] = eventually(there, timeout_s, f"{name} runs {executors} executors")
        return found

    return wait


@pytest.fixture
def started(cluster: Cluster) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``started("master", …)``: a daemon of the cluster, restarted by hand; ended afterwards."""
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        log = cluster.directory / f"again-{len(daemons)}.log"
        daemons.append(cluster.start(log, *arguments))
        return daemons[-1]

    yield start
    for daemon in reversed(daemons):
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(30)


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """The file that ends ``shuffled.py``; created at the end of the test, at the latest."""
    path = tmp_path / "go"
    yield path
    path.touch()


def kill_daemon(cluster: Cluster, name: str) -> None:
    """kill -9 of a daemon that `hrm up` has started."""
    (pid,) = [p["pid"] for p in cluster.cluster["processes"] if p["name"] == name]
    os.kill(pid, signal.SIGKILL)
