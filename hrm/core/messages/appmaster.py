"""What reaches the AppMaster's core and what it orders: plain records, no decision.

Events are facts in the past tense and carry ``now`` (seconds, monotonic): from Spark (what it
requests and releases), from the master (the status of its containers) and from time. Commands are
in the imperative, to the master or to Spark. ``hrm.core.appmaster.application_master`` turns the
one into the other; only ``hrm.wire.appmaster`` knows their protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from hrm.core.vocabulary.ends import Blame, end_rule
from hrm.core.vocabulary.model import ApplicationState, ContainerEnd, ContainerState
from hrm.core.vocabulary.quick import record

__all__ = [
    "PHASES",
    "AppMasterTicked",
    "ClassObserved",
    "Command",
    "ContainerAsk",
    "ContainerListed",
    "ContainerSeen",
    "DriverFinished",
    "EndOrdered",
    "Event",
    "ExclusionsChanged",
    "ExecutorEnded",
    "ExecutorLimitSet",
    "ExecutorStarted",
    "ExecutorsKilled",
    "ExecutorsRefused",
    "FailApplication",
    "FinishApplication",
    "KeepExecutors",
    "Phase",
    "ProfileTarget",
    "RefuseProfile",
    "ReleaseContainers",
    "ReportClass",
    "ReportExclusions",
    "RequestContainers",
    "SessionLost",
    "SessionOpened",
    "TargetsChanged",
    "container_seen",
]


class Phase(Enum):
    """How far a container has come, as the AppMaster distinguishes it."""

    REQUESTED = "requested"
    """Requested; has no process yet: pending, assigned or waiting at a node."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was ordered to stop, and no longer counts towards the target."""
    ENDED = "ended"


PHASES: Mapping[ContainerState, Phase] = {
    ContainerState.PENDING: Phase.REQUESTED,
    ContainerState.ASSIGNED: Phase.REQUESTED,
    ContainerState.WAITING: Phase.REQUESTED,
    ContainerState.RUNNING: Phase.RUNNING,
    ContainerState.STOPPING: Phase.STOPPING,
    ContainerState.ENDED: Phase.ENDED,
}


@record
class ProfileTarget:
    """Spark's target for one resource profile.

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


@record
class ContainerSeen:
    """A container as the master reports it; the last four fields describe its end."""

    executor_id: str
    profile: int
    phase: Phase
    node: str = ""
    exit_code: int = -1
    blame: Blame = Blame.NONE
    message: str = ""
    lost_host: str = ""


def container_seen(
    executor_id: str, profile: int, state: ContainerState, node: str, end: ContainerEnd | None
) -> ContainerSeen:
    """What of a container's status at the master concerns its AppMaster."""
    seen = ContainerSeen(executor_id=executor_id, profile=profile, phase=PHASES[state], node=node)
    if end is None:
        return seen
    return replace(
        seen,
        exit_code=end.exit_code,
        blame=end_rule(end).blame,
        message=end.message,
        lost_host=end.lost_host,
    )


@record
class _Event:
    now: float


@record
class TargetsChanged(_Event):
    """The targets of the application; for a profile that is absent the target is none."""

    targets: tuple[ProfileTarget, ...]


@record
class ExecutorsKilled(_Event):
    executor_ids: tuple[str, ...]


@record
class ClassObserved(_Event):
    workload_class: str
    evidence: str


@record
class ExclusionsChanged(_Event):
    """All hosts on which Spark schedules nothing now (``spark.excludeOnFailure``)."""

    hosts: tuple[str, ...]


@record
class DriverFinished(_Event):
    state: ApplicationState
    message: str


@record
class SessionOpened(_Event):
    """The session is open; with the application's containers that the master knows.
    ``executors_max``: see ``ExecutorLimitSet``."""

    epoch: int
    containers: tuple[ContainerSeen, ...]
    last_executor_number: int
    executors_max: int | None = None


@record
class SessionLost(_Event):
    pass


@record
class ContainerListed(_Event):
    container: ContainerSeen


@record
class ExecutorsRefused(_Event):
    """No node of the cluster could ever serve these."""

    executor_ids: tuple[str, ...]
    profile: int
    message: str


@record
class ExecutorLimitSet(_Event):
    """So many executors of the default profile the application may have at most, whatever Spark
    requests; None: as many as it requests. Set by the master's policy of elasticity."""

    executors_max: int | None


@record
class EndOrdered(_Event):
    """The master orders the application to end."""

    message: str


@record
class AppMasterTicked(_Event):
    """Time has passed; ``AppMasterCore.wake_at_s`` returns when one is due."""


Event = (
    TargetsChanged
    | ExecutorsKilled
    | ClassObserved
    | ExclusionsChanged
    | DriverFinished
    | SessionOpened
    | SessionLost
    | ContainerListed
    | ExecutorsRefused
    | ExecutorLimitSet
    | EndOrdered
    | AppMasterTicked
)


@record
class ContainerAsk:
    """``hosts``: where its data lies; it may wait ``locality_wait_s`` for capacity there."""

    executor_id: str
    target: ProfileTarget
    hosts: tuple[str, ...] = ()
    locality_wait_s: float = 0.0


@record
class RequestContainers:
    """To the master. ``again``: requested before; None: perhaps, by another AppMaster."""

    asks: tuple[ContainerAsk, ...]
    again: bool | None = None


@record
class ReleaseContainers:
    """To the master."""

    executor_ids: tuple[str, ...]
    reason: str


@record
class ReportClass:
    """To the master."""

    workload_class: str
    evidence: str


@record
class ReportExclusions:
    """To the master: these hosts, and no others, are to get nothing more."""

    hosts: tuple[str, ...]


@record
class FinishApplication:
    """To the master; the last command about this application."""

    state: ApplicationState
    message: str


@record
class ExecutorStarted:
    """To Spark."""

    executor_id: str
    node: str


@record
class ExecutorEnded:
    """To Spark. ``lost_host`` is set when that whole host is gone, with all that was kept there."""

    executor_id: str
    exit_code: int
    message: str
    caused_by_app: bool
    lost_host: str = ""


@record
class FailApplication:
    """To Spark: the application cannot go on."""

    message: str


@record
class RefuseProfile:
    """To Spark: no node can serve this resource profile, so its stages fail; the others go on."""

    profile: int
    message: str


@record
class KeepExecutors:
    """To Spark: executors of the default profile beyond so many finish their tasks and end."""

    executors_max: int


Command = (
    RequestContainers
    | ReleaseContainers
    | ReportClass
    | ReportExclusions
    | FinishApplication
    | ExecutorStarted
    | ExecutorEnded
    | FailApplication
    | RefuseProfile
    | KeepExecutors
)
