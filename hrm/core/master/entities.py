"""Applications, containers and nodes, as the master keeps them: one record each.

They are data with a lifecycle. ``core.master.state`` has all of them, and the operations that
change several at once.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from hrm.core.vocabulary.event_table import Lifecycle
from hrm.core.vocabulary.model import (
    NO_LAUNCH,
    NO_UNIT,
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerState,
    EndCause,
    FirstExecutors,
    LaunchContext,
    NodeName,
    NodeState,
    Progress,
    ResourceUnit,
    ResourceUnitId,
    Shortcut,
    TrainingReport,
    Usage,
    is_driver,
)
from hrm.core.vocabulary.node_requirement import UNKNOWN_PROPERTIES, NodeProperties, NodeRequirement
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.transitions import ApplicationHappening, ContainerHappening, NodeHappening

__all__ = ["Application", "Container", "Kept", "Node", "Waits"]


class Waits(Protocol):
    """That something waits for its turn."""

    @property
    def why(self) -> str:
        """What it waits for now, in words."""


class Kept(Waits, Protocol):
    """That its queue keeps something of an application."""

    @property
    def position(self) -> tuple[int, int]:
        """Which it is of those that wait in the queue, the first is 1, and how many do."""


@dataclass(slots=True)
class Container:
    """One container, from the request to the end. ``end`` is set iff it is ENDED;
    ``stop_cause``: of the last order to stop that this master has given; None: it has given none.
    ``held``: a node that is not back yet may be running it. ``preempted``: its node ends it for a
    stream, as it has reported at ``preempted_at_s``. ``waits_for``: a driver's wait for its turn,
    before it is given to its scheduler (``core.master.driver_queue``); None where it is, and for
    executors. ``number``: of two that use GPUs, and of two drivers, the one requested later has the
    greater. ``queued``: it was granted a place in a unit's queue. ``withheld``: its queue of
    applications keeps it from its scheduler (``core.master.queue_gate``)."""

    container_id: ContainerId
    application_id: ApplicationId
    request: ContainerRequest
    life: Lifecycle[ContainerState, ContainerHappening]
    requested_at_s: float
    node: NodeName | None = None
    unit_id: ResourceUnitId = NO_UNIT
    assigned_at_s: float = 0.0
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    sent_at_s: float = 0.0
    stop_cause: EndCause | None = None
    held: bool = False
    queued: bool = False
    withheld: bool = False
    preempted: bool = False
    preempted_at_s: float = 0.0
    waits_for: Waits | None = None
    end: ContainerEnd | None = None
    stdout_url: str = ""
    stderr_url: str = ""
    usage: Usage | None = None
    number: int = 0

    @property
    def state(self) -> ContainerState:
        return self.life.state


@dataclass(slots=True)
class Application:
    """One application. ``containers`` are the live ones, ``ended`` the latest of the others, with
    their ids in ``ended_ids``.

    ``doubtful_until_s``: known from an earlier master, and what it requests from this one until
    then may be what it requested from that one; None before its AppMaster attaches, 0 after its
    first requests.

    ``excused_s``: until then its AppMaster's absence does not count
    (``hrm.core.vocabulary.wakefulness``). ``due_at_s``: when its tasks are expected to be done, by
    the report after which that was last corrected (``core.master.run_time_corrections``).
    ``tasks_taken``: how many times of tasks were learned from since ``tasks_since_s``
    (``core.master.observed_tasks``).

    ``gang_min``: how many containers must be placed before the first of them may be, 0 once all of
    them have started; see ``core.master.gangs``. ``gang_lost_at_s``: when it last lost one that had
    a place before that; ``gang_refused_at_s``: when what it requested was last refused;
    ``gang_lacked_s``: for how long its gang, once granted, has been incomplete
    while all that it lacked was requested, None: it is complete; ``gang_unasked_s``: for how long
    its AppMaster has been there without having requested that. ``kept_bytes``: of an ended one, see
    ``core.master.holdings``. ``first_executors``: see ``core.master.driver_places``. ``is_driver``:
    it stands for a driver on a node, which is its only container. ``unpacked``: it has been
    recorded that no way was found to place its gang (``gangs.unpacked``). ``requires``: what
    a node must meet to get its containers, None: nothing; see ``MasterState.require``. ``kept``:
    says why its queue keeps containers of it; None: it keeps none. ``executors_max``: see
    ``MasterState.limit_executors``. ``training``: the latest epoch reported that counts.
    """

    record: ApplicationRecord
    life: Lifecycle[ApplicationState, ApplicationHappening]
    scheduler: str
    launch: LaunchContext = NO_LAUNCH
    session: int | None = None
    detached_at_s: float | None = None
    containers: dict[ContainerId, Container] = field(default_factory=dict)
    ended: deque[Container] = field(default_factory=deque)
    ended_ids: set[ContainerId] = field(default_factory=set)
    progress: Progress | None = None
    last_executor_number: int = 0
    waits: int = 0
    waited_s: float = 0.0
    refusal: str = ""
    recovered: bool = False
    doubtful_until_s: float | None = 0.0
    gang_min: int = 0
    gang_lost_at_s: float = -math.inf
    gang_refused_at_s: float = -math.inf
    gang_lacked_s: float | None = None
    gang_unasked_s: float = 0.0
    kept_bytes: int = 0
    excused_s: float = 0.0
    first_executors: FirstExecutors | None = None
    due_at_s: float = 0.0
    tasks_since_s: float = -math.inf
    tasks_taken: int = 0
    unpacked: bool = False
    requires: NodeRequirement | None = None
    kept: Kept | None = None
    executors_max: int | None = None
    training: TrainingReport | None = None
    is_driver: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_driver = is_driver(self.record.application_id)

    @property
    def application_id(self) -> ApplicationId:
        return self.record.application_id

    def find(self, container_id: ContainerId) -> Container | None:
        live = self.containers.get(container_id)
        if live is not None or container_id not in self.ended_ids:
            return live
        return next((x for x in self.ended if x.container_id == container_id), None)

    @property
    def away_since_s(self) -> float | None:
        """Since when its AppMaster's absence counts; None: it is there."""
        return None if self.detached_at_s is None else max(self.detached_at_s, self.excused_s)

    def is_doubtful(self, now: float) -> bool:
        """May it request what an earlier master granted?"""
        return self.doubtful_until_s is None or now < self.doubtful_until_s

    def in_state(self, *states: ContainerState) -> list[Container]:
        return [x for x in self.containers.values() if x.state in states]


@dataclass(slots=True)
class Node:
    """One node. ``containers`` are all and only the live containers assigned to it; ``owner`` is
    the digest of its agent's ownership key, ``incarnations`` the latest to register with it.

    ``excused_s``: until then its silence does not count (``hrm.core.vocabulary.wakefulness``).
    ``preemption_grace_s``: see ``NodeRegistered``.
    """

    name: NodeName
    life: Lifecycle[NodeState, NodeHappening]
    identity: str
    incarnation: str
    host: str
    endpoint: str
    units: tuple[ResourceUnit, ...]
    isolation: str
    spark_versions: tuple[str, ...]
    platform: str
    registered_at_s: float
    last_heard_s: float
    sequence: int = 0
    connected: bool = True
    containers: dict[ContainerId, Container] = field(default_factory=dict)
    usage: Usage | None = None
    shortcuts: tuple[Shortcut, ...] = ()
    remarks: tuple[str, ...] = ()
    owner: str = ""
    excused_s: float = 0.0
    incarnations: tuple[str, ...] = ()
    properties: NodeProperties = UNKNOWN_PROPERTIES
    preemption_grace_s: float | None = None

    @property
    def state(self) -> NodeState:
        return self.life.state

    @property
    def silent_since_s(self) -> float:
        return max(self.last_heard_s, self.excused_s)
