"""What reaches the AppMaster's core and what it orders: plain records, no decision.

Events are facts in the past tense and carry ``now`` (seconds, monotonic): from Spark (what it
wants and releases), from the master (the status of its containers) and from time. Commands are in
the imperative, to the master or to Spark. ``hrm.core.appmaster.application_master`` turns the one
into the other; only ``hrm.wire.appmaster`` knows their protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hrm.core.vocabulary.ends import Blame, end_rule
from hrm.core.vocabulary.model import ContainerEnd, ContainerState

__all__ = [
    "PHASES",
    "ClassObserved",
    "Command",
    "ContainerAsk",
    "ContainerChanged",
    "ContainerSeen",
    "DriverFinished",
    "EndOrdered",
    "Event",
    "ExecutorEnded",
    "ExecutorStarted",
    "FailApplication",
    "FinishApplication",
    "KillRequested",
    "Phase",
    "ProfileTarget",
    "ReleaseContainers",
    "ReportClass",
    "RequestContainers",
    "RequestsRefused",
    "SessionLost",
    "SessionOpened",
    "TargetsChanged",
    "Ticked",
    "container_seen",
]


class Phase(Enum):
    """How far a container has come, as the AppMaster distinguishes it."""

    REQUESTED = "requested"
    """Asked for; has no process yet: pending, assigned or waiting at a node."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was asked to stop, and no longer counts towards the target."""
    ENDED = "ended"


PHASES: Mapping[ContainerState, Phase] = {
    ContainerState.PENDING: Phase.REQUESTED,
    ContainerState.ASSIGNED: Phase.REQUESTED,
    ContainerState.WAITING: Phase.REQUESTED,
    ContainerState.RUNNING: Phase.RUNNING,
    ContainerState.STOPPING: Phase.STOPPING,
    ContainerState.ENDED: Phase.ENDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTarget:
    """What Spark wants of one resource profile.

    ``gpu_memory_mib`` is 0 for a whole GPU. ``unknown_resources`` are custom ones that HRM does not
    manage. ``hosts``: where the blocks lie that its waiting tasks read, the most first;
    ``local_executors``: how many executors such tasks would fill.
    """

    profile: int
    count: int
    vcores: int
    heap_mib: int
    memory_mib: int
    gpu_memory_mib: int = 0
    gpus: int = 0
    unknown_resources: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    local_executors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSeen:
    """A container as the master reports it; the last three fields describe its end."""

    executor_id: str
    profile: int
    phase: Phase
    node: str = ""
    exit_code: int = -1
    blame: Blame = Blame.NOBODY
    message: str = ""


def container_seen(
    executor_id: str, profile: int, state: ContainerState, node: str, end: ContainerEnd | None
) -> ContainerSeen:
    """What of a container's status at the master concerns its AppMaster."""
    if end is None:
        return ContainerSeen(
            executor_id=executor_id, profile=profile, phase=PHASES[state], node=node
        )
    return ContainerSeen(
        executor_id=executor_id,
        profile=profile,
        phase=PHASES[state],
        node=node,
        exit_code=end.exit_code,
        blame=end_rule(end).blame,
        message=end.message,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsChanged:
    """All that the application wants; a profile that is absent wants none."""

    now: float
    targets: tuple[ProfileTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequested:
    now: float
    executor_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassObserved:
    now: float
    workload_class: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFinished:
    now: float
    succeeded: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    """The session is open; with the containers of ours that the master knows."""

    now: float
    epoch: int
    containers: tuple[ContainerSeen, ...]
    last_executor_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerChanged:
    now: float
    container: ContainerSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsRefused:
    """No node of the cluster could ever serve these."""

    now: float
    executor_ids: tuple[str, ...]
    profile: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOrdered:
    """The master wants the application to end."""

    now: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed; ``AppMasterCore.wake_at_s`` returns when one is due."""

    now: float


Event = (
    TargetsChanged
    | KillRequested
    | ClassObserved
    | DriverFinished
    | SessionOpened
    | SessionLost
    | ContainerChanged
    | RequestsRefused
    | EndOrdered
    | Ticked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAsk:
    """``hosts``: where its data lies; it may wait ``locality_wait_s`` for capacity there."""

    executor_id: str
    target: ProfileTarget
    hosts: tuple[str, ...] = ()
    locality_wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContainers:
    """To the master. ``again``: requested before; None: perhaps, by another AppMaster."""

    asks: tuple[ContainerAsk, ...]
    again: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseContainers:
    """To the master."""

    executor_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportClass:
    """To the master."""

    workload_class: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishApplication:
    """To the master; the last command about this application."""

    succeeded: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStarted:
    """To Spark."""

    executor_id: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorEnded:
    """To Spark. ``lost_node`` is set when the whole machine is gone."""

    executor_id: str
    exit_code: int
    message: str
    caused_by_app: bool
    lost_node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailApplication:
    """To Spark: the application cannot go on."""

    message: str


Command = (
    RequestContainers
    | ReleaseContainers
    | ReportClass
    | FinishApplication
    | ExecutorStarted
    | ExecutorEnded
    | FailApplication
)
