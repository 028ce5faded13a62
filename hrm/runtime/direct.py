"""Nodes connected to a master by a network without faults: every message takes the same time.

Processes start immediately and run until they are stopped, or as long as ``runs_s`` returns.
"""

from __future__ import annotations

from dataclasses import replace

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.model import ContainerEnd, ContainerId, ContainerSpec, EndCause, NodeName
from hrm.runtime.clock import Timeline
from hrm.runtime.master import End, MasterRuntime
from hrm.runtime.node import NodeReport, NodeRuntime, order
from hrm.runtime.virtual_disk import VirtualDisk

__all__ = ["DirectMaster", "DirectNode"]


class DirectMaster(MasterRuntime):
    """``ends``: the streams of nodes. ``delay_s``: of the network, each way."""

    def __init__(
        self, core: MasterCore, clock: Timeline, disk: VirtualDisk, delay_s: float
    ) -> None:
        self.ends: dict[tuple[str, str], End] = {}
        super().__init__(core, clock, disk)
        self.delay_s = delay_s

    def node(self, name: NodeName, incarnation: str) -> End | None:
        return self.ends.get((name, incarnation))


class DirectNode(NodeRuntime):
    """``drain_s``: how long a preempted container takes, at most, to finish its work.

    ``processes``: what runs.
    """

    def __init__(
        self,
        core: NodeCore,
        clock: Timeline,
        master: DirectMaster,
        drain_s: float = float("inf"),
    ) -> None:
        super().__init__(core, clock)
        self.master = master
        self.drain_s = drain_s
        self.connected = False
        self.processes: dict[ContainerId, ContainerSpec] = {}

    def runs_s(self, spec: ContainerSpec) -> float | None:
        """A process has started; returns how long it runs by itself, None: until it is stopped."""
        return None

    def over(self, spec: ContainerSpec) -> None:
        """A process has ended."""

    # --- the master -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Open a stream to the master, in place of the one before."""
        self.connected = True
        self.master.ends[self.name, str(self.incarnation)] = _End(self)
        master = self.master.core
        epoch, epoch_id = master.epoch, master.master_state.epoch_id
        self.handle(e.MasterConnected(now=self.clock.now, epoch=epoch, epoch_id=epoch_id))

    def register(self, call_id: int = 0) -> None:
        event = self.registration(f"identity-of-{self.name}", call_id=call_id)
        self.connect()
        self.submit(event)

    def register_again(self, command: c.RegisterAgain) -> None:
        self.clock.after(self.master.delay_s, self.reconnect, self.incarnation)

    def reconnect(self, incarnation: int) -> None:
        if self.is_joined(incarnation):
            self.register()

    def is_joined(self, incarnation: int) -> bool:
        return self.connected and self.incarnation == incarnation

    def received(self, message: c.NodeMessage, epoch: int, incarnation: int) -> None:
        """A message to an ``incarnation`` arrives, if the stream is still open."""
        if self.is_joined(incarnation):
            self.handle(order(message, self.clock.now, epoch))

    def emit(self, report: NodeReport) -> None:
        if self.connected:
            self.clock.after(self.master.delay_s, self._arrive, report)

    def _arrive(self, report: NodeReport) -> None:
        if self.connected:
            self.submit(replace(report, now=self.clock.now))

    def submit(self, event: e.MasterEvent) -> None:
        """Receive a report of this node."""
        self.master.submit(event)

    # --- processes ------------------------------------------------------------------------------

    def start(self, spec: ContainerSpec) -> None:
        self.processes[spec.container_id] = spec
        runs_s = self.runs_s(spec)
        if runs_s is not None:
            end = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
            self.clock.after(runs_s, self.end, spec.container_id, end)

    def stop(self, command: c.StopProcess) -> None:
        delay_s = min(command.grace_s, self.drain_s) if command.decommission else 0.0
        end = ContainerEnd(cause=command.cause, exit_code=143, message=command.reason)
        self.clock.after(delay_s, self.end, command.container_id, end)

    def pin(self, command: c.PinProcess) -> None:
        """Processes that are no more than names are on no core."""

    def forget(self, command: c.ForgetContainer) -> None:
        """Nothing is kept of it."""

    def end(self, container_id: ContainerId, end: ContainerEnd) -> None:
        """End a process, unless it has ended before."""
        spec = self.processes.pop(container_id, None)
        if spec is not None:
            self.over(spec)
            now = self.clock.now
            self.handle(e.ProcessEnded(now=now, container_id=container_id, end=end))


class _End:
    """The master's end of one stream of a node."""

    def __init__(self, node: DirectNode) -> None:
        self._node = node
        self._incarnation = node.incarnation

    def put(self, message: c.NodeMessage) -> None:
        node, master = self._node, self._node.master
        at = (master.core.epoch, self._incarnation)
        node.clock.after(master.delay_s, node.received, message, *at)

    def drop(self) -> None:
        """An agent whose stream the master ends opens another."""
        node = self._node
        node.clock.after(node.master.delay_s, node.reconnect, self._incarnation)
