"""What several protocols share (``common.proto``), to core types and back, every field checked.

``to_*`` makes core values from messages and raises ``InvalidRequest``, which names the field;
``from_*`` makes messages from core values and never fails.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

from hrm import request_bounds
from hrm.core.vocabulary.model import (
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
    LaunchFile,
    NodeName,
    Resources,
    ResourceUnitId,
    Usage,
    WorkloadClass,
)
from hrm.errors import InvalidRequest
from hrm.text import shortened
from hrm.v1 import common_pb2 as common
from hrm.wire.enums import (
    APPLICATION_STATE,
    CONTAINER_STATE,
    END_CAUSE,
    NODE_STATE,
    PRIORITY_CLASS,
    TO_APPLICATION_STATE,
    TO_CONTAINER_STATE,
    TO_END_CAUSE,
    TO_WORKLOAD_CLASS,
    WORKLOAD_CLASS,
)

__all__ = [
    "APPLICATION_STATE",
    "CONTAINER_STATE",
    "END_CAUSE",
    "NODE_STATE",
    "PRIORITY_CLASS",
    "WORKLOAD_CLASS",
    "from_launch",
    "from_resources",
    "from_spec",
    "from_status",
    "to_amount",
    "to_class",
    "to_document",
    "to_followed",
    "to_gang_min",
    "to_launch",
    "to_mib",
    "to_name",
    "to_request",
    "to_resources",
    "to_spec",
    "to_status",
    "to_whole",
]

VCORES_MAX = 1_000_000
MEMORY_MIB_MAX = 1 << 40
GANG_MAX = 100_000
GPU_INDEX_MAX = 1023
HOSTS_MAX = 32
NAME_LENGTH_MAX = request_bounds.ID
TEXT_LENGTH_MAX = request_bounds.TEXT
DOCUMENT_LENGTH_MAX = request_bounds.DOCUMENT
INT32_MAX = 2**31 - 1
COUNT_MAX = 2**63 - 1

_SIZES_KEPT = 1_024
_TIMES = ("requested_at_s", "assigned_at_s", "started_at_s", "ended_at_s", "expected_duration_s")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def to_name(value: str, field: str) -> str:
    """An id: letters, digits, '-', '_', '.', not empty; '-' and '.' must not be first, so that it
    cannot be an option or a directory.

    Raises:
        InvalidRequest: it is not.
    """
    if not value or len(value) > NAME_LENGTH_MAX or not _NAME.fullmatch(value):
        raise InvalidRequest(
            f"{field} is {value[:80]!r}: give 1 to {NAME_LENGTH_MAX} letters, digits, '-', '_', "
            f"'.', and none of '-' and '.' first"
        )
    return value


def to_followed(message: Any) -> Followed | None:
    """The newest epoch that the sender has followed; None: it has followed none.

    Raises:
        InvalidRequest: the epoch is negative, or its id is not a valid name.
    """
    if not message.followed_epoch:
        return None
    if message.followed_epoch < 0:
        raise InvalidRequest(f"followed_epoch is {message.followed_epoch}; it cannot be below 0")
    epoch_id = message.followed_epoch_id
    return Followed(message.followed_epoch, epoch_id and to_name(epoch_id, "followed_epoch_id"))


def to_text(value: str, field: str) -> str:
    """A text of at most ``TEXT_LENGTH_MAX`` characters.

    Raises:
        InvalidRequest: it is longer.
    """
    if len(value) > TEXT_LENGTH_MAX:
        raise InvalidRequest(f"{field} has {len(value)} characters; at most {TEXT_LENGTH_MAX}")
    return value


def to_document(value: str, field: str) -> str:
    """JSON written by another component of HRM.

    Raises:
        InvalidRequest: it has more than ``DOCUMENT_LENGTH_MAX`` characters.
    """
    if len(value) > DOCUMENT_LENGTH_MAX:
        raise InvalidRequest(f"{field} has {len(value)} characters; at most {DOCUMENT_LENGTH_MAX}")
    return value


def to_whole(value: int, field: str, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``.

    Raises:
        InvalidRequest: it is not.
    """
    if not least <= value <= most:
        raise InvalidRequest(f"{field} is {value}; it must be from {least} to {most}")
    return value


def to_amount(value: float, field: str, most: float = math.inf) -> float:
    """A finite number from 0 to ``most``.

    Raises:
        InvalidRequest: it is not.
    """
    if not 0.0 <= value < math.inf:
        raise InvalidRequest(f"{field} is {value}; it must be finite and not negative")
    if value > most:
        raise InvalidRequest(f"{field} is {value}; it must be from 0 to {most:g}")
    return value


def to_mib(value: int, field: str) -> int:
    """A size in MiB.

    Raises:
        InvalidRequest: it is negative, or more than any machine has.
    """
    return to_whole(value, field, 0, MEMORY_MIB_MAX)


def _profile(value: int) -> int:
    return to_whole(value, "resource_profile_id", 0, INT32_MAX)


def to_resources(message: common.Resources, field: str, least_vcores: int = 1) -> Resources:
    """Containers have few sizes: those of one size share one record."""
    return _resources(
        message.vcores,
        message.memory_mib,
        message.gpu_memory_mib,
        message.gpus,
        field,
        least_vcores,
    )


@functools.lru_cache(maxsize=_SIZES_KEPT)
def _resources(
    vcores: int, memory_mib: int, gpu_memory_mib: int, gpus: int, field: str, least: int
) -> Resources:
    return Resources(
        to_whole(vcores, f"{field}.vcores", least, VCORES_MAX),
        to_whole(memory_mib, f"{field}.memory_mib", least, MEMORY_MIB_MAX),
        to_mib(gpu_memory_mib, f"{field}.gpu_memory_mib"),
        to_whole(gpus, f"{field}.gpus", 0, GPU_INDEX_MAX) or 1,
    )


def from_resources(value: Resources) -> common.Resources:
    return common.Resources(
        vcores=value.vcores,
        memory_mib=value.memory_mib,
        gpu_memory_mib=value.gpu_memory_mib,
        gpus=value.gpus if value.gpus > 1 else 0,
    )


def to_class(number: int, field: str) -> WorkloadClass | None:
    """The workload class; None for UNSPECIFIED.

    Raises:
        InvalidRequest: the number is unknown.
    """
    if number == common.WORKLOAD_CLASS_UNSPECIFIED:
        return None
    if number not in TO_WORKLOAD_CLASS:
        raise InvalidRequest(f"{field} is {number}; it must be BATCH or STREAM")
    return TO_WORKLOAD_CLASS[number]


def to_application_state(number: int, field: str) -> ApplicationState:
    """The state of an application.

    Raises:
        InvalidRequest: the number is unknown, or UNSPECIFIED.
    """
    if number not in TO_APPLICATION_STATE:
        raise InvalidRequest(f"{field} is {number}, which is no application state")
    return TO_APPLICATION_STATE[number]


def to_gang_min(value: int) -> int:
    """How many containers start together (``spark.hrm.gang.min``)."""
    return to_whole(value, "gang_min", 0, GANG_MAX)


def to_launch(message: common.SparkLaunch) -> LaunchContext:
    return LaunchContext(
        driver_url=to_text(message.driver_url, "launch.driver_url"),
        spark_version=to_text(message.spark_version, "launch.spark_version"),
        environment=tuple(sorted(message.environment.items())),
        java_options=tuple(message.java_options),
        extra_class_path=tuple(message.extra_class_path),
        decommissions=message.decommissions,
        decommission_signal=to_text(message.decommission_signal, "launch.decommission_signal"),
        driver=to_document(message.driver, "launch.driver"),
        worker=to_document(message.worker, "launch.worker"),
        files=_launch_files(message.files),
    )


def _launch_files(messages: Sequence[common.LaunchFile]) -> tuple[LaunchFile, ...]:
    """Files of one working directory.

    Raises:
        InvalidRequest: one has no hash, no plain name, or the name of another.
    """
    files = tuple(_launch_file(each) for each in messages)
    names = [each.name for each in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"launch.files has two files called {twice!r}; rename one")
    return files


def _launch_file(message: common.LaunchFile) -> LaunchFile:
    if not _DIGEST.fullmatch(message.sha256):
        raise InvalidRequest(f"sha256 is {message.sha256[:80]!r}: give 64 hexadecimal digits")
    for name in (message.name, message.archive or "a"):
        if name in ("", ".", "..") or "/" in name or "\0" in name or len(name.encode()) > 255:
            raise InvalidRequest(f"{name[:80]!r} cannot name a file in a working directory")
    if message.size_bytes < 0:
        raise InvalidRequest(f"size_bytes is {message.size_bytes}; it must not be negative")
    return LaunchFile(
        sha256=message.sha256,
        size_bytes=message.size_bytes,
        name=message.name,
        archive=message.archive,
    )


def from_launch(value: LaunchContext) -> common.SparkLaunch:
    return common.SparkLaunch(
        driver_url=value.driver_url,
        spark_version=value.spark_version,
        environment=dict(value.environment),
        java_options=value.java_options,
        extra_class_path=value.extra_class_path,
        decommissions=value.decommissions,
        decommission_signal=value.decommission_signal,
        driver=value.driver,
        worker=value.worker,
        files=map(_from_launch_file, value.files),
    )


def _from_launch_file(value: LaunchFile) -> common.LaunchFile:
    return common.LaunchFile(
        sha256=value.sha256,
        size_bytes=value.size_bytes,
        name=value.name,
        archive=value.archive,
    )


def to_request(
    executor_id: str,
    resource_profile_id: int,
    resources: common.Resources,
    heap_mib: int,
    expected_duration_s: float,
    gpus: int = 0,
    hosts: Sequence[str] = (),
    locality_wait_s: float = 0.0,
    *,
    yields: bool = False,
) -> ContainerRequest:
    """A request from the fields of ``application_pb2.ContainerRequest``; memory in MiB, times in s.

    Raises:
        InvalidRequest: a field is out of range, or the heap exceeds the container's memory.
    """
    if len(hosts) > HOSTS_MAX:
        raise InvalidRequest(f"hosts are {len(hosts)}; name at most {HOSTS_MAX}, the best first")
    request = ContainerRequest(
        executor_id=to_name(executor_id, "executor_id"),
        resource_profile_id=_profile(resource_profile_id),
        resources=to_resources(resources, "resources"),
        heap_mib=to_mib(heap_mib, "heap_mib"),
        expected_duration_s=to_amount(expected_duration_s, "expected_duration_s"),
        gpus=to_whole(gpus, "gpus", 0, GPU_INDEX_MAX),
        hosts=tuple(to_text(host, "hosts") for host in hosts),
        locality_wait_s=to_amount(locality_wait_s, "locality_wait_s"),
        yields=yields,
    )
    if request.heap_mib > request.resources.memory_mib:
        raise InvalidRequest(
            f"heap_mib is {request.heap_mib}, more than the container's memory of "
            f"{request.resources.memory_mib} MiB"
        )
    return request


def to_spec(message: common.ContainerSpec) -> ContainerSpec:
    workload_class = to_class(message.workload_class, "workload_class")
    return ContainerSpec(
        container_id=ContainerId(to_name(message.container_id, "container_id")),
        application_id=ApplicationId(to_name(message.application_id, "application_id")),
        executor_id=to_name(message.executor_id, "executor_id"),
        resource_profile_id=_profile(message.resource_profile_id),
        workload_class=workload_class or WorkloadClass.BATCH,
        resources=to_resources(message.resources, "resources"),
        unit_id=ResourceUnitId(to_text(message.resource_unit_id, "resource_unit_id")),
        heap_mib=to_mib(message.heap_mib, "heap_mib"),
        expected_duration_s=to_amount(message.expected_duration_s, "expected_duration_s"),
        launch=to_launch(message.launch),
        user=to_text(message.user, "user"),
        stands_first=message.stands_first,
        yields=message.yields,
        application_name=to_text(message.application_name, "application_name"),
    )


def from_spec(value: ContainerSpec) -> common.ContainerSpec:
    return common.ContainerSpec(
        container_id=value.container_id,
        application_id=value.application_id,
        executor_id=value.executor_id,
        resource_profile_id=value.resource_profile_id,
        workload_class=WORKLOAD_CLASS[value.workload_class],
        resources=from_resources(value.resources),
        resource_unit_id=value.unit_id,
        heap_mib=value.heap_mib,
        expected_duration_s=value.expected_duration_s,
        launch=from_launch(value.launch),
        user=value.user,
        stands_first=value.stands_first,
        yields=value.yields,
        application_name=value.application_name,
    )


def _to_container_usage(message: common.ContainerUsage) -> Usage:
    return Usage(
        cpu_percent=to_amount(message.cpu_percent, "usage.cpu_percent"),
        memory_mib=to_mib(message.memory_mib, "usage.memory_mib"),
        processes=to_whole(message.processes, "usage.processes", 0, INT32_MAX),
        disk_mib=to_mib(message.disk_mib, "usage.disk_mib"),
        gpu_memory_mib=to_mib(message.gpu_memory_mib, "usage.gpu_memory_mib"),
    )


def to_cause(number: int, field: str) -> EndCause:
    """The cause of a container's end.

    Raises:
        InvalidRequest: the number is unknown, or UNSPECIFIED.
    """
    if number not in TO_END_CAUSE:
        raise InvalidRequest(f"{field} is {number}, which is no cause")
    return TO_END_CAUSE[number]


def to_end(message: common.ContainerEnd) -> ContainerEnd:
    """A node's report of an end. Which host is lost is for the master to say."""
    return ContainerEnd(
        cause=to_cause(message.cause, "end.cause"),
        exit_code=message.exit_code,
        message=to_text(message.message, "end.message"),
    )


def to_status(message: common.ContainerStatus) -> ContainerStatus:
    """The reported status of a container, checked.

    Raises:
        InvalidRequest: a field is missing or out of range.
    """
    if message.state not in TO_CONTAINER_STATE:
        raise InvalidRequest(f"state is {message.state}, which is no container state")
    requested_at_s, assigned_at_s = message.requested_at_s, message.assigned_at_s
    started_at_s, ended_at_s = message.started_at_s, message.ended_at_s
    expected_duration_s = message.expected_duration_s
    if not (
        0.0 <= requested_at_s < math.inf
        and 0.0 <= assigned_at_s < math.inf
        and 0.0 <= started_at_s < math.inf
        and 0.0 <= ended_at_s < math.inf
        and 0.0 <= expected_duration_s < math.inf
    ):
        _refuse_times(message)
        # Every heartbeat carries the node's full list, so empty fields are not checked further.
    stdout_url, stderr_url = message.stdout_url, message.stderr_url
    return ContainerStatus(
        container_id=ContainerId(to_name(message.container_id, "container_id")),
        application_id=ApplicationId(to_name(message.application_id, "application_id")),
        executor_id=to_name(message.executor_id, "executor_id"),
        resource_profile_id=_profile(message.resource_profile_id),
        workload_class=to_class(message.workload_class, "workload_class") or WorkloadClass.BATCH,
        resources=to_resources(message.resources, "resources"),
        state=TO_CONTAINER_STATE[message.state],
        node=NodeName(to_name(message.node, "node") if message.node else ""),
        unit_id=ResourceUnitId(to_text(message.resource_unit_id, "resource_unit_id")),
        requested_at_s=requested_at_s,
        assigned_at_s=assigned_at_s,
        started_at_s=started_at_s,
        ended_at_s=ended_at_s,
        end=to_end(message.end) if message.HasField("end") else None,
        stdout_url=to_text(stdout_url, "stdout_url") if stdout_url else "",
        stderr_url=to_text(stderr_url, "stderr_url") if stderr_url else "",
        usage=_to_container_usage(message.usage) if message.HasField("usage") else None,
        expected_duration_s=expected_duration_s,
        preempted=message.preempted,
        stands_first=message.stands_first,
        yields=message.yields,
    )


def _refuse_times(message: common.ContainerStatus) -> None:
    """Find the first that is not a valid time.

    Raises:
        InvalidRequest: one of them is invalid.
    """
    for field in _TIMES:
        to_amount(getattr(message, field), field)


def from_status(value: ContainerStatus) -> common.ContainerStatus:
    message = common.ContainerStatus(
        container_id=value.container_id,
        application_id=value.application_id,
        executor_id=value.executor_id,
        resource_profile_id=value.resource_profile_id,
        workload_class=WORKLOAD_CLASS[value.workload_class],
        resources=from_resources(value.resources),
        state=CONTAINER_STATE[value.state],
        node=value.node,
        resource_unit_id=value.unit_id,
        requested_at_s=value.requested_at_s,
        assigned_at_s=value.assigned_at_s,
        started_at_s=value.started_at_s,
        ended_at_s=value.ended_at_s,
        stdout_url=value.stdout_url,
        stderr_url=value.stderr_url,
        expected_duration_s=value.expected_duration_s,
        preempted=value.preempted,
        stands_first=value.stands_first,
        yields=value.yields,
    )
    if value.end is not None:
        message.end.cause = END_CAUSE[value.end.cause]
        message.end.exit_code = value.end.exit_code
        message.end.message = shortened(value.end.message, TEXT_LENGTH_MAX)
        message.end.lost_host = value.end.lost_host
    if value.usage is not None:
        message.usage.cpu_percent = value.usage.cpu_percent
        message.usage.memory_mib = value.usage.memory_mib
        message.usage.processes = value.usage.processes
        message.usage.disk_mib = value.usage.disk_mib
        message.usage.gpu_memory_mib = value.usage.gpu_memory_mib
    return message
