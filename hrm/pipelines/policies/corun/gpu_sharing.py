"""How processes share a GPU: at the same time, or one after the other.

Under MPS, kernels of several processes run concurrently, each on its part of the multiprocessors;
what they slow down is each other's caches and memory traffic. Without it the driver gives the GPU
to one process at a time, so what counts is how much of the time each has work there. A co-run
score that ranks partners well under one of them need not do so under the other.

Source: NVIDIA, Multi-Process Service, section "Architecture".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

__all__ = ["GpuSharing", "sharing_of"]

_MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


class GpuSharing(enum.Enum):
    """How the processes on one GPU share it."""

    __hash__ = object.__hash__

    MPS = "mps"
    TIME_SLICING = "time-slicing"


def sharing_of(environment: Mapping[str, str]) -> GpuSharing:
    """How processes with this environment share their GPU.

    An agent with ``mps = "auto"`` sets the directory of the daemon's pipes for a container that
    holds a part of a GPU for which a daemon runs; every other container is given none.
    """
    return GpuSharing.MPS if environment.get(_MPS_VARIABLE) else GpuSharing.TIME_SLICING
