"""What a node has recorded of its containers' use of GPUs, as messages."""

from __future__ import annotations

from collections.abc import Iterable

from hrm.errors import InvalidRequest
from hrm.policies.shared_gpu.container_uses import PARTS, ContainerKind
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.v1 import common_pb2 as pb
from hrm.wire import codec
from hrm.wire.gpu_uses import from_gpu_use, to_gpu_use

__all__ = ["from_container_use", "to_container_uses"]

_MANY = 2**31 - 1


def from_container_use(kind: ContainerKind, use: RecordedUse, node: str = "") -> pb.ContainerGpuUse:
    """``node``: in a reply, where it was recorded."""
    return pb.ContainerGpuUse(
        user=kind.user,
        application_name=kind.name,
        part=kind.part,
        resource_profile_id=kind.profile,
        gpu_memory_mib=kind.gpu_memory_mib,
        use=from_gpu_use(use.parts),
        runs=use.runs,
        node=node,
    )


def to_container_uses(
    messages: Iterable[pb.ContainerGpuUse],
) -> list[tuple[ContainerKind, RecordedUse]]:
    """Raises InvalidRequest: one of them is of no kind of container, of no run, or no profile."""
    found = []
    for message in messages:
        if message.part not in PARTS:
            raise InvalidRequest(
                f"gpu_uses.part is {message.part[:80]!r}; it must be one of {', '.join(PARTS)}"
            )
        kind = ContainerKind(
            codec.to_text(message.user, "gpu_uses.user"),
            codec.to_text(message.application_name, "gpu_uses.application_name"),
            message.part,
            codec.to_whole(message.resource_profile_id, "gpu_uses.resource_profile_id", 0, _MANY),
            codec.to_mib(message.gpu_memory_mib, "gpu_uses.gpu_memory_mib"),
        )
        runs = codec.to_whole(message.runs, "gpu_uses.runs", 1, _MANY)
        parts = to_gpu_use(message.use)
        if not parts or not kind.name:
            raise InvalidRequest(f"gpu_uses: {kind.name[:80]!r} has no parts, or no name")
        found.append((kind, RecordedUse(parts, runs)))
    return found
