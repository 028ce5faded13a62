"""The two steps that synopsis and intrusion detection share: what moves, in every frame.

``gmm-background`` learns the scene (MOG2) and marks what differs from it, including objects that
stand still for long, or the hole that they leave. ``frame-differencing`` only detects what changed
within three frames, edges mostly. Together: the marked areas, cleaned, near which something moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.pipelines import devices
from benchmarks.pipelines.frames import Video, video
from hrm.pipelines.client.definition import Pipeline, Step

__all__ = ["Foreground", "add_steps", "clean", "model_background", "unpack"]

Mask = npt.NDArray[np.uint8]

HISTORY, MODES, THRESHOLD = 200, 3, 16.0
CHANGE = 14
"""A pixel changed when its grey level did by more than this."""
OPEN, GROW, NEAR = 3, 7, 25
"""Sides of the square neighbourhoods, pixels: opening, growing, and how far motion reaches."""


@dataclass(frozen=True, slots=True, eq=False)
class Foreground:
    """``masks``: (frames, height, width / 8) bits, ``background``: (height, width, 3) BGR."""

    video: Video
    width: int
    masks: Mask
    background: Mask


class _Pair(NamedTuple):
    gmm: Step
    differencing: Step


def unpack(masks: Mask, width: int) -> Mask:
    """Bits to 0 and 1: (…, width)."""
    return np.unpackbits(masks, axis=-1, count=width)


def add_steps(pipeline: Pipeline) -> _Pair:
    """Put both steps first in a pipeline, under kinds that pipelines share."""
    gmm = pipeline.subtask("gmm-background", kind="gmm-background")(model_background)
    gmm.gpu(_model_background_gpu)
    differencing = pipeline.subtask("frame-differencing", kind="frame-differencing", after=gmm)(
        difference
    )
    differencing.gpu(_difference_gpu)
    return _Pair(gmm, differencing)


def model_background(value: Any) -> Foreground:
    """What differs from the learned scene, and the scene. ``value``: what ``video`` takes."""
    devices.one_thread()
    source = video(value)
    frames = source.frames()
    model = cv2.createBackgroundSubtractorMOG2(HISTORY, THRESHOLD, detectShadows=False)
    model.setNMixtures(MODES)
    masks = np.empty((*frames.shape[:2], (frames.shape[2] + 7) // 8), np.uint8)
    for number, frame in enumerate(frames):
        masks[number] = np.packbits(model.apply(frame) != 0, axis=-1)
    scene = np.asarray(model.getBackgroundImage(), np.uint8)
    return Foreground(source, frames.shape[2], masks, scene)


def difference(found: Foreground) -> Foreground:
    """``found`` without what does not move."""
    devices.one_thread()
    frames = found.video.frames()
    last = len(frames) - 1
    masks = np.empty_like(found.masks)
    grey = [_grey(frames[0]), _grey(frames[0]), _grey(frames[1])]
    for number in range(last + 1):
        before = _changed(grey[0], grey[1]) if number else None
        after = _changed(grey[1], grey[2]) if number < last else None
        moving = after if before is None else before if after is None else before | after
        assert moving is not None
        marked = unpack(found.masks[number], found.width)
        masks[number] = np.packbits(clean(marked, moving), axis=-1)
        grey = [grey[1], grey[2], _grey(frames[min(number + 2, last)])]
    return Foreground(found.video, found.width, masks, found.background)


def clean(marked: Mask, moving: Mask) -> Mask:
    """Opened, grown, and only near what moves; (height, width) of 0 and 1."""
    opened = cv2.morphologyEx(marked, cv2.MORPH_OPEN, np.ones((OPEN, OPEN), np.uint8))
    grown = cv2.dilate(opened, np.ones((GROW, GROW), np.uint8))
    closed = cv2.erode(grown, np.ones((GROW, GROW), np.uint8))
    speckless = cv2.morphologyEx(moving, cv2.MORPH_OPEN, np.ones((2, 2), np.uint8))
    near = cv2.dilate(speckless, np.ones((NEAR, NEAR), np.uint8))
    return np.bitwise_and(closed, near, dtype=np.uint8)


def _grey(frame: Mask) -> Mask:
    return np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), np.uint8)


def _changed(one: Mask, other: Mask) -> Mask:
    return np.asarray(cv2.threshold(cv2.absdiff(one, other), CHANGE, 1, cv2.THRESH_BINARY)[1])


def _model_background_gpu(value: Any) -> Foreground:
    from benchmarks.pipelines import torch_video

    return torch_video.model_background(video(value))


def _difference_gpu(found: Foreground) -> Foreground:
    from benchmarks.pipelines import torch_video

    return torch_video.difference(found)
