"""Protobuf to the dataclasses of submissions, and back; each field is checked here only.

A driver's document, the JSON text for its node, is built here from the client's request, after the
same checks; its reader is ``hrm.agent.drivers.driver_runner``.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from hrm import ownership_keys
from hrm.core.messages.submissions import SubmissionRecord, SubmissionState
from hrm.core.submission.submissions import SubmissionEntry
from hrm.core.vocabulary.model import FirstExecutors, Resources
from hrm.errors import InvalidRequest
from hrm.executor_size import first_executors_of
from hrm.queue_settings import queue_settings_of
from hrm.spark_servers import Server, server_of
from hrm.v1 import submission_pb2 as pb
from hrm.wire import codec, requirements

__all__ = ["ROLES", "STATE", "from_entry", "to_file", "to_record"]

RESOURCES_MAX = 10_000
ARGUMENTS_MAX = 100_000
FILE_NAME_LENGTH_MAX = 255
TIE_MIN_S, TIE_MAX_S = 5.0, 3_600.0

ROLES = {
    pb.RESOURCE_ROLE_MAIN: "main",
    pb.RESOURCE_ROLE_PY_FILE: "py-file",
    pb.RESOURCE_ROLE_JAR: "jar",
    pb.RESOURCE_ROLE_FILE: "file",
    pb.RESOURCE_ROLE_ARCHIVE: "archive",
    pb.RESOURCE_ROLE_CONF: "conf",
}
_NUMBERS: dict[str, Any] = dict(pb.SubmissionState.items())
STATE = {state: _NUMBERS[f"SUBMISSION_STATE_{state.name}"] for state in SubmissionState}
_DIGEST = re.compile(r"[0-9a-f]{64}")


def to_file(message: pb.FileDigest) -> tuple[str, int, str]:
    """Hash, size in bytes, name.

    Raises:
        InvalidRequest: the hash or the name is malformed, or the size is negative.
    """
    if not _DIGEST.fullmatch(message.sha256):
        raise InvalidRequest(f"sha256 is {message.sha256[:80]!r}: give 64 hexadecimal digits")
    if message.size_bytes < 0:
        raise InvalidRequest(f"size_bytes is {message.size_bytes}; it must not be negative")
    return message.sha256, message.size_bytes, codec.to_text(message.name, "file.name")


def to_record(
    request: pb.SubmitRequest, submission_id: str, now: float, groups: tuple[str, ...] = ()
) -> SubmissionRecord:
    """The record of a submission, checked. ``groups``: those of its user.

    Raises:
        InvalidRequest: a field is missing or out of range.
    """
    driver = request.driver
    ownership_keys.owner_of(request.ownership_key)
    resources = [_resource(each) for each in driver.resources]
    if len(resources) > RESOURCES_MAX or len(driver.arguments) > ARGUMENTS_MAX:
        raise InvalidRequest(
            f"at most {RESOURCES_MAX} files and {ARGUMENTS_MAX} arguments a submission"
        )
    if [each["role"] for each in resources].count("main") != 1:
        raise InvalidRequest("a submission has exactly one resource of role MAIN")
    _check_names(resources)
    conf = [[codec.to_text(x.key, "conf.key"), x.value] for x in driver.conf]
    document = {
        "main_class": codec.to_text(driver.main_class, "main_class"),
        "arguments": list(driver.arguments),
        "options": list(driver.options),
        "conf": conf,
        "resources": resources,
        "supervise": driver.supervise,
        "has_tokens": bool(request.tokens),
    }
    memory_mib = driver.memory_mib
    if not 0 < driver.heap_mib <= memory_mib <= codec.MEMORY_MIB_MAX:
        raise InvalidRequest(f"a heap of {driver.heap_mib} MiB in {memory_mib} MiB cannot be")
    if not 1 <= driver.vcores <= codec.VCORES_MAX:
        raise InvalidRequest(f"vcores is {driver.vcores}; it must be at least 1")
    if driver.tie_s and not TIE_MIN_S <= driver.tie_s <= TIE_MAX_S:
        raise InvalidRequest(
            f"spark.hrm.submit.tied is {driver.tie_s:.0f} s; give {TIE_MIN_S:.0f}s to "
            f"{TIE_MAX_S / 60:.0f}m, or true for a minute"
        )
    server = server_of(driver.main_class, dict(conf), driver.arguments)
    queue = queue_settings_of(dict(conf))
    return SubmissionRecord(
        submission_id=submission_id,
        key=codec.to_name(request.key, "key"),
        name=codec.to_text(driver.name, "name"),
        user=codec.to_text(driver.user, "user"),
        driver=codec.to_document(json.dumps(document), "driver"),
        resources=Resources(driver.vcores, memory_mib),
        heap_mib=driver.heap_mib,
        stream=dict(conf).get("spark.hrm.class", "").lower() == "stream",
        supervise=driver.supervise,
        files=tuple(sorted({each["sha256"] for each in resources if each["sha256"]})),
        submitted_at_s=now,
        ownership_key=request.ownership_key,
        server_scheme=server.scheme if server else "",
        server_port=server.port if server else 0,
        first_executors=_first_executors(dict(conf)),
        tie_s=driver.tie_s,
        serial_key=codec.to_text(driver.serial_key, "serial_key"),
        requires=requirements.driver_requirement(dict(conf)),
        queue=queue.queue,
        tags=queue.tags,
        groups=groups,
        priority=queue.priority,
    )


def _first_executors(conf: dict[str, str]) -> FirstExecutors | None:
    """What the driver needs to begin, where that is within the bounds of requests."""
    requires = requirements.executor_requirement(conf)
    first = first_executors_of(conf)
    if first is None:
        return None
    asks = first.resources
    fits = (
        first.count <= codec.GANG_MAX
        and asks.vcores <= codec.VCORES_MAX
        and max(asks.memory_mib, asks.gpu_memory_mib) <= codec.MEMORY_MIB_MAX
    )
    return replace(first, requires=requires) if fits else None


def _resource(message: pb.DriverResource) -> dict[str, Any]:
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"role {message.role} is none")
    found: dict[str, Any] = {"role": role, "fragment": message.fragment, "sha256": "", "size": 0}
    found["uri"] = codec.to_text(message.uri, "uri")
    found["name"] = codec.to_text(message.name, "name")
    if message.HasField("file"):
        found["sha256"], found["size"], _ = to_file(message.file)
        name = message.name
        bad = not name or "/" in name or "\0" in name or name in (".", "..") or "," in name
        if bad or len(name.encode()) > FILE_NAME_LENGTH_MAX:
            raise InvalidRequest(f"{name[:80]!r} cannot name a file of an application")
    elif not message.uri:
        raise InvalidRequest("a resource is a file or a URI")
    return found


def _check_names(resources: list[dict[str, Any]]) -> None:
    """All files go into one directory. One file may be there under several names, as
    ``--files a#b,a#c``, or be an archive that is unpacked to several directories.

    Raises:
        InvalidRequest: two have one name, or a name after ``#`` is none.
    """
    contents: dict[str, str] = {}
    for each in resources:
        if each["sha256"] and contents.setdefault(each["name"], each["sha256"]) != each["sha256"]:
            raise _one_name(each["name"])
    given: set[str] = set()
    for each in resources:
        name = each["fragment"]
        if each["role"] != "file" or not name:
            continue
        if "/" in name or "\0" in name or "," in name or name in (".", ".."):
            raise InvalidRequest(f"{name[:80]!r} after '#' cannot name a file; leave paths out")
        if name != each["name"] and (name in contents or name in given):
            raise _one_name(name)
        given.add(name)
        here = bool(each["sha256"]) or each["uri"].startswith("local:")
        if not here and not each["uri"].endswith(f"/{name}"):
            raise InvalidRequest(
                f"{each['uri']}#{name}: only a file that is sent can have another name; copy it to "
                f"your machine, or leave #{name} out"
            )


def _one_name(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"two files are called {name!r}, and all of them go into one directory; rename one"
    )


def from_entry(entry: SubmissionEntry, host: str, waits_for: str = "") -> pb.Submission:
    """The submission for users: without its configuration. ``host``: of its node; empty: none.
    ``waits_for``: why its driver has no place yet, where that is known."""
    record = entry.record
    serves = bool(record.server_scheme and host and record.state is SubmissionState.RUNNING)
    server = Server(record.server_scheme, record.server_port, "")
    return pb.Submission(
        submission_id=record.submission_id,
        name=record.name,
        user=record.user,
        state=STATE[record.state],
        supervise=record.supervise,
        attempt=record.attempt,
        application_ids=record.application_ids,
        node=entry.node,
        submitted_at_s=record.submitted_at_s,
        started_at_s=record.started_at_s,
        ended_at_s=record.ended_at_s,
        restart_at_s=record.restart_at_s,
        exit_code=record.exit_code,
        message=waits_for or record.message,
        server_address=server.address(host) if serves else "",
    )
