"""What a master says to an agent, as events of ``NodeCore``. Pure translation, at this one place.

The core judges the epoch of each: what a master of the past says changes nothing.
"""

from __future__ import annotations

from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ContainerId
from hrm.v1 import common_pb2, node_pb2
from hrm.wire import codec

__all__ = ["to_event"]


def to_event(message: node_pb2.MasterMessage, now: float) -> e.NodeEvent | None:
    """The event; None: the message is nothing to the core, or asks for nothing.

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
                cause=codec.to_end(common_pb2.ContainerEnd(cause=stop.cause)).cause,
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
