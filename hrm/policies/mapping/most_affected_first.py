"""The tenant that suffers most chooses first.

The tenant with the highest co-runner affinity gets, on as many nodes as both sides have cores for,
the combination in which its own tasks run shortest. With that some tenant has no core left, and the
next is chosen. Those that nothing disturbs take what remains.

Source: two-level fairness paper, section 4.2.1 (MAF).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from hrm.policies.mapping.co_runner_affinity import CoRunnerAffinity, co_runner_affinity
from hrm.policies.mapping.combinations import LARGEST, CoRunnerTimes, Mapping, Shares

__all__ = ["MostAffectedFirst"]


@dataclass(frozen=True)
class MostAffectedFirst:
    """``largest``: tenants in a combination at most; their number grows with that power.
    ``again``: affinities are computed again, over what is still feasible, after each step."""

    measure: CoRunnerAffinity = CoRunnerAffinity.NORMALISED
    largest: int = LARGEST
    again: bool = True

    @property
    def name(self) -> str:
        return "most-affected-first"

    def map(
        self, cores: Sequence[int], node_cores: int, times: CoRunnerTimes, random: Generator
    ) -> Mapping:
        """Nodes by mix; ``random`` mixes what is left over."""
        shares = Shares(cores, node_cores, largest=self.largest)
        affinity: dict[int, float] = {}
        while live := shares.live():
            if self.again or not affinity:
                affinity = {
                    tenant: co_runner_affinity(self.measure, tenant, shares.of(tenant), times)
                    for tenant in live
                }
            tenant = max(live, key=lambda x: (affinity[x], -x))
            combination = shares.mildest(tenant, times)
            shares.place(combination, shares.nodes(combination))
        return shares.finish(random)
