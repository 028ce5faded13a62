"""Object detection, four subtasks: letterbox -> network -> decode -> non-maximum suppression.

The network (``network.py``) has random weights unless ``$HRM_DETECTOR_WEIGHTS`` names a file, so
its boxes mean nothing; what they cost is real. Not in table 5: kinds of its own. The CPU versions
of the first, third and last step are OpenCV and numpy, the network is PyTorch on either device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.pipelines import devices
from benchmarks.pipelines.anchors import ANCHORS, STRIDES
from benchmarks.pipelines.frames import Video, chunks, video
from benchmarks.pipelines.tubes import overlap
from hrm.pipelines.client.definition import Pipeline

__all__ = [
    "Candidates",
    "Detections",
    "Letterboxed",
    "Outputs",
    "decode",
    "letterbox",
    "pipeline",
    "suppress",
]

Pictures = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SIDE = 320
GREY = 114
CHUNK = 8
CANDIDATES = 200
"""Boxes of one picture that are passed to suppression, at most."""
SCORE_MIN = 1e-4
"""Random weights never give high scores."""
OVERLAP_MAX = 0.45
KEPT_MAX = 50


@dataclass(frozen=True, slots=True, eq=False)
class Letterboxed:
    """``pictures``: (n, h, w, 3) RGB, sides multiples of 32. ``scale``: to them from the frame."""

    pictures: Pictures
    scale: float
    offset: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """The raw heads, float16, (n, 3 (5 + classes), h / stride, w / stride) each."""

    heads: tuple[npt.NDArray[np.float16], ...]
    scale: float
    offset: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """(n, CANDIDATES, 4), pixels of the frame; scores, 0 for none; (n, CANDIDATES) classes."""

    boxes: Floats
    scores: Floats
    classes: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """One (found, 6) array a frame: x0, y0, x1, y1, score, class; best first."""

    frames: tuple[Floats, ...]

    def summary(self) -> dict[str, object]:
        return {"frames": len(self.frames), "boxes": sum(len(one) for one in self.frames)}


def _layout(height: int, width: int) -> tuple[float, int, int, int, int]:
    """Scale, inner width and height, and outer ones: the longer side becomes ``SIDE``."""
    scale = SIDE / max(height, width)
    inner_width, inner_height = round(width * scale), round(height * scale)
    outer_width, outer_height = (-(-size // 32) * 32 for size in (inner_width, inner_height))
    return scale, inner_width, inner_height, outer_width, outer_height


def _placed(value: Any) -> tuple[Video, Pictures, tuple[float, int, int, int, int]]:
    source = video(value)
    frames = source.frames()
    return source, frames, _layout(frames.shape[1], frames.shape[2])


def letterbox(value: Any) -> Letterboxed:
    """Every frame scaled to the network's size, the rest grey. ``value``: as ``video`` takes."""
    devices.one_thread()
    _, frames, (scale, width, height, outer_width, outer_height) = _placed(value)
    out = np.full((len(frames), outer_height, outer_width, 3), GREY, np.uint8)
    left, top = (outer_width - width) // 2, (outer_height - height) // 2
    for number, frame in enumerate(frames):
        inner = frame
        if scale != 1:
            inner = np.asarray(cv2.resize(frame, (width, height), interpolation=cv2.INTER_LINEAR))
        out[number, top : top + height, left : left + width] = inner[..., ::-1]
    return Letterboxed(out, scale, (left, top))


def letterbox_gpu(value: Any) -> Letterboxed:
    """As ``letterbox``, within one grey level."""
    from benchmarks.pipelines import torch_detection

    _, frames, (scale, width, height, outer_width, outer_height) = _placed(value)
    left, top = (outer_width - width) // 2, (outer_height - height) // 2
    out = np.empty((len(frames), outer_height, outer_width, 3), np.uint8)
    for part in chunks(len(frames), CHUNK):
        out[part] = torch_detection.letterbox(
            frames[part], (height, width), (outer_height, outer_width), (top, left), GREY
        )
    return Letterboxed(out, scale, (left, top))


def infer(boxed: Letterboxed) -> Outputs:
    """The network over every picture, on the CPU, one thread."""
    from benchmarks.pipelines import torch_detection

    devices.one_thread()
    heads = torch_detection.infer(boxed.pictures, CHUNK, on_cpu=True)
    return Outputs(heads, boxed.scale, boxed.offset)


def infer_gpu(boxed: Letterboxed) -> Outputs:
    """As ``infer``."""
    from benchmarks.pipelines import torch_detection

    heads = torch_detection.infer(boxed.pictures, CHUNK, on_cpu=False)
    return Outputs(heads, boxed.scale, boxed.offset)


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-values)), np.float32)


def decode(outputs: Outputs) -> Candidates:
    """The heads' numbers to boxes; the ``CANDIDATES`` best of each picture."""
    devices.one_thread()
    count = len(outputs.heads[0])
    boxes = np.zeros((count, CANDIDATES, 4), np.float32)
    scores = np.zeros((count, CANDIDATES), np.float32)
    classes = np.zeros((count, CANDIDATES), np.int64)
    for number in range(count):
        parts = [
            _decoded(head[number].astype(np.float32), anchors, stride)
            for head, anchors, stride in zip(outputs.heads, ANCHORS, STRIDES, strict=True)
        ]
        place, sure, what = (np.concatenate(one) for one in zip(*parts, strict=True))
        best = np.argsort(-sure, kind="stable")[:CANDIDATES]
        found = len(best)
        boxes[number, :found] = (place[best] - np.tile(outputs.offset, 2)) / outputs.scale
        scores[number, :found] = np.where(sure[best] >= SCORE_MIN, sure[best], 0)
        classes[number, :found] = what[best]
    return Candidates(boxes, scores, classes)


def _decoded(
    head: Floats, anchors: tuple[tuple[int, int], ...], stride: int
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """(n, 4) boxes, (n,) scores and classes of one head of one picture (C, h, w)."""
    _, height, width = head.shape
    values = _sigmoid(head.reshape(len(anchors), -1, height, width).transpose(0, 2, 3, 1))
    rows, columns = np.mgrid[0:height, 0:width]
    corner = np.stack([columns, rows], 2)[None]
    centre = (values[..., :2] * 2 - 0.5 + corner) * stride
    size = (values[..., 2:4] * 2) ** 2 * np.asarray(anchors, np.float32)[:, None, None]
    box = np.concatenate([centre - size / 2, centre + size / 2], 3).reshape(-1, 4)
    kinds = values[..., 5:].reshape(len(box), -1)
    sure = values[..., 4].ravel() * kinds.max(1)
    return box.astype(np.float32), sure.astype(np.float32), kinds.argmax(1)


def decode_gpu(outputs: Outputs) -> Candidates:
    """As ``decode``; candidates of equal scores may come in another order."""
    from benchmarks.pipelines import torch_detection

    return Candidates(*torch_detection.decode(outputs.heads, outputs.scale, outputs.offset,
                                              CANDIDATES, SCORE_MIN))  # fmt: skip


def suppress(found: Candidates) -> Detections:
    """Of boxes of one class that overlap by more than ``OVERLAP_MAX``, the one of highest score."""
    devices.one_thread()
    frames = []
    for boxes, scores, classes in zip(found.boxes, found.scores, found.classes, strict=True):
        # Boxes of different classes are moved apart, so that they never overlap.
        apart = boxes + (classes * 10_000.0).astype(np.float32)[:, None]
        covers = overlap(apart, apart) > OVERLAP_MAX
        free = scores > 0
        kept: list[int] = []
        for number in range(len(scores)):
            if free[number] and len(kept) < KEPT_MAX:
                kept.append(number)
                free &= ~covers[number]
        frames.append(_table(boxes, scores, classes, np.asarray(kept, np.int64)))
    return Detections(tuple(frames))


def suppress_gpu(found: Candidates) -> Detections:
    """As ``suppress``."""
    from benchmarks.pipelines import torch_detection

    free = torch_detection.suppress(found.boxes, found.scores, found.classes, OVERLAP_MAX)
    return Detections(
        tuple(
            _table(found.boxes[one], found.scores[one], found.classes[one],
                   np.flatnonzero(free[one])[:KEPT_MAX])
            for one in range(len(free))
        )
    )  # fmt: skip


def _table(
    boxes: Floats, scores: Floats, classes: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]
) -> Floats:
    columns = [boxes[kept], scores[kept, None], classes[kept, None].astype(np.float32)]
    return np.concatenate(columns, 1, dtype=np.float32)


pipeline = Pipeline("object-detection")
_boxed = pipeline.subtask("letterbox", kind="detection-letterbox")(letterbox).gpu(letterbox_gpu)
_raw = pipeline.subtask("network", kind="detection-network", after=_boxed)(infer).gpu(infer_gpu)
_decoded_step = pipeline.subtask("decode", kind="detection-decode", after=_raw)(decode).gpu(
    decode_gpu
)
_kept = pipeline.subtask("nms", kind="detection-nms", after=_decoded_step)(suppress).gpu(
    suppress_gpu
)
