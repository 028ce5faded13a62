"""Facts that reach the cores, in the past tense. Every event carries ``now``, seconds since the
epoch: the cores know no other clock.

``call_id`` names a caller that waits for an answer; the core answers with ``Reply`` or ``Refuse``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.messages.claims import Proposal
from hrm.core.vocabulary.model import (
    NO_LAUNCH,
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerSpec,
    ContainerStatus,
    EndCause,
    Followed,
    LaunchContext,
    NodeName,
    Progress,
    ResourceUnit,
    Shortcut,
    Usage,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode
from hrm.core.vocabulary.quick import quick

__all__ = [
    "ApplicationAttached",
    "ApplicationDetached",
    "ApplicationFinished",
    "ApplicationRegistered",
    "AssignReceived",
    "ClaimsProposed",
    "ContainerAdopted",
    "ContainerClassSet",
    "ContainerOverLimit",
    "ContainerReported",
    "ContainersReleased",
    "ContainersRequested",
    "DrainRequested",
    "EndsAcknowledged",
    "EpochRaised",
    "Event",
    "HeartbeatDue",
    "KillRequested",
    "LeaseRequested",
    "LeaseReturned",
    "MasterConnected",
    "MasterDisconnected",
    "MasterEvent",
    "NodeClosed",
    "NodeDisconnected",
    "NodeEvent",
    "NodeOpened",
    "NodeRegistered",
    "NodeReported",
    "ProcessEnded",
    "ProgressReported",
    "RebindAnswered",
    "RebindReceived",
    "RebindRequested",
    "SchedulerConnected",
    "SchedulerDisconnected",
    "SchedulerWoken",
    "StopReceived",
    "Ticked",
    "UsageMeasured",
    "WorkloadClassObserved",
]


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    now: float


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered(Event):
    """An agent opened its stream. ``identity`` distinguishes agents of one name; ``incarnation`` is
    new with every process; ``sequence`` rises with every message of one incarnation. ``owner``: the
    digest of its ownership key, see ``core.vocabulary.ownership``. ``followed``: None where it has
    followed no master since its start, as for AppMasters and schedulers."""

    call_id: int
    node: NodeName
    identity: str
    incarnation: str
    sequence: int
    host: str
    endpoint: str
    units: tuple[ResourceUnit, ...]
    containers: tuple[ContainerStatus, ...] = ()
    isolation: str = ""
    spark_versions: tuple[str, ...] = ()
    platform: str = ""
    remarks: tuple[str, ...] = ()
    owner: str = ""
    followed: Followed | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported(Event):
    """A heartbeat: every container the node knows."""

    node: NodeName
    incarnation: str
    sequence: int
    containers: tuple[ContainerStatus, ...]
    usage: Usage | None = None
    shortcuts: tuple[Shortcut, ...] = ()


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReported(Event):
    """One container of a node changed."""

    node: NodeName
    incarnation: str
    sequence: int
    container: ContainerStatus


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDisconnected(Event):
    node: NodeName
    incarnation: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationRegistered(Event):
    """``application_id`` is empty for a new application; ``new_id`` is then the id that it gets,
    where the master itself wants one for the driver of a submission.

    ``submission_id`` and ``submission_attempt``: the driver that registers, in cluster mode.
    ``owner``: the digest of its ownership key, see ``core.vocabulary.ownership``.
    """

    call_id: int
    application_id: ApplicationId
    submission_key: str
    name: str
    user: str
    tenant: str = ""
    spark_version: str = ""
    driver_host: str = ""
    web_url: str = ""
    declared_class: WorkloadClass | None = None
    launch: LaunchContext = NO_LAUNCH
    gang_min: int = 0
    new_id: ApplicationId | None = None
    submission_id: str = ""
    submission_attempt: int = 0
    owner: str = ""
    followed: Followed | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationAttached(Event):
    """The AppMaster opened session number ``session``; a newer one replaces an older one."""

    call_id: int
    application_id: ApplicationId
    session: int
    epoch: int
    owner: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationDetached(Event):
    application_id: ApplicationId
    session: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainersRequested(Event):
    """``again``: requested before, from this master or an earlier one; None: perhaps."""

    application_id: ApplicationId
    requests: tuple[ContainerRequest, ...]
    again: bool | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainersReleased(Event):
    application_id: ApplicationId
    executor_ids: tuple[str, ...]
    reason: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReported(Event):
    application_id: ApplicationId
    progress: Progress


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadClassObserved(Event):
    application_id: ApplicationId
    workload_class: WorkloadClass
    evidence: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationFinished(Event):
    """The driver ended, or its AppMaster reports that it did."""

    application_id: ApplicationId
    state: ApplicationState
    message: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequested(Event):
    call_id: int
    application_id: ApplicationId
    reason: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested(Event):
    """``move_within_s``: what runs there hands over its data within this time, and ends; 0: it runs
    on to its own end."""

    call_id: int
    nodes: tuple[NodeName, ...]
    undo: bool = False
    move_within_s: float = 0.0


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RebindRequested(Event):
    """An operator wants a node partitioned again. What is None stays as the node has it."""

    call_id: int
    node: NodeName
    mode: BindingMode | None = None
    bound_cores: int | None = None
    reserve_cores: int | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RebindAnswered(Event):
    """A node's reply to ``RebindUnits`` number ``request_id``."""

    node: NodeName
    request_id: int
    accepted: bool
    message: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerWoken(Event):
    scheduler: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsProposed(Event):
    """A scheduler's claims reached the negotiator.

    The rest is set where the scheduler is remote: the call that waits for the outcomes, and how its
    policy failed, if it did.
    """

    proposal: Proposal
    call_id: int = 0
    session: int = 0
    problem: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConnected(Event):
    """A scheduler of another process subscribed, as number ``session`` of them all."""

    call_id: int
    scheduler: str
    session: int
    followed: Followed | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDisconnected(Event):
    scheduler: str
    session: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequested(Event):
    """A remote scheduler wants the lease, to place this stream. Answered when it has it."""

    call_id: int
    scheduler: str
    session: int
    application_id: ApplicationId


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReturned(Event):
    call_id: int
    scheduler: str
    session: int
    token: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRaised(Event):
    """``RaiseEpoch`` is on the disk."""

    epoch: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Event):
    """Time passed; drives every time limit of a core."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class MasterConnected(Event):
    """The master accepted this node's registration."""

    epoch: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class MasterDisconnected(Event):
    pass


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReceived(Event):
    epoch: int
    spec: ContainerSpec


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class StopReceived(Event):
    epoch: int
    container_id: ContainerId
    cause: EndCause
    reason: str
    grace_s: float
    only_if_waiting: bool = False
    decommission: bool = False


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class EndsAcknowledged(Event):
    epoch: int
    container_ids: tuple[ContainerId, ...]


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerClassSet(Event):
    epoch: int
    container_id: ContainerId
    workload_class: WorkloadClass


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RebindReceived(Event):
    epoch: int
    request_id: int
    mode: BindingMode | None = None
    bound_cores: int | None = None
    reserve_cores: int | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded(Event):
    """The launcher reports a container's processes as gone, or as impossible to start."""

    container_id: ContainerId
    end: ContainerEnd


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAdopted(Event):
    """A restarted agent found a container running.

    ``stopping``: the reason, where its predecessor had ordered it to end; ``decommissioning``: it
    may first finish what it does.
    """

    spec: ContainerSpec
    started_at_s: float
    stopping: str = ""
    decommissioning: bool = False


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOverLimit(Event):
    """A container was seen to use more than it holds; ``cause``: of which resource."""

    container_id: ContainerId
    message: str
    cause: EndCause = EndCause.MEMORY_LIMIT


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class UsageMeasured(Event):
    """The tracker has sampled all containers: percent of one CPU that each has used since."""

    cpu_percent: tuple[tuple[ContainerId, float], ...]


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClosed(Event):
    """The machine lacks what every container needs, disk above all; ``why`` names it."""

    why: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOpened(Event):
    """It has it again."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatDue(Event):
    pass


MasterEvent: TypeAlias = (
    NodeRegistered
    | NodeReported
    | ContainerReported
    | NodeDisconnected
    | ApplicationRegistered
    | ApplicationAttached
    | ApplicationDetached
    | ContainersRequested
    | ContainersReleased
    | ProgressReported
    | WorkloadClassObserved
    | ApplicationFinished
    | KillRequested
    | DrainRequested
    | RebindRequested
    | RebindAnswered
    | SchedulerWoken
    | ClaimsProposed
    | SchedulerConnected
    | SchedulerDisconnected
    | LeaseRequested
    | LeaseReturned
    | EpochRaised
    | Ticked
)

NodeEvent: TypeAlias = (
    MasterConnected
    | MasterDisconnected
    | AssignReceived
    | StopReceived
    | EndsAcknowledged
    | ContainerClassSet
    | RebindReceived
    | ProcessEnded
    | ContainerAdopted
    | ContainerOverLimit
    | UsageMeasured
    | NodeClosed
    | NodeOpened
    | HeartbeatDue
)
