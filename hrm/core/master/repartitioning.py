"""A request to partition a node again, from the operator to the node and back.

Only the node knows its cores and GPUs, so only the node can decide whether a partitioning is
possible; the master forwards the request and the reply. The new units come by another way: the node
registers again, as it does after every break of its stream, and whenever a container has ended that
held what is another unit's now.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm.core.master.state import MasterState, node_not_found
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import NodeName, NodeState
from hrm.core.vocabulary.wakefulness import slept_through
from hrm.errors import InvalidRequest, Unavailable

__all__ = ["Repartitioning"]


@dataclass(slots=True)
class _Pending:
    node: NodeName
    since_s: float
    until_s: float


class Repartitioning:
    """``pending``: callers that wait for a node's reply."""

    def __init__(self, master_state: MasterState) -> None:
        self.master_state = master_state
        self.pending: dict[int, _Pending] = {}

    def requested(self, event: e.RebindRequested) -> None:
        node = self.master_state.nodes.get(event.node)
        if node is None or node.state is NodeState.LOST:
            self.master_state.refuse(event.call_id, node_not_found(event.node, node))
            return
        message = c.RebindUnits(
            request_id=event.call_id,
            mode=event.mode,
            bound_cores=event.bound_cores,
            reserve_cores=event.reserve_cores,
        )
        until_s = event.now + self.master_state.bounds.rebind_timeout_s
        self.pending[event.call_id] = _Pending(node.name, event.now, until_s)
        self.master_state.send(node, message)

    def reply_received(self, event: e.RebindReplied) -> None:
        """A node's reply; it is dropped if its caller no longer waits."""
        asked = self.pending.get(event.request_id)
        if asked is None or asked.node != event.node:
            return
        del self.pending[event.request_id]
        if event.accepted:
            self.master_state.reply(event.request_id, c.Rebound(message=event.message))
        else:
            self.master_state.refuse(event.request_id, InvalidRequest(event.message))

    def woke(self, now: float, slept_s: float) -> None:
        """This master slept: replies may have arrived, and not been read yet."""
        for asked in self.pending.values():
            asked.until_s += slept_through(asked.since_s, now, slept_s)

    def tick(self, now: float) -> None:
        for call_id, asked in list(self.pending.items()):
            if now >= asked.until_s:
                del self.pending[call_id]
                error = Unavailable(
                    f"{asked.node} has not answered; hrm nodes shows its partitioning, then try "
                    f"again"
                )
                self.master_state.refuse(call_id, error)
