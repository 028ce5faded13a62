"""What a subtask's process uses while it runs, measured from outside: cores, memory, its GPU.

Cores and host memory come from procfs, over the process and all below it. A GPU's figures come from
NVML, by process where the driver reports them so: memory, and how busy the process keeps the
multiprocessors and the memory. NVML's memory utilisation is the share of time in which device
memory was read or written, which stands for bandwidth as well as anything that NVML has.

Caches and load and store throughput are counted by CUPTI only, which must be loaded into the
process itself and asks for rights that agents do not have; no figure of them is made up here. What
a source does not report is absent from the figures and named in ``missing``, with the reason.

Source: LDWP + IAWP, table 2.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import pynvml

__all__ = ["COUNTED_INSIDE", "Profile", "Profiler"]

COUNTED_INSIDE = ("l1", "l2", "tex", "load", "store")
"""Metrics that only a profiler inside the process can count."""

_MIB = 1024 * 1024
_NO_COUNTERS = "not available: hardware counters need CUPTI inside the process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """``figures``: metric to value, as ``Stdm.observe`` takes them (shares, MiB).

    ``missing``: metric to the reason why it is not there. ``duration_s``: what it is an average of.
    """

    figures: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    duration_s: float = 0.0


class Profiler:
    """Follows one process: ``sample`` now and then, ``profile`` at the end. Not for two threads.

    ``gpu``: the index of the GPU that the process was given; None: none.
    """

    def __init__(self, pid: int, gpu: int | None = None) -> None:
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)
        self._began_at = self._seen_at = time.monotonic()
        self._cpu_s: dict[int, tuple[float, float]] = {}
        self._memory_mib: float | None = None
        self._gpu = _GpuSource(gpu)
        self.sample()

    def sample(self) -> bool:
        """Look once; False if the process has ended."""
        pids = set()
        resident = 0
        for process in self._tree():
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                spent_s = times.user + times.system
                first_s = self._cpu_s.get(process.pid, (self._base_s(process, spent_s), 0.0))[0]
                self._cpu_s[process.pid] = (first_s, spent_s)
                resident += process.memory_info().rss
                pids.add(process.pid)
        if not pids:
            return False
        self._seen_at = time.monotonic()
        self._memory_mib = max(self._memory_mib or 0.0, resident / _MIB)
        self._gpu.sample(pids)
        return True

    def profile(self) -> Profile:
        """What was seen until now."""
        self.sample()
        duration_s = self._seen_at - self._began_at
        figures, missing = self._gpu.result()
        if self._memory_mib is None:
            missing |= dict.fromkeys(("cpu", "memory"), "not available: the process has ended")
        else:
            spent_s = sum(last_s - first_s for first_s, last_s in self._cpu_s.values())
            figures["cpu"] = min(1.0, spent_s / max(duration_s, 1e-3))
            figures["memory"] = self._memory_mib
        return Profile(figures=figures, missing=missing, duration_s=duration_s)

    def close(self) -> None:
        """Let go of the driver."""
        self._gpu.close()

    def _tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        with contextlib.suppress(psutil.Error):
            if self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
                return [self._process, *self._process.children(recursive=True)]
        return []

    def _base_s(self, process: psutil.Process, spent_s: float) -> float:
        """Processes present at the first sample are counted from there, later ones from zero."""
        return spent_s if not self._memory_mib else 0.0


class _GpuSource:
    """NVML, where there is one: mean shares and the peak of memory of some processes."""

    def __init__(self, index: int | None) -> None:
        self._handle: Any = None
        self._why = "not available: the subtask has no GPU"
        self._open = False
        self._shares: dict[str, list[float]] = {"sm": [], "dram": []}
        self._memory_mib: float | None = None
        self._seen_at_us = 0
        if index is None:
            return
        try:
            pynvml.nvmlInit()
            self._open = True
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            self._why = f"not available: NVML: {error}"

    def sample(self, pids: set[int]) -> None:
        if self._handle is None:
            return
        with contextlib.suppress(pynvml.NVMLError):
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            used = [p.usedGpuMemory for p in running if p.pid in pids]
            # The driver says None inside some containers: not the same as nothing.
            if used and None not in used:
                self._memory_mib = max(self._memory_mib or 0.0, sum(used) / _MIB)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_at_us)
        except pynvml.NVMLError as error:
            self._why = f"not available by process: NVML: {error}"
            return
        own = [sample for sample in samples if sample.pid in pids]
        self._seen_at_us = max((s.timeStamp for s in samples), default=self._seen_at_us)
        if own:
            self._shares["sm"].append(min(1.0, sum(s.smUtil for s in own) / 100))
            self._shares["dram"].append(min(1.0, sum(s.memUtil for s in own) / 100))

    def result(self) -> tuple[dict[str, float], dict[str, str]]:
        figures = {name: sum(all_) / len(all_) for name, all_ in self._shares.items() if all_}
        if self._memory_mib is not None:
            figures["gpu_memory"] = self._memory_mib
        names = ("sm", "dram", "gpu_memory")
        why = self._why if self._handle is None else self._silent()
        missing = {name: why for name in names if name not in figures}
        missing |= dict.fromkeys(
            COUNTED_INSIDE, self._why if self._handle is None else _NO_COUNTERS
        )
        return figures, missing

    def _silent(self) -> str:
        why = self._why if "NVML" in self._why else "the driver reported nothing of this process"
        return why if why.startswith("not available") else f"not available: {why}"

    def close(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
