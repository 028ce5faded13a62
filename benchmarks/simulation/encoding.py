"""What a master reads and writes around its decisions: messages as bytes, rows of its store.

The production conversions (``hrm.wire``, ``hrm.master.record_json``) on the messages of a run, so
that their CPU time can be charged. Not done here: gRPC itself; the live mode of
``benchmarks.paper`` has it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from hrm.core.messages import appmaster
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.vocabulary.model import ApplicationId, ContainerRequest
from hrm.master.record_json import encode
from hrm.master.store_file import TABLES, run_time_row
from hrm.v1 import application_pb2, node_pb2, scheduler_pb2
from hrm.wire import applications, node_stream, shared_state
from hrm.wire import appmaster as appmaster_wire

__all__ = ["Rows", "change_received", "received", "reply_received", "send_call", "send_command"]


def received(event: e.MasterEvent) -> Callable[[], object]:
    """What the master does to read the message of ``event``; it has been sent already."""
    now = 0.0
    match event:
        case e.ContainersRequested():
            command = appmaster.RequestContainers(asks=tuple(map(_ask, event.requests)))
            data = _bytes(appmaster_wire.update(command))
            parse, name = application_pb2.ApplicationUpdate.FromString, event.application_id
            return lambda: applications.to_event(parse(data), name, now)
        case e.ContainerReported():
            return _report(node_stream.from_container(event.container), event)
        case e.NodeReported():
            message = node_stream.from_heartbeat(event.usage, event.containers, event.shortcuts)
            return _report(message, event)
        case e.ClaimsProposed() if event.call_id:
            data = send_call(event)
            return lambda: shared_state.to_claims(
                scheduler_pb2.ProposeRequest.FromString(data), event.call_id, now
            )
        case e.LeaseRequested():
            data = send_call(event)
            return lambda: shared_state.to_lease_request(
                scheduler_pb2.AcquireLeaseRequest.FromString(data), event.call_id, now
            )
    return lambda: None


def send_command(command: c.MasterCommand, epoch: int) -> None:
    """Write the message of what leaves the master."""
    match command:
        case c.SendToNode():
            _bytes(node_stream.from_order(command.message, epoch))
        case c.NotifyApplication():
            _bytes(applications.from_notice(command.notice))
        case c.Reply(result=c.ClaimsSettled() as result):
            _bytes(shared_state.from_outcomes(result))
        case c.Reply(result=c.LeaseGranted() as result):
            _bytes(shared_state.from_lease(result))


def send_call(call: e.MasterEvent) -> bytes:
    """Write the message of a scheduler's call."""
    match call:
        case e.ClaimsProposed():
            return _bytes(shared_state.from_proposal(call))
        case e.LeaseRequested():
            return _bytes(shared_state.from_lease_request(call))
        case e.LeaseReturned():
            return _bytes(shared_state.from_lease_return(call))
    raise AssertionError(f"no scheduler calls {call}")


def change_received(data: bytes) -> Callable[[], StateChanged]:
    """What a scheduler does to read a message of its stream."""
    return lambda: shared_state.to_change(scheduler_pb2.SchedulerMessage.FromString(data).change)


def reply_received(call: e.MasterEvent, result: object) -> Callable[[], object]:
    """What a scheduler does to read the reply to its call."""
    match result:
        case c.ClaimsSettled():
            assert isinstance(call, e.ClaimsProposed)
            data, claims = _bytes(shared_state.from_outcomes(result)), call.proposal.claims
            return lambda: shared_state.to_settled(
                scheduler_pb2.ProposeResponse.FromString(data), claims
            )
        case c.LeaseGranted():
            data = _bytes(shared_state.from_lease(result))
            return lambda: shared_state.to_lease(
                scheduler_pb2.AcquireLeaseResponse.FromString(data)
            )
    return lambda: None


class Rows:
    """The master's tables, in memory: what a write costs but for the disk."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:")
        for table in TABLES.values():
            self._db.executescript(table.sql)

    def write(self, command: c.MasterCommand) -> bool:
        """Write what ``command`` keeps; False: it keeps nothing."""
        match command:
            case c.PersistApplication(record=record):
                key: tuple[Any, ...] = (record.application_id, encode(record))
                self._put("applications", key)
            case c.PersistRunTime(row=row):
                self._put("run_times", run_time_row(row))
            case c.ForgetApplication(application_id=gone):
                self._forget("applications", gone)
            case _:
                return False
        return True

    def _put(self, table: str, values: tuple[Any, ...]) -> None:
        marks = ", ".join("?" * len(values))
        self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)
        self._db.commit()

    def _forget(self, table: str, key: ApplicationId) -> None:
        column = TABLES[table].columns[0]
        self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))
        self._db.commit()


def _report(
    message: node_pb2.NodeMessage, event: e.ContainerReported | e.NodeReported
) -> Callable[[], object]:
    data = _bytes(message)
    parse, name, incarnation = node_pb2.NodeMessage.FromString, event.node, event.incarnation
    return lambda: node_stream.to_report(parse(data), name, incarnation, 0.0)


def _ask(request: ContainerRequest) -> appmaster.ContainerAsk:
    resources = request.resources
    target = appmaster.ProfileTarget(
        profile=request.resource_profile_id,
        count=1,
        vcores=resources.vcores,
        heap_mib=resources.memory_mib,
        memory_mib=resources.memory_mib,
    )
    return appmaster.ContainerAsk(executor_id=request.executor_id, target=target)


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())
