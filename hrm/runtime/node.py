"""One life of an agent in virtual time, around ``NodeCore``: orders in, processes and reports out.

Subclasses of ``NodeRuntime`` define how processes live and what carries the reports: the machines
of the fault simulator, or the direct nodes of ``hrm.runtime.direct``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import TypeAlias

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.model import ContainerSpec, NodeName
from hrm.core.vocabulary.node_requirement import NodeProperties
from hrm.runtime.clock import Timeline

__all__ = ["NodeReport", "NodeRuntime", "order"]

NodeReport: TypeAlias = e.ContainerReported | e.NodeReported | e.RebindReplied


class NodeRuntime(ABC):
    """``sequence``: of the latest message to the master, in this ``incarnation``. ``properties``:
    what it registers with."""

    def __init__(self, core: NodeCore, clock: Timeline, incarnation: int = 1) -> None:
        self.core = core
        self.clock = clock
        self.incarnation = incarnation
        self.sequence = 0
        self.properties = NodeProperties(host="127.0.0.1")

    @property
    def name(self) -> NodeName:
        return self.core.name

    @abstractmethod
    def start(self, spec: ContainerSpec) -> None: ...

    @abstractmethod
    def stop(self, command: c.StopProcess) -> None: ...

    @abstractmethod
    def pin(self, command: c.PinProcess) -> None: ...

    @abstractmethod
    def emit(self, report: NodeReport) -> None:
        """Deliver a report to the master, which takes it in with its own time."""

    @abstractmethod
    def forget(self, command: c.ForgetContainer) -> None: ...

    @abstractmethod
    def register_again(self, command: c.RegisterAgain) -> None: ...

    def decide(self, event: e.NodeEvent) -> list[c.NodeCommand]:
        return self.core.handle(event)

    def handle(self, event: e.NodeEvent) -> None:
        """Let the core handle one event, and carry out its commands."""
        for command in self.decide(event):
            match command:
                case c.StartProcess():
                    self.start(command.spec)
                case c.StopProcess():
                    self.stop(command)
                case c.PinProcess():
                    self.pin(command)
                case c.RegisterAgain():
                    self.register_again(command)
                case c.ForgetContainer():
                    self.forget(command)
                case c.DeleteShuffleFiles():
                    pass  # only a live agent has them
                case c.ReportContainer() | c.SendHeartbeat() | c.ReplyToRebinding():
                    self.emit(self._report(command))

    def registration(self, identity: str, *, call_id: int = 0, owner: str = "") -> e.NodeRegistered:
        """The event that opens a stream."""
        return e.NodeRegistered(
            now=self.clock.now,
            call_id=call_id,
            node=self.name,
            identity=identity,
            owner=owner,
            incarnation=str(self.incarnation),
            sequence=self.next_sequence(),
            host=self.properties.host,
            endpoint=f"{self.properties.host}:1",
            units=self.core.offers,
            containers=self.core.statuses(),
            followed=self.core.followed,
            labels=self.properties.labels,
            runtimes=self.properties.runtimes,
            platform=self.properties.platform,
            preemption_grace_s=self.core.preemption_grace_s,
        )

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def _report(
        self, command: c.ReportContainer | c.SendHeartbeat | c.ReplyToRebinding
    ) -> NodeReport:
        now, incarnation = self.clock.now, str(self.incarnation)
        match command:
            case c.ReportContainer():
                return e.ContainerReported(
                    now=now,
                    node=self.name,
                    incarnation=incarnation,
                    sequence=self.next_sequence(),
                    container=command.status,
                )
            case c.SendHeartbeat():
                return e.NodeReported(
                    now=now,
                    node=self.name,
                    incarnation=incarnation,
                    sequence=self.next_sequence(),
                    containers=command.statuses,
                )
            case c.ReplyToRebinding():
                return e.RebindReplied(
                    now=now,
                    node=self.name,
                    request_id=command.request_id,
                    accepted=command.accepted,
                    message=command.message,
                )


_ORDERS: dict[type[c.NodeMessage], Callable[..., e.NodeEvent]] = {
    c.AssignContainer: e.AssignReceived,
    c.StopContainer: e.StopReceived,
    c.AcknowledgeEnded: e.EndsAcknowledged,
    c.RebindUnits: e.RebindReceived,
    c.SetContainerClass: e.ContainerClassSet,
    c.DropShuffleFiles: e.ApplicationEnded,
}


def order(message: c.NodeMessage, now: float, epoch: int) -> e.NodeEvent:
    """The node's event for a message of the master: the same fields, with its time and epoch."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    return _ORDERS[type(message)](now=now, epoch=epoch, **values)
