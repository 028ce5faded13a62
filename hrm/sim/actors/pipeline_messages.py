"""What a worker of pipelines and the master send each other. Attempts are numbered as on the wire,
where those of different masters differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hrm.pipelines.core.model import TaskId, TaskSpec
from hrm.pipelines.core.node_messages import (
    EndTask,
    NodeCapacity,
    NodeLoad,
    ReportSubtask,
    TaskWithdrawn,
)

__all__ = ["AcknowledgeEnd", "FromWorker", "PlaceAttempt", "ToWorker", "Welcome", "WorkerJoins"]


@dataclass(frozen=True, slots=True)
class WorkerJoins:
    """The first message of a stream. ``identity``: of the process."""

    capacity: NodeCapacity
    identity: str
    tasks: tuple[tuple[TaskId, int], ...]
    load: NodeLoad


@dataclass(frozen=True, slots=True)
class Welcome:
    """The master's first message: the stream is up."""


@dataclass(frozen=True, slots=True)
class PlaceAttempt:
    task: TaskSpec
    attempt: int


@dataclass(frozen=True, slots=True)
class AcknowledgeEnd:
    """The end is on the disk: the worker may forget the task."""

    task_id: TaskId
    attempt: int


FromWorker: TypeAlias = WorkerJoins | NodeLoad | ReportSubtask | EndTask
ToWorker: TypeAlias = Welcome | PlaceAttempt | AcknowledgeEnd | TaskWithdrawn
