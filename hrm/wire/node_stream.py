"""Messages between a master and an agent, and their contents: to events of either core, and back.

The cores decide what is stale: a node ignores an order of a past epoch, and the master a report of
an ended stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hrm import ownership_keys, request_bounds
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.bounds import YIELD_GRACE_S, YIELD_GRACE_S_MAX
from hrm.core.vocabulary.model import (
    NOTHING,
    ApplicationId,
    ContainerId,
    ContainerStatus,
    Followed,
    Gpu,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    Shortcut,
    Usage,
)
from hrm.core.vocabulary.node_requirement import Runtime
from hrm.core.vocabulary.partitioning import BindingMode
from hrm.errors import InvalidRequest
from hrm.text import shortened
from hrm.v1 import admin_pb2, policy_pb2
from hrm.v1 import node_pb2 as pb
from hrm.v1.common_pb2 import ContainerGpuUse
from hrm.wire import codec, requirements
from hrm.wire.enums import numbers_of

__all__ = [
    "BINDING_MODE",
    "from_binding",
    "from_container",
    "from_heartbeat",
    "from_order",
    "from_policy_order",
    "from_rebinding",
    "from_registration",
    "from_shortcut",
    "from_unit",
    "from_usage",
    "registered",
    "to_binding",
    "to_event",
    "to_registration",
    "to_report",
    "to_shortcuts",
    "to_unit",
    "to_usage",
]

_REMARKS_MAX = 20
_RUN_LIMIT_MAX = 1_000_000

BINDING_MODE = numbers_of("BINDING_MODE", BindingMode, pb.BindingMode)
_TO_BINDING_MODE = {number: member for member, number in BINDING_MODE.items()}


def from_registration(
    units: Iterable[ResourceUnit],
    containers: Iterable[ContainerStatus],
    followed: Followed | None,
    runtimes: Iterable[Runtime] = (),
    **fields: Any,
) -> pb.NodeMessage:
    """The first message of a stream. ``fields``: the other fields of the message."""
    register = pb.RegisterNode(
        resource_units=[from_unit(unit) for unit in units],
        containers=[codec.from_status(status) for status in containers],
        runtimes=[requirements.from_runtime(runtime) for runtime in runtimes],
        **fields,
    )
    if followed is not None:
        register.followed_epoch, register.followed_epoch_id = followed.epoch, followed.epoch_id
    return pb.NodeMessage(register=register)


def from_heartbeat(
    usage: Usage | None,
    containers: Iterable[ContainerStatus],
    shortcuts: Iterable[Shortcut],
    gpu_uses: Iterable[ContainerGpuUse] = (),
    policies: Iterable[policy_pb2.LearnedPolicy] = (),
) -> pb.NodeMessage:
    heartbeat = pb.NodeHeartbeat(
        usage=None if usage is None else from_usage(usage),
        containers=[codec.from_status(status) for status in containers],
        shortcuts=[from_shortcut(shortcut) for shortcut in shortcuts],
        gpu_uses=gpu_uses,
        policies=policies,
    )
    return pb.NodeMessage(heartbeat=heartbeat)


def from_container(status: ContainerStatus) -> pb.NodeMessage:
    return pb.NodeMessage(container=codec.from_status(status))


def from_rebinding(command: c.ReplyToRebinding) -> pb.NodeMessage:
    reply = pb.RebindingAnswer(
        request_id=command.request_id,
        accepted=command.accepted,
        message=shortened(command.message, codec.TEXT_LENGTH_MAX),
    )
    return pb.NodeMessage(rebinding=reply)


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
        owner=ownership_keys.owner_of(register.ownership_key),
        followed=codec.to_followed(register),
        labels=requirements.to_labels(register.labels),
        runtimes=requirements.to_runtimes(register.runtimes) or _of_an_older_agent(register),
        preemption_grace_s=codec.to_amount(register.preemption_grace_s, "preemption_grace_s")
        if register.HasField("preemption_grace_s")
        else None,
    )


def _of_an_older_agent(register: pb.RegisterNode) -> tuple[Runtime, ...] | None:
    """One that reports no more than versions of Spark."""
    versions = (codec.to_text(x, "spark_versions") for x in register.spark_versions)
    return tuple(Runtime(spark=x) for x in versions) or None


def to_report(
    message: pb.NodeMessage, node: NodeName, incarnation: str, now: float
) -> e.NodeReported | e.ContainerReported | e.RebindReplied:
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
                usage=to_usage(message.heartbeat.usage),
                shortcuts=to_shortcuts(message.heartbeat.shortcuts),
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
            reply = message.rebinding
            return e.RebindReplied(
                now=now,
                node=node,
                request_id=reply.request_id,
                accepted=reply.accepted,
                message=codec.to_text(reply.message, "rebinding.message"),
            )
        case kind:
            raise InvalidRequest(f"a registered node may not send {kind or 'nothing'}")


def _units(name: NodeName, messages: Any) -> tuple[ResourceUnit, ...]:
    units = tuple(to_unit(message) for message in messages)
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
            owners[unit.unit_id] = unit.current
            continue
        pool = owners.get(unit.pool)
        size = (unit.current.vcores, unit.current.memory_mib)
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
            return pb.MasterMessage(epoch=epoch, rebind=from_binding(message))


def from_policy_order(order: policy_pb2.PolicyOrder, epoch: int) -> pb.MasterMessage:
    return pb.MasterMessage(epoch=epoch, policy=order)


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
                now=now, epoch=epoch, request_id=rebind.request_id, **to_binding(rebind)
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
        case "drop_shuffle_files":
            application_id = ApplicationId(message.drop_shuffle_files.application_id)
            return e.ApplicationEnded(now=now, epoch=epoch, application_id=application_id)
    return None


# --- what the messages hold -----------------------------------------------------------------------


def to_unit(message: pb.ResourceUnit) -> ResourceUnit:
    return ResourceUnit(
        unit_id=ResourceUnitId(codec.to_text(message.resource_unit_id, "resource_unit_id")),
        capacity=codec.to_resources(message.capacity, f"resource unit {message.resource_unit_id}"),
        run_limit=codec.to_whole(message.run_limit, "run_limit", 1, _RUN_LIMIT_MAX),
        cpus=tuple(codec.to_whole(cpu, "cpus", 0, codec.VCORES_MAX) for cpu in message.cpus),
        gpu=_to_gpu(message.gpu) if message.HasField("gpu") else None,
        pool=ResourceUnitId(codec.to_text(message.pool, "pool")),
        gpu_only=message.gpu_only,
        draining=message.draining,
        lent=_to_part(message, "lent"),
        borrowed=_to_part(message, "borrowed"),
        more_gpus=tuple(map(_to_gpu, message.more_gpus)),
        preempts=not message.no_preemption,
        yield_grace_s=codec.to_amount(message.yield_grace_s, "yield_grace_s", YIELD_GRACE_S_MAX)
        if message.HasField("yield_grace_s")
        else YIELD_GRACE_S,
    )


def _from_gpu(value: Gpu) -> pb.Gpu:
    return pb.Gpu(
        index=value.index,
        memory_mib=value.memory_mib,
        numa_node=value.numa,
        uuid=value.uuid,
        name=value.name,
        declared=value.declared,
    )


def _to_part(message: pb.ResourceUnit, field: str) -> Resources:
    """A part of a unit's capacity."""
    part = codec.to_resources(getattr(message, field), f"{message.resource_unit_id}.{field}", 0)
    whole = message.capacity
    if (
        part.vcores > whole.vcores
        or part.memory_mib > whole.memory_mib
        or part.gpu_memory_mib > whole.gpu_memory_mib
    ):
        raise InvalidRequest(
            f"{field} of resource unit {message.resource_unit_id[:80]!r} is more than it has"
        )
    return part


def _to_gpu(message: pb.Gpu) -> Gpu:
    return Gpu(
        index=codec.to_whole(message.index, "gpu.index", 0, codec.GPU_INDEX_MAX),
        memory_mib=codec.to_whole(message.memory_mib, "gpu.memory_mib", 1, codec.MEMORY_MIB_MAX),
        numa=message.numa_node,
        uuid=codec.to_text(message.uuid, "gpu.uuid"),
        name=codec.to_text(message.name, "gpu.name"),
        declared=message.declared,
    )


def from_unit(value: ResourceUnit) -> pb.ResourceUnit:
    return pb.ResourceUnit(
        resource_unit_id=value.unit_id,
        capacity=codec.from_resources(value.capacity),
        run_limit=value.run_limit,
        cpus=value.cpus,
        gpu=None if value.gpu is None else _from_gpu(value.gpu),
        pool=value.pool,
        gpu_only=value.gpu_only,
        draining=value.draining,
        lent=None if value.lent == NOTHING else codec.from_resources(value.lent),
        borrowed=None if value.borrowed == NOTHING else codec.from_resources(value.borrowed),
        more_gpus=map(_from_gpu, value.more_gpus),
        no_preemption=not value.preempts,
        yield_grace_s=value.yield_grace_s,
    )


def to_binding(message: pb.RebindUnits | admin_pb2.BindNodeRequest) -> dict[str, Any]:
    """The fields of ``RebindReceived`` and ``RebindRequested`` to change.

    Raises:
        InvalidRequest: the mode is unknown, or a number of cores is out of range.
    """
    if message.mode and message.mode not in _TO_BINDING_MODE:
        raise InvalidRequest(f"mode is {message.mode}; it must be SHARED, PARTIAL or EVEN")
    given = {
        field: codec.to_whole(getattr(message, field), field, least, codec.VCORES_MAX)
        for field, least in (("bound_cores", 1), ("reserve_cores", 0))
        if message.HasField(field)
    }
    return {"mode": _TO_BINDING_MODE.get(message.mode), **given}


def from_binding(value: c.RebindUnits) -> pb.RebindUnits:
    mode = pb.BINDING_MODE_UNSPECIFIED if value.mode is None else BINDING_MODE[value.mode]
    return pb.RebindUnits(
        request_id=value.request_id,
        mode=mode,
        bound_cores=value.bound_cores,
        reserve_cores=value.reserve_cores,
    )


def to_usage(message: pb.NodeUsage) -> Usage:
    return Usage(
        cpu_percent=codec.to_amount(message.cpu_percent, "usage.cpu_percent"),
        memory_mib=codec.to_mib(message.memory_used_mib, "usage.memory_used_mib"),
        memory_total_mib=codec.to_mib(message.memory_total_mib, "usage.memory_total_mib"),
        load_1m=codec.to_amount(message.load_1m, "usage.load_1m"),
        disk_mib=codec.to_mib(message.disk_used_mib, "usage.disk_used_mib"),
        disk_free_mib=codec.to_mib(message.disk_free_mib, "usage.disk_free_mib"),
    )


def from_usage(value: Usage) -> pb.NodeUsage:
    return pb.NodeUsage(
        cpu_percent=value.cpu_percent,
        memory_used_mib=value.memory_mib,
        memory_total_mib=value.memory_total_mib,
        load_1m=value.load_1m,
        disk_used_mib=value.disk_mib,
        disk_free_mib=value.disk_free_mib,
    )


def to_shortcuts(messages: Iterable[pb.Shortcut]) -> tuple[Shortcut, ...]:
    return tuple(
        Shortcut(
            name=codec.to_name(message.name, "shortcuts.name"),
            state=codec.to_name(message.state, "shortcuts.state"),
            note=codec.to_text(message.note, "shortcuts.note"),
            used=codec.to_whole(message.used, "shortcuts.used", 0, codec.INT32_MAX),
            missed=codec.to_whole(message.missed, "shortcuts.missed", 0, codec.INT32_MAX),
            why_missed=codec.to_text(message.why_missed, "shortcuts.why_missed"),
        )
        for message in messages
    )


def from_shortcut(value: Shortcut) -> pb.Shortcut:
    return pb.Shortcut(
        name=value.name,
        state=value.state,
        note=shortened(value.note, codec.TEXT_LENGTH_MAX),
        used=value.used,
        missed=value.missed,
        why_missed=shortened(value.why_missed, codec.TEXT_LENGTH_MAX),
    )
