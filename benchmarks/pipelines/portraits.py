"""Photographs of people who do not exist, drawn well enough for OpenCV's cascades.

A face is an ellipse shaded like a ball, darkened at the sockets, brows, nostrils and mouth and
lightened at the nose and cheeks: the contrasts that Haar features detect. About a score of
proportions make an identity; light, tilt, size, place, noise and JPEG make a photograph of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.common import cache_dir
from benchmarks.pipelines.frames import MB
from hrm.errors import InvalidConfig, NotFound

__all__ = ["BOX", "Album", "Portrait", "album", "draw_face", "identity", "photograph", "truth"]

Image = npt.NDArray[np.float32]
Features = Mapping[str, float]

WIDTH, HEIGHT = 640, 480
BOX = (0.095, 0.125, 0.905, 0.935)
"""A detector's box in the square that a face is drawn in."""
PROBE_EVERY = 4
"""Every fourth photograph is a query; the others are the gallery."""
_JPEG_QUALITY = 92
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
_SYNTHETIC = re.compile(r"synthetic(?::(?:mb=([0-9.]+))?,?(?:seed=([0-9]+))?)?")

_RANGES = {
    "aspect": (0.74, 0.92),
    "skin": (135, 205),
    "eye_dx": (0.145, 0.195),
    "eye_y": (0.41, 0.45),
    "eye_w": (0.052, 0.075),
    "eye_h": (0.022, 0.036),
    "brow_t": (0.010, 0.030),
    "brow_dy": (0.055, 0.085),
    "brow_tilt": (-12, 12),
    "nose_l": (0.12, 0.19),
    "nose_w": (0.045, 0.080),
    "mouth_y": (0.70, 0.78),
    "mouth_w": (0.09, 0.16),
    "mouth_h": (0.016, 0.042),
    "hair": (15, 110),
    "fringe": (0.08, 0.22),
    "fringe_wave": (-0.07, 0.07),
    "beard": (0.0, 1.0),
    "cheek": (-0.10, 0.22),
    "moustache": (-1.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Album:
    """``size_mb`` of decoded photographs (10**6 bytes): "synthetic", or a folder of the user's."""

    source: str = "synthetic"
    size_mb: float = 20.0
    seed: int = 0

    @property
    def count(self) -> int:
        """Photographs; for a user's folder the maximum."""
        return max(PROBE_EVERY, int(self.size_mb * MB) // (WIDTH * HEIGHT * 3))

    @property
    def people(self) -> int:
        return max(3, self.count // 8)

    def files(self) -> list[Path]:
        """The image files in order; synthetic ones are drawn at the first call."""
        if self.source == "synthetic":
            return _drawn(self)
        folder = Path(self.source)
        if not folder.is_dir():
            raise NotFound(f"no folder {folder}: name one with photographs")
        found = [one for one in sorted(folder.iterdir()) if one.suffix.lower() in _SUFFIXES]
        if len(found) < 2:
            raise InvalidConfig(f"{folder} has fewer than two images; a comparison needs two")
        return found[: self.count]


@dataclass(frozen=True, slots=True)
class Portrait:
    """The truth about one photograph: the person, and the detector's box x0, y0, x1, y1."""

    person: int
    box: tuple[float, float, float, float]


def album(value: object) -> Album:
    """An ``Album`` from what a user passes: one, a folder, or "synthetic:mb=20,seed=1"."""
    if isinstance(value, Album):
        return value
    if not isinstance(value, str | os.PathLike):
        raise InvalidConfig(f"{value!r} is no album: give a folder or 'synthetic:mb=20,seed=1'")
    found = _SYNTHETIC.fullmatch(os.fspath(value))
    if not found:
        return Album(source=os.fspath(value), size_mb=400.0)
    return Album(size_mb=float(found[1] or 20), seed=int(found[2] or 0))


def identity(person: int, seed: int = 0) -> Features:
    """The proportions of one person, as shares of the face's square; grey levels 0..255."""
    rng = np.random.default_rng([seed, person, 11])
    return {name: float(rng.uniform(low, high)) for name, (low, high) in _RANGES.items()}


@cache
def _grid(size: int) -> tuple[Image, Image]:
    rows, columns = np.mgrid[0:size, 0:size].astype(np.float32) / size
    return rows, columns


class _Canvas:
    """A square of ``size`` pixels that shades and opaque ellipses are put on."""

    def __init__(self, size: int, image: Image) -> None:
        self.size = size
        self.image = image

    def shade(self, x: float, y: float, a: float, b: float, share: float) -> None:
        """Lighten (or darken, below 0) around a point by ``share``."""
        rows, columns = _grid(self.size)
        self.image *= 1 + share * np.exp(-(((columns - x) / a) ** 2 + ((rows - y) / b) ** 2))

    def ellipse(self, x: float, y: float, a: float, b: float, level: float, *,
                cover: float = 1.0, tilt: float = 0.0) -> None:  # fmt: skip
        rows, columns = _grid(self.size)
        turn = np.deg2rad(tilt)
        across = (columns - x) * np.cos(turn) + (rows - y) * np.sin(turn)
        along = (rows - y) * np.cos(turn) - (columns - x) * np.sin(turn)
        away = np.sqrt((across / a) ** 2 + (along / b) ** 2)
        inside = ((1 - away) * min(a, b) * self.size / 3 + 0.5).clip(0, 1) * cover
        self.image = self.image * (1 - inside) + inside * level


def draw_face(face: Features, size: int, light: tuple[float, float]) -> tuple[Image, Image]:
    """Grey levels and opacity, (size, size) each. ``light``: from the right, from below."""
    rows, columns = _grid(size)
    across = (columns - 0.5) / (0.45 * face["aspect"])
    along = (rows - 0.52) / 0.46
    radius = across**2 + along**2
    ball = np.sqrt((1 - radius).clip(0, 1))
    lit = 0.62 + 0.38 * ball + 0.35 * (light[0] * across + light[1] * along)
    canvas = _Canvas(size, face["skin"] * lit)
    for side in (-1, 1):
        _eye(canvas, face, 0.5 + side * face["eye_dx"], side)
    nose = face["eye_y"] + face["nose_l"]
    middle = face["eye_y"] + face["nose_l"] / 2
    canvas.shade(0.5, middle, 0.03, face["nose_l"] * 0.6, 0.16)
    canvas.shade(0.5, nose + 0.025, face["nose_w"], 0.018, -0.30)
    for side in (-1, 1):
        canvas.shade(0.5 + side * face["nose_w"] * 0.55, nose + 0.012, 0.016, 0.011, -0.35)
    mouth, wide = face["mouth_y"], face["mouth_w"]
    canvas.ellipse(0.5, mouth, wide, face["mouth_h"], face["skin"] * 0.45, cover=0.6)
    canvas.ellipse(0.5, mouth, wide, 0.007, 40, cover=0.7)
    canvas.shade(0.5, mouth + 0.055, wide * 0.7, 0.02, -0.18)
    canvas.shade(0.5, mouth - 0.045, wide * 0.8, 0.018, -0.4 * max(0.0, face["moustache"]))
    canvas.image *= 1 - 0.3 * face["beard"] * ((rows - 0.62) / 0.2).clip(0, 1)
    edge = 0.06 + face["fringe"] + face["fringe_wave"] * np.cos((columns - 0.5) * 9)
    hair = cv2.GaussianBlur((rows < edge).astype(np.float32), (0, 0), size * 0.01)
    image = canvas.image * (1 - hair) + hair * face["hair"] * (0.8 + 0.4 * ball)
    opacity = ((1 - np.sqrt(radius)) * size * 0.15 + 0.5).clip(0, 1)
    return np.asarray(image.clip(0, 255), np.float32), np.asarray(opacity, np.float32)


def _eye(canvas: _Canvas, face: Features, x: float, side: int) -> None:
    y, wide, high = face["eye_y"], face["eye_w"], face["eye_h"]
    canvas.shade(x, y - 0.005, wide * 1.5, high * 2.2, -0.38)
    canvas.shade(x, y + 0.13, 0.09, 0.06, face["cheek"])
    canvas.ellipse(x, y, wide, high, 170)
    canvas.ellipse(x, y, high * 0.95, high * 0.95, 30)
    canvas.ellipse(x, y - high * 0.8, wide * 1.1, 0.008, 45)
    canvas.ellipse(x, y - face["brow_dy"], wide * 1.35, face["brow_t"], face["hair"] + 10,
                   cover=0.8, tilt=side * face["brow_tilt"])  # fmt: skip


def truth(photos: Album) -> list[Portrait]:
    """The person and position on every photograph of a synthetic album."""
    return [_plan(photos, number)[0] for number in range(photos.count)]


def _plan(photos: Album, number: int) -> tuple[Portrait, int, np.random.Generator]:
    """Person and position of one photograph; the generator then draws light and noise."""
    rng = np.random.default_rng([photos.seed, number, 12])
    side = int(rng.integers(120, 230))
    x, y = int(rng.integers(0, WIDTH - side)), int(rng.integers(0, HEIGHT - side))
    # The first photographs introduce all people to the gallery; later ones are random.
    galleries = number - number // PROBE_EVERY - 1
    fresh = number % PROBE_EVERY and galleries < photos.people
    person = galleries if fresh else int(rng.integers(photos.people))
    left, top, right, bottom = (share * side for share in BOX)
    return Portrait(person, (x + left, y + top, x + right, y + bottom)), side, rng


def _turned(image: Image, turn: cv2.typing.MatLike, side: int) -> Image:
    whole = cv2.warpAffine(image, turn, image.shape)
    return np.asarray(cv2.resize(whole, (side, side), interpolation=cv2.INTER_AREA), np.float32)


def photograph(photos: Album, number: int) -> npt.NDArray[np.uint8]:
    """(HEIGHT, WIDTH, 3) BGR."""
    portrait, side, rng = _plan(photos, number)
    coarse = cv2.GaussianBlur(rng.normal(115, 55, (30, 40)).astype(np.float32), (0, 0), 1.6)
    wide = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    image = np.asarray(wide, np.float32)
    light = (float(rng.uniform(-0.35, 0.35)), float(rng.uniform(-0.25, 0.25)))
    face, opacity = draw_face(identity(portrait.person, photos.seed), 320, light)
    turn = cv2.getRotationMatrix2D((160, 160), float(rng.uniform(-5, 5)), 1.0)
    face, opacity = (_turned(one, turn, side) for one in (face, opacity))
    x, y = int(portrait.box[0] - BOX[0] * side + 0.5), int(portrait.box[1] - BOX[1] * side + 0.5)
    where = np.s_[y : y + side, x : x + side]
    image[where] = image[where] * (1 - opacity) + face * float(rng.uniform(0.9, 1.1)) * opacity
    tint = np.array([0.92, 0.98, 1.06], np.float32)
    coloured = image[..., None] * tint + rng.normal(0, 3, (HEIGHT, WIDTH, 1))
    return np.asarray(coloured.clip(0, 255), np.uint8)


def _drawn(photos: Album) -> list[Path]:
    folder = cache_dir() / "pipelines" / f"album-{photos.seed}-{photos.count}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05d}.jpg" for number in range(photos.count)]
    for number, path in enumerate(paths):
        if not path.exists():
            options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
            _, data = cv2.imencode(".jpg", photograph(photos, number), options)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            partial.write_bytes(data.tobytes())
            partial.replace(path)
    return paths
