"""NodeService: one stream per node."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from hrm import rpc_server
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import NodeName
from hrm.core.vocabulary.takeover import Takeover
from hrm.errors import HrmError
from hrm.identity.caller import caller, check_name
from hrm.identity.roles import Identity
from hrm.master.container_uses import ContainerUseReports
from hrm.master.interpreter import Interpreter, Outbox, drain
from hrm.master.node_policies import AGENTS, NodePolicies
from hrm.v1 import node_pb2 as pb
from hrm.v1 import node_pb2_grpc
from hrm.v1.policy_pb2 import PolicyOrder
from hrm.wire import node_stream as node_wire

__all__ = ["NodeService"]

log = structlog.get_logger("master.nodes")

_Context: TypeAlias = grpc.aio.ServicerContext[pb.NodeMessage, pb.MasterMessage]


class NodeService(node_pb2_grpc.NodeServiceServicer):
    """Turns messages of agents into events, and commands for nodes into messages."""

    def __init__(
        self,
        master: Interpreter,
        heartbeat_interval_s: float,
        connected: Callable[[str, Identity], None],
        uses: ContainerUseReports,
        state_dir: Path,
    ) -> None:
        """``connected`` is called with the name and the identity of each node that registers.
        ``uses`` takes what nodes have recorded of GPUs. ``state_dir`` keeps the modes of agents'
        learned policies.

        Raises:
            InvalidConfig: these modes are damaged.
        """
        self._master = master
        self._connected = connected
        self._uses = uses
        self.policies = NodePolicies(state_dir, self._order_all, lambda _node: math.inf, AGENTS)
        self._heartbeat_interval_s = heartbeat_interval_s

    async def Connect(self, requests: Any, context: _Context) -> None:  # noqa: N802
        """One agent's stream, from its registration to its end."""
        name, incarnation, outbox = await self._register(requests)
        log.info("node registered", node=name, incarnation=incarnation)
        try:
            core, interval_s = self._master.core, self._heartbeat_interval_s
            epoch_id = core.master_state.epoch_id
            await context.write(node_wire.registered(core.epoch, epoch_id, interval_s))
            for order in self.policies.orders.values():
                await context.write(node_wire.from_policy_order(order, core.epoch))
            # A writer that ends (its outbox overflowed, a newer stream took over) ends the stream:
            # the agent reconnects and receives the whole state again.
            await rpc_server.both_ways(
                self._read(requests, name, incarnation), self._write(outbox, context)
            )
        except HrmError as error:
            log.warning("node sent a bad message", node=name, error=error.message)
            raise
        finally:
            self._disconnect(name, incarnation, outbox)
            log.info("node disconnected", node=name, incarnation=incarnation)

    def _disconnect(self, name: NodeName, incarnation: str, outbox: Outbox) -> None:
        if self._master.node_outboxes.get((name, incarnation)) is not outbox:
            return  # a newer stream of the same agent has taken over
        del self._master.node_outboxes[name, incarnation]
        self.policies.left(name)
        event = e.NodeDisconnected(now=self._master.now(), node=name, incarnation=incarnation)
        self._master.submit(event)

    async def _register(self, requests: Any) -> tuple[NodeName, str, Outbox]:
        first = await rpc_server.first_message(requests, "a registration")
        event = node_wire.to_registration(first, self._master.now())
        check_name(event.node, "node")
        refusal = self._master.core.nodes.refusal(event)
        if refusal is not None:
            raise refusal
        key = (event.node, event.incarnation)
        outbox = Outbox()
        takeover = Takeover(self._master.node_outboxes, key, outbox)
        try:
            await self._master.call(lambda call_id: replace(event, call_id=call_id))
        except asyncio.CancelledError:
            # The agent disconnected before the reply; the core may have registered it already.
            self._disconnect(*key, outbox)
            raise
        except HrmError:
            takeover.undo()
            raise
        self._connected(event.node, caller())
        if takeover.previous is not None:
            takeover.previous.close()
        return event.node, event.incarnation, outbox

    async def _read(self, requests: Any, name: NodeName, incarnation: str) -> None:
        async for message in requests:
            await self._master.throttle.of_report()
            now = self._master.now()
            self._uses.reported(name, message.heartbeat.gpu_uses)
            if message.heartbeat.policies:
                self.policies.take_report(name, message.heartbeat.policies)
            self._master.submit(node_wire.to_report(message, name, incarnation, now))

    async def _write(self, outbox: Outbox, context: _Context) -> None:
        core = self._master.core

        async def send(message: object) -> None:
            # The epoch may rise while the stream stays.
            if isinstance(message, PolicyOrder):
                await context.write(node_wire.from_policy_order(message, core.epoch))
                return
            assert isinstance(message, c.NodeMessage)
            await context.write(node_wire.from_order(message, core.epoch))

        await drain(outbox, send)

    def _order_all(self, order: PolicyOrder) -> None:
        for outbox in self._master.node_outboxes.values():
            outbox.put(order)
