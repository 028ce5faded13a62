"""What tenants that share a unit cost each other, from the slowdowns of pairs.

A pair's slowdown is that where the other has all other cores of the unit; of a mix, each core adds
its part. So a container of u that joins a mix costs u, and those in the mix, in proportion to the
cores of each tenant in it, and one number for each tenant suffices to rate all units at once.

Limit: three tenants may hurt each other more, or less, than the sum over their pairs says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hrm.core.scheduling.co_running import CoRunning, Tenant
from hrm.policies.mapping import Combination, SeparableSlowdowns
from hrm.policies.placement_helpers import Floats

__all__ = ["IDLE", "AnyOther", "Costs", "PairCosts", "PairTimes", "separated"]

IDLE: Tenant = ()
"""The tenant of the cores that run nothing: it slows none down, and nothing slows it down."""


class Costs(Protocol):
    """What each core of a tenant that a container joins costs."""

    def weights(self, tenant: int, tenants: Sequence[Tenant]) -> Floats:
        """By number, shape (tenants,); 0 for number 0. Below 0: they do each other good."""
        ...


class AnyOther:
    """Any other tenant costs as much as any; a tenant's own containers cost it nothing."""

    def weights(self, tenant: int, tenants: Sequence[Tenant]) -> Floats:
        weights = np.ones(len(tenants))
        weights[[0, tenant]] = 0.0
        return weights


class PairCosts:
    """The slowdown of the one that comes and of the one that is there, added up, as is known."""

    def __init__(self, co_running: CoRunning) -> None:
        self._co_running = co_running
        self._revision = -1
        self._weights: dict[int, list[float]] = {}

    def clear(self) -> None:
        """Tenants have got other numbers."""
        self._weights.clear()

    def weights(self, tenant: int, tenants: Sequence[Tenant]) -> Floats:
        """See ``Costs``; each pair is asked for once, until the slowdowns have changed."""
        revision = self._co_running.revision
        if not revision:
            return np.zeros(len(tenants))
        if revision != self._revision:
            self._revision = revision
            self._weights.clear()
        weights = self._weights.setdefault(tenant, [0.0])
        slowdown, own = self._co_running.slowdown, tenants[tenant]
        for other in tenants[len(weights) :]:
            weights.append(slowdown(own, other) + slowdown(other, own) - 2.0)
        return np.array(weights)


class PairTimes:
    """``CoRunnerTimes`` of ``tenants`` on units of ``size`` cores, in units of the time alone."""

    def __init__(self, co_running: CoRunning, tenants: Sequence[Tenant], size: int) -> None:
        self._size = size
        self._excess = [[_excess(co_running, own, x) for x in tenants] for own in tenants]

    def alone_s(self, tenant: int) -> float:
        """See ``CoRunnerTimes``."""
        return 1.0

    def run_s(self, tenant: int, combination: Combination) -> float:
        """See ``CoRunnerTimes``; of one core, all others of the unit at work."""
        part, excess = self._size // len(combination), self._excess[tenant]
        others = sum((part - (each == tenant)) * excess[each] for each in combination)
        return 1.0 + others / max(1, self._size - 1)


def separated(
    co_running: CoRunning, tenants: Sequence[Tenant], cores: Sequence[int], partners: int
) -> SeparableSlowdowns:
    """How sensitive each of ``tenants`` is, and how hard it presses: means over those ``partners``
    that have the most ``cores``, which it most probably meets."""
    those = [x for x in range(len(tenants)) if tenants[x] != IDLE]
    most = [tenants[x] for x in sorted(those, key=lambda x: (-cores[x], x))[:partners]]
    felt = [[_excess(co_running, each, other) for other in most] for each in tenants]
    done = [[_excess(co_running, other, each) for other in most] for each in tenants]
    sensitivity = [sum(row) / len(most) for row in felt]
    pressure = [sum(row) / len(most) for row in done]
    return SeparableSlowdowns([1.0] * len(tenants), sensitivity, pressure)


def _excess(co_running: CoRunning, tenant: Tenant, other: Tenant) -> float:
    """Of the run time of ``tenant`` with ``other`` over that alone, as a part of the latter."""
    if IDLE in (tenant, other):
        return 0.0
    return co_running.slowdown(tenant, other) - 1.0
