"""What a job uses of a GPU over its life, tick by tick, and how much of it a set of jobs may use.

A profile is a table of ticks and four resources (``RESOURCES``), each a share of the card, 0..1: of
time with a kernel, of memory, of cores at work, of the PCIe link. A sample is the *maximum* within
its tick, for a mean hides the peak at which memory runs out.

The capacity rule: in every tick from now on, what running jobs will use and what a candidate would
add stay within the limits. ``CapacityRule.aligned``, the paper's, lets all go on at full speed.
Jobs that share a GPU are slower, though, and one that was to end before another grows is then still
there. ``stretched``, the default, adds up the greatest memory that each of ``n`` jobs may have by
then at any speed from 1/n to 1: no order of events makes true profiles exceed it.

Source: DqnGPU (Oh and Kim, Cluster Computing 2020), equations 3 to 5. Printed, the rule compares
use times duration with capacity, which a job alone may fail; here it holds for each tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from hrm.errors import InvalidRequest

__all__ = [
    "CORE",
    "GPU",
    "MEMORY",
    "PCIE",
    "RESOURCES",
    "CapacityRule",
    "Floats",
    "GpuUseProfile",
    "MemoryRule",
    "ProfileTable",
    "constant",
    "images",
    "of_samples",
    "units",
]

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]
MemoryRule = Literal["aligned", "stretched"]

RESOURCES = ("gpu", "gpumem", "gpucore", "pcie")
GPU, MEMORY, CORE, PCIE = range(len(RESOURCES))
_EPSILON = 1e-9
_SOFT = [GPU, CORE, PCIE]
TICKS_MAX = 100_000


class GpuUseProfile:
    """The use of one job alone on a GPU. Profiles are compared by identity.

    Attributes:
        uses: shape (ticks, 4), shares of the card; not writable.
        peak, mean: shape (4,), over its life.
    """

    __slots__ = ("_envelopes", "mean", "peak", "uses")

    def __init__(self, uses: Floats | Sequence[Sequence[float]]) -> None:
        """Raises InvalidRequest: no ticks, another number of resources, or no finite shares."""
        held = np.array(uses, dtype=np.float64)
        if held.ndim != 2 or held.shape[1] != len(RESOURCES) or not 0 < len(held) <= TICKS_MAX:
            raise InvalidRequest(
                f"a GPU profile has the shape {held.shape}; it needs (ticks, {len(RESOURCES)}), "
                f"with 1 to {TICKS_MAX} ticks: record the job again, alone on a GPU"
            )
        if not np.isfinite(held).all() or (held < 0.0).any():
            raise InvalidRequest(
                "a GPU profile has a use that is negative or no number; record the job again, "
                "alone on a GPU"
            )
        held.setflags(write=False)
        self.uses: Floats = held
        self.peak: Floats = held.max(axis=0)
        self.mean: Floats = held.mean(axis=0)
        self._envelopes: dict[tuple[int, int], Floats] = {}

    def __len__(self) -> int:
        return len(self.uses)

    def envelope(self, since: int, stretch: int) -> Floats:
        """The most memory it may have in each tick from now on, at any speed from 1/``stretch`` to
        1, after ``since`` ticks of its work; shape ((ticks - since) * stretch,)."""
        held = self._envelopes.get((since, stretch))
        if held is None:
            left = self.uses[since:, MEMORY]
            last = len(left) - 1
            held = np.array(
                [left[t // stretch : min(t, last) + 1].max() for t in range(len(left) * stretch)]
            )
            self._envelopes[since, stretch] = held
        return held

    def envelopes(self, stretch: int) -> Floats:
        """``envelope`` after each of its ticks, shape (ticks, ticks * stretch), 0 beyond its end.

        In time and memory of ticks squared: for short profiles.
        """
        ticks = len(self)
        memory = np.where(np.tri(ticks, k=-1, dtype=np.bool_), -np.inf, self.uses[:, MEMORY])
        greatest = np.maximum.accumulate(memory, axis=1)  # [first, last]
        since = np.arange(ticks)[:, None]
        after = np.arange(ticks * stretch)
        first = np.minimum(since + after // stretch, ticks - 1)
        found: Floats = greatest[first, np.minimum(since + after, ticks - 1)]
        return np.where(after < (ticks - since) * stretch, found, 0.0)


def of_samples(
    at_s: Sequence[float], samples: Floats, capacity: Sequence[float], *, tick_s: float
) -> GpuUseProfile:
    """The profile of ``samples``, shape (n, 4), taken ``at_s`` seconds after the job's start.

    ``capacity`` are the card's totals in the units of the samples. A tick without a sample repeats
    the one before it.

    Raises:
        InvalidRequest: there are none, or they are not finite.
    """
    if not len(at_s) or samples.shape != (len(at_s), len(RESOURCES)):
        raise InvalidRequest(
            f"{len(at_s)} times and samples of the shape {samples.shape} are no GPU profile; it "
            f"needs (n, {len(RESOURCES)}): sample the job while it runs"
        )
    if not np.isfinite(at_s).all() or min(at_s) < 0.0 or max(at_s) >= TICKS_MAX * tick_s:
        raise InvalidRequest(
            f"a GPU sample was taken before the job's start, or after {TICKS_MAX} ticks of "
            f"{tick_s:g} s; check the clock of the node"
        )
    ticks = np.floor(np.asarray(at_s) / tick_s).astype(int)
    uses = np.full((int(ticks.max()) + 1, len(RESOURCES)), -np.inf)
    np.maximum.at(uses, ticks, samples / np.asarray(capacity, dtype=np.float64))
    sampled = np.flatnonzero(np.isfinite(uses).any(axis=1))
    before = np.searchsorted(sampled, np.arange(len(uses)), side="right") - 1
    return GpuUseProfile(uses[sampled[np.maximum(before, 0)]])


def constant(profile: GpuUseProfile, how: Literal["max", "mean"], width: int = 0) -> GpuUseProfile:
    """The same length at its maximum or mean use throughout: what DeepRM sees of a job.

    ``width``: units of a resource to which a mean is rounded up; 0: not rounded.
    """
    level = profile.peak if how == "max" else profile.mean
    if how == "mean" and width:
        level = np.ceil(level * width - _EPSILON) / width
    return GpuUseProfile(np.tile(level, (len(profile), 1)))


def units(uses: Floats, width: int) -> npt.NDArray[np.int64]:
    """Shares as whole units of ``width``, rounded up."""
    return np.ceil(np.asarray(uses) * width - _EPSILON).astype(np.int64)


def images(uses: Floats, horizon: int, width: int) -> Bits:
    """Shape (4, horizon, width): each resource's units over time, filled from the left.

    Ticks beyond the horizon are left out, and units beyond the width.
    """
    filled = np.zeros((horizon, len(RESOURCES)), dtype=np.int64)
    filled[: len(uses)] = units(uses[:horizon], width)
    drawn: Bits = np.arange(width) < filled.T[:, :, None]
    return drawn


@dataclass(frozen=True, slots=True)
class CapacityRule:
    """Limits of each resource, shares of the card.

    Memory is hard: beyond it a job fails. The others slow jobs down beyond 1; greater limits than
    that allow it.
    """

    limits: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    memory: MemoryRule = "stretched"

    def used(self, running: Sequence[tuple[GpuUseProfile, int]], ticks: int) -> Floats:
        """Shape (ticks, 4): what ``running`` (profile, ticks of work done) will use, if all go on
        at full speed."""
        total = np.zeros((ticks, len(RESOURCES)))
        for profile, done in running:
            left = profile.uses[done : done + ticks]
            total[: len(left)] += left
        return total

    def fitting(
        self, running: Sequence[tuple[GpuUseProfile, int]], candidates: ProfileTable
    ) -> Bits:
        """Shape (candidates,): which could start now, each by itself, next to ``running``."""
        if not running:
            return candidates.peaks <= 1.0 + _EPSILON
        at_once = np.asarray(self.limits) + _EPSILON
        for profile, done in running:
            at_once = at_once - profile.uses[done]
        begin: Bits = np.logical_and.reduce(candidates.uses[:, :, 0] <= at_once, axis=1)
        if not begin.any():
            return begin
        spare = np.asarray(self.limits) + _EPSILON - self.used(running, candidates.longest)
        if self.memory == "aligned":
            fits: Bits = np.logical_and.reduce(candidates.uses <= spare.T, axis=(1, 2))
            return fits
        soft = candidates.uses[:, _SOFT] <= spare.T[_SOFT]
        fits = np.logical_and.reduce(soft, axis=(1, 2))
        if not fits.any():
            return fits
        # All that run are tested again, too: with one more they may be slower than was tested.
        stretch = len(running) + 1
        own = candidates.envelopes(stretch)
        held = [profile.envelope(done, stretch) for profile, done in running]
        free = np.full(max(own.shape[1], *map(len, held)), self.limits[MEMORY] + _EPSILON)
        for each in held:
            free[: len(each)] -= each
        if free.min() < 0.0:
            return np.zeros(len(fits), dtype=np.bool_)
        fits &= (own <= free[: own.shape[1]]).all(axis=1)
        return fits

    def fitting_over_life(self, running: GpuUseProfile, candidates: ProfileTable) -> Bits:
        """Shape (ticks, candidates): ``fitting`` next to ``running`` alone, after each of its
        ticks. For short profiles."""
        ticks, longest = len(running), candidates.longest
        beyond = np.zeros((longest, len(RESOURCES)))
        ahead = sliding_window_view(np.concatenate((running.uses, beyond)), longest, axis=0)
        spare = np.asarray(self.limits)[:, None] + _EPSILON - ahead[:ticks]
        within = candidates.uses <= spare[:, None]
        if self.memory == "aligned":
            aligned: Bits = np.logical_and.reduce(within, axis=(2, 3))
            return aligned
        soft: Bits = np.logical_and.reduce(within[:, :, _SOFT], axis=(2, 3))
        soft &= within[:, :, MEMORY, 0]
        own, held = candidates.envelopes(2), running.envelopes(2)
        free = np.full((ticks, max(own.shape[1], held.shape[1])), self.limits[MEMORY] + _EPSILON)
        free[:, : held.shape[1]] -= held
        soft &= (free.min(axis=1) >= 0.0)[:, None]
        soft &= (own <= free[:, None, : own.shape[1]]).all(axis=2)
        return soft


class ProfileTable:
    """Profiles as arrays, to test all of them at once against a ``CapacityRule``.

    Attributes:
        uses: shape (profiles, 4, longest), -inf beyond a profile's end, where everything fits.
        peaks: shape (profiles,), of memory. A job alone on a GPU exceeds nothing else.
    """

    def __init__(self, profiles: Sequence[GpuUseProfile]) -> None:
        self.profiles = tuple(profiles)
        self.longest = max((len(one) for one in profiles), default=0)
        self.uses: Floats = np.full((len(profiles), len(RESOURCES), self.longest), -np.inf)
        for row, one in zip(self.uses, profiles, strict=True):
            row[:, : len(one)] = one.uses.T
        self.peaks: Floats = np.array([one.peak[MEMORY] for one in profiles])
        self._envelopes: dict[int, Floats] = {}

    def envelopes(self, stretch: int) -> Floats:
        """``GpuUseProfile.envelope`` from the start of each, shape (profiles, longest * stretch),
        -inf beyond its end."""
        held = self._envelopes.get(stretch)
        if held is None:
            held = np.full((len(self.profiles), self.longest * stretch), -np.inf)
            for row, one in zip(held, self.profiles, strict=True):
                row[: len(one) * stretch] = one.envelope(0, stretch)
            self._envelopes[stretch] = held
        return held
