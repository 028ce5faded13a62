"""Whole platforms to those that they suit best: by the platforms' choice or by the tenants'.

In each pass, pairs of a tenant and a platform are selected. With *provider affinity first* every
platform selects the better half of the tenants, by their affinity for it; with *application
affinity first* every tenant selects the better half of the platforms. A platform's cores are
divided among the tenants of its pairs, those that lack least first, so that what they leave is for
the others. Then the rest is given in the same way. Efficient, and fair to those that are selected
only: a tenant that runs badly everywhere waits until the others are satisfied.

Provider affinity first keeps tenants where they are: in the first pass, who holds cores of a
platform is selected there, too. Tenants' weights are not defined for either rule, and are refused.

Source: two-level fairness paper, sections 4.1.1 and 4.1.2, algorithm 1. Half is rounded down, which
is not stated there but follows from its examples.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hrm.core.vocabulary.columns import Floats
from hrm.errors import InvalidRequest
from hrm.policies.sharing.tenant_demands import Division, TenantDemands

__all__ = ["ApplicationAffinityFirst", "ProviderAffinityFirst"]

Pairs = dict[int, list[int]]
"""The tenants that are selected for each platform."""


@dataclass(frozen=True)
class _AffinityFirst(abc.ABC):
    """``selected_percent``: of tenants or platforms in a pass, 50 at most."""

    selected_percent: int = 50

    def __post_init__(self) -> None:
        if not 0 < self.selected_percent <= 50:
            raise ValueError(f"selected_percent is {self.selected_percent}; it is 1 to 50")

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @abc.abstractmethod
    def _selected(
        self, demands: TenantDemands, tenants: list[int], platforms: list[int], *, is_first: bool
    ) -> Pairs: ...

    @abc.abstractmethod
    def _otherwise(self, demands: TenantDemands, tenants: list[int], platforms: list[int]) -> Pairs:
        """What is selected where ``_selected`` finds nothing."""

    def divide(self, demands: TenantDemands) -> Division:
        """See ``DivisionPolicy.divide``.

        Raises:
            InvalidRequest: tenants have weights.
        """
        if demands.weights is not None:
            raise InvalidRequest(
                f"{self.name} divides by affinity alone and would ignore the weights of tenants; "
                "leave them out, or divide by affinity-round-robin"
            )
        lacks, free = demands.wanted.copy(), demands.cores.copy()
        division: Division = np.zeros(demands.affinity.shape, np.int64)
        is_first = True
        for _ in range(sum(demands.affinity.shape) + 1):
            tenants, platforms = np.flatnonzero(lacks).tolist(), np.flatnonzero(free).tolist()
            if not tenants or not platforms:
                return division
            pairs = self._selected(demands, tenants, platforms, is_first=is_first)
            if not any(pairs.values()):
                pairs = self._otherwise(demands, tenants, platforms)
            parts = {platform: len(selected) for platform, selected in pairs.items()}
            of_tenant: dict[int, list[int]] = {}
            for platform, selected in pairs.items():
                for tenant in selected:
                    of_tenant.setdefault(tenant, []).append(platform)
            for tenant in sorted(of_tenant, key=lambda x: (int(lacks[x]), x)):
                for platform in _ranked(demands.affinity[tenant], of_tenant[tenant]):
                    cores = min(int(lacks[tenant]), int(free[platform]) // parts[platform])
                    parts[platform] -= 1
                    division[tenant, platform] += cores
                    lacks[tenant] -= cores
                    free[platform] -= cores
            is_first = False
        raise AssertionError("each pass satisfies a tenant or empties a platform")


class ProviderAffinityFirst(_AffinityFirst):
    """Platforms select tenants."""

    @property
    def name(self) -> str:
        return "provider-affinity-first"

    def _selected(
        self, demands: TenantDemands, tenants: list[int], platforms: list[int], *, is_first: bool
    ) -> Pairs:
        count = len(tenants) * self.selected_percent // 100
        pairs = {p: _ranked(demands.affinity[:, p], tenants)[:count] for p in platforms}
        if is_first and demands.previous is not None:
            for platform, selected in pairs.items():
                here = set(np.flatnonzero(demands.previous[:, platform]).tolist())
                selected += [t for t in tenants if t in here and t not in set(selected)]
        return pairs

    def _otherwise(self, demands: TenantDemands, tenants: list[int], platforms: list[int]) -> Pairs:
        return {platform: list(tenants) for platform in platforms}


class ApplicationAffinityFirst(_AffinityFirst):
    """Tenants select platforms."""

    @property
    def name(self) -> str:
        return "application-affinity-first"

    def _selected(
        self, demands: TenantDemands, tenants: list[int], platforms: list[int], *, is_first: bool
    ) -> Pairs:
        count = len(platforms) * self.selected_percent // 100
        pairs: Pairs = {platform: [] for platform in platforms}
        for tenant in tenants:
            for platform in _ranked(demands.affinity[tenant], platforms)[:count]:
                pairs[platform].append(tenant)
        return pairs

    def _otherwise(self, demands: TenantDemands, tenants: list[int], platforms: list[int]) -> Pairs:
        def suited(platform: int) -> Iterator[int]:
            affinity = demands.affinity[:, platform]
            median = np.median(affinity[tenants])
            return (tenant for tenant in tenants if affinity[tenant] >= median)

        return {platform: list(suited(platform)) for platform in platforms}


def _ranked(affinity: Floats, indices: list[int]) -> list[int]:
    """The most preferred first, the earlier of those that are alike."""
    return sorted(indices, key=lambda index: (-float(affinity[index]), index))
