"""Reconcile what nodes report with the master's state.

The node decides which container starts; the table holds what it has reported. Each heartbeat lists
every container the node knows, so a lost message costs a heartbeat, not a container:

- known here, absent there: sent again if the node never answered, else lost; given up if the node
  is being drained, or has no unit for it any more;
- running there, ended or unknown here: stopped;
- to be stopped here, still running there: the stop is sent again.
"""

from __future__ import annotations

from collections import defaultdict

from hrm.core.master import gangs
from hrm.core.master.drains import Drains
from hrm.core.master.entities import Application, Container, Node
from hrm.core.master.placement import PlacementCoordinator
from hrm.core.master.priorities import give_back
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.ends import end_rule, without_choice
from hrm.core.vocabulary.feasibility import demand_vector, fits
from hrm.core.vocabulary.model import (
    NO_UNIT,
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
from hrm.core.vocabulary.transitions import ApplicationHappening, ContainerHappening

__all__ = ["NodeReconciler"]

_RUNNING = (ContainerHappening.SEEN_RUNNING, "started by its node")
# By the state that a node reports; one that only a master knows counts as RUNNING.
_SEEN = {
    ContainerState.WAITING: (ContainerHappening.SEEN_WAITING, "in the unit's queue"),
    ContainerState.STOPPING: (ContainerHappening.SEEN_STOPPING, "the node stops it"),
}
_PLACES = {ContainerState.ENDED: 0, ContainerState.WAITING: 2}


class NodeReconciler:
    """``unclaimed``: by application and container, what nodes last reported of containers that
    belong to no application that this master knows. While such a one may yet be taken back
    (``MasterState.forgot_until_s``), they are left alone; a node that has fallen silent since may
    still run them. ``_unclaimed_by_node`` has all of these by node, and some that were claimed
    meanwhile: a new report of a node must not cost a scan of those of all others. The rest of the
    state is in ``MasterState``.
    """

    def __init__(
        self, master_state: MasterState, placement: PlacementCoordinator, drains: Drains
    ) -> None:
        self.master_state = master_state
        self.placement = placement
        self.drains = drains
        self.unclaimed: dict[
            ApplicationId, dict[ContainerId, tuple[NodeName, ContainerStatus]]
        ] = {}
        self._unclaimed_by_node: defaultdict[NodeName, set[tuple[ApplicationId, ContainerId]]]
        self._unclaimed_by_node = defaultdict(set)

    def claim(self, app: Application, now: float) -> None:
        """An application is taken back, with all that nodes have reported of it."""
        for name, status in self.unclaimed.pop(app.application_id, {}).values():
            node = self.master_state.nodes.get(name)
            if node is not None and node.state is not NodeState.LOST:
                self.apply(node, status, now)
            elif status.state is not ContainerState.ENDED:
                end = ContainerEnd(cause=EndCause.NODE_LOST, message=f"{name} is lost")
                container = self._adopt(app, status, now)
                by = ContainerHappening.NODE_LOST
                self.master_state.end_container(container, by, end, now)

    def reconcile(
        self, node: Node, statuses: tuple[ContainerStatus, ...], now: float, *, registration: bool
    ) -> None:
        """Reconcile the state with the full list of a node."""
        if self.unclaimed:
            self._forget_unclaimed(node, now)
        listed = {status.container_id for status in statuses}
        absent = [x for name, x in node.containers.items() if name not in listed]
        absent = [x for x in absent if not self._given_up(node, x, now)]
        for status in sorted(statuses, key=_place):
            self.apply(node, status, now)
        # Only after the node has been sent the classes of the applications that it runs.
        for container in absent:
            self._send_again(node, container, now, registration=registration)

    def _forget_unclaimed(self, node: Node, now: float) -> None:
        """The node has sent a new list; or its containers were not claimed in time."""
        if now >= self.master_state.forgot_until_s:
            self.unclaimed.clear()
            self._unclaimed_by_node.clear()
        for application_id, container_id in self._unclaimed_by_node.pop(node.name, ()):
            found = self.unclaimed.get(application_id, {})
            if container_id in found and found[container_id][0] == node.name:
                del found[container_id]
                if not found:
                    del self.unclaimed[application_id]

    def _given_up(self, node: Node, container: Container, now: float) -> bool:
        """End a container that its node does not know, unless it may be on its way there."""
        by = ContainerHappening.UNLISTED
        if container.state is not ContainerState.ASSIGNED:
            message = f"{node.name} no longer has a record of it"
            self.end(container, by, ContainerEnd(cause=EndCause.LOST, message=message), now)
            return True
        if node.state is NodeState.DRAINING:
            message = f"{node.name} was drained before it arrived there"
            # Or it arrived after this list had left: then it is stopped as an orphan. A driver may
            # have a lease by then, and the next one waits for its end.
            is_lost = is_driver(container.application_id)
            cause = EndCause.LOST if is_lost else EndCause.PREEMPTED
            self.end(container, by, ContainerEnd(cause=cause, message=message), now)
            return True
        if self._lost_its_unit(container):
            message = f"{node.name} was partitioned again before it arrived there"
            end = ContainerEnd(cause=EndCause.PREEMPTED, message=message)
            self.end(container, by, end, now)
            return True
        return False

    def _lost_its_unit(self, container: Container) -> bool:
        """Could its unit, as the node has registered it, not hold it any more? A driver is sent
        again all the same: its node replies that it never ran."""
        queue = self.master_state.state.find(container.unit_id)
        demand = demand_vector(container.request.resources)
        return not is_driver(container.application_id) and (
            queue is None or not queue.could_hold(demand)
        )

    def _send_again(
        self, node: Node, container: Container, now: float, *, registration: bool
    ) -> None:
        if container.state is not ContainerState.ASSIGNED:
            return
        if registration:
            self._sync_queue(node, container, now, running=False)
        if registration or self._is_overdue(container, now):
            container.sent_at_s = now
            self.master_state.send(node, c.AssignContainer(spec=self.master_state.spec(container)))

    def apply(self, node: Node, status: ContainerStatus, now: float) -> None:
        """Take in a node's report of one container."""
        app = self.master_state.applications.get(status.application_id)
        container = None if app is None else app.containers.get(status.container_id)
        if app is None and now < self.master_state.forgot_until_s:
            self.master_state.has_forgotten = True
            found = self.unclaimed.setdefault(status.application_id, {})
            found[status.container_id] = (node.name, status)
            self._unclaimed_by_node[node.name].add((status.application_id, status.container_id))
            return
        if container is None and app is not None and self._may_adopt(app, status):
            container = self._adopt(app, status, now)
        if container is not None and status.preempted and not container.preempted:
            container.preempted, container.preempted_at_s = True, now
            profile = status.resource_profile_id
            self.master_state.places.keep(status.application_id, profile, status.unit_id, now)
        if status.state is ContainerState.ENDED:
            self._apply_ended(node, container, status, now)
            return
        if container is None or container.node not in (None, node.name):
            # A stopping container replies to every order with a report: repeating the order for
            # each of them would never end.
            if status.state is not ContainerState.STOPPING:
                self._stop_orphan(node, status.container_id)
            return
        self._update(node, container, status, now)

    def _apply_ended(
        self, node: Node, container: Container | None, status: ContainerStatus, now: float
    ) -> None:
        """A container that has ended is not started again, not even one that an earlier master
        granted and that its AppMaster has since requested from this one."""
        if container is not None and container.node in (None, node.name):
            if container.state is ContainerState.PENDING:
                self.placement.withdraw(container)
            end = status.end or ContainerEnd(cause=EndCause.LOST)
            if not self._was_chosen(container):
                end = without_choice(end)
            ran_s = _ran_s(container, status, now)
            is_excluded = self._failed_quickly(node, container, end, ran_s, now)
            self.end(container, ContainerHappening.SEEN_ENDED, end, now)
            if is_excluded:
                self.drains.return_waiters(node, now, container.application_id)
        self.master_state.send(node, c.AcknowledgeEnded(container_ids=(status.container_id,)))

    def _was_chosen(self, container: Container) -> bool:
        """Was its node chosen by versions? An application of an older HRM names none, and could be
        placed in vain for ever."""
        requires = self.master_state.applications[container.application_id].requires
        return requires is not None and bool(requires.spark)

    def _failed_quickly(
        self, node: Node, container: Container, end: ContainerEnd, ran_s: float, now: float
    ) -> bool:
        """Count it against the node if it did; returns whether that excludes the node for the
        application."""
        if container.state is ContainerState.STOPPING or not end_rule(end).avoids_node:
            return False
        if ran_s >= self.master_state.bounds.node_failure_run_s:
            return False
        return self.master_state.exclusions.failed(container.application_id, node.name, end, now)

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
            place=status.unit_id if status.stands_first else NO_UNIT,
            yields=status.yields,
        )
        if request.place:
            # The one that it replaces may have been reported, too: its place has been taken.
            self.master_state.places.take(app.application_id, request.resource_profile_id, now)
        return self.master_state.new_container(app, request, status.assigned_at_s or now)

    def _update(
        self, node: Node, container: Container, status: ContainerStatus, now: float
    ) -> None:
        app = self.master_state.applications[container.application_id]
        if container.state is ContainerState.PENDING:
            self.placement.withdraw(container)
        if container.node is None:
            container.node = node.name
            row = self.master_state.state.rows.get(status.unit_id)
            container.unit_id = status.unit_id if row is None else self.master_state.state.ids[row]
            container.assigned_at_s = status.assigned_at_s
            node.containers[container.container_id] = container
            if app.gang_min > 1:
                gangs.granted(self.master_state, app)  # by an earlier master
        container.stdout_url, container.stderr_url = status.stdout_url, status.stderr_url
        container.usage = status.usage
        running = status.state is not ContainerState.WAITING
        self._sync_queue(node, container, now, running=running)
        happening, why = _SEEN.get(status.state, _RUNNING)
        moved = container.life.take(happening, now, why)
        if container.request.resources.gpu_memory_mib:
            self.master_state.gpus.changed(container)
        if self.master_state.queues.accounts is not None:
            self.master_state.queues.note(container, app)
        if container.state is ContainerState.STOPPING and not moved:
            self._stop_again(node, container, status, now)
            return
        if moved and container.state is ContainerState.RUNNING:
            self._started(app, container, status, now)
        if status.workload_class is not app.record.workload_class:
            message = c.SetContainerClass(
                container_id=container.container_id, workload_class=app.record.workload_class
            )
            self.master_state.send(node, message)
        if moved:
            self.master_state.notify_application(container)
        moves = node.name in self.drains.moving and container.state is ContainerState.RUNNING
        if moves and self._is_overdue(container, now):
            self.drains.decommission(node, container, now)

    def _started(
        self, app: Application, container: Container, status: ContainerStatus, now: float
    ) -> None:
        first = container.started_at_s == 0.0
        # By the node's clock, which may be wrong: run times that are learned must not be.
        least_s = max(container.assigned_at_s, app.record.submitted_at_s)
        container.started_at_s = min(now, max(status.started_at_s or now, least_s))
        if first:
            app.waits += 1
            app.waited_s += max(0.0, container.started_at_s - container.requested_at_s)
            self.master_state.queue_fairness.started(app, container, now)
            if app.record.standing is not None:
                give_back(self.master_state, app, self.placement.queues.reordered)
        # As many must have started, at least: a large gang is not counted at each one's start.
        if app.application_id in self.master_state.starting and app.waits >= app.gang_min:
            gangs.settle(self.master_state, app)
        by = ApplicationHappening.CONTAINER_STARTED
        if app.life.takes(by):
            why = "its first container runs"
            self.master_state.move_application(app, by, ApplicationState.RUNNING, now, why)

    def _stop_again(
        self, node: Node, container: Container, status: ContainerStatus, now: float
    ) -> None:
        if status.state is not ContainerState.STOPPING and self._is_overdue(container, now):
            # Where its node ordered the end, and has forgotten it, its work is not done.
            cause = container.stop_cause or EndCause.PREEMPTED
            self.master_state.send_stop(node, container, cause, "the stop is sent again", now)

    def _is_overdue(self, container: Container, now: float) -> bool:
        return now - container.sent_at_s >= self.master_state.bounds.resend_delay_s

    def _stop_orphan(self, node: Node, container_id: ContainerId) -> None:
        message = c.StopContainer(
            container_id=container_id,
            cause=EndCause.RELEASED,
            reason="the master gave it up: its application has ended or released it, or its node "
            "was lost meanwhile",
            grace_s=self.master_state.bounds.stop_grace_s,
        )
        self.master_state.send(node, message)

    def _sync_queue(self, node: Node, container: Container, now: float, *, running: bool) -> None:
        """Make the table's queue of the container's unit agree with the node's report."""
        queue = self.master_state.state.find(container.unit_id)
        if queue is None:
            return
        container_id, before = container.container_id, queue.version
        if running:
            if container_id not in queue.running:
                entry = queue.get(container_id) or self._entry(container)
                if self._demote_unconfirmed(node, queue, entry):
                    queue.run(entry, now)
                elif container_id not in queue:
                    queue.enqueue(entry)
        elif container_id in queue.running:
            queue.unrun(container_id)
        elif container_id not in queue:
            queue.enqueue(self._entry(container))
        if queue.version != before:
            self.master_state.refresh(container.unit_id)

    def _demote_unconfirmed(self, node: Node, queue: UnitQueue, entry: Entry) -> bool:
        """The node runs ``entry``: whatever was reserved but never confirmed must be waiting.

        False: capacity still lacks, because the report of an end was lost. The next heartbeat
        contains that end, and then ``entry``.
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
        app = self.master_state.applications[container.application_id]
        duration_s = (
            container.request.expected_duration_s or self.master_state.bounds.default_duration_s
        )
        demand = demand_vector(container.request.resources)
        return Entry(
            container.container_id,
            app.record.workload_class,
            demand,
            duration_s,
            place=container.request.place,
            yields=container.request.yields,
        )

    def end(
        self, container: Container, by: ContainerHappening, end: ContainerEnd, now: float
    ) -> None:
        self.master_state.end_container(container, by, end, now)
        self.placement.capacity_freed(now)


def _ran_s(container: Container, status: ContainerStatus, now: float) -> float:
    """How long a container has run that its node reports as ended; 0: nobody saw it start."""
    # By the node where it can be, which may report late, and to a master that saw no start. Its
    # clock need not agree with the master's, and may have been set back between the two times.
    if 0.0 < status.started_at_s <= status.ended_at_s:
        return status.ended_at_s - status.started_at_s
    return now - container.started_at_s if container.started_at_s else 0.0


def _place(status: ContainerStatus) -> int:
    """In a list: ends first, which free capacity; what waits last, which needs it."""
    return _PLACES.get(status.state, 1)
