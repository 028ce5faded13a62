"""A real ``hrm master`` (and ``hrm scheduler``) for a measurement, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from benchmarks.common import REPOSITORY
from benchmarks.processes import (
    MARK,
    BenchmarkError,
    Started,
    free_port,
    new_mark,
    start,
    sweep,
    tail,
    wait_until,
)

__all__ = ["Master", "running"]

_READY_S = 60.0


class Master:
    """A master on a port that it keeps across restarts.

    The heartbeat's interval grows with the cluster, as ``docs`` recommend: the master gets at most
    1,000 heartbeats a second. ``settings``: further ``HRM_MASTER_*`` variables.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int,
        schedulers: int = 2,
        *,
        heartbeat_interval_s: float | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.target = f"127.0.0.1:{free_port()}"
        self.token_file = directory / "token"
        self.heartbeat_interval_s = heartbeat_interval_s or max(1.0, nodes / 1_000)
        self._schedulers = schedulers
        self._mark = new_mark()
        self._environment = {
            **os.environ, MARK: self._mark, "HRM_HOME": str(directory), "NO_COLOR": "1",
            # All emulated nodes and applications share a few connections.
            "HRM_MASTER_STREAMS_MAX": "100000",
            "PYTHONPATH": str(REPOSITORY), **(settings or {}),
        }  # fmt: skip
        self._started: Started | None = None
        self._others: list[Started] = []

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    @property
    def process(self) -> psutil.Process:
        assert self._started is not None
        return psutil.Process(self._started.process.pid)

    def start(self, profile: Path | None = None) -> None:
        """Start it and wait until it serves."""
        log = self.directory / "master.log"
        seen = log.read_text().count("master ready") if log.exists() else 0
        timeout_s = max(15.0, 5 * self.heartbeat_interval_s)
        profiler = ["-m", "cProfile", "-o", str(profile)] if profile else []
        command = [
            sys.executable, *profiler, "-m", "hrm.cli", "master",
            "--port", self.target.rpartition(":")[2],
            "--state-dir", str(self.directory / "state"),
            "--token-file", str(self.token_file),
            "--schedulers", str(self._schedulers),
            "--heartbeat-interval-s", str(self.heartbeat_interval_s),
            "--node-timeout-s", str(timeout_s),
        ]  # fmt: skip
        self._started = start(command, log=log, environment=self._environment)
        running = self._started

        def ready() -> bool:
            if not running.running:
                raise BenchmarkError(f"the master ended:\n{tail(log)}")
            return log.read_text().count("master ready") > seen

        wait_until(ready, _READY_S, "hrm master serves", 0.02)

    def kill(self) -> None:
        """End it without notice, like a machine that loses power."""
        assert self._started is not None
        self._started.process.kill()
        self._started.process.wait(10)

    def add_scheduler(self, number: int) -> None:
        """Start one more ``hrm scheduler``, and wait until the master has it."""
        log = self.directory / f"scheduler-{number}.log"
        command = [
            sys.executable, "-m", "hrm.cli", "scheduler", "--master", self.target,
            "--name", f"remote-{number}", "--token-file", str(self.token_file),
        ]  # fmt: skip
        scheduler = start(command, log=log, environment=self._environment)
        self._others.append(scheduler)

        def ready() -> bool:
            if not scheduler.running:
                raise BenchmarkError(f"hrm scheduler ended:\n{tail(log)}")
            return "ready" in log.read_text()

        wait_until(ready, _READY_S, "hrm scheduler subscribes", 0.05)

    def close(self) -> None:
        for each in (*self._others, self._started):
            if each is not None:
                with contextlib.suppress(ProcessLookupError):
                    each.end()
        sweep(self._mark)


@contextlib.contextmanager
def running(master: Master, profile: Path | None = None) -> Iterator[Master]:
    """The master, from its start to its end."""
    try:
        master.start(profile)
        yield master
    finally:
        master.close()
