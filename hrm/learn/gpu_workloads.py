"""Generated applications and sets of jobs, to train policies for shared GPUs on.

An application is one of four shapes: constant use after loading, memory that grows, levels, or
waves; its length and levels are drawn. A set has two to eight applications from a range of GPU use
that is its own, so that it may be of light ones or of heavy ones only. How they slow each other
down is drawn for every set, too: nothing, by overload, or by pairs, the more the more the other
uses the GPU, with much chance. Of pairs, what is known of them is drawn, too: nothing, or all, off
by some.
Nothing here is measured, and no application has a name: what is trained here has seen none that it
will meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hrm.learn.shared_gpu import DrawJobs, GpuEpisode, SimulatedGpuJob
from hrm.policies.shared_gpu.interference import (
    AdditiveOverload,
    GpuInterference,
    NoInterference,
    PairFactors,
)
from hrm.policies.shared_gpu.profiles import GPU, GpuUseProfile

__all__ = ["WORLDS", "application", "draw_jobs", "drawn_pairs"]

WORLDS = ("none", "overload", "pairs")
KINDS_LEAST, KINDS_MOST = 2, 8
KNOWN = 0.6
"""The share of the sets with pairs in which their slowdowns are known."""
MEASURED = 0.03
"""How far off a known slowdown is, one standard deviation."""


def application(rng: np.random.Generator, least: float = 0.1, most: float = 0.95) -> GpuUseProfile:
    """A profile of 4 to 24 ticks that fits the card; its level of GPU use is between the two."""
    ticks = int(rng.integers(4, 25))
    at = np.arange(ticks)
    shape = int(rng.integers(4))
    gpu_level = float(rng.uniform(least, most))
    memory_level = float(np.clip(rng.normal(0.25 + 0.4 * gpu_level, 0.2), 0.03, 0.85))
    gpu = np.full(ticks, gpu_level)
    memory = np.full(ticks, memory_level)
    if shape == 1:
        memory = np.linspace(0.03, memory_level, ticks)
        gpu = np.where(at >= int(0.75 * ticks), min(1.0, 2.0 * gpu_level), 0.7 * gpu_level)
    elif shape == 2:
        steps = rng.uniform(0.3, 1.0, size=3)
        gpu = gpu_level * steps[at * 3 // ticks]
        memory = np.where(at < rng.uniform(0.0, 0.6) * ticks, 0.02, memory_level)
    elif shape == 3:
        gpu = gpu_level * (0.75 + 0.25 * np.sin(at * rng.uniform(0.5, 2.0)))
    core = gpu * rng.uniform(0.5, 0.95)
    pcie = np.full(ticks, rng.uniform(0.03, 0.45))
    uses = np.column_stack((gpu, memory, core, pcie))
    loading = int(rng.integers(0, 3)) if shape in (0, 3) else 0
    uses[:loading] = (0.05, min(0.1, memory_level), 0.05, min(1.0, 1.5 * float(pcie[0])))
    return GpuUseProfile(uses)


def drawn_pairs(
    profiles: Sequence[GpuUseProfile], rng: np.random.Generator
) -> tuple[PairFactors, PairFactors]:
    """Speeds of pairs that fall with the use of both, of the other's more, and by chance; and the
    same as measured."""
    use = np.array([one.mean[GPU] for one in profiles])
    own, other, always = rng.uniform(0.0, 0.4), rng.uniform(0.0, 0.6), rng.uniform(0.0, 0.4)
    chance = rng.normal(0.0, rng.uniform(0.0, 0.2), size=(len(use), len(use)))
    factors = 1.0 - own * use[:, None] - other * use[None, :] - always + chance
    true = np.clip(factors, 0.3, 1.0)
    measured = np.clip(true * rng.normal(1.0, MEASURED, size=true.shape), 0.2, 1.0)
    return PairFactors(true), PairFactors(measured)


def draw_jobs(
    *,
    jobs: tuple[int, int] = (8, 34),
    worlds: Sequence[str] = WORLDS,
    arriving: float = 0.2,
    known_share: float = KNOWN,
) -> DrawJobs:
    """Sets of ``jobs`` (least, most) jobs; a share ``arriving`` of the sets comes over time, and of
    those with pairs the slowdowns are known in ``known_share``."""

    def draw(seed: int) -> GpuEpisode:
        rng = np.random.default_rng([seed, 7])
        least = float(rng.uniform(0.1, 0.6))
        most = min(0.95, least + float(rng.uniform(0.1, 0.85)))
        count = int(rng.integers(KINDS_LEAST, KINDS_MOST + 1))
        pool = [application(rng, least, most) for _ in range(count)]
        count = int(rng.integers(jobs[0], jobs[1] + 1))
        kinds = rng.integers(len(pool), size=count)
        at = np.zeros(count)
        if rng.random() < arriving:
            mean = float(np.mean([len(one) for one in pool]))
            at = np.cumsum(rng.exponential(mean / rng.uniform(0.6, 1.2), size=count))
            at -= at[0]
        world: GpuInterference = NoInterference()
        known: PairFactors | None = None
        chosen = worlds[int(rng.integers(len(worlds)))]
        if chosen == "overload":
            world = AdditiveOverload()
        elif chosen == "pairs":
            world, known = drawn_pairs(pool, rng)
        drawn = [
            SimulatedGpuJob(f"kind-{kind}", int(kind), pool[kind], pool[kind], int(tick))
            for kind, tick in zip(kinds, at, strict=True)
        ]
        return GpuEpisode(drawn, world, known if rng.random() < known_share else None)

    return draw
