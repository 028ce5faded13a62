"""What a placement policy of another package needs, in one import; contract: docs/policies.md.

    from hrm.policies.api import Column, immediately_feasible, in_order, with_nones

What is here keeps its names; the modules behind it may move.
"""

from __future__ import annotations

from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.co_running import CoRunning, Tenant, UnknownCoRunning
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import WorkloadClass
from hrm.policies.guard import Doubt, Reason
from hrm.policies.placement_helpers import (
    by_score,
    first_row,
    immediately_feasible,
    in_order,
    in_turn,
    in_turn_feasible,
    may_still_wait,
    queueable,
    to_least_wait,
    to_shortest_queue,
    used_share,
    with_nones,
)

__all__ = [
    "ClusterView",
    "CoRunning",
    "Column",
    "Doubt",
    "Entry",
    "Placement",
    "PlacementPolicy",
    "Reason",
    "Tenant",
    "UnknownCoRunning",
    "Vector",
    "WorkloadClass",
    "by_score",
    "first_row",
    "immediately_feasible",
    "in_order",
    "in_turn",
    "in_turn_feasible",
    "may_still_wait",
    "queueable",
    "to_least_wait",
    "to_shortest_queue",
    "used_share",
    "with_nones",
]
