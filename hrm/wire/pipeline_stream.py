"""What a master, its nodes and their clients send each other about pipeline tasks.

Each message is built here, in one function, and those of nodes are made events here. The records
that they carry are converted by ``hrm.wire.pipelines``, and what comes in is checked there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidRequest
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.model import ResultFormat, TaskId, TaskSpec
from hrm.pipelines.core.node_messages import (
    EndTask,
    NodeCapacity,
    NodeLoad,
    ReportSubtask,
    SubtaskTiming,
    TaskOutcome,
)
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import policy_pb2
from hrm.wire import codec
from hrm.wire import pipelines as pw
from hrm.wire.gpu_uses import from_gpu_use, to_gpu_use

if TYPE_CHECKING:  # neither an agent nor a client loads what places tasks
    from hrm.pipelines.core.table import NodeRow
    from hrm.pipelines.core.task_record import TaskRecord

__all__ = [
    "Joining",
    "acknowledgement",
    "attempt_ended",
    "beat",
    "from_end",
    "from_load",
    "from_node",
    "from_record",
    "from_row",
    "input_piece",
    "kept_code",
    "kept_task",
    "learned",
    "order",
    "placement",
    "policy_order",
    "queued",
    "registered",
    "registering",
    "result_piece",
    "run_ended",
    "sending",
    "source_files",
    "submission",
    "task_ended",
    "timing_reported",
    "to_joining",
    "to_proof",
    "to_report",
    "withdrawal",
]

_PROOF_BYTES_MAX = 64


def source_files(files: Iterable[tuple[str, bytes]]) -> list[pb.SourceFile]:
    """Modules with their relative paths."""
    return [pb.SourceFile(path=path, content=content) for path, content in files]


def from_end(
    outcome: TaskOutcome,
    message: str,
    timings: Iterable[SubtaskTiming],
    node: str = "",
    **said: Any,
) -> pb.PipelineTaskEnd:
    """How a task has ended. ``said``: the other fields of the message."""
    return pb.PipelineTaskEnd(
        outcome=pw.from_outcome(outcome),
        message=message,
        node=node,
        timings=[pw.from_timing(one, node) for one in timings],
        **said,
    )


def _piece(attempt: pb.PipelineAttempt, offset: int, data: bytes) -> pb.PipelineData:
    return pb.PipelineData(attempt=attempt, offset=offset, data=data)


# --- from a client --------------------------------------------------------------------------------


def submission(
    pipeline: pb.PipelineSpec, task: TaskSpec, files: Iterable[tuple[str, bytes]], **said: Any
) -> pb.SubmitPipelineTaskRequest:
    """``pipeline``: the task's, converted once for all its tasks. ``said``: the other fields."""
    return pb.SubmitPipelineTaskRequest(
        task_id=task.task_id,
        pipeline=pipeline,
        size_mb=task.size_mb,
        workload_class=codec.WORKLOAD_CLASS[task.workload_class],
        files=source_files(files),
        user=task.user,
        result_format=pw.from_result_format(task.result_format),
        result_dir=task.result_dir,
        **said,
    )


def kept_code(files: Iterable[tuple[str, bytes]], *, raw: bool) -> pb.PipelineCode:
    """What is sent with a task besides its input, as the master keeps it."""
    return pb.PipelineCode(raw=raw, files=source_files(files))


def kept_task(task: TaskSpec, request: Mapping[str, Any], **said: Any) -> pb.StoredPipelineTask:
    """A task as the master keeps it. ``request``: the fields of its submission that the task does
    not have; ``said``: those of the record."""
    return pb.StoredPipelineTask(
        request=submission(pw.from_pipeline(task.pipeline), task, (), **request),
        submitted_at_s=task.submitted_at_s,
        **said,
    )


# --- from a node ----------------------------------------------------------------------------------


def from_load(load: NodeLoad, policies: Iterable[policy_pb2.LearnedPolicy]) -> pb.PipelineLoad:
    """With what the node reports of its learned policies."""
    message = pw.from_load(load)
    message.policies.extend(policies)
    return message


def registering(register: pb.RegisterPipelineNode) -> pb.NodePipelineMessage:
    """The first message of a stream."""
    return pb.NodePipelineMessage(register=register)


def from_node(
    capacity: NodeCapacity,
    load: pb.PipelineLoad,
    attempts: Iterable[tuple[TaskId, int]],
    **said: Any,
) -> pb.RegisterPipelineNode:
    """``attempts``: tasks that are here, or whose ends are not acknowledged; ``said``: the other
    fields of the message."""
    return pb.RegisterPipelineNode(
        capacity=pw.from_capacity(capacity),
        load=load,
        tasks=[pw.attempt_of(*attempt) for attempt in attempts],
        **said,
    )


def beat(load: pb.PipelineLoad) -> pb.NodePipelineMessage:
    return pb.NodePipelineMessage(load=load)


def run_ended(attempt: pb.PipelineAttempt, report: ReportSubtask) -> pb.NodePipelineMessage:
    run = pb.PipelineRun(
        attempt=attempt,
        timing=pw.from_timing(report.timing),
        gpu_use=from_gpu_use(report.gpu_use),
    )
    return pb.NodePipelineMessage(run=run)


def result_piece(attempt: pb.PipelineAttempt, offset: int, data: bytes) -> pb.NodePipelineMessage:
    return pb.NodePipelineMessage(data=_piece(attempt, offset, data))


def attempt_ended(attempt: pb.PipelineAttempt, end: pb.PipelineTaskEnd) -> pb.NodePipelineMessage:
    return pb.NodePipelineMessage(ended=pb.PipelineAttemptEnd(attempt=attempt, end=end))


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """The first message of a worker. ``policies``: what it reports of its learned policies."""

    event: m.NodeJoined
    identity: str
    policies: Sequence[policy_pb2.LearnedPolicy]


def to_joining(message: pb.NodePipelineMessage, attempts_before: int, now: float) -> Joining:
    """``attempts_before``: what a message's number of an attempt exceeds that of the master's core
    by. Attempts of earlier masters get numbers that this one's core never uses.

    Raises:
        InvalidRequest: it is another message, or a field is malformed.
    """
    if message.WhichOneof("message") != "register":
        raise InvalidRequest("the first message of a node must be `register`")
    register = message.register
    return Joining(
        event=m.NodeJoined(
            now=now,
            capacity=pw.to_capacity(register.capacity),
            tasks=tuple(
                (pw.to_task_id(one.task_id), one.attempt - attempts_before)
                for one in register.tasks
            ),
            load=pw.to_load(register.load),
        ),
        identity=register.identity,
        policies=register.load.policies,
    )


def to_report(
    message: pb.NodePipelineMessage, name: NodeName, attempts_before: int, now: float
) -> m.PipelineNodeReported | m.SubtaskReported | m.TaskEnded | None:
    """Any later message of a node, but for pieces of results; None: it is one that this version
    does not know.

    Raises:
        InvalidRequest: a field is malformed.
    """
    match message.WhichOneof("message"):
        case "load":
            return m.PipelineNodeReported(now=now, name=name, load=pw.to_load(message.load))
        case "run":
            attempt = message.run.attempt
            task_id = pw.to_task_id(attempt.task_id)
            timing = pw.to_timing(message.run.timing, task_id)
            number = attempt.attempt - attempts_before
            gpu_use = to_gpu_use(message.run.gpu_use)
            run = ReportSubtask(task_id=task_id, attempt=number, timing=timing, gpu_use=gpu_use)
            return m.SubtaskReported(now=now, name=name, report=run)
        case "ended":
            attempt, ended = message.ended.attempt, message.ended.end
            task_id = pw.to_task_id(attempt.task_id)
            end = EndTask(
                task_id=task_id,
                attempt=attempt.attempt - attempts_before,
                outcome=pw.to_outcome(ended.outcome),
                message=ended.message,
                timings=tuple(pw.to_timing(one, task_id) for one in ended.timings),
            )
            return m.TaskEnded(now=now, name=name, end=end)
    return None


def to_proof(end: pb.PipelineTaskEnd) -> tuple[ResultFormat, bytes]:
    """The format of a result, and its worker's proof, which only the client can verify.

    Raises:
        InvalidRequest: a field is malformed.
    """
    if len(end.proof) > _PROOF_BYTES_MAX:
        raise InvalidRequest(f"end.proof has {len(end.proof)} bytes; at most {_PROOF_BYTES_MAX}")
    kind = pw.to_result_format(end.result_format)
    if kind is ResultFormat.AUTO:
        raise InvalidRequest("end.result_format is AUTO; say which one the worker took")
    return kind, end.proof


# --- from the master to a node --------------------------------------------------------------------


def registered(heartbeat_interval_s: float, estimates: bytes = b"") -> pb.MasterPipelineMessage:
    """The first message of a master on a stream. ``estimates``: of steps, as a file of them."""
    hello = pb.PipelineNodeRegistered(
        heartbeat_interval_s=heartbeat_interval_s, estimates=estimates
    )
    return pb.MasterPipelineMessage(registered=hello)


def learned(estimates: bytes) -> pb.MasterPipelineMessage:
    """What all workers of a user have learned of steps, as a file of estimates."""
    return pb.MasterPipelineMessage(estimates=estimates)


def sending(order: pb.PlacePipelineTask) -> pb.MasterPipelineMessage:
    """The order itself, after the pieces of the task's input."""
    return pb.MasterPipelineMessage(place=order)


def order(
    attempt: pb.PipelineAttempt, task: TaskSpec, files: Mapping[str, bytes], **said: Any
) -> pb.PlacePipelineTask:
    """The order to run a task. ``said``: the other fields of the message."""
    return pb.PlacePipelineTask(
        attempt=attempt,
        pipeline=pw.from_pipeline(task.pipeline),
        size_mb=task.size_mb,
        workload_class=codec.WORKLOAD_CLASS[task.workload_class],
        submitted_at_s=task.submitted_at_s,
        files=source_files(files.items()),
        user=task.user,
        result_format=pw.from_result_format(task.result_format),
        result_dir=task.result_dir,
        **said,
    )


def input_piece(attempt: pb.PipelineAttempt, offset: int, data: bytes) -> pb.MasterPipelineMessage:
    return pb.MasterPipelineMessage(data=_piece(attempt, offset, data))


def withdrawal(attempt: pb.PipelineAttempt, why: str) -> pb.MasterPipelineMessage:
    return pb.MasterPipelineMessage(withdraw=pb.WithdrawPipelineTask(attempt=attempt, reason=why))


def acknowledgement(attempt: pb.PipelineAttempt) -> pb.MasterPipelineMessage:
    return pb.MasterPipelineMessage(acknowledge=attempt)


def policy_order(order: policy_pb2.PolicyOrder) -> pb.MasterPipelineMessage:
    return pb.MasterPipelineMessage(policy=order)


# --- from the master to a client ------------------------------------------------------------------


def queued(why: str) -> pb.PipelineTaskUpdate:
    return pb.PipelineTaskUpdate(queued=why)


def placement(report: m.ReportPlacement, node: str) -> pb.PipelineTaskUpdate:
    """Where a task is, or why it waits. ``node``: where its worker runs."""
    if report.node is None:
        return queued(report.message)
    placed = pb.PipelinePlacement(
        node=node, attempt=m.placement_number(report.attempt), why=report.message
    )
    return pb.PipelineTaskUpdate(placed=placed)


def timing_reported(timing: SubtaskTiming, node: str) -> pb.PipelineTaskUpdate:
    return pb.PipelineTaskUpdate(subtask=pw.from_timing(timing, node))


def task_ended(end: pb.PipelineTaskEnd) -> pb.PipelineTaskUpdate:
    return pb.PipelineTaskUpdate(ended=end)


def from_record(
    record: TaskRecord, state: str, *, application_id: str, node: str
) -> pb.PipelineTaskInfo:
    """A task in a list. ``state``: in words; ``node``: where its worker runs."""
    spec = record.spec
    fallbacks = [timing.fallback for timing in record.timings if timing.fallback]
    return pb.PipelineTaskInfo(
        task_id=spec.task_id,
        pipeline=spec.pipeline.name,
        size_mb=spec.size_mb,
        submitted_at_s=spec.submitted_at_s,
        node=node,
        attempt=record.number,
        state=state,
        outcome=pw.from_outcome(record.outcome) if record.outcome else None,
        placed_by=record.placed_by,
        fallback=record.fallback,
        runs_placed_by=Counter(timing.placed_by for timing in record.timings),
        run_fallback=fallbacks[-1] if fallbacks else "",
        user=spec.user,
        application_id=application_id,
    )


def from_row(row: NodeRow, *, application_id: str, node: str) -> pb.PipelineNodeInfo:
    """A worker in a list."""
    return pb.PipelineNodeInfo(
        capacity=pw.from_capacity(row.capacity),
        load=pw.from_load(row.load) if row.load else None,
        tasks=len(row.placed),
        away=row.away,
        application_id=application_id,
        node=node,
    )
