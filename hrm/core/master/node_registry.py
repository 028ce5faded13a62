"""Which nodes the master has: which register, report, are lost and come back.

Reports are taken in the order of their sequence numbers, older ones are dropped. What they state of
containers is for ``reconciliation``; which nodes get nothing new, for ``drains``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hrm.core.master.drains import Drains
from hrm.core.master.entities import Node
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.reconciliation import NodeReconciler
from hrm.core.master.relocation import Relocation
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.model import ContainerEnd, ContainerState, EndCause, NodeName, NodeState
from hrm.core.vocabulary.node_requirement import NodeProperties
from hrm.core.vocabulary.ownership import denied, is_owner
from hrm.core.vocabulary.transitions import ContainerHappening, NodeHappening
from hrm.core.vocabulary.wakefulness import excused
from hrm.errors import AlreadyExists, HrmError, LimitReached, NotOwner, Unavailable

__all__ = ["NodeRegistry"]

_FORGOTTEN = "one that is no longer in the store"
"""In place of the names of nodes; no node is called so."""
_RECENT_HEARTBEATS = 3.0
"""Heartbeats; an agent that has missed so many may be dead, whatever its connection's state."""
INCARNATIONS_KEPT = 8
"""Of one agent, to know its own streams by."""


class NodeRegistry:
    """``awaited``: nodes that an earlier master knew and that have not come back to this one;
    ``absent``: those for which it no longer waits. The store keeps them as long as an application
    may request again what runs there: the next master must know of them, too. One that comes back
    need not be written again. ``missing``: those of them that have not come back to this master,
    whether or not anything is kept for them. ``lost_s``: nodes that were lost, and when; the store
    keeps them until each AppMaster has been notified of what was lost with them, or its application
    has ended. ``known_at_start``: how many nodes an earlier master knew.
    ``_written``: the nodes that the store keeps, with the digest of each one's ownership key.

    A name belongs to the agent that has its key and identity for as long as that agent may come
    back: until the node is lost, or is not awaited any more. Then another may have it.
    """

    def __init__(
        self,
        master_state: MasterState,
        placement: PlacementCoordinator,
        known: Mapping[NodeName, str],
        drained: Iterable[NodeName] = (),
    ) -> None:
        self.master_state = master_state
        self.placement = placement
        self.drains = Drains(master_state, placement, drained)
        self.reconciler = NodeReconciler(master_state, placement, self.drains)
        self._relocation = Relocation(master_state)
        self.awaited: set[str] = set(known)
        self.known_at_start = len(known)
        self.absent: set[str] = set()
        self.missing: set[str] = set()
        self._written = dict(known)
        self.lost_s: dict[NodeName, float] = {}
        self._next_check_s = 0.0

    @property
    def returned(self) -> int:
        """How many of ``known_at_start`` are not awaited any more."""
        return self.known_at_start - len(self.awaited - {_FORGOTTEN})

    @property
    def may_lack_nodes(self) -> bool:
        """Is one awaited of which the store does not know?"""
        return _FORGOTTEN in self.awaited

    def refusal(self, event: e.NodeRegistered) -> HrmError | None:
        """Why this agent may not be the node that it names. To be checked before the stream that
        it would replace is touched: a refused one must leave no trace."""
        node = self.master_state.nodes.get(event.node)
        if node is None or node.state is NodeState.LOST:
            limit, nodes = self.master_state.bounds.nodes_limit, self.master_state.nodes
            if (  # none need be counted where there are fewer, lost ones included
                len(nodes) >= limit
                and sum(x.state is not NodeState.LOST for x in nodes.values()) >= limit
            ):
                return LimitReached(
                    f"{limit} nodes are in service already (nodes_limit); raise it in hrm.toml "
                    f"[master]"
                )
            if event.node not in self.awaited:
                return None
            if is_owner(self._written.get(event.node, ""), event.owner):
                return None
            return Unavailable(
                f"the master has restarted and waits for the agent that was {event.node} before; "
                f"the name is free again when it has waited recovery_window_s "
                f"({self.master_state.bounds.recovery_window_s:.0f} s) in vain"
            )
        if _is_same(node, event):
            return None
        if node.identity == event.identity:
            return _denied(event.node)
        silent_s = event.now - node.silent_since_s
        lately_s = _RECENT_HEARTBEATS * self.master_state.bounds.heartbeat_interval_s
        if node.connected and silent_s <= lately_s:
            return AlreadyExists(
                f"another agent is registered as {event.node} (at {node.endpoint}); give this "
                f"one another name (--name), or stop the other"
            )
        left_s = max(0.0, self.master_state.bounds.node_timeout_s - silent_s)
        return Unavailable(
            f"the master holds the name {event.node} for another agent, last contact "
            f"{silent_s:.0f} s ago; unless that one comes back it is free in {left_s:.0f} s "
            f"(node_timeout_s)"
        )

    def check_owner(self, name: NodeName, owner: str) -> None:
        """Check that the holder of this key may speak for the node on another stream, if there is
        such a node.

        Raises:
            NotOwner: the key is another's.
        """
        if not is_owner(self._written.get(name, ""), owner):
            raise _denied(name)

    def registered(self, event: e.NodeRegistered) -> None:
        error = self.refusal(event)
        if error is not None:
            self.master_state.refuse(event.call_id, error)
            return
        node = self.master_state.nodes.get(event.node)
        if node is not None and not _is_same(node, event):
            self.master_state.exclusions.clear(event.node, event.now, "another agent has its name")
        returns = is_owner(self._written.get(event.node, ""), event.owner)
        self._remember(event.node, event.owner)
        self.lost_s.pop(event.node, None)
        node = self._enter(event)
        self.master_state.reply(event.call_id, c.Done())
        self.reconciler.reconcile(node, event.containers, event.now, registration=True)
        if self.master_state.has_forgotten and self.master_state.recovering:
            self.forgot()
        if node.state is NodeState.DRAINING:
            self.drains.return_waiters(node, event.now)
        elif self.master_state.restricted:
            self.drains.return_unsuited(node, event.now)
        self.awaited.discard(event.node)
        self.missing.discard(event.node)
        if event.node in self.absent:
            self.absent.discard(event.node)
            if not returns:  # what the agent before it ran may run still
                self.absent.add(_FORGOTTEN)
                self.missing.add(_FORGOTTEN)
        if self.master_state.recovering and not self.awaited:
            self.end_recovery(event.now)
        self.placement.capacity_freed(event.now)

    def reported(self, event: e.NodeReported) -> None:
        self._revive(event)
        node = self._listen(event.node, event.incarnation, event.sequence, event.now)
        if node is None:
            return
        node.usage = event.usage
        node.shortcuts = event.shortcuts
        self.reconciler.reconcile(node, event.containers, event.now, registration=False)

    def container_reported(self, event: e.ContainerReported) -> None:
        node = self._listen(event.node, event.incarnation, event.sequence, event.now)
        if node is not None:
            self.reconciler.apply(node, event.container, event.now)

    def disconnected(self, event: e.NodeDisconnected) -> None:
        node = self.master_state.nodes.get(event.node)
        if node is not None and node.incarnation == event.incarnation:
            node.connected = False

    def woke(self, now: float, slept_s: float) -> None:
        """This master slept: each node gets its full timeout again to report."""
        for node in self.master_state.nodes.values():
            node.excused_s = excused(node.last_heard_s, node.excused_s, now, slept_s)
        for name in self.lost_s:
            self.lost_s[name] += slept_s

    def tick(self, now: float) -> None:
        if now > self._next_check_s:
            self._lose_silent(now)
        if self.master_state.exclusions.open:
            self.drains.evaluate(now)
        self._relocation.tick(now)
        if self.absent and not any(
            app.is_doubtful(now) for app in self.master_state.live_applications()
        ):
            for name in sorted(self.absent):
                self._forget(NodeName(name))
            self.absent.clear()
        grace_s = self.master_state.bounds.application_grace_s
        for name in [x for x, lost_s in self.lost_s.items() if now - lost_s > grace_s]:
            del self.lost_s[name]
            self._forget(name)
        self.drains.trim(self.awaited, now)

    def _lose_silent(self, now: float) -> None:
        """Lose the silent nodes, and forget the first of too many lost ones.

        All nodes are checked, but not at every tick: before ``_next_check_s`` none can have been
        silent for too long, for a node's ``silent_since_s`` never goes back.
        """
        timeout_s = self.master_state.bounds.node_timeout_s
        silences_began_s = [now]
        silent: list[Node] = []
        living_hosts: set[str] = set()
        for node in self.master_state.nodes.values():
            if node.life.state is NodeState.LOST:
                continue
            if now - node.silent_since_s > timeout_s:
                silent.append(node)
            else:
                silences_began_s.append(node.silent_since_s)
                living_hosts.add(node.host)
        for node in silent:
            # Several agents may serve one host, and one that is awaited may be on any.
            is_gone = node.host not in living_hosts and not self.awaited
            self._lose(node, now, node.host if is_gone else "")
        lost = [n for n in self.master_state.nodes.values() if n.life.state is NodeState.LOST]
        for node in lost[: max(0, len(lost) - self.master_state.bounds.lost_nodes_kept)]:
            del self.master_state.nodes[node.name]
        self._next_check_s = min(silences_began_s) + timeout_s

    def forgot(self) -> None:
        """The store may lack nodes, too: what is requested again may run on an unknown one."""
        self.master_state.has_forgotten = True
        if self.master_state.recovering:
            self.awaited.add(_FORGOTTEN)
        else:
            self.absent.add(_FORGOTTEN)
            self.missing.add(_FORGOTTEN)

    def end_recovery(self, now: float) -> None:
        """Every node is back, or had its time.

        If all are back, what is still PENDING runs nowhere and may be placed. Otherwise a silent
        node may be running it: it is reported as ended, and its AppMaster requests another under a
        new id, so that no id ever runs twice. An AppMaster that attaches later gets the end then.
        """
        self.master_state.recovering = False
        absent = sorted(self.awaited)
        self.absent = set(absent)
        self.missing |= self.absent
        self.awaited.clear()
        message = f"it may run on a node that has not come back: {', '.join(absent)}"
        end = ContainerEnd(cause=EndCause.LOST, message=message)
        for app in self.master_state.live_applications():
            if not app.recovered:
                continue
            for container in app.in_state(ContainerState.PENDING):
                if not container.held:
                    continue
                container.held = False
                if absent:
                    end = ContainerEnd(cause=EndCause.LOST, message=message)
                    self.reconciler.end(container, ContainerHappening.GIVEN_UP, end, now)
                else:
                    self.placement.hand_over(app, container, now)

    def _enter(self, event: e.NodeRegistered) -> Node:
        old = self.master_state.nodes.get(event.node)
        same = old is not None and _is_same(old, event)
        known = old.incarnations if old is not None and same else ()
        if old is not None and old.state is not NodeState.LOST:
            self._close_rows(old)
        node = Node(
            name=event.node,
            life=self.master_state.new_node_life(event.node) if old is None else old.life,
            identity=event.identity,
            owner=event.owner,
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
            incarnations=(*known, event.incarnation)[-INCARNATIONS_KEPT:],
            properties=NodeProperties(
                host=event.host,
                labels=event.labels,
                runtimes=event.runtimes,
                platform=event.platform,
            ),
            preemption_grace_s=event.preemption_grace_s,
        )
        self.master_state.nodes[event.node] = node
        for unit in event.units:
            self.master_state.state.add(event.node, UnitQueue(unit), node.properties)
            self.master_state.bound_waiting(unit.unit_id)
        if old is None:
            node.life.begin(event.now, "registered")
        self._into_service(node, NodeHappening.REGISTERED, event.now, "registered")
        return node

    def _into_service(self, node: Node, by: NodeHappening, now: float, why: str) -> None:
        """Its rows are in the table: they are open unless it is under drain."""
        if node.name in self.drains.drained:
            node.life.follow(by, NodeState.DRAINING, now, f"{why}, and under drain")
            self.drains.set_open(node, False)
        else:
            node.life.follow(by, NodeState.ALIVE, now, why)

    def _listen(self, name: NodeName, incarnation: str, sequence: int, now: float) -> Node | None:
        """The node, if this report of it is news."""
        node = self.master_state.nodes.get(name)
        if node is None or node.state is NodeState.LOST:
            return None
        if node.incarnation != incarnation or sequence <= node.sequence:
            return None
        node.sequence = sequence
        node.last_heard_s = now
        return node

    def _revive(self, event: e.NodeReported) -> None:
        """Take back a node that reports on a stream that never broke: its agent has no reason to
        register again.

        Either it was silent for too long and is LOST; what it ran has been given up. Or what is
        known under its name, its units above all, is not its own: then its stream is ended, and it
        registers again. That is so where another agent has taken the name of a lost node, where
        nothing is kept of that, and where the registration of a dead agent came after that of its
        successor: not before the dead one's stream has ended, or it may be the successor's.
        """
        node = self.master_state.nodes.get(event.node)
        if node is None or node.incarnation != event.incarnation:
            if node is None or not node.connected or event.incarnation not in node.incarnations:
                drop = c.DropNode(node=event.node, incarnation=event.incarnation)
                self.master_state.out.append(drop)
            return
        if event.sequence <= node.sequence:
            return
        node.connected = True
        back = NodeHappening.HEARD_AGAIN
        if node.life.takes(back):
            self._remember(node.name, node.owner)
            self.lost_s.pop(node.name, None)
            for unit in node.units:
                self.master_state.state.add(node.name, UnitQueue(unit), node.properties)
            self._into_service(node, back, event.now, "in contact again")
            self.placement.capacity_freed(event.now)

    def _lose(self, node: Node, now: float, lost_host: str) -> None:
        """``lost_host``: its host, if that is gone with it."""
        why = f"no contact for {now - node.silent_since_s:.0f} s"
        if not node.life.take(NodeHappening.FALLEN_SILENT, now, why):
            return
        self._next_check_s = 0.0  # there may be too many lost ones now
        node.connected = False
        message = f"{node.name} is lost: {why}"
        end = ContainerEnd(cause=EndCause.NODE_LOST, message=message, lost_host=lost_host)
        for container in list(node.containers.values()):
            self.master_state.end_container(container, ContainerHappening.NODE_LOST, end, now)
        self._close_rows(node)
        for unit in node.units:
            self.master_state.finish_times.forget(unit.unit_id)
        self.lost_s[node.name] = now
        self.placement.capacity_freed(now)

    def _close_rows(self, node: Node) -> None:
        for unit in node.units:
            if unit.unit_id in self.master_state.state.rows:
                self.master_state.state.remove(unit.unit_id)

    def is_lost(self, name: NodeName) -> bool:
        """Would a report of it cause a write?"""
        node = self.master_state.nodes.get(name)
        return node is not None and node.state is NodeState.LOST

    def needs_writing(self, name: NodeName, owner: str) -> bool:
        """Would a registration with this owner's key cause a write?"""
        return self._written.get(name) != owner

    def _remember(self, name: NodeName, owner: str) -> None:
        if self.needs_writing(name, owner):
            self._written[name] = owner
            self.master_state.out.append(c.RememberNode(node=name, owner=owner))

    def _forget(self, name: NodeName) -> None:
        self._written.pop(name, None)
        self.master_state.out.append(c.ForgetNode(node=name))


def _denied(name: NodeName) -> NotOwner:
    return denied(
        name,
        "put back the ownership-key that the work directory of the agent had, give it another "
        "name (--name), or wait until the master has lost the node (node_timeout_s)",
    )


def _is_same(node: Node, event: e.NodeRegistered) -> bool:
    """Is this the agent that the node was? Names of control groups contain its identity, so only
    the key proves it."""
    return node.identity == event.identity and is_owner(node.owner, event.owner)
