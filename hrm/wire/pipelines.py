"""Pipeline messages to core records and back, every field checked on the way in.

Like ``hrm.wire.codec``: ``to_*`` raises ``InvalidRequest`` naming the field, ``from_*`` never
fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, TypeVar

from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.core.vocabulary.model import NodeName, WorkloadClass
from hrm.errors import InvalidRequest
from hrm.pipelines.core.device_memory import PeakMemory
from hrm.pipelines.core.model import (
    SIZE_BUCKETS_MB,
    Device,
    PipelineSpec,
    ResultFormat,
    Row,
    SubtaskKey,
    SubtaskSpec,
    TaskId,
    TaskSpec,
)
from hrm.pipelines.core.node_messages import (
    GpuCard,
    NodeCapacity,
    NodeLoad,
    RunOutcome,
    SubtaskTiming,
    TaskOutcome,
)
from hrm.pipelines.core.reported_runs import CELLS, CO_RUNNERS_MAX
from hrm.text import shortened
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1.common_pb2 import ContainerGpuUse
from hrm.wire import codec
from hrm.wire.gpu_uses import from_gpu_use

__all__ = [
    "CHUNK_BYTES",
    "FILES_BYTES_MAX",
    "attempt_of",
    "check_key",
    "from_capacity",
    "from_load",
    "from_outcome",
    "from_pipeline",
    "from_profile",
    "from_profiles",
    "from_result_format",
    "from_timing",
    "to_capacity",
    "to_files",
    "to_load",
    "to_outcome",
    "to_pipeline",
    "to_result_format",
    "to_task",
    "to_task_id",
    "to_timing",
]

CHUNK_BYTES = 1 << 20
FILES_BYTES_MAX = 4 << 20
SUBTASKS_MAX = 100
_LAST_BUCKET = len(SIZE_BUCKETS_MB)
_TEXT_MAX = 500
"""Of a reason's text; longer ones are truncated."""
_PATH_MAX = 1_000
_FILE_NAME_BYTES_MAX = 255
"""Of one part of a path, on the file systems that nodes have."""
_MOST = 1e9
"""Sent for an infinite wait."""
_LATEST_S = 1e11
"""Since the epoch, some three thousand years: what is later is no time of a clock."""
_KEY_BYTES = (16, 64)
_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_LOAD_NUMBERS = (
    "cpu",
    "gpu",
    "memory",
    "gpu_memory",
    "sent",
    "received",
    "running",
    "waiting_batch",
    "waiting_stream",
    "expected_wait_s",
    "expected_wait_p90_s",
    "free_cores",
    "free_memory_mib",
    "free_gpu_memory_mib",
)
_TIMING_NUMBERS = (
    "number",
    "run",
    "waited_s",
    "ran_s",
    "memory_mib",
    "gpu_memory_mib",
    "gpu_memory_reserved_mib",
)

E = TypeVar("E", bound=Enum)


def to_task_id(value: str, field: str = "task_id") -> TaskId:
    """An id that may name a directory.

    Raises:
        InvalidRequest: it may not.
    """
    if not _TASK_ID.fullmatch(value):
        raise InvalidRequest(
            f"{field} is {value[:80]!r}; letters, digits, '.', '_' and '-', at most 128, may name "
            f"a task"
        )
    return TaskId(value)


def _number(value: float, field: str, *, least: float = 0.0, most: float = 1e15) -> float:
    if not math.isfinite(value) or not least <= value <= most:
        raise InvalidRequest(f"{field} is {value:g}; it must be {least:g} to {most:g}")
    return value


def _enum(kind: type[E], names: Any, number: int, field: str) -> E:
    """The member whose name ends the name of ``number``."""
    try:
        return next(one for one in kind if names.Name(number).endswith(f"_{one.name}"))
    except (StopIteration, ValueError):
        raise InvalidRequest(f"{field} is {number}, which is unknown") from None


def _device(number: int, field: str) -> Device:
    return _enum(Device, pb.SubtaskDevice, number, field)


# --- pipelines and tasks --------------------------------------------------------------------------


def from_pipeline(spec: PipelineSpec) -> pb.PipelineSpec:
    return pb.PipelineSpec(
        name=spec.name,
        reference=spec.reference,
        subtasks=[
            pb.PipelineSubtask(
                name=one.name,
                kind=one.kind,
                after=one.after,
                devices=sorted(_device_number(device) for device in one.devices),
                memory_mib=one.memory_mib,
                gpu_memory_mib=one.gpu_memory_mib,
                timeout_s=one.timeout_s,
                attempts=one.attempts,
            )
            for one in spec.subtasks
        ],
    )


def _device_number(device: Device) -> Any:
    return pb.SubtaskDevice.Value(f"SUBTASK_DEVICE_{device.name}")


def to_pipeline(message: pb.PipelineSpec) -> PipelineSpec:
    """A pipeline whose subtasks are in an order in which they can run.

    Raises:
        InvalidRequest: a field is malformed or out of range, or a subtask precedes one that it
            depends on.
    """
    name = codec.to_name(message.name, "pipeline.name")
    if not _REFERENCE.fullmatch(message.reference):
        raise InvalidRequest(
            f"pipeline.reference is {message.reference[:80]!r}; it must be MODULE:ATTRIBUTE"
        )
    if not 1 <= len(message.subtasks) <= SUBTASKS_MAX:
        raise InvalidRequest(
            f"pipeline {name} has {len(message.subtasks)} subtasks; 1 to {SUBTASKS_MAX} may be"
        )
    subtasks: dict[str, SubtaskSpec] = {}
    for number, one in enumerate(message.subtasks):
        spec = _subtask(one, f"pipeline.subtasks[{number}]")
        label = f"pipeline {name}, subtask {spec.name!r}"
        if spec.name in subtasks:
            raise InvalidRequest(f"{label} is there twice")
        for before in spec.after:
            if before not in subtasks:
                raise InvalidRequest(
                    f"{label} comes after {before!r}, which does not stand before it; order them, "
                    f"and remove the cycle"
                )
        subtasks[spec.name] = spec
    return PipelineSpec(name=name, reference=message.reference, subtasks=tuple(subtasks.values()))


def _subtask(message: pb.PipelineSubtask, field: str) -> SubtaskSpec:
    name = codec.to_name(message.name, f"{field}.name")
    devices = frozenset(_device(one, f"{field}.devices") for one in message.devices)
    if not devices:
        raise InvalidRequest(f"subtask {name!r} has neither a CPU nor a GPU version")
    return SubtaskSpec(
        name=name,
        kind=codec.to_text(message.kind, f"{field}.kind") or name,
        after=tuple(message.after),
        devices=devices,
        memory_mib=int(_number(message.memory_mib, f"{field}.memory_mib")),
        gpu_memory_mib=int(_number(message.gpu_memory_mib, f"{field}.gpu_memory_mib")),
        timeout_s=_number(message.timeout_s, f"{field}.timeout_s", least=1e-3, most=1e7),
        attempts=int(_number(message.attempts, f"{field}.attempts", least=1, most=10)),
    )


def to_task(
    message: pb.SubmitPipelineTaskRequest | pb.PlacePipelineTask,
    task_id: TaskId,
    *,
    size_mb: float,
    submitted_at_s: float,
) -> TaskSpec:
    workload = codec.to_class(message.workload_class, "workload_class")
    return TaskSpec(
        task_id=task_id,
        pipeline=to_pipeline(message.pipeline),
        size_mb=_number(size_mb, "size_mb", most=1e9),
        workload_class=workload or WorkloadClass.BATCH,
        submitted_at_s=submitted_at_s,
        user=codec.to_text(message.user, "user"),
        result_format=to_result_format(message.result_format),
        result_dir=_to_directory(message.result_dir),
    )


def _to_directory(text: str) -> str:
    if text and (not text.startswith("/") or "\0" in text or len(text) > _PATH_MAX):
        raise InvalidRequest(
            f"result_dir is {text[:80]!r}; it must be the absolute path of a directory that nodes "
            f"share with the readers of results"
        )
    return text


def from_result_format(kind: ResultFormat) -> Any:
    return pb.PipelineResultFormat.Value(f"PIPELINE_RESULT_FORMAT_{kind.name}")


def to_result_format(number: int) -> ResultFormat:
    """Unspecified is a pickle: clients of older versions expect it."""
    if number == pb.PIPELINE_RESULT_FORMAT_UNSPECIFIED:
        return ResultFormat.PICKLE
    return _enum(ResultFormat, pb.PipelineResultFormat, number, "result_format")


def check_key(key: bytes) -> bytes:
    """A task's key, unchanged; no message repeats it.

    Raises:
        InvalidRequest: its length is out of range.
    """
    least, most = _KEY_BYTES
    if key and not least <= len(key) <= most:
        raise InvalidRequest(f"result_key has {len(key)} bytes; {least} to {most}, or none, may be")
    return key


def to_files(files: Iterable[pb.SourceFile]) -> dict[str, bytes]:
    """Modules by relative path.

    Raises:
        InvalidRequest: a path is absolute, leaves the directory, is there twice or cannot be that
            of a file, or the files are too large.
    """
    found: dict[str, bytes] = {}
    for file in files:
        path = _to_path(file.path)
        if path in found:
            raise InvalidRequest(f"files: {path[:80]!r} is there twice; send each file once")
        found[path] = file.content
    for path in found:
        directory = next((x for x in map(str, PurePosixPath(path).parents) if x in found), None)
        if directory is not None:
            raise InvalidRequest(
                f"files: {directory[:80]!r} is a file, and the directory of {path[-80:]!r}; rename "
                f"or leave out one of them"
            )
    size = sum(map(len, found.values()))
    if size > FILES_BYTES_MAX:
        raise InvalidRequest(
            f"files: {size} bytes, more than {FILES_BYTES_MAX}; install large packages on the nodes"
        )
    return found


def _to_path(text: str) -> str:
    """A path below the directory of a task's modules, which a file there can have."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in text:
        raise InvalidRequest(f"files: {text[:80]!r} is no relative path without '..'")
    if len(text) > _PATH_MAX:
        raise InvalidRequest(
            f"files: {text[:80]!r}... has {len(text)} characters, more than the {_PATH_MAX} of a "
            f"path; choose a shorter one, or install the package on the nodes"
        )
    name_bytes = max(len(one.encode()) for one in path.parts)
    if name_bytes > _FILE_NAME_BYTES_MAX:
        raise InvalidRequest(
            f"files: {text[:80]!r}... has a name of {name_bytes} bytes, more than the "
            f"{_FILE_NAME_BYTES_MAX} that file systems allow; rename it"
        )
    return str(path)


def attempt_of(task_id: TaskId, attempt: int) -> pb.PipelineAttempt:
    return pb.PipelineAttempt(task_id=task_id, attempt=attempt)


# --- timings and ends -----------------------------------------------------------------------------


def _from_row(row: Row) -> pb.PipelineRow:
    return pb.PipelineRow(kind=row.kind, bucket=row.bucket, gpu_model=row.gpu_model)


def _to_row(message: pb.PipelineRow) -> Row:
    if not 0 <= message.bucket <= _LAST_BUCKET:
        raise InvalidRequest(f"row.bucket is {message.bucket}; it must be 0 to {_LAST_BUCKET}")
    return Row(message.kind, message.bucket, message.gpu_model)


def from_profile(
    row: Row,
    *,
    run_s: Mapping[Device, float],
    memory_mib: float,
    gpu_memory_mib: float,
    gpu_use: Sequence[GpuUsePart],
    gpu_use_runs: int,
    quantiles_s: Mapping[Device, tuple[float, float]],
    peak: PeakMemory | None,
    out_of_gpu_memory: int,
) -> pb.PipelineProfile:
    """``quantiles_s``: P90 and P99; ``peak``: see ``Estimates.gpu_memory_peak``."""
    cpu_s, gpu_s = (quantiles_s.get(device, (0.0, 0.0)) for device in (Device.CPU, Device.GPU))
    above, at_most = (0.0, *SIZE_BUCKETS_MB)[row.bucket], (*SIZE_BUCKETS_MB, 0.0)[row.bucket]
    return pb.PipelineProfile(
        row=_from_row(row),
        size_above_mb=above,
        size_at_most_mb=at_most,
        cpu_s=run_s.get(Device.CPU, 0.0),
        gpu_s=run_s.get(Device.GPU, 0.0),
        memory_mib=memory_mib,
        gpu_memory_mib=gpu_memory_mib,
        gpu_use=from_gpu_use(gpu_use),
        gpu_use_runs=gpu_use_runs,
        cpu_p90_s=cpu_s[0],
        cpu_p99_s=cpu_s[1],
        gpu_p90_s=gpu_s[0],
        gpu_p99_s=gpu_s[1],
        gpu_memory_mean_mib=0.0 if peak is None else peak.mean_mib,
        gpu_memory_deviation_mib=0.0 if peak is None else math.sqrt(peak.variance),
        out_of_gpu_memory=out_of_gpu_memory,
    )


def from_profiles(
    profiles: Iterable[pb.PipelineProfile], containers: Iterable[ContainerGpuUse]
) -> pb.GetPipelineProfilesResponse:
    return pb.GetPipelineProfilesResponse(profiles=profiles, containers=containers)


def from_timing(timing: SubtaskTiming, node: str = "") -> pb.SubtaskTiming:
    outcome: Any = pb.SubtaskOutcome.Value(f"SUBTASK_OUTCOME_{timing.outcome.name}")
    return pb.SubtaskTiming(
        subtask=timing.key.subtask,
        row=_from_row(timing.row),
        device=_device_number(timing.device),
        outcome=outcome,
        ready_at_s=timing.ready_at_s,
        started_at_s=timing.started_at_s,
        co_runners=[_from_row(row) for row in timing.co_runners],
        message=shortened(timing.message, codec.TEXT_LENGTH_MAX),
        node=node,
        placed_by=timing.placed_by,
        fallback=timing.fallback[:_TEXT_MAX],
        cells=timing.cells,
        **{name: getattr(timing, name) for name in _TIMING_NUMBERS},
    )


def _run_outcome(number: int) -> RunOutcome:
    names = pb.SubtaskOutcome
    if number not in names.values() or number == 0:
        raise InvalidRequest(f"timing.outcome is {number}, which is unknown")
    return RunOutcome[names.Name(number).removeprefix("SUBTASK_OUTCOME_")]


def to_timing(message: pb.SubtaskTiming, task_id: TaskId) -> SubtaskTiming:
    """A run of a step, as a worker reports it.

    Raises:
        InvalidRequest: a field is malformed, or more than can be.
    """
    numbers: dict[str, Any] = {
        name: _number(getattr(message, name), f"timing.{name}") for name in _TIMING_NUMBERS
    }
    if len(message.co_runners) > CO_RUNNERS_MAX:
        raise InvalidRequest(
            f"timing.co_runners has {len(message.co_runners)} rows; a run shares its GPU with at "
            f"most {CO_RUNNERS_MAX} for half of its time"
        )
    for name in message.cells:
        if name not in CELLS:
            raise InvalidRequest(
                f"timing.cells has {name[:80]!r}; a worker of this version measures "
                f"{', '.join(sorted(CELLS))}: update the older of the two"
            )
    return SubtaskTiming(
        key=SubtaskKey(task_id, message.subtask),
        row=_to_row(message.row),
        device=_device(message.device, "timing.device"),
        outcome=_run_outcome(message.outcome),
        ready_at_s=_number(message.ready_at_s, "timing.ready_at_s"),
        started_at_s=_number(message.started_at_s, "timing.started_at_s"),
        co_runners=tuple(_to_row(row) for row in message.co_runners),
        message=message.message,
        placed_by=message.placed_by[:_TEXT_MAX],
        fallback=message.fallback[:_TEXT_MAX],
        cells={
            name: _number(value, f"timing.cells[{name}]") for name, value in message.cells.items()
        },
        **numbers,
    )


def from_outcome(outcome: TaskOutcome) -> Any:
    return pb.PipelineTaskOutcome.Value(f"PIPELINE_TASK_OUTCOME_{outcome.name}")


def to_outcome(number: pb.PipelineTaskOutcome) -> TaskOutcome:
    return _enum(TaskOutcome, pb.PipelineTaskOutcome, number, "outcome")


# --- nodes ----------------------------------------------------------------------------------------


def from_capacity(capacity: NodeCapacity) -> pb.PipelineCapacity:
    return pb.PipelineCapacity(
        node=capacity.name,
        cores=capacity.cores,
        memory_mib=capacity.memory_mib,
        gpus=[
            pb.PipelineGpu(index=gpu.index, model=gpu.model, memory_mib=gpu.memory_mib)
            for gpu in capacity.gpus
        ],
        platform=capacity.platform,
        cpu_speed=capacity.cpu_speed,
        gpu_speed=capacity.gpu_speed,
        machine=capacity.machine,
    )


def to_capacity(message: pb.PipelineCapacity) -> NodeCapacity:
    return NodeCapacity(
        name=NodeName(codec.to_name(message.node, "capacity.node")),
        cores=int(_number(message.cores, "capacity.cores", most=4096)),
        memory_mib=_number(message.memory_mib, "capacity.memory_mib"),
        gpus=tuple(
            GpuCard(
                index=gpu.index,
                model=gpu.model,
                memory_mib=_number(gpu.memory_mib, "capacity.gpus.memory_mib"),
            )
            for gpu in message.gpus
        ),
        platform=message.platform,
        cpu_speed=_number(message.cpu_speed, "capacity.cpu_speed", least=1e-3, most=1e3),
        gpu_speed=_number(message.gpu_speed, "capacity.gpu_speed", least=1e-3, most=1e3),
        machine=codec.to_text(message.machine, "capacity.machine"),
    )


def from_load(load: NodeLoad) -> pb.PipelineLoad:
    values = {name: getattr(load, name) for name in _LOAD_NUMBERS}
    # A whole number stays one, or protobuf rejects it.
    numbers = {name: type(value)(min(_MOST, value)) for name, value in values.items()}
    return pb.PipelineLoad(at_s=load.at, task_ids=sorted(load.tasks), **numbers)


def to_load(message: pb.PipelineLoad) -> NodeLoad:
    numbers: dict[str, Any] = {
        name: _number(getattr(message, name), f"load.{name}") for name in _LOAD_NUMBERS
    }
    tasks = frozenset(to_task_id(one, "load.task_ids") for one in message.task_ids)
    at_s = _number(message.at_s, "load.at_s", most=_LATEST_S)
    return NodeLoad(at=at_s, tasks=tasks, **numbers)
