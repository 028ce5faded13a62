"""What this machine, and the process of one subtask, use: cores, memory, network, GPUs.

``Sampler`` is a worker's telemetry; a GPU that NVML does not report is assumed to be as busy as
predicted for its runs. How busy a GPU is, is a matter of all who share it, Spark's executors among
them; of its memory a worker has its own part, so only what its own processes use counts there.
``Profiler`` measures a run from outside.

Cores and host memory come from procfs, over the process and all below it; a GPU's figures from
NVML, by process where the driver reports them so. NVML's memory utilisation, the share of time in
which device memory was read or written, stands for bandwidth.

Caches and load and store throughput are only counted by CUPTI, inside the process and with rights
that agents do not have. What a source does not report is absent from the figures.

Source: LDWP + IAWP, table 2.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pynvml
import structlog

from hrm.agent.gpu.readings import memory_by_process
from hrm.pipelines.core.node_messages import LoadSampled

__all__ = ["Profiler", "Sampler"]

_LINK_BYTES_PER_S = 125e6
_MIB = 1 << 20
_log = structlog.get_logger("hrm.pipelines")


class Sampler:
    """``sample`` is to be called about once a second, from one thread."""

    def __init__(self, gpus: Sequence[int]) -> None:
        """``gpus``: numbers of those with a device behind them."""
        self._numbers = gpus
        self._failed = False
        self._sampled = bool(gpus)
        if self._sampled:
            with contextlib.suppress(pynvml.NVMLError):  # the first sample says so
                pynvml.nvmlInit()
        self._at_s = time.monotonic()
        self._bytes = _network_bytes()
        psutil.cpu_percent()

    def sample(self, now: float) -> LoadSampled:
        """The machine's load since the last call; shares 0..1, rates of a 1 Gbit/s link."""
        at_s, total = time.monotonic(), _network_bytes()
        passed_s = max(1e-3, at_s - self._at_s)
        sent, received = (
            min(1.0, (new - old) / passed_s / _LINK_BYTES_PER_S)
            for new, old in zip(total, self._bytes, strict=True)
        )
        self._at_s, self._bytes = at_s, total
        gpus = self._gpus()
        return LoadSampled(
            now=now,
            cpu=min(1.0, psutil.cpu_percent() / 100),
            memory=min(1.0, psutil.virtual_memory().percent / 100),
            sent=max(0.0, sent),
            received=max(0.0, received),
            gpu_utilisation=tuple(gpu[0] for gpu in gpus),
            gpu_memory_used_mib=tuple(gpu[1] for gpu in gpus),
        )

    def _gpus(self) -> list[tuple[float, float]]:
        """Of each GPU the share of time in which kernels ran, and MiB that this process and those
        below it use, 0 where the driver does not say; [] unless NVML reports all of them."""
        if not self._sampled:
            return []
        try:
            # A handle does not outlive a reloaded driver.
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in self._numbers]
            own = {os.getpid(), *(x.pid for x in psutil.Process().children(recursive=True))}
            found = [_gpu(handle, own) for handle in handles]
        except pynvml.NVMLError as error:
            if not self._failed:
                _log.warning("GPUs are not sampled", why=str(error))
            self._failed = True
            _open_again()
            return []
        if self._failed:
            _log.info("GPUs are sampled again")
        self._failed = False
        return found


def _gpu(handle: Any, pids: set[int]) -> tuple[float, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    used = [size for pid, size in memory_by_process(handle).items() if pid in pids]
    return rates.gpu / 100, sum(size or 0 for size in used) / _MIB


def _open_again() -> None:
    """NVML serves nothing more after its driver was reloaded, until it is initialised again."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()


def _network_bytes() -> tuple[int, int]:
    """Since the machine started, over all its links except loopback."""
    links = [one for name, one in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    return sum(one.bytes_sent for one in links), sum(one.bytes_recv for one in links)


class Profiler:
    """Follows one process: periodic ``sample``, ``figures`` at the end. Not for two threads.

    ``gpu``: the index of the GPU that the process was given; None: none.
    """

    def __init__(self, pid: int, gpu: int | None = None) -> None:
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)
        self._began_at_s = self._seen_at_s = time.monotonic()
        self._cpu_s: dict[int, tuple[float, float]] = {}
        self._memory_mib: float | None = None
        self._gpu = _GpuSource(gpu)
        self.sample()

    @property
    def seen_s(self) -> float:
        """What ``figures`` are an average of."""
        return self._seen_at_s - self._began_at_s

    def sample(self) -> bool:
        """Take one sample; False if the process has ended."""
        pids = set()
        resident = 0
        for process in self._tree():
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                cpu_used_s = times.user + times.system
                # Processes present at the first sample are counted from there, later ones from 0.
                base_s = 0.0 if self._memory_mib else cpu_used_s
                first_s = self._cpu_s.get(process.pid, (base_s, 0.0))[0]
                self._cpu_s[process.pid] = (first_s, cpu_used_s)
                resident += process.memory_info().rss
                pids.add(process.pid)
        if not pids:
            return False
        self._seen_at_s = time.monotonic()
        self._memory_mib = max(self._memory_mib or 0.0, resident / _MIB)
        self._gpu.sample(pids)
        return True

    def figures(self) -> dict[str, float]:
        """The figures so far: shares and MiB by metric, as ``Stdm.observe`` takes them."""
        self.sample()
        figures = self._gpu.figures()
        if self._memory_mib is not None:
            cpu_used_s = sum(last_s - first_s for first_s, last_s in self._cpu_s.values())
            figures["cpu"] = min(1.0, cpu_used_s / max(self.seen_s, 1e-3))
            figures["memory"] = self._memory_mib
        return figures

    def close(self) -> None:
        """Release the driver."""
        self._gpu.close()

    def _tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        with contextlib.suppress(psutil.Error):
            if self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
                return [self._process, *self._process.children(recursive=True)]
        return []


class _GpuSource:
    """NVML, where there is one: mean shares and the peak of memory of some processes."""

    def __init__(self, index: int | None) -> None:
        self._handle: Any = None
        self._open = False
        self._shares: dict[str, list[float]] = {"sm": [], "dram": []}
        self._memory_mib: float | None = None
        self._seen_at_us = 0
        if index is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._open = True
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def sample(self, pids: set[int]) -> None:
        if self._handle is None:
            return
        with contextlib.suppress(pynvml.NVMLError):
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            used = [p.usedGpuMemory for p in running if p.pid in pids]
            # The driver reports None inside some containers, which is not the same as 0.
            if used and None not in used:
                self._memory_mib = max(self._memory_mib or 0.0, sum(used) / _MIB)
        with contextlib.suppress(pynvml.NVMLError):
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_at_us)
            own = [sample for sample in samples if sample.pid in pids]
            self._seen_at_us = max((s.timeStamp for s in samples), default=self._seen_at_us)
            if own:
                self._shares["sm"].append(min(1.0, sum(s.smUtil for s in own) / 100))
                self._shares["dram"].append(min(1.0, sum(s.memUtil for s in own) / 100))

    def figures(self) -> dict[str, float]:
        figures = {name: sum(all_) / len(all_) for name, all_ in self._shares.items() if all_}
        if self._memory_mib is not None:
            figures["gpu_memory"] = self._memory_mib
        return figures

    def close(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
