"""Heuristics for which waiting job starts now on a shared GPU, and what all such policies see.

A policy is asked again and again within one tick, and names one waiting job that fits, or waits.
All of them use the same believed profiles and the same capacity rule; the one that takes only one
job at a time is there as the reference without sharing.

Sources: SJF, Tetris, DeepRM's maximum and mean as DqnGPU (section 5) compares with; Tetris after
Grandl et al. (SIGCOMM 2014), whose score mixes alignment with the least remaining work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from hrm.policies.shared_gpu.interference import KnownPairs
from hrm.policies.shared_gpu.profiles import (
    MEMORY,
    Bits,
    CapacityRule,
    Floats,
    GpuUseProfile,
)

__all__ = [
    "BestFitOnMemory",
    "Exclusive",
    "FastestTogether",
    "GpuSharingPolicy",
    "GpuSharingView",
    "PackedByLength",
    "PackedInOrder",
    "RandomLegal",
    "TetrisPacking",
    "WaitingGpuJob",
]


class WaitingGpuJob(NamedTuple):
    """``key``: of the job, for whoever starts it. ``arrived``: tick."""

    key: int
    profile: GpuUseProfile
    arrived: int


@dataclass(frozen=True, slots=True)
class GpuSharingView:
    """One GPU at one moment.

    Attributes:
        running: believed profiles, and the whole ticks of work that each has done.
        waiting: in the order of arrival.
        fits: shape (waiting,): could start now, by ``rule``.
        pace: shape (waiting, 3), where slowdowns of pairs are known, else None: the speed that the
            job would have next to what runs, over its speed alone; by how much the sum of all
            speeds would grow; and the greatest sum of speeds in a pair with one that waits.
        pairs: the slowdowns that ``pace`` follows from.
        progress: ticks of work that each of ``running`` has done, with fractions of a tick, where
            they are known.
        together_max: how many jobs may run at once, whatever they use.
    """

    now: int
    running: Sequence[tuple[GpuUseProfile, int]]
    waiting: Sequence[WaitingGpuJob]
    fits: Bits
    rule: CapacityRule
    pace: Floats | None = None
    pairs: KnownPairs | None = None
    progress: Sequence[float] | None = None
    together_max: int | None = None


class GpuSharingPolicy(Protocol):
    """Chooses the next start on one GPU."""

    name: str

    def choose(self, view: GpuSharingView) -> int | None:
        """The place in ``view.waiting`` of a job that fits, or None to wait. On an idle GPU one
        that fits has to be chosen, if there is one."""


def _fitting(view: GpuSharingView) -> list[int]:
    """The places of those that fit, the oldest first."""
    places: list[int] = np.flatnonzero(view.fits).tolist()
    return places


class Exclusive:
    """SJF as published: one job at a time, the shortest first."""

    name = "sjf"

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        return None if view.running else PackedByLength().choose(view)


class PackedByLength:
    """The shortest of those that fit; ``longest``: the longest, which leaves short ones to fill
    the end of a backlog."""

    def __init__(self, *, longest: bool = False) -> None:
        self.name = "ljf-packed" if longest else "sjf-packed"
        self._sign = -1 if longest else 1

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        fitting = _fitting(view)
        if not fitting:
            return None
        return min(fitting, key=lambda n: (self._sign * len(view.waiting[n].profile), n))


class PackedInOrder:
    """FIFO with packing: the oldest of those that fit."""

    name = "fifo-packed"

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        return int(np.argmax(view.fits)) if view.fits.any() else None


class BestFitOnMemory:
    """The one that leaves the least memory free, by its peak."""

    name = "best-fit-memory"

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        fitting = _fitting(view)
        if not fitting:
            return None
        return max(fitting, key=lambda n: (view.waiting[n].profile.peak[MEMORY], -n))


class TetrisPacking:
    """The greatest alignment of a job's peak with what is free now, the sum of their products.

    Ties go to the shorter job, then the older one. ``remaining``: the weight of the least remaining
    work in the score, 0 as the DqnGPU paper has it, 1 as the original.
    """

    def __init__(self, remaining: float = 0.0) -> None:
        self.name = "tetris" if not remaining else "tetris-srtf"
        self._remaining = remaining

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        fitting = _fitting(view)
        if not fitting:
            return None
        free: Floats = np.asarray(view.rule.limits) - view.rule.used(view.running, 1)[0]
        profiles = [view.waiting[n].profile for n in fitting]
        scores = np.array([float(free @ one.peak) for one in profiles])
        if self._remaining:
            work = np.array([float(one.uses.sum()) for one in profiles])
            scores -= self._remaining * scores.mean() / work.mean() * work
        order = zip(scores.round(9), profiles, fitting, strict=True)
        return max(order, key=lambda each: (each[0], -len(each[1]), -each[2]))[2]


class FastestTogether:
    """The one that adds most to the sum of all speeds, where slowdowns of pairs are known; of equal
    ones the longest. It waits where none adds ``least``; where nothing is known, all add 1."""

    def __init__(self, least: float = 0.0) -> None:
        self.name = "fastest-together"
        self._least = least

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        fitting = _fitting(view)
        if not fitting:
            return None
        gains = self.gains(view)[fitting]
        lengths = [len(view.waiting[n].profile) for n in fitting]
        best = max(zip(gains, lengths, [-n for n in fitting], strict=True))
        if view.running and best[0] < self._least:
            return None
        return -best[2]

    @staticmethod
    def gains(view: GpuSharingView) -> Floats:
        """Shape (waiting,): what each adds; on an idle GPU, the greatest sum of speeds in a pair
        with one that waits."""
        if view.pace is None:
            return np.ones(len(view.waiting))
        found: Floats = view.pace[:, 1 if view.running else 2].round(9)
        return found


class RandomLegal:
    """Any legal action, waiting among them."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        actions: list[int | None] = [*_fitting(view)]
        if view.running or not actions:
            actions.append(None)
        return actions[int(self._rng.integers(len(actions)))]
