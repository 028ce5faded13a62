"""May this subtask start there? One answer for node policies, node core and simulator.

A subtask needs host memory wherever it runs. A GPU takes one more while fewer than ``co_runners``
run on it, its utilisation is below a share, and its memory *with* the newcomer stays below a share
of what it has: the load that telemetry shows lags behind what was just started, so what is chosen
is added at once (``joined``), with what its estimates say.

``Room`` applies this to a whole node while starts are chosen one after the other.

Source: LDWP + IAWP, algorithm 2; thresholds after admission are a repair (section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hrm.core.pipeline.model import (
    Device,
    Estimates,
    GpuView,
    NodeView,
    ReadySubtask,
    Row,
    Start,
)

__all__ = ["Limits", "Room", "fits_gpu", "joined", "row_on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a GPU takes one more. The same for all policies of a node."""

    utilisation: float = 0.90
    """A GPU that is at least so busy takes nobody (TU)."""
    gpu_memory: float = 0.90
    """Share of a GPU's memory that may be promised (TM)."""
    co_runners: int = 4
    """Most subtasks at a time on a GPU (CMAX)."""


def row_on(row: Row, gpu: GpuView) -> Row:
    """The row of the same work on ``gpu``, which may be of another model than the node's first."""
    return row if row.gpu_model == gpu.model else row._replace(gpu_model=gpu.model)


def fits_gpu(gpu: GpuView, row: Row, estimates: Estimates, limits: Limits) -> bool:
    """May ``row``'s GPU version join those that run on ``gpu``?"""
    return (
        len(gpu.running) < limits.co_runners
        and gpu.utilisation < limits.utilisation
        and gpu.memory_used_mib + estimates.gpu_memory_mib(row_on(row, gpu))
        <= limits.gpu_memory * gpu.memory_mib
    )


def joined(gpu: GpuView, row: Row, estimates: Estimates) -> GpuView:
    """``gpu`` as it will be once ``row``'s GPU version runs there, by what is estimated."""
    row = row_on(row, gpu)
    return replace(
        gpu,
        running=(*gpu.running, row),
        memory_used_mib=gpu.memory_used_mib + estimates.gpu_memory_mib(row),
        utilisation=min(1.0, gpu.utilisation + float(estimates.gpu_features(row)[0])),
        remaining_s=max(gpu.remaining_s, estimates.run_s(row, Device.GPU)),
    )


class Room:
    """What is left of a node while one call of ``dispatch`` chooses, or the core checks a choice.

    Invariant: everything in ``starts`` fits together.
    """

    def __init__(self, view: NodeView, limits: Limits) -> None:
        self._estimates = view.estimates
        self._limits = limits
        self._ready = {subtask.key: subtask for subtask in view.ready}
        self.gpus = list(view.gpus)
        """In the view's order, each as it will be with ``starts``."""
        self.idle_cores = sorted(view.idle_cores)
        self.memory_free_mib = view.memory_free_mib
        self.starts: list[Start] = []
        self._positions = {gpu.index: place for place, gpu in enumerate(self.gpus)}
        self._memory_mib: dict[Row, float] = {}

    def fits(self, subtask: ReadySubtask, device: Device, number: int) -> bool:
        """True iff ``take`` with the same arguments would be right."""
        if subtask.key not in self._ready or device not in subtask.devices:
            return False
        if self._memory_of(subtask.row) > self.memory_free_mib:
            return False
        if device is Device.CPU:
            return number in self.idle_cores
        position = self._positions.get(number)
        if position is None:
            return False
        return fits_gpu(self.gpus[position], subtask.row, self._estimates, self._limits)

    def take(self, subtask: ReadySubtask, device: Device, number: int) -> None:
        """Choose this start, which ``fits``, and count what it takes."""
        del self._ready[subtask.key]
        self.memory_free_mib -= self._memory_of(subtask.row)
        if device is Device.CPU:
            self.idle_cores.remove(number)
        else:
            position = self._positions[number]
            self.gpus[position] = joined(self.gpus[position], subtask.row, self._estimates)
        self.starts.append(Start(subtask.key, device, number))

    def left(self) -> list[ReadySubtask]:
        """The ready subtasks that were not taken, in the view's order."""
        return list(self._ready.values())

    def _memory_of(self, row: Row) -> float:
        """Estimates do not change while starts are chosen."""
        found = self._memory_mib.get(row)
        if found is None:
            found = self._memory_mib[row] = self._estimates.memory_mib(row)
        return found
