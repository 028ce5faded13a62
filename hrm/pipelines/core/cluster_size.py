"""What workloads of pipelines must know of the cluster."""

from __future__ import annotations

import math

from hrm.core.master.state import MasterState
from hrm.pipelines.core.workload import WorkloadKey

__all__ = ["has_gpus", "staying"]


def has_gpus(master_state: MasterState) -> bool:
    """Does any node have a GPU?"""
    nodes = master_state.nodes.values()
    return any(unit.gpu is not None for node in nodes for unit in node.units)


def staying(master_state: MasterState, key: WorkloadKey) -> float:
    """Workers that are a workload's own, whoever comes: its queue decides where there are queues;
    else as many as fit into equal parts of the cluster, of all applications and one that may
    come."""
    if master_state.queues.governs:
        return math.inf
    units = (unit for node in master_state.nodes.values() for unit in node.units)
    vcores = sum(unit.own_capacity.vcores for unit in units)
    return max(1, vcores // (len(master_state.live) + 1) // key.size.vcores)
