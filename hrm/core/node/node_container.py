"""What a node has of one container, from its assignment until its end is acknowledged."""

from __future__ import annotations

from dataclasses import dataclass

from hrm.core.node.container_life import CONTAINER_AT_NODE, NodeContainerHappening
from hrm.core.vocabulary.event_table import Lifecycle
from hrm.core.vocabulary.model import (
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    NodeName,
)

__all__ = ["NodeContainer", "new_life"]


@dataclass(slots=True)
class NodeContainer:
    """Times are those of the node's clock, 0: not yet. ``preempted``: for a stream, not as what
    yields."""

    spec: ContainerSpec
    life: Lifecycle[ContainerState, NodeContainerHappening]
    assigned_at_s: float
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    end: ContainerEnd | None = None
    decommissioning: bool = False
    has_process: bool = False
    preempted: bool = False

    def status(self, node: NodeName) -> ContainerStatus:
        """As ``node`` reports it."""
        spec = self.spec
        return ContainerStatus(
            container_id=spec.container_id,
            application_id=spec.application_id,
            executor_id=spec.executor_id,
            resource_profile_id=spec.resource_profile_id,
            workload_class=spec.workload_class,
            resources=spec.resources,
            state=self.life.state,
            node=node,
            unit_id=spec.unit_id,
            assigned_at_s=self.assigned_at_s,
            started_at_s=self.started_at_s,
            ended_at_s=self.ended_at_s,
            end=self.end,
            expected_duration_s=spec.expected_duration_s,
            preempted=self.preempted,
            stands_first=spec.stands_first,
            yields=spec.yields,
        )


def new_life(container_id: ContainerId) -> Lifecycle[ContainerState, NodeContainerHappening]:
    """One that has just been assigned."""
    return Lifecycle("container", container_id, CONTAINER_AT_NODE, ContainerState.ASSIGNED)
