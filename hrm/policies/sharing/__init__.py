"""How the cores of unlike platforms are divided among tenants: the first of two levels.

A *platform* is a group of like nodes. A tenant's tasks run at another speed on each platform, and
not all tenants prefer the same one; so an equal number of cores of every platform is not fair. A
division policy looks at what each tenant could use (``TenantDemands``) and returns how many cores
of each platform it may hold: a target, computed again whenever a tenant comes or goes or a platform
changes. Where a tenant's executors go within a platform is the second level
(``hrm.policies.mapping``).

Source: Hwang, Kim, Choi, "Achieving Fairness-Aware Two-Level Scheduling for Heterogeneous
Distributed Systems", IEEE Trans. Services Computing, 2018, section 4.1.
"""

from __future__ import annotations

from hrm.core.tenancy.observed_run_times import ObservedRunTimes, RunTimeEstimate
from hrm.policies.sharing.affinity import Affinity, platform_affinity
from hrm.policies.sharing.affinity_first import ApplicationAffinityFirst, ProviderAffinityFirst
from hrm.policies.sharing.affinity_round_robin import AffinityRoundRobin
from hrm.policies.sharing.dominant_share import DominantShare
from hrm.policies.sharing.fair_share import fair_share
from hrm.policies.sharing.platform_divider import DEFAULT, DIVISIONS, PlatformDivider, divider
from hrm.policies.sharing.simple_fairness import SimpleFairness
from hrm.policies.sharing.tenant_demands import Division, DivisionPolicy, TenantDemands

__all__ = [
    "DEFAULT",
    "DIVISIONS",
    "Affinity",
    "AffinityRoundRobin",
    "ApplicationAffinityFirst",
    "Division",
    "DivisionPolicy",
    "DominantShare",
    "ObservedRunTimes",
    "PlatformDivider",
    "ProviderAffinityFirst",
    "RunTimeEstimate",
    "SimpleFairness",
    "TenantDemands",
    "divider",
    "fair_share",
    "platform_affinity",
]
