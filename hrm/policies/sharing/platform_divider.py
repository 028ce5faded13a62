"""A division policy and a measure of affinity, as the rule by which the master divides shares.

See ``hrm.core.tenancy.platform_division``. How much each queue may have is decided there, by
guarantees and weights; a policy gets that as what each wants, so that it decides of platforms
alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hrm.core.vocabulary.columns import Floats, Ints
from hrm.errors import InvalidRequest
from hrm.policies.sharing.affinity import Affinity, platform_affinity
from hrm.policies.sharing.affinity_first import ApplicationAffinityFirst, ProviderAffinityFirst
from hrm.policies.sharing.affinity_round_robin import AffinityRoundRobin
from hrm.policies.sharing.dominant_share import DominantShare
from hrm.policies.sharing.simple_fairness import SimpleFairness
from hrm.policies.sharing.tenant_demands import DivisionPolicy, TenantDemands

__all__ = ["DEFAULT", "DEFAULT_MEASURE", "DIVISIONS", "MARGIN", "PlatformDivider", "divider"]

MARGIN = 0.05
"""By what part another platform must be preferred before a queue's part moves there."""

DIVISIONS: dict[str, DivisionPolicy] = {
    policy.name: policy
    for policy in (
        AffinityRoundRobin(),
        ApplicationAffinityFirst(),
        DominantShare(),
        ProviderAffinityFirst(),
        SimpleFairness(),
    )
}
DEFAULT = AffinityRoundRobin().name
_CALM = {**DIVISIONS, DEFAULT: AffinityRoundRobin(margin=MARGIN)}
DEFAULT_MEASURE = Affinity.RECIPROCAL
"""The fairest, and the shortest makespans (docs/fairness.md). Where a queue must not run on worse
platforms than with the same part of each, so that others gain: egocentric."""


@dataclass(frozen=True)
class PlatformDivider:
    """``policy`` with affinities by ``measure``."""

    policy: DivisionPolicy
    measure: Affinity = DEFAULT_MEASURE

    def affinity(self, run_s: Floats) -> Floats:
        """See ``PlatformDivision.affinity``; 1 where nothing is known. One tenant alone takes
        nothing from others: reciprocal affinity is egocentric then."""
        measure = self.measure
        if measure is Affinity.RECIPROCAL and np.isfinite(run_s).any(axis=1).sum() <= 1:
            measure = Affinity.EGOCENTRIC
        return platform_affinity(measure, run_s)

    def divide(self, wanted: Ints, cores: Ints, affinity: Floats, held: Ints) -> Ints:
        """See ``PlatformDivision.divide``."""
        return self.policy.divide(TenantDemands(wanted, cores, affinity, previous=held))


def divider(
    policy: str = DEFAULT, measure: str | Affinity = DEFAULT_MEASURE
) -> PlatformDivider | None:
    """By names; None for "none".

    Raises:
        InvalidRequest: there is no such policy, or no such measure.
    """
    if policy == "none":
        return None
    if policy not in _CALM:
        names = ", ".join((*sorted(_CALM), "none"))
        raise InvalidRequest(f"there is no division {policy!r}; choose one of {names}")
    try:
        return PlatformDivider(_CALM[policy], Affinity(measure))
    except ValueError:
        names = ", ".join(x.value for x in Affinity)
        raise InvalidRequest(f"there is no affinity {measure!r}; choose one of {names}") from None
