"""Gaussian and difference-of-Gaussians pyramids, and the extrema that mark blobs in them.

Lowe (IJCV 2004): a blob of radius r has its highest response at scale r / sqrt(2). The images are
the difference of moving pixels from the scene, so blobs are moving objects. ``SCALES`` Gaussians
per octave, the next octave at half the size; kept as float16, which the relevant responses exceed
by far.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.pipelines import devices
from benchmarks.pipelines.background import Foreground, unpack
from benchmarks.pipelines.frames import Video, chunks

__all__ = [
    "Blobs",
    "Pyramid",
    "base_images",
    "differences",
    "differences_gpu",
    "extrema",
    "find_blobs",
    "find_blobs_gpu",
    "gaussians",
    "kernels",
    "make_pyramid",
    "make_pyramid_gpu",
]

Images = npt.NDArray[np.float32]
Level = npt.NDArray[np.float16]

OCTAVES = 3
INTERVALS = 2
SCALES = INTERVALS + 3
SIGMA = 1.6
THRESHOLD = 0.02
"""Least response, as a share of the range of grey levels."""
BASE = 2
"""The pyramid starts at half the size of the frames."""


@dataclass(frozen=True, slots=True, eq=False)
class Pyramid:
    """One (frames, scales, height, width) array per octave."""

    video: Video
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Blobs:
    """``found``: (n, 5): frame, x and y in pixels of the frame, sigma in pixels, response."""

    video: Video
    frames: int
    found: Images


def kernels() -> list[Images]:
    """The kernels that blur each image of an octave from the one before; the first: the base."""
    made = []
    for scale in range(SCALES):
        sigma = SIGMA * 2 ** (scale / INTERVALS)
        before = SIGMA * 2 ** ((scale - 1) / INTERVALS) if scale else 0.5
        step = float(np.sqrt(sigma**2 - before**2))
        reach = int(np.ceil(3 * step))
        values = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * step**2))
        made.append((values / values.sum()).astype(np.float32))
    return made


def base_images(found: Foreground, part: slice) -> Images:
    """(n, height / 2, width / 2), 0..1: the difference of moving pixels from the scene."""
    scene = cv2.cvtColor(found.background, cv2.COLOR_BGR2GRAY)
    out = []
    for frame, bits in zip(found.video.frames()[part], found.masks[part], strict=True):
        far = cv2.absdiff(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), scene)
        far = (far * unpack(bits, found.width)).astype(np.float32) / 255
        size = (far.shape[1] // BASE, far.shape[0] // BASE)
        out.append(cv2.resize(far, size, interpolation=cv2.INTER_AREA))
    return np.asarray(out, np.float32)


def gaussians(base: Images) -> list[Images]:
    """One (n, SCALES, h, w) array per octave for ``base`` (n, h, w)."""
    steps = kernels()
    levels = []
    for octave in range(OCTAVES):
        level = np.empty((len(base), SCALES, *base.shape[1:]), np.float32)
        for number, image in enumerate(base):
            level[number, 0] = image if octave else _blur(image, steps[0])
            for scale in range(1, SCALES):
                level[number, scale] = _blur(level[number, scale - 1], steps[scale])
        levels.append(level)
        base = np.ascontiguousarray(level[:, INTERVALS, ::2, ::2])
    return levels


def _blur(image: Images, kernel: Images) -> Images:
    blurred = cv2.sepFilter2D(image, cv2.CV_32F, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)
    return np.asarray(blurred, np.float32)


def make_pyramid(found: Foreground, part_frames: int = 64) -> Pyramid:
    """The Gaussian pyramid of every frame."""
    devices.one_thread()
    parts = [
        [level.astype(np.float16) for level in gaussians(base_images(found, part))]
        for part in chunks(len(found.masks), part_frames)
    ]
    return Pyramid(found.video, tuple(np.concatenate(level) for level in zip(*parts, strict=True)))


def make_pyramid_gpu(found: Foreground) -> Pyramid:
    """As ``make_pyramid``."""
    from benchmarks.pipelines import torch_video

    parts = []
    for part in chunks(len(found.masks), torch_video.CHUNK):
        base = torch_video.base_images(found, part)
        levels = torch_video.gaussians(base, OCTAVES, kernels(), INTERVALS)
        parts.append([devices.download(level.half()) for level in levels])
    return Pyramid(found.video, tuple(np.concatenate(level) for level in zip(*parts, strict=True)))


def differences(pyramid: Pyramid) -> Pyramid:
    """Finer minus coarser neighbours: bright blobs have responses above 0."""
    devices.one_thread()
    levels = []
    for level in pyramid.levels:
        out = np.empty((len(level), SCALES - 1, *level.shape[2:]), np.float16)
        for number, images in enumerate(level):
            values = images.astype(np.float32)
            out[number] = values[:-1] - values[1:]
        levels.append(out)
    return Pyramid(pyramid.video, tuple(levels))


def differences_gpu(pyramid: Pyramid) -> Pyramid:
    """As ``differences``."""
    from benchmarks.pipelines import torch_video

    levels = (torch_video.differences_of_gaussians(level) for level in pyramid.levels)
    return Pyramid(pyramid.video, tuple(levels))


def extrema(dog: Level, threshold: float = THRESHOLD) -> Images:
    """(n, 5): frame, scale, row, column, response, where no neighbour in space or scale is larger.

    The outermost scales, rows and columns have no full neighbourhood and are left out.
    """
    square = np.ones((3, 3), np.uint8)
    rows = []
    for number, images in enumerate(dog):
        values = images.astype(np.float32)
        strong = np.abs(values)
        if not (strong[1:-1] > threshold).any():
            continue
        wide = np.asarray([cv2.dilate(image, square) for image in strong])
        around = np.maximum(np.maximum(wide[:-2], wide[1:-1]), wide[2:])
        best = (strong[1:-1] == around) & (strong[1:-1] > threshold)
        best[..., 0] = best[..., -1] = False
        best[:, 0] = best[:, -1] = False
        scale, row, column = best.nonzero()
        response = values[1:-1][best]
        place = np.column_stack([np.full_like(scale, number), scale + 1, row, column])
        rows.append(np.column_stack([place.astype(np.float32), response]))
    return np.concatenate(rows) if rows else np.empty((0, 5), np.float32)


def find_blobs(dogs: Pyramid) -> Blobs:
    """The bright blobs of every frame, from all octaves."""
    devices.one_thread()
    return _blobs(dogs, [extrema(level) for level in dogs.levels])


def find_blobs_gpu(dogs: Pyramid) -> Blobs:
    """As ``find_blobs``."""
    from benchmarks.pipelines import torch_video

    return _blobs(dogs, [torch_video.extrema(level, THRESHOLD) for level in dogs.levels])


def _blobs(dogs: Pyramid, found: list[Images]) -> Blobs:
    rows = []
    for octave, points in enumerate(found):
        size = BASE * 2**octave
        frame, scale, row, column, response = points[points[:, 4] > 0].T
        sigma = SIGMA * 2 ** (scale / INTERVALS) * size
        rows.append(np.column_stack([frame, column * size, row * size, sigma, response]))
    every = np.concatenate(rows).astype(np.float32)
    order = np.lexsort((-every[:, 4], every[:, 0]))
    return Blobs(dogs.video, len(dogs.levels[0]), every[order])
