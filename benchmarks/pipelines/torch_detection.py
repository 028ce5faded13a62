"""The detector's steps in PyTorch; the network on either device, the others as GPU versions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional

from benchmarks.pipelines.anchors import ANCHORS, STRIDES
from benchmarks.pipelines.devices import device, download, upload
from benchmarks.pipelines.frames import chunks
from benchmarks.pipelines.network import chosen_weights, network

__all__ = ["decode", "infer", "letterbox", "suppress"]

Pictures = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]

CHUNK = 32


def letterbox(
    frames: Pictures,
    inner: tuple[int, int],
    outer: tuple[int, int],
    corner: tuple[int, int],
    grey: int,
) -> Pictures:
    """(n, h, w, 3) BGR to (n, *outer, 3) RGB."""
    pictures = upload(frames).permute(0, 3, 1, 2).flip(1)
    if pictures.shape[2:] != inner:
        scaled = functional.interpolate(pictures.float(), inner, mode="bilinear")
        pictures = scaled.round().clamp(0, 255).to(torch.uint8)
    top, left = corner
    padding = (left, outer[1] - inner[1] - left, top, outer[0] - inner[0] - top)
    padded = functional.pad(pictures, padding, value=grey)
    return np.asarray(download(padded.permute(0, 2, 3, 1).contiguous()), np.uint8)


def infer(pictures: Pictures, chunk: int, *, on_cpu: bool) -> tuple[Halves, ...]:
    """The three heads' numbers for all pictures."""
    where = torch.device("cpu") if on_cpu else device()
    if where.type == "cpu":
        torch.set_num_threads(1)
    net = network(weights=chosen_weights()).to(where)
    parts: list[list[Halves]] = []
    with torch.inference_mode():
        for part in chunks(len(pictures), chunk):
            source = torch.from_numpy(pictures[part]) if on_cpu else upload(pictures[part])
            heads = net(source.permute(0, 3, 1, 2).float() / 255)
            parts.append([download(head.half()) for head in heads])
    return tuple(np.concatenate(one) for one in zip(*parts, strict=True))


def decode(
    heads: tuple[Halves, ...], scale: float, offset: tuple[int, int], limit: int, least: float
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Boxes, scores and classes of the ``limit`` best of each picture."""
    parts: list[list[npt.NDArray[np.generic]]] = []
    for part in chunks(len(heads[0]), CHUNK):
        decoded = [
            _decoded(upload(head[part]).float(), torch.tensor(anchors, device=device()), stride)
            for head, anchors, stride in zip(heads, ANCHORS, STRIDES, strict=True)
        ]
        place, sure, what = (torch.cat(one, 1) for one in zip(*decoded, strict=True))
        scores, best = torch.sort(sure, dim=1, descending=True, stable=True)
        best, scores = best[:, :limit], scores[:, :limit]
        boxes = place.gather(1, best[..., None].expand(-1, -1, 4))
        boxes = (boxes - torch.tensor(offset * 2, device=boxes.device)) / scale
        scores = torch.where(scores >= least, scores, torch.zeros_like(scores))
        values = (boxes, scores, what.gather(1, best))
        parts.append([np.asarray(download(one)) for one in values])
    boxes_, scores_, classes = (np.concatenate(one) for one in zip(*parts, strict=True))
    return (
        np.asarray(boxes_, np.float32),
        np.asarray(scores_, np.float32),
        np.asarray(classes, np.int64),
    )


def _decoded(
    head: torch.Tensor, anchors: torch.Tensor, stride: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    count, _, height, width = head.shape
    values = head.view(count, len(anchors), -1, height, width).permute(0, 1, 3, 4, 2).sigmoid()
    lines = [torch.arange(size, device=head.device) for size in (height, width)]
    rows, columns = torch.meshgrid(*lines, indexing="ij")
    centre = (values[..., :2] * 2 - 0.5 + torch.stack([columns, rows], 2)) * stride
    size = (values[..., 2:4] * 2) ** 2 * anchors[:, None, None]
    boxes = torch.cat([centre - size / 2, centre + size / 2], -1).reshape(count, -1, 4)
    sure, kind = values[..., 5:].flatten(1, 3).max(-1)
    return boxes, sure * values[..., 4].flatten(1), kind


def suppress(
    boxes: Floats, scores: Floats, classes: npt.NDArray[np.int64], most: float
) -> npt.NDArray[np.bool_]:
    """(n, candidates): which stay, all pictures at once.

    A box stays if no box that stays precedes and covers it. That is the fixed point of removing
    whatever is covered by the boxes that stay so far; by rank it is reached in as many rounds as
    the longest chain of boxes that cover each other.
    """
    kept: list[npt.NDArray[np.bool_]] = []
    for part in chunks(len(boxes), CHUNK):
        places = upload(boxes[part]) + (upload(classes[part]) * 10_000.0).float()[..., None]
        low = torch.maximum(places[:, :, None, :2], places[:, None, :, :2])
        high = torch.minimum(places[:, :, None, 2:], places[:, None, :, 2:])
        shared = (high - low).clamp_min(0).prod(-1)
        area = (places[..., 2:] - places[..., :2]).prod(-1)
        union = area[:, :, None] + area[:, None] - shared
        # covers[b, i, j]: i comes before j and covers it.
        covers = ((shared / union.clamp_min(1e-6)) > most).float().triu(1)
        there = upload(scores[part]) > 0
        stays = there
        for _ in range(boxes.shape[1]):
            struck = torch.bmm(stays.float()[:, None], covers)[:, 0] > 0
            after = there & ~struck
            if torch.equal(after, stays):
                break
            stays = after
        kept.append(np.asarray(download(stays), np.bool_))
    return np.concatenate(kept)
