"""Progressive filling by dominant share, blind to platforms: the baseline that others use.

With cores as the only resource that is divided here, the dominant share is the share of cores: one
core at a time goes to the tenant with the smallest share (by weight), and is taken from the
platform with the most free cores in proportion to its size, as a scheduler does that spreads load.

Source: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, section 4.1.
"""

from __future__ import annotations

import heapq

import numpy as np

from hrm.policies.sharing.tenant_demands import Division, TenantDemands

__all__ = ["DominantShare"]


class DominantShare:
    """Ignores affinities."""

    name = "dominant-share"

    def divide(self, demands: TenantDemands) -> Division:
        """See ``DivisionPolicy.divide``."""
        weights = np.ones(len(demands.wanted)) if demands.weights is None else demands.weights
        held = [0] * len(demands.wanted)
        division: Division = np.zeros(demands.affinity.shape, np.int64)
        free = demands.cores.copy()
        size = np.maximum(demands.cores, 1)
        poorest = [(0.0, tenant) for tenant in np.flatnonzero(demands.wanted).tolist()]
        while poorest and free.any():
            _, tenant = heapq.heappop(poorest)
            platform = int((free / size).argmax())
            division[tenant, platform] += 1
            free[platform] -= 1
            held[tenant] += 1
            if held[tenant] < demands.wanted[tenant]:
                heapq.heappush(poorest, (held[tenant] / float(weights[tenant]), tenant))
        return division
