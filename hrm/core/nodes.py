"""What the master believes of its nodes, and how the nodes' reports correct it.

The node decides who starts; the master's table mirrors it. Reports are taken in the order of their
sequence numbers, older ones are dropped. Each heartbeat lists every container the node knows, so a
lost message costs a heartbeat, not a container:

- known here, absent there: sent again if the node never answered, else lost; given up if the node
  is being drained;
- running there, ended or unknown here: stopped;
- to be stopped here, still running there: told again.

A drain is an administrator's intent, so it is durable, and it is about a name: it holds until it is
undone, whatever happens meanwhile to the master, to the agent or to the machine.
"""

from __future__ import annotations

from collections.abc import Iterable

from hrm.core import commands as c
from hrm.core import events as e
from hrm.core.exclusion import is_failure
from hrm.core.feasibility import demand_vector, fits
from hrm.core.ledger import Application, Container, Ledger, Node
from hrm.core.model import (
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    EndCause,
    NodeName,
    NodeState,
    is_driver,
)
from hrm.core.placing import Placing
from hrm.core.relocation import Relocation
from hrm.core.resource_unit import Entry, UnitQueue
from hrm.errors import AlreadyExists, NotFound

__all__ = ["Nodes"]


class Nodes:
    """``awaited``: nodes that an earlier master knew and that have not come back to this one;
    ``absent``: those for which it no longer waits. The store keeps them as long as an application
    may ask again for what runs there: the next master must know of them, too. One that comes back
    needs not be written down again.

    ``drained``: all and only the names under drain, in the order of the orders. A node of such a
    name is DRAINING or LOST. ``moving``: of these, those whose containers are to hand over their
    data and end, and the time each has for that; asked of this master, and not written down.
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
        self.awaited = awaited
        self.absent: set[str] = set()
        self.drained = dict.fromkeys(drained)
        self.moving: dict[NodeName, float] = {}
        self._relocation = Relocation(ledger, self._give_back)
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
            self.ledger.exclusions.pardon(event.node)
        is_new = node is None or node.state is NodeState.LOST
        if is_new and event.node not in self.awaited and event.node not in self.absent:
            self.ledger.out.append(c.RememberNode(node=event.node))
        node = self._book(event)
        self.ledger.out.append(c.Reply(call_id=event.call_id, answer=c.Done()))
        self._reconcile(node, event.containers, event.now, registration=True)
        if node.state is NodeState.DRAINING:
            self._turn_away(node, event.now)
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
        self._reconcile(node, event.containers, event.now, registration=False)

    def container_reported(self, event: e.ContainerReported) -> None:
        node = self._listen(event.node, event.incarnation, event.sequence, event.now)
        if node is not None:
            self._apply(node, event.container, event.now)

    def disconnected(self, event: e.NodeDisconnected) -> None:
        node = self.ledger.nodes.get(event.node)
        if node is not None and node.incarnation == event.incarnation:
            node.connected = False

    def drain(self, event: e.DrainRequested) -> None:
        for name in event.nodes:
            node = self.ledger.nodes.get(name)
            if event.undo and name in self.drained:
                continue
            if node is None or node.state is NodeState.LOST:
                what = "no such node" if node is None else "that node is lost"
                error = NotFound(f"{what}: {name}; hrm nodes lists them")
                self.ledger.out.append(c.Refuse(call_id=event.call_id, error=error))
                return
        for name in event.nodes:
            if event.undo:
                self._undo_drain(name, event.now)
                self.ledger.exclusions.pardon(name)
            else:
                self._drain(self.ledger.nodes[name], event.now)
                if event.move_within_s:
                    self.moving[name] = event.move_within_s
                    self._move_away(self.ledger.nodes[name], event.now)
        self.ledger.out.append(c.Reply(call_id=event.call_id, answer=c.Done()))

    def tick(self, now: float) -> None:
        if now > self._look_at_s:
            self._look(now)
        if self.ledger.exclusions.open:
            self._judge(now)
        self._relocation.tick(now)
        if self.absent and not any(app.is_doubtful(now) for app in self.ledger.live_applications()):
            for name in sorted(self.absent):
                self.ledger.out.append(c.ForgetNode(node=NodeName(name)))
            self.absent.clear()
        if len(self.drained) > self.ledger.bounds.lost_nodes_kept:
            known = self.ledger.nodes.keys() | self.awaited
            gone = [name for name in self.drained if name not in known]
            for name in gone[: max(0, len(gone) - self.ledger.bounds.lost_nodes_kept)]:
                self._undo_drain(name, now)

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
                    self._end(container, ContainerEnd(cause=EndCause.LOST, message=message), now)
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
        if node.name in self.drained:
            node.life.move(NodeState.DRAINING, now, f"{why}, and under drain")
            self._set_open(node, False)
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

    def _reconcile(
        self, node: Node, statuses: tuple[ContainerStatus, ...], now: float, *, registration: bool
    ) -> None:
        """Make the books agree with the full list of a node."""
        listed = {status.container_id for status in statuses}
        absent = [x for name, x in node.containers.items() if name not in listed]
        absent = [x for x in absent if not self._given_up(node, x, now)]
        ended, waiting = ContainerState.ENDED, ContainerState.WAITING
        for status in statuses:
            if status.state is ended:
                self._apply(node, status, now)
        for status in statuses:
            if status.state is not ended and status.state is not waiting:
                self._apply(node, status, now)
        for status in statuses:
            if status.state is waiting:
                self._apply(node, status, now)
        # Only now that the node has been told the classes of those that it runs.
        for container in absent:
            self._send_again(node, container, now, registration=registration)

    def _given_up(self, node: Node, container: Container, now: float) -> bool:
        """End a container that its node does not know, unless it may be on its way there."""
        if container.state is not ContainerState.ASSIGNED:
            message = f"{node.name} no longer knows it"
            self._end(container, ContainerEnd(cause=EndCause.LOST, message=message), now)
            return True
        if node.state is NodeState.DRAINING:
            message = f"{node.name} was drained before it arrived there"
            self._end(container, ContainerEnd(cause=EndCause.PREEMPTED, message=message), now)
            return True
        return False

    def _send_again(
        self, node: Node, container: Container, now: float, *, registration: bool
    ) -> None:
        if container.state is not ContainerState.ASSIGNED:
            return
        if registration:
            self._mirror(node, container, now, running=False)
        if registration or now - container.sent_at_s >= self.ledger.bounds.resend_delay_s:
            container.sent_at_s = now
            self.ledger.send(node, c.AssignContainer(spec=self.ledger.spec(container)))

    def _apply(self, node: Node, status: ContainerStatus, now: float) -> None:
        """Take in what a node says of one container."""
        app = self.ledger.applications.get(status.application_id)
        container = None if app is None else app.containers.get(status.container_id)
        if container is None and app is not None and self._may_adopt(app, status):
            container = self._adopt(app, status, now)
        if status.state is ContainerState.ENDED:
            self._apply_ended(node, container, status, now)
            return
        if container is None or container.node not in (None, node.name):
            # One that is being stopped answers every order with a report: asking again for each
            # of them would never end.
            if status.state is not ContainerState.STOPPING:
                self._stop_stranger(node, status.container_id)
            return
        self._update(node, container, status, now)

    def _apply_ended(
        self, node: Node, container: Container | None, status: ContainerStatus, now: float
    ) -> None:
        """What has ended is not started again, not even one that an earlier master granted and
        that its AppMaster has asked this one for meanwhile."""
        if container is not None and container.node in (None, node.name):
            if container.state is ContainerState.PENDING:
                self.placing.withdraw(container)
            end = status.end or ContainerEnd(cause=EndCause.LOST)
            is_excluded = self._failed_quickly(node, container, end, now)
            self._end(container, end, now)
            if is_excluded:
                self._turn_away(node, now, container.application_id)
        self.ledger.send(node, c.AcknowledgeEnded(container_ids=(status.container_id,)))

    def _failed_quickly(
        self, node: Node, container: Container, end: ContainerEnd, now: float
    ) -> bool:
        """Count it against the node if it did; true: that excludes it for the application."""
        if container.state is ContainerState.STOPPING or not is_failure(end):
            return False
        ran_s = now - container.started_at_s if container.started_at_s else 0.0
        if ran_s >= self.ledger.bounds.node_failure_run_s:
            return False
        return self.ledger.exclusions.failed(container.application_id, node.name, end, now)

    def _judge(self, now: float) -> None:
        """Exclude for all the nodes that many applications have excluded."""
        alive = sum(node.state is NodeState.ALIVE for node in self.ledger.nodes.values())
        for name in self.ledger.exclusions.tick(now, self._in_order, alive):
            node = self.ledger.nodes.get(name)
            if node is not None and node.state is not NodeState.LOST:
                self._turn_away(node, now)

    def _in_order(self, application_id: ApplicationId) -> bool:
        if is_driver(application_id):
            return False  # what ends is the application itself, and its holder lives on
        app = self.ledger.applications.get(application_id)
        if app is None:
            return False
        return app.session is not None or app.life.state is ApplicationState.SUCCEEDED

    def _may_adopt(self, app: Application, status: ContainerStatus) -> bool:
        """Unknown containers of a live application belong to an earlier master's grants."""
        if app.life.state.ended or not app.recovered:
            return False
        return app.find(status.container_id) is None

    def _adopt(self, app: Application, status: ContainerStatus, now: float) -> Container:
        request = ContainerRequest(
            executor_id=status.executor_id,
            resource_profile_id=status.resource_profile_id,
            resources=status.resources,
            expected_duration_s=status.expected_duration_s,
        )
        return self.ledger.new_container(app, request, status.assigned_at_s or now)

    def _update(
        self, node: Node, container: Container, status: ContainerStatus, now: float
    ) -> None:
        app = self.ledger.applications[container.application_id]
        if container.state is ContainerState.PENDING:
            self.placing.withdraw(container)
        if container.node is None:
            container.node = node.name
            row = self.ledger.state.rows.get(status.unit_id)
            container.unit_id = status.unit_id if row is None else self.ledger.state.ids[row]
            container.assigned_at_s = status.assigned_at_s
            node.containers[container.container_id] = container
        container.stdout_url, container.stderr_url = status.stdout_url, status.stderr_url
        container.usage = status.usage
        running = status.state is not ContainerState.WAITING
        self._mirror(node, container, now, running=running)
        if container.state is ContainerState.STOPPING:
            self._stop_again(node, container, status, now)
            return
        before = container.state
        if status.state is ContainerState.STOPPING:
            container.life.move(ContainerState.STOPPING, now, "the node stops it")
        elif running:
            self._started(app, container, status, now)
        else:
            container.life.move(ContainerState.WAITING, now, "in the unit's queue")
        if status.workload_class is not app.record.workload_class:
            message = c.SetContainerClass(
                container_id=container.container_id, workload_class=app.record.workload_class
            )
            self.ledger.send(node, message)
        if container.state is not before:
            self.ledger.tell(container)
        overdue = now - container.sent_at_s >= self.ledger.bounds.resend_delay_s
        if overdue and node.name in self.moving and container.state is ContainerState.RUNNING:
            self._decommission(node, container, now)

    def _started(
        self, app: Application, container: Container, status: ContainerStatus, now: float
    ) -> None:
        if not container.life.move(ContainerState.RUNNING, now, "started by its node"):
            return
        first = container.started_at_s == 0.0
        container.started_at_s = min(now, status.started_at_s or now)
        if first:
            app.waits += 1
            app.waited_s += max(0.0, container.started_at_s - container.requested_at_s)
        if app.life.state is ApplicationState.SUBMITTED:
            self.ledger.move_application(
                app, ApplicationState.RUNNING, now, "its first container runs"
            )

    def _stop_again(
        self, node: Node, container: Container, status: ContainerStatus, now: float
    ) -> None:
        overdue = now - container.sent_at_s >= self.ledger.bounds.resend_delay_s
        if status.state is not ContainerState.STOPPING and overdue:
            # Where its node wanted it to end, and has forgotten, it has not done its work.
            cause = EndCause.RELEASED if container.told_to_stop else EndCause.PREEMPTED
            self.send_stop(node, container, cause, "told again", now)

    def send_stop(
        self,
        node: Node,
        container: Container,
        cause: EndCause,
        reason: str,
        now: float,
        *,
        only_if_waiting: bool = False,
    ) -> None:
        container.sent_at_s = now
        container.told_to_stop = container.told_to_stop or not only_if_waiting
        message = c.StopContainer(
            container_id=container.container_id,
            cause=cause,
            reason=reason,
            grace_s=self.ledger.bounds.stop_grace_s,
            only_if_waiting=only_if_waiting,
        )
        self.ledger.send(node, message)

    def _stop_stranger(self, node: Node, container_id: ContainerId) -> None:
        message = c.StopContainer(
            container_id=container_id,
            cause=EndCause.RELEASED,
            reason="its application has ended, or has let go of it",
            grace_s=self.ledger.bounds.stop_grace_s,
        )
        self.ledger.send(node, message)

    def _mirror(self, node: Node, container: Container, now: float, *, running: bool) -> None:
        """Make the table's queue of the container's unit say what the node says."""
        queue = self.ledger.state.find(container.unit_id)
        if queue is None:
            return
        container_id, before = container.container_id, queue.version
        if running:
            if container_id not in queue.running:
                entry = queue.get(container_id) or self._entry(container)
                if self._make_room(node, queue, entry):
                    queue.run(entry, now)
                elif container_id not in queue:
                    queue.enqueue(entry)
        elif container_id in queue.running:
            queue.unrun(container_id)
        elif container_id not in queue:
            queue.enqueue(self._entry(container))
        if queue.version != before:
            self.ledger.refresh(container.unit_id)

    def _make_room(self, node: Node, queue: UnitQueue, entry: Entry) -> bool:
        """The node runs ``entry``: whatever was reserved but never confirmed must be waiting.

        False: there is still no room, because the report of an end was lost. The next heartbeat
        tells of that end, and then of ``entry``.
        """
        for each in (queue, *(sibling for sibling in queue.pool if sibling is not queue)):
            for container_id in reversed(list(each.running)):
                if fits(entry.demand, queue.free):
                    return True
                container = node.containers.get(container_id)
                if container is None or container.state is ContainerState.ASSIGNED:
                    each.unrun(container_id)
        return fits(entry.demand, queue.free)

    def _entry(self, container: Container) -> Entry:
        app = self.ledger.applications[container.application_id]
        duration_s = container.request.expected_duration_s or self.ledger.bounds.default_duration_s
        demand = demand_vector(container.request.resources)
        return Entry(container.container_id, app.record.workload_class, demand, duration_s)

    def _end(self, container: Container, end: ContainerEnd, now: float) -> None:
        self.ledger.end_container(container, end, now)
        self.placing.room_appeared(now)

    def _drain(self, node: Node, now: float) -> None:
        if node.name not in self.drained:
            self.drained[node.name] = None
            self.ledger.out.append(c.RememberDrain(node=node.name))
        node.life.move(NodeState.DRAINING, now, "asked to drain")
        self._set_open(node, False)
        self._turn_away(node, now)

    def _move_away(self, node: Node, now: float) -> None:
        """What runs on a node under drain hands over its data, and ends."""
        for container in node.containers.values():
            if container.state is ContainerState.RUNNING:
                self._decommission(node, container, now)

    def _decommission(self, node: Node, container: Container, now: float) -> None:
        if is_driver(container.application_id):
            return  # it has nobody to hand its data to, and runs to its end
        container.sent_at_s = now
        message = c.StopContainer(
            container_id=container.container_id,
            cause=EndCause.PREEMPTED,
            reason=f"{node.name} is drained, and what runs there moves away",
            grace_s=self.moving[node.name],
            decommission=True,
        )
        self.ledger.send(node, message)

    def _undo_drain(self, name: NodeName, now: float) -> None:
        self.moving.pop(name, None)
        if name in self.drained:
            del self.drained[name]
            self.ledger.out.append(c.ForgetDrain(node=name))
        node = self.ledger.nodes.get(name)
        if node is not None and node.state is NodeState.DRAINING:
            node.life.move(NodeState.ALIVE, now, "taken back into service")
            self._set_open(node, True)
            self.placing.room_appeared(now)

    def _turn_away(
        self, node: Node, now: float, application_id: ApplicationId | None = None
    ) -> None:
        """Who has not started on a node under drain, or that is excluded, waits elsewhere.

        ``application_id``: of whom alone; None: of all.
        """
        drained = node.state is NodeState.DRAINING
        reason = f"{node.name} is {'drained' if drained else 'excluded, see hrm app why'}"
        for container in list(node.containers.values()):
            if container.state not in (ContainerState.ASSIGNED, ContainerState.WAITING):
                continue
            if application_id is not None and container.application_id != application_id:
                continue
            if drained or self._may_go_elsewhere(container, now):
                self._give_back(container, reason, now)

    def _give_back(self, container: Container, reason: str, now: float) -> None:
        """What waits at a node, and has not started meanwhile, ends there; its application asks
        again."""
        assert container.node is not None
        node = self.ledger.nodes[container.node]
        self.send_stop(node, container, EndCause.PREEMPTED, reason, now, only_if_waiting=True)

    def _may_go_elsewhere(self, container: Container, now: float) -> bool:
        avoided = self.ledger.exclusions.avoided(container.application_id, now)
        demand = demand_vector(container.request.resources)
        return self.ledger.state.has_room_beside(avoided, demand)

    def _set_open(self, node: Node, is_open: bool) -> None:
        for unit in node.units:
            self.ledger.state.set_open(unit.unit_id, is_open and not unit.draining)

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
