"""Combinations of tenants on a node, and the step that all mappings share.

A combination of k tenants gives each of them a k-th of a node's cores; k is 1, 2 or 4, where that
divides the cores. A mapping chooses combinations one after the other, each for a number of nodes,
until no combination is *feasible*: until no tenant has cores left for its part of one. What is left
then, less than a node's worth of most tenants, is mixed at random on the remaining nodes.

Source: two-level fairness paper, section 3.3 and algorithm 3; when the loop ends is not defined
there ("all or nearly all"), and is exact here. Each step places a core at least, so it ends.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator

from hrm.errors import InvalidRequest

__all__ = ["LARGEST", "CoRunnerTimes", "Combination", "Mapping", "Mix", "Shares", "mixed"]

Combination = tuple[int, ...]
"""Tenants by number, in ascending order."""

LARGEST = 4
SIZES = (1, 2, 4)


@dataclass(frozen=True, slots=True, order=True)
class Mix:
    """What one node runs: cores of each tenant that has any, by tenant."""

    cores: tuple[tuple[int, int], ...]


Mapping = dict[Mix, int]
"""On how many nodes each mix runs."""


class CoRunnerTimes(Protocol):
    """Mean run times of tasks on one platform, in seconds."""

    def alone_s(self, tenant: int) -> float:
        """Of a task that has the node to itself."""
        ...

    def run_s(self, tenant: int, combination: Combination) -> float:
        """Of a task of ``tenant``, one of ``combination``, where every core of the node works."""
        ...


class Shares:
    """The cores that tenants still have to place on one platform, and what has been placed.

    Invariant: ``pool`` has all and only the combinations, of those considered, whose tenants all
    have cores left for their parts.
    """

    def __init__(self, cores: Sequence[int], node_cores: int, *, largest: int = LARGEST) -> None:
        """Raises:
        InvalidRequest: a negative number of cores, or a node without any.
        """
        if node_cores < 1 or any(count < 0 for count in cores):
            raise InvalidRequest(
                f"nodes of {node_cores} cores, tenants with {list(cores)}: a node has 1 or more, "
                "a tenant 0 or more"
            )
        self.left = list(cores)
        self.node_cores = node_cores
        self.placed: Counter[Mix] = Counter()
        tenants = [tenant for tenant, count in enumerate(cores) if count]
        self.pool: list[Combination] = [
            combination
            for size in SIZES
            if size <= largest and node_cores % size == 0
            for combination in itertools.combinations(tenants, size)
        ]
        self._shrink()

    def part(self, combination: Combination) -> int:
        """Cores of each tenant on a node."""
        return self.node_cores // len(combination)

    def nodes(self, combination: Combination) -> int:
        """On how many nodes it could run."""
        return min(self.left[tenant] for tenant in combination) // self.part(combination)

    def place(self, combination: Combination, nodes: int) -> None:
        part = self.part(combination)
        for tenant in combination:
            self.left[tenant] -= nodes * part
            assert self.left[tenant] >= 0, f"tenant {tenant} has placed more than its share"
        self.placed[Mix(tuple((tenant, part) for tenant in combination))] += nodes
        if any(self.left[tenant] < self.node_cores for tenant in combination):
            self._shrink()

    def live(self) -> list[int]:
        """Tenants of feasible combinations, in order."""
        return sorted({tenant for combination in self.pool for tenant in combination})

    def of(self, tenant: int) -> list[Combination]:
        """The feasible combinations with ``tenant``."""
        return [combination for combination in self.pool if tenant in combination]

    def mildest(self, tenant: int, times: CoRunnerTimes) -> Combination:
        """The feasible one in which its tasks run shortest; of those alike, with fewer tenants."""
        return min(self.of(tenant), key=lambda c: (times.run_s(tenant, c), len(c), c))

    def finish(self, random: Generator) -> Mapping:
        """Mix what is left over; nothing is left to place."""
        self.placed.update(mixed(self.left, self.node_cores, random))
        self.left = [0] * len(self.left)
        self.pool = []
        return dict(self.placed)

    def _shrink(self) -> None:
        self.pool = [combination for combination in self.pool if self.nodes(combination) > 0]


def mixed(cores: Sequence[int], node_cores: int, random: Generator) -> Counter[Mix]:
    """The cores of all tenants in random order, a node's worth at a time."""
    shuffled = random.permutation(np.repeat(np.arange(len(cores)), cores)).tolist()
    nodes = (shuffled[at : at + node_cores] for at in range(0, len(shuffled), node_cores))
    return Counter(Mix(tuple(sorted(Counter(node).items()))) for node in nodes)
