"""Videos for the pipelines: generated surveillance clips with known truth, or the user's own.

A ``Video`` is a description of some bytes, passed from step to step; the pixels are in a file of
raw frames in the benchmarks' cache, made once on each machine and memory-mapped by every step, like
cameras' storage. So no step spends time on pickling frames or on making them twice.

A generated clip: a static, textured scene, sensor noise, light that slowly goes up and down, and
objects that cross in lanes on straight lines. Everything follows from the seed; ``truth`` gives the
objects' boxes without drawing a pixel. Deterministic for one version of numpy.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.common import cache_dir
from hrm.errors import InvalidConfig, NotFound

__all__ = ["MB", "Track", "Video", "cached", "chunks", "truth", "video"]

Frames = npt.NDArray[np.uint8]
Boxes = npt.NDArray[np.float32]

MB = 1_000_000
WIDTH, HEIGHT = 320, 240
EMPTY_FRAMES = 8
"""No object in the first frames, from which a background model starts."""
CACHE_BYTES_MAX = 6 * 10**9
_NOISE_SIGMA = 2.5
_LIGHT = 0.05
_LIGHT_PERIOD = 300
_LANES = 5
_FIELDS = 8
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
_SYNTHETIC = re.compile(r"synthetic(?::(.*))?")


@dataclass(frozen=True, slots=True)
class Video:
    """``size_mb`` of raw frames (10**6 bytes) of ``source``: "synthetic", or a path of the user's.

    For a user's video ``size_mb`` is the most that is read of it.
    """

    source: str = "synthetic"
    size_mb: float = 20.0
    seed: int = 0
    width: int = WIDTH
    height: int = HEIGHT

    def __post_init__(self) -> None:
        if not self.size_mb * MB >= 3 * self.frame_bytes:
            raise InvalidConfig(
                f"a video of {self.size_mb} MB has fewer than three frames of {self.width} x "
                f"{self.height}; give it at least {3 * self.frame_bytes / MB:.2f} MB"
            )

    @property
    def frame_bytes(self) -> int:
        return self.width * self.height * 3

    @property
    def count(self) -> int:
        """How many frames a synthetic clip has."""
        return int(self.size_mb * MB) // self.frame_bytes

    def frames(self) -> Frames:
        """(frames, height, width, 3), BGR, memory-mapped and read-only."""
        if self.source == "synthetic":
            key = f"synthetic-{self.seed}-{self.count}-{self.width}x{self.height}"
            return cached(key, lambda path: _write(path, self.count, _draw(self)))
        path = Path(self.source)
        if not path.exists():
            raise NotFound(f"no video at {path}: name a video file or a folder of images")
        about = path.stat()
        name = f"{path.resolve()}-{about.st_mtime_ns}-{about.st_size}-{self.size_mb}"
        key = "read-" + hashlib.sha256(name.encode()).hexdigest()[:16]
        return cached(key, lambda target: _copy(path, self.size_mb, target))


def video(value: object) -> Video:
    """A ``Video`` from what a user passes: one, a path, or "synthetic:mb=20,seed=1".

    Raises:
        InvalidConfig: it is none of these.
    """
    if isinstance(value, Video):
        return value
    if not isinstance(value, str | os.PathLike):
        raise InvalidConfig(f"{value!r} is no video: give a path or 'synthetic:mb=20,seed=1'")
    text = os.fspath(value)
    found = _SYNTHETIC.fullmatch(text)
    if not found:
        return Video(source=text, size_mb=400.0)
    size_mb, seed = 20.0, 0
    for part in filter(None, (found[1] or "").split(",")):
        name, _, number = part.partition("=")
        try:
            if name == "mb":
                size_mb = float(number)
            elif name == "seed":
                seed = int(number)
            else:
                raise ValueError(name)
        except ValueError as error:
            raise InvalidConfig(
                f"{text!r}: {part!r} is neither mb=NUMBER nor seed=NUMBER"
            ) from error
    return Video(size_mb=size_mb, seed=seed)


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` that cover ``count``."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def cached(key: str, make: Callable[[Path], None]) -> npt.NDArray[Any]:
    """The array in the cache under ``key``, memory-mapped; ``make`` writes it if it is missing.

    The oldest files are removed when the cache is full; a process that has one open keeps it.
    """
    folder = cache_dir() / "pipelines"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.npy"
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        return array
    except FileNotFoundError:
        partial = folder / f"{key}.{os.getpid()}.partial"
        try:
            make(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        made: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        _evict_oldest(folder, keep=path)
        return made


def _evict_oldest(folder: Path, keep: Path) -> None:
    files = sorted(
        ((one.stat().st_mtime, one.stat().st_size, one) for one in folder.glob("*.npy")),
        reverse=True,
    )
    total = 0
    for _, size, one in files:
        total += size
        if total > CACHE_BYTES_MAX and one != keep:
            one.unlink(missing_ok=True)


def _write(path: Path, count: int, drawn: Iterator[Frames]) -> None:
    first = next(drawn)
    shape = (count, *first.shape)
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(first.tobytes())
        for frame in drawn:
            file.write(frame.tobytes())


def _copy(path: Path, size_mb: float, target: Path) -> None:
    """Decode the user's video or folder into raw frames; even sizes, as the first frame has."""
    frames: list[Frames] = []
    total, shape = 0, None
    for frame in _read(path):
        if shape is None:
            shape = (frame.shape[1] // 2 * 2, frame.shape[0] // 2 * 2)
        if frame.shape[1::-1] != shape:
            frame = np.asarray(cv2.resize(frame, shape, interpolation=cv2.INTER_AREA), np.uint8)
        total += frame.nbytes
        if total > size_mb * MB:
            break
        frames.append(frame)
    if len(frames) < 3:
        raise InvalidConfig(
            f"{path} has fewer than three frames within {size_mb} MB that OpenCV can read; "
            f"give a longer one, or a folder of {', '.join(sorted(_IMAGES))} files"
        )
    _write(target, len(frames), iter(frames))


def _read(path: Path) -> Iterator[Frames]:
    if path.is_dir():
        for one in sorted(path.iterdir()):
            if one.suffix.lower() in _IMAGES:
                image = cv2.imread(str(one), cv2.IMREAD_COLOR)
                if image is None:
                    raise InvalidConfig(f"{one} is no image that OpenCV can read; take it away")
                yield np.asarray(image, np.uint8)
        return
    capture = cv2.VideoCapture(str(path))
    try:
        while True:
            there, frame = capture.read()
            if not there:
                return
            yield np.asarray(frame, np.uint8)
    finally:
        capture.release()


@dataclass(frozen=True, slots=True)
class Track:
    """One object: its box (x0, y0, x1, y1) in every frame from ``start`` on, clipped."""

    identity: int
    start: int
    boxes: Boxes

    @property
    def end(self) -> int:
        """The first frame without it."""
        return self.start + len(self.boxes)


@dataclass(frozen=True, slots=True)
class _Object:
    start: int
    end: int
    x: float
    y: float
    speed: float
    width: int
    height: int
    colour: npt.NDArray[np.float32]
    stripes: float

    def box(self, frame: int) -> tuple[float, float, float, float]:
        x = self.x + self.speed * (frame - self.start)
        return x, self.y, x + self.width, self.y + self.height


def _objects(clip: Video) -> list[_Object]:
    """Lanes are taken in turn and each object enters at an edge or somewhere in the scene."""
    rng = np.random.default_rng([clip.seed, 1])
    count = clip.count
    first = min(EMPTY_FRAMES, count // 3)
    made = []
    for number in range(max(2, count // 25)):
        width, height = int(rng.integers(18, 34)), int(rng.integers(20, 36))
        speed = float(rng.uniform(2.0, 4.0)) * (1 if rng.random() < 0.5 else -1)
        start = int(first + number * (count - first) // max(2, count // 25))
        lane = (clip.height - 44) / _LANES
        y = 4 + (2 * number % _LANES) * lane + float(rng.uniform(0, max(1.0, lane - 30)))
        x = float(rng.uniform(0, 40)) if speed > 0 else clip.width - width - rng.uniform(0, 40)
        frames = (clip.width - x if speed > 0 else x + width) / abs(speed)
        end = min(count, start + int(frames))
        colour = rng.uniform(0, 70, 3) if rng.random() < 0.5 else rng.uniform(200, 255, 3)
        made.append(
            _Object(start, end, float(x), y, speed, width, height,
                    colour.astype(np.float32), float(rng.uniform(0.1, 0.3)))
        )  # fmt: skip
    return made


def truth(clip: Video) -> list[Track]:
    """Where every object of a synthetic clip is, as long as any of it is in the picture."""
    tracks = []
    for identity, one in enumerate(_objects(clip)):
        boxes = np.array([one.box(frame) for frame in range(one.start, one.end)], np.float32)
        boxes[:, 0::2] = boxes[:, 0::2].clip(0, clip.width)
        boxes[:, 1::2] = boxes[:, 1::2].clip(0, clip.height)
        tracks.append(Track(identity, one.start, boxes))
    return tracks


def _scene(clip: Video) -> npt.NDArray[np.float32]:
    """Soft patches, a few blocks and a fine grain: (height, width, 3), 0..255."""
    rng = np.random.default_rng([clip.seed, 2])
    coarse = rng.uniform(80, 160, (8, 10, 1)) + rng.uniform(-12, 12, (8, 10, 3))
    coarse = coarse.astype(np.float32)
    size = (clip.width, clip.height)
    scene = np.asarray(cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC), np.float32)
    for _ in range(12):
        x, y = int(rng.integers(clip.width)), int(rng.integers(clip.height))
        w, h = int(rng.integers(20, 90)), int(rng.integers(12, 60))
        scene[y : y + h, x : x + w] *= float(rng.uniform(0.8, 1.25))
    scene += cv2.GaussianBlur(rng.normal(0, 14, scene.shape).astype(np.float32), (0, 0), 1.0)
    return scene.clip(60, 190)


def _draw(clip: Video) -> Iterator[Frames]:
    rng = np.random.default_rng([clip.seed, 3])
    scene = _scene(clip)
    noise = rng.normal(0, _NOISE_SIGMA, (_FIELDS, *scene.shape)).astype(np.float32)
    objects = _objects(clip)
    rows, columns = np.mgrid[0 : clip.height, 0 : clip.width].astype(np.float32)
    for number in range(clip.count):
        light = 1 + _LIGHT * np.sin(2 * np.pi * number / _LIGHT_PERIOD)
        picture = scene * np.float32(light)
        for one in objects:
            if one.start <= number < one.end:
                _paint(picture, one, number, rows, columns)
        shift = (int(rng.integers(clip.height)), int(rng.integers(clip.width)))
        picture += np.roll(noise[rng.integers(_FIELDS)], shift, axis=(0, 1))
        yield picture.clip(0, 255).astype(np.uint8)


def _paint(
    picture: npt.NDArray[np.float32],
    one: _Object,
    number: int,
    rows: npt.NDArray[np.float32],
    columns: npt.NDArray[np.float32],
) -> None:
    """A rounded body with stripes that move with it."""
    x0, y0, x1, y1 = one.box(number)
    where = np.s_[max(0, int(y0)) : max(0, int(y1) + 1), max(0, int(x0)) : max(0, int(x1) + 1)]
    dx = (columns[where] - (x0 + x1 - 1) / 2) / (one.width / 2)
    dy = (rows[where] - (y0 + y1 - 1) / 2) / (one.height / 2)
    inside = dx**4 + dy**4 <= 1
    shade = 1 + 0.15 * np.sin(one.stripes * np.pi * (columns[where] - x0))
    picture[where][inside] = (one.colour * shade[..., None])[inside]
