"""How long until a GPU is through with what runs and what queues for it? For several policies.

A GPU that runs several at a time is not through after the sum of their times alone: each counts
with the share of the GPU that it loads, at least one slot's. With one slot that is the plain sum.
"""

from __future__ import annotations

from hrm.core.pipeline.feasible import Limits, fits_gpu, gpu_need_mib, row_on
from hrm.core.pipeline.model import Device, Estimates, GpuView, ReadySubtask, Row

__all__ = ["could_fit", "gpu_wait_s", "gpu_work_s"]


def could_fit(gpu: GpuView, subtask: ReadySubtask, estimates: Estimates, limits: Limits) -> bool:
    """May it ever run on ``gpu``, if nothing else does?"""
    needed_mib = gpu_need_mib(gpu, subtask.row, estimates, subtask.gpu_memory_mib)
    return needed_mib <= limits.gpu_memory * gpu.memory_mib


def gpu_work_s(gpu: GpuView, row: Row, estimates: Estimates, limits: Limits) -> float:
    """What ``row`` adds to the time after which ``gpu`` is through, seconds."""
    row = row_on(row, gpu)
    load = float(estimates.gpu_features(row)[0])
    return estimates.run_s(row, Device.GPU) * max(load, 1.0 / limits.co_runners)


def gpu_wait_s(gpu: GpuView, subtask: ReadySubtask, estimates: Estimates, limits: Limits) -> float:
    """Until it may start on ``gpu`` if nobody is before it, seconds."""
    fits = fits_gpu(gpu, subtask.row, estimates, limits, subtask.gpu_memory_mib)
    return 0.0 if fits else gpu.remaining_s
