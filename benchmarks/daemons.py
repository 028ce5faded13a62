"""Daemons of a cluster of ``hrm up``: killed as by ``kill -9``, and started again as they were.

How a daemon was started is read from ``/proc`` before it dies. ``cluster.json`` gets the new
process, so that ``hrm down`` ends it like the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.processes import BenchmarkError, Started, start, wait_until
from hrm.agent.containers.shim import start_ticks
from hrm.cli.embedded import Cluster, DaemonProcess

__all__ = ["Daemons", "Killed"]

_DEATH_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A daemon that is dead, and how it had been started."""

    record: DaemonProcess
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path


class Daemons:
    """Those of the cluster in a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._children: dict[str, Started] = {}
        """Those that were started again: nothing else would reap them."""

    def _cluster(self) -> Cluster:
        cluster = Cluster.read(self._state_dir)
        if cluster is None:
            raise BenchmarkError(f"no cluster is up in {self._state_dir}")
        return cluster

    def log(self, name: str) -> Path:
        """What the daemon prints, before its death and since."""
        return self._state_dir / "logs" / f"{name}.log"

    def kill(self, name: str) -> Killed:
        """SIGKILL to the process alone: what it has started lives on.

        Raises:
            BenchmarkError: there is no such daemon, or it has ended already.
        """
        record = next((one for one in self._cluster().processes if one.name == name), None)
        if record is None or not record.alive():
            raise BenchmarkError(f"no daemon {name} runs in {self._state_dir}")
        try:
            process = psutil.Process(record.pid)
            killed = Killed(
                record=record,
                command=process.cmdline(),
                environment=process.environ(),
                directory=Path(process.cwd()),
            )
            process.kill()
        except psutil.Error as error:
            raise BenchmarkError(f"{name} cannot be killed: {error}") from error
        wait_until(lambda: not record.alive(), _DEATH_LIMIT_S, f"{name} to be dead")
        if (child := self._children.pop(name, None)) is not None:
            child.wait(_DEATH_LIMIT_S)
        return killed

    def start(self, killed: Killed, more: Sequence[str] = ()) -> None:
        """Start it with the same command line, and ``more`` flags; does not wait for it."""
        command = [*killed.command, *more]
        log = Path(killed.record.log)
        child = start(command, log=log, environment=killed.environment, directory=killed.directory)
        pid = child.process.pid
        again = replace(killed.record, pid=pid, start_ticks=start_ticks(pid) or 0)
        self._children[again.name] = child
        cluster = self._cluster()
        cluster.processes = [again if one.name == again.name else one for one in cluster.processes]
        cluster.save()
