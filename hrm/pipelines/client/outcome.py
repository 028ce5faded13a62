"""How a task ended, for its client: the value or the error, and every run of every subtask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hrm import errors
from hrm.pipelines.core.model import Device, TaskId
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pipeline_wire

__all__ = ["SubtaskRun", "TaskFailed", "TaskResult", "is_done", "result_of"]


class TaskFailed(errors.HrmError):
    """A task ended without a result; the message names the subtask, the node and the cause."""

    def __init__(self, message: str, result: TaskResult) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskRun:
    """One run of one subtask. ``outcome``: "done", or what went wrong; ``message`` says more.

    ``placed_by``: the policy that chose the device; ``fallback``: why not the learned one.
    """

    subtask: str
    device: Device
    number: int
    node: str
    waited_s: float
    ran_s: float
    outcome: str
    message: str = ""
    placed_by: str = ""
    fallback: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome == "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """How one task ended. ``value`` is None if ``error`` gives the reason of a failure.

    ``runs``: every run of every subtask, in the order in which they ended. ``response_s``: from
    submission to end, as the master saw it.
    """

    task_id: str
    value: Any
    error: str = ""
    node: str = ""
    attempt: int = 0
    response_s: float = 0.0
    runs: tuple[SubtaskRun, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.error


def is_done(end: pb.PipelineTaskEnd) -> bool:
    """Does the task have a result?"""
    return pipeline_wire.to_outcome(end.outcome) is TaskOutcome.DONE


def result_of(task_id: str, end: pb.PipelineTaskEnd, value: Any) -> TaskResult:
    """How the task ended, as its client gets it.

    Raises:
        InvalidRequest: the end is malformed.
    """
    return TaskResult(
        task_id=task_id,
        value=value,
        error="" if is_done(end) else end.message or "it was cancelled",
        node=end.node,
        attempt=end.attempt,
        response_s=end.response_s,
        runs=tuple(_run(one, TaskId(task_id)) for one in end.timings),
    )


def _run(message: pb.SubtaskTiming, task_id: TaskId) -> SubtaskRun:
    timing = pipeline_wire.to_timing(message, task_id)
    return SubtaskRun(
        subtask=timing.key.subtask,
        device=timing.device,
        number=timing.number,
        node=message.node,
        waited_s=timing.waited_s,
        ran_s=timing.ran_s,
        outcome=timing.outcome.name.lower().replace("_", "-"),
        message=timing.message,
        placed_by=timing.placed_by,
        fallback=timing.fallback,
    )
