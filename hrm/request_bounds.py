"""Bounds on the size of a message: for each method and for each text, list and map.

Every holder of a token may send requests, and messages cost memory and time of a shared process.
``METHODS`` has the bytes of a message by method, checked before it is parsed; ``TEXTS`` and
``FIELDS`` the length of each text and the number of elements of each list, checked before a value
is used. A field that is in neither table is a mistake that a test finds. Values and their
consistency are checked where protobuf becomes a dataclass (``hrm.wire``).

Bounds are far beyond real use, and follow from the system where it has one: Linux starts no program
with an argument of more than 128 KiB. A component of HRM that forwards untrusted text truncates it
to ``TEXT`` first, because a long error must not end a node's stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from hrm.errors import InvalidRequest

__all__ = [
    "FIELDS",
    "ID",
    "LABEL",
    "METHODS",
    "METHOD_BYTES",
    "TEXT",
    "TEXTS",
    "FieldBound",
    "bound_of",
    "checked",
    "method_bytes",
    "violation",
]

KIB, MIB = 1 << 10, 1 << 20

ID = 253
"""Characters of an id, or of a name given by HRM: an application, a container, a node, a unit."""
LABEL = 1_024
"""Of names chosen by users: an application, a user, a host, a version."""
TEXT = 4_096
"""Of text for users, and of addresses: a reason, an error, a remark, a URL."""
ARGUMENT = 128 * KIB
"""Of one argument or variable of a process (Linux: ``MAX_ARG_STRLEN``)."""
DOCUMENT = 4 * MIB
"""Of a JSON text written by another component of HRM."""

CONTAINERS = 100_000
STATUSES = 20_000
UNITS = 2_048
CPUS = 16_384
LABELS = 100
HOSTS = 1_000
TAGS = 64
QUEUES = 1_000
USERS = 1_000
GPU_USES = 64


@dataclass(frozen=True, slots=True)
class FieldBound:
    """``length``: of the text, or of each in a list or a map, characters (bytes: bytes); ``count``:
    elements; ``key``: characters of a map's key. ``executed``: it becomes an argument or a variable
    of a process, which cannot contain NUL. ``setting``: what to change to raise the bound."""

    length: int = 0
    count: int = 0
    key: int = 0
    executed: bool = False
    setting: str = ""


_ID, _LABEL, _TEXT = FieldBound(ID), FieldBound(LABEL), FieldBound(TEXT)
_KEY = FieldBound(128)
_ARGUMENTS = FieldBound(ARGUMENT, count=100_000, executed=True)

METHOD_BYTES = 256 * KIB
"""Of any method that is not in the table; up to this size, the error names the field at fault."""
METHODS: dict[str, int] = {
    "/hrm.v1.AdminService/DrainNodes": 4 * MIB,
    "/hrm.v1.ApplicationService/Register": MIB,
    "/hrm.v1.ApplicationService/Session": 16 * MIB,
    "/hrm.v1.NodeService/Connect": 8 * MIB,
    "/hrm.v1.PipelineService/Submit": 64 * MIB,
    "/hrm.v1.PipelineService/Watch": 16 * MIB,
    "/hrm.v1.PipelineService/Connect": 8 * MIB,
    "/hrm.v1.QueueService/ChangeQueues": 4 * MIB,
    "/hrm.v1.SharedStateService/Propose": 16 * MIB,
    "/hrm.v1.SubmissionService/FindFiles": 4 * MIB,
    "/hrm.v1.SubmissionService/PutPiece": 2 * MIB,
    "/hrm.v1.SubmissionService/Submit": DOCUMENT + 320 * KIB,
}

TEXTS: dict[str, FieldBound] = {
    "application_id": _ID,
    "asker": _LABEL,
    "container_id": FieldBound(2 * ID),
    "executor_id": _ID,
    "followed_epoch_id": _KEY,
    "identity": _ID,
    "kind": _ID,
    "message": _TEXT,
    "mode": _ID,
    "model": _LABEL,
    "node": _ID,
    "ownership_key": _KEY,
    "page_token": _LABEL,
    "platform": _LABEL,
    "policy": _ID,
    "reason": _TEXT,
    "resource_unit_id": FieldBound(2 * ID),
    "scheduler": _ID,
    "sha256": _ID,
    "spark_version": _LABEL,
    "stream": _ID,
    "submission_id": _ID,
    "task_id": _ID,
    "user": _LABEL,
}
"""By the name of a single text, in any message."""

FIELDS: dict[str, FieldBound] = {
    # AdminService
    "DrainNodesRequest.names": FieldBound(ID, count=10_000),
    "BindNodeRequest.name": _ID,
    "ListNodesRequest.name": _ID,
    "ListNodesRequest.states": FieldBound(count=16),
    # ApplicationService
    "RegisterApplicationRequest.name": _LABEL,
    "RegisterApplicationRequest.queue": _LABEL,
    "RegisterApplicationRequest.tags": FieldBound(LABEL, count=TAGS),
    "RegisterApplicationRequest.driver_host": _LABEL,
    "RegisterApplicationRequest.web_url": _TEXT,
    "RegisterApplicationRequest.driver_start": _LABEL,
    "RegisterApplicationRequest.submission_key": _ID,
    "RegisterApplicationRequest.submission_ownership_key": _KEY,
    "SparkLaunch.driver_url": FieldBound(TEXT, executed=True),
    "SparkLaunch.environment": FieldBound(ARGUMENT, count=10_000, key=LABEL, executed=True),
    "SparkLaunch.java_options": FieldBound(ARGUMENT, count=10_000, executed=True),
    "SparkLaunch.extra_class_path": FieldBound(TEXT, count=10_000, executed=True),
    "SparkLaunch.driver": FieldBound(DOCUMENT),
    "SparkLaunch.worker": FieldBound(DOCUMENT),
    "SparkLaunch.files": FieldBound(count=10_000),
    "LaunchFile.name": _ID,
    "LaunchFile.archive": _ID,
    "SparkLaunch.decommission_signal": _ID,
    "RequestContainers.containers": FieldBound(count=CONTAINERS),
    "ContainerRequest.hosts": FieldBound(LABEL, count=32),
    "ReleaseContainers.executor_ids": FieldBound(ID, count=CONTAINERS),
    "Progress.streaming_queries": FieldBound(LABEL, count=1_000),
    "Progress.stages": FieldBound(count=1_000),
    "Progress.executor_tasks": FieldBound(count=200),
    "Progress.training": FieldBound(count=200),
    "StageProgress.name": _LABEL,
    "ExecutorTasks.stage": _ID,
    "ClassChanged.evidence": _TEXT,
    # EventService
    "WatchEventsRequest.resume": _ID,
    "WatchEventsRequest.kinds": FieldBound(ID, count=16),
    "ExcludedHosts.hosts": FieldBound(LABEL, count=HOSTS),
    "SparkRuntime.spark": _LABEL,
    "SparkRuntime.scala": _LABEL,
    "SparkRuntime.java": _LABEL,
    "SparkRuntime.python": _LABEL,
    "NodeRequirement.labels": FieldBound(ID, count=LABELS),
    "NodeRequirement.spark": _LABEL,
    "NodeRequirement.scala": _LABEL,
    "NodeRequirement.java": _LABEL,
    "NodeRequirement.python": _LABEL,
    "NodeRequirement.excluded_hosts": FieldBound(LABEL, count=HOSTS),
    "ListApplicationsRequest.queue": _LABEL,
    # QueueService
    "QueueStated.name": _LABEL,
    "QueueStated.maximum_class": _LABEL,
    "QueueStated.order": _LABEL,
    "QueueQuota.cores": _LABEL,
    "QueueQuota.memory": _LABEL,
    "QueueQuota.gpu_memory": _LABEL,
    "QueueNames.names": FieldBound(LABEL, count=USERS),
    "ListQueuesRequest.name": _LABEL,
    "ChangeQueuesRequest.queues": FieldBound(count=QUEUES),
    "ChangeQueuesRequest.unset": FieldBound(LABEL, count=100),
    "ChangeQueuesRequest.removed": FieldBound(LABEL, count=QUEUES),
    "WhatIfRequest.queue": _LABEL,
    "WhatIfRequest.user": _LABEL,
    "ListAffinitiesRequest.queue": _LABEL,
    # NodeService and AgentService
    "RegisterNode.name": _ID,
    "RegisterNode.incarnation": _ID,
    "ContainerEnd.lost_host": _LABEL,
    "RegisterNode.host": _LABEL,
    "RegisterNode.endpoint": _LABEL,
    "RegisterNode.resource_units": FieldBound(count=UNITS),
    "RegisterNode.containers": FieldBound(count=STATUSES),
    "RegisterNode.isolation": _LABEL,
    "RegisterNode.spark_versions": FieldBound(LABEL, count=100),
    "RegisterNode.labels": FieldBound(ID, count=LABELS),
    "RegisterNode.runtimes": FieldBound(count=100),
    "RegisterNode.remarks": FieldBound(TEXT, count=100),
    "ResourceUnit.cpus": FieldBound(count=CPUS),
    "ResourceUnit.pool": FieldBound(2 * ID),
    "ResourceUnit.more_gpus": FieldBound(count=1_024),
    "Gpu.uuid": _LABEL,
    "Gpu.name": _LABEL,
    "ContainerStatus.stdout_url": _TEXT,
    "ContainerStatus.stderr_url": _TEXT,
    "NodeHeartbeat.containers": FieldBound(count=STATUSES),
    "NodeHeartbeat.shortcuts": FieldBound(count=100),
    "NodeHeartbeat.gpu_uses": FieldBound(count=GPU_USES),
    "NodeHeartbeat.policies": FieldBound(count=100),
    "ContainerGpuUse.user": _LABEL,
    "ContainerGpuUse.application_name": _LABEL,
    "ContainerGpuUse.part": _ID,
    "ContainerGpuUse.use": FieldBound(count=64),
    "ContainerGpuUse.node": _ID,
    "Shortcut.name": _ID,
    "Shortcut.state": _ID,
    "Shortcut.note": _TEXT,
    "Shortcut.why_missed": _TEXT,
    # PipelineService
    "SubmitPipelineTaskRequest.result_key": _KEY,
    "SubmitPipelineTaskRequest.payload": FieldBound(60 * MIB, setting="pipeline_payload_mib"),
    "SubmitPipelineTaskRequest.files": FieldBound(count=10_000),
    "SubmitPipelineTaskRequest.queue": _LABEL,
    "SubmitPipelineTaskRequest.result_dir": _TEXT,
    "SubmitPipelineTaskRequest.node_labels": FieldBound(ID, count=LABELS),
    "PipelineSpec.name": _ID,
    "PipelineSpec.reference": _LABEL,
    "PipelineSpec.subtasks": FieldBound(count=1_000),
    "PipelineSubtask.name": _ID,
    "PipelineSubtask.after": FieldBound(ID, count=1_000),
    "PipelineSubtask.devices": FieldBound(count=16),
    "SourceFile.path": FieldBound(TEXT),
    "SourceFile.content": FieldBound(60 * MIB),
    "WatchPipelineTasksRequest.task_ids": FieldBound(ID, count=100_000),
    "RegisterPipelineNode.tasks": FieldBound(count=20_000),
    "PipelineCapacity.gpus": FieldBound(count=1_024),
    "PipelineCapacity.machine": _ID,
    "PipelineLoad.task_ids": FieldBound(ID, count=20_000),
    "PipelineLoad.policies": FieldBound(count=100),
    "LearnedPolicy.heuristic": _LABEL,
    "LearnedPolicy.schema": _TEXT,
    "LearnedPolicy.fallbacks": FieldBound(count=1_000, key=LABEL),
    "LearnedPolicy.last": _TEXT,
    "LearnedPolicy.rolled_back_why": _TEXT,
    "LearnedPolicy.records": FieldBound(count=10_000),
    "LearnedPolicy.nodes": FieldBound(ID, count=20_000),
    "ShadowRecord.key": _LABEL,
    "ShadowRecord.heuristic": _TEXT,
    "ShadowRecord.learned": _TEXT,
    "SubtaskTiming.subtask": _ID,
    "SubtaskTiming.cells": FieldBound(count=64, key=64),
    "SubtaskTiming.co_runners": FieldBound(count=64),
    "SubtaskTiming.placed_by": _TEXT,
    "SubtaskTiming.fallback": _TEXT,
    "PipelineRow.gpu_model": _LABEL,
    "PipelineRun.gpu_use": FieldBound(count=64),
    "GetPipelineProfilesRequest.name": _LABEL,
    "PipelineData.data": FieldBound(2 * MIB),
    "PipelineTaskEnd.proof": _KEY,
    "PipelineTaskEnd.timings": FieldBound(count=4_000),
    # SharedStateService
    "SubscribeRequest.name": _ID,
    "ProposeRequest.claims": FieldBound(count=CONTAINERS),
    "ProposeRequest.problem": _TEXT,
    # IdentityService
    "CreateTokenRequest.name": _ID,
    "CreateTokenRequest.role": _ID,
    "ListTokensRequest.name": _ID,
    "RevokeTokenRequest.token_id": _ID,
    "ReadAuditRequest.name": _ID,
    # SubmissionService
    "FindFilesRequest.files": FieldBound(count=10_000),
    "FileDigest.name": _TEXT,
    "PutPieceRequest.data": FieldBound(2 * MIB),
    "SubmitRequest.key": _ID,
    "SubmitRequest.tokens": FieldBound(256 * KIB),
    "DriverSpec.name": _LABEL,
    "DriverSpec.main_class": FieldBound(LABEL, executed=True),
    "DriverSpec.arguments": _ARGUMENTS,
    "DriverSpec.conf": FieldBound(count=100_000),
    "DriverSpec.resources": FieldBound(count=10_000),
    "DriverSpec.options": _ARGUMENTS,
    "DriverSpec.serial_key": _LABEL,
    "SparkSetting.key": FieldBound(LABEL, executed=True),
    "SparkSetting.value": FieldBound(MIB, executed=True),
    "DriverResource.name": _TEXT,
    "DriverResource.uri": _TEXT,
    "DriverResource.fragment": _LABEL,
}
"""By message and field, without those in ``TEXTS`` and those of responses only."""


HINTS = {
    "/hrm.v1.ApplicationService/Register": (
        " (environment, Java options and class path together); put large values into a file, and "
        "pass its path"
    ),
}
"""By method: what to do about a message that is too large."""


def method_bytes(method: str) -> int:
    """Most bytes of one message to ``method``, as gRPC names it."""
    return METHODS.get(method, METHOD_BYTES)


def checked(method: str, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A decoder of messages to ``method`` that enforces the bounds.

    Raises (by the decoder that is returned):
        InvalidRequest: the message, or a named field of it, is too large; with the limit.
    """
    most = method_bytes(method)
    name = method.rpartition("/")[2]

    def parsed(data: bytes) -> Any:
        size = len(data)
        if size > most:
            hint = HINTS.get(method, "")
            raise InvalidRequest(
                f"a message to {name} has {size} bytes; at most {most} are taken{hint}"
            )
        message = decode(data)
        descriptor = getattr(message, "DESCRIPTOR", None)
        if descriptor is not None and (problem := violation(message, size)):
            raise InvalidRequest(problem)
        return message

    return parsed


def violation(message: Any, size: int | None = None) -> str:
    """The bound that a message breaks; empty if none. ``size``: its bytes, if known: a message
    shorter than every bound needs no check."""
    check = _check_of(message.DESCRIPTOR)
    if check is None or (size is not None and size <= check.least):
        return ""
    return check.problem(message, "")


def bound_of(field: FieldDescriptor) -> FieldBound | None:
    """The bound of a field, if it has one."""
    is_text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING and not field.is_repeated
    by_name = TEXTS.get(field.name) if is_text else None
    return FIELDS.get(f"{field.containing_type.name}.{field.name}", by_name)


class _Check:
    """The bounds of one type of message, and of all messages in it.

    ``least``: the smallest of them; 0 if one does not depend on size.
    """

    __slots__ = ("_lists", "_maps", "_messages", "_texts", "least")

    def __init__(self, descriptor: Descriptor) -> None:
        self.least: int
        self._texts: list[tuple[str, FieldBound]] = []
        self._lists: list[tuple[str, FieldBound, bool, _Check | None]] = []
        self._maps: list[tuple[str, FieldBound]] = []
        self._messages: list[tuple[str, _Check]] = []
        least = [ID]
        for field in descriptor.fields:
            bound = bound_of(field) or FieldBound()
            child = _child(field)
            least += [x for x in (bound.length, bound.count, bound.key) if x]
            least += [0] * bound.executed
            if child is not None:
                least.append(child.least)
            self._add(field, bound, child)
        self.least = min(least)

    def _add(self, field: FieldDescriptor, bound: FieldBound, child: _Check | None) -> None:
        texts = field.cpp_type == FieldDescriptor.CPPTYPE_STRING
        if _is_map(field):
            self._maps.append((field.name, bound))
        elif field.is_repeated:
            self._lists.append((field.name, bound, texts, child))
        elif child is not None:
            self._messages.append((field.name, child))
        elif texts:
            self._texts.append((field.name, bound))

    @property
    def is_empty(self) -> bool:
        return not (self._texts or self._lists or self._maps or self._messages)

    def problem(self, message: Any, path: str) -> str:
        for name, bound in self._texts:
            value = getattr(message, name)
            if len(value) > bound.length or (bound.executed and "\0" in value):
                return _of_text(path + name, value, bound)
        for name, child in self._messages:
            if message.HasField(name) and (
                found := child.problem(getattr(message, name), f"{path}{name}.")
            ):
                return found
        for name, bound, texts, inner in self._lists:
            values = getattr(message, name)
            if not values:
                continue
            if len(values) > bound.count:
                return f"{path}{name} has {len(values)} elements; at most {bound.count}"
            if texts:
                if found := _of_texts(path + name, values, bound):
                    return found
            elif inner is not None:
                for value in values:
                    if found := inner.problem(value, f"{path}{name}."):
                        return found
        for name, bound in self._maps:
            if found := _of_map(path + name, getattr(message, name), bound):
                return found
        return ""


def _of_text(field: str, value: str | bytes, bound: FieldBound) -> str:
    if len(value) <= bound.length:
        return f"{field} holds a NUL character, which no argument of a process can"
    unit = "bytes" if isinstance(value, bytes) else "characters"
    more = f" ({bound.setting})" if bound.setting else ""
    return f"{field} has {len(value)} {unit}; at most {bound.length}{more}"


def _of_texts(field: str, values: Any, bound: FieldBound) -> str:
    for value in values:
        if len(value) > bound.length or (bound.executed and "\0" in value):
            return _of_text(f"an element of {field}", value, bound)
    return ""


def _of_map(field: str, values: Any, bound: FieldBound) -> str:
    if len(values) > bound.count:
        return f"{field} has {len(values)} entries; at most {bound.count}"
    for key, value in values.items():
        if len(key) > bound.key:
            return f"a name in {field} has {len(key)} characters; at most {bound.key}"
        if bound.executed and (not key or "=" in key or "\0" in key):
            return f"{field} has {key[:80]!r}, which can name no variable"
        if bound.length and (len(value) > bound.length or (bound.executed and "\0" in value)):
            return _of_text(f"{field}[{key[:80]!r}]", value, bound)
    return ""


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _child(field: FieldDescriptor) -> _Check | None:
    if field.message_type is None or _is_map(field):
        return None
    return _check_of(field.message_type)


@cache
def _check_of(descriptor: Descriptor) -> _Check | None:
    """None: nothing in it requires a check, or it is a message of gRPC's own services."""
    if descriptor.file.package != "hrm.v1":
        return None
    check = _Check(descriptor)
    return None if check.is_empty else check
