"""What workloads of pipelines must know of the cluster that they are in."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

from hrm.core.master.core import MasterCore
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    NodeName,
    NodeState,
)
from hrm.pipelines.core.workload import WorkloadKey

__all__ = ["Alone", "MasterFacts", "PoolFacts"]


class PoolFacts(Protocol):
    """As of now, whenever it is asked."""

    @property
    def epoch(self) -> int:
        """Of the master's core."""
        ...

    @property
    def recovering(self) -> bool:
        """May nodes still come back to a new master?"""
        ...

    def staying(self, key: WorkloadKey) -> float:
        """Workers that a workload keeps, whoever comes: those beyond yield
        (``hrm.core.queue.yielding``)."""
        ...

    def is_draining(self, node: NodeName) -> bool: ...

    def running(self, application_id: ApplicationId) -> Collection[ContainerId]:
        """The containers of an application that run by what nodes have reported; the notices of
        some may still wait for the master's disk."""
        ...


class MasterFacts:
    """By the master's core."""

    def __init__(self, core: MasterCore) -> None:
        self._core = core
        self._state = core.master_state

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def recovering(self) -> bool:
        nodes = self._core.nodes
        if not nodes.known_at_start and self._core.epoch > 1:
            return True  # the store may have forgotten the node that is away
        return self._state.recovering or bool(nodes.missing)

    @property
    def has_gpus(self) -> bool:
        """Does any node have a GPU?"""
        nodes = self._state.nodes.values()
        return any(unit.gpu is not None for node in nodes for unit in node.units)

    def staying(self, key: WorkloadKey) -> float:
        """Its queue decides where there are queues; else as many as fit into equal parts of the
        cluster, of all applications and one that may come."""
        if self._state.queues.governs:
            return math.inf
        units = (unit for node in self._state.nodes.values() for unit in node.units)
        vcores = sum(unit.own_capacity.vcores for unit in units)
        return max(1, vcores // (len(self._state.live) + 1) // key.size.vcores)

    def is_draining(self, node: NodeName) -> bool:
        known = self._state.nodes.get(node)
        return known is not None and known.state is NodeState.DRAINING

    def running(self, application_id: ApplicationId) -> Collection[ContainerId]:
        app = self._state.applications.get(application_id)
        if app is None:
            return ()
        found = app.in_state(ContainerState.RUNNING, ContainerState.STOPPING)
        return [x.container_id for x in found]


class Alone:
    """Of workloads that have the cluster to themselves: for tests."""

    epoch = 0
    recovering = False

    def staying(self, key: WorkloadKey) -> float:
        del key
        return math.inf

    def is_draining(self, node: NodeName) -> bool:
        del node
        return False

    def running(self, application_id: ApplicationId) -> Collection[ContainerId]:
        del application_id
        return ()
