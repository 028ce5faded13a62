"""A machine of the cluster: its agent around ``NodeCore``, its processes, its disk.

Agent and processes die apart: an agent that comes back is a new incarnation, which adopts what its
work directory lists, running or ended. A machine that comes back has no process left; with its
disk it is the same node and reports their ends, with a new one it is another under an old name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.backoff import Backoff
from hrm.core.vocabulary.bounds import GPU_WAITER_BOUNDS
from hrm.core.vocabulary.model import (
    WORKLOAD_PREFIX,
    ContainerEnd,
    ContainerId,
    ContainerSpec,
    EndCause,
    NodeName,
    is_driver,
)
from hrm.core.vocabulary.partitioning import partition
from hrm.runtime.node import NodeReport, NodeRuntime, order
from hrm.sim import event_format
from hrm.sim.actors.pipeline_worker import PipelineWorker
from hrm.sim.actors.recorded_uses import RecordedUses
from hrm.sim.actors.runner import Runner
from hrm.sim.faults.labels import properties_of
from hrm.sim.faults.network import Peer, Stream
from hrm.sim.faults.plan import NodePlan, source

if TYPE_CHECKING:
    from hrm.sim.world import World

__all__ = ["ContainerProcess", "MachineActor"]

_REGISTER_TIMEOUT_S = 3.0
_RECONNECT_S = 0.2
_RECONNECT_MAX_S = 2.0
_MEASURE_S = 0.4


@dataclass(slots=True)
class ContainerProcess:
    """``cpus``: the cores that it is held on; empty: any. ``gpus``: the GPUs that it sees.
    ``spawned``: past its start. ``order``: why it is being stopped, and how gently. ``runner``,
    ``worker``: what it is, where it runs the driver of a submission or steps of pipelines."""

    spec: ContainerSpec
    started_at_s: float
    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    spawned: bool = False
    order: c.StopProcess | None = None
    runner: Runner | None = None
    worker: PipelineWorker | None = None


@dataclass(slots=True)
class _Record:
    """What the work directory holds of a container. ``end`` is None while it runs."""

    spec: ContainerSpec
    started_at_s: float
    end: ContainerEnd | None = None


class _Agent(NodeRuntime):
    """One life of a machine's agent. ``newest_epoch``: of all messages that it got."""

    def __init__(self, machine: MachineActor, core: NodeCore, incarnation: int) -> None:
        super().__init__(core, machine.agent_clock, incarnation)
        self._machine = machine
        self._newest_epoch = 0
        self.properties = properties_of(machine.plan)

    def decide(self, event: e.NodeEvent) -> list[c.NodeCommand]:
        core, world = self.core, self._machine.world
        known = len(core.containers)
        try:
            commands = super().decide(event)
        except Exception as error:
            world.log.emit(self.name, event_format.of_event(event))
            world.oracle.violated(f"{self.name}'s core raised {type(error).__name__}: {error}")
            return []
        world.log.emit(self.name, event_format.of_event(event) + event_format.of_commands(commands))
        acts = bool(commands) or len(core.containers) != known
        world.oracle.after_node(core, self._newest_epoch, event, acts, commands)
        if isinstance(event, e.ReceivedFromMaster):
            self._newest_epoch = max(self._newest_epoch, event.epoch)
        return commands

    def start(self, spec: ContainerSpec) -> None:
        self._machine.start_process(spec)

    def stop(self, command: c.StopProcess) -> None:
        self._machine.stop_process(command)

    def pin(self, command: c.PinProcess) -> None:
        self._machine.pin_process(command)

    def emit(self, report: NodeReport) -> None:
        self._machine.send(report)

    def forget(self, command: c.ForgetContainer) -> None:
        self._machine.forget(command)

    def register_again(self, command: c.RegisterAgain) -> None:
        self._machine.register_again(command)


class MachineActor:
    """One machine. ``agent`` is None while that is down; ``up`` is the machine itself.

    Until ``bad_until_s`` whatever starts there fails at once. Until ``_full_until_s`` its disk is
    full, and its agent sees that.

    Invariant: ``processes`` are the live ones; each has a record without an end.
    """

    def __init__(self, world: World, plan: NodePlan) -> None:
        self.world = world
        self.plan = plan
        self.name = NodeName(plan.name)
        self.agent_clock = world.clock_of(plan.name)
        self.units = plan.units
        self.up = True
        self.agent: _Agent | None = None
        self.bad_until_s = 0.0
        self._full_until_s = 0.0
        self.processes: dict[ContainerId, ContainerProcess] = {}
        self._binding = plan.binding
        self._uses = RecordedUses(self, plan.gpu_waiters) if plan.gpu_waiters else None
        self._ills = source(world.plan.seed, f"ills-{plan.name}")
        self._usage = source(world.plan.seed, f"usage-{plan.name}")
        self._busy = True
        self._records: dict[ContainerId, _Record] = {}
        self._offset_s = plan.clock_offset_s
        self._identity = 1
        self._incarnation = 0
        self._link: _Link | None = None
        self._backoff = Backoff(_RECONNECT_S, _RECONNECT_MAX_S, world.chance.random)

    @property
    def core(self) -> NodeCore | None:
        return None if self.agent is None else self.agent.core

    def now(self) -> float:
        """The machine's own clock."""
        true = self.world.clock.now
        return true + self._offset_s + (true % 1000.0) * (self.plan.clock_rate - 1.0)

    def clock_s(self) -> float:
        """A clock that is never set, as fast as the other one."""
        return self.world.clock.now * self.plan.clock_rate

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """``delay_s``: of this machine's clocks."""
        self.world.clock.after(delay_s / self.plan.clock_rate, action, *arguments)

    def step_clock(self, step_s: float) -> None:
        """The clock is set, forwards or backwards."""
        self.world.log.emit(self.name, f"clock set by {step_s:.3f} s")
        self._offset_s += step_s

    def start_agent(self) -> None:
        if not self.up or self.agent is not None:
            return
        self._incarnation += 1
        self._backoff.succeeded()
        self.agent = _Agent(self, self._new_core(), self._incarnation)
        self.world.log.emit(self.name, f"agent {self._incarnation} starts")
        for record in sorted(self._records.values(), key=lambda record: record.end is None):
            spec = record.spec
            self.deliver(self._adopted(record))
            if record.end is not None:
                self._report_end(spec.container_id, record.end)
        self._see_disk()
        if self.plan.auto_binding is not None:
            self._measure(self.agent)
        self._connect()

    def fill_disk(self, for_s: float) -> None:
        """A disk may fill again before it was emptied."""
        self.world.log.emit(self.name, f"its disk is full for {for_s:.1f} s")
        self._full_until_s = max(self._full_until_s, self.world.clock.now + for_s)
        self.agent_clock.at(self._full_until_s, self._see_disk)
        self._see_disk()

    def empty_disk(self) -> None:
        self._full_until_s = 0.0
        self._see_disk()

    def _see_disk(self) -> None:
        """An agent that has checked its disk, as it first does when it starts, acts on it."""
        if self.core is None:
            return
        if self.world.clock.now < self._full_until_s:
            self.deliver(e.NodeClosed(now=self.now(), why="its disk is full"))
        elif self.core.closed:
            self.deliver(e.NodeOpened(now=self.now()))

    def _measure(self, agent: _Agent) -> None:
        """What containers use of their cores: now nearly all, now next to nothing."""
        if self.agent is not agent or self.world.faults_stopped:
            return
        if self._usage.random() < 0.15:
            self._busy = not self._busy
        share = self._usage.uniform(70.0, 100.0) if self._busy else self._usage.uniform(0.0, 5.0)
        used = tuple((x, share * p.spec.resources.vcores) for x, p in self.processes.items())
        self.agent_clock.after(_MEASURE_S, self._measure, agent)
        self.deliver(e.UsageMeasured(now=self.now(), cpu_percent=used))

    def _new_core(self) -> NodeCore:
        """Partitioned as the work directory records, or by the agent's settings."""
        hardware, binding, units = self.plan.hardware, self._binding, self.units
        if hardware is not None and binding is not None:
            units = partition(self.name, hardware, binding)
        return NodeCore(
            self.name,
            units,
            hardware=hardware,
            binding=binding,
            auto_binding=self.plan.auto_binding,
            preemption_grace_s=self.plan.preemption_grace_s,
            yield_grace_s=self.plan.yield_grace_s,
            gpu_waiters=None if self._uses is None else self._uses.policy(),
            gpu_waiter_bounds=GPU_WAITER_BOUNDS if self._uses is None else self._uses.bounds,
        )

    def crash_agent(self) -> None:
        """The agent crashes; what has been started runs on, what was being started may not."""
        if self.agent is None:
            return
        self.world.log.emit(self.name, "agent crashes")
        self.world.sleepers.died(self.name)
        self.agent = None
        if self._link is not None:
            self._link.stream.close_client()
            self._link = None
        for container_id, process in list(self.processes.items()):
            if not process.spawned and self.world.chance.random() < 0.5:
                self._gone(container_id)
                del self._records[container_id]
            if not process.spawned:
                process.order = None  # it was to get it once it had started
            process.spawned = True

    def _adopted(self, record: _Record) -> e.ContainerAdopted:
        """What an agent that starts finds, the order to stop of its predecessor included."""
        process = self.processes.get(record.spec.container_id)
        order = None if process is None else process.order
        return e.ContainerAdopted(
            now=self.now(),
            spec=record.spec,
            started_at_s=record.started_at_s,
            stopping="" if order is None else order.reason,
            decommissioning=order is not None and order.decommission,
        )

    def crash(self) -> None:
        """The machine fails with everything on it."""
        if not self.up:
            return
        self.crash_agent()
        self.up = False
        self.world.log.emit(self.name, "machine crashes")
        end = ContainerEnd(cause=EndCause.LOST, message="the machine died")
        for container_id in list(self.processes):
            self._gone(container_id)
            self._records[container_id].end = end

    def come_back(self, *, with_disk: bool) -> None:
        if self.up:
            return
        self.up = True
        if not with_disk:
            self._identity += 1
            self._uses = self._uses and self._uses.emptied()
            self._records.clear()
            self._binding = self.plan.binding
        self.world.log.emit(self.name, "machine is back" + ("" if with_disk else ", emptied"))
        self.start_agent()

    def deliver(self, event: e.NodeEvent) -> None:
        if self.agent is None:
            return
        self.agent.handle(event)
        if not isinstance(event, e.ContainerAdopted):  # the agent does not know the others yet
            held_on = [(x.spec, x.cpus) for x in self.processes.values()]
            self.world.oracle.machine_pins(self.name, held_on)

    def forget(self, command: c.ForgetContainer) -> None:
        record = self._records.pop(command.container_id, None)
        if record is not None and record.end is None:
            self.world.oracle.violated(f"{command.container_id} is forgotten, and runs")

    def register_again(self, command: c.RegisterAgain) -> None:
        self._binding = command.binding or self._binding
        self.agent_clock.after(0.0, self._register_again, self._link)

    def _register_again(self, link: _Link | None) -> None:
        """Nothing is left to send on this stream: open another at once."""
        if link is not None and self._link is link:
            link.stream.close_client()
            self.unlinked(link, at_once=True)

    def send(self, message: Any) -> None:
        if self._link is not None:
            self._link.stream.send_to_server(message)

    def start_process(self, spec: ContainerSpec) -> None:
        container_id = spec.container_id
        assert self.core is not None
        unit = self.core.units[spec.unit_id].unit
        gpus = tuple(gpu.index for gpu in unit.gpus) if spec.resources.gpu_memory_mib else ()
        self.processes[container_id] = ContainerProcess(spec, self.now(), unit.cpus, gpus)
        self._records[container_id] = _Record(spec, self.now())
        here = [p.spec for p in self.processes.values() if p.spec.unit_id == spec.unit_id]
        capacity = self.core.units[spec.unit_id].capacity
        self.world.oracle.process_began(self.name, spec, here, capacity)
        self.world.oracle.requirements.began(self.name, spec)
        if self.plan.hardware is not None:
            held = [(p.spec, p.gpus) for p in self.processes.values()]
            self.world.oracle.machine_holds(self.name, self.plan.hardware, held)
        if self._uses is not None:
            self._uses.began(spec)
        delay_s = self.world.chance.uniform(0.01, 0.3)
        self.world.clock.after(delay_s, self._started, container_id, self.processes[container_id])

    def _started(self, container_id: ContainerId, process: ContainerProcess) -> None:
        if self.processes.get(container_id) is not process:
            return
        process.spawned = True
        network = self.world.network
        if network.happens("launch-failure"):
            end = ContainerEnd(cause=EndCause.LAUNCH_FAILED, message="cannot be started")
            self._end(container_id, process, end)
            return
        if process.order is not None:
            self._stop_soon(container_id, process)
        elif self.world.clock.now < self.bad_until_s:
            end = ContainerEnd(cause=EndCause.EXITED, exit_code=1, message="no space left")
            delay_s = self._ills.uniform(0.0, 0.5)
            self.world.clock.after(delay_s, self._end, container_id, process, end)
        elif is_driver(process.spec.application_id):
            exited = partial(self._exited, container_id, process)
            process.runner = Runner(self, process.spec, exited)
            process.runner.begin()
        else:
            if process.spec.application_id.startswith(WORKLOAD_PREFIX):
                process.worker = PipelineWorker(
                    self, process.spec, partial(self._exited, container_id, process)
                )
                process.worker.begin()
            self._crash_at_times(container_id, process)

    def _crash_at_times(self, container_id: ContainerId, process: ContainerProcess) -> None:
        network = self.world.network
        if network.happens("executor-crash"):
            end = ContainerEnd(cause=EndCause.EXITED, exit_code=52, message="it crashed")
            delay_s = network.chance.uniform(0.0, 6.0)
            self.world.clock.after(delay_s, self._end, container_id, process, end)

    def pin_process(self, command: c.PinProcess) -> None:
        process = self.processes.get(command.container_id)
        if process is not None:
            process.cpus = command.cpus

    def stop_process(self, command: c.StopProcess) -> None:
        """A preempted container uses its grace period, unless a second order shortens it."""
        process = self.processes.get(command.container_id)
        if process is None:
            return
        before = process.order
        if before is None or (before.decommission and not command.decommission):
            process.order = command
            if process.spawned:
                self._stop_soon(command.container_id, process)

    def _stop_soon(self, container_id: ContainerId, process: ContainerProcess) -> None:
        assert process.order is not None
        share = 1.0 if process.worker is not None else self.world.chance.random()
        delay_s = 0.01 + process.order.grace_s * share
        end = ContainerEnd(cause=EndCause.EXITED, exit_code=143)
        if process.worker is not None:
            process.worker.signalled()
        self.world.clock.after(delay_s, self._end, container_id, process, end)

    def _end(self, container_id: ContainerId, process: ContainerProcess, end: ContainerEnd) -> None:
        if self.processes.get(container_id) is not process:
            return
        if process.order is not None:
            end = replace(end, cause=process.order.cause, message=process.order.reason)
        runner = self._gone(container_id, end.exit_code)
        if runner is not None and runner.exit_code is not None:
            end = replace(end, exit_code=runner.exit_code)
        self._records[container_id].end = end
        self._report_end(container_id, end)

    def end_by_itself(self, container_id: ContainerId, delay_s: float) -> None:
        """An executor is done: its driver gives it no more tasks."""
        process = self.processes[container_id]
        self.world.clock.after(delay_s, self._exited, container_id, process, 0)

    def _exited(self, container_id: ContainerId, process: ContainerProcess, exit_code: int) -> None:
        """A runner has come to its end by itself."""
        end = ContainerEnd(cause=EndCause.EXITED, exit_code=exit_code)
        self._end(container_id, process, end)

    def _gone(self, container_id: ContainerId, exit_code: int | None = None) -> Runner | None:
        """A process is gone, and with it the driver that it ran; None: its exit was not seen."""
        process = self.processes.pop(container_id)
        runner = process.runner
        if runner is not None:
            runner.vanish(exit_code)
        if process.worker is not None:
            process.worker.vanish()
        self.world.oracle.process_gone(container_id)
        return runner

    def _report_end(self, container_id: ContainerId, end: ContainerEnd) -> None:
        """By its parent, which does not sleep when the agent does."""
        self.world.sleepers.deliver(
            self.name, self._end_reported, self._incarnation, container_id, end
        )

    def _end_reported(self, incarnation: int, container_id: ContainerId, end: ContainerEnd) -> None:
        if self._uses is not None:
            self._uses.ended(container_id, end, seen=incarnation == self._incarnation)
        if incarnation == self._incarnation:  # a later one has found it on the disk
            self.deliver(e.ProcessEnded(now=self.now(), container_id=container_id, end=end))

    def _connect(self) -> None:
        agent = self.agent
        if agent is None or self._link is not None:
            return
        self._link = _Link(self, self._incarnation)
        self.world.master.accept_node(self._link.stream)
        identity = f"{self.name}-{self._identity}"
        self.send(agent.registration(identity, owner=f"owner {identity}"))

    def linked(self, epoch: int, epoch_id: str) -> None:
        self._backoff.succeeded()
        self.deliver(e.MasterConnected(now=self.now(), epoch=epoch, epoch_id=epoch_id))

    def unlinked(self, link: _Link, *, at_once: bool = False) -> None:
        """Try again, after a pause that grows."""
        if self._link is not link:
            return
        self._link = None
        if link.is_up:
            self.deliver(e.MasterDisconnected(now=self.now()))
        if at_once:
            self._connect()
            return
        self.agent_clock.after(self._backoff.pause_s(), self._connect)

    def message_received(self, epoch: int, message: c.NodeMessage, incarnation: int) -> None:
        if self.core is None or incarnation != self._incarnation:
            return
        self.world.oracle.departures.arrived(self.name, str(incarnation), message)
        self.deliver(order(message, self.now(), epoch))

    def beat(self, link: _Link) -> None:
        if self._link is link:
            self.deliver(e.HeartbeatDue(now=self.now()))
            self.agent_clock.after(self.plan.heartbeat_interval_s, self.beat, link)


class _Link(Peer):
    """The agent's end of one stream, up from the master's answer on."""

    def __init__(self, machine: MachineActor, incarnation: int) -> None:
        self.machine = machine
        self.is_up = False
        self._incarnation = incarnation
        self.stream = Stream(machine.world.network, machine.name, self, strict=False)
        machine.agent_clock.after(_REGISTER_TIMEOUT_S, self._check)

    def received(self, message: Any) -> None:
        epoch, order = message
        if not isinstance(order, str):
            if self.is_up:
                self.machine.message_received(epoch, order, self._incarnation)
            return
        core = self.machine.core
        if not self.is_up and core is not None and core.accepts(epoch):
            self.is_up = True
            self.machine.linked(epoch, order)
            interval_s = self.machine.plan.heartbeat_interval_s
            self.machine.agent_clock.after(interval_s, self.machine.beat, self)

    def closed(self) -> None:
        self.machine.unlinked(self)

    def ghost(self, message: Any) -> None:
        epoch, order = message
        if not isinstance(order, str):
            self.machine.message_received(epoch, order, self._incarnation)

    def _check(self) -> None:
        """A registration without a reply is given up."""
        if not self.is_up:
            self.stream.close_client()
            self.machine.unlinked(self)
