"""Each tenant in turn chooses the combination in which its tasks run shortest, for a node or a few.

As long as every tenant has a whole node's worth of cores, each chooses as in the turn before; such
rounds are done at once.

Source: two-level fairness paper, section 4.2.2 (CA-based round robin, ``P_unit``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from hrm.policies.mapping.combinations import LARGEST, CoRunnerTimes, Mapping, Shares

__all__ = ["CoRunnerRoundRobin"]


@dataclass(frozen=True)
class CoRunnerRoundRobin:
    """``step``: nodes in one turn. ``largest``: tenants in a combination at most."""

    step: int = 1
    largest: int = LARGEST

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"step is {self.step}; it is 1 or more")

    @property
    def name(self) -> str:
        return "co-runner-round-robin"

    def map(
        self, cores: Sequence[int], node_cores: int, times: CoRunnerTimes, random: Generator
    ) -> Mapping:
        """Nodes by mix; ``random`` mixes what is left over."""
        shares = Shares(cores, node_cores, largest=self.largest)
        self._whole_rounds(shares, times)
        latest = -1
        while live := shares.live():
            tenant = next((each for each in live if each > latest), live[0])
            combination = shares.mildest(tenant, times)
            shares.place(combination, min(self.step, shares.nodes(combination)))
            latest = tenant
        return shares.finish(random)

    def _whole_rounds(self, shares: Shares, times: CoRunnerTimes) -> None:
        """Rounds after each of which every tenant could still fill ``step`` nodes."""
        chosen = [shares.mildest(tenant, times) for tenant in shares.live()]
        used: Counter[int] = Counter()
        for combination in chosen:
            for tenant in combination:
                used[tenant] += self.step * shares.part(combination)
        kept = self.step * shares.node_cores
        if not used or min(shares.left[tenant] for tenant in shares.live()) < kept:
            return
        rounds = min((shares.left[tenant] - kept) // cores for tenant, cores in used.items())
        for combination in chosen:
            if rounds > 0:
                shares.place(combination, rounds * self.step)
