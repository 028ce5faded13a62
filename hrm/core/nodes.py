"""Which nodes the master has: who registers, who is heard of, who is lost and comes back.

Reports are taken in the order of their sequence numbers, older ones are dropped. What they say of
containers is for ``mirror``; which nodes get nothing new, for ``drains``.
"""

from __future__ import annotations

from collections.abc import Iterable

from hrm.core import commands as c
from hrm.core import events as e
from hrm.core.drains import Drains
from hrm.core.ledger import Ledger, Node
from hrm.core.mirror import Mirror
from hrm.core.model import ContainerEnd, ContainerState, EndCause, NodeName, NodeState
from hrm.core.placing import Placing
from hrm.core.relocation import Relocation
from hrm.core.resource_unit import UnitQueue
from hrm.errors import AlreadyExists

__all__ = ["Nodes"]


class Nodes:
    """``awaited``: nodes that an earlier master knew and that have not come back to this one;
    ``absent``: those for which it no longer waits. The store keeps them as long as an application
    may ask again for what runs there: the next master must know of them, too. One that comes back
    needs not be written down again.
    """

    def __init__(
        self,
        ledger: Ledger,
        placing: Placing,
        awaited: set[str],
        drained: Iterable[NodeName] = (),
    ) -> None:
        self.ledger = ledger
        self.placing = placing
        self.drains = Drains(ledger, placing, drained)
        self.mirror = Mirror(ledger, placing, self.drains)
        self._relocation = Relocation(ledger)
        self.awaited = awaited
        self.absent: set[str] = set()
        self._look_at_s = 0.0

    def registered(self, event: e.NodeRegistered) -> None:
        node = self.ledger.nodes.get(event.node)
        if node is not None and node.identity != event.identity:
            if node.connected and node.state is not NodeState.LOST:
                message = (
                    f"another agent is registered as {event.node} (at {node.endpoint}); give this "
                    f"one another name (--name), or stop the other"
                )
                refusal = c.Refuse(call_id=event.call_id, error=AlreadyExists(message))
                self.ledger.out.append(refusal)
                return
            self._lose(node, event.now, "another agent took its name")
            self.ledger.exclusions.pardon(event.node, event.now, "another agent has its name")
        is_new = node is None or node.state is NodeState.LOST
        if is_new and event.node not in self.awaited and event.node not in self.absent:
            self.ledger.out.append(c.RememberNode(node=event.node))
        node = self._book(event)
        self.ledger.out.append(c.Reply(call_id=event.call_id, answer=c.Done()))
        self.mirror.reconcile(node, event.containers, event.now, registration=True)
        if node.state is NodeState.DRAINING:
            self.drains.turn_away(node, event.now)
        self.awaited.discard(event.node)
        self.absent.discard(event.node)
        if self.ledger.recovering and not self.awaited:
            self.end_recovery(event.now)
        self.placing.room_appeared(event.now)

    def reported(self, event: e.NodeReported) -> None:
        self._revive(event)
        node = self._listen(event.node, event.incarnation, event.sequence, event.now)
        if node is None:
            return
        node.usage = event.usage
        node.shortcuts = event.shortcuts
        self.mirror.reconcile(node, event.containers, event.now, registration=False)

    def container_reported(self, event: e.ContainerReported) -> None:
        node = self._listen(event.node, event.incarnation, event.sequence, event.now)
        if node is not None:
            self.mirror.apply(node, event.container, event.now)

    def disconnected(self, event: e.NodeDisconnected) -> None:
        node = self.ledger.nodes.get(event.node)
        if node is not None and node.incarnation == event.incarnation:
            node.connected = False

    def tick(self, now: float) -> None:
        if now > self._look_at_s:
            self._look(now)
        if self.ledger.exclusions.open:
            self.drains.judge(now)
        self._relocation.tick(now)
        if self.absent and not any(app.is_doubtful(now) for app in self.ledger.live_applications()):
            for name in sorted(self.absent):
                self.ledger.out.append(c.ForgetNode(node=NodeName(name)))
            self.absent.clear()
        self.drains.trim(self.awaited, now)

    def _look(self, now: float) -> None:
        """Lose the silent nodes, and forget the first of too many lost ones.

        All nodes are looked at, but not at every tick: before ``_look_at_s`` none can have been
        silent for too long, for a node's ``last_heard_s`` never goes back.
        """
        timeout_s = self.ledger.bounds.node_timeout_s
        heard_s = [now]
        for node in list(self.ledger.nodes.values()):
            if node.life.state is NodeState.LOST:
                continue
            silent_s = now - node.last_heard_s
            if silent_s > timeout_s:
                self._lose(node, now, f"not heard of for {silent_s:.0f} s")
            else:
                heard_s.append(node.last_heard_s)
        lost = [n for n in self.ledger.nodes.values() if n.life.state is NodeState.LOST]
        for node in lost[: max(0, len(lost) - self.ledger.bounds.lost_nodes_kept)]:
            del self.ledger.nodes[node.name]
        self._look_at_s = min(heard_s) + timeout_s

    def end_recovery(self, now: float) -> None:
        """Every node is back, or had its time.

        If all are back, what is still PENDING runs nowhere and may be placed. Otherwise a node that
        nobody hears of may be running it: its end is told, and its AppMaster asks for another under
        a new id, so that no id ever runs twice. An AppMaster that comes later hears it then.
        """
        self.ledger.recovering = False
        absent = sorted(self.awaited)
        self.absent = set(absent)
        self.awaited.clear()
        message = f"it may run on a node that has not come back: {', '.join(absent)}"
        for app in self.ledger.live_applications():
            if not app.recovered:
                continue
            for container in app.in_state(ContainerState.PENDING):
                if not container.held:
                    continue
                container.held = False
                if absent:
                    self.mirror.end(
                        container, ContainerEnd(cause=EndCause.LOST, message=message), now
                    )
                else:
                    self.placing.hand_over(app, container, now)

    def _book(self, event: e.NodeRegistered) -> Node:
        old = self.ledger.nodes.get(event.node)
        same = old is not None and old.identity == event.identity
        if old is not None and old.state is not NodeState.LOST:
            self._close_rows(old)
        node = Node(
            name=event.node,
            life=self.ledger.new_node_life(event.node) if old is None else old.life,
            identity=event.identity,
            incarnation=event.incarnation,
            host=event.host,
            endpoint=event.endpoint,
            units=event.units,
            isolation=event.isolation,
            spark_versions=event.spark_versions,
            platform=event.platform,
            remarks=event.remarks,
            registered_at_s=event.now,
            last_heard_s=event.now,
            sequence=event.sequence,
            containers=old.containers if old is not None and same else {},
        )
        self.ledger.nodes[event.node] = node
        for unit in event.units:
            self.ledger.state.add(event.node, UnitQueue(unit))
            self.ledger.bound_waiting(unit.unit_id)
        if old is None:
            node.life.begin(event.now, "registered")
        self._into_service(node, event.now, "registered")
        return node

    def _into_service(self, node: Node, now: float, why: str) -> None:
        """Its rows are in the table: they are open unless it is under drain."""
        if node.name in self.drains.drained:
            node.life.move(NodeState.DRAINING, now, f"{why}, and under drain")
            self.drains.set_open(node, False)
        else:
            node.life.move(NodeState.ALIVE, now, why)

    def _listen(self, name: NodeName, incarnation: str, sequence: int, now: float) -> Node | None:
        """The node, if this report of it is news."""
        node = self.ledger.nodes.get(name)
        if node is None or node.state is NodeState.LOST:
            return None
        if node.incarnation != incarnation or sequence <= node.sequence:
            return None
        node.sequence = sequence
        node.last_heard_s = now
        return node

    def _revive(self, event: e.NodeReported) -> None:
        """Take a node back that speaks on a stream that never broke: its agent has no reason to
        register anew.

        Either it was silent for too long and is LOST; what it ran has been given up. Or the
        registration of an agent that is dead came late, after that of its successor, and has ended.
        """
        node = self.ledger.nodes.get(event.node)
        if node is None:
            return
        if node.incarnation != event.incarnation:
            if node.connected:
                return
            node.incarnation = event.incarnation
            node.sequence = event.sequence - 1
        if event.sequence <= node.sequence:
            return
        node.connected = True
        if node.state is NodeState.LOST:
            self.ledger.out.append(c.RememberNode(node=node.name))
            for unit in node.units:
                self.ledger.state.add(node.name, UnitQueue(unit))
            self._into_service(node, event.now, "heard of again")
            self.placing.room_appeared(event.now)

    def _lose(self, node: Node, now: float, why: str) -> None:
        if node.state is NodeState.LOST:
            return
        node.life.move(NodeState.LOST, now, why)
        self._look_at_s = 0.0  # there may be too many lost ones now
        node.connected = False
        message = f"{node.name} is lost: {why}"
        for container in list(node.containers.values()):
            end = ContainerEnd(cause=EndCause.NODE_LOST, message=message)
            self.ledger.end_container(container, end, now)
        self._close_rows(node)
        for unit in node.units:
            self.ledger.finish_times.forget(unit.unit_id)
        self.ledger.out.append(c.ForgetNode(node=node.name))
        self.placing.room_appeared(now)

    def _close_rows(self, node: Node) -> None:
        for unit in node.units:
            if unit.unit_id in self.ledger.state.rows:
                self.ledger.state.remove(unit.unit_id)
