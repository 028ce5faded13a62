"""The mappings of ``hrm.policies.mapping`` as targets of placement: pairs, whole parts only.

At most two tenants share a unit in a combination: larger ones hardly change the result (two-level
fairness paper, section 6.5), and their number grows with the power. Up to ``EXACT`` tenants all
pairs are compared; more are mapped by two numbers for each, what it suffers and what it inflicts.
Units with an odd number of cores have no halves: there each tenant is alone in a combination.
"""

from __future__ import annotations

from collections.abc import Sequence

from numpy.random import default_rng

from hrm.core.scheduling.co_running import CoRunning, Tenant
from hrm.policies.corunning.slowdowns import PairTimes, separated
from hrm.policies.corunning.target import Combinations
from hrm.policies.mapping import (
    CoRunnerRoundRobin,
    Mapping,
    MostAffectedFirst,
    most_affected_first_of_pairs,
    round_robin_of_pairs,
)

__all__ = ["EXACT", "alone", "in_turn_by_pairs", "most_affected_by_pairs"]

EXACT = 24
_PAIR = 2
_PARTNERS = 8
_TURNS = 256
"""In about so many turns, or in a few of each tenant, all units are taken. Turns of more than one
unit hardly change the result (two-level fairness paper, section 6.5)."""
_UNUSED = 0
"""Seed of the order in which leftovers are mixed; they are not in the target."""


def alone(
    tenants: Sequence[Tenant], cores: Sequence[int], size: int, co_running: CoRunning
) -> Combinations:
    """Whole units for each tenant."""
    del tenants, co_running
    return {(place,): count // size for place, count in enumerate(cores) if count >= size}


def most_affected_by_pairs(
    tenants: Sequence[Tenant], cores: Sequence[int], size: int, co_running: CoRunning
) -> Combinations:
    """Those that suffer most choose first."""
    if size % _PAIR:
        return alone(tenants, cores, size, co_running)
    random = default_rng(_UNUSED)
    if len(tenants) <= EXACT:
        times = PairTimes(co_running, tenants, size)
        return _whole(MostAffectedFirst(largest=_PAIR).map(cores, size, times, random), size)
    slowdowns = separated(co_running, tenants, cores, _PARTNERS)
    return _whole(most_affected_first_of_pairs(cores, size, slowdowns, random), size)


def in_turn_by_pairs(
    tenants: Sequence[Tenant], cores: Sequence[int], size: int, co_running: CoRunning
) -> Combinations:
    """Each chooses in turn."""
    if size % _PAIR:
        return alone(tenants, cores, size, co_running)
    random = default_rng(_UNUSED)
    step = max(1, sum(cores) // (size * max(_TURNS, 4 * len(tenants))))
    if len(tenants) <= EXACT:
        times = PairTimes(co_running, tenants, size)
        mapped = CoRunnerRoundRobin(step, largest=_PAIR).map(cores, size, times, random)
        return _whole(mapped, size)
    slowdowns = separated(co_running, tenants, cores, _PARTNERS)
    return _whole(round_robin_of_pairs(cores, size, slowdowns, step, random), size)


def _whole(mapping: Mapping, size: int) -> Combinations:
    """What is no leftover: all tenants of a unit have equal parts, and the unit is full."""
    return {
        tuple(tenant for tenant, _ in mix.cores): units
        for mix, units in mapping.items()
        if len(mix.cores) <= _PAIR and all(n * len(mix.cores) == size for _, n in mix.cores)
    }
