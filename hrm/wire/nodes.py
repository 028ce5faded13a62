"""Messages between a master and an agent: protobuf to events of either core, and back.

The cores decide what is stale: an order of a past epoch changes nothing at a node, and a report of
an ended stream changes nothing at the master.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hrm import ownership, request_bounds
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ContainerId,
    ContainerStatus,
    NodeName,
    ResourceUnit,
    Shortcut,
    Usage,
)
from hrm.errors import InvalidRequest
from hrm.text import shortened
from hrm.v1 import node_pb2 as pb
from hrm.wire import codec

__all__ = [
    "from_container",
    "from_heartbeat",
    "from_order",
    "from_rebinding",
    "from_registration",
    "registered",
    "registering",
    "to_event",
    "to_registration",
    "to_report",
]

_REMARKS_MAX = 20


def from_registration(
    units: Iterable[ResourceUnit], containers: Iterable[ContainerStatus], **said: Any
) -> pb.RegisterNode:
    """``said``: the other fields of the message."""
    return pb.RegisterNode(
        resource_units=[codec.from_unit(unit) for unit in units],
        containers=[codec.from_status(status) for status in containers],
        **said,
    )


def registering(register: pb.RegisterNode, epoch: int, epoch_id: str) -> pb.NodeMessage:
    """The first message of a stream; the newest epoch that the agent has followed."""
    register.followed_epoch, register.followed_epoch_id = epoch, epoch_id
    return pb.NodeMessage(register=register)


def from_heartbeat(
    usage: Usage | None, containers: Iterable[ContainerStatus], shortcuts: Iterable[Shortcut]
) -> pb.NodeMessage:
    heartbeat = pb.NodeHeartbeat(
        usage=None if usage is None else codec.from_usage(usage),
        containers=[codec.from_status(status) for status in containers],
        shortcuts=[codec.from_shortcut(shortcut) for shortcut in shortcuts],
    )
    return pb.NodeMessage(heartbeat=heartbeat)


def from_container(status: ContainerStatus) -> pb.NodeMessage:
    return pb.NodeMessage(container=codec.from_status(status))


def from_rebinding(command: c.AnswerRebinding) -> pb.NodeMessage:
    answer = pb.RebindingAnswer(
        request_id=command.request_id,
        accepted=command.accepted,
        message=shortened(command.message, codec.TEXT_LENGTH_MAX),
    )
    return pb.NodeMessage(rebinding=answer)


def to_registration(message: pb.NodeMessage, now: float) -> e.NodeRegistered:
    """The first message of a node; its call has no number yet.

    Raises:
        InvalidRequest: it is another one, or a field is malformed.
    """
    if message.WhichOneof("message") != "register":
        raise InvalidRequest("the first message of a node must be `register`")
    register = message.register
    name = NodeName(codec.to_name(register.name, "name"))
    return e.NodeRegistered(
        now=now,
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
        spark_versions=tuple(codec.to_text(x, "spark_versions") for x in register.spark_versions),
        platform=codec.to_text(register.platform, "platform"),
        remarks=tuple(codec.to_text(x, "remarks") for x in register.remarks[:_REMARKS_MAX]),
        owner=ownership.owner_of(register.ownership_key),
        followed=codec.to_followed(register),
    )


def to_report(
    message: pb.NodeMessage, node: NodeName, incarnation: str, now: float
) -> e.NodeReported | e.ContainerReported | e.RebindAnswered:
    """Any later message of a node.

    Raises:
        InvalidRequest: it is not allowed here, or a field is malformed.
    """
    match message.WhichOneof("message"):
        case "heartbeat":
            return e.NodeReported(
                now=now,
                node=node,
                incarnation=incarnation,
                sequence=message.sequence,
                containers=tuple(codec.to_status(x) for x in message.heartbeat.containers),
                usage=codec.to_usage(message.heartbeat.usage),
                shortcuts=codec.to_shortcuts(message.heartbeat.shortcuts),
            )
        case "container":
            return e.ContainerReported(
                now=now,
                node=node,
                incarnation=incarnation,
                sequence=message.sequence,
                container=codec.to_status(message.container),
            )
        case "rebinding":
            answer = message.rebinding
            return e.RebindAnswered(
                now=now,
                node=node,
                request_id=answer.request_id,
                accepted=answer.accepted,
                message=codec.to_text(answer.message, "rebinding.message"),
            )
        case kind:
            raise InvalidRequest(f"a registered node may not send {kind or 'nothing'}")


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
    """A sharing unit must name an earlier unit of the same size that does not share itself."""
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
                f"come before it, be of its size, and not share itself"
            )


def registered(epoch: int, epoch_id: str, heartbeat_interval_s: float) -> pb.MasterMessage:
    """The first message of a master on a stream."""
    hello = pb.NodeRegistered(heartbeat_interval_s=heartbeat_interval_s, epoch_id=epoch_id)
    return pb.MasterMessage(epoch=epoch, registered=hello)


def from_order(message: c.NodeMessage, epoch: int) -> pb.MasterMessage:
    """A command of the master's core to a node."""
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


def to_event(message: pb.MasterMessage, now: float) -> e.NodeEvent | None:
    """An order, as an event; None: the message has no event for the core.

    Raises:
        InvalidRequest: a field is malformed.
    """
    epoch = message.epoch
    match message.WhichOneof("message"):
        case "assign":
            return e.AssignReceived(now=now, epoch=epoch, spec=codec.to_spec(message.assign))
        case "stop":
            stop = message.stop
            return e.StopReceived(
                now=now,
                epoch=epoch,
                container_id=ContainerId(stop.container_id),
                cause=codec.to_cause(stop.cause, "stop.cause"),
                reason=stop.reason,
                grace_s=stop.grace_s,
                only_if_waiting=stop.only_if_waiting,
                decommission=stop.decommission,
            )
        case "acknowledge":
            ids = tuple(ContainerId(i) for i in message.acknowledge.container_ids)
            return e.EndsAcknowledged(now=now, epoch=epoch, container_ids=ids)
        case "rebind":
            rebind = message.rebind
            return e.RebindReceived(
                now=now, epoch=epoch, request_id=rebind.request_id, **codec.to_binding(rebind)
            )
        case "set_class":
            changed = message.set_class
            workload_class = codec.to_class(changed.workload_class, "set_class.workload_class")
            if workload_class is None:
                return None
            return e.ContainerClassSet(
                now=now,
                epoch=epoch,
                container_id=ContainerId(changed.container_id),
                workload_class=workload_class,
            )
    return None
