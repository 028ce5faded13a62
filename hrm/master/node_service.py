"""NodeService: one stream a node."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from hrm import ownership, request_bounds, rpc_server
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.vocabulary.model import NodeName, ResourceUnit
from hrm.errors import HrmError, InvalidRequest, Unavailable
from hrm.master.interpreter import Interpreter, Outbox, drain
from hrm.v1 import node_pb2 as pb
from hrm.v1 import node_pb2_grpc
from hrm.wire import codec

__all__ = ["NodeService"]

FIRST_MESSAGE_TIMEOUT_S = 10.0

log = structlog.get_logger("master.nodes")

_REMARKS_MAX = 20

_Context: TypeAlias = grpc.aio.ServicerContext[pb.NodeMessage, pb.MasterMessage]


class NodeService(node_pb2_grpc.NodeServiceServicer):
    """Turns messages of agents into events, and commands for nodes into messages."""

    def __init__(self, master: Interpreter, heartbeat_interval_s: float) -> None:
        self._master = master
        self._heartbeat_interval_s = heartbeat_interval_s

    async def Connect(self, requests: Any, context: _Context) -> None:  # noqa: N802
        """One agent's stream, from its registration to its end."""
        try:
            name, incarnation, outbox = await self._register(requests)
        except HrmError as error:
            await rpc_server.abort(context, error)
        log.info("node registered", node=name, incarnation=incarnation)
        reading = asyncio.create_task(self._read(requests, name, incarnation))
        writing = asyncio.create_task(self._write(outbox, context))
        try:
            # A writer that ends (its outbox overflowed, a newer stream took over) ends the stream:
            # the agent comes back and is told everything anew.
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            problem = reading.exception() if reading.done() else None
            if isinstance(problem, HrmError):
                log.warning("node sent a bad message", node=name, error=str(problem))
                await rpc_server.abort(context, problem)
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            self._disconnect(name, incarnation, outbox)
            log.info("node disconnected", node=name, incarnation=incarnation)

    def _disconnect(self, name: NodeName, incarnation: str, outbox: Outbox) -> None:
        if self._master.node_outboxes.get((name, incarnation)) is not outbox:
            return  # a newer stream of the same agent has taken over
        del self._master.node_outboxes[name, incarnation]
        event = e.NodeDisconnected(now=self._master.now(), node=name, incarnation=incarnation)
        self._master.submit(event)

    async def _register(self, requests: Any) -> tuple[NodeName, str, Outbox]:
        try:
            first = await asyncio.wait_for(anext(aiter(requests)), FIRST_MESSAGE_TIMEOUT_S)
        except StopAsyncIteration:
            raise InvalidRequest("the stream ended before a registration") from None
        except TimeoutError:
            # Or this process slept, and has not read it yet: that is no fault of the agent's.
            limit = f"{FIRST_MESSAGE_TIMEOUT_S:.0f} s"
            raise Unavailable(f"no registration came within {limit}; register again") from None
        if first.WhichOneof("message") != "register":
            raise InvalidRequest("the first message of a node must be `register`")
        event = self._registration(first)
        refusal = self._master.core.nodes.refusal(event)
        if refusal is not None:
            raise refusal
        key = (event.node, event.incarnation)
        outbox = Outbox()
        previous = self._master.node_outboxes.get(key)
        self._master.node_outboxes[key] = outbox
        try:
            await self._master.call(lambda call_id: _with_call(event, call_id))
        except asyncio.CancelledError:
            # The agent went away before it was answered; the core may have registered it already.
            self._disconnect(*key, outbox)
            raise
        except HrmError:
            if previous is None:
                self._master.node_outboxes.pop(key, None)
            else:
                self._master.node_outboxes[key] = previous
            raise
        if previous is not None:
            previous.close()
        return event.node, event.incarnation, outbox

    def _registration(self, message: pb.NodeMessage) -> e.NodeRegistered:
        register = message.register
        name = NodeName(codec.to_name(register.name, "name"))
        return e.NodeRegistered(
            now=self._master.now(),
            call_id=0,
            node=name,
            identity=codec.to_name(register.identity, "identity"),
            incarnation=codec.to_name(register.incarnation, "incarnation"),
            sequence=message.sequence,
            host=codec.to_text(register.host, "host"),
            endpoint=codec.to_text(register.endpoint, "endpoint"),
            units=_units(name, register.resource_units),
            containers=tuple(codec.to_status(x) for x in register.containers),
            isolation=codec.to_text(register.isolation, "isolation"),
            spark_versions=tuple(
                codec.to_text(x, "spark_versions") for x in register.spark_versions
            ),
            platform=codec.to_text(register.platform, "platform"),
            remarks=tuple(codec.to_text(x, "remarks") for x in register.remarks[:_REMARKS_MAX]),
            owner=ownership.owner_of(register.ownership_key),
            followed=codec.to_followed(register),
        )

    async def _read(self, requests: Any, name: NodeName, incarnation: str) -> None:
        async for message in requests:
            await self._master.throttle.of_report()
            now = self._master.now()
            kind = message.WhichOneof("message")
            if kind == "heartbeat":
                self._master.submit(
                    e.NodeReported(
                        now=now,
                        node=name,
                        incarnation=incarnation,
                        sequence=message.sequence,
                        containers=tuple(codec.to_status(x) for x in message.heartbeat.containers),
                        usage=codec.to_usage(message.heartbeat.usage),
                        shortcuts=codec.to_shortcuts(message.heartbeat.shortcuts),
                    )
                )
            elif kind == "container":
                self._master.submit(
                    e.ContainerReported(
                        now=now,
                        node=name,
                        incarnation=incarnation,
                        sequence=message.sequence,
                        container=codec.to_status(message.container),
                    )
                )
            elif kind == "rebinding":
                answer = message.rebinding
                self._master.submit(
                    e.RebindAnswered(
                        now=now,
                        node=name,
                        request_id=answer.request_id,
                        accepted=answer.accepted,
                        message=codec.to_text(answer.message, "rebinding.message"),
                    )
                )
            else:
                raise InvalidRequest(f"a registered node may not send {kind or 'nothing'}")

    async def _write(self, outbox: Outbox, context: _Context) -> None:
        core = self._master.core
        hello = pb.NodeRegistered(
            heartbeat_interval_s=self._heartbeat_interval_s, epoch_id=core.master_state.epoch_id
        )
        await context.write(pb.MasterMessage(epoch=core.epoch, registered=hello))
        # The epoch may rise while the stream stays.
        await drain(outbox, lambda message: context.write(_message(core.epoch, message)))


def _units(name: NodeName, messages: Any) -> tuple[ResourceUnit, ...]:
    units = tuple(codec.to_unit(message) for message in messages)
    if not units:
        raise InvalidRequest("a node must offer at least one resource unit")
    if sum(len(unit.cpus) for unit in units) > request_bounds.CPUS:
        raise InvalidRequest(f"the resource units name more than {request_bounds.CPUS} cpus")
    ids = [unit.unit_id for unit in units]
    if len(set(ids)) < len(ids):
        raise InvalidRequest("two resource units have one id")
    for unit_id in ids:
        if not unit_id.startswith(f"{name}/"):
            raise InvalidRequest(f"resource unit {unit_id[:80]!r} must be named {name}/<something>")
    _check_pools(units)
    return units


def _check_pools(units: tuple[ResourceUnit, ...]) -> None:
    """Who shares must share with an earlier unit of the same size that does not share itself."""
    owners = {}
    for unit in units:
        if not unit.pool:
            owners[unit.unit_id] = unit.capacity
            continue
        pool = owners.get(unit.pool)
        size = (unit.capacity.vcores, unit.capacity.memory_mib)
        if pool is None or size != (pool.vcores, pool.memory_mib):
            raise InvalidRequest(
                f"resource unit {unit.unit_id[:80]!r} shares with {unit.pool[:80]!r}, which must "
                f"come before it, be of its size, and share with nobody else"
            )


def _with_call(event: e.NodeRegistered, call_id: int) -> e.NodeRegistered:
    return replace(event, call_id=call_id)


def _message(epoch: int, message: c.NodeMessage | c.Notice | StateChanged) -> pb.MasterMessage:
    match message:
        case c.AssignContainer():
            return pb.MasterMessage(epoch=epoch, assign=codec.from_spec(message.spec))
        case c.StopContainer():
            stop = pb.StopContainer(
                container_id=message.container_id,
                cause=codec.END_CAUSE[message.cause],
                reason=message.reason,
                grace_s=message.grace_s,
                only_if_waiting=message.only_if_waiting,
                decommission=message.decommission,
            )
            return pb.MasterMessage(epoch=epoch, stop=stop)
        case c.AcknowledgeEnded():
            ends = pb.AcknowledgeEnded(container_ids=message.container_ids)
            return pb.MasterMessage(epoch=epoch, acknowledge=ends)
        case c.SetContainerClass():
            change = pb.SetContainerClass(
                container_id=message.container_id,
                workload_class=codec.WORKLOAD_CLASS[message.workload_class],
            )
            return pb.MasterMessage(epoch=epoch, set_class=change)
        case c.DropShuffleFiles():
            drop = pb.DropShuffleFiles(application_id=message.application_id)
            return pb.MasterMessage(epoch=epoch, drop_shuffle_files=drop)
        case c.RebindUnits():
            return pb.MasterMessage(epoch=epoch, rebind=codec.from_binding(message))
    raise AssertionError(f"{type(message).__name__} is not for nodes")
