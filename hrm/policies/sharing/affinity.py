"""How much a tenant prefers a platform, by the mean run times of its tasks there.

Three measures, from the same table of run times (tenants by platforms, a task with no other on its
node). *Throughput* says how many tasks a core does in an hour: a tenant of short tasks has large
numbers everywhere, so tenants cannot be compared by it. *Egocentric* affinity compares a platform
with the tenant's other platforms: above 1, it is faster than they are. On a platform that is fast
for all, all have it. *Reciprocal* affinity first divides each run time by the platform's mean over
all tenants, so that what remains is who gains most from which platform. It depends on who is there
and is computed again when a tenant comes or goes. Where a tenant has not been measured on some
platform, its time there is inferred before platforms are averaged: else a tenant of long tasks
would count in one platform's mean and not in another's, and its length pass for slowness.

Source: two-level fairness paper, section 3 and tables 3 and 4.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from hrm.core.tenancy.completion import completed
from hrm.core.vocabulary.columns import Bools, Floats
from hrm.errors import InvalidRequest

__all__ = ["Affinity", "platform_affinity"]

HOUR_S = 3600.0


class Affinity(Enum):
    """Which measure."""

    THROUGHPUT = "throughput"
    EGOCENTRIC = "egocentric"
    RECIPROCAL = "reciprocal"


def platform_affinity(measure: Affinity, run_s: Floats) -> Floats:
    """``measure`` of every tenant for every platform, of the same shape as ``run_s``.

    ``run_s`` is in seconds and above 0; NaN or infinite where nothing has been measured, and 1 is
    returned there. With one platform only, the relative measures are 1.

    Raises:
        InvalidRequest: a time is 0 or negative.
    """
    if (run_s <= 0).any():
        raise InvalidRequest("a run time is 0 or negative; state NaN where nothing was measured")
    known = np.isfinite(run_s)
    if measure is Affinity.THROUGHPUT:
        return np.where(known, HOUR_S / np.where(known, run_s, HOUR_S), 1.0)
    if measure is Affinity.EGOCENTRIC:
        return _over_others(run_s, known)
    logs = completed(np.log(np.where(known, run_s, np.nan)))
    usable = np.isfinite(logs)
    times = np.where(known, run_s, np.exp(np.where(usable, logs, 0.0)))
    counts = usable.sum(axis=0)
    means = np.where(usable, times, 0.0).sum(axis=0) / np.maximum(counts, 1)
    affinity = _over_others(times / np.where(counts, means, 1.0), usable)
    return np.where(known, affinity, 1.0)


def _over_others(times: Floats, known: Bools) -> Floats:
    """Each row's mean over the *other* known columns, divided by the column itself."""
    filled = np.where(known, times, 0.0)
    others = known.sum(axis=1, keepdims=True) - known
    mean = (filled.sum(axis=1, keepdims=True) - filled) / np.maximum(others, 1)
    usable = known & (others > 0)
    return np.where(usable, mean / np.where(usable, times, 1.0), 1.0)
