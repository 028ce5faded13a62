"""The policies for a shared GPU that are not learned, by the names that settings have for them."""

from __future__ import annotations

from collections.abc import Callable

from hrm.policies.shared_gpu.heuristics import (
    BestFitOnMemory,
    Exclusive,
    FastestTogether,
    GpuSharingPolicy,
    PackedByLength,
    PackedInOrder,
    TetrisPacking,
)
from hrm.policies.shared_gpu.look_ahead import LookAhead

__all__ = ["HEURISTICS"]

HEURISTICS: dict[str, Callable[[], GpuSharingPolicy]] = {
    "sjf": Exclusive,
    "sjf-packed": PackedByLength,
    "ljf-packed": lambda: PackedByLength(longest=True),
    "fifo-packed": PackedInOrder,
    "best-fit-memory": BestFitOnMemory,
    "fastest-together": FastestTogether,
    "look-ahead": LookAhead,
    "tetris": TetrisPacking,
    "tetris-srtf": lambda: TetrisPacking(1.0),
}
"""None of them draws anything at random."""
