"""What fits where: the one rule by which policies, the node and the master test subtasks.

On a core: the core is idle and the host's memory suffices. On a GPU: fewer than four run there,
their memory with the new one's stays within 90 % of the card, and the card is less than 90 % busy
(unless no managed run is there); the host's memory must suffice, too. Memory counts as reserved,
not as used: what has been admitted may still grow into it. Next to others it stays within 90 % but
for a small probability, as far as the distribution of peaks is known (``device_memory``); a run
alone counts with its estimate, which may be wrong and must not keep it from an empty card.

Source: LDWP + IAWP, algorithm 2; memory is tested after admission, not before.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm.pipelines.core.device_memory import PeakMemory, certain
from hrm.pipelines.core.model import Device, Estimates, GpuView, NodeView, ReadySubtask, SubtaskSpec
from hrm.pipelines.core.node_messages import NodeCapacity

__all__ = [
    "CAPS",
    "QUEUED_MAX",
    "Caps",
    "fits_gpu",
    "gpu_need_mib",
    "gpu_need_peak",
    "host_need_mib",
    "never_fits",
    "refusal",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The same for every policy. Shares are 0..1 of the card."""

    co_runners_max: int = 4
    gpu_memory_share: float = 0.90
    gpu_utilisation: float = 0.90


CAPS = Caps()

QUEUED_MAX = 8
"""The most steps that a node policy is given to choose from for each GPU: the length of IAWP's GPU
queue (section 3.1), twice what runs there at once."""


def host_need_mib(subtask: ReadySubtask, estimates: Estimates) -> float:
    """Host memory that the subtask is charged while it runs, MiB."""
    return subtask.memory_mib or estimates.memory_mib(subtask.row)


def gpu_need_mib(subtask: ReadySubtask, estimates: Estimates) -> float:
    """Device memory that its GPU version is charged while it runs, MiB."""
    return subtask.gpu_memory_mib or estimates.gpu_memory_mib(subtask.row)


def gpu_need_peak(subtask: ReadySubtask, estimates: Estimates) -> PeakMemory:
    """The same as a distribution; one without variance where none is known."""
    return subtask.gpu_peak or certain(gpu_need_mib(subtask, estimates))


def refusal(view: NodeView, subtask: ReadySubtask, device: Device, number: int) -> str:
    """Why the subtask may not start there now; "" if it may."""
    if device not in subtask.devices:
        return f"it has no {device.value} version to start"
    need_mib = host_need_mib(subtask, view.estimates)
    if need_mib > view.memory_free_mib:
        return f"it needs {need_mib:.0f} MiB, {view.memory_free_mib:.0f} MiB are free"
    if device is Device.CPU:
        return "" if number in view.idle_cores else f"core {number} is not idle"
    gpu = next((one for one in view.gpus if one.index == number), None)
    if gpu is None:
        return f"there is no GPU {number}"
    need_mib = gpu_need_mib(subtask, view.estimates)
    peak = gpu_need_peak(subtask, view.estimates)
    if fits_gpu(gpu, need_mib, peak):
        return ""
    if len(gpu.running) >= CAPS.co_runners_max:
        return f"{len(gpu.running)} run on GPU {gpu.index} already"
    limit_mib = CAPS.gpu_memory_share * gpu.memory_mib
    if not _memory_fits(gpu, need_mib, peak, CAPS):
        if _is_uncertain(gpu, peak):
            return (
                f"with {len(gpu.running)} others on GPU {gpu.index} it needs more than "
                f"{limit_mib:.0f} MiB with a probability of "
                f"{_peaks(gpu).plus(peak).exceeds(limit_mib):.1%}, and {gpu.memory_risk:.1%} is "
                f"allowed"
            )
        return (
            f"it needs {need_mib:.0f} MiB of GPU {gpu.index}, of whose {limit_mib:.0f} MiB "
            f"{gpu.memory_used_mib:.0f} are reserved"
        )
    return f"GPU {gpu.index} is {gpu.utilisation:.0%} busy"


def fits_gpu(
    gpu: GpuView, need_mib: float, peak: PeakMemory | None = None, caps: Caps = CAPS
) -> bool:
    """May a subtask that takes ``need_mib`` of device memory join those that run on ``gpu``?
    ``peak``: the same as a distribution, as far as that is known."""
    return (
        len(gpu.running) < caps.co_runners_max
        and not (gpu.running and gpu.utilisation >= caps.gpu_utilisation)
        and _memory_fits(gpu, need_mib, peak or certain(need_mib), caps)
    )


def _memory_fits(gpu: GpuView, need_mib: float, peak: PeakMemory, caps: Caps) -> bool:
    limit_mib = caps.gpu_memory_share * gpu.memory_mib
    if _is_uncertain(gpu, peak):
        return _peaks(gpu).plus(peak).exceeds(limit_mib) <= gpu.memory_risk
    return gpu.memory_used_mib + need_mib <= limit_mib


def _is_uncertain(gpu: GpuView, peak: PeakMemory) -> bool:
    """Does the probability decide, and not the sum?"""
    spread = peak.variance + _peaks(gpu).variance
    return bool(gpu.running) and gpu.memory_risk > 0.0 and spread > 0.0


def _peaks(gpu: GpuView) -> PeakMemory:
    return gpu.peaks or certain(gpu.memory_used_mib)


def never_fits(subtask: SubtaskSpec, capacity: NodeCapacity) -> str:
    """Why such a node, even empty, can never run the subtask; "" if it can.

    The author's declarations count; estimates do not, since they may be wrong.
    """
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
    memory_limit_mib = CAPS.gpu_memory_share * max(gpu.memory_mib for gpu in capacity.gpus)
    if subtask.gpu_memory_mib > memory_limit_mib:
        return (
            f"subtask {subtask.name!r} needs {subtask.gpu_memory_mib:.0f} MiB of a GPU, the "
            f"node's largest allows {memory_limit_mib:.0f} MiB"
        )
    return ""
