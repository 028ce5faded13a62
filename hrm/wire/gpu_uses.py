"""What a run, or a container, used of a GPU over its life, as messages."""

from __future__ import annotations

from collections.abc import Sequence

from hrm.core.vocabulary.gpu_use import GpuUsePart, check_gpu_use
from hrm.v1 import common_pb2 as pb

__all__ = ["from_gpu_use", "to_gpu_use"]


def from_gpu_use(use: Sequence[GpuUsePart]) -> list[pb.GpuUsePart]:
    return [pb.GpuUsePart(**part._asdict()) for part in use]


def to_gpu_use(messages: Sequence[pb.GpuUsePart]) -> tuple[GpuUsePart, ...]:
    """Raises InvalidRequest: it is no profile."""
    use = tuple(GpuUsePart(one.gpu, one.memory_mib, one.cores, one.pcie) for one in messages)
    check_gpu_use(use)
    return use
