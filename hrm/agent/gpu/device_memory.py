"""GPU memory by process, as reported by NVML: each CUDA context (some hundred MiB) included.

Processes are identified by pid; NVML reports those of the machine, so an agent in a PID namespace
of its own finds none. A driver that fails is queried again with the tracker's next sample: no
container ends because of a failed reading.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pynvml
import structlog

from hrm.core.vocabulary.model import Gpu

__all__ = ["DeviceMemory", "device_memory_message"]

_MIB = 1024 * 1024
_log = structlog.get_logger("hrm.agent")


class DeviceMemory:
    """``gpus``: those whose processes count."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        """Raises pynvml.NVMLError if there is no driver."""
        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus]
        self._failed = False

    def used_bytes(self) -> dict[int, int]:
        """Per process that has some, by process id, summed over all GPUs."""
        used: dict[int, int] = {}
        try:
            for handle in self._handles:
                for pid, size in _processes(handle).items():
                    used[pid] = used.get(pid, 0) + size
        except pynvml.NVMLError as error:
            if not self._failed:
                _log.warning("device memory is not watched: the driver fails", why=str(error))
            self._failed = True
            return {}
        self._failed = False
        return used

    def close(self) -> None:
        """Release the driver."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _processes(handle: Any) -> dict[int, int]:
    """A process that both computes and draws is in both lists, with the same figure."""
    found: dict[int, int] = {}
    lists = (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    )
    for listed in lists:
        for process in listed(handle):
            size = process.usedGpuMemory or 0  # None: the driver does not report it
            found[process.pid] = max(found.get(process.pid, 0), int(size))
    return found


def device_memory_message(used_mib: int, limit_mib: int) -> str:
    """One line for the user of a container that was over its share of a GPU."""
    if not limit_mib:
        return (
            f"used {used_mib} MiB of device memory and holds none; request a GPU with "
            f"spark.executor.resource.gpu.amount=1"
        )
    return (
        f"used {used_mib} MiB of device memory of {limit_mib} MiB (each process's CUDA context "
        f"counts); raise spark.hrm.executor.gpu.memory, or keep less on the GPU at once"
    )
