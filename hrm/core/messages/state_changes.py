"""What a master sends to a scheduler of another process: its identity, rows of the state, and jobs.

``hrm.core.scheduling.remote_scheduler`` makes these, ``hrm.core.scheduling.replica`` takes them in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from hrm.core.messages.claims import Entry, GpuPart
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerRequest,
    Followed,
    NodeName,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement
from hrm.core.vocabulary.quick import record

__all__ = ["SCHEDULER_BOUNDS", "JobImage", "StateChanged", "Subscribed", "UnitState"]

SCHEDULER_BOUNDS = (
    "waiting_limit",
    "wait_max_s",
    "default_duration_s",
    "retry_delay_s",
    "retry_delay_max_s",
)
"""Of the master's ``Bounds``: those that a scheduler follows, and is sent."""


@record
class Subscribed:
    """The first message: under which master and session the scheduler proposes, and its bounds;
    those that are not in ``SCHEDULER_BOUNDS`` have their defaults."""

    session: int
    followed: Followed
    bounds: Bounds


@record
class UnitState:
    """One row of the table with its queues. ``running`` has each one's start."""

    unit: ResourceUnit
    node: NodeName
    is_open: bool
    waiting_limit: int
    running: tuple[Entry, ...] = ()
    stream_waiting: tuple[Entry, ...] = ()
    batch_waiting: tuple[Entry, ...] = ()
    yielding_waiting: tuple[Entry, ...] = ()


@record
class JobImage:
    """A job as the master has it. Nothing pending: it is no longer this scheduler's."""

    application_id: ApplicationId
    workload_class: WorkloadClass
    gang: int = 0
    pending: tuple[tuple[ContainerId, ContainerRequest, float], ...] = ()
    """With the time of each request."""
    avoid: tuple[NodeName, ...] = ()
    """Nodes that are excluded for it, by name."""
    gpu_parts: Mapping[Vector, GpuPart] = field(default_factory=dict)
    """Of the GPUs, in its next round, by demand; without one: all that it requests."""
    requires: NodeRequirement | None = None
    """What a node must meet; None: nothing."""


@record
class StateChanged:
    """``has_freed``: something ended, which freed capacity; jobs that back off may try at once.
    ``properties``: of the nodes of those ``units`` for which they have not been sent yet, or have
    changed; a unit keeps its own until it is gone."""

    sequence: int
    now: float
    units: tuple[UnitState, ...] = ()
    gone: tuple[ResourceUnitId, ...] = ()
    jobs: tuple[JobImage, ...] = ()
    has_freed: bool = False
    properties: tuple[tuple[ResourceUnitId, NodeProperties], ...] = ()
