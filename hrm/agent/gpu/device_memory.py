"""GPU memory by process, as reported by NVML: each CUDA context (some hundred MiB) included; and
how much of the time each process has a GPU compute.

Processes are identified by pid; NVML reports those of the machine, so an agent in a PID namespace
of its own finds none. Those that compute through MPS have a list of their own. A driver that fails,
or was reloaded, is queried again with the tracker's next sample: no container ends because of a
failed reading.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import pynvml
import structlog

from hrm.agent.gpu.readings import busy_by_process, memory_by_process
from hrm.core.vocabulary.advice import EXECUTOR, Advice
from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.core.vocabulary.model import Gpu

__all__ = ["DeviceMemory", "DeviceReading", "device_memory_message"]

_MIB = 1 << 20

_log = structlog.get_logger("hrm.agent")


class DeviceReading(NamedTuple):
    """By process id, over all GPUs: ``used_bytes`` of those that have device memory, and ``busy``,
    the share of time with a kernel, None where a driver does not report it. ``unreported``: those
    of which it does not report the memory, 0 in ``used_bytes``."""

    used_bytes: dict[int, int]
    busy: dict[int, float] | None
    unreported: frozenset[int]

    def use_of(self, pids: Collection[int]) -> GpuUsePart:
        """Of the processes of one container together; NaN: not reported. What the PCIe link carries
        is reported for all containers of a card alone, and counts as nothing."""
        mib = sum(self.used_bytes.get(pid, 0) for pid in pids) / _MIB
        memory_mib = math.nan if not self.unreported.isdisjoint(pids) else mib
        busy = math.nan
        if self.busy is not None:
            busy = min(1.0, sum(self.busy.get(pid, 0.0) for pid in pids))
        return GpuUsePart(busy, memory_mib, busy, 0.0)


class DeviceMemory:
    """``gpus``: those whose processes count. One that fails is left out of a reading."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        """Raises pynvml.NVMLError if there is no driver."""
        self._gpus = tuple(gpus)
        self._failed = ""
        self._seen_us: dict[int, int] = {}
        pynvml.nvmlInit()

    def used_bytes(self) -> dict[int, int]:
        """Per process that has some, by process id, summed over all GPUs."""
        return self.read().used_bytes

    def read(self) -> DeviceReading:
        """What all processes use now."""
        used: dict[int, int] = {}
        busy: dict[int, float] | None = {}
        silent: set[int] = set()
        failed = unreported = ""
        for gpu in self._gpus:
            try:
                # A handle does not outlive a reloaded driver.
                handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
                found = memory_by_process(handle)
            except pynvml.NVMLError as error:
                failed = f"GPU {gpu.index}: {error}"
                busy = None
                continue
            for pid, size in found.items():
                used[pid] = used.get(pid, 0) + (size or 0)
                if size is None:
                    silent.add(pid)
                    unreported = f"GPU {gpu.index}: the driver reports no memory by process here"
            busy = self._busy(gpu.index, handle, busy)
        self._report(failed or unreported)
        if failed:
            self._open_again()
        return DeviceReading(used, busy, frozenset(silent))

    def _busy(
        self, index: int, handle: Any, busy: dict[int, float] | None
    ) -> dict[int, float] | None:
        """``busy`` with what the processes of one more GPU have."""
        try:
            found, self._seen_us[index] = busy_by_process(handle, self._seen_us.get(index, 0))
        except pynvml.NVMLError:
            return None
        if busy is None:
            return None
        return busy | {pid: max(share, busy.get(pid, 0.0)) for pid, share in found.items()}

    def _report(self, failed: str) -> None:
        if failed and not self._failed:
            _log.warning("device memory is not watched", why=failed)
        elif self._failed and not failed:
            _log.info("device memory is watched again")
        self._failed = failed

    def _open_again(self) -> None:
        """NVML serves nothing more after its driver was reloaded, until it is initialised again."""
        self.close()
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()

    def close(self) -> None:
        """Release the driver."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def device_memory_message(used_mib: int, limit_mib: int, advice: Advice = EXECUTOR) -> str:
    """One line for the user of a container that was over its share of a GPU."""
    if not limit_mib:
        return f"used {used_mib} MiB of device memory and holds none; {advice.with_gpu}"
    return (
        f"used {used_mib} MiB of device memory of {limit_mib} MiB (each process's CUDA context "
        f"counts); raise {advice.gpu_size}, or keep less on the GPU at once"
    )
