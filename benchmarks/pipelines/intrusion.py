"""Intrusion detection, six subtasks: which objects enter the zone, and when.

GMM background -> frame differencing -> Gaussian pyramid -> DoG pyramid -> scale-space extrema ->
tracking. Blobs of all scales are thinned out, followed by a Kalman filter each (constant velocity)
and matched to them, nearest first; a track that is inside the zone for a few frames is an
intruder. As in table 5, tracking has a CPU version only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.pipelines import scale_space
from benchmarks.pipelines.background import add_steps
from benchmarks.pipelines.frames import Video
from benchmarks.pipelines.scale_space import Blobs
from hrm.pipelines.client.definition import Pipeline

__all__ = ["ZONE", "Intrusions", "Path", "follow", "pipeline", "zone_of"]

Points = npt.NDArray[np.float32]

ZONE = (0.55, 0.35, 1.0, 1.0)
"""Left, top, right, bottom as shares of the picture."""
INSIDE_FRAMES = 4
REACH = 26.0
"""Pixels between a track's expected position and a blob that may be matched to it."""
MISSES_MAX = 8
CONFIRMED = 5
STRENGTH = 0.04
_MOVES, _SEES = 1.0, 9.0
"""Variances of the model's acceleration and of a blob's position."""


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The path of one moving object. ``points``: (n, 3): frame, x, y."""

    identity: int
    points: Points
    entered: int | None
    """The frame in which it had been inside the zone for ``INSIDE_FRAMES``."""


@dataclass(frozen=True, slots=True, eq=False)
class Intrusions:
    """All paths, in the order in which they began."""

    video: Video
    paths: tuple[Path, ...]

    @property
    def intruders(self) -> tuple[Path, ...]:
        return tuple(one for one in self.paths if one.entered is not None)

    def summary(self) -> dict[str, object]:
        entered = [one.entered for one in self.intruders]
        return {"paths": len(self.paths), "intruders": len(entered), "entered": entered}


def zone_of(width: int, height: int) -> tuple[float, float, float, float]:
    """The zone in pixels."""
    left, top, right, bottom = ZONE
    return left * width, top * height, right * width, bottom * height


@dataclass(slots=True)
class _Track:
    identity: int
    state: npt.NDArray[np.float64]
    """x, y and their speeds per frame."""
    spread: npt.NDArray[np.float64]
    points: list[tuple[int, float, float]] = field(default_factory=list)
    misses: int = 0

    def expect(self) -> None:
        step = np.eye(4)
        step[0, 2] = step[1, 3] = 1
        self.state = step @ self.state
        self.spread = step @ self.spread @ step.T + np.diag([0.25, 0.25, 1, 1]) * _MOVES

    def see(self, frame: int, x: float, y: float) -> None:
        sees = self.spread[:2, :2] + np.eye(2) * _SEES
        gain = self.spread[:, :2] @ np.linalg.inv(sees)
        self.state = self.state + gain @ (np.array([x, y]) - self.state[:2])
        self.spread = self.spread - gain @ self.spread[:2]
        self.points.append((frame, float(self.state[0]), float(self.state[1])))
        self.misses = 0


def follow(blobs: Blobs) -> Intrusions:
    """Tracks through the blobs of all frames."""
    alive: list[_Track] = []
    done: list[_Track] = []
    begun = 0
    bounds = np.searchsorted(blobs.found[:, 0], np.arange(blobs.frames + 1))
    for frame in range(blobs.frames):
        seen = _thinned(blobs.found[bounds[frame] : bounds[frame + 1]])
        for track in alive:
            track.expect()
        pairs = _match(alive, seen)
        for number, track in enumerate(alive):
            if number in pairs:
                track.see(frame, *seen[pairs[number]])
            else:
                track.misses += 1
        taken = set(pairs.values())
        for number, (x, y) in enumerate(seen):
            if number not in taken:
                start = np.array([x, y, 0.0, 0.0])
                track = _Track(begun, start, np.diag([9.0, 9.0, 16.0, 16.0]))
                track.points.append((frame, float(x), float(y)))
                alive.append(track)
                begun += 1
        done += [one for one in alive if one.misses > MISSES_MAX]
        alive = [one for one in alive if one.misses <= MISSES_MAX]
    kept = sorted((one for one in done + alive if len(one.points) >= CONFIRMED),
                  key=lambda one: one.identity)  # fmt: skip
    zone = zone_of(blobs.video.width, blobs.video.height)
    paths = []
    for number, track in enumerate(kept):
        points = np.asarray(track.points, np.float32)
        paths.append(Path(number, points, _entered(points, zone)))
    return Intrusions(blobs.video, tuple(paths))


def _thinned(found: Points) -> list[tuple[float, float]]:
    """Of overlapping blobs, the one of highest response. ``found`` is sorted by response."""
    kept: list[tuple[float, float, float]] = []
    for _, x, y, sigma, response in found.tolist():
        near = (np.hypot(x - a, y - b) < 1.6 * max(sigma, s) + 8 for a, b, s in kept)
        if response >= STRENGTH and not any(near):
            kept.append((x, y, sigma))
    return [(x, y) for x, y, _ in kept]


def _match(tracks: list[_Track], seen: list[tuple[float, float]]) -> dict[int, int]:
    if not tracks or not seen:
        return {}
    expected = np.array([one.state[:2] for one in tracks])
    distance = np.linalg.norm(expected[:, None] - np.asarray(seen)[None], axis=2)
    pairs: dict[int, int] = {}
    for flat in np.argsort(distance, axis=None, kind="stable"):
        track, blob = divmod(int(flat), len(seen))
        if distance[track, blob] > REACH:
            break
        if track not in pairs and blob not in pairs.values():
            pairs[track] = blob
    return pairs


def _entered(points: Points, zone: tuple[float, float, float, float]) -> int | None:
    left, top, right, bottom = zone
    inside = 0
    for frame, x, y in points.tolist():
        inside = inside + 1 if left <= x <= right and top <= y <= bottom else 0
        if inside == INSIDE_FRAMES:
            return int(frame)
    return None


pipeline = Pipeline("intrusion-detection")
_, _moving = add_steps(pipeline)
_pyramid = pipeline.subtask("gaussian-pyramid", kind="gaussian-pyramid", after=_moving)(
    scale_space.make_pyramid
).gpu(scale_space.make_pyramid_gpu)
_dogs = pipeline.subtask("dog-pyramid", kind="dog-pyramid", after=_pyramid)(
    scale_space.differences
).gpu(scale_space.differences_gpu)
_blobs = pipeline.subtask("scale-space-extrema", kind="scale-space-extrema", after=_dogs)(
    scale_space.find_blobs
).gpu(scale_space.find_blobs_gpu)
_tracked = pipeline.subtask("tracking", kind="tracking", after=_blobs)(follow)
