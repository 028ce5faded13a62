"""GPU memory by process, as reported by NVML: each CUDA context (some hundred MiB) included.

Processes are identified by pid; NVML reports those of the machine, so an agent in a PID namespace
of its own finds none. Those that compute through MPS have a list of their own. A driver that fails,
or was reloaded, is queried again with the tracker's next sample: no container ends because of a
failed reading.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import pynvml
import structlog

from hrm.agent.gpu.readings import memory_by_process
from hrm.core.vocabulary.advice import EXECUTOR, Advice
from hrm.core.vocabulary.model import Gpu

__all__ = ["DeviceMemory", "device_memory_message"]

_log = structlog.get_logger("hrm.agent")


class DeviceMemory:
    """``gpus``: those whose processes count. One that fails is left out of a reading."""

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        """Raises pynvml.NVMLError if there is no driver."""
        self._gpus = tuple(gpus)
        self._failed = ""
        pynvml.nvmlInit()

    def used_bytes(self) -> dict[int, int]:
        """Per process that has some, by process id, summed over all GPUs."""
        used: dict[int, int] = {}
        failed = unreported = ""
        for gpu in self._gpus:
            try:
                # A handle does not outlive a reloaded driver.
                found = memory_by_process(pynvml.nvmlDeviceGetHandleByIndex(gpu.index))
            except pynvml.NVMLError as error:
                failed = f"GPU {gpu.index}: {error}"
                continue
            for pid, size in found.items():
                used[pid] = used.get(pid, 0) + (size or 0)
                if size is None:
                    unreported = f"GPU {gpu.index}: the driver reports no memory by process here"
        self._report(failed or unreported)
        if failed:
            self._open_again()
        return used

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
