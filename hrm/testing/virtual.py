"""A whole cluster in virtual time: the production master and nodes, without network or processes.

Messages arrive after a fixed delay, in order; processes start at once and run until told otherwise
or until their time is over. Invariants are checked after every event, so a test of anything is a
test of those as well. Deterministic: the same calls give the same history.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from hrm.core.invariants import master_violations, node_violations
from hrm.core.master.core import MasterCore
from hrm.core.master.state import Application, Container
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.node.core import NodeCore
from hrm.core.scheduling.scheduler import PlacementPolicy
from hrm.core.vocabulary.bounds import PREEMPTION_GRACE_S, SCHEDULERS, Bounds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    EndCause,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
    container_id_of,
)
from hrm.core.vocabulary.partitioning import Binding, Hardware, cut
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime, RunTimeKey
from hrm.policies.min_wait import MinWait

__all__ = ["VirtualCluster", "VirtualNode", "unit"]

EVENTS_MAX = 1_000_000
SMALL = Resources(1, 1024)


def unit(
    node: str, vcores: int = 4, memory_mib: int = 8192, run_limit: int | None = None
) -> ResourceUnit:
    """One CPU unit of ``node``; ``run_limit`` defaults to its vcores."""
    return ResourceUnit(
        unit_id=ResourceUnitId(f"{node}/cpu"),
        capacity=Resources(vcores, memory_mib),
        run_limit=run_limit or vcores,
    )


class SchedulerLike(Protocol):
    """A scheduler of another process; see ``hrm.testing.remote``."""

    dropped: bool

    def receive(self, message: StateChanged) -> None: ...


@dataclass
class VirtualNode:
    """One node. ``processes``: running containers and how long each still may run by itself."""

    core: NodeCore
    incarnation: int = 1
    sequence: int = 0
    connected: bool = True
    processes: dict[ContainerId, float | None] = field(default_factory=dict)

    @property
    def name(self) -> NodeName:
        return self.core.name


class VirtualCluster:
    """``now`` starts at 1000 s. ``run_s``: how long containers run by themselves; None: for ever.

    ``preemption_grace_s``: see ``NodeCore``; ``drain_s``: how long a container that makes way takes
    to finish what it does.

    Attributes:
        notices: everything each application was told.
        durable: what the store would hold.
    """

    def __init__(
        self,
        nodes: Iterable[ResourceUnit] = (),
        *,
        schedulers: int = SCHEDULERS,
        policy: Callable[[int], PlacementPolicy] = MinWait,
        bounds: Bounds | None = None,
        network_delay_s: float = 0.001,
        run_s: float | None = None,
        preemption_grace_s: float | None = PREEMPTION_GRACE_S,
        drain_s: float = 1.0,
    ) -> None:
        self.now = 1000.0
        self.preemption_grace_s = preemption_grace_s
        self.drain_s = drain_s
        self.bounds = bounds or Bounds()
        self.network_delay_s = network_delay_s
        self.run_s = run_s
        self.notices: dict[str, list[c.Notice]] = {}
        self.durable: dict[ApplicationId, ApplicationRecord] = {}
        self.durable_nodes: dict[NodeName, str] = {}
        self.durable_drains: dict[NodeName, None] = {}
        self.durable_run_times: dict[RunTimeKey, RunTime] = {}
        self.answers: dict[int, c.Reply | c.Refuse] = {}
        self.callbacks: dict[int, Callable[[c.Reply | c.Refuse], None]] = {}
        self.remote: dict[tuple[str, int], SchedulerLike] = {}
        self.nodes: dict[str, VirtualNode] = {}
        self._schedulers = schedulers
        self._policy = policy
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._calls = itertools.count(1)
        self.epoch = 1
        self.master = MasterCore(self.epoch, self._new_policies(), self.bounds, now=self.now)
        for each in nodes:
            self.add_node(each)
        self.settle()

    # --- people and machines --------------------------------------------------------------------

    def add_node(self, *units: ResourceUnit) -> VirtualNode:
        """A node named by the part before ``/`` of its units' ids."""
        name = NodeName(units[0].unit_id.partition("/")[0])
        return self.add_core(NodeCore(name, units, preemption_grace_s=self.preemption_grace_s))

    def add_hardware(self, name: str, hardware: Hardware, binding: Binding) -> VirtualNode:
        """A node that is cut by ``binding``, and may be cut anew."""
        units = cut(NodeName(name), hardware, binding)
        core = NodeCore(
            NodeName(name),
            units,
            hardware=hardware,
            binding=binding,
            preemption_grace_s=self.preemption_grace_s,
        )
        return self.add_core(core)

    def add_core(self, core: NodeCore) -> VirtualNode:
        node = VirtualNode(core)
        self.nodes[core.name] = node
        self.register(node)
        return node

    def register(self, node: VirtualNode) -> int:
        """Open a node's stream anew; answers the call id."""
        node.connected = True
        node.sequence += 1
        call_id = next(self._calls)
        event = e.NodeRegistered(
            now=self.now,
            call_id=call_id,
            node=node.name,
            identity=f"identity-of-{node.name}",
            incarnation=str(node.incarnation),
            sequence=node.sequence,
            host="127.0.0.1",
            endpoint="127.0.0.1:1",
            units=node.core.offers,
            containers=node.core.statuses(),
        )
        self.tell_node(node, e.MasterConnected(now=self.now, epoch=self.epoch))
        self.tell_master(event)
        return call_id

    def submit(
        self,
        executors: int,
        resources: Resources = SMALL,
        workload_class: WorkloadClass | None = None,
        name: str = "app",
        gang_min: int = 0,
        new_id: ApplicationId | None = None,
    ) -> ApplicationId:
        """Register an application, attach it, and ask for executors 1..n. ``new_id``: its id."""
        call_id = next(self._calls)
        self.tell_master(
            e.ApplicationRegistered(
                now=self.now,
                call_id=call_id,
                application_id=ApplicationId(""),
                submission_key=f"key-{call_id}",
                name=name,
                user="somebody",
                declared_class=workload_class,
                gang_min=gang_min,
                new_id=new_id,
            )
        )
        application_id = self.admitted(call_id).application_id
        self.attach(application_id)
        self.request(application_id, range(1, executors + 1), resources)
        return application_id

    def attach(self, application_id: ApplicationId) -> int:
        call_id = next(self._calls)
        self.tell_master(
            e.ApplicationAttached(
                now=self.now,
                call_id=call_id,
                application_id=application_id,
                session=call_id,
                epoch=self.epoch,
            )
        )
        return call_id

    def request(
        self,
        application_id: ApplicationId,
        executors: Iterable[int],
        resources: Resources = SMALL,
        hosts: tuple[str, ...] = (),
        locality_wait_s: float = 3.0,
    ) -> None:
        """Ask for containers; ``hosts``: where their data lies."""
        requests = tuple(
            ContainerRequest(
                executor_id=str(x),
                resource_profile_id=0,
                resources=resources,
                hosts=hosts,
                locality_wait_s=locality_wait_s,
            )
            for x in executors
        )
        self.tell_master(
            e.ContainersRequested(now=self.now, application_id=application_id, requests=requests)
        )

    def release(self, application_id: ApplicationId, *executors: int) -> None:
        ids = tuple(str(x) for x in executors)
        self.tell_master(
            e.ContainersReleased(now=self.now, application_id=application_id, executor_ids=ids)
        )

    def finish(
        self, application_id: ApplicationId, state: ApplicationState = ApplicationState.SUCCEEDED
    ) -> None:
        self.tell_master(
            e.ApplicationFinished(now=self.now, application_id=application_id, state=state)
        )

    def end_process(self, application_id: ApplicationId, executor: int, exit_code: int = 0) -> None:
        """An executor's process ends by itself."""
        container_id = container_id_of(application_id, str(executor))
        for node in self.nodes.values():
            if container_id in node.processes:
                del node.processes[container_id]
                end = ContainerEnd(cause=EndCause.EXITED, exit_code=exit_code)
                self.tell_node(
                    node, e.ProcessEnded(now=self.now, container_id=container_id, end=end)
                )
                return
        raise AssertionError(f"{container_id} runs nowhere")

    def rebind(self, node: str, **wish: Any) -> int:
        """Ask for another binding (``mode``, ``bound_cores``, ``reserve_cores``); the call id."""
        call_id = next(self._calls)
        self.tell_master(
            e.RebindRequested(now=self.now, call_id=call_id, node=NodeName(node), **wish)
        )
        return call_id

    def disconnect(self, node: VirtualNode) -> None:
        """The network between a node and the master breaks."""
        node.connected = False
        self.tell_node(node, e.MasterDisconnected(now=self.now))
        self.tell_master(
            e.NodeDisconnected(now=self.now, node=node.name, incarnation=str(node.incarnation))
        )

    def restart_master(self) -> None:
        """The master dies and comes back from its store; its nodes have yet to return."""
        self.epoch += 1
        self._queue.clear()
        self.master = MasterCore(
            self.epoch,
            self._new_policies(),
            self.bounds,
            records=self.durable.values(),
            known_nodes=self.durable_nodes,
            drained_nodes=self.durable_drains,
            run_times=self.durable_run_times.values(),
            now=self.now,
        )
        for node in self.nodes.values():
            node.connected = False

    # --- what a test looks at -------------------------------------------------------------------

    def app(self, application_id: ApplicationId) -> Application:
        return self.master.master_state.applications[application_id]

    def container(self, application_id: ApplicationId, executor: int) -> Container:
        found = self.app(application_id).find(container_id_of(application_id, str(executor)))
        assert found is not None
        return found

    def states(self, application_id: ApplicationId) -> dict[str, int]:
        """How many containers are in which state, ended ones left out."""
        counts: dict[str, int] = {}
        for container in self.app(application_id).containers.values():
            counts[container.state.value] = counts.get(container.state.value, 0) + 1
        return counts

    def running(self) -> int:
        return sum(len(node.processes) for node in self.nodes.values())

    def admitted(self, call_id: int) -> c.ApplicationAdmitted:
        reply = self.answers[call_id]
        assert isinstance(reply, c.Reply), reply
        assert isinstance(reply.answer, c.ApplicationAdmitted)
        return reply.answer

    # --- time -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything happen that needs no more than a second."""
        self.advance(1.0)

    def advance(self, seconds: float) -> None:
        """Let time pass, with a tick and heartbeats every second."""
        until = self.now + seconds
        for step in range(1, int(seconds) + 1):
            self.at(self.now + step, self._second)
        for _ in range(EVENTS_MAX):
            if not self._queue or self._queue[0][0] > until:
                break
            self.now, _order, action = heapq.heappop(self._queue)
            action()
        else:
            raise AssertionError(f"{EVENTS_MAX} events without an end")
        self.now = until

    def tell_master(self, event: e.MasterEvent) -> None:
        """Let the master take in an event now."""
        commands = self.master.handle(event)
        violations = master_violations(self.master)
        assert not violations, (event, violations)
        for command in commands:
            self._carry_out(command)

    def tell_node(self, node: VirtualNode, event: e.NodeEvent) -> None:
        """Let a node take in an event now."""
        commands = node.core.handle(event)
        violations = node_violations(node.core)
        assert not violations, (event, violations)
        for command in commands:
            self._carry_out_at(node, command)

    def _new_policies(self) -> list[PlacementPolicy]:
        return [self._policy(index) for index in range(self._schedulers)]

    def _second(self) -> None:
        for node in self.nodes.values():
            self.tell_node(node, e.HeartbeatDue(now=self.now))
        self.tell_master(e.Ticked(now=self.now))

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Let something happen at ``at_s``, or now where that is past."""
        heapq.heappush(self._queue, (max(at_s, self.now), next(self._order), action))

    def _carry_out(self, command: c.MasterCommand) -> None:
        match command:
            case c.Reply() | c.Refuse():
                self._answer(command)
            case c.SendToScheduler():
                self._send_to_scheduler(command)
            case c.DropNode():
                self.at(self.now + self.network_delay_s, partial(self._dropped, command))
            case c.DropScheduler():
                self.remote[command.scheduler, command.session].dropped = True
            case c.NotifyApplication():
                self.notices.setdefault(command.application_id, []).append(command.notice)
            case c.PersistApplication():
                self.durable[command.record.application_id] = command.record
            case c.ForgetApplication():
                self.durable.pop(command.application_id, None)
            case c.RememberNode():
                self.durable_nodes[command.node] = command.owner
            case c.ForgetNode():
                self.durable_nodes.pop(command.node, None)
            case c.RememberDrain():
                self.durable_drains[command.node] = None
            case c.ForgetDrain():
                self.durable_drains.pop(command.node, None)
            case c.PersistRunTime():
                self.durable_run_times.pop(command.row.key, None)
                self.durable_run_times[command.row.key] = command.row
            case c.ForgetRunTime():
                self.durable_run_times.pop(command.key, None)
            case c.WakeScheduler():
                name = command.scheduler
                self.at(
                    command.at_s,
                    lambda: self.tell_master(e.SchedulerWoken(now=self.now, scheduler=name)),
                )
            case c.ProposeClaims():
                proposal = command.proposal
                self.at(
                    self.now,
                    lambda: self.tell_master(e.ClaimsProposed(now=self.now, proposal=proposal)),
                )
            case c.SendToNode():
                self._send_to_node(command)

    def _dropped(self, command: c.DropNode) -> None:
        """An agent whose stream the master ends opens another."""
        node = self.nodes.get(command.node)
        if node is not None and node.connected and str(node.incarnation) == command.incarnation:
            self.register(node)

    def next_call(self) -> int:
        """The number of a call whose answer is looked for in ``answers``, or in ``callbacks``."""
        return next(self._calls)

    def _answer(self, command: c.Reply | c.Refuse) -> None:
        self.answers[command.call_id] = command
        callback = self.callbacks.pop(command.call_id, None)
        if callback is not None:
            self.at(self.now + self.network_delay_s, lambda: callback(command))

    def _send_to_scheduler(self, command: c.SendToScheduler) -> None:
        receiver = self.remote.get((command.scheduler, command.session))
        if receiver is not None:
            message = command.message
            self.at(self.now + self.network_delay_s, lambda: receiver.receive(message))

    def _send_to_node(self, command: c.SendToNode) -> None:
        epoch = self.epoch

        def arrive() -> None:
            node = self.nodes.get(command.node)
            if node is None or not node.connected or str(node.incarnation) != command.incarnation:
                return
            event = node_event(command.message, self.now, epoch)
            self.tell_node(node, event)

        self.at(self.now + self.network_delay_s, arrive)

    def _carry_out_at(self, node: VirtualNode, command: c.NodeCommand) -> None:
        match command:
            case c.StartProcess():
                container_id = command.spec.container_id
                node.processes[container_id] = self.run_s
                if self.run_s is not None:
                    self.at(self.now + self.run_s, lambda: self._run_out(node, container_id))
            case c.StopProcess():
                delay_s = min(command.grace_s, self.drain_s) if command.decommission else 0.0
                self.at(self.now + delay_s, lambda: self._stopped(node, command))
            case c.ReportContainer():
                node.sequence += 1
                report = e.ContainerReported(
                    now=self.now,
                    node=node.name,
                    incarnation=str(node.incarnation),
                    sequence=node.sequence,
                    container=command.status,
                )
                self._to_master(node, report)
            case c.SendHeartbeat():
                node.sequence += 1
                heartbeat = e.NodeReported(
                    now=self.now,
                    node=node.name,
                    incarnation=str(node.incarnation),
                    sequence=node.sequence,
                    containers=command.statuses,
                )
                self._to_master(node, heartbeat)
            case c.AnswerRebinding():
                answer = e.RebindAnswered(
                    now=self.now,
                    node=node.name,
                    request_id=command.request_id,
                    accepted=command.accepted,
                    message=command.message,
                )
                self._to_master(node, answer)
            case c.RegisterAgain():
                self.at(self.now + self.network_delay_s, lambda: self._register_again(node))

    def _stopped(self, node: VirtualNode, command: c.StopProcess) -> None:
        if node.processes.pop(command.container_id, 0.0) != 0.0:
            end = ContainerEnd(cause=command.cause, exit_code=143, message=command.reason)
            event = e.ProcessEnded(now=self.now, container_id=command.container_id, end=end)
            self.tell_node(node, event)

    def _register_again(self, node: VirtualNode) -> None:
        if node.connected:
            self.register(node)

    def _to_master(
        self, node: VirtualNode, event: e.ContainerReported | e.NodeReported | e.RebindAnswered
    ) -> None:
        def arrive() -> None:
            if node.connected:
                self.tell_master(replace(event, now=self.now))

        if node.connected:
            self.at(self.now + self.network_delay_s, arrive)

    def _run_out(self, node: VirtualNode, container_id: ContainerId) -> None:
        if container_id in node.processes:
            del node.processes[container_id]
            end = ContainerEnd(cause=EndCause.EXITED, exit_code=0)
            self.tell_node(node, e.ProcessEnded(now=self.now, container_id=container_id, end=end))


def node_event(message: c.NodeMessage, now: float, epoch: int) -> e.NodeEvent:
    """What a message of the master is to a node."""
    match message:
        case c.AssignContainer():
            return e.AssignReceived(now=now, epoch=epoch, spec=message.spec)
        case c.StopContainer():
            return e.StopReceived(
                now=now,
                epoch=epoch,
                container_id=message.container_id,
                cause=message.cause,
                reason=message.reason,
                grace_s=message.grace_s,
                only_if_waiting=message.only_if_waiting,
                decommission=message.decommission,
            )
        case c.AcknowledgeEnded():
            return e.EndsAcknowledged(now=now, epoch=epoch, container_ids=message.container_ids)
        case c.RebindUnits():
            return e.RebindReceived(
                now=now,
                epoch=epoch,
                request_id=message.request_id,
                mode=message.mode,
                bound_cores=message.bound_cores,
                reserve_cores=message.reserve_cores,
            )
        case c.SetContainerClass():
            return e.ContainerClassSet(
                now=now,
                epoch=epoch,
                container_id=message.container_id,
                workload_class=message.workload_class,
            )
        case c.DropShuffleFiles():
            raise AssertionError("the live agent alone has a shuffle service")
