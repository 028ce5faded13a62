"""A cluster to attack: ``hrm master``, agents and schedulers, each a process of its own.

All settings are the defaults, except for directories, free ports, a node's size, and ``run_as``,
which is off so that a cluster of root starts containers for users that the machine does not have.
The containers of its agents are shells (``tests.hostile.agent``), since Spark is not attacked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil

from hrm import rpc
from hrm.v1 import admin_pb2, admin_pb2_grpc
from tests.conftest import PATIENCE, PYTHON_PATH

__all__ = ["ROOT", "Cluster", "Daemon", "stopped", "wait_until"]

ROOT = Path(__file__).resolve().parents[2]
CALL_S = 20.0
START_S = 40.0
END_S = 20.0
MIB = 1 << 20

# Never written by a daemon without bugs: a traceback, a task whose result was never retrieved.
UNHANDLED = re.compile(
    r"Traceback \(most recent call last\)|never retrieved|Unhandled|was never awaited"
    r"|Exception ignored in|object at 0x[0-9a-f]+> (raised|failed)"
)


def wait_until(
    condition: Callable[[], Any], what: str, timeout_s: float = 20.0, period_s: float = 0.05
) -> Any:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + PATIENCE * timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(period_s)
    return value


class Daemon:
    """One process of the cluster, and its output."""

    def __init__(self, name: str, argv: list[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.log_file = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                argv,
                env=environment,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._seen = psutil.Process(self.process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def memory_mib(self) -> float:
        """Resident; 0 once it is gone."""
        try:
            return float(self._seen.memory_info().rss) / MIB
        except psutil.Error:
            return 0.0

    def descriptors(self) -> int:
        try:
            return int(self._seen.num_fds())
        except psutil.Error:
            return 0

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def unhandled(self, since: int = 0) -> list[str]:
        """The unhandled errors in its log, from character ``since`` on, each with the lines that
        follow, so that a failure shows the place."""
        text = self.log()[since:]
        return [text[m.start() : m.start() + 4_000] for m in UNHANDLED.finditer(text)]

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_S)

    def ended(self, timeout_s: float = END_S) -> int:
        """Its exit status."""
        return self.process.wait(PATIENCE * timeout_s)

    def end(self) -> None:
        """By SIGTERM, then by force; nothing of it is left."""
        children = self._children()
        if self.alive():
            self.go_on()
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()

    def _children(self) -> list[psutil.Process]:
        try:
            return list(self._seen.children(recursive=True))
        except psutil.Error:
            return []


class Cluster:
    """Daemons in ``directory``; a context manager that ends them all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.token_file = directory / "token"
        self.state_dir = directory / "master"
        self.daemons: list[Daemon] = []
        self._channel: grpc.Channel | None = None
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HRM_", "SPARK_"))}
        self.environment = {
            **kept,
            "HRM_HOME": str(directory),
            "HRM_AGENT_CLASS_ARCHIVE": "false",
            "PYTHONPATH": PYTHON_PATH,
        }

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget_channel()
        for daemon in reversed(self.daemons):
            daemon.end()

    # --- daemons ------------------------------------------------------------------------------

    def start(self, name: str, *argv: str, **environment: str) -> Daemon:
        log = self.directory / f"{len(self.daemons)}-{name}.log"
        daemon = Daemon(name, [sys.executable, *argv], {**self.environment, **environment}, log)
        self.daemons.append(daemon)
        return daemon

    def start_master(self, *flags: str, port: int = 0, wait: bool = True) -> Daemon:
        address = self.state_dir / "address"
        with contextlib.suppress(OSError):  # a disk that cannot be written, say
            address.unlink()
        argv = ["-m", "hrm.cli", "master", "--port", str(port), *flags]
        daemon = self.start("master", *argv)
        if wait:
            wait_until(
                lambda: (
                    (address.exists() and address.read_text().endswith("\n")) or not daemon.alive()
                ),
                "the master serves",
                START_S,
            )
            assert daemon.alive(), daemon.log()
            self.forget_channel()
        return daemon

    def start_agent(self, name: str = "node-1", *, wait: bool = True, **settings: Any) -> Daemon:
        work_dir = self.directory / name
        values = {
            "master": self.address,
            "name": name,
            "work_dir": str(work_dir),
            "token_file": str(self.token_file),
            "cores": 4,
            "memory_mib": 4096,
            "disk_free_min_mib": 0,
            "run_as": "off",
            "mps": "off",
            **settings,
        }
        daemon = self.start(name, "-m", "tests.hostile.agent", json.dumps(values))
        if wait:
            wait_until(lambda: (work_dir / "ready.json").exists(), f"{name} is ready", START_S)
            wait_until(lambda: name in self.alive_nodes(), f"{name} has joined", START_S)
        return daemon

    def start_scheduler(self, name: str = "east") -> Daemon:
        argv = ["-m", "hrm.cli", "scheduler", "--master", self.address, "--name", name]
        return self.start(f"scheduler-{name}", *argv)

    def hrm(
        self, *arguments: str, timeout_s: float = 60.0, with_master: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """One command of the command line; its output as bytes, since the exact bytes matter."""
        where = {"HRM_MASTER": self.address} if with_master else {}
        return subprocess.run(
            [sys.executable, "-m", "hrm.cli", *arguments],
            env={**self.environment, **where},
            cwd=self.directory,
            capture_output=True,
            timeout=PATIENCE * timeout_s,
            check=False,
        )

    # --- its reports --------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return (self.state_dir / "address").read_text().strip()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    @property
    def channel(self) -> grpc.Channel:
        if self._channel is None:
            self._channel = rpc.sync_channel(self.address, self.token)
        return self._channel

    def forget_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def admin(self) -> Any:
        return admin_pb2_grpc.AdminServiceStub(self.channel)

    def status(self, timeout_s: float = CALL_S) -> Any:
        return self.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=timeout_s)

    def nodes(self) -> Any:
        return self.admin.ListNodes(admin_pb2.ListNodesRequest(), timeout=CALL_S).nodes

    def alive_nodes(self) -> set[str]:
        return {n.name for n in self.nodes() if n.state == 1}

    def endpoint(self, name: str = "node-1") -> str:
        """The address of the node's AgentService."""
        (found,) = [n.endpoint for n in self.nodes() if n.name == name]
        return str(found)

    def unhandled(self) -> str:
        """The unhandled errors of all daemons; empty: none."""
        found = [f"{d.name}:\n{text}" for d in self.daemons for text in d.unhandled()]
        return "\n\n".join(found[:10])


@contextlib.contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """It does not run for the length of a ``with``, and cannot notice that."""
    daemon.stop()
    try:
        yield
    finally:
        daemon.go_on()
