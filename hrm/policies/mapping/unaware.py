"""Mappings that know nothing of co-runners: baselines.

Source: two-level fairness paper, section 5 (AllCore, Random).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from hrm.policies.mapping.combinations import LARGEST, CoRunnerTimes, Mapping, Shares

__all__ = ["OneTenantPerNode", "RandomCombinations"]


@dataclass(frozen=True)
class OneTenantPerNode:
    """Whole nodes for each tenant; only what is left over is mixed."""

    @property
    def name(self) -> str:
        return "one-tenant-per-node"

    def map(
        self, cores: Sequence[int], node_cores: int, times: CoRunnerTimes, random: Generator
    ) -> Mapping:
        """Nodes by mix; ``random`` mixes what is left over."""
        del times
        shares = Shares(cores, node_cores, largest=1)
        for combination in list(shares.pool):
            shares.place(combination, shares.nodes(combination))
        return shares.finish(random)


@dataclass(frozen=True)
class RandomCombinations:
    """On each node a feasible combination, each as likely as any other."""

    largest: int = LARGEST

    @property
    def name(self) -> str:
        return "random-combinations"

    def map(
        self, cores: Sequence[int], node_cores: int, times: CoRunnerTimes, random: Generator
    ) -> Mapping:
        """Nodes by mix; ``random`` draws them, and mixes what is left over."""
        del times
        shares = Shares(cores, node_cores, largest=self.largest)
        while shares.pool:
            shares.place(shares.pool[int(random.integers(len(shares.pool)))], 1)
        return shares.finish(random)
