"""What a run, or a container, used of a GPU over its life, as its node measured it.

A run's life is divided into ``USE_PARTS`` equal parts, whatever it takes, so that runs of different
lengths compare, and a profile has one size. Each part has the *greatest* use within it, because a
mean hides the peak at which memory runs out. Device memory is in MiB, because a container may have
a part of a card; all else is a share of the card.

Source: DqnGPU (Oh and Kim, Cluster Computing 2020), section 2.5, which has ticks instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hrm.errors import InvalidRequest

__all__ = ["USE_PARTS", "GpuUsePart", "check_gpu_use"]

USE_PARTS = 16


class GpuUsePart(NamedTuple):
    """The greatest use in a part of a run's life.

    ``gpu``: share of time with a kernel of the run; ``cores``: share of the cores at work;
    ``pcie``: share of what the link carries. NVML reports no cores by process: a core works only
    while a kernel runs, so ``gpu``, which is their bound, stands for them.
    """

    gpu: float
    memory_mib: float
    cores: float
    pcie: float


def check_gpu_use(use: Sequence[GpuUsePart]) -> None:
    """Raises InvalidRequest unless ``use`` is empty, or ``USE_PARTS`` parts of shares and MiB."""
    if use and len(use) != USE_PARTS:
        raise InvalidRequest(
            f"a profile of a GPU has {len(use)} parts; a worker of this version measures "
            f"{USE_PARTS}, so update the older of the two"
        )
    for part in use:
        for name, value in zip(GpuUsePart._fields, part, strict=True):
            most = math.inf if name == "memory_mib" else 1.0
            if not (math.isfinite(value) and 0.0 <= value <= most):
                raise InvalidRequest(
                    f"a profile of a GPU has {name} = {value}; it must be a number from 0 to {most}"
                )
