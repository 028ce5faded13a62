"""Events (past tense, with ``now``) and commands (imperative) of the cluster's pipeline core."""

from __future__ import annotations

from dataclasses import dataclass

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import TaskId, TaskSpec
from hrm.pipelines.core.node_messages import (
    EndTask,
    NodeCapacity,
    NodeLoad,
    ReportSubtask,
    SubtaskTiming,
    TaskOutcome,
)

__all__ = [
    "ATTEMPTS_MAX",
    "AllEnded",
    "CancelAsked",
    "CancelTask",
    "ClusterCommand",
    "ClusterEvent",
    "ClusterTicked",
    "FinishTask",
    "NodeAway",
    "NodeJoined",
    "NodeLost",
    "PipelineNodeReported",
    "PlaceTask",
    "RecoveryEnded",
    "ReportPlacement",
    "ReportTiming",
    "SubtaskReported",
    "TaskEnded",
    "TaskRecovered",
    "TaskSubmitted",
    "attempts_before",
    "placement_number",
]

ATTEMPTS_MAX = 1 << 10
"""Per task under one master; above both limits on losses. An attempt of an earlier master differs
from what it was by a multiple of this, and is below all of this one's."""


def attempts_before(began_s: float) -> int:
    """What a master that began then adds to its own numbers of attempts on the wire, so that a
    worker that still has a task of an earlier one, under an id that a client has reused, can
    distinguish them. An epoch does not set masters apart, where a store is an older copy; times do,
    in milliseconds. After a clock that went back, an earlier master's attempts are beyond this
    one's, and end as those that nobody knows."""
    return round(1_000 * began_s) * ATTEMPTS_MAX


def placement_number(attempt: int) -> int:
    """For people: which placement it was, under the master that made it."""
    return attempt % ATTEMPTS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSubmitted:
    """A client submits the task. Refused by an exception, or ended by one ``FinishTask``."""

    now: float
    task: TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecovered:
    """An earlier master had the task: it may be at a node that comes back until then."""

    now: float
    task: TaskSpec
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryEnded:
    """All nodes are back that can have a task of an earlier master."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    now: float
    task_id: TaskId
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node is connected (again), with these tasks and the attempts that placed them."""

    now: float
    capacity: NodeCapacity
    tasks: tuple[tuple[TaskId, int], ...] = ()
    load: NodeLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """``counts``: are its tasks lost by a failure, of which each may have some? Not if it was
    preempted, or ended as was ordered."""

    now: float
    name: NodeName
    why: str = ""
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AllEnded:
    """There will be no node any more: all tasks end so."""

    now: float
    outcome: TaskOutcome
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAway:
    """Its stream is down, or it is to end: it gets no new tasks until it joins again."""

    now: float
    name: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineNodeReported:
    now: float
    name: NodeName
    load: NodeLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskReported:
    """A run of a placement is over, as its node reports it."""

    now: float
    name: NodeName
    report: ReportSubtask


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnded:
    """A placement is over, as its node reports it."""

    now: float
    name: NodeName
    end: EndTask


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTicked:
    """Time has passed: silent nodes are lost."""

    now: float


ClusterEvent = (
    TaskSubmitted
    | TaskRecovered
    | RecoveryEnded
    | CancelAsked
    | NodeJoined
    | NodeLost
    | NodeAway
    | PipelineNodeReported
    | SubtaskReported
    | TaskEnded
    | AllEnded
    | ClusterTicked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTask:
    """Send the task to the node. ``why`` is the policy's reason."""

    node: NodeName
    task: TaskSpec
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTask:
    """Order the node to drop this placement of the task."""

    node: NodeName
    task_id: TaskId
    attempt: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlacement:
    """Notify the task's watchers that it was placed, or why it is back in the queue."""

    task_id: TaskId
    node: NodeName | None
    attempt: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTiming:
    """Notify the task's watchers of one run that is over."""

    node: NodeName
    report: ReportSubtask


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTask:
    """The task has ended; exactly one for each task submitted."""

    task_id: TaskId
    node: NodeName | None
    attempt: int
    outcome: TaskOutcome
    message: str
    timings: tuple[SubtaskTiming, ...]
    response_s: float


ClusterCommand = PlaceTask | CancelTask | ReportPlacement | ReportTiming | FinishTask
