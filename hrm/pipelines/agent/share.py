"""What a node sets aside for pipelines: cores, memory and GPUs that containers are not offered."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hrm.config import AgentSettings
from hrm.core.vocabulary.model import Gpu, NodeName
from hrm.core.vocabulary.partitioning import Hardware
from hrm.errors import InvalidConfig
from hrm.pipelines.core.node_messages import GpuCard, NodeCapacity

__all__ = ["PipelineShare", "set_aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShare:
    """``cpus``: the CPU number of each core, None where it has none; ``gpus``: by index."""

    capacity: NodeCapacity
    cpus: tuple[int | None, ...]
    gpus: dict[int, Gpu]


def set_aside(
    settings: AgentSettings, name: NodeName, platform: str, hardware: Hardware
) -> tuple[Hardware, PipelineShare | None]:
    """What remains for containers, and what pipelines get; None: nothing.

    Raises:
        InvalidConfig: more is to be set aside than there is.
    """
    wanted_cores, wanted_gpus = settings.pipeline_cores, settings.pipeline_gpus
    if not wanted_cores and not wanted_gpus:
        return hardware, None
    cores, gpus = len(hardware.cores), len(hardware.gpus)
    if wanted_cores >= cores or wanted_gpus > gpus:
        raise InvalidConfig(
            f"pipeline_cores is {wanted_cores} and pipeline_gpus {wanted_gpus}, the node offers "
            f"{cores} cores and {gpus} GPUs, and containers need a core; set lower ones"
        )
    memory_mib = settings.pipeline_memory_mib or hardware.memory_mib * wanted_cores // cores
    if memory_mib >= hardware.memory_mib or memory_mib <= 0:
        raise InvalidConfig(
            f"pipelines would get {memory_mib} of the node's {hardware.memory_mib} MiB; set "
            f"pipeline_memory_mib between 1 and less than that"
        )
    kept = replace(
        hardware,
        cores=hardware.cores[: cores - wanted_cores],
        memory_mib=hardware.memory_mib - memory_mib,
        gpus=hardware.gpus[: gpus - wanted_gpus],
    )
    ours = hardware.gpus[gpus - wanted_gpus :]
    capacity = NodeCapacity(
        name=name,
        cores=wanted_cores,
        memory_mib=memory_mib,
        gpus=tuple(
            GpuCard(index=gpu.index, model=gpu.name or "GPU", memory_mib=gpu.memory_mib)
            for gpu in ours
        ),
        platform=platform,
        cpu_speed=settings.pipeline_cpu_speed,
        gpu_speed=settings.pipeline_gpu_speed,
    )
    cpus = tuple(core.number for core in hardware.cores[cores - wanted_cores :])
    return kept, PipelineShare(capacity=capacity, cpus=cpus, gpus={gpu.index: gpu for gpu in ours})
