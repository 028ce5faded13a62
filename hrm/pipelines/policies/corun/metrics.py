"""What is measured of a subtask, and how each metric becomes a number in 0..1.

The metrics of table 2, with device memory as two columns: what admission needs (how much is used)
is not what interferes (how much is moved). A metric applies to the version for one device, the
speed-up to work with both.

Source: LDWP + IAWP, table 2, section 2.4.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from hrm.pipelines.core.model import SIZE_BUCKETS_MB, Device

__all__ = [
    "BUCKET_MB",
    "COLUMN",
    "DEFAULTS",
    "METRICS",
    "applies",
    "scaled_size",
    "scaled_speedup",
    "speedup_of",
]

METRICS = (
    "cpu", "memory", "sm", "l1", "l2", "tex", "dram", "load", "store", "gpu_memory", "speedup",
    "size",
)  # fmt: skip
"""Columns. ``dram``: share of the device's memory bandwidth; ``load``, ``store``: of its peak."""

COLUMN = {name: index for index, name in enumerate(METRICS)}
DEFAULTS = (1.0, 0.05, 0.5, 0.4, 0.4, 0.2, 0.3, 0.3, 0.2, 0.1, math.log1p(4) / math.log1p(50), 0.5)
"""The assumed value of a cell while nothing was measured in its column."""

BUCKET_MB = (10.0, 40.0, 90.0, 160.0, 300.0, 600.0)
"""The size that represents each bucket."""
_LOG_MB = np.log(BUCKET_MB)

_FASTEST = 50.0
_LARGEST_MB = SIZE_BUCKETS_MB[-1]


def applies(metric: str, devices: Collection[Device]) -> bool:
    """May ``metric`` be measured of a subtask with versions for ``devices``?"""
    if metric in ("memory", "size"):
        return True
    if metric == "cpu":
        return Device.CPU in devices
    if metric == "speedup":
        return len(devices) == 2
    return Device.GPU in devices


def scaled_size(size_mb: float) -> float:
    """log1p(MB) over log1p(400), at most 1.5."""
    return min(1.5, math.log1p(size_mb) / math.log1p(_LARGEST_MB))


def scaled_speedup(speedup: float) -> float:
    """log1p(speed-up) over log1p(50), at most 1."""
    return min(1.0, math.log1p(speedup) / math.log1p(_FASTEST))


def speedup_of(scaled: float) -> float:
    """The inverse of ``scaled_speedup``."""
    return math.expm1(scaled * math.log1p(_FASTEST))


def interpolated_s(points: Mapping[int, float], bucket: int) -> float:
    """Straight lines between the logarithms of sizes and times; in proportion beyond the ends."""
    known = sorted(points)
    nearest = min(max(bucket, known[0]), known[-1])
    logs = np.log([points[one] for one in known])
    at_nearest = math.exp(float(np.interp(_LOG_MB[nearest], _LOG_MB[known], logs)))
    return at_nearest * BUCKET_MB[bucket] / BUCKET_MB[nearest]
