"""Which tenants' tasks share the nodes of one platform: the second of two levels.

Tasks on one node slow each other down, some tenants' more than others', and some suffer more than
others. Given how many cores of a platform each tenant holds (``hrm.policies.sharing``), a mapping
says how many nodes are to run which *combination* of tenants. Its result is a target: executors are
placed to match it where they can, and no core idles for want of an ideal neighbour.

Source: Hwang, Kim, Choi, "Achieving Fairness-Aware Two-Level Scheduling for Heterogeneous
Distributed Systems", IEEE Trans. Services Computing, 2018, section 4.2 and algorithm 3.
"""

from __future__ import annotations

from hrm.policies.mapping.co_runner_affinity import CoRunnerAffinity, co_runner_affinity
from hrm.policies.mapping.co_runner_round_robin import CoRunnerRoundRobin
from hrm.policies.mapping.combinations import Combination, CoRunnerTimes, Mapping, Mix
from hrm.policies.mapping.most_affected_first import MostAffectedFirst
from hrm.policies.mapping.separable import (
    SeparableSlowdowns,
    most_affected_first_of_pairs,
    round_robin_of_pairs,
)
from hrm.policies.mapping.unaware import OneTenantPerNode, RandomCombinations

__all__ = [
    "CoRunnerAffinity",
    "CoRunnerRoundRobin",
    "CoRunnerTimes",
    "Combination",
    "Mapping",
    "Mix",
    "MostAffectedFirst",
    "OneTenantPerNode",
    "RandomCombinations",
    "SeparableSlowdowns",
    "co_runner_affinity",
    "most_affected_first_of_pairs",
    "round_robin_of_pairs",
]
