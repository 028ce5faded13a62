"""May this subtask start there? One answer for policies, the node's core, the master and simulator.

A subtask needs host memory wherever it runs, and on the CPU an idle core. A GPU takes one more
while fewer than ``co_runners`` run on it, its utilisation is below a share, and its memory *with*
the newcomer stays within a share of what it has: the load that telemetry shows lags behind what was
just started, so what is chosen is added at once (``joined``), with what its estimates say.

Memory counts as promised, not as used: what was admitted may still grow into it. Utilisation does
not keep a subtask from a card on which nothing of ours runs: what strangers do there must not shut
us out for ever.

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
    SubtaskSpec,
)
from hrm.core.pipeline.node_messages import NodeCapacity

__all__ = [
    "Limits",
    "Room",
    "fits_gpu",
    "gpu_need_mib",
    "host_need_mib",
    "joined",
    "never_fits",
    "refusal",
    "row_on",
]


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


def host_need_mib(subtask: ReadySubtask, estimates: Estimates) -> float:
    """Host memory that it is charged while it runs, MiB."""
    return subtask.memory_mib or estimates.memory_mib(subtask.row)


def gpu_need_mib(gpu: GpuView, row: Row, estimates: Estimates, charged_mib: float = 0.0) -> float:
    """Device memory that ``row`` is charged on ``gpu``, MiB: ``charged_mib`` if that is known."""
    return charged_mib or estimates.gpu_memory_mib(row_on(row, gpu))


def fits_gpu(
    gpu: GpuView, row: Row, estimates: Estimates, limits: Limits, charged_mib: float = 0.0
) -> bool:
    """May ``row``'s GPU version join those that run on ``gpu``?"""
    if len(gpu.running) >= limits.co_runners:
        return False
    if gpu.running and gpu.utilisation >= limits.utilisation:
        return False
    needed_mib = gpu_need_mib(gpu, row, estimates, charged_mib)
    return gpu.memory_used_mib + needed_mib <= limits.gpu_memory * gpu.memory_mib


def joined(gpu: GpuView, row: Row, estimates: Estimates, charged_mib: float = 0.0) -> GpuView:
    """``gpu`` as it will be once ``row``'s GPU version runs there, by what is estimated."""
    needed_mib = gpu_need_mib(gpu, row, estimates, charged_mib)
    row = row_on(row, gpu)
    return replace(
        gpu,
        running=(*gpu.running, row),
        memory_used_mib=gpu.memory_used_mib + needed_mib,
        utilisation=min(1.0, gpu.utilisation + float(estimates.gpu_features(row)[0])),
        remaining_s=max(gpu.remaining_s, estimates.run_s(row, Device.GPU)),
    )


def refusal(
    view: NodeView, subtask: ReadySubtask, device: Device, number: int, limits: Limits
) -> str:
    """Why the subtask may not start there now, in words; "" if it may."""
    if device not in subtask.devices:
        return f"it has no {device.value} version to start"
    needed_mib = host_need_mib(subtask, view.estimates)
    if needed_mib > view.memory_free_mib:
        return f"it needs {needed_mib:.0f} MiB, {view.memory_free_mib:.0f} MiB are free"
    if device is Device.CPU:
        return "" if number in view.idle_cores else f"core {number} is not idle"
    gpu = next((one for one in view.gpus if one.index == number), None)
    if gpu is None:
        return f"there is no GPU {number}"
    charged_mib = subtask.gpu_memory_mib
    if fits_gpu(gpu, subtask.row, view.estimates, limits, charged_mib):
        return ""
    needed_mib = gpu_need_mib(gpu, subtask.row, view.estimates, charged_mib)
    return (
        f"GPU {number} runs {len(gpu.running)}, is {gpu.utilisation:.0%} busy, and of its "
        f"{gpu.memory_mib:.0f} MiB {gpu.memory_used_mib:.0f} are promised; it needs "
        f"{needed_mib:.0f} MiB"
    )


def never_fits(subtask: SubtaskSpec, capacity: NodeCapacity, limits: Limits) -> str:
    """Why such a node, even empty, can never run the subtask; "" if it can."""
    if subtask.memory_mib > capacity.memory_mib:
        return (
            f"subtask {subtask.name!r} needs {subtask.memory_mib:.0f} MiB of memory, the node has "
            f"{capacity.memory_mib:.0f} MiB for pipelines"
        )
    if Device.CPU in subtask.devices and capacity.cores > 0:
        return ""
    if Device.GPU not in subtask.devices:
        return f"subtask {subtask.name!r} needs a core, the node has none for pipelines"
    if not capacity.gpus:
        return f"subtask {subtask.name!r} needs a GPU, the node has none for pipelines"
    room_mib = limits.gpu_memory * max(gpu.memory_mib for gpu in capacity.gpus)
    if subtask.gpu_memory_mib > room_mib:
        return (
            f"subtask {subtask.name!r} needs {subtask.gpu_memory_mib:.0f} MiB of a GPU, the "
            f"node's largest has room for {room_mib:.0f} MiB"
        )
    return ""


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

    def fits(self, subtask: ReadySubtask, device: Device, number: int) -> bool:
        """True iff ``take`` with the same arguments would be right."""
        if subtask.key not in self._ready or device not in subtask.devices:
            return False
        if host_need_mib(subtask, self._estimates) > self.memory_free_mib:
            return False
        if device is Device.CPU:
            return number in self.idle_cores
        position = self._positions.get(number)
        if position is None:
            return False
        gpu, charged_mib = self.gpus[position], subtask.gpu_memory_mib
        return fits_gpu(gpu, subtask.row, self._estimates, self._limits, charged_mib)

    def take(self, subtask: ReadySubtask, device: Device, number: int) -> None:
        """Choose this start, which ``fits``, and count what it takes."""
        del self._ready[subtask.key]
        self.memory_free_mib -= host_need_mib(subtask, self._estimates)
        if device is Device.CPU:
            self.idle_cores.remove(number)
        else:
            position = self._positions[number]
            gpu, charged_mib = self.gpus[position], subtask.gpu_memory_mib
            self.gpus[position] = joined(gpu, subtask.row, self._estimates, charged_mib)
        self.starts.append(Start(subtask.key, device, number))

    def left(self) -> list[ReadySubtask]:
        """The ready subtasks that were not taken, in the view's order."""
        return list(self._ready.values())
