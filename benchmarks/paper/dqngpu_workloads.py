"""The DqnGPU paper's eleven applications and five workloads, and the pairs that were measured.

The paper prints no profiles, only facts about some (section 2.5 and figures 1 to 3): what is
printed is met here, the rest is chosen. Loading first, then nearly constant use, for the
convolutional networks; memory that grows to 8,499 MiB with a GPU full at the peak for LAMMPS; three
levels and no memory until 95 s for QMCPACK; three GROMACS together at 11,755 MiB. Lengths are
chosen to give the printed mean of 160 s for GPU_heavy and 76 s for GPU_light.

Interference is measured: pairs of training jobs on one P100 (or K80) that were published with Gavel
(``benchmarks.fairness.measured``). Which kind of job stands for which application is by rank: the
one that uses the GPU more gets the kind that slows others more, with some
chance in each set of jobs. Policies are trained on generated applications and generated pairs
(``hrm.learn.gpu_workloads``): nothing that is here is seen in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.fairness.measured import GPUS, Pairs
from hrm.learn.shared_gpu import SimulatedGpuJob
from hrm.policies.shared_gpu.interference import PairFactors
from hrm.policies.shared_gpu.profiles import GPU, MEMORY, Floats, GpuUseProfile

__all__ = [
    "APPLICATIONS",
    "JOBS",
    "POOLS",
    "TICK_S",
    "Kinds",
    "job_set",
    "kinds_of",
    "noisy",
    "rank_kinds",
]

TICK_S = 10.0
JOBS = 30
MIB = 12_288.0
RANK_NOISE = 0.1


def _loaded(
    ticks: int, loading: int, gpu: float, memory: float, core: float, pcie: float
) -> Floats:
    uses = np.tile((gpu, memory, core, pcie), (ticks, 1))
    uses[:loading] = (0.05, 0.1, 0.05, min(1.0, 1.5 * pcie))
    return uses


def _lammps() -> Floats:
    gpu = np.array([0.25] * 11 + [0.5, 0.8, 1.0, 1.0])
    memory = np.linspace(363.0, 8_499.0, len(gpu)) / MIB
    return np.column_stack((gpu, memory, 0.8 * gpu, np.full(len(gpu), 0.1)))


def _qmcpack() -> Floats:
    gpu = np.repeat((0.25, 0.5, 0.75), (6, 5, 6))
    memory = np.where(np.arange(len(gpu)) < 9, 0.02, 5_135.0 / MIB)
    return np.column_stack((gpu, memory, 0.9 * gpu, np.full(len(gpu), 0.05)))


APPLICATIONS: dict[str, GpuUseProfile] = {
    name: GpuUseProfile(uses)
    for name, uses in {
        "lammps": _lammps(),
        "gromacs": _loaded(9, 1, 0.30, 11_755.0 / 3 / MIB, 0.25, 0.08),
        "qmcpack": _qmcpack(),
        "hoomd": _loaded(11, 1, 0.55, 0.15, 0.50, 0.05),
        "googlenet": _loaded(8, 1, 0.45, 0.40, 0.30, 0.25),
        "alexnet": _loaded(6, 1, 0.38, 0.36, 0.22, 0.40),
        "vgg16": _loaded(18, 2, 0.92, 0.72, 0.80, 0.25),
        "vgg11": _loaded(13, 2, 0.82, 0.62, 0.70, 0.25),
        "resnet50": _loaded(14, 2, 0.80, 0.58, 0.60, 0.30),
        "resnet101": _loaded(18, 2, 0.86, 0.66, 0.68, 0.25),
        "resnet152": _loaded(22, 2, 0.90, 0.74, 0.72, 0.22),
    }.items()
}

_CONVOLUTIONAL = ("vgg11", "vgg16", "resnet50", "resnet101", "resnet152")
POOLS: dict[str, tuple[str, ...]] = {
    "GPU_heavy": (*_CONVOLUTIONAL, "qmcpack", "hoomd", "lammps"),
    "GPU_light": ("alexnet", "gromacs"),
    "memory_heavy": _CONVOLUTIONAL,
    "memory_light": ("alexnet", "googlenet", "qmcpack", "hoomd", "gromacs"),
    "random": tuple(APPLICATIONS),
}
"""Table 3. GPU_heavy: mean use of the GPU at least 40 %; memory_heavy: of memory at least 50 %."""

_LARGE = ("ResNet-50 (batch size 128)", "Transformer (batch size 256)")
"""Do not fit the card with some others: left out, for memory is in the profiles here."""


@dataclass(frozen=True)
class Kinds:
    """Measured factors of pairs: ``factors[kind, other]``, speed with the other over that alone.

    In the order of what they do to others, from the kind that slows them least.
    """

    names: tuple[str, ...]
    factors: Floats

    def world(self, rule: Literal["product", "min"] = "product") -> PairFactors:
        return PairFactors(self.factors, rule)


def kinds_of(pairs: Pairs, gpu: str = "p100") -> Kinds:
    """All kinds that fit the card with each other, by the slowdown that they cause."""
    held = [n for n, name in enumerate(pairs.kinds) if name not in _LARGE]
    row = GPUS.index(gpu)
    alone = pairs.alone[row, held]
    factors = pairs.beside[row][np.ix_(held, held)] / alone[:, None]
    known = factors > 0.0
    # On the smaller card some pairs did not fit; half speed, in turns, stands for them.
    factors = np.where(known, factors, 0.5)
    order = np.argsort(-factors.mean(axis=0), kind="stable")
    return Kinds(tuple(pairs.kinds[held[n]] for n in order), factors[np.ix_(order, order)])


def rank_kinds(
    profiles: Sequence[GpuUseProfile], kinds: int, rng: np.random.Generator
) -> list[int]:
    """A kind for each profile: greater mean use of the GPU, greater rank, over the whole list, but
    for chance: use does not determine what a job does to its neighbours."""
    uses = [one.mean[GPU] + rng.normal(0.0, RANK_NOISE) for one in profiles]
    order = np.argsort(uses, kind="stable")
    places = np.empty(len(profiles), dtype=int)
    places[order] = np.arange(len(profiles)) * kinds // len(profiles)
    return [int(place) for place in places]


def job_set(
    workload: str,
    seed: int,
    kinds: Kinds | None,
    *,
    jobs: int = JOBS,
    load: float | None = None,
    noise: bool = False,
) -> list[SimulatedGpuJob]:
    """``jobs`` drawn with replacement from the workload's pool.

    ``load``: arrivals of a Poisson process that brings this share of what one job at a time does;
    None: all are there at the start. ``noise``: believed profiles are not the true ones.
    """
    rng = np.random.default_rng([seed, list(POOLS).index(workload)])
    pool = POOLS[workload]
    of = dict.fromkeys(APPLICATIONS, 0)
    if kinds is not None:
        ranked = rank_kinds(list(APPLICATIONS.values()), len(kinds.names), rng)
        of = dict(zip(APPLICATIONS, ranked, strict=True))
    names = [pool[int(n)] for n in rng.integers(len(pool), size=jobs)]
    at = np.zeros(jobs)
    if load is not None:
        mean = float(np.mean([len(APPLICATIONS[name]) for name in pool]))
        at = np.cumsum(rng.exponential(mean / load, size=jobs))
        at -= at[0]
    found = []
    for name, arrives in zip(names, at, strict=True):
        profile = APPLICATIONS[name]
        believed = noisy(profile, rng) if noise else profile
        found.append(SimulatedGpuJob(name, of[name], profile, believed, int(arrives)))
    return found


def noisy(profile: GpuUseProfile, rng: np.random.Generator) -> GpuUseProfile:
    """Length and use off by up to a tenth, and a twentieth of the samples missing (each repeats the
    one before)."""
    ticks = max(1, round(len(profile) * rng.uniform(0.9, 1.1)))
    at = np.minimum((np.arange(ticks) + 0.5) * len(profile) / ticks, len(profile) - 1).astype(int)
    uses = profile.uses[at] * rng.uniform(0.9, 1.1, size=(1, 4))
    for tick in np.flatnonzero(rng.random(ticks) < 0.05):
        uses[tick] = uses[max(0, tick - 1)]
    uses[:, MEMORY] = np.minimum(uses[:, MEMORY], 1.0)
    return GpuUseProfile(uses)
