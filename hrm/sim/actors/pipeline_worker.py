"""A worker of pipelines in its container, in virtual time: around the production core of a node.

It does what ``hrm.pipelines.worker`` does: connects to the master and connects again, runs steps,
keeps ends until the master has them on its disk. On SIGTERM it gives back what has not begun, ends
the steps that run, gives back the rest, and ends when the master has acknowledged all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hrm.core.vocabulary.backoff import Backoff
from hrm.core.vocabulary.model import ContainerSpec, NodeName
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.core.node import PipelineNode
from hrm.pipelines.core.node_messages import RunOutcome
from hrm.sim.actors.pipeline_estimates import FirstFit, PlainEstimates
from hrm.sim.actors.pipeline_messages import AcknowledgeEnd, PlaceAttempt, Welcome, WorkerJoins
from hrm.sim.faults.network import Peer, Stream
from hrm.sim.faults.plan import source

if TYPE_CHECKING:
    from hrm.sim.actors.machine_actor import MachineActor

__all__ = ["PipelineWorker"]

_PERIOD_S = 1.0
_REGISTER_TIMEOUT_S = 3.0
_RECONNECT_S = 0.2
_RECONNECT_MAX_S = 2.0


class PipelineWorker:
    """One process. ``over``: it has ended. ``yielding``: it has received SIGTERM.

    Invariant: every end that is not acknowledged is in ``_ends``.
    """

    def __init__(
        self, machine: MachineActor, spec: ContainerSpec, exited: Callable[[int], None]
    ) -> None:
        self.machine = machine
        self.world = machine.world
        self.container_id = spec.container_id
        self.name = str(spec.container_id)
        self.over = False
        self.yielding = False
        held = spec.resources
        gpu = m.GpuCard(index=0, model="GPU", memory_mib=held.gpu_memory_mib)
        self.capacity = m.NodeCapacity(
            name=NodeName(spec.container_id),
            cores=held.vcores,
            memory_mib=held.memory_mib,
            gpus=(gpu,) if held.gpu_memory_mib else (),
        )
        self.core = PipelineNode(self.capacity, FirstFit(), PlainEstimates())
        self._exited = exited
        self._chance = source(self.world.plan.seed, f"worker-{self.name}")
        self._identity = f"{machine.name} {machine.world.clock.now}"
        self._backoff = Backoff(_RECONNECT_S, _RECONNECT_MAX_S, self._chance.random)
        self._ends: dict[tuple[TaskId, int], m.EndTask] = {}
        self._running: dict[int, int] = {}
        """The attempts of runs, by number."""
        self._link: _WorkerLink | None = None
        self._is_deaf = False
        self.world.network.hosts[self.name] = machine.name

    # --- life -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """It may never connect, and it may not listen to signals."""
        self._is_deaf = self.world.network.happens("worker-deaf")
        if self.world.network.happens("worker-mute"):
            self.world.log.emit(self.name, "never connects")
            return
        self._after(self._chance.uniform(0.01, 0.5), self._connect)
        self._after(_PERIOD_S, self._tick)

    def signalled(self) -> None:
        """SIGTERM."""
        self.world.sleepers.deliver(self.name, self._yield)

    def vanish(self) -> None:
        """Its process is gone."""
        self.over = True
        self.world.sleepers.died(self.name)
        if self._link is not None:
            self._link.stream.close_client()
            self._link = None

    def _yield(self) -> None:
        if self.over or self._is_deaf:
            return
        self.yielding = True
        self.world.oracle.pipelines.yielding(self.name)
        self._handle(m.DrainAsked(now=self.machine.now(), after_step=True))
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self.yielding and not self.core.tasks and not self._ends:
            self._after(self._chance.uniform(0.0, 0.2), self._exit)

    def _exit(self) -> None:
        if not self.over:
            self._exited(0)

    def _after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self.machine.after(delay_s, self.world.sleepers.ring, self.name, action, *arguments)

    def _tick(self) -> None:
        """The clock, and a sign of life."""
        if self.over:
            return
        now = self.machine.now()
        if now >= self.core.next_deadline():
            self._handle(m.ClockTicked(now=now))
        self._handle(m.LoadSampled(now=now))
        self._send(self.core.load(now))
        self._after(_PERIOD_S, self._tick)

    # --- the core -------------------------------------------------------------------------------

    def _handle(self, event: m.NodeEvent) -> None:
        try:
            commands = self.core.handle(event)
        except Exception as error:
            self.world.oracle.violated(f"{self.name}'s core raised {error!r}")
            return
        for command in commands:
            match command:
                case m.StartSubtask():
                    self._start(command)
                case m.StopSubtask():
                    over = m.SubtaskEnded(
                        now=0.0, key=command.key, run=command.run, outcome=RunOutcome.STOPPED
                    )
                    self._after(self._chance.uniform(0.0, 0.3), self._step_over, over)
                case m.ReportSubtask():
                    self._send(command)
                case m.EndTask():
                    self._ends[command.task_id, command.attempt] = command
                    self._send(command)
                case _:
                    self.world.oracle.violated(f"{self.name} is to carry out {command}")

    def _start(self, command: m.StartSubtask) -> None:
        world, key = self.world, command.key
        what = f"starts {key.subtask} of {key.task_id}#{command.attempt}"
        world.log.emit(self.name, what)
        inputs = next(
            x.after
            for x in self.core.tasks[key.task_id].spec.pipeline.subtasks
            if x.name == key.subtask
        )
        world.oracle.pipelines.step_began(self.name, self.machine.name, command, inputs)
        run_s, outcome = world.pipelines.run_of(key), RunOutcome.DONE
        if world.network.happens("step-crash"):
            run_s, outcome = run_s * self._chance.random(), RunOutcome.CRASHED
        elif world.pipelines.fails(key):
            outcome = RunOutcome.RAISED
        over = m.SubtaskEnded(now=0.0, key=key, run=command.run, outcome=outcome, ran_s=run_s)
        self._running[command.run] = command.attempt
        self._after(run_s, self._step_over, over)

    def _step_over(self, event: m.SubtaskEnded) -> None:
        attempt = self._running.pop(event.run, None)
        if self.over or attempt is None:
            return
        if event.outcome is RunOutcome.DONE:
            self.world.oracle.pipelines.step_done(self.name, event.key, attempt)
        self._handle(replace(event, now=self.machine.now()))
        self._end_if_done()

    # --- the master -----------------------------------------------------------------------------

    def _connect(self) -> None:
        if self.over or self._link is not None:
            return
        self._link = _WorkerLink(self)
        self.world.master.accept_worker(self._link.stream)
        here = [(task_id, task.attempt) for task_id, task in self.core.tasks.items()]
        load = self.core.load(self.machine.now())
        joins = WorkerJoins(self.capacity, self._identity, (*here, *self._ends), load)
        self._link.stream.send_to_server(joins)

    def _send(self, message: Any) -> None:
        if self._link is not None and self._link.is_up:
            self._link.stream.send_to_server(message)

    def linked(self) -> None:
        self._backoff.succeeded()
        for end in self._ends.values():
            self._send(end)

    def unlinked(self, link: _WorkerLink) -> None:
        if self._link is link:
            self._link = None
            self._after(self._backoff.pause_s(), self._connect)

    def taken(self, message: Any) -> None:
        """A message of the master."""
        now = self.machine.now()
        match message:
            case PlaceAttempt(task=task, attempt=attempt):
                self._handle(m.TaskPlaced(now=now, task=task, attempt=attempt))
            case m.TaskWithdrawn():
                self._handle(replace(message, now=now))
                if message.task_id not in self.core.tasks:
                    self._ends.pop((message.task_id, message.attempt), None)
            case AcknowledgeEnd():
                self._ends.pop((message.task_id, message.attempt), None)
        self._end_if_done()


class _WorkerLink(Peer):
    """The worker's end of one stream, up from the master's first message on."""

    def __init__(self, worker: PipelineWorker) -> None:
        self.worker = worker
        self.is_up = False
        world = worker.world
        self.stream = Stream(world.network, worker.name, self, strict=True)
        world.clock_of(worker.name).after(_REGISTER_TIMEOUT_S, self._check)

    def received(self, message: Any) -> None:
        if self.worker.over:
            return
        if isinstance(message, Welcome):
            self.is_up = True
            self.worker.linked()
        elif self.is_up:
            self.worker.taken(message)

    def closed(self) -> None:
        self.is_up = False
        self.worker.unlinked(self)

    def _check(self) -> None:
        """A registration without a reply is given up."""
        if not self.is_up:
            self.stream.close_client()
            self.worker.unlinked(self)
