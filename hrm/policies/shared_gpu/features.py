"""What the set network sees: a row for each kind of waiting job, and one for the GPU.

Jobs with the same believed profile are alike, so they share a row, which stands for the oldest of
them and counts the others. All numbers follow from profiles, from what runs, and from slowdowns of
pairs, where they are known; durations are counted in tens of ticks. The order of rows means nothing
to the network.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hrm.policies.shared_gpu.heuristics import GpuSharingView
from hrm.policies.shared_gpu.profiles import RESOURCES, Bits, Floats, GpuUseProfile

__all__ = ["GPU_FIELDS", "JOB_FIELDS", "ROWS_MAX", "SHARING_SCHEMA", "SharingState", "observe"]

Singles = npt.NDArray[np.float32]

ROWS_MAX = 64
"""Rows of a state: of more kinds of jobs the oldest, those that fit first."""
SEGMENTS = 8
WINDOW = 16
"""Ticks ahead that the GPU's row shows, two to a segment."""
_TEN = 10.0
_TICKS_SHOWN = 40.0
_FULL_SPEED = (1.0, 1.0, 2.0)
"""Of a pair, where slowdowns are not known."""

JOB_FIELDS = (
    *(f"{name}_{segment}" for segment in range(SEGMENTS) for name in RESOURCES),
    *(f"{name}_mean" for name in RESOURCES),
    "length", "length_share", "alike", "alike_share", "work_share", "waited",
    *(f"{name}_together" for name in RESOURCES),
    "alignment", "outlasts", "speed", "speed_gain", "speed_paired",
)  # fmt: skip
GPU_FIELDS = (
    *(f"{name}_free_{segment}" for segment in range(SEGMENTS) for name in RESOURCES),
    "running", "longest_left", "shortest_left", "waiting", "time_waiting", "kinds_waiting",
    *(f"{name}_wanted" for name in RESOURCES),
)  # fmt: skip
SHARING_SCHEMA = hashlib.sha256(
    repr((JOB_FIELDS, GPU_FIELDS, SEGMENTS, WINDOW, ROWS_MAX)).encode()
).hexdigest()[:16]


class SharingState(NamedTuple):
    """One decision.

    Attributes:
        jobs: shape (rows, ``JOB_FIELDS``), float32.
        gpu: shape (``GPU_FIELDS``,), float32.
        mask: shape (rows + 1,): what may be chosen; action 0 is to wait, 1 the first row.
        places: shape (rows,): the place in the view's ``waiting`` that a row stands for.
    """

    jobs: Singles
    gpu: Singles
    mask: Bits
    places: npt.NDArray[np.int64]


class _Shape(NamedTuple):
    """What does not change of a profile: its fields ``gpu_0`` to ``pcie_mean``, and totals."""

    fields: Floats
    ticks: int
    work: Floats


def observe(view: GpuSharingView) -> SharingState:
    """The state of ``view``; at least one job must be waiting."""
    places, counts = _rows(view)
    shapes = [_shape(view.waiting[place].profile) for place in places]
    ticks = np.array([shape.ticks for shape in shapes], dtype=np.float64)
    times = ticks * counts
    used = view.rule.used(view.running, WINDOW)
    limits = np.asarray(view.rule.limits)
    free = np.maximum(limits - used, -1.0)
    left = [len(profile) - done for profile, done in view.running] or [0]
    jobs = np.empty((len(places), len(JOB_FIELDS)), dtype=np.float32)
    still = (SEGMENTS + 1) * len(RESOURCES)
    total = max(float(times.sum()), 1.0)
    peaks = np.empty((len(places), len(RESOURCES)))
    for row, (place, shape) in enumerate(zip(places, shapes, strict=True)):
        jobs[row, :still] = shape.fields
        own = view.waiting[place].profile.uses[:WINDOW]
        jobs[row, still + 6 : still + 10] = (used[: len(own)] + own).max(axis=0)
        peaks[row] = view.waiting[place].profile.peak
    waited = view.now - np.array([view.waiting[place].arrived for place in places])
    jobs[:, still] = ticks / _TEN
    jobs[:, still + 1] = ticks / ticks.max()
    jobs[:, still + 2] = np.minimum(counts, _TEN) / _TEN
    jobs[:, still + 3] = counts / counts.sum()
    jobs[:, still + 4] = times / total
    jobs[:, still + 5] = np.minimum(waited / ticks, _TICKS_SHOWN) / _TICKS_SHOWN
    jobs[:, still + 10] = peaks @ free[0]
    jobs[:, still + 11] = np.clip((ticks - max(left)) / _TEN, -4.0, 4.0)
    jobs[:, still + 12 : still + 15] = _FULL_SPEED if view.pace is None else view.pace[places]
    wanted = sum((s.work * n for s, n in zip(shapes, counts, strict=True)), np.zeros(4)) / total
    gpu = np.concatenate((
        free.reshape(SEGMENTS, -1, len(RESOURCES)).min(axis=1).ravel(),
        (len(view.running) / 4.0, max(left) / _TEN, min(left) / _TEN,
         min(int(counts.sum()), ROWS_MAX) / _TICKS_SHOWN, min(total, 1000.0) / 400.0,
         len(places) / _TEN),
        wanted,
    )).astype(np.float32)  # fmt: skip
    fits = view.fits[places]
    idle = not view.running and bool(fits.any())
    mask: Bits = np.concatenate(([not idle], fits))
    return SharingState(jobs, gpu, mask, places)


def _rows(view: GpuSharingView) -> tuple[npt.NDArray[np.int64], Floats]:
    """The oldest place of each profile, and how many jobs have it."""
    first: dict[int, int] = {}
    counts: dict[int, int] = {}
    for place, one in enumerate(view.waiting):
        key = id(one.profile)
        first.setdefault(key, place)
        counts[key] = counts.get(key, 0) + 1
    if len(first) > ROWS_MAX:
        chosen = sorted(first, key=lambda key: (not view.fits[first[key]], first[key]))[:ROWS_MAX]
        first = {key: first[key] for key in chosen}
    places = np.array(list(first.values()), dtype=np.int64)
    return places, np.array([float(counts[key]) for key in first])


_SHAPES: dict[int, tuple[GpuUseProfile, _Shape]] = {}
_SHAPES_MAX = 4_096


def _shape(profile: GpuUseProfile) -> _Shape:
    """Of a profile that was seen lately, from memory: thousands of decisions see the same ones."""
    held = _SHAPES.get(id(profile))
    if held is not None and held[0] is profile:
        return held[1]
    edges = np.linspace(0, len(profile), SEGMENTS + 1)
    segments = [
        profile.uses[int(a) : max(int(np.ceil(b)), int(a) + 1)].max(axis=0)
        for a, b in itertools.pairwise(edges)
    ]
    fields = np.concatenate((*segments, profile.mean))
    shape = _Shape(fields, len(profile), profile.uses.sum(axis=0))
    if len(_SHAPES) >= _SHAPES_MAX:
        _SHAPES.clear()
    _SHAPES[id(profile)] = (profile, shape)
    return shape
