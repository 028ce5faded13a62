"""Worlds of jobs whose speeds were measured, alone on a GPU and in every pair on one.

26 kinds of training jobs (a model with a batch size) on two kinds of GPU, from the data that was
published with Gavel (Narayanan et al., OSDI 2020). A node is one GPU with two slots; two executors
on it, of one tenant or of two, run as fast as the pair was measured. Five kinds are drawn of those
all of whose pairs fit a GPU's memory. How long a task takes is drawn, too: kinds are measured in
iterations of their own, which cannot be compared.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.fairness.world import HOUR_S, Platform, World
from hrm.core.vocabulary.columns import Floats
from hrm.policies.mapping import Mix

__all__ = ["Pairs", "draw", "load"]

GPUS = ("k80", "p100")
NODES, SLOTS, TENANTS = 300, 2, 5
_SHORTEST_S, _LONGEST_S = 60.0, 600.0
_HOURS = 6.0
"""How long an equal division would take, alone on nodes; as the source's default."""


@dataclass(frozen=True)
class Pairs:
    """Iterations a second of ``kinds`` on each of ``GPUS``: ``alone[gpu, kind]``, and
    ``beside[gpu, kind, other]``, 0 where the two do not fit."""

    kinds: tuple[str, ...]
    alone: Floats
    beside: Floats


def load(directory: Path) -> Pairs:
    """Read ``simulation_throughputs.json.gz``, jobs of one GPU.

    Raises:
        FileNotFoundError: it is not in ``directory``.
    """
    with gzip.open(directory / "simulation_throughputs.json.gz", "rt") as file:
        found = json.load(file)
    names = [name for name in found[GPUS[0]] if name.endswith(", 1)")]
    kinds = [name for name in names if all(found[gpu][name]["null"] > 0 for gpu in GPUS)]
    alone = np.array([[found[gpu][name]["null"] for name in kinds] for gpu in GPUS])
    beside = np.array(
        [[[found[gpu][one][other][0] for other in kinds] for one in kinds] for gpu in GPUS]
    )
    return Pairs(tuple(name.split("'")[1] for name in kinds), alone, beside)


@dataclass(frozen=True)
class _Slowdowns:
    """``factors[platform, tenant, other]``, of a pair; below 1 is measured, too, and is kept."""

    factors: Floats

    def slowdown(self, tenant: int, mix: Mix, platform: int) -> float:
        """See ``Slowdowns``; a slot that is empty slows nothing down."""
        others = [each for each, count in mix.cores for _ in range(count)]
        others.remove(tenant)
        return float(self.factors[platform, tenant, others[0]]) if others else 1.0


def draw(pairs: Pairs, seed: int, *, equal_loads: bool) -> World:
    """Five kinds on both platforms. Their tasks are as many as an equal division would do in the
    same time, or (not ``equal_loads``) up to twice or half as many."""
    random = Random(f"measured {seed}")
    chosen = _compatible(pairs, random)
    run_s = np.empty((TENANTS, len(GPUS)))
    for row, kind in enumerate(chosen):
        lasts_s = _SHORTEST_S * (_LONGEST_S / _SHORTEST_S) ** random.random()
        speed = pairs.alone[:, kind]
        run_s[row] = lasts_s * speed.mean() / speed
    slots = NODES * SLOTS / TENANTS
    tasks = (slots * _HOURS * HOUR_S / run_s).sum(axis=1)
    if not equal_loads:
        tasks *= np.array([2.0 ** random.uniform(-1, 1) for _ in chosen])
    own = pairs.alone[:, chosen]
    beside = pairs.beside[:, chosen][:, :, chosen]
    return World(
        platforms=tuple(Platform(gpu, NODES, SLOTS) for gpu in GPUS),
        tenants=tuple(pairs.kinds[kind] for kind in chosen),
        tasks=tuple(tasks.tolist()),
        run_s=run_s,
        slowdowns=_Slowdowns(own[:, :, None] / beside),
    )


def _compatible(pairs: Pairs, random: Random) -> list[int]:
    """Kinds in random order, each that fits with itself and with those before it."""
    order = list(range(len(pairs.kinds)))
    random.shuffle(order)
    chosen: list[int] = []
    for kind in order:
        both = [*chosen, kind]
        if all((pairs.beside[:, kind, both] > 0).ravel()) and all(
            (pairs.beside[:, both, kind] > 0).ravel()
        ):
            chosen = both
        if len(chosen) == TENANTS:
            return chosen
    raise ValueError(f"only {len(chosen)} kinds of jobs fit a GPU with each other")
