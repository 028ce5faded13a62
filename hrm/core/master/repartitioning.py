"""A request to partition a node again, from the operator to the node and back.

Only the node knows its cores and GPUs, so only the node can decide whether a partitioning is
possible; the master forwards the request and the reply. The new units come by another way: the node
registers again, as it does after every break of its stream, and whenever a container has ended that
held what is another unit's now.
"""

from __future__ import annotations

from hrm.core.master.state import MasterState, node_not_found
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import NodeName, NodeState
from hrm.errors import InvalidRequest, Unavailable

__all__ = ["Repartitioning"]


class Repartitioning:
    """``pending``: callers that wait for a node's reply, with the time when they stop waiting."""

    def __init__(self, master_state: MasterState) -> None:
        self.master_state = master_state
        self.pending: dict[int, tuple[NodeName, float]] = {}

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
        self.pending[event.call_id] = (node.name, until_s)
        self.master_state.send(node, message)

    def reply_received(self, event: e.RebindReplied) -> None:
        """A node's reply; it is dropped if its caller no longer waits."""
        if self.pending.get(event.request_id, ("", 0.0))[0] != event.node:
            return
        del self.pending[event.request_id]
        if event.accepted:
            self.master_state.reply(event.request_id, c.Rebound(message=event.message))
        else:
            self.master_state.refuse(event.request_id, InvalidRequest(event.message))

    def woke(self, slept_s: float) -> None:
        """This master slept: replies may have arrived, and not been read yet."""
        for call_id, (name, until_s) in self.pending.items():
            self.pending[call_id] = (name, until_s + slept_s)

    def tick(self, now: float) -> None:
        for call_id, (name, until_s) in list(self.pending.items()):
            if now >= until_s:
                del self.pending[call_id]
                error = Unavailable(
                    f"{name} has not answered; hrm nodes shows its partitioning, then try again"
                )
                self.master_state.refuse(call_id, error)
