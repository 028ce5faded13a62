"""The four jobs of the DqnGPU test vectors, on a card of four units of each resource."""

from __future__ import annotations

import numpy as np

from hrm.policies.shared_gpu.profiles import GpuUseProfile

__all__ = ["ALL", "WIDTH", "P", "Q", "S", "U", "profile"]

WIDTH = 4


def profile(*ticks: tuple[int, int, int, int]) -> GpuUseProfile:
    """Ticks in whole units."""
    return GpuUseProfile(np.array(ticks) / WIDTH)


P = profile((1, 1, 0, 1), (2, 3, 2, 1), (3, 0, 2, 1), (0, 0, 3, 1), (0, 0, 0, 1))
Q = profile(*[(2, 1, 2, 1)] * 3)
S = profile(*[(1, 2, 1, 0)] * 2)
U = profile(*[(3, 1, 2, 2)] * 4)
ALL = {"P": P, "Q": Q, "S": S, "U": U}
