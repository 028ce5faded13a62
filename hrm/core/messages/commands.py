"""Commands of the cores, in the imperative, for an interpreter to carry out."""

from __future__ import annotations

from typing import TypeAlias

from hrm.core.messages.claims import Outcome, Proposal
from hrm.core.messages.state_changes import StateChanged, Subscribed
from hrm.core.tenancy.queue_spec import QueueSpec
from hrm.core.vocabulary.learned_classes import LearnedClass, LearnedClassKey
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
from hrm.core.vocabulary.quick import record
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime, RunTimeKey
from hrm.errors import HrmError

__all__ = [
    "AcknowledgeEnded",
    "ApplicationAdmitted",
    "AssignContainer",
    "CallResult",
    "ClaimsSettled",
    "ContainerChanged",
    "DeleteShuffleFiles",
    "Done",
    "DropNode",
    "DropScheduler",
    "DropShuffleFiles",
    "EndApplication",
    "ExecutorLimit",
    "ForgetApplication",
    "ForgetContainer",
    "ForgetDrain",
    "ForgetLearnedClass",
    "ForgetNode",
    "ForgetRunTime",
    "LeaseGranted",
    "MasterCommand",
    "NodeCommand",
    "NodeMessage",
    "Notice",
    "NotifyApplication",
    "PersistApplication",
    "PersistLearnedClass",
    "PersistQueues",
    "PersistRunTime",
    "PinProcess",
    "ProposeClaims",
    "QueueChangeCost",
    "RaiseEpoch",
    "RebindUnits",
    "Rebound",
    "Refuse",
    "RegisterAgain",
    "RememberDrain",
    "RememberNode",
    "Reply",
    "ReplyToRebinding",
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


@record
class AssignContainer:
    spec: ContainerSpec


@record
class StopContainer:
    container_id: ContainerId
    cause: EndCause
    reason: str
    grace_s: float
    only_if_waiting: bool = False
    decommission: bool = False


@record
class AcknowledgeEnded:
    container_ids: tuple[ContainerId, ...]


@record
class SetContainerClass:
    container_id: ContainerId
    workload_class: WorkloadClass


@record
class RebindUnits:
    """Partition the node again; what is None stays. Answered by number."""

    request_id: int
    mode: BindingMode | None
    bound_cores: int | None
    reserve_cores: int | None


@record
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


@record
class ContainerChanged:
    status: ContainerStatus


@record
class RequestRefused:
    """No node of this cluster could ever serve these."""

    executor_ids: tuple[str, ...]
    resource_profile_id: int
    message: str


@record
class EndApplication:
    """The application is over for the master; its session ends after this notice."""

    state: ApplicationState
    message: str


@record
class ExecutorLimit:
    """So many executors of its default profile the application may have; None: all that it
    requests."""

    executors_max: int | None


Notice: TypeAlias = ContainerChanged | RequestRefused | ExecutorLimit | EndApplication


@record
class ApplicationAdmitted:
    """Answer to a registration or an attachment. ``user``: the application's. ``executors_max``:
    see ``ExecutorLimit``."""

    application_id: ApplicationId
    epoch: int
    epoch_id: str = ""
    user: str = ""
    containers: tuple[ContainerStatus, ...]
    last_executor_number: int
    executors_max: int | None = None


@record
class ClaimsSettled:
    """Reply to a remote scheduler's claims; valid once it has taken in message ``sequence``."""

    outcomes: tuple[Outcome, ...]
    sequence: int


@record
class LeaseGranted:
    """Reply to a remote scheduler: valid on message ``sequence``. ``units``: None for all."""

    token: int
    expires_in_s: float
    sequence: int
    units: frozenset[ResourceUnitId] | None


@record
class Done:
    """Reply to a call whose result the caller reads from the core's views."""


@record
class Rebound:
    """Reply to a request for another binding: what the node did, or waits for."""

    message: str


@record
class QueueChangeCost:
    """What a change of queues costs: the containers that are preempted because of it, if what they
    are preempted for still waits by then, and the applications that it keeps from getting more."""

    preempted: tuple[ContainerId, ...] = ()
    held_back: tuple[ApplicationId, ...] = ()


CallResult: TypeAlias = (
    ApplicationAdmitted
    | ClaimsSettled
    | LeaseGranted
    | Subscribed
    | Done
    | Rebound
    | QueueChangeCost
)


@record
class Reply:
    call_id: int
    result: CallResult


@record
class Refuse:
    call_id: int
    error: HrmError


@record
class SendToNode:
    """To the stream of this incarnation; dropped if it is gone, healed by the next report."""

    node: NodeName
    incarnation: str
    message: NodeMessage


@record
class NotifyApplication:
    """To the application's session, if one is open; a new session gets the whole state anyway."""

    application_id: ApplicationId
    notice: Notice


@record
class PersistApplication:
    """Must be durable before any later command of the same batch leaves the master."""

    record: ApplicationRecord


@record
class PersistQueues:
    """All queues that are stated from now on; durable as ``PersistApplication``."""

    stated: tuple[QueueSpec, ...]


@record
class ForgetApplication:
    application_id: ApplicationId


@record
class RememberNode:
    """Write down that the node belongs to the cluster, and the digest of its ownership key: a
    restarted master waits for it."""

    node: NodeName
    owner: str = ""


@record
class ForgetNode:
    node: NodeName


@record
class RememberDrain:
    """Record durably that an administrator drains this node, until it is undone."""

    node: NodeName


@record
class ForgetDrain:
    node: NodeName


@record
class PersistRunTime:
    row: RunTime


@record
class ForgetRunTime:
    key: RunTimeKey


@record
class PersistLearnedClass:
    row: LearnedClass


@record
class ForgetLearnedClass:
    key: LearnedClassKey


@record
class WakeScheduler:
    """Send ``SchedulerWoken`` at ``at_s`` (at once where that is past)."""

    scheduler: str
    at_s: float


@record
class ProposeClaims:
    """Bring the proposal to the negotiator: send ``ClaimsProposed``."""

    proposal: Proposal


@record
class SendToScheduler:
    """To the subscription of this session; dropped if it is gone."""

    scheduler: str
    session: int
    message: StateChanged


@record
class DropNode:
    """End the stream of this incarnation: its agent registers again."""

    node: NodeName
    incarnation: str


@record
class DropScheduler:
    """End the subscription of this session: the scheduler may subscribe again."""

    scheduler: str
    session: int


@record
class RaiseEpoch:
    """Record a later epoch; the interpreter replies with ``EpochRaised``. Until then nothing
    of the new one leaves."""

    epoch: int


MasterCommand: TypeAlias = (
    Reply
    | Refuse
    | SendToNode
    | NotifyApplication
    | PersistApplication
    | PersistQueues
    | ForgetApplication
    | RememberNode
    | ForgetNode
    | RememberDrain
    | ForgetDrain
    | PersistRunTime
    | ForgetRunTime
    | PersistLearnedClass
    | ForgetLearnedClass
    | WakeScheduler
    | ProposeClaims
    | SendToScheduler
    | DropNode
    | DropScheduler
    | RaiseEpoch
)


@record
class StartProcess:
    spec: ContainerSpec


@record
class StopProcess:
    """End all processes of a container: with SIGTERM, and after ``grace_s`` for good. The
    interpreter replies with ``ProcessEnded`` carrying ``cause`` and ``reason``.

    ``decommission``: let it first finish its tasks and hand over its data. A second command, or one
    with less grace, overrides the first.
    """

    container_id: ContainerId
    cause: EndCause
    reason: str
    grace_s: float
    decommission: bool = False


@record
class PinProcess:
    """Hold all processes of a container on these CPUs from now on; empty: on any of the node."""

    container_id: ContainerId
    cpus: tuple[int, ...]


@record
class ReportContainer:
    """Report one change to the master. The interpreter adds usage and log addresses."""

    status: ContainerStatus


@record
class SendHeartbeat:
    """Report every container to the master. The interpreter adds usage and log addresses."""

    statuses: tuple[ContainerStatus, ...]


@record
class ReplyToRebinding:
    """Report the outcome of its ``RebindUnits`` to the master."""

    request_id: int
    accepted: bool
    message: str


@record
class RegisterAgain:
    """The units have changed: reopen the stream to the master. ``binding`` is a new one, to be kept
    for the next start; None where it is as before. ``why`` is for the log where the node chose by
    itself, and empty elsewhere."""

    binding: Partitioning | None
    why: str = ""


@record
class ForgetContainer:
    """The master knows its end: a restarted agent need not report it. What else is kept of it, its
    logs above all, goes in its own time."""

    container_id: ContainerId


@record
class DeleteShuffleFiles:
    """Those that the executors of an application that has ended left on the node."""

    application_id: ApplicationId


NodeCommand: TypeAlias = (
    StartProcess
    | StopProcess
    | PinProcess
    | ReportContainer
    | SendHeartbeat
    | ReplyToRebinding
    | RegisterAgain
    | ForgetContainer
    | DeleteShuffleFiles
)
