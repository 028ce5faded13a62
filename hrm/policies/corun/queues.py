"""How long until a GPU is through with what runs and what queues for it? For several policies.

A GPU that runs several at a time is not through after the sum of their times alone: each counts
with the share of the GPU that it loads, at least one slot's. With one slot that is the plain sum.
"""

from __future__ import annotations

from hrm.core.pipeline.feasible import Limits, fits_gpu, row_on
from hrm.core.pipeline.model import Device, Estimates, GpuView, Row

__all__ = ["could_fit", "gpu_wait_s", "gpu_work_s"]


def could_fit(gpu: GpuView, row: Row, estimates: Estimates, limits: Limits) -> bool:
    """May ``row`` ever run on ``gpu``, if nothing else does?"""
    needed_mib = estimates.gpu_memory_mib(row_on(row, gpu))
    return needed_mib <= limits.gpu_memory * gpu.memory_mib


def gpu_work_s(gpu: GpuView, row: Row, estimates: Estimates, limits: Limits) -> float:
    """What ``row`` adds to the time after which ``gpu`` is through, seconds."""
    row = row_on(row, gpu)
    load = float(estimates.gpu_features(row)[0])
    return estimates.run_s(row, Device.GPU) * max(load, 1.0 / limits.co_runners)


def gpu_wait_s(gpu: GpuView, row: Row, estimates: Estimates, limits: Limits) -> float:
    """Until ``row`` may start on ``gpu`` if nobody is before it, seconds."""
    return 0.0 if fits_gpu(gpu, row, estimates, limits) else gpu.remaining_s
