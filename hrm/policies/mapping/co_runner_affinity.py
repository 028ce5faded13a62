"""How much a tenant suffers from those that it may share nodes with.

The mean, over the combinations that it may be in, of how much longer its tasks run than alone on a
node: in seconds (raw), or in percent of the time alone (normalised). Seconds favour tenants of long
tasks; percent compares tenants.

Source: two-level fairness paper, section 3.3 and table 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from hrm.policies.mapping.combinations import Combination, CoRunnerTimes

__all__ = ["CoRunnerAffinity", "co_runner_affinity"]


class CoRunnerAffinity(Enum):
    """Which measure."""

    RAW = "raw"
    NORMALISED = "normalised"


def co_runner_affinity(
    measure: CoRunnerAffinity,
    tenant: int,
    combinations: Sequence[Combination],
    times: CoRunnerTimes,
) -> float:
    """Seconds or percent, by ``measure``, over ``combinations``, which all have ``tenant``."""
    alone_s = times.alone_s(tenant)
    mean_s = sum(times.run_s(tenant, each) for each in combinations) / len(combinations)
    if measure is CoRunnerAffinity.RAW:
        return mean_s - alone_s
    return 100.0 * (mean_s - alone_s) / alone_s
