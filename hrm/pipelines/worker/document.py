"""What a worker must know: its place in the cluster and what its container was given.

The master writes one part, which is the same for all workers of a workload, and the agent adds that
of the container. It is a file of the container, next to the token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidConfig
from hrm.pipelines.core.node_messages import GpuCard, NodeCapacity

__all__ = ["WorkerDocument", "read_document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDocument:
    """``node``: the machine; ``gpu_memory_mib`` 0: no GPU; ``gpu_device``: its number for NVML,
    None: there is no device behind it; ``device_memory_risk``: see
    ``NodeBounds``; ``speeds``: of a core and a GPU, relative to the reference
    platform."""

    container_id: str
    node: str
    master: str
    token_file: Path
    tls_ca: Path | None
    allow_clear_text: bool
    vcores: int
    memory_mib: int
    gpu_memory_mib: int
    gpu_model: str
    gpu_device: int | None
    policy: str
    import_path: str
    platform: str
    speeds: tuple[float, float]
    device_memory_risk: float
    reconnect_delay_max_s: float

    @property
    def capacity(self) -> NodeCapacity:
        """As its workload's cluster sees it: a node of the container's name."""
        card = GpuCard(index=0, model=self.gpu_model, memory_mib=self.gpu_memory_mib)
        return NodeCapacity(
            name=NodeName(self.container_id),
            cores=self.vcores,
            memory_mib=self.memory_mib,
            gpus=(card,) if self.gpu_memory_mib else (),
            platform=self.platform,
            cpu_speed=self.speeds[0],
            gpu_speed=self.speeds[1],
            machine=self.node,
        )


def read_document(path: Path) -> WorkerDocument:
    """Raises InvalidConfig where it cannot be read, or is no worker's."""
    try:
        held = json.loads(path.read_text())
        device = held["gpu_device"]
        return WorkerDocument(
            container_id=str(held["container_id"]),
            node=str(held["node"]),
            master=str(held["master"]),
            token_file=Path(held["token_file"]),
            tls_ca=Path(held["tls_ca"]) if held["tls_ca"] else None,
            allow_clear_text=bool(held["allow_clear_text"]),
            vcores=int(held["vcores"]),
            memory_mib=int(held["memory_mib"]),
            gpu_memory_mib=int(held["gpu_memory_mib"]),
            gpu_model=str(held["gpu_model"]),
            gpu_device=None if device is None else int(device),
            policy=str(held["policy"]),
            import_path=str(held["import_path"]),
            platform=str(held["platform"]),
            speeds=(float(held["cpu_speed"]), float(held["gpu_speed"])),
            device_memory_risk=float(held["device_memory_risk"]),
            reconnect_delay_max_s=float(held["reconnect_delay_max_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidConfig(
            f"{path} is no document of a worker ({error!r}); workers are started by agents alone"
        ) from error
