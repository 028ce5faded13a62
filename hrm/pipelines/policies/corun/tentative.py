"""What remains of a node while starts are chosen one after another.

What is chosen counts immediately, with its estimates, because the load that telemetry shows lags
behind. Policies query many pairs of subtasks and GPUs in one call, so each need is computed once.

Source: LDWP + IAWP, algorithm 2; thresholds after admission are a repair (section 3.1).
"""

from __future__ import annotations

from dataclasses import replace

from hrm.pipelines.core.device_memory import PeakMemory
from hrm.pipelines.core.feasibility import (
    Caps,
    fits_gpu,
    gpu_need_mib,
    gpu_need_peak,
    host_need_mib,
)
from hrm.pipelines.core.model import (
    Device,
    GpuView,
    NodeView,
    ReadySubtask,
    Row,
    StartDecision,
    SubtaskKey,
)

__all__ = ["Tentative", "row_on"]


def row_on(row: Row, gpu: GpuView) -> Row:
    """The row of the same work on ``gpu``, which may be of another model than the node's first."""
    return row if row.gpu_model == gpu.model else row._replace(gpu_model=gpu.model)


class Tentative:
    """Invariant: everything in ``starts`` fits together."""

    def __init__(self, view: NodeView, caps: Caps) -> None:
        self._estimates = view.estimates
        self._caps = caps
        self._ready = {subtask.key: subtask for subtask in view.ready}
        self.gpus = list(view.gpus)
        """In the view's order, each as it will be with ``starts``."""
        self.idle_cores = sorted(view.idle_cores)
        self.memory_free_mib = view.memory_free_mib
        self.starts: list[StartDecision] = []
        self._positions = {gpu.index: place for place, gpu in enumerate(self.gpus)}
        self._needs_mib: dict[SubtaskKey, tuple[float, float]] = {}
        self._peaks: dict[SubtaskKey, PeakMemory] = {}

    def fits(self, subtask: ReadySubtask, device: Device, number: int) -> bool:
        """True iff ``take`` with the same arguments is allowed."""
        if subtask.key not in self._ready or device not in subtask.devices:
            return False
        host_mib, gpu_mib = self._needs(subtask)
        if host_mib > self.memory_free_mib:
            return False
        if device is Device.CPU:
            return number in self.idle_cores
        position = self._positions.get(number)
        return position is not None and self._joins(self.gpus[position], subtask, gpu_mib)

    def gpus_for(self, subtask: ReadySubtask) -> list[GpuView]:
        """GPUs on which it may ever run."""
        if Device.GPU not in subtask.devices:
            return []
        gpu_mib, share = self._needs(subtask)[1], self._caps.gpu_memory_share
        return [gpu for gpu in self.gpus if gpu_mib <= share * gpu.memory_mib]

    def fitting(self, subtask: ReadySubtask) -> list[GpuView]:
        """GPUs that it may join now."""
        return [gpu for gpu in self.gpus if self.fits(subtask, Device.GPU, gpu.index)]

    def wait_s(self, subtask: ReadySubtask, gpu: GpuView) -> float:
        """Seconds until it may start on ``gpu`` if nothing is ahead of it."""
        joins = self._joins(gpu, subtask, self._needs(subtask)[1])
        return 0.0 if joins else gpu.remaining_s

    def work_s(self, row: Row, gpu: GpuView) -> float:
        """Seconds that ``row`` adds to the time until ``gpu`` is free.

        A GPU that runs several at a time is free before the sum of their times: each counts with
        the share of the GPU that it loads, at least one slot's. With one slot that is the sum.
        """
        row = row_on(row, gpu)
        load = float(self._estimates.gpu_features(row)[0])
        return self._estimates.run_s(row, Device.GPU) * max(load, 1.0 / self._caps.co_runners_max)

    def take_core(self, subtask: ReadySubtask) -> bool:
        """Choose the first idle core for it; False: it does not fit."""
        if not self.idle_cores or not self.fits(subtask, Device.CPU, self.idle_cores[0]):
            return False
        self.take(subtask, Device.CPU, self.idle_cores[0])
        return True

    def take(self, subtask: ReadySubtask, device: Device, number: int) -> None:
        """Choose this start, which ``fits``, and count its needs."""
        host_mib, gpu_mib = self._needs(subtask)
        del self._ready[subtask.key]
        self.memory_free_mib -= host_mib
        if device is Device.CPU:
            self.idle_cores.remove(number)
        else:
            position = self._positions[number]
            self.gpus[position] = self._joined(self.gpus[position], subtask, gpu_mib)
        self.starts.append(StartDecision(subtask.key, device, number))

    def left(self) -> list[ReadySubtask]:
        """The ready subtasks that were not taken, in the view's order."""
        return list(self._ready.values())

    def _joins(self, gpu: GpuView, subtask: ReadySubtask, gpu_mib: float) -> bool:
        return fits_gpu(gpu, gpu_mib, self._peak(subtask), self._caps)

    def _peak(self, subtask: ReadySubtask) -> PeakMemory:
        found = self._peaks.get(subtask.key)
        if found is None:
            found = self._peaks[subtask.key] = gpu_need_peak(subtask, self._estimates)
        return found

    def _joined(self, gpu: GpuView, subtask: ReadySubtask, gpu_mib: float) -> GpuView:
        row = row_on(subtask.row, gpu)
        load = float(self._estimates.gpu_features(row)[0])
        return replace(
            gpu,
            running=(*gpu.running, row),
            elapsed_s=(*gpu.elapsed_s, 0.0),
            memory_used_mib=gpu.memory_used_mib + gpu_mib,
            peaks=gpu.peaks.plus(self._peak(subtask)) if gpu.peaks is not None else None,
            utilisation=min(1.0, gpu.utilisation + load),
            remaining_s=max(gpu.remaining_s, self._estimates.run_s(row, Device.GPU)),
        )

    def _needs(self, subtask: ReadySubtask) -> tuple[float, float]:
        """MiB of the host and of a GPU. Estimates do not change while starts are chosen."""
        found = self._needs_mib.get(subtask.key)
        if found is None:
            gpu_mib = 0.0
            if Device.GPU in subtask.devices:
                gpu_mib = gpu_need_mib(subtask, self._estimates)
            found = (host_need_mib(subtask, self._estimates), gpu_mib)
            self._needs_mib[subtask.key] = found
        return found
