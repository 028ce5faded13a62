"""Every tenant in turn takes a core of the platform that it prefers among those with free ones.

All get their fair share in *number* of cores; affinity decides only of which platforms. So no
tenant loses cores to one that is faster, and turns keep one from emptying a platform before others
come. Their order is fixed: what the first gains by it is at most ``step`` cores of each platform.

Turns are not played one by one. While every tenant that takes part prefers a platform with enough
cores for all that prefer it, many rounds are the same; they are done at once.

Source: two-level fairness paper, section 4.1.3 and algorithm 2 (PA-based round robin, ``D_unit``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hrm.core.vocabulary.columns import Floats, Ints
from hrm.policies.sharing.fair_share import fair_share
from hrm.policies.sharing.tenant_demands import Division, TenantDemands

__all__ = ["AffinityRoundRobin"]


@dataclass(frozen=True)
class AffinityRoundRobin:
    """``step``: cores in one turn. ``margin``: by what part another platform must be preferred
    before cores move there that a tenant has on one (``TenantDemands.previous``)."""

    step: int = 1
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.step < 1 or not self.margin >= 0:
            raise ValueError(f"step is {self.step}, margin {self.margin}; they are 1 and 0 or more")

    @property
    def name(self) -> str:
        return "affinity-round-robin"

    def divide(self, demands: TenantDemands) -> Division:
        """See ``DivisionPolicy.divide``."""
        weights = None if demands.weights is None else demands.weights.tolist()
        division: Division = np.zeros(demands.affinity.shape, np.int64)
        keeps = demands.previous if self.margin else None
        turns = _Turns(
            self,
            division=division,
            lacks=np.array(fair_share(demands.wanted.tolist(), demands.total, weights), np.int64),
            free=demands.cores.copy(),
            affinity=demands.affinity,
            kept=np.zeros_like(division) if keeps is None else keeps.copy(),
        )
        while turns.lacks.any():
            if not turns.play_alike():
                turns.play_round()
        return division


@dataclass(frozen=True)
class _Turns:
    """``kept``: cores that a tenant had and has not been given back yet."""

    policy: AffinityRoundRobin
    division: Division
    lacks: Ints
    free: Ints
    affinity: Floats
    kept: Division

    def play_alike(self) -> bool:
        """As many whole rounds as are alike. Is there one?"""
        step, takers = self.policy.step, np.flatnonzero(self.lacks)
        chosen = self._preferred(takers)
        counts = np.bincount(chosen, minlength=len(self.free))
        used = counts > 0
        kept = self.kept[takers, chosen]
        limits = [self.lacks[takers].min(), (self.free[used] // counts[used]).min()]
        if kept.any():
            limits.append(kept[kept > 0].min())
        rounds = int(min(limits)) // step
        cores = rounds * step
        self.division[takers, chosen] += cores
        self.kept[takers, chosen] = np.maximum(kept - cores, 0)
        self.lacks[takers] -= cores
        self.free[:] -= counts * cores
        return rounds > 0

    def play_round(self) -> None:
        for tenant in np.flatnonzero(self.lacks).tolist():
            if not self.free.any():
                break
            platform = int(self._preferred(np.array([tenant]))[0])
            cores = min(self.policy.step, int(self.lacks[tenant]), int(self.free[platform]))
            self.division[tenant, platform] += cores
            self.kept[tenant, platform] = max(int(self.kept[tenant, platform]) - cores, 0)
            self.lacks[tenant] -= cores
            self.free[platform] -= cores

    def _preferred(self, tenants: Ints) -> Ints:
        """Of platforms with free cores; the first of those that are alike."""
        margins = np.where(self.kept[tenants] > 0, 1 + self.policy.margin, 1.0)
        weighed = np.where(self.free > 0, self.affinity[tenants] * margins, -np.inf)
        return np.asarray(weighed.argmax(axis=1), np.int64)
