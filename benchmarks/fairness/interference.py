"""Slowdowns in place of the source's table of run times beside others, which was not published.

Of that table its means survive: how much longer each tenant's tasks run on each platform, over all
combinations (table 4). A task is slowed by the cores of its node that others use, by each as
strongly as its tenant presses, and its own tenant's sensitivity is fitted such that the mean is the
published one. The default pressures are chosen by hand; with a seed, they are drawn.

A model of one number per tenant and platform on either side: it has no pair that suffers more than
both their numbers say. ``measured`` has such pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from benchmarks.fairness.published import MEAN_PERCENT
from benchmarks.fairness.world import DEFAULT, Slowdowns
from hrm.core.vocabulary.columns import Floats
from hrm.policies.mapping import Mix

__all__ = ["Pressures", "drawn", "fitted"]

_BY_HAND = np.array(
    [
        [0.5, 0.5, 1.0, 1.0],
        [2.0, 1.0, 1.0, 1.0],
        [3.0, 0.5, 1.0, 0.5],
        [2.0, 6.0, 2.0, 2.0],
        [0.5, 0.5, 0.5, 0.5],
    ]
)
_LEAST, _MOST = 0.25, 6.0
_SIZES = (1, 2, 4)


@dataclass(frozen=True)
class Pressures:
    """``sensitivity`` and ``pressure`` by tenant and platform, ``node_cores`` by platform."""

    sensitivity: Floats
    pressure: Floats
    node_cores: tuple[int, ...]

    def slowdown(self, tenant: int, mix: Mix, platform: int) -> float:
        """See ``Slowdowns``."""
        cores = dict(mix.cores)
        felt = _felt(tenant, cores, self.pressure[:, platform], self.node_cores[platform])
        return 1.0 + float(self.sensitivity[tenant, platform]) * felt


def _felt(tenant: int, cores: Mapping[int, int], pressure: Floats, node_cores: int) -> float:
    """The mean pressure of a node's other cores; 0 where it has one core only."""
    others = sum(
        (count - (each == tenant)) * float(pressure[each]) for each, count in cores.items()
    )
    return others / max(node_cores - 1, 1)


def fitted(pressure: Floats) -> Pressures:
    """Sensitivities such that each mean is as published, over the combinations of all tenants."""
    node_cores = tuple(platform.node_cores for platform in DEFAULT.platforms)
    sensitivity = np.zeros(MEAN_PERCENT.shape)
    tenants = range(len(MEAN_PERCENT))
    for platform, cores in enumerate(node_cores):
        combinations = [
            each
            for size in _SIZES
            if cores % size == 0
            for each in itertools.combinations(tenants, size)
        ]
        for tenant in tenants:
            felt = [
                _felt(tenant, dict.fromkeys(each, cores // len(each)), pressure[:, platform], cores)
                for each in combinations
                if tenant in each
            ]
            mean = sum(felt) / len(felt)
            sensitivity[tenant, platform] = MEAN_PERCENT[tenant, platform] / 100 / mean
    return Pressures(sensitivity, pressure, node_cores)


def drawn(seed: int) -> Slowdowns:
    """0: the pressures chosen by hand; else drawn, evenly on a logarithmic scale."""
    if seed == 0:
        return fitted(_BY_HAND)
    random = Random(seed)
    low, high = np.log(_LEAST), np.log(_MOST)
    cells = [[random.uniform(low, high) for _ in row] for row in _BY_HAND]
    return fitted(np.exp(np.array(cells)))
