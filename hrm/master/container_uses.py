"""What nodes have recorded of their containers' use of GPUs, for people to see.

Each node keeps its own, and decides by that alone; here is a copy, in memory, which nodes send
again to a master that is new. Bounded over all nodes: what was reported longest ago is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from hrm.core.vocabulary.model import NodeName
from hrm.policies.shared_gpu.container_uses import ContainerKind
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.v1.common_pb2 import ContainerGpuUse
from hrm.wire.container_uses import from_container_use, to_container_uses

__all__ = ["RECORDS_MAX", "ContainerUseReports"]

RECORDS_MAX = 20_000


class ContainerUseReports:
    """By node and kind the latest record."""

    def __init__(self) -> None:
        self._records: dict[tuple[NodeName, ContainerKind], RecordedUse] = {}

    def reported(self, node: NodeName, messages: Iterable[ContainerGpuUse]) -> None:
        """Raises InvalidRequest: one of them is no record; nothing is taken in."""
        for kind, use in to_container_uses(messages):
            self._records.pop((node, kind), None)
            self._records[node, kind] = use
        while len(self._records) > RECORDS_MAX:
            del self._records[next(iter(self._records))]

    def of(self, user: str, name: str) -> list[ContainerGpuUse]:
        """Of a user's applications of one name, by node and kind."""
        return [
            from_container_use(kind, use, node)
            for (node, kind), use in sorted(self._records.items(), key=lambda item: item[0])
            if kind.user == user and kind.name == name
        ]
