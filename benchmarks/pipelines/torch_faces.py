"""The GPU versions of the face steps, in PyTorch, on whole batches of photographs and faces.

They agree with the CPU versions up to interpolation: OpenCV takes 1/32 of a pixel when it warps.
Measured on the tests' albums: landmarks within 0.01 pixel, encodings within 0.02 in any of their
128 numbers (they have length 1), distances of equal encodings within 1e-4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional

from benchmarks.pipelines.devices import device, download, upload
from benchmarks.pipelines.frames import chunks

__all__ = ["distance", "encode", "landmarks", "locate", "nearest"]

Grey = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

CHUNK = 16
FACE_MIN, FACE_MAX, STEP = 84.0, 210.0, 1.12
"""Sides of faces that are looked for, in pixels, and the ratio from one size to the next."""
CONTRAST_MIN = 12.0


def locate(images: Grey, template: Floats, least: float) -> Floats:
    """(n, 4): the box on each image that correlates most with the template; zeros below ``least``.

    Normalised cross-correlation over a pyramid of sizes: the template has mean 0 and length 1.
    """
    side = template.shape[0]
    boxes = np.zeros((len(images), 4), np.float32)
    weight = upload(template)[None, None]
    for part in chunks(len(images), CHUNK):
        full = upload(images[part])[:, None].float()
        best = torch.full((len(full),), least, device=full.device)
        chosen = torch.zeros((len(full), 4), device=full.device)
        face = FACE_MIN
        while face <= FACE_MAX:
            share = side / face
            size = (round(full.shape[2] * share), round(full.shape[3] * share))
            small = functional.interpolate(full, size, mode="bilinear", antialias=True)
            score, place = _correlation(small, weight).flatten(1).max(1)
            width = size[1] - side + 1
            corner = torch.stack([place % width, place // width], 1) / share
            box = torch.cat([corner, corner + face], 1)
            better = score > best
            best = torch.where(better, score, best)
            chosen = torch.where(better[:, None], box, chosen)
            face *= STEP
        boxes[part] = download(chosen)
    return boxes


def _correlation(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(n, 1, h, w) to (n, h', w'), -1..1; flat windows count less than ``CONTRAST_MIN`` would."""
    side = weight.shape[-1]
    mean = functional.avg_pool2d(images, side, stride=1)
    square = functional.avg_pool2d(images * images, side, stride=1)
    deviation = (square - mean * mean).clamp_min(CONTRAST_MIN**2).sqrt() * side
    return (functional.conv2d(images, weight) / deviation)[:, 0]


def landmarks(crops: Grey, windows: Floats) -> Floats:
    """(faces, marks, 2), as ``faces.face_landmarks``."""
    marks = np.zeros((len(crops), len(windows), 2), np.float32)
    weights = upload(windows)[None]
    side = windows.shape[-1]
    line = torch.arange(side, device=weights.device, dtype=torch.float32)
    for part in chunks(len(crops), CHUNK * 8):
        images = upload(crops[part])[:, None].float()
        padded = functional.pad(images, (2, 2, 2, 2), mode="reflect")
        smooth = functional.avg_pool2d(padded, 5, stride=1)
        mean = (smooth * weights).sum((2, 3)) / weights.sum((2, 3))
        dark = (mean[..., None, None] - smooth).clamp_min(0) ** 2 * weights
        total = dark.sum((2, 3)) + 1e-6
        x = (dark.sum(2) * line).sum(2) / total
        y = (dark.sum(3) * line).sum(2) / total
        marks[part] = download(torch.stack([x, y], 2))
    return marks


def encode(crops: Grey, moves: Floats, basis: Floats, side: int) -> Floats:
    """(faces, 128), as ``faces.face_encodings``; ``moves``: patch to crop, (faces, 2, 3)."""
    codes = np.zeros((len(crops), basis.shape[1]), np.float32)
    projection = upload(basis)
    crop = crops.shape[-1]
    line = torch.arange(side, device=device(), dtype=torch.float32)
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    points = torch.stack([columns, rows, torch.ones_like(rows)]).flatten(1)
    for part in chunks(len(crops), CHUNK * 8):
        images = upload(crops[part])[:, None].float()
        where = (upload(moves[part]) @ points).transpose(1, 2).view(-1, side, side, 2)
        grid = where * (2 / (crop - 1)) - 1
        patches = functional.grid_sample(
            images, grid, mode="bilinear", padding_mode="border", align_corners=True
        )
        flat = patches.flatten(1)
        flat = flat - flat.mean(1, keepdim=True)
        flat = flat / (flat.std(1, keepdim=True, correction=0) + 1e-3)
        code = flat @ projection
        codes[part] = download(code / (code.norm(dim=1, keepdim=True) + 1e-6))
    return codes


def distance(unknown: Floats, known: Floats) -> Floats:
    """(m, n) Euclidean."""
    apart = torch.cdist(upload(unknown), upload(known),
                        compute_mode="donot_use_mm_for_euclid_dist")  # fmt: skip
    return np.asarray(download(apart), np.float32)


def nearest(apart: Floats, tolerance: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """(m, n) within ``tolerance``, and (m,) the nearest where any is, else -1."""
    if not apart.size:
        return apart <= tolerance, np.full(len(apart), -1, np.int64)
    values = upload(apart)
    same = values <= tolerance
    least, place = values.min(1)
    best = torch.where(least <= tolerance, place, torch.full_like(place, -1))
    return download(same), download(best)
