"""Makes the containers of one node slow: the kernel gives each a small part of a core.

The agent has made a control group for each container, with a quota of its own (``cpu_limit =
"quota"``). That quota is lowered from outside, so neither HRM nor Spark knows of it, and a node's
tasks are slow as on a slower processor. How much depends on how much they compute.

Starting a JVM is what an executor computes most. It is left at full speed: it is not what is
compared here, and would take a minute.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil

from benchmarks.processes import BenchmarkError
from hrm.agent.isolation.base import mounts

__all__ = ["Throttle"]

_PERIOD_US = 100_000
_POLL_S = 0.1


def cpu_root() -> Path:
    """Where the hierarchy of the v1 controller ``cpu`` is mounted.

    Raises:
        BenchmarkError: it is not.
    """
    for point, kind, options in mounts():
        if kind == "cgroup" and "cpu" in options:
            return Path(point)
    raise BenchmarkError("the cgroup v1 controller cpu is not mounted here")


class Throttle:
    """Of the node with this work directory: each container gets ``quota_cores`` once it has used
    ``start_cpu_s``, or from ``limit_all`` on."""

    def __init__(self, work_dir: Path, quota_cores: float, start_cpu_s: float) -> None:
        self._containers = work_dir / "containers"
        self._quota_us = round(quota_cores * _PERIOD_US)
        self._start_cpu_s = start_cpu_s
        self._root = cpu_root()
        self._stop = threading.Event()
        self._at_once = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.limited: set[str] = set()
        self.start_cpu_s: dict[str, float] = {}

    def start(self) -> None:
        self._thread.start()

    def limit_all(self) -> None:
        """Those that there are, however little they have used."""
        self._at_once.set()
        self._turn(at_once=True)

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            self._turn(at_once=False)

    def _turn(self, *, at_once: bool) -> None:
        if not self._containers.is_dir():
            return
        for container in self._containers.iterdir():
            if container.name in self.limited:
                continue
            for group in self._root.glob(f"hrm-*/{container.name}"):
                used_s = _used_s(group)
                if at_once or used_s >= self._start_cpu_s:
                    with contextlib.suppress(FileNotFoundError):
                        (group / "cpu.cfs_quota_us").write_text(str(self._quota_us))
                        self.limited.add(container.name)
                        self.start_cpu_s[container.name] = used_s


def _used_s(group: Path) -> float:
    """Processor time of what runs in the group now."""
    used_s = 0.0
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(int(pid)).cpu_times()
                used_s += float(times.user + times.system)
    return used_s
