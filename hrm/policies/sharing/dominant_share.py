"""Progressive filling by dominant share, blind to platforms: the baseline that others use.

With cores as the only resource that is divided here, the dominant share is the share of cores: one
core at a time goes to the tenant with the smallest share (by weight), and is taken from the
platform of which this tenant holds the smallest part. So each has the same part of every platform,
as with simple fairness; the two differ in roundings only. A tenant takes no more than its fair
share in whole cores: with weights, filling alone would round up for all that are light.

Of platforms of which it holds as little, it takes that with the most free cores in proportion, then
the larger: what a platform's place in the list decides is between platforms that are alike.

Source: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, section 4.1.
"""

from __future__ import annotations

import heapq

import numpy as np

from hrm.policies.sharing.fair_share import fair_share
from hrm.policies.sharing.tenant_demands import Division, TenantDemands

__all__ = ["DominantShare"]


class DominantShare:
    """Ignores affinities."""

    name = "dominant-share"

    def divide(self, demands: TenantDemands) -> Division:
        """See ``DivisionPolicy.divide``."""
        weights = np.ones(len(demands.wanted)) if demands.weights is None else demands.weights
        size = demands.cores.tolist()
        shares = fair_share(demands.wanted.tolist(), demands.total, weights.tolist())
        held = [[0] * len(size) for _ in shares]
        count, free = [0] * len(shares), list(size)
        usable = [platform for platform, cores in enumerate(size) if cores]
        poorest = [(0.0, tenant) for tenant, share in enumerate(shares) if share]
        while poorest:
            _, tenant = heapq.heappop(poorest)
            mine = held[tenant]
            _, _, _, platform = min(
                (mine[each] / size[each], -free[each] / size[each], -size[each], each)
                for each in usable
            )
            mine[platform] += 1
            free[platform] -= 1
            if not free[platform]:
                usable.remove(platform)
            count[tenant] += 1
            if count[tenant] < shares[tenant]:
                heapq.heappush(poorest, (count[tenant] / float(weights[tenant]), tenant))
        return np.array(held, np.int64).reshape(demands.affinity.shape)
