"""What the machine's processor time went to, by role: drivers, executors, daemons, and all else.

The processes of an arm share the machine's cores with each other. Whether a stream is slow because
it waits for slots or because it waits for cores shows in who used these. Sampled once a second:
what a process uses after its last sample is lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.processes import MARK

__all__ = [
    "BATCH_DRIVERS",
    "DAEMONS",
    "OTHERS",
    "STREAM_DRIVER",
    "MachineUse",
    "application_of",
    "is_container",
]

STREAM_DRIVER, BATCH_DRIVERS = "stream's driver", "batch drivers"
STREAM_EXECUTORS, BATCH_EXECUTORS = "stream's executors", "batch executors"
PIPELINES = "workers of pipelines"
DAEMONS, OTHERS = "daemons", "all else"
_SUBMITTER = "org.apache.spark.deploy.SparkSubmit"


def application_of(command_line: Collection[str]) -> str:
    """The application that an executor's command line names; empty: it is none."""
    words = list(command_line)
    if "--executor-id" not in words or "--app-id" not in words[:-1]:
        return ""
    return words[words.index("--app-id") + 1]


def is_worker(command_line: Collection[str]) -> bool:
    """Is it a worker of pipelines, or a process of one?"""
    return any(word.startswith("hrm.pipelines.worker") for word in command_line)


def is_container(command_line: Collection[str]) -> bool:
    """Is it an executor or a worker?"""
    return "--executor-id" in command_line or is_worker(command_line)


@dataclass(slots=True)
class MachineUse:
    """``marks``: of the arm's clusters. ``stream``: the process that submitted the stream.
    ``directory``: below it are the event logs, by whose names executors are known: their
    environment is their own.

    ``sample`` is called again and again; ``by_role`` has the seconds between the first and the last
    call.
    """

    marks: Collection[str]
    stream: int
    directory: Path
    _roles: dict[tuple[int, float], str] = field(default_factory=dict)
    _first_s: dict[tuple[int, float], float] = field(default_factory=dict)
    _last_s: dict[tuple[int, float], float] = field(default_factory=dict)
    _machine_s: list[float] = field(default_factory=list)

    def sample(self) -> None:
        is_first = not self._machine_s
        self._machine_s.append(self.machine_s())
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                key = (process.pid, process.create_time())
                if self._roles.get(key, DAEMONS) == DAEMONS:  # it may become an executor
                    self._roles[key] = self._role(process)
                times = process.cpu_times()
                used_s = float(times.user + times.system)
                self._first_s.setdefault(key, used_s if is_first else 0.0)
                self._last_s[key] = used_s

    @staticmethod
    def machine_s() -> float:
        """Processor time of the whole machine since its start."""
        times = psutil.cpu_times()
        return float(times.user + times.nice + times.system)

    @property
    def total_s(self) -> float:
        return self._machine_s[-1] - self._machine_s[0]

    def by_role(self) -> Mapping[str, float]:
        """Seconds; ``OTHERS`` is what is left of the machine's."""
        found = dict.fromkeys(
            (STREAM_DRIVER, STREAM_EXECUTORS, BATCH_DRIVERS, BATCH_EXECUTORS, DAEMONS), 0.0
        )
        for key, role in self._roles.items():
            if role != OTHERS and key in self._last_s:
                found[role] = found.get(role, 0.0) + self._last_s[key] - self._first_s[key]
        found[OTHERS] = max(0.0, self.total_s - sum(found.values()))
        return {role: round(seconds, 2) for role, seconds in found.items()}

    def _role(self, process: psutil.Process) -> str:
        if application := application_of(process.cmdline()):
            for log in self.directory.glob(f"*/events/{application}*"):
                is_stream = log.parent.parent.name == "stream"
                return STREAM_EXECUTORS if is_stream else BATCH_EXECUTORS
        if is_worker(process.cmdline()):
            return PIPELINES
        if process.environ().get(MARK) not in self.marks:
            return OTHERS
        session = os.getsid(process.pid)
        if session == self.stream:
            return STREAM_DRIVER
        with contextlib.suppress(psutil.Error, OSError):
            if any(_SUBMITTER in word for word in psutil.Process(session).cmdline()):
                return BATCH_DRIVERS
        return DAEMONS
