"""Whether two results of a pipeline are equivalent, though other devices computed them.

A result is brought into a canonical form: ``facts`` are counted or chosen (how many, which, when)
and must be equal, ``digest`` is their SHA-256; ``table`` holds measured values, one row per object
with its column's tolerance above it, as both versions of a step agree within a tolerance only
(README.md). Rows are compared as a set: each must have its own partner.

====================  ==============================================  ==============================
pipeline              facts                                           table, within
====================  ==============================================  ==============================
video-synopsis        frames of source and synopsis; each tube's      boxes, 0.5 pixel; mean grey of
                      first frame there, new start and length         every frame, 0.5
intrusion-detection   paths, the frames that each is seen in,         points, 0.5 pixel
                      when it entered the zone
face-recognition      who was asked and is in the gallery, who is     none
                      the same person, whose face is nearest
object-detection      frames, and the classes of the boxes in each    boxes, 0.5 pixel; scores 0.001
====================  ==============================================  ==============================

The detector's random weights give the same result for every picture: its results differ between
clips of different lengths only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["OUTPUTS", "Output", "same"]

Table = npt.NDArray[np.float64]


def _nothing() -> Table:
    return np.zeros((0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """``facts``: nested tuples of numbers and words. ``table``: (rows, columns)."""

    facts: tuple[object, ...]
    table: Table = field(default_factory=_nothing)
    tolerances: tuple[float, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.facts).encode()).hexdigest()[:16]


def same(one: Output, other: Output) -> bool:
    """Equal facts, and every row of either table has a partner of its own in the other."""
    if one.facts != other.facts or one.table.shape != other.table.shape:
        return False
    if one.table.size == 0:
        return True
    free = np.ones(len(one.table), bool)
    tolerances = np.asarray(one.tolerances)
    for row in one.table:
        distance = (np.abs(other.table - row) / tolerances).max(axis=1)
        distance[~free] = np.inf
        nearest = int(distance.argmin())
        if not distance[nearest] <= 1:
            return False
        free[nearest] = False
    return True


def _rows(parts: list[npt.NDArray[Any]], columns: int) -> Table:
    return np.concatenate([np.zeros((0, columns)), *parts], dtype=np.float64)


def _synopsis(result: Any) -> Output:
    tubes = tuple(
        (one.start, int(start), len(one.boxes))
        for one, start in zip(result.tubes, result.starts, strict=True)
    )
    parts = [
        np.column_stack([np.full(len(one.boxes), number), np.arange(len(one.boxes)), one.boxes])
        for number, one in enumerate(result.tubes)
    ]
    grey = result.frames.mean(axis=(1, 2, 3))
    where = np.arange(len(grey))
    parts.append(np.column_stack([np.full(len(grey), -1), where, *([grey] * 4)]))
    facts = ("video-synopsis", result.source_frames, len(result.frames), tubes)
    return Output(facts, _rows(parts, 6), (0.5, 0.5, 0.5, 0.5, 0.5, 0.5))


def _intrusions(result: Any) -> Output:
    facts = tuple(
        (one.identity, one.entered, tuple(one.points[:, 0].astype(int).tolist()))
        for one in result.paths
    )
    parts = [
        np.column_stack([np.full(len(one.points), one.identity), one.points])
        for one in result.paths
    ]
    return Output(("intrusion-detection", *facts), _rows(parts, 4), (0.5, 0.5, 0.5, 0.5))


def _matches(result: Any) -> Output:
    parts = (result.asked, result.gallery, result.best, result.same)
    return Output(("face-recognition", *(str(one.tolist()) for one in parts)))


def _detections(result: Any) -> Output:
    facts = tuple(tuple(sorted(one[:, 5].astype(int).tolist())) for one in result.frames)
    parts = [np.column_stack([np.full(len(one), n), one]) for n, one in enumerate(result.frames)]
    tolerances = (0.5, 0.5, 0.5, 0.5, 0.5, 0.001, 0.5)
    return Output(("object-detection", *facts), _rows(parts, 7), tolerances)


OUTPUTS: Mapping[str, Callable[[Any], Output]] = MappingProxyType(
    {
        "video-synopsis": _synopsis,
        "intrusion-detection": _intrusions,
        "face-recognition": _matches,
        "object-detection": _detections,
    }
)
"""Pipeline to its canonical form."""
