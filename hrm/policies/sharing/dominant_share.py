"""Progressive filling by dominant share, blind to platforms: the baseline that others use.

With cores as the only resource that is divided here, the dominant share is the share of cores: one
core at a time goes to the tenant with the smallest share (by weight), and is taken from the
platform with the most free cores in proportion to its size, as a scheduler does that spreads load.

Source: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, section 4.1.
"""

from __future__ import annotations

import heapq

import numpy as np

from hrm.policies.sharing.claims import Claims, Division

__all__ = ["DominantShare"]


class DominantShare:
    """Ignores affinities."""

    name = "dominant-share"

    def divide(self, claims: Claims) -> Division:
        """See ``DivisionPolicy.divide``."""
        weights = np.ones(len(claims.wanted)) if claims.weights is None else claims.weights
        held = [0] * len(claims.wanted)
        division: Division = np.zeros(claims.affinity.shape, np.int64)
        free = claims.cores.copy()
        size = np.maximum(claims.cores, 1)
        poorest = [(0.0, tenant) for tenant in np.flatnonzero(claims.wanted).tolist()]
        while poorest and free.any():
            _, tenant = heapq.heappop(poorest)
            platform = int((free / size).argmax())
            division[tenant, platform] += 1
            free[platform] -= 1
            held[tenant] += 1
            if held[tenant] < claims.wanted[tenant]:
                heapq.heappush(poorest, (held[tenant] / float(weights[tenant]), tenant))
        return division
