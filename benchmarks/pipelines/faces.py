"""Face recognition, seven subtasks: which people of the gallery are on the query photographs.

load image file -> face locations -> batch face locations -> face landmarks -> face encodings ->
face distance -> compare faces. As in table 5, loading and face locations have a CPU version only
(OpenCV's Haar cascade, on the query photographs), batch face locations a GPU version only (a small
template model by convolution, on the whole gallery at once); the others have both.

Landmarks are centres of darkness in windows around eyes, nose and mouth; an encoding is the low
frequencies of the evenly lit patch of the face, turned and scaled so that the eyes are in place.
All of it is of the same kind as the original and none of it was trained on real faces: it
distinguishes drawn faces, and performs poorly on photographs of people.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.pipelines import devices
from benchmarks.pipelines.portraits import (
    BOX,
    HEIGHT,
    PROBE_EVERY,
    WIDTH,
    Album,
    album,
    draw_face,
    identity,
)
from hrm.errors import InvalidConfig
from hrm.pipelines.client.definition import Pipeline

__all__ = ["Crops", "Encodings", "Matches", "Photos", "compare", "pipeline"]

Grey = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

CROP = 96
PATCH = 64
FREQUENCIES = 16
SIZE = 128
"""Numbers in an encoding."""
EYES = ((19.0, 24.0), (45.0, 24.0))
"""The positions of the eyes in a patch, x and y."""
TOLERANCE = 0.55
"""Maximum distance between two encodings of one person."""
WINDOWS = ((0.29, 0.37), (0.71, 0.37), (0.5, 0.55), (0.5, 0.75))
"""Left eye, right eye, nose, mouth: centres of the windows as shares of the crop."""
REACH = (0.13, 0.13, 0.10, 0.12)
TEMPLATE = 24
TEMPLATE_FACES = 48
DETECTED = 0.6
"""Minimum correlation with the template."""


@dataclass(frozen=True, slots=True, eq=False)
class Photos:
    """``grey``: (photographs, 480, 640). ``boxes`` of those in ``asks``, x0, y0, x1, y1, each."""

    album: Album
    grey: Grey
    asks: npt.NDArray[np.bool_]
    boxes: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Crops:
    """One face per row. ``photo``: its photograph; ``crops``: (faces, 96, 96) grey levels."""

    album: Album
    photo: npt.NDArray[np.int64]
    asks: npt.NDArray[np.bool_]
    boxes: Floats
    crops: Grey
    landmarks: Floats | None = None
    """(faces, 4, 2): x, y of left eye, right eye, nose, mouth in the crop."""


@dataclass(frozen=True, slots=True, eq=False)
class Encodings:
    """``known`` (n, 128) of the gallery and ``unknown`` (m, 128), with their photographs."""

    known: Floats
    known_photo: npt.NDArray[np.int64]
    unknown: Floats
    unknown_photo: npt.NDArray[np.int64]
    distance: Floats | None = None
    """(m, n), Euclidean."""


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """``same``: (m, n), within ``TOLERANCE``; ``best``: (m,) nearest of the gallery or -1.

    Both by rows of the distances; the photographs are in ``asked`` and ``gallery``.
    """

    same: npt.NDArray[np.bool_]
    best: npt.NDArray[np.int64]
    asked: npt.NDArray[np.int64]
    gallery: npt.NDArray[np.int64]

    def summary(self) -> dict[str, object]:
        known = int((self.best >= 0).sum())
        return {"asked": len(self.asked), "gallery": len(self.gallery), "recognised": known}


def load_image_files(value: Any) -> Photos:
    """Read, decode and fit every photograph of an album into 640 x 480 grey levels."""
    devices.one_thread()
    source = album(value)
    files = source.files()
    grey = np.zeros((len(files), HEIGHT, WIDTH), np.uint8)
    for number, path in enumerate(files):
        grey[number] = _fitted(path)
    asks = np.arange(len(files)) % PROBE_EVERY == 0
    return Photos(source, grey, asks)


def _fitted(path: Path) -> Grey:
    image = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise InvalidConfig(f"{path} is no image that OpenCV can read; take it out of the album")
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    share = min(WIDTH / grey.shape[1], HEIGHT / grey.shape[0])
    if share != 1:
        size = (max(1, int(grey.shape[1] * share)), max(1, int(grey.shape[0] * share)))
        grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
    out = np.zeros((HEIGHT, WIDTH), np.uint8)
    out[: grey.shape[0], : grey.shape[1]] = grey[:HEIGHT, :WIDTH]
    return out


@cache
def _cascade() -> cv2.CascadeClassifier:
    path = Path(cv2.__file__).parent / "data" / "haarcascade_frontalface_alt2.xml"
    return cv2.CascadeClassifier(str(path))


def face_locations(photos: Photos) -> Photos:
    """The largest face on every query photograph, by the Haar cascade; zeros: none."""
    devices.one_thread()
    asking = photos.grey[photos.asks]
    boxes = np.zeros((len(asking), 4), np.float32)
    for number, image in enumerate(asking):
        found = np.asarray(_cascade().detectMultiScale(image, 1.1, 3, minSize=(60, 60)))
        if len(found):
            x, y, w, h = max(found.tolist(), key=lambda one: one[2] * one[3])
            boxes[number] = x, y, x + w, y + h
    return replace(photos, boxes=boxes)


def batch_face_locations(photos: Photos) -> Crops:
    """The best face on every photograph of the gallery, on the GPU; then all faces cropped."""
    from benchmarks.pipelines import torch_faces

    assert photos.boxes is not None
    gallery = torch_faces.locate(photos.grey[~photos.asks], template(), DETECTED)
    boxes = np.zeros((len(photos.grey), 4), np.float32)
    boxes[photos.asks] = photos.boxes
    boxes[~photos.asks] = gallery
    photo = np.flatnonzero(boxes[:, 2] > boxes[:, 0])
    crops = np.asarray([_crop(photos.grey[one], boxes[one]) for one in photo], np.uint8)
    crops = crops.reshape(-1, CROP, CROP)
    return Crops(photos.album, photo, photos.asks[photo], boxes[photo], crops)


def _crop(image: Grey, box: Floats) -> Grey:
    scale = CROP / float(box[2] - box[0])
    move = np.array([[scale, 0, -box[0] * scale], [0, scale, -box[1] * scale]], np.float32)
    flags = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return np.asarray(
        cv2.warpAffine(image, move, (CROP, CROP), flags=flags, borderMode=cv2.BORDER_REPLICATE),
        np.uint8,
    )


@cache
def template() -> Floats:
    """(24, 24): the mean of drawn faces, with mean 0 and length 1. The detector's whole model."""
    total = np.zeros((TEMPLATE, TEMPLATE), np.float32)
    for person in range(TEMPLATE_FACES):
        face, opacity = draw_face(identity(person, seed=1_000_003), 200, (0.0, 0.0))
        face = face * opacity + 115 * (1 - opacity)
        left, top, right, bottom = (int(share * 200) for share in BOX)
        inner = cv2.resize(face[top:bottom, left:right], (TEMPLATE, TEMPLATE),
                           interpolation=cv2.INTER_AREA)  # fmt: skip
        total += (inner - inner.mean()) / inner.std()
    total -= total.mean()
    return np.asarray(total / np.linalg.norm(total), np.float32)


@cache
def windows() -> Floats:
    """(4, 96, 96): how much each pixel counts for each landmark."""
    rows, columns = (np.mgrid[0:CROP, 0:CROP].astype(np.float32) + 0.5) / CROP
    return np.asarray(
        [
            np.exp(-(((columns - x) / reach) ** 4 + ((rows - y) / reach) ** 4))
            for (x, y), reach in zip(WINDOWS, REACH, strict=True)
        ],
        np.float32,
    )


def face_landmarks(crops: Crops) -> Crops:
    """Centres of darkness: a pixel is weighted by how much darker than its window's mean it is."""
    devices.one_thread()
    rows, columns = np.mgrid[0:CROP, 0:CROP].astype(np.float32)
    weights = windows()
    marks = np.zeros((len(crops.crops), len(WINDOWS), 2), np.float32)
    for number, crop in enumerate(crops.crops):
        smooth = cv2.blur(crop.astype(np.float32), (5, 5), borderType=cv2.BORDER_REFLECT_101)
        for mark, weight in enumerate(weights):
            mean = (smooth * weight).sum() / weight.sum()
            dark = np.maximum(mean - smooth, 0) ** 2 * weight
            total = dark.sum() + 1e-6
            marks[number, mark] = (dark * columns).sum() / total, (dark * rows).sum() / total
    return replace(crops, landmarks=marks)


def face_landmarks_gpu(crops: Crops) -> Crops:
    """As ``face_landmarks``."""
    from benchmarks.pipelines import torch_faces

    return replace(crops, landmarks=torch_faces.landmarks(crops.crops, windows()))


@cache
def basis() -> Floats:
    """(4096, 128): low frequencies of a patch (cosines), without its mean."""
    line = np.arange(PATCH) + 0.5
    waves = np.cos(np.pi * np.arange(FREQUENCIES)[:, None] * line / PATCH)
    waves /= np.linalg.norm(waves, axis=1, keepdims=True)
    pairs = sorted(
        ((a, b) for a in range(FREQUENCIES) for b in range(FREQUENCIES)),
        key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair),
    )[3 : 3 + SIZE]
    return np.asarray([np.outer(waves[a], waves[b]).ravel() for a, b in pairs], np.float32).T


def alignment(landmarks: Floats) -> Floats:
    """(faces, 2, 3): from a patch's x, y, 1 to the crop's x, y, by the two eyes."""
    eyes = landmarks[:, :2].astype(np.float64)
    (left_x, left_y), (right_x, _) = EYES
    along = (eyes[:, 1] - eyes[:, 0]) / (right_x - left_x)
    turn = np.stack([along, np.stack([-along[:, 1], along[:, 0]], 1)], 2)
    start = eyes[:, 0] - turn @ np.array([left_x, left_y])
    return np.concatenate([turn, start[:, :, None]], 2).astype(np.float32)


def face_encodings(crops: Crops) -> Encodings:
    """128 numbers per face, of length 1."""
    devices.one_thread()
    assert crops.landmarks is not None
    patches = np.empty((len(crops.crops), PATCH, PATCH), np.float32)
    for number, move in enumerate(alignment(crops.landmarks)):
        patches[number] = cv2.warpAffine(
            crops.crops[number].astype(np.float32), move, (PATCH, PATCH),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE,
        )  # fmt: skip
    flat = patches.reshape(len(patches), PATCH * PATCH)
    flat = (flat - flat.mean(1, keepdims=True)) / (flat.std(1, keepdims=True) + 1e-3)
    codes = flat @ basis()
    codes /= np.linalg.norm(codes, axis=1, keepdims=True) + 1e-6
    return _encodings(crops, codes)


def face_encodings_gpu(crops: Crops) -> Encodings:
    """As ``face_encodings``."""
    from benchmarks.pipelines import torch_faces

    assert crops.landmarks is not None
    codes = torch_faces.encode(crops.crops, alignment(crops.landmarks), basis(), PATCH)
    return _encodings(crops, codes)


def _encodings(crops: Crops, codes: Floats) -> Encodings:
    codes = np.asarray(codes, np.float32)
    asks = crops.asks
    return Encodings(codes[~asks], crops.photo[~asks], codes[asks], crops.photo[asks])


def face_distance(codes: Encodings) -> Encodings:
    """Euclidean distance of every unknown face to every known one."""
    devices.one_thread()
    difference = codes.unknown[:, None, :] - codes.known[None, :, :]
    distance = np.sqrt((difference * difference).sum(2))
    return replace(codes, distance=np.asarray(distance, np.float32))


def face_distance_gpu(codes: Encodings) -> Encodings:
    """As ``face_distance``."""
    from benchmarks.pipelines import torch_faces

    return replace(codes, distance=torch_faces.distance(codes.unknown, codes.known))


def compare(codes: Encodings) -> Matches:
    """Which faces are of the same person, and the nearest of the gallery for every query face."""
    assert codes.distance is not None
    same = codes.distance <= TOLERANCE
    nearest = codes.distance.argmin(1) if same.size else np.zeros(len(same), np.int64)
    best = np.where(same.any(1), nearest, -1)
    return Matches(same, np.asarray(best, np.int64), codes.unknown_photo, codes.known_photo)


def compare_gpu(codes: Encodings) -> Matches:
    """As ``compare``."""
    from benchmarks.pipelines import torch_faces

    assert codes.distance is not None
    same, best = torch_faces.nearest(codes.distance, TOLERANCE)
    return Matches(same, best, codes.unknown_photo, codes.known_photo)


pipeline = Pipeline("face-recognition")
_loaded = pipeline.subtask("load-image-file", kind="load-image-file")(load_image_files)
_located = pipeline.subtask("face-locations", kind="face-locations", after=_loaded)(face_locations)
_batch = pipeline.subtask(
    "batch-face-locations", kind="batch-face-locations", after=_located, gpu_only=True
)(batch_face_locations)
_marked = pipeline.subtask("face-landmarks", kind="face-landmarks", after=_batch)(
    face_landmarks
).gpu(face_landmarks_gpu)
_encoded = pipeline.subtask("face-encodings", kind="face-encodings", after=_marked)(
    face_encodings
).gpu(face_encodings_gpu)
_apart = pipeline.subtask("face-distance", kind="face-distance", after=_encoded)(face_distance).gpu(
    face_distance_gpu
)
_compared = pipeline.subtask("compare-faces", kind="compare-faces", after=_apart)(compare).gpu(
    compare_gpu
)
