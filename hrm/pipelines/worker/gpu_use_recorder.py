"""What one step uses of its GPU over its life: the samples that become its profile.

All figures come from NVML, and from outside: the share of time with a kernel and the memory are
those of the step's processes; what the PCIe link carries is that of the whole card, since no driver
says whose it is, and includes what others on the card do. The step that was alone on the GPU is
thus recorded best; others are not recorded at all (``PipelineNode``). Cores at work are not
reported by process (``GpuUsePart``).

The longer a step runs, the rarer it is sampled: a profile has ``USE_PARTS`` parts, so that a
thirty-second of the time so far is often enough. Where a driver reports neither time nor memory by
process (in some containers, on a MIG device), there is no profile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil
import pynvml

from hrm.agent.gpu.readings import busy_by_process, memory_by_process
from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.policies.shared_gpu.recorded_use import in_parts

__all__ = ["GpuUseRecorder", "GpuUseRecording"]

_PERIOD_S = 0.25
_PERIODS_OF_LIFE = 32
_MIB = 1 << 20
_LANE_KIB_PER_S = {1: 2.44e5, 2: 4.88e5, 3: 9.62e5, 4: 1.92e6, 5: 3.85e6, 6: 7.39e6}
"""What one lane of PCIe carries each way, by generation: 0.25 to 7.56 GB/s."""


class GpuUseRecorder:
    """Samples from ``run`` on, until that is cancelled; ``use`` is what they amount to.

    Args:
        pid: of the step's process; those below it count, too.
        gpu: its number for NVML.
    """

    def __init__(self, pid: int, gpu: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._began_at_s = clock_s()
        self._samples: list[tuple[float, tuple[float, float, float, float]]] = []
        """Each with its time; a thread may add one at any moment."""
        self._seen_at_us = 0
        self._handle: Any = None
        self._closed = False
        self._link_kib_per_s = 0.0
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
            self._link_kib_per_s = _link_kib_per_s(self._handle)

    async def run(self) -> None:
        """Sample until there is nothing to sample, in another thread: PCIe takes 20 ms."""
        while await asyncio.to_thread(self.sample):
            lived_s = self._clock_s() - self._began_at_s
            await asyncio.sleep(max(_PERIOD_S, lived_s / _PERIODS_OF_LIFE))

    def sample(self) -> bool:
        """Take one sample; False: there will be none any more."""
        if self._handle is None or self._closed or self._process is None:
            return False
        try:
            below = self._process.children(recursive=True)
            pids = {self._process.pid, *(one.pid for one in below)}
            at_s = self._clock_s() - self._began_at_s
            gpu, memory_mib = self._gpu(pids), self._memory_mib(pids)
        except (psutil.Error, pynvml.NVMLError):
            return False
        if memory_mib is None:
            return False
        self._samples.append((at_s, (gpu, memory_mib, gpu, self._pcie())))
        return True

    def use(self, ran_s: float, peak_mib: float = 0.0) -> tuple[GpuUsePart, ...]:
        """The use in each part of a life of ``ran_s``: the greatest sample within it, the one
        before it and the one after it included. Empty: there are fewer than two.

        ``peak_mib``: what the step itself saw. If that is more than any sample, all are raised to
        it in proportion, for it was between two of them.
        """
        taken = list(self._samples)
        parts = in_parts([at_s for at_s, _ in taken], [one for _, one in taken], ran_s)
        seen_mib = max((part.memory_mib for part in parts), default=peak_mib)
        if peak_mib <= seen_mib:
            return parts
        raised = [peak_mib * (x.memory_mib / seen_mib if seen_mib else 1.0) for x in parts]
        return tuple(x._replace(memory_mib=mib) for x, mib in zip(parts, raised, strict=True))

    def close(self) -> None:
        """Release the driver."""
        # A sample may be under way in its thread: it keeps the handle, and gets an error.
        if self._handle is not None and not self._closed:
            self._closed = True
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _gpu(self, pids: set[int]) -> float:
        """Raises NVMLError where the driver does not report time by process."""
        busy, self._seen_at_us = busy_by_process(self._handle, self._seen_at_us)
        return min(1.0, sum(share for pid, share in busy.items() if pid in pids))

    def _memory_mib(self, pids: set[int]) -> float | None:
        held = [size for pid, size in memory_by_process(self._handle).items() if pid in pids]
        return None if None in held else sum(size or 0 for size in held) / _MIB

    def _pcie(self) -> float:
        """0 where it is not reported."""
        if not self._link_kib_per_s:
            return 0.0
        with contextlib.suppress(pynvml.NVMLError):
            both = (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
            rates = [pynvml.nvmlDeviceGetPcieThroughput(self._handle, way) for way in both]
            return min(1.0, float(max(rates)) / self._link_kib_per_s)
        return 0.0


class GpuUseRecording:
    """The recorder of one run, if that is on a device. ``gpu``: its number for NVML; None: there is
    none behind it, and nothing is recorded."""

    def __init__(self, gpu: int | None) -> None:
        self._gpu = gpu
        self._recorder: GpuUseRecorder | None = None
        self._sampling: asyncio.Task[None] | None = None

    def begin(self, pid: int) -> None:
        """Record what the process ``pid``, and those below it, use from now on."""
        if self._gpu is not None:
            self._recorder = GpuUseRecorder(pid, self._gpu)
            self._sampling = asyncio.create_task(self._recorder.run())

    def end(self) -> None:
        """Record no more."""
        if self._sampling is not None and self._recorder is not None:
            self._sampling.cancel()
            self._recorder.close()

    def use(self, ran_s: float | None, peak_mib: float) -> tuple[GpuUsePart, ...]:
        """See ``GpuUseRecorder.use``; empty where nothing was recorded."""
        return () if self._recorder is None else self._recorder.use(ran_s or 0.0, peak_mib)


def _link_kib_per_s(handle: Any) -> float:
    """What the card's link carries each way; 0: it is not known."""
    with contextlib.suppress(pynvml.NVMLError):
        lane = _LANE_KIB_PER_S.get(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), 0.0)
        return lane * float(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    return 0.0
