"""A detector in the style of YOLO: cross-stage-partial backbone, aggregating neck, three heads.

Backbone: a stem, then four stages, each a convolution of stride 2 and a CSP block (half of the
channels go through residual bottlenecks, half pass by); spatial pyramid pooling at the end. Neck:
top-down, then bottom-up. Heads: at strides 8, 16 and 32, three anchors each, 5 + classes numbers.
After Wang et al. (CSPNet, 2020), Liu et al. (PANet, 2018) and Redmon and Farhadi (YOLOv3, 2018).

Weights are random, from a fixed seed, unless a .npz or .safetensors file is given: the load is
that of a detector, the labels are not. ``width`` and ``depth`` scale it.
"""

from __future__ import annotations

import json
import math
import os
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.pipelines.anchors import CLASSES, STRIDES
from benchmarks.pipelines.devices import device
from hrm.errors import InvalidConfig, NotFound

__all__ = ["Detector", "chosen_weights", "load_weights", "network"]

SEED = 20
_SAFETENSORS: dict[str, np.dtype[np.generic]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
}
_HEADER_BYTES_MAX = 10_000_000


class _Conv(nn.Sequential):
    """Convolution, normalisation, activation."""

    def __init__(self, inner: int, outer: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outer),
            nn.SiLU(inplace=True),
        )


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.squeeze = _Conv(channels, channels)
        self.spread = _Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.spread(self.squeeze(x))
        return x + y if self.shortcut else y


class _Csp(nn.Module):
    """Half of the channels through ``depth`` bottlenecks, half past them."""

    def __init__(self, inner: int, outer: int, depth: int, shortcut: bool = True) -> None:
        super().__init__()
        half = outer // 2
        self.past = _Conv(inner, half)
        self.through = _Conv(inner, half)
        self.blocks = nn.Sequential(*(_Bottleneck(half, shortcut) for _ in range(depth)))
        self.join = _Conv(2 * half, outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.blocks(self.through(x)), self.past(x)], 1)
        joined: torch.Tensor = self.join(both)
        return joined


class _Pooling(nn.Module):
    """Pooling at three sizes, concatenated with the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = _Conv(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.join = _Conv(2 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.squeeze(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        joined: torch.Tensor = self.join(torch.cat(levels, 1))
        return joined


class Detector(nn.Module):
    """(n, 3, h, w), 0..1, h and w multiples of 32, to three (n, 3 (5 + classes), h/s, w/s)."""

    def __init__(self, width: int = 16, depth: int = 1) -> None:
        super().__init__()
        w = width
        self.stem = _Conv(3, w, 3, 2)
        self.stage4 = nn.Sequential(_Conv(w, 2 * w, 3, 2), _Csp(2 * w, 2 * w, depth))
        self.stage8 = nn.Sequential(_Conv(2 * w, 4 * w, 3, 2), _Csp(4 * w, 4 * w, 2 * depth))
        self.stage16 = nn.Sequential(_Conv(4 * w, 8 * w, 3, 2), _Csp(8 * w, 8 * w, 3 * depth))
        self.stage32 = nn.Sequential(
            _Conv(8 * w, 16 * w, 3, 2), _Csp(16 * w, 16 * w, depth), _Pooling(16 * w)
        )
        self.down16 = _Conv(16 * w, 8 * w)
        self.top16 = _Csp(16 * w, 8 * w, depth, shortcut=False)
        self.down8 = _Conv(8 * w, 4 * w)
        self.top8 = _Csp(8 * w, 4 * w, depth, shortcut=False)
        self.up16 = _Conv(4 * w, 4 * w, 3, 2)
        self.bottom16 = _Csp(8 * w, 8 * w, depth, shortcut=False)
        self.up32 = _Conv(8 * w, 8 * w, 3, 2)
        self.bottom32 = _Csp(16 * w, 16 * w, depth, shortcut=False)
        outputs = 3 * (5 + CLASSES)
        self.heads = nn.ModuleList(nn.Conv2d(c * w, outputs, 1) for c in (4, 8, 16))
        self.enlarge = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        eight = self.stage8(self.stage4(self.stem(x)))
        sixteen = self.stage16(eight)
        narrow32 = self.down16(self.stage32(sixteen))
        narrow16 = self.down8(self.top16(torch.cat([self.enlarge(narrow32), sixteen], 1)))
        fine = self.top8(torch.cat([self.enlarge(narrow16), eight], 1))
        middle = self.bottom16(torch.cat([self.up16(fine), narrow16], 1))
        coarse = self.bottom32(torch.cat([self.up32(middle), narrow32], 1))
        return [head(y) for head, y in zip(self.heads, (fine, middle, coarse), strict=True)]


@cache
def network(width: int = 16, depth: int = 1, weights: str | None = None) -> Detector:
    """The detector on the device, ready to infer. ``weights``: a file, else from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        made = Detector(width, depth)
        for head, stride in zip(made.heads, STRIDES, strict=True):
            assert isinstance(head, nn.Conv2d) and head.bias is not None
            # Objectness starts rare, as in training: a few objects in 640 x 640 pixels.
            head.bias.data.view(3, -1)[:, 4] += math.log(8 / (640 / stride) ** 2)
        _spread(made)
    if weights:
        _fill(made, load_weights(Path(weights)), weights)
    return made.eval().requires_grad_(False).to(device())


def _spread(made: Detector) -> None:
    """Take the batch norms' statistics from soft noise: without them random layers shrink their
    input until every picture gives the same result."""
    norms = [one for one in made.modules() if isinstance(one, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        picture = nn.functional.interpolate(torch.rand(4, 3, 12, 12), size=256, mode="bilinear")
        made.train()(picture)
    for norm in norms:
        norm.momentum = 0.1


def _fill(made: Detector, arrays: dict[str, npt.NDArray[np.generic]], name: str) -> None:
    state = {key: torch.from_numpy(np.ascontiguousarray(one)) for key, one in arrays.items()}
    try:
        made.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise InvalidConfig(
            f"{name} holds weights of another network: {lines[-1].strip()}; give a file of "
            f"this one's shape, or none for random weights"
        ) from error


def load_weights(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The named arrays of a .npz (without pickle) or .safetensors file.

    Raises:
        NotFound: there is no such file.
        InvalidConfig: it is of neither format, or damaged.
    """
    if not path.exists():
        raise NotFound(f"no weights at {path}: give a .npz or .safetensors file, or none")
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfig(
            f"{path} is no .npz or .safetensors file of arrays ({error}); export it again"
        ) from error


def _safetensors(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """Eight bytes of length, that much JSON, then the arrays' bytes."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= min(_HEADER_BYTES_MAX, len(data) - 8):
        raise ValueError(f"its header would have {size} bytes")
    header = json.loads(data[8 : 8 + size])
    body = memoryview(data)[8 + size :]
    arrays = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, stop = about["data_offsets"]
        kind = _SAFETENSORS[about["dtype"]]
        if not 0 <= start <= stop <= len(body):
            raise ValueError(f"{name} lies outside the file")
        values: npt.NDArray[np.generic] = np.frombuffer(body[start:stop], dtype=kind)
        arrays[name] = values.reshape(about["shape"]).copy()
    return arrays


def chosen_weights() -> str | None:
    """The file that ``$HRM_DETECTOR_WEIGHTS`` names, if any."""
    return os.environ.get("HRM_DETECTOR_WEIGHTS") or None
