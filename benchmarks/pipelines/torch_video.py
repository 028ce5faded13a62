"""The GPU versions of the steps over videos, in PyTorch, many frames at a time where possible.

They compute what the OpenCV versions compute, with the same neighbourhoods and borders. Measured
on the clips of the tests: masks differ in under 0.1 % of the pixels, pyramids by less than 2e-3
of the range (they are kept as float16), boxes of the same mask not at all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional

from benchmarks.pipelines import background as host
from benchmarks.pipelines.background import Foreground
from benchmarks.pipelines.devices import device, download, upload
from benchmarks.pipelines.frames import Video, chunks
from benchmarks.pipelines.mog2 import Mixture

__all__ = [
    "base_images",
    "components",
    "difference",
    "differences_of_gaussians",
    "extrema",
    "gaussians",
    "model_background",
    "pack",
    "unpack",
]

CHUNK = 32
_FAR = 1 << 30


def pack(mask: torch.Tensor) -> torch.Tensor:
    """(…, width) of bool to bits as numpy.packbits makes them."""
    padded = functional.pad(mask.to(torch.uint8), (0, -mask.shape[-1] % 8))
    bits = padded.reshape(*padded.shape[:-1], -1, 8)
    shifts = torch.arange(7, -1, -1, device=mask.device, dtype=torch.uint8)
    return (bits << shifts).sum(-1, dtype=torch.uint8)


def unpack(bits: torch.Tensor, width: int) -> torch.Tensor:
    """The inverse of ``pack``, bool."""
    shifts = torch.arange(7, -1, -1, device=bits.device, dtype=torch.uint8)
    return ((bits[..., None] >> shifts) & 1).bool().flatten(-2)[..., :width]


def model_background(source: Video) -> Foreground:
    """As ``background.model_background``."""
    frames = source.frames()
    _, height, width, _ = frames.shape
    model = Mixture(height * width, device())
    masks = np.empty((*frames.shape[:2], (width + 7) // 8), np.uint8)
    for part in chunks(len(frames), CHUNK):
        samples = upload(frames[part]).permute(0, 3, 1, 2).flatten(2).float()
        marked = torch.stack([model.apply(sample) for sample in samples])
        masks[part] = download(pack(marked.view(-1, height, width)))
    scene = model.background().round().clamp(0, 255).to(torch.uint8)
    picture = download(scene.view(3, height, width).permute(1, 2, 0).contiguous())
    return Foreground(source, width, masks, picture)


def _grey(frames: torch.Tensor) -> torch.Tensor:
    """(n, height, width, 3) BGR to int32 grey levels, by OpenCV's fixed-point weights."""
    blue, green, red = frames.to(torch.int32).unbind(-1)
    return (blue * 3735 + green * 19235 + red * 9798 + (1 << 14)) >> 15


def _grow(mask: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """Maximum over a square that reaches ``before`` back and ``after`` ahead; (n, h, w) float."""
    padded = functional.pad(mask[:, None], (before, after, before, after))
    side = before + after + 1
    rows = functional.max_pool2d(padded, (side, 1), stride=1)
    return functional.max_pool2d(rows, (1, side), stride=1)[:, 0]


def _shrink(mask: torch.Tensor, before: int, after: int) -> torch.Tensor:
    return 1 - _grow(1 - mask, before, after)


def difference(found: Foreground) -> Foreground:
    """As ``background.difference``."""
    frames = found.video.frames()
    count = len(frames)
    masks = np.empty_like(found.masks)
    for part in chunks(count, CHUNK):
        first, last = max(0, part.start - 1), min(count, part.stop + 1)
        grey = _grey(upload(frames[first:last]))
        changed = (grey[1:] - grey[:-1]).abs() > host.CHANGE
        before = changed if first < part.start else torch.cat([changed[:1], changed])
        after = changed if last > part.stop else torch.cat([changed, changed[-1:]])
        size = part.stop - part.start
        moving = (before[:size] | after[-size:]).float()
        marked = unpack(upload(found.masks[part]), found.width).float()
        masks[part] = download(pack(_clean(marked, moving)))
    return Foreground(found.video, found.width, masks, found.background)


def _clean(marked: torch.Tensor, moving: torch.Tensor) -> torch.Tensor:
    reach = host.OPEN // 2
    opened = _grow(_shrink(marked, reach, reach), reach, reach)
    reach = host.GROW // 2
    closed = _shrink(_grow(opened, reach, reach), reach, reach)
    # A square of two pixels has its anchor at the lower right, on the way there and back.
    speckless = _grow(_shrink(moving, 1, 0), 1, 0)
    reach = host.NEAR // 2
    return (closed * _grow(speckless, reach, reach)) > 0


def components(masks: npt.NDArray[np.uint8], width: int) -> list[npt.NDArray[np.int64]]:
    """Boxes of the 8-connected components, one (n, 6) array a frame: x0, y0, x1, y1, area, 0.

    Every pixel takes the largest label around it and then that label's label, until none changes:
    a component of any shape needs some ten rounds.
    """
    found: list[npt.NDArray[np.int64]] = []
    for part in chunks(len(masks), CHUNK):
        mask = unpack(upload(masks[part]), width)
        found += _boxes(mask, _labels(mask))
    return found


def _labels(mask: torch.Tensor) -> torch.Tensor:
    """(n, h, w) int64: 0 outside, else 1 + the largest flat index of the component."""
    _, height, width = mask.shape
    index = torch.arange(1, height * width + 1, device=mask.device, dtype=torch.float32)
    inside = mask.float()
    labels = index.view(1, height, width) * inside
    for _ in range(height * width):
        pooled = functional.max_pool2d(labels[:, None], 3, stride=1, padding=1)[:, 0] * inside
        target = (pooled.flatten(1).long() - 1).clamp_min(0)
        jumped = pooled.flatten(1).gather(1, target).view_as(pooled) * inside
        if torch.equal(jumped, labels):
            break
        labels = jumped
    return labels.long()


def _boxes(mask: torch.Tensor, labels: torch.Tensor) -> list[npt.NDArray[np.int64]]:
    count, height, width = mask.shape
    frame, row, column = mask.nonzero(as_tuple=True)
    keys = frame * (height * width + 1) + labels[frame, row, column]
    _, number = torch.unique(keys, return_inverse=True)
    size = int(number.max()) + 1 if number.numel() else 0
    least = torch.full((3, size), _FAR, device=mask.device, dtype=torch.int64)
    most = torch.zeros((2, size), device=mask.device, dtype=torch.int64)
    for place, values in enumerate((column, row, frame)):
        least[place].scatter_reduce_(0, number, values, "amin")
    for place, values in enumerate((column, row)):
        most[place].scatter_reduce_(0, number, values + 1, "amax")
    area = torch.bincount(number, minlength=size)[None]
    table = download(torch.cat([least[:2], most, area, least[2:]]).T.contiguous())
    order = np.lexsort(table.T[::-1])
    table = table[order]
    return [
        np.asarray(np.where([0, 0, 0, 0, 0, 1], 0, table[table[:, 5] == one]), np.int64)
        for one in range(count)
    ]


def _blur(images: torch.Tensor, kernel: npt.NDArray[np.float32]) -> torch.Tensor:
    """(n, h, w) by a separable kernel, mirrored at the borders."""
    reach = len(kernel) // 2
    weight = upload(kernel)
    padded = functional.pad(images[:, None], (reach,) * 4, mode="reflect")
    rows = functional.conv2d(padded, weight.view(1, 1, 1, -1))
    return functional.conv2d(rows, weight.view(1, 1, -1, 1))[:, 0]


def base_images(found: Foreground, part: slice) -> torch.Tensor:
    """As ``scale_space.base_images``: difference of moving pixels from the scene, half size."""
    grey = _grey(upload(found.video.frames()[part]))
    scene = _grey(upload(found.background))
    moving = unpack(upload(found.masks[part]), found.width)
    far = (grey - scene).abs().float() * moving / 255
    return functional.avg_pool2d(far[:, None], 2)[:, 0]


def gaussians(
    base: torch.Tensor, octaves: int, kernels: list[npt.NDArray[np.float32]], step: int
) -> list[torch.Tensor]:
    """One (n, scales, h, w) tensor an octave; the next starts at half the size of ``step``'s."""
    levels = []
    for octave in range(octaves):
        images = [_blur(base, kernels[0]) if octave == 0 else base]
        for one in kernels[1:]:
            images.append(_blur(images[-1], one))
        levels.append(torch.stack(images, 1))
        base = images[step][:, ::2, ::2].contiguous()
    return levels


def differences_of_gaussians(level: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """Finer minus coarser: (n, scales, h, w) to (n, scales - 1, h, w)."""
    out = np.empty((level.shape[0], level.shape[1] - 1, *level.shape[2:]), np.float16)
    for part in chunks(len(level), CHUNK):
        values = upload(level[part]).float()
        out[part] = download((values[:, :-1] - values[:, 1:]).half())
    return out


def extrema(dog: npt.NDArray[np.float16], threshold: float) -> npt.NDArray[np.float32]:
    """As ``scale_space.extrema``: (found, 5): frame, scale, row, column, response."""
    rows = []
    for part in chunks(len(dog), CHUNK):
        values = upload(dog[part]).float()
        strong = values.abs()
        around = functional.max_pool3d(strong[:, None], 3, stride=1, padding=1)[:, 0]
        best = (strong == around) & (strong > threshold)
        best[:, 0] = best[:, -1] = False
        best[..., 0] = best[..., -1] = False
        best[..., 0, :] = best[..., -1, :] = False
        where = best.nonzero()
        response = values[best][:, None]
        start = torch.tensor([part.start, 0, 0, 0], device=where.device)
        rows.append(download(torch.cat([(where + start).float(), response], 1)))
    return np.concatenate(rows)
