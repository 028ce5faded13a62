"""Nodes that get nothing new, and which containers leave them.

A drain is an administrator's intent, so it is durable: it applies to a name and holds until it is
undone, whatever happens meanwhile. A node that is excluded, because whatever starts there fails,
gets nothing new for a while. In both cases a container that has not started there waits elsewhere;
what runs there runs on or, if the drain asks for it, hands over its data and ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from hrm.core.master.entities import Container, Node
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.returns import return_waiting
from hrm.core.master.state import MasterState, node_not_found
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.feasibility import demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerState,
    EndCause,
    NodeName,
    NodeState,
    is_driver,
)
from hrm.core.vocabulary.transitions import NodeHappening

__all__ = ["Drains"]

_RETURNED = "returned to service"


class Drains:
    """``drained``: all and only the names under drain, in the order in which they were ordered. A
    node of such a name is DRAINING or LOST. ``moving``: of these, those whose containers are to
    hand over their data and end, with the time that each has for that; requested from this master,
    not durable.
    """

    def __init__(
        self,
        master_state: MasterState,
        placement: PlacementCoordinator,
        drained: Iterable[NodeName] = (),
    ) -> None:
        self.master_state = master_state
        self.placement = placement
        self.drained = dict.fromkeys(drained)
        self.moving: dict[NodeName, float] = {}

    def order(self, event: e.DrainRequested) -> None:
        """All of the named nodes, or, where one of them is unknown or lost, none."""
        for name in event.nodes:
            node = self.master_state.nodes.get(name)
            if event.undo and name in self.drained:
                continue
            if node is None or not node.life.takes(NodeHappening.DRAIN_ORDERED):
                self.master_state.refuse(event.call_id, node_not_found(name, node))
                return
        for name in event.nodes:
            if event.undo:
                self._undo(name, event.now, event.reason)
                self.master_state.exclusions.clear(name, event.now, _RETURNED)
                self._try_admitted(event.now)
            else:
                node = self.master_state.nodes[name]
                self._drain(node, event.now, event.reason)
                if event.move_within_s:
                    self.moving[name] = event.move_within_s
                    for container in node.containers.values():
                        if container.state is ContainerState.RUNNING:
                            self.decommission(node, container, event.now)
        self.master_state.reply(event.call_id, c.Done())

    def trim(self, awaited: Set[str], now: float) -> None:
        """Forget the oldest of too many drains of nodes that are neither known nor awaited."""
        kept = self.master_state.bounds.lost_nodes_kept
        if len(self.drained) > kept:
            known = self.master_state.nodes.keys() | awaited
            gone = [name for name in self.drained if name not in known]
            for name in gone[: max(0, len(gone) - kept)]:
                self._undo(name, now)

    def _drain(self, node: Node, now: float, reason: str) -> None:
        if node.name not in self.drained:
            self.drained[node.name] = None
            self.master_state.out.append(c.RememberDrain(node=node.name))
        node.life.take(NodeHappening.DRAIN_ORDERED, now, reason or "a drain was requested")
        self.set_open(node, False)
        self.return_waiters(node, now)

    def decommission(self, node: Node, container: Container, now: float) -> None:
        """Order a running container to hand over its data, and end."""
        if is_driver(container.application_id):
            return  # it has no peer to hand its data to, and runs to its end
        reason = f"{node.name} is drained, and what runs there moves away"
        grace_s, cause = self.moving[node.name], EndCause.PREEMPTED
        self.master_state.send_stop(
            node, container, cause, reason, now, grace_s=grace_s, decommission=True
        )

    def _undo(self, name: NodeName, now: float, reason: str = "") -> None:
        self.moving.pop(name, None)
        if name in self.drained:
            del self.drained[name]
            self.master_state.out.append(c.ForgetDrain(node=name))
        node = self.master_state.nodes.get(name)
        undone = NodeHappening.DRAIN_UNDONE
        if node is not None and node.life.take(undone, now, reason or _RETURNED):
            self.set_open(node, True)
            self.placement.capacity_freed(now)

    def return_waiters(
        self, node: Node, now: float, application_id: ApplicationId | None = None
    ) -> None:
        """Containers that have not started on a drained or excluded node wait elsewhere: also those
        that are still on their way there, and drivers and gangs, which would wait in vain.

        ``application_id``: of this application only; None: of all.
        """
        drained = node.state is NodeState.DRAINING
        reason = f"{node.name} is {'drained' if drained else 'excluded, see hrm app why'}"
        for container in list(node.containers.values()):
            if container.state not in (ContainerState.ASSIGNED, ContainerState.WAITING):
                continue
            if application_id is not None and container.application_id != application_id:
                continue
            if drained or self._may_go_elsewhere(container, now):
                return_waiting(self.master_state, container, reason, now)

    def return_unsuited(self, node: Node, now: float) -> None:
        """Containers that have not started on a node that does not meet their application's
        requirement wait elsewhere."""
        for container in list(node.containers.values()):
            if container.state in (ContainerState.ASSIGNED, ContainerState.WAITING):
                why = self.master_state.unsuited(container)
                if why:
                    reason = f"{node.name} {why}"
                    return_waiting(self.master_state, container, reason, now)

    def _may_go_elsewhere(self, container: Container, now: float) -> bool:
        avoided = self.master_state.exclusions.avoided(container.application_id, now)
        demand = demand_vector(container.request.resources)
        requires = self.master_state.applications[container.application_id].requires
        return self.master_state.state.has_capacity_outside(avoided, demand, requires)

    def evaluate(self, now: float) -> None:
        """Exclude for all the nodes that many applications have excluded."""
        for name in self.master_state.exclusions.tick(now, self._in_order, self._count_alive):
            node = self.master_state.nodes.get(name)
            if node is not None and node.state is not NodeState.LOST:
                self.return_waiters(node, now)
        self._try_admitted(now)

    def _count_alive(self) -> int:
        return sum(node.state is NodeState.ALIVE for node in self.master_state.nodes.values())

    def _try_admitted(self, now: float) -> None:
        if self.master_state.exclusions.take_admitted():
            self.placement.capacity_freed(now)

    def _in_order(self, application_id: ApplicationId) -> bool:
        if is_driver(application_id):
            return False  # what ends is the application itself, and its holder lives on
        app = self.master_state.applications.get(application_id)
        if app is None:
            return False
        return app.session is not None or app.life.state is ApplicationState.SUCCEEDED

    def set_open(self, node: Node, is_open: bool) -> None:
        for unit in node.units:
            self.master_state.state.set_open(unit.unit_id, is_open and unit.takes_more)
