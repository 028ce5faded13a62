"""Pipelines at the simulated master: runs ``PipelinesCore`` in virtual time, on the simulated disk.

It does what ``hrm.pipelines.master`` does. It ends with the master's process; its successor begins
with the records of tasks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.hosted import CallMaster, Listen, StopListening, SubmitToMaster
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    LaunchContext,
    NodeName,
)
from hrm.errors import AlreadyExists, HrmError, LimitReached, NotFound, Unavailable
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core.cluster import ClusterBounds, LeastWait, PipelineCluster
from hrm.pipelines.core.end_writes import EndWrites
from hrm.pipelines.core.model import TaskId, TaskSpec
from hrm.pipelines.core.node_messages import (
    EndTask,
    NodeLoad,
    ReportSubtask,
    TaskOutcome,
    TaskWithdrawn,
)
from hrm.pipelines.core.pipelines_core import PipelinesCore
from hrm.pipelines.core.pool_facts import MasterFacts
from hrm.pipelines.core.recovery import take_over
from hrm.pipelines.core.task_record import TaskRecord
from hrm.pipelines.core.workload import WorkloadKey, workload_id
from hrm.pipelines.core.workload_steps import CompleteOpening, FollowCommand, WorkloadStep
from hrm.runtime.master import MasterRuntime
from hrm.sim.actors.pipeline_estimates import PlainEstimates
from hrm.sim.actors.pipeline_messages import AcknowledgeEnd, PlaceAttempt, Welcome, WorkerJoins
from hrm.sim.actors.pipeline_resizing import wild_resizing
from hrm.sim.faults.network import Stream

if TYPE_CHECKING:
    from hrm.sim.actors.master import MasterProcess

__all__ = ["PipelinesActor", "TaskOnDisk", "WorkerEnd"]

TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class TaskOnDisk:
    """What the store holds of a task. ``outcome``: None while it is live."""

    spec: TaskSpec
    application_id: ApplicationId
    key: WorkloadKey
    attempt: int = 0
    outcome: TaskOutcome | None = None
    message: str = ""


class PipelinesActor:
    """Over one life of the master. ``over``: that life has ended.

    ``_writes`` wait for the disk, or are on their way to it while ``_busy``: the first ``_batch``.
    """

    def __init__(self, master: MasterProcess, life: MasterRuntime) -> None:
        self.over = False
        self.life = life
        self.streams: dict[NodeName, WorkerEnd] = {}
        self._master = master
        self._world = master.world
        self._disk = master.disk
        self._attempts_before = m.attempts_before(master.now())
        self._ids = itertools.count(1)
        self._calls = itertools.count(1)
        self._openings: dict[int, tuple[TaskSpec, WorkloadKey, Callable[[Any], None]]] = {}
        self._live: dict[TaskId, TaskOnDisk] = {}
        self._ends = EndWrites[tuple[NodeName, AcknowledgeEnd]]()
        self._writes: list[tuple[TaskId, TaskOnDisk | None, Callable[[], None]]] = []
        self._batch = 0
        self._busy = False
        self.workloads = PipelinesCore(
            self._new_cluster,
            self._new_id,
            self._world.plan.workload_bounds,
            facts=MasterFacts(life.core),
            resizing=wild_resizing(self._world),
        )

    def _new_cluster(self, key: WorkloadKey, ended: dict[TaskId, TaskRecord]) -> PipelineCluster:
        bounds = ClusterBounds(
            node_timeout_s=self._world.plan.bounds.node_timeout_s,
            node_tasks_limit=key.size.slots,
        )
        return PipelineCluster(LeastWait(), PlainEstimates(), bounds=bounds, ended=ended)

    def _new_id(self, now: float) -> ApplicationId:
        return workload_id(now, self.life.core.epoch, next(self._ids))

    # --- life -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over the tasks of an earlier master."""
        now = self._master.now()
        recovery_s = self._world.plan.workload_bounds.recovery_s
        checks = self._world.oracle.pipelines
        checks.master_began(now, recovery_s, self._attempts_before, self._disk.others)
        self._recover(now)
        self._master.clock.after(TICK_S, self._tick)

    def _recover(self, now: float) -> None:
        tasks = list[tuple[ApplicationId, WorkloadKey, TaskSpec]]()
        for kept in self._disk.others.values():
            assert isinstance(kept, TaskOnDisk)
            if kept.outcome is None:
                self._live[kept.spec.task_id] = kept
                tasks.append((kept.application_id, kept.key, kept.spec))
                continue
            record = TaskRecord(
                kept.spec, attempt=kept.attempt, outcome=kept.outcome, message=kept.message
            )
            self.workloads.recover_ended(record, kept.application_id)
        state = self.life.core.master_state
        self.run(lambda: take_over(self.workloads, tasks, state, now))

    def crash(self) -> None:
        """What was being written may have got to the disk."""
        self.over = True
        if self._busy and self._disk.full_until_s <= self._master.now():
            kept = self._world.pipelines.chance.randint(0, self._batch)
            for task_id, record, _ in self._writes[:kept]:
                self._apply(task_id, record)

    def _tick(self) -> None:
        if self.over:
            return
        self.run(lambda: self.workloads.ticked(self._master.now()))
        for name in [x for x in self.streams if not self._is_node(x)]:
            self.streams.pop(name).drop()
        self._master.clock.after(TICK_S, self._tick)

    def _is_node(self, name: NodeName) -> bool:
        workload = self.workloads.of_worker.get(ContainerId(name))
        return workload is not None and name in workload.cluster.table.nodes

    # --- calls of clients -----------------------------------------------------------------------

    def submit(self, task: TaskSpec, key: WorkloadKey, reply: Callable[[Any], None]) -> None:
        """``reply`` gets True, once the task is on the disk, or the error."""
        try:
            self.workloads.arrive(task.task_id)
        except (AlreadyExists, Unavailable) as error:
            reply(error)
            return
        if self.life.full is not None:
            self.workloads.arrived(task.task_id)
            reply(self.life.full)
            return
        now, number = self._master.now(), next(self._calls)
        self._openings[number] = replace(task, submitted_at_s=now), key, reply
        self.run(lambda: self.workloads.open(number, key, task.task_id, now))

    def _opened(self, step: CompleteOpening) -> None:
        task, key, reply = self._openings.pop(step.call_id, (None, None, None))
        if task is None or key is None or reply is None:
            return
        if isinstance(step.result, HrmError):
            self.workloads.arrived(task.task_id)
            reply(step.result)
            return
        kept = TaskOnDisk(task, step.result, key)
        self._write(task.task_id, kept, partial(self._submit, kept, reply))

    def _submit(self, kept: TaskOnDisk, reply: Callable[[Any], None]) -> None:
        task_id = kept.spec.task_id
        self._live[task_id] = kept
        self.workloads.arrived(task_id)
        now = self._master.now()
        error = self.run(lambda: self.workloads.submit(kept.application_id, kept.spec, now))
        if error is None:
            self._world.oracle.pipelines.accepted(task_id, self._disk.others)
            reply(True)
            return
        self._live.pop(task_id, None)
        self._write(task_id, None, lambda: None)
        reply(error)

    def cancel(self, task_id: TaskId, reply: Callable[[Any], None]) -> None:
        """``reply`` gets True or NotFound."""
        now = self._master.now()
        reply(self.run(lambda: self.workloads.cancel(task_id, "its client wants it", now)) or True)

    def outcome(self, task_id: TaskId, reply: Callable[[Any], None]) -> None:
        """``reply`` gets None while it is live, its record when it has ended, or NotFound."""
        record = self.workloads.find(task_id)
        if record is None:
            known = self.workloads.knows(task_id)
            reply(None if known else NotFound(f"no pipeline task {task_id}"))
        elif record.outcome is None or task_id in self._ends:
            reply(None)
        else:
            self._world.oracle.pipelines.reported(task_id, record.outcome, self._disk.others)
            reply(record)

    # --- workers --------------------------------------------------------------------------------

    def join(self, joins: WorkerJoins, end: WorkerEnd) -> bool:
        """A worker's first message; False: it is none."""
        name = joins.capacity.name
        workload = self.workloads.of_worker.get(ContainerId(name))
        other = self.streams.get(name)
        if workload is None or workload.ending:
            return False
        if other is not None and other.identity != joins.identity:
            return False
        self.streams[name] = end
        if other is not None:
            other.drop()
        end.put(Welcome())
        tasks = tuple((x, number - self._attempts_before) for x, number in joins.tasks)
        joined = m.NodeJoined(
            now=self._master.now(), capacity=joins.capacity, tasks=tasks, load=joins.load
        )
        self._world.oracle.pipelines.joining(self.workloads, joined)
        return self._reported(name, joined)

    def leave(self, name: NodeName, end: WorkerEnd) -> None:
        if self.streams.get(name) is end and not self.over:
            del self.streams[name]
            self._reported(name, m.NodeAway(now=self._master.now(), name=name))

    def take_report(self, name: NodeName, message: Any) -> bool:
        """False: its stream is to end."""
        if self.over:
            return True
        now = self._master.now()
        match message:
            case NodeLoad():
                report = m.PipelineNodeReported(now=now, name=name, load=message)
                return self._reported(name, report)
            case ReportSubtask():
                number = message.attempt - self._attempts_before
                run = replace(message, attempt=number)
                return self._reported(name, m.SubtaskReported(now=now, name=name, report=run))
            case EndTask():
                return self._attempt_ended(name, message)
        return True

    def _attempt_ended(self, name: NodeName, end: EndTask) -> bool:
        acknowledgement = AcknowledgeEnd(end.task_id, end.attempt)
        number = end.attempt - self._attempts_before
        ended = m.TaskEnded(now=self._master.now(), name=name, end=replace(end, attempt=number))
        self._world.oracle.pipelines.attempt_ended(name, ended.end)
        if not self._reported(name, ended):
            return False
        self._acknowledge(name, acknowledgement)
        return True

    def _acknowledge(self, name: NodeName, what: AcknowledgeEnd) -> None:
        """The worker may forget its task, once the end of that is on the disk."""
        if not self._ends.hold(what.task_id, (name, what)):
            self._send(name, what)

    def _reported(self, name: NodeName, event: m.ClusterEvent) -> bool:
        container_id = ContainerId(name)
        return self.run(lambda: self.workloads.worker_reported(container_id, event)) is None

    def _send(self, name: NodeName, message: Any) -> None:
        if isinstance(message, AcknowledgeEnd):
            record = self.workloads.find(message.task_id)
            is_live = record is not None and record.outcome is None
            checks = self._world.oracle.pipelines
            checks.acknowledged(message.task_id, self._disk.others, is_live=is_live)
        if name in self.streams:
            self.streams[name].put(message)

    # --- the core -------------------------------------------------------------------------------

    def put(self, application_id: ApplicationId, notice: c.Notice) -> None:
        """A notice is delivered after the core's current event."""
        self._later(
            lambda: self.workloads.notice_received(application_id, notice, self._master.now())
        )

    def _later(self, decide: Callable[[], list[WorkloadStep]]) -> None:
        def turn() -> None:
            self.run(decide)

        self._master.clock.after(0.0, turn)

    def run(self, decide: Callable[[], list[WorkloadStep]]) -> HrmError | None:
        """Carry out what is decided; returns what refuses it."""
        if self.over:
            return None
        try:
            steps = decide()
        except (AlreadyExists, LimitReached, NotFound, Unavailable) as error:
            return error
        except Exception as error:
            self._world.oracle.violated(f"the core of pipelines raised {error!r}")
            return None
        state = self.life.core.master_state
        self._world.oracle.pipelines.decided(self.workloads, steps, self._steps_of, state)
        for step in steps:
            self._carry_out(step)
        return None

    def _steps_of(self, task_id: TaskId) -> set[str]:
        record = self.workloads.find(task_id)
        return set() if record is None else {x.name for x in record.spec.pipeline.subtasks}

    def _carry_out(self, step: WorkloadStep) -> None:
        master = self._master
        match step:
            case SubmitToMaster():
                master.submit(replace(step.event, now=master.now()))
            case CallMaster():
                self._ask(step)
            case Listen():
                master.listeners[step.application_id] = self
            case StopListening():
                master.listeners.pop(step.application_id, None)
            case CompleteOpening():
                self._opened(step)
            case FollowCommand():
                self._follow(step.command)

    def _ask(self, step: CallMaster) -> None:
        master, app_id, event = self._master, step.application_id, step.event
        if isinstance(event, e.ApplicationRegistered):
            launch = LaunchContext(
                worker=json.dumps({"token": app_id}), decommissions=True,
                decommission_signal="TERM",
            )  # fmt: skip
            event = replace(event, launch=launch)

        def replied(reply: c.Reply | c.Refuse) -> None:
            self._later(lambda: self.workloads.reply_received(app_id, reply, master.now()))

        master.call(lambda call_id: replace(event, now=master.now(), call_id=call_id), replied)

    def _follow(self, command: m.ClusterCommand) -> None:
        match command:
            case m.PlaceTask():
                attempt = self._attempts_before + command.attempt
                what = f"places {command.task.task_id}#{attempt} at {command.node}: {command.why}"
                self._world.log.emit("pipelines", what)
                self._send(command.node, PlaceAttempt(command.task, attempt))
            case m.CancelTask():
                attempt = self._attempts_before + command.attempt
                withdrawn = TaskWithdrawn(
                    now=0.0, task_id=command.task_id, attempt=attempt, why=command.why
                )
                self._send(command.node, withdrawn)
            case m.ReportPlacement(node=None):
                self._world.log.emit("pipelines", f"{command.task_id} waits: {command.message}")
            case m.FinishTask():
                self._finished(command)

    def _finished(self, command: m.FinishTask) -> None:
        task_id = command.task_id
        what = f"{task_id} has ended: {command.outcome.value} {command.message}"
        self._world.log.emit("pipelines", what)
        kept = self._live.pop(task_id, None)
        if kept is None:
            self._world.oracle.violated(f"{task_id} ends, and was not kept")
            return
        kept = replace(
            kept, attempt=command.attempt, outcome=command.outcome, message=command.message
        )
        self._ends.begin(task_id)
        self._write(task_id, kept, partial(self._end_written, task_id))

    def _end_written(self, task_id: TaskId) -> None:
        for name, what in self._ends.written(task_id):
            self._send(name, what)

    # --- the disk -------------------------------------------------------------------------------

    def _write(self, task_id: TaskId, record: TaskOnDisk | None, then: Callable[[], None]) -> None:
        self._writes.append((task_id, record, then))
        self._write_next()

    def _write_next(self) -> None:
        if self._writes and not self._busy:
            self._busy = True
            self._batch = len(self._writes)
            took_s = self._disk.write_time_s(self._master.now())
            self._master.clock.after(took_s, self._written)

    def _written(self) -> None:
        if self.over:
            return
        if self._disk.full_until_s > self._master.now():
            self._master.clock.after(TICK_S, self._written)
            return
        done, self._writes = self._writes[: self._batch], self._writes[self._batch :]
        self._busy = False
        for task_id, record, _ in done:
            self._apply(task_id, record)
        for _, _, then in done:
            then()
        self._write_next()

    def _apply(self, task_id: TaskId, record: TaskOnDisk | None) -> None:
        if record is None:
            self._disk.others.pop(task_id, None)
            return
        before = self._disk.others.get(task_id)
        if record.outcome is not None and isinstance(before, TaskOnDisk):
            self._world.oracle.pipelines.written(task_id, before.outcome, record.outcome)
        self._disk.others[task_id] = record


class WorkerEnd:
    """The master's end of a worker's stream."""

    def __init__(self, actor: PipelinesActor, stream: Stream) -> None:
        self.identity = ""
        self._actor = actor
        self._stream = stream
        self._name: NodeName | None = None

    def put(self, message: Any) -> None:
        self._stream.send_to_client(message)

    def drop(self) -> None:
        self._stream.close_server()
        self.closed()

    def received(self, message: Any) -> None:
        if self._name is None and isinstance(message, WorkerJoins):
            self._name, self.identity = message.capacity.name, message.identity
            if not self._actor.join(message, self):
                self.drop()
        elif self._name is not None and not self._actor.take_report(self._name, message):
            self.drop()

    def closed(self) -> None:
        if self._name is not None:
            self._actor.leave(self._name, self)

    def ghost(self, message: Any) -> None:
        """The master's old lives are over: nothing reaches them."""
