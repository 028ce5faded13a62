"""GPUs that a node sets aside for programs that ask its agent; containers are not offered them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hrm.config import AgentSettings
from hrm.core.vocabulary.model import Gpu, NodeName
from hrm.core.vocabulary.partitioning import Hardware
from hrm.errors import InvalidConfig
from hrm.pipelines.core.node_messages import GpuCard, NodeCapacity

__all__ = ["SetAsideGpus", "set_aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideGpus:
    """``gpus``: by index."""

    capacity: NodeCapacity
    gpus: dict[int, Gpu]


def set_aside(
    settings: AgentSettings, name: NodeName, platform: str, hardware: Hardware
) -> tuple[Hardware, SetAsideGpus | None]:
    """What remains for containers, and the GPUs that programs may ask for; None: there are none.

    Raises:
        InvalidConfig: more are to be set aside than there are.
    """
    wanted, gpus = settings.pipeline_gpus, len(hardware.gpus)
    if not wanted:
        return hardware, None
    if wanted > gpus:
        raise InvalidConfig(
            f"pipeline_gpus is {wanted}, and the node offers {gpus} GPUs; set a lower one"
        )
    ours = hardware.gpus[gpus - wanted :]
    capacity = NodeCapacity(
        name=name,
        cores=0,
        memory_mib=hardware.memory_mib,
        gpus=tuple(
            GpuCard(index=gpu.index, model=gpu.name or "GPU", memory_mib=gpu.memory_mib)
            for gpu in ours
        ),
        platform=platform,
        gpu_speed=settings.pipeline_gpu_speed,
    )
    kept = replace(hardware, gpus=hardware.gpus[: gpus - wanted])
    return kept, SetAsideGpus(capacity=capacity, gpus={gpu.index: gpu for gpu in ours})
