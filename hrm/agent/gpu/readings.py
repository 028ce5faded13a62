"""Single readings of NVML that several parts need, whatever the age of the driver.

Imports are kept light: workers of pipelines read what they use themselves.
"""

from __future__ import annotations

from typing import Any

import pynvml

__all__ = ["busy_by_process", "capacity_and_used_bytes", "memory_by_process", "process_bytes"]

_NOT_OFFERED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
"""An older driver, or a GPU without that kind of process."""


def memory_by_process(handle: Any) -> dict[int, int | None]:
    """Bytes by process; None: the driver does not report them. A process that both computes and
    draws, or computes through MPS, is in several lists, with the same figure."""
    found: dict[int, int | None] = {}
    processes = list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    for listed in (
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        try:
            processes += listed(handle)
        except pynvml.NVMLError as error:
            if error.value not in _NOT_OFFERED:
                raise
    for process in processes:
        sizes = (found.get(process.pid), process.usedGpuMemory)
        found[process.pid] = max((int(x) for x in sizes if x is not None), default=None)
    return found


def busy_by_process(handle: Any, since_us: int) -> tuple[dict[int, float], int]:
    """By process the share of time with a kernel of it, 0..1, as of the latest sample after
    ``since_us``, and when that was (microseconds, of the driver). None is there that had none.

    Raises:
        pynvml.NVMLError: the driver does not report time by process, or does not respond.
    """
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:  # no kernel ran in the meantime
            return {}, since_us
        raise
    latest_us = max((one.timeStamp for one in samples), default=since_us)
    return {one.pid: float(one.smUtil) / 100 for one in samples}, latest_us


def process_bytes(pid: int) -> int:
    """Device memory of one process, over all GPUs; 0 where NVML does not report it."""
    try:
        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return sum(memory_by_process(handle).get(pid) or 0 for handle in handles)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0


def capacity_and_used_bytes(handle: Any) -> tuple[int, int]:
    """What programs can allocate on a GPU, and how much of it is in use. The driver keeps a part of
    the card for itself, some hundred MiB, which is neither.

    Raises:
        pynvml.NVMLError: the driver does not respond.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _NOT_OFFERED:
            raise
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), int(memory.used)
    return int(memory.total - memory.reserved), int(memory.used)
