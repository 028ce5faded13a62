"""Commands of the cores, in the imperative, for an interpreter to carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.messages.claims import Outcome, Proposal
from hrm.core.messages.state_changes import StateChanged, Subscribed
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerId,
    ContainerSpec,
    ContainerStatus,
    EndCause,
    NodeName,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import BindingMode, Partitioning
from hrm.core.vocabulary.quick import quick
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime, RunTimeKey
from hrm.errors import HrmError

__all__ = [
    "AcknowledgeEnded",
    "Answer",
    "AnswerRebinding",
    "ApplicationAdmitted",
    "AssignContainer",
    "ClaimsSettled",
    "ContainerChanged",
    "Done",
    "DropNode",
    "DropScheduler",
    "DropShuffleFiles",
    "EndApplication",
    "ForgetApplication",
    "ForgetDrain",
    "ForgetNode",
    "ForgetRunTime",
    "LeaseGranted",
    "MasterCommand",
    "NodeCommand",
    "NodeMessage",
    "Notice",
    "NotifyApplication",
    "PersistApplication",
    "PersistRunTime",
    "ProposeClaims",
    "RaiseEpoch",
    "RebindUnits",
    "Rebound",
    "Refuse",
    "RegisterAgain",
    "RememberDrain",
    "RememberNode",
    "Reply",
    "ReportContainer",
    "RequestRefused",
    "SendHeartbeat",
    "SendToNode",
    "SendToScheduler",
    "SetContainerClass",
    "StartProcess",
    "StopContainer",
    "StopProcess",
    "WakeScheduler",
]


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class AssignContainer:
    spec: ContainerSpec


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class StopContainer:
    container_id: ContainerId
    cause: EndCause
    reason: str
    grace_s: float
    only_if_waiting: bool = False
    decommission: bool = False


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeEnded:
    container_ids: tuple[ContainerId, ...]


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class SetContainerClass:
    container_id: ContainerId
    workload_class: WorkloadClass


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RebindUnits:
    """Partition the node again; what is None stays. Answered by number."""

    request_id: int
    mode: BindingMode | None
    bound_cores: int | None
    reserve_cores: int | None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class DropShuffleFiles:
    """The application has ended: what its executors left on the node is no longer read."""

    application_id: ApplicationId


NodeMessage: TypeAlias = (
    AssignContainer
    | StopContainer
    | AcknowledgeEnded
    | SetContainerClass
    | RebindUnits
    | DropShuffleFiles
)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerChanged:
    status: ContainerStatus


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """No node of this cluster could ever serve these."""

    executor_ids: tuple[str, ...]
    resource_profile_id: int
    message: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class EndApplication:
    """The application is over for the master; its session ends after this notice."""

    state: ApplicationState
    message: str


Notice: TypeAlias = ContainerChanged | RequestRefused | EndApplication


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationAdmitted:
    """Answer to a registration or an attachment."""

    application_id: ApplicationId
    epoch: int
    epoch_id: str = ""
    containers: tuple[ContainerStatus, ...]
    last_executor_number: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsSettled:
    """Reply to a remote scheduler's claims; valid once it has taken in message ``sequence``."""

    outcomes: tuple[Outcome, ...]
    sequence: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted:
    """Reply to a remote scheduler: valid on message ``sequence``. ``units``: None for all."""

    token: int
    expires_in_s: float
    sequence: int
    units: frozenset[ResourceUnitId] | None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Reply to a call whose result the caller reads from the core's views."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Rebound:
    """Reply to a request for another binding: what the node did, or waits for."""

    message: str


Answer: TypeAlias = ApplicationAdmitted | ClaimsSettled | LeaseGranted | Subscribed | Done | Rebound


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    call_id: int
    answer: Answer


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    call_id: int
    error: HrmError


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class SendToNode:
    """To the stream of this incarnation; dropped if it is gone, healed by the next report."""

    node: NodeName
    incarnation: str
    message: NodeMessage


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyApplication:
    """To the application's session, if one is open; a new session gets the whole state anyway."""

    application_id: ApplicationId
    notice: Notice


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class PersistApplication:
    """Must be durable before any later command of the same batch leaves the master."""

    record: ApplicationRecord


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetApplication:
    application_id: ApplicationId


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RememberNode:
    """Write down that the node belongs to the cluster, and the digest of its ownership key: a
    restarted master waits for it."""

    node: NodeName
    owner: str = ""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetNode:
    node: NodeName


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RememberDrain:
    """Write down that an administrator wants this node drained, until it is undone."""

    node: NodeName


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDrain:
    node: NodeName


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class PersistRunTime:
    row: RunTime


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRunTime:
    key: RunTimeKey


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class WakeScheduler:
    """Send ``SchedulerWoken`` at ``at_s`` (at once where that is past)."""

    scheduler: str
    at_s: float


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeClaims:
    """Bring the proposal to the negotiator: send ``ClaimsProposed``."""

    proposal: Proposal


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class SendToScheduler:
    """To the subscription of this session; dropped if it is gone."""

    scheduler: str
    session: int
    message: StateChanged


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class DropNode:
    """End the stream of this incarnation: its agent registers again."""

    node: NodeName
    incarnation: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class DropScheduler:
    """End the subscription of this session: the scheduler may subscribe again."""

    scheduler: str
    session: int


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseEpoch:
    """Write down a later epoch; the interpreter answers with ``EpochRaised``. Until then nothing
    of the new one leaves."""

    epoch: int


MasterCommand: TypeAlias = (
    Reply
    | Refuse
    | SendToNode
    | NotifyApplication
    | PersistApplication
    | ForgetApplication
    | RememberNode
    | ForgetNode
    | RememberDrain
    | ForgetDrain
    | PersistRunTime
    | ForgetRunTime
    | WakeScheduler
    | ProposeClaims
    | SendToScheduler
    | DropNode
    | DropScheduler
    | RaiseEpoch
)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class StartProcess:
    spec: ContainerSpec


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class StopProcess:
    """End all processes of a container: with SIGTERM, and after ``grace_s`` for good. The
    interpreter answers with ``ProcessEnded`` carrying ``cause`` and ``reason``.

    ``decommission``: let it first finish its tasks and hand over its data. A second command, or one
    with less grace, overrides the first.
    """

    container_id: ContainerId
    cause: EndCause
    reason: str
    grace_s: float
    decommission: bool = False


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContainer:
    """Report one change to the master. The interpreter adds usage and log addresses."""

    status: ContainerStatus


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class SendHeartbeat:
    """Report every container to the master. The interpreter adds usage and log addresses."""

    statuses: tuple[ContainerStatus, ...]


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRebinding:
    """Report the outcome of its ``RebindUnits`` to the master."""

    request_id: int
    accepted: bool
    message: str


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterAgain:
    """The units have changed: reopen the stream to the master. ``binding`` is the one in force, to
    be kept for the next start; None while the node still waits for units to become free, or no
    longer does. ``why`` is for the log where the node chose by itself, and empty elsewhere."""

    binding: Partitioning | None
    why: str = ""


NodeCommand: TypeAlias = (
    StartProcess | StopProcess | ReportContainer | SendHeartbeat | AnswerRebinding | RegisterAgain
)
