"""Facts that reach the cores, in the past tense. Every event carries ``now``, seconds since the
epoch: the cores have no other clock.

``call_id`` names a caller that waits for a reply; the core replies with ``Reply`` or ``Refuse``.
"""

from __future__ import annotations

from typing import TypeAlias

from hrm.core.messages.claims import Proposal
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec
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
    ExecutorTasks,
    FirstExecutors,
    Followed,
    LaunchContext,
    NodeName,
    Progress,
    ResourceUnit,
    Shortcut,
    TrainingReport,
    Usage,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement, Runtime
from hrm.core.vocabulary.partitioning import BindingMode
from hrm.core.vocabulary.quick import record

__all__ = [
    "ApplicationAttached",
    "ApplicationDetached",
    "ApplicationEnded",
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
    "DriverFailed",
    "EndsAcknowledged",
    "EpochRaised",
    "Event",
    "HeartbeatDue",
    "HostsExcluded",
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
    "PriorityRequested",
    "ProcessEnded",
    "ProgressReported",
    "QueuesChanged",
    "RebindReceived",
    "RebindReplied",
    "RebindRequested",
    "ReceivedFromMaster",
    "SchedulerConnected",
    "SchedulerDisconnected",
    "SchedulerWoken",
    "StopReceived",
    "Ticked",
    "UsageMeasured",
    "WorkloadClassObserved",
]


@record
class Event:
    now: float


@record
class NodeRegistered(Event):
    """An agent opened its stream. ``identity`` distinguishes agents of one name; ``incarnation`` is
    new with every process; ``sequence`` rises with every message of one incarnation. ``owner``: the
    digest of its ownership key, see ``core.vocabulary.ownership``. ``followed``: None where it has
    followed no master since its start, as for AppMasters and schedulers. ``labels`` and
    ``runtimes``: see ``NodeProperties``. ``preemption_grace_s``: how long what it preempts for
    streams may take to end; None: it preempts nothing, or has not said."""

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
    labels: frozenset[str] = frozenset()
    runtimes: tuple[Runtime, ...] | None = None
    preemption_grace_s: float | None = None


@record
class NodeReported(Event):
    """A heartbeat: every container the node knows."""

    node: NodeName
    incarnation: str
    sequence: int
    containers: tuple[ContainerStatus, ...]
    usage: Usage | None = None
    shortcuts: tuple[Shortcut, ...] = ()


@record
class ContainerReported(Event):
    """One container of a node changed."""

    node: NodeName
    incarnation: str
    sequence: int
    container: ContainerStatus


@record
class NodeDisconnected(Event):
    node: NodeName
    incarnation: str


@record
class ApplicationRegistered(Event):
    """``application_id`` is empty for a new application; ``new_id`` is then the id that it gets,
    where the master itself assigns one for the driver of a submission.

    ``submission_id`` and ``submission_attempt``: the driver that registers, in cluster mode.
    ``owner``: the digest of its ownership key, see ``core.vocabulary.ownership``.
    ``first_executors``: of what holds a submitted driver: what that driver needs to begin.
    ``requires``: what a node must meet to get its containers; None: nothing.
    ``input_bytes``: how much it reads, 0: not stated.
    ``driver_start``: how its driver started, in words; empty: as any program.
    ``queue``: the one that it names, empty: none; ``tags``: words that rules may place it by;
    ``groups``: those of its user; ``priority``: where its queue orders by that, the highest first.
    ``proven``: whoever registers may speak for ``application_id`` even if there is no record of it:
    ids and their owners' keys prove nothing then.
    """

    call_id: int
    application_id: ApplicationId
    submission_key: str
    name: str
    user: str
    queue: str = ""
    tags: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    priority: int = 0
    spark_version: str = ""
    driver_host: str = ""
    web_url: str = ""
    driver_start: str = ""
    declared_class: WorkloadClass | None = None
    launch: LaunchContext = NO_LAUNCH
    gang_min: int = 0
    stream_min: int = 0
    input_bytes: int = 0
    new_id: ApplicationId | None = None
    submission_id: str = ""
    submission_attempt: int = 0
    owner: str = ""
    followed: Followed | None = None
    first_executors: FirstExecutors | None = None
    requires: NodeRequirement | None = None
    proven: bool = False


@record
class ApplicationAttached(Event):
    """The AppMaster opened session number ``session``; a newer one replaces an older one."""

    call_id: int
    application_id: ApplicationId
    session: int
    epoch: int
    owner: str = ""


@record
class ApplicationDetached(Event):
    application_id: ApplicationId
    session: int


@record
class ContainersRequested(Event):
    """``again``: requested before, from this master or an earlier one; None: perhaps."""

    application_id: ApplicationId
    requests: tuple[ContainerRequest, ...]
    again: bool | None = None


@record
class ContainersReleased(Event):
    application_id: ApplicationId
    executor_ids: tuple[str, ...]
    reason: str = ""


@record
class ProgressReported(Event):
    """``tasks``: that have ended since the previous report; a report that arrives twice counts
    them twice. ``training``: epochs since then, in order."""

    application_id: ApplicationId
    progress: Progress
    tasks: tuple[ExecutorTasks, ...] = ()
    training: tuple[TrainingReport, ...] = ()


@record
class HostsExcluded(Event):
    """All hosts that the application's driver excludes now: they are to get nothing more of it."""

    application_id: ApplicationId
    hosts: frozenset[str]


@record
class WorkloadClassObserved(Event):
    application_id: ApplicationId
    workload_class: WorkloadClass
    evidence: str = ""


@record
class ApplicationFinished(Event):
    """The driver ended, or its AppMaster reports that it did."""

    application_id: ApplicationId
    state: ApplicationState
    message: str = ""


@record
class DriverFailed(Event):
    """The driver of a submission was seen to fail. ``attempt``: what that driver made is failed,
    although its context was stopped before; 0: what has ended already stays as it is."""

    application_id: ApplicationId
    attempt: int
    message: str


@record
class KillRequested(Event):
    """``by``: the identity that asks, where that is no administrator or operator."""

    call_id: int
    application_id: ApplicationId
    reason: str = ""
    by: str = ""


@record
class PriorityRequested(Event):
    """``steps``: up, or down if negative; never 0. ``by``: who asks; ``user``: the name of that
    user, empty for an operator, whom no queue bounds."""

    call_id: int
    application_id: ApplicationId
    steps: int
    by: str
    user: str = ""


@record
class DrainRequested(Event):
    """``move_within_s``: what runs there hands over its data within this time, and ends; 0: it runs
    on to its own end. ``reason``: for the nodes' events."""

    call_id: int
    nodes: tuple[NodeName, ...]
    undo: bool = False
    move_within_s: float = 0.0
    reason: str = ""


@record
class QueuesChanged(Event):
    """An administrator changes the tree of queues: ``stated`` are created, or, unless ``create``,
    replaced; ``removed`` are removed. All of it happens, or nothing. ``dry_run``: nothing happens,
    and the reply is what it would cost.
    """

    call_id: int
    stated: tuple[QueueSpec, ...] = ()
    removed: tuple[QueueName, ...] = ()
    create: bool = False
    dry_run: bool = False


@record
class RebindRequested(Event):
    """An operator has a node partitioned again. What is None stays as the node has it."""

    call_id: int
    node: NodeName
    mode: BindingMode | None = None
    bound_cores: int | None = None
    reserve_cores: int | None = None


@record
class RebindReplied(Event):
    """A node's reply to ``RebindUnits`` number ``request_id``."""

    node: NodeName
    request_id: int
    accepted: bool
    message: str


@record
class SchedulerWoken(Event):
    scheduler: str


@record
class ClaimsProposed(Event):
    """A scheduler's claims reached the negotiator.

    The rest is set where the scheduler is remote: the call that waits for the outcomes, how its
    policy failed, if it did, and the latest change of the state that it had taken in.
    """

    proposal: Proposal
    call_id: int = 0
    session: int = 0
    problem: str = ""
    sequence: int = 0


@record
class SchedulerConnected(Event):
    """A scheduler of another process subscribed, as number ``session`` of them all."""

    call_id: int
    scheduler: str
    session: int
    followed: Followed | None = None


@record
class SchedulerDisconnected(Event):
    scheduler: str
    session: int


@record
class LeaseRequested(Event):
    """A remote scheduler requests the lease, to place this stream. The reply follows the grant."""

    call_id: int
    scheduler: str
    session: int
    application_id: ApplicationId


@record
class LeaseReturned(Event):
    call_id: int
    scheduler: str
    session: int
    token: int


@record
class EpochRaised(Event):
    """``RaiseEpoch`` is on the disk."""

    epoch: int


@record
class Ticked(Event):
    """Time passed; drives every time limit of a core."""


@record
class ReceivedFromMaster(Event):
    """What has come from a master, to a node: one of an older epoch than the node has followed has
    no effect."""

    epoch: int


@record
class MasterConnected(ReceivedFromMaster):
    """The master accepted this node's registration."""

    epoch_id: str = ""


@record
class MasterDisconnected(Event):
    pass


@record
class AssignReceived(ReceivedFromMaster):
    spec: ContainerSpec


@record
class StopReceived(ReceivedFromMaster):
    container_id: ContainerId
    cause: EndCause
    reason: str
    grace_s: float
    only_if_waiting: bool = False
    decommission: bool = False


@record
class EndsAcknowledged(ReceivedFromMaster):
    container_ids: tuple[ContainerId, ...]


@record
class ContainerClassSet(ReceivedFromMaster):
    container_id: ContainerId
    workload_class: WorkloadClass


@record
class RebindReceived(ReceivedFromMaster):
    request_id: int
    mode: BindingMode | None = None
    bound_cores: int | None = None
    reserve_cores: int | None = None

    @property
    def concerns_gpus(self) -> bool:
        """Does it request what only a node with GPUs can do?"""
        if self.mode not in (None, BindingMode.SHARED):
            return True
        return self.bound_cores is not None or self.reserve_cores is not None


@record
class ApplicationEnded(ReceivedFromMaster):
    """What the executors of an application left on the node is no longer read."""

    application_id: ApplicationId


@record
class ProcessEnded(Event):
    """The launcher reports a container's processes as gone, or as impossible to start."""

    container_id: ContainerId
    end: ContainerEnd


@record
class ContainerAdopted(Event):
    """A restarted agent found a container running.

    ``stopping``: the reason, where its predecessor had ordered it to end; ``decommissioning``: it
    may first finish what it does.
    """

    spec: ContainerSpec
    started_at_s: float
    stopping: str = ""
    decommissioning: bool = False


@record
class ContainerOverLimit(Event):
    """A container was seen to use more than it holds; ``cause``: of which resource."""

    container_id: ContainerId
    message: str
    cause: EndCause = EndCause.MEMORY_LIMIT


@record
class UsageMeasured(Event):
    """The tracker has sampled all containers: percent of one CPU that each has used since."""

    cpu_percent: tuple[tuple[ContainerId, float], ...]


@record
class NodeClosed(Event):
    """The machine lacks what every container needs, disk above all; ``why`` names it."""

    why: str


@record
class NodeOpened(Event):
    """It has it again."""


@record
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
    | HostsExcluded
    | WorkloadClassObserved
    | ApplicationFinished
    | DriverFailed
    | KillRequested
    | PriorityRequested
    | DrainRequested
    | QueuesChanged
    | RebindRequested
    | RebindReplied
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
    | ApplicationEnded
    | ProcessEnded
    | ContainerAdopted
    | ContainerOverLimit
    | UsageMeasured
    | NodeClosed
    | NodeOpened
    | HeartbeatDue
)
