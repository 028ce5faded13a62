"""What no division can exceed: the largest throughput that all tenants could have alike.

A linear program: cores of each platform to each tenant, the smallest throughput (over the ideal)
as large as can be, while all of them run and none is slowed by another.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from benchmarks.fairness.world import HOUR_S, World

__all__ = ["largest_common_throughput"]


def largest_common_throughput(world: World) -> float:
    """Of the ideal, 0 to 1."""
    tenants, platforms = world.run_s.shape
    per_hour = HOUR_S / world.run_s
    cells = tenants * platforms
    objective = np.zeros(cells + 1)
    objective[-1] = -1.0
    rows, limits = [], []
    for tenant, ideal in enumerate(world.ideal_per_h()):
        row = np.zeros(cells + 1)
        row[tenant * platforms : (tenant + 1) * platforms] = -per_hour[tenant]
        row[-1] = ideal
        rows.append(row)
        limits.append(0.0)
    for index, platform in enumerate(world.platforms):
        row = np.zeros(cells + 1)
        row[index:cells:platforms] = 1.0
        rows.append(row)
        limits.append(float(platform.cores))
    found = linprog(objective, A_ub=np.array(rows), b_ub=limits)
    assert found.success, found.message
    return float(found.x[-1])
