"""A whole cluster in virtual time: the production master and nodes, without network or processes.

Messages arrive after a fixed delay, in order; processes start at once and run until they are
stopped or their time is over. Invariants are checked after every event, so a test of anything is a
test of those as well. Deterministic: the same calls give the same history.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from hrm.core.invariants import master_violations, node_violations
from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application, Container
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.node.core import NodeCore
from hrm.core.scheduling.scheduler import PlacementPolicy
from hrm.core.tenancy.platform_division import PlatformDivision
from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_spec import QueueName, QueueSpec
from hrm.core.vocabulary.bounds import PREEMPTION_GRACE_S, Bounds
from hrm.core.vocabulary.event_table import Watch
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerRequest,
    ContainerSpec,
    EndCause,
    FirstExecutors,
    NodeName,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
    container_id_of,
)
from hrm.core.vocabulary.node_requirement import NodeProperties, NodeRequirement
from hrm.core.vocabulary.partitioning import Hardware, Partitioning, partition
from hrm.policies.min_wait import MinWait
from hrm.policies.sharing import divider
from hrm.runtime.clock import Clock
from hrm.runtime.direct import DirectMaster, DirectNode
from hrm.runtime.master import End, OnReply
from hrm.runtime.virtual_disk import VirtualDisk

__all__ = ["VirtualCluster", "VirtualNode", "unit"]

_DIVISION = divider()

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
    """A scheduler of another process."""

    dropped: bool

    def receive(self, message: StateChanged) -> None: ...


class VirtualNode(DirectNode):
    """One node. ``processes``: running containers."""

    def __init__(self, cluster: VirtualCluster, core: NodeCore) -> None:
        super().__init__(core, cluster.clock, cluster.runtime, cluster.drain_s)
        self._cluster = cluster

    def runs_s(self, spec: ContainerSpec) -> float | None:
        return self._cluster.run_s

    def decide(self, event: e.NodeEvent) -> list[c.NodeCommand]:
        commands = super().decide(event)
        violations = node_violations(self.core)
        assert not violations, (event, violations)
        return commands


class _Master(DirectMaster):
    def __init__(self, cluster: VirtualCluster, core: MasterCore) -> None:
        super().__init__(core, cluster.clock, cluster.disk, cluster.network_delay_s)
        self._cluster = cluster

    def decide(self, event: e.MasterEvent) -> list[c.MasterCommand]:
        commands = super().decide(event)
        violations = master_violations(self.core)
        assert not violations, (event, violations)
        return commands

    def notify(self, command: c.NotifyApplication) -> None:
        self._cluster.notices.setdefault(command.application_id, []).append(command.notice)

    def complete_call(self, command: c.Reply | c.Refuse) -> None:
        self._cluster.replies[command.call_id] = command
        callback = self._cluster.callbacks.pop(command.call_id, None)
        if callback is not None:
            self.clock.after(self.delay_s, callback, command)

    def scheduler(self, name: str, session: int) -> End | None:
        receiver = self._cluster.remote.get((name, session))
        return None if receiver is None else _SchedulerEnd(self, receiver)


class _SchedulerEnd:
    """The master's end of a stream to a scheduler of another process."""

    def __init__(self, master: _Master, receiver: SchedulerLike) -> None:
        self._master = master
        self._receiver = receiver

    def put(self, message: StateChanged) -> None:
        self._master.clock.after(self._master.delay_s, self._receiver.receive, message)

    def drop(self) -> None:
        self._receiver.dropped = True


class VirtualCluster:
    """``now`` starts at 1000 s. ``run_s``: how long containers run by themselves; None: without
    end. ``queues``, ``queue_rules``: of applications, from the start; ``division``: of their shares
    over platforms.

    ``preemption_grace_s``: see ``NodeCore``; ``drain_s``: how long a preempted container takes to
    finish what it does. ``schedulers``: two, so that tests meet what several do to each other.
    ``watch``: called with every change of the master's state.

    Attributes:
        notices: everything sent to each application.
        durable: what the store would hold.
    """

    def __init__(
        self,
        nodes: Iterable[ResourceUnit] = (),
        *,
        schedulers: int = 2,
        policy: Callable[[int], PlacementPolicy] = MinWait,
        bounds: Bounds | None = None,
        network_delay_s: float = 0.001,
        run_s: float | None = None,
        preemption_grace_s: float | None = PREEMPTION_GRACE_S,
        drain_s: float = 1.0,
        queues: Iterable[QueueSpec] = (),
        queue_rules: Iterable[QueueRule] = (),
        division: PlatformDivision | None = _DIVISION,
        watch: Watch | None = None,
    ) -> None:
        self.clock = Clock(1000.0)
        self.preemption_grace_s = preemption_grace_s
        self.drain_s = drain_s
        self.bounds = bounds or Bounds()
        self.network_delay_s = network_delay_s
        self.run_s = run_s
        self.notices: dict[str, list[c.Notice]] = {}
        self.disk = VirtualDisk()
        self.disk.queues, self.disk.queue_rules = tuple(queues), tuple(queue_rules)
        self.durable, self.durable_nodes = self.disk.applications, self.disk.nodes
        self.durable_drains, self.durable_run_times = self.disk.drains, self.disk.run_times
        self.replies: dict[int, c.Reply | c.Refuse] = {}
        self.callbacks: dict[int, OnReply] = {}
        self.remote: dict[tuple[str, int], SchedulerLike] = {}
        self.nodes: dict[str, VirtualNode] = {}
        self._schedulers = schedulers
        self._policy = policy
        self._division = division
        self._watch = watch
        self._calls = itertools.count(1)
        self.runtime = self._start_master()
        for each in nodes:
            self.add_node(each)
        self.settle()

    # --- people and machines --------------------------------------------------------------------

    def add_node(
        self, *units: ResourceUnit, properties: NodeProperties | None = None
    ) -> VirtualNode:
        """A node named by the part before ``/`` of its units' ids."""
        name = NodeName(units[0].unit_id.partition("/")[0])
        core = NodeCore(name, units, preemption_grace_s=self.preemption_grace_s)
        return self.add_core(core, properties)

    def add_hardware(self, name: str, hardware: Hardware, binding: Partitioning) -> VirtualNode:
        """A node that is partitioned by ``binding``, and may be partitioned again."""
        units = partition(NodeName(name), hardware, binding)
        core = NodeCore(
            NodeName(name),
            units,
            hardware=hardware,
            binding=binding,
            preemption_grace_s=self.preemption_grace_s,
        )
        return self.add_core(core)

    def add_core(self, core: NodeCore, properties: NodeProperties | None = None) -> VirtualNode:
        node = VirtualNode(self, core)
        if properties is not None:
            node.properties = properties
        self.nodes[core.name] = node
        self.register(node)
        return node

    def register(self, node: VirtualNode) -> int:
        """Reopen a node's stream; returns the call id."""
        call_id = next(self._calls)
        node.register(call_id)
        return call_id

    def submit(
        self,
        executors: int,
        resources: Resources = SMALL,
        workload_class: WorkloadClass | None = None,
        name: str = "app",
        gang_min: int = 0,
        stream_min: int = 0,
        input_bytes: int = 0,
        new_id: ApplicationId | None = None,
        first_executors: FirstExecutors | None = None,
        driver: ApplicationId | None = None,
        requires: NodeRequirement | None = None,
        user: str = "somebody",
        queue: str = "",
        priority: int = 0,
        tags: tuple[str, ...] = (),
    ) -> ApplicationId:
        """Register an application, attach it, and request executors 1..n. ``new_id``: its id;
        with ``driver-`` before it, it holds the driver of a submission, which needs
        ``first_executors``. ``driver``: what holds the driver of this application. ``requires``:
        what a node must meet. ``queue``, ``tags``: see ``core.tenancy.queue_rules``."""
        call_id = next(self._calls)
        self.submit_to_master(
            e.ApplicationRegistered(
                now=self.now,
                call_id=call_id,
                application_id=ApplicationId(""),
                submission_key=f"key-{call_id}",
                name=name,
                user=user,
                queue=queue,
                priority=priority,
                tags=tags,
                declared_class=workload_class,
                gang_min=gang_min,
                stream_min=stream_min,
                input_bytes=input_bytes,
                new_id=new_id,
                first_executors=first_executors,
                submission_id=driver or "",
                requires=requires,
            )
        )
        application_id = self.admitted(call_id).application_id
        self.attach(application_id)
        self.request(application_id, range(1, executors + 1), resources)
        return application_id

    def attach(self, application_id: ApplicationId) -> int:
        call_id = next(self._calls)
        self.submit_to_master(
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
        expected_duration_s: float = 0.0,
        *,
        yields: bool = False,
    ) -> None:
        """Request containers; ``hosts``: where their data lies. ``expected_duration_s``: 0 where
        it is unknown. ``yields``: see ``ContainerRequest``."""
        self.request_all(
            application_id,
            dict.fromkeys(executors, resources),
            hosts=hosts,
            locality_wait_s=locality_wait_s,
            expected_duration_s=expected_duration_s,
            yields=yields,
        )

    def request_all(
        self,
        application_id: ApplicationId,
        executors: Mapping[int, Resources],
        hosts: tuple[str, ...] = (),
        locality_wait_s: float = 3.0,
        expected_duration_s: float = 0.0,
        *,
        yields: bool = False,
    ) -> None:
        """The same for executors of several sizes."""
        requests = tuple(
            ContainerRequest(
                executor_id=str(x),
                resource_profile_id=0,
                resources=resources,
                hosts=hosts,
                locality_wait_s=locality_wait_s,
                expected_duration_s=expected_duration_s,
                yields=yields,
            )
            for x, resources in executors.items()
        )
        self.submit_to_master(
            e.ContainersRequested(now=self.now, application_id=application_id, requests=requests)
        )

    def exclude(self, application_id: ApplicationId, *hosts: str) -> None:
        """Its driver excludes these hosts, and no others."""
        self.submit_to_master(
            e.HostsExcluded(now=self.now, application_id=application_id, hosts=frozenset(hosts))
        )

    def release(self, application_id: ApplicationId, *executors: int) -> None:
        ids = tuple(str(x) for x in executors)
        self.submit_to_master(
            e.ContainersReleased(now=self.now, application_id=application_id, executor_ids=ids)
        )

    def finish(
        self, application_id: ApplicationId, state: ApplicationState = ApplicationState.SUCCEEDED
    ) -> None:
        self.submit_to_master(
            e.ApplicationFinished(now=self.now, application_id=application_id, state=state)
        )

    def end_process(self, application_id: ApplicationId, executor: int, exit_code: int = 0) -> None:
        """An executor's process ends by itself."""
        container_id = container_id_of(application_id, str(executor))
        for node in self.nodes.values():
            if container_id in node.processes:
                node.end(container_id, ContainerEnd(cause=EndCause.EXITED, exit_code=exit_code))
                return
        raise AssertionError(f"{container_id} runs nowhere")

    def rebind(self, node: str, **changes: Any) -> int:
        """Request another binding (``mode``, ``bound_cores``, ``reserve_cores``); the call id."""
        call_id = next(self._calls)
        self.submit_to_master(
            e.RebindRequested(now=self.now, call_id=call_id, node=NodeName(node), **changes)
        )
        return call_id

    def change_queues(
        self,
        *stated: QueueSpec,
        removed: Iterable[str] = (),
        create: bool = False,
        dry_run: bool = False,
    ) -> c.Reply | c.Refuse:
        """An administrator changes queues; the reply."""
        call_id = next(self._calls)
        self.submit_to_master(
            e.QueuesChanged(
                now=self.now,
                call_id=call_id,
                stated=stated,
                removed=tuple(map(QueueName, removed)),
                create=create,
                dry_run=dry_run,
            )
        )
        return self.replies[call_id]

    def disconnect(self, node: VirtualNode) -> None:
        """The network between a node and the master breaks."""
        node.connected = False
        self.submit_to_node(node, e.MasterDisconnected(now=self.now))
        self.submit_to_master(
            e.NodeDisconnected(now=self.now, node=node.name, incarnation=str(node.incarnation))
        )

    def restart_master(self) -> None:
        """The master crashes and restarts from its store; its nodes have yet to return."""
        self.clock.clear()
        self.runtime = self._start_master()
        for node in self.nodes.values():
            node.connected = False
            node.master = self.runtime

    # --- what a test inspects -------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.now

    @now.setter
    def now(self, now: float) -> None:
        self.clock.now = now

    @property
    def master(self) -> MasterCore:
        return self.runtime.core

    @property
    def epoch(self) -> int:
        return self.master.epoch

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
        reply = self.replies[call_id]
        assert isinstance(reply, c.Reply), reply
        assert isinstance(reply.result, c.ApplicationAdmitted)
        return reply.result

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
            if not self.clock.step(until):
                break
        else:
            raise AssertionError(f"{EVENTS_MAX} events without an end")
        self.now = until

    def submit_to_master(self, event: e.MasterEvent) -> None:
        """Let the master take in an event now."""
        self.runtime.submit(event)

    def submit_to_node(self, node: VirtualNode, event: e.NodeEvent) -> None:
        """Let a node take in an event now."""
        node.handle(event)

    def _start_master(self) -> _Master:
        policies = [self._policy(index) for index in range(self._schedulers)]
        core = self.disk.next_master(
            policies, self.bounds, self.now, division=self._division, watch=self._watch
        )
        return _Master(self, core)

    def _second(self) -> None:
        for node in self.nodes.values():
            self.submit_to_node(node, e.HeartbeatDue(now=self.now))
        self.submit_to_master(e.Ticked(now=self.now))

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Let something happen at ``at_s``, or now where that is past."""
        self.clock.at(at_s, action)

    def next_call(self) -> int:
        """The number of a call; its reply is expected in ``replies``, or in ``callbacks``."""
        return next(self._calls)
