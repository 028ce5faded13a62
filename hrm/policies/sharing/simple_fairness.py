"""The same part of every platform for every tenant: the baseline that knows nothing of speeds.

Source: two-level fairness paper, section 5 (simple fairness). How surplus cores are divided is not
stated there: each tenant's total is its fair share, its parts are in proportion to the platforms'
sizes, and what rounding leaves over comes from the platform with the most free cores.
"""

from __future__ import annotations

import numpy as np

from hrm.policies.sharing.fair_share import fair_share
from hrm.policies.sharing.tenant_demands import Division, TenantDemands

__all__ = ["SimpleFairness"]


class SimpleFairness:
    """Ignores affinities."""

    name = "simple-fairness"

    def divide(self, demands: TenantDemands) -> Division:
        """See ``DivisionPolicy.divide``."""
        total = demands.total
        weights = None if demands.weights is None else demands.weights.tolist()
        shares = np.array(fair_share(demands.wanted.tolist(), total, weights), np.int64)
        division: Division = shares[:, None] * demands.cores[None, :] // max(total, 1)
        free = demands.cores - division.sum(axis=0)
        for tenant in range(len(shares)):
            for _ in range(int(shares[tenant] - division[tenant].sum())):
                platform = int(free.argmax())
                division[tenant, platform] += 1
                free[platform] -= 1
        return division
