"""Tubes: what one moving object covers in space and time; found, rearranged in time, overlapped.

Extraction: 8-connected components of each frame's mask, linked from frame to frame by overlap with
where the tube is expected. Optimisation, after Pritch, Rav-Acha and Peleg (PAMI 2008): every tube
gets a new start so that the synopsis is short, little collides and the order in time is roughly
kept; simulated annealing with a fixed seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.pipelines import devices
from benchmarks.pipelines.background import Foreground, unpack

__all__ = [
    "Arrangement",
    "Tube",
    "Tubes",
    "arrange",
    "collisions",
    "components",
    "extract",
    "extract_gpu",
    "overlap",
]

Boxes = npt.NDArray[np.float32]

AREA_MIN = 60
LENGTH_MIN = 8
OVERLAP_MIN = 0.2
GAP_MAX = 5
ROUNDS = 24
STRETCH = 1.3
"""The synopsis may be longer than its longest tube by this factor, or denser than this."""
LENGTH_MAX = 0.7
"""Of the source, unless one tube alone is longer."""
_COLLISION, _ORDER = 1.0, 0.15
_DENSITY = 0.12


@dataclass(frozen=True, slots=True, eq=False)
class Tube:
    """``boxes``: (frames, 4) x0, y0, x1, y1 from frame ``start`` on, without gaps."""

    start: int
    boxes: Boxes


@dataclass(frozen=True, slots=True, eq=False)
class Tubes:
    """The tubes by their starts, and what is needed to draw them."""

    found: Foreground
    tubes: tuple[Tube, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """``starts``: (tubes,) new first frames in a synopsis of ``length`` frames."""

    tubes: Tubes
    starts: npt.NDArray[np.int64]
    length: int


def components(mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """(n, 6): x0, y0, x1, y1, area, 0 of the components of one frame, sorted."""
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    x, y, w, h, area = np.asarray(stats[1:], np.int64).T
    table = np.column_stack([x, y, x + w, y + h, area, np.zeros_like(x)])
    return np.asarray(table[np.lexsort(table.T[::-1])])


def extract(found: Foreground) -> Tubes:
    """The tubes of a video's foreground."""
    devices.one_thread()
    return _linked(found, [components(unpack(bits, found.width)) for bits in found.masks])


def extract_gpu(found: Foreground) -> Tubes:
    """As ``extract``: components on the GPU, links on the CPU."""
    from benchmarks.pipelines import torch_video

    return _linked(found, torch_video.components(found.masks, found.width))


def overlap(one: Boxes, other: Boxes) -> Boxes:
    """Intersection over union of all pairs: (n, 4) and (m, 4) to (n, m)."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=2)
    sizes = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (one, other)]
    union = sizes[0][:, None] + sizes[1][None] - shared
    return np.asarray(shared / np.maximum(union, 1e-6), np.float32)


class _Growing:
    """A tube that may still continue."""

    def __init__(self, frame: int, box: Boxes) -> None:
        self.start = frame
        self.boxes = [box]

    @property
    def last(self) -> int:
        return self.start + len(self.boxes) - 1

    def expected(self, frame: int) -> Boxes:
        back = min(4, len(self.boxes) - 1)
        if not back:
            return self.boxes[-1]
        speed = (self.boxes[-1] - self.boxes[-1 - back]) / back
        return np.asarray(self.boxes[-1] + speed * (frame - self.last), np.float32)

    def grow(self, frame: int, box: Boxes) -> None:
        """Frames in between are filled in on a straight line."""
        gap = frame - self.last
        before = self.boxes[-1]
        self.boxes += [before + (box - before) * np.float32(k / gap) for k in range(1, gap + 1)]


def _linked(found: Foreground, frames: list[npt.NDArray[np.int64]]) -> Tubes:
    open_tubes: list[_Growing] = []
    closed: list[_Growing] = []
    for frame, table in enumerate(frames):
        boxes = table[table[:, 4] >= AREA_MIN, :4].astype(np.float32)
        taken: set[int] = set()
        if open_tubes and len(boxes):
            expected = np.asarray([one.expected(frame) for one in open_tubes], np.float32)
            score = overlap(expected, boxes)
            grown: set[int] = set()
            for flat in np.argsort(-score, axis=None, kind="stable"):
                tube, box = divmod(int(flat), len(boxes))
                if score[tube, box] < OVERLAP_MIN:
                    break
                if tube not in grown and box not in taken:
                    open_tubes[tube].grow(frame, boxes[box])
                    grown.add(tube)
                    taken.add(box)
        closed += [one for one in open_tubes if frame - one.last > GAP_MAX]
        open_tubes = [one for one in open_tubes if frame - one.last <= GAP_MAX]
        open_tubes += [_Growing(frame, box) for k, box in enumerate(boxes) if k not in taken]
    kept = [one for one in closed + open_tubes if len(one.boxes) >= LENGTH_MIN]
    kept.sort(key=lambda one: (one.start, float(one.boxes[0][0]), float(one.boxes[0][1])))
    tubes = tuple(Tube(one.start, np.asarray(one.boxes, np.float32)) for one in kept)
    return Tubes(found, tubes)


def _areas(boxes: Boxes) -> Boxes:
    return np.asarray((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]))


def _shared(tube: Boxes, table: Boxes) -> float:
    """Pixels that ``tube`` (length, 4) shares with ``table`` (length, tubes, 4)."""
    low = np.maximum(tube[:, None, :2], table[..., :2])
    high = np.minimum(tube[:, None, 2:], table[..., 2:])
    return float(np.prod(np.maximum(high - low, 0), axis=2).sum())


def collisions(tubes: tuple[Tube, ...], starts: npt.NDArray[np.int64]) -> float:
    """Pixels times frames in which two tubes cover the same place."""
    if not tubes:
        return 0.0
    length = int(max(start + len(tube.boxes) for tube, start in zip(tubes, starts, strict=True)))
    table = np.zeros((length, len(tubes), 4), np.float32)
    total = 0.0
    for number, (tube, start) in enumerate(zip(tubes, starts, strict=True)):
        rows = slice(int(start), int(start) + len(tube.boxes))
        total += _shared(tube.boxes, table[rows])
        table[rows, number] = tube.boxes
    return total


def arrange(tubes: Tubes) -> Arrangement:
    """New starts: little collides, the order is roughly kept, the synopsis is short."""
    devices.one_thread()
    every = tubes.tubes
    if not every:
        return Arrangement(tubes, np.zeros(0, np.int64), 0)
    scene = tubes.found.background.shape[0] * tubes.found.background.shape[1]
    longest = max(len(one.boxes) for one in every)
    covered = sum(float(_areas(one.boxes).sum()) for one in every)
    wanted = max(int(longest * STRETCH), int(covered / (_DENSITY * scene)))
    length = max(longest, min(wanted, int(LENGTH_MAX * len(tubes.found.masks))))
    rng = np.random.default_rng(7)
    table = np.zeros((length, len(every), 4), np.float32)
    starts = np.zeros(len(every), np.int64)
    for number, one in enumerate(every):
        latest = length - len(one.boxes)
        starts[number] = latest * number // max(1, len(every) - 1)
        table[starts[number] : starts[number] + len(one.boxes), number] = one.boxes
    mean = covered / len(every)
    heat = 0.3
    for _ in range(ROUNDS):
        for number in rng.permutation(len(every)):
            _move(every, int(number), table, starts, rng, heat, mean)
        heat *= 0.8
    last = int(max(s + len(one.boxes) for one, s in zip(every, starts, strict=True)))
    return Arrangement(tubes, starts, last)


def _move(
    tubes: tuple[Tube, ...],
    number: int,
    table: Boxes,
    starts: npt.NDArray[np.int64],
    rng: np.random.Generator,
    heat: float,
    mean: float,
) -> None:
    """Try another start for one tube; keep it if it is better, or by chance while it is hot."""
    boxes = tubes[number].boxes
    old, new = int(starts[number]), int(rng.integers(len(table) - len(boxes) + 1))
    rows = slice(old, old + len(boxes))
    table[rows, number] = 0

    def energy(start: int) -> float:
        shared = _shared(boxes, table[start : start + len(boxes)]) / mean
        before, after = starts[:number], starts[number + 1 :]
        disorder = (before > start).mean() if len(before) else 0.0
        disorder += (after < start).mean() if len(after) else 0.0
        return _COLLISION * shared + _ORDER * float(disorder)

    gain = energy(new) - energy(old)
    if gain <= 0 or rng.random() < np.exp(-gain / heat):
        starts[number] = new
        rows = slice(new, new + len(boxes))
    table[rows, number] = boxes
