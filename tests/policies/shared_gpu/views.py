"""Views of one GPU for tests: jobs that run and wait, at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hrm.policies.shared_gpu.heuristics import GpuSharingView, WaitingGpuJob
from hrm.policies.shared_gpu.interference import KnownPairs, PairFactors
from hrm.policies.shared_gpu.profiles import CapacityRule, GpuUseProfile, ProfileTable

__all__ = ["shared_gpu_view", "view_at_random"]


def shared_gpu_view(
    waiting: Sequence[GpuUseProfile],
    running: Sequence[tuple[GpuUseProfile, int]] = (),
    *,
    factors: PairFactors | None = None,
    kinds: Sequence[int] = (),
    rule: CapacityRule | None = None,
    together_max: int | None = None,
) -> GpuSharingView:
    """``kinds``: of what runs, then of what waits, in ``factors``."""
    rule = CapacityRule() if rule is None else rule
    pairs = None
    if factors is not None:
        pairs = KnownPairs(factors, kinds[: len(running)], kinds[len(running) :])
    return GpuSharingView(
        now=3,
        running=running,
        waiting=[WaitingGpuJob(key, one, 0) for key, one in enumerate(waiting)],
        fits=rule.fitting(running, ProfileTable(waiting)),
        rule=rule,
        pace=None if pairs is None else pairs.pace(),
        pairs=pairs,
        together_max=together_max,
    )


def view_at_random(
    rng: np.random.Generator, *, waiting: int, known: bool
) -> tuple[GpuSharingView, list[int]]:
    """Up to one job runs, ``waiting`` wait; and which profile each of these has."""
    pool = [_profile(rng) for _ in range(4)]
    numbers = rng.integers(len(pool), size=waiting).tolist()
    running = []
    if rng.random() < 0.7:
        one = int(rng.integers(len(pool)))
        running = [(one, int(rng.integers(len(pool[one]))))]
    factors = PairFactors(rng.uniform(0.4, 1.0, size=(4, 4))) if known else None
    view = shared_gpu_view(
        [pool[number] for number in numbers],
        [(pool[one], done) for one, done in running],
        factors=factors,
        kinds=[*(one for one, _ in running), *numbers],
    )
    return view, numbers


def _profile(rng: np.random.Generator) -> GpuUseProfile:
    ticks = int(rng.integers(1, 9))
    return GpuUseProfile(rng.uniform(0.05, 0.7) * rng.uniform(0.3, 1.0, size=(ticks, 4)))
