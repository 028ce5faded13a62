"""The node's core for pipeline tasks: which subtask runs where, and when. Sans-IO.

Subtasks become ready when their predecessors end; a ``NodePolicy`` chooses which of them start on
which core or GPU (``dispatch``), and every choice is checked against ``feasibility.refusal``. The
core gets ends (``SubtaskEnded``) and the clock as events, and commands an interpreter, a worker or
the simulator, what to start and stop.

Source: LDWP + IAWP, sections 2.1, 3.4 and algorithm 2.
"""

from __future__ import annotations

import math

from hrm.pipelines.core import feasibility
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.device_memory import OUT_OF_MEMORY_FACTOR, certain
from hrm.pipelines.core.dispatch import Dispatcher, NodeBounds, ReadyList
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import (
    CO_RUN_FEATURES,
    Device,
    LearningEstimates,
    NodePolicy,
    NodeView,
    ReadySubtask,
    StartDecision,
    SubtaskKey,
    TaskId,
    row_of,
)
from hrm.pipelines.core.node_messages import RunOutcome, TaskOutcome
from hrm.pipelines.core.node_resources import NodeResources, node_load
from hrm.pipelines.core.order import RemainingTimes, Speeds
from hrm.pipelines.core.subtasks import (
    NodeTask,
    PlacedSubtask,
    Run,
    SubtaskHappening,
    SubtaskState,
)

__all__ = ["NodeBounds", "PipelineNode"]

_LATE_S = 2.0
"""A tick this much later than due means that the process slept."""

_SM = CO_RUN_FEATURES.index("sm")


class PipelineNode:
    """``handle(event) -> commands``. ``load`` is what the node reports, ``view`` what policies see.

    Invariants: every run is counted once; memory is never reserved twice; each task ends once.
    """

    def __init__(
        self,
        capacity: m.NodeCapacity,
        policy: NodePolicy,
        estimates: LearningEstimates,
        *,
        bounds: NodeBounds | None = None,
        machine: str = "",
    ) -> None:
        """``machine``: where it is, for people; "": as its name says."""
        self.capacity = capacity
        self.machine = machine or capacity.name
        self.policy = policy
        self.estimates = estimates
        self.bounds = bounds or NodeBounds()
        self.resources = NodeResources(capacity, self.estimates, self.bounds.device_memory_risk)
        self.tasks: dict[TaskId, NodeTask] = {}
        self.draining = False
        self.finishing = False
        """No further step starts here."""
        # Its estimates are those of its own speed.
        here = Speeds(capacity.gpu_model, float(capacity.cores > 0), float(bool(capacity.gpus)))
        self._ready = ReadyList(RemainingTimes(estimates, [here]))
        self.dispatcher = Dispatcher(
            policy,
            self.resources,
            self._ready,
            self.bounds,
            start=self._start,
        )
        self._last_run = 0
        self._commands: list[m.NodeCommand] = []

    def handle(self, event: m.NodeEvent) -> list[m.NodeCommand]:
        """Take the event in; returns the commands, in order."""
        commands: list[m.NodeCommand] = []
        self._commands = commands
        match event:
            case m.TaskPlaced():
                self._place(event)
            case m.TaskWithdrawn():
                self._withdraw(event)
            case m.SubtaskEnded():
                self._ended(event)
            case m.SubtaskProfiled():
                self._profiled(event)
            case m.LoadSampled():
                self.resources.sampled(event)
            case m.ClockTicked():
                self._time_out(event.now)
            case m.DrainAsked():
                self._drain(event)
        if not self.finishing:
            self.dispatcher.dispatch(event.now)
        return commands

    # --- queries ------------------------------------------------------------------------------

    @property
    def refused(self) -> int:
        """How often the policy named a start that is not allowed."""
        return self.dispatcher.refused

    def load(self, now: float) -> m.NodeLoad:
        """What the node reports about itself."""
        return node_load(self.resources, self.tasks.values(), now)

    def view(self, now: float) -> NodeView:
        """What its policy would get now."""
        return self.resources.view(now, self.dispatcher.window())

    def next_deadline(self) -> float:
        """When ``ClockTicked`` is due; inf: not before the next event."""
        return min(
            (run.deadline for run in self.resources.runs if run.stop is None), default=math.inf
        )

    def states(self, task_id: TaskId) -> dict[str, SubtaskState]:
        """The state of each subtask of a task; empty: the task is not here."""
        task = self.tasks.get(task_id)
        return {name: one.state for name, one in task.subtasks.items()} if task else {}

    # --- tasks --------------------------------------------------------------------------------

    def _place(self, event: m.TaskPlaced) -> None:
        spec, known = event.task, self.tasks.get(event.task.task_id)
        if known is not None and known.attempt == event.attempt:
            return
        task, why = NodeTask(spec, event.attempt), ""
        if known is not None:
            why = f"attempt {known.attempt} of it is still here"
        elif self.draining:
            why = f"node {self.machine} is draining"
        elif len(self.tasks) >= self.bounds.tasks_limit:
            why = f"node {self.machine} has {len(self.tasks)} tasks already"
        if why:
            self._report_end(task, TaskOutcome.GIVEN_BACK, why)
        else:
            self._take_in(task, event.now)

    def _take_in(self, task: NodeTask, now: float) -> None:
        """Create its subtasks; refuse the task if one of them can never run here."""
        spec = task.spec
        for one in spec.pipeline.subtasks:
            row = row_of(one, spec.size_mb, self.capacity.gpu_model)
            self.estimates.declare(row, one)
            key = SubtaskKey(spec.task_id, one.name)
            task.subtasks[one.name] = PlacedSubtask(key, one, row)
            why = feasibility.never_fits(one, self.capacity)
            if why:
                self._report_end(task, TaskOutcome.FAILED, f"node {self.machine}: {why}")
                return
        self.tasks[spec.task_id] = task
        self._release_followers(task, now)
        self._rank(task)

    def _release_followers(self, task: NodeTask, now: float) -> None:
        """Make subtasks ready that have all their inputs."""
        done = {n for n, one in task.subtasks.items() if one.state is SubtaskState.DONE}
        for one in task.subtasks.values():
            if done.issuperset(one.spec.after) and one.life.takes(SubtaskHappening.INPUTS_DONE):
                self._make_ready(
                    task, one, SubtaskHappening.INPUTS_DONE, now, "its inputs are there"
                )

    def _rank(self, task: NodeTask) -> None:
        """Give its ready steps their place in the order, by what the task has left now."""
        ready = [one.ready for one in task.subtasks.values() if one.ready is not None]
        work = task.work() if ready else ()
        for one in ready:
            self._ready.rank(one, work, task.spec.submitted_at_s)

    def _make_ready(
        self, task: NodeTask, one: PlacedSubtask, by: SubtaskHappening, now: float, why: str
    ) -> None:
        """It may start once its task is ranked. Its charge is fixed here: an estimate above the
        capacity may be wrong, and must not keep it from an empty node; a known need above the
        capacity does."""
        capacity, estimates = self.capacity, self.estimates
        capacity_mib = max((gpu.memory_mib for gpu in capacity.gpus), default=0.0)
        capacity_mib *= CAPS.gpu_memory_share
        known_mib = max(one.gpu_need_mib, one.spec.gpu_memory_mib)
        if not capacity.gpus or known_mib > capacity_mib:
            one.devices = one.devices & {Device.CPU}
        if not capacity.cores:
            one.devices = one.devices & {Device.GPU}
        one.life.follow(by, SubtaskState.READY, now, why)
        if not one.devices:
            by, why = SubtaskHappening.NO_DEVICE, f"no device of the node suffices ({why})"
            self._fail(task, one, by, now, why)
            return
        gpu_mib = max(known_mib, min(capacity_mib, estimates.gpu_memory_mib(one.row)))
        host_mib = min(capacity.memory_mib, estimates.memory_mib(one.row))
        peak = estimates.gpu_memory_peak(one.row) if self.bounds.device_memory_risk > 0 else None
        one.ready = ReadySubtask(
            key=one.key,
            row=one.row,
            devices=one.devices,
            since=now,
            workload_class=task.workload_class,
            memory_mib=one.spec.memory_mib or host_mib,
            gpu_memory_mib=gpu_mib,
            gpu_peak=None if peak is None else peak.at_least(known_mib),
        )

    def _withdraw(self, event: m.TaskWithdrawn) -> None:
        task = self.tasks.get(event.task_id)
        if task is not None and task.attempt == event.attempt:
            self._end(task, TaskOutcome.CANCELLED, event.why or "it was withdrawn", event.now)

    def _drain(self, event: m.DrainAsked) -> None:
        self.draining = True
        self.finishing = self.finishing or event.after_step
        for task in list(self.tasks.values()):
            if not task.begun:
                self._return(task, event.now)
            elif self.finishing:
                self._yield(task, event.now)

    def _return(self, task: NodeTask, now: float) -> None:
        self._end(task, TaskOutcome.GIVEN_BACK, f"node {self.machine} is draining", now)

    def _yield(self, task: NodeTask, now: float) -> None:
        """Its steps that run may end; nothing of it starts any more."""
        if task.ending is None and not task.running:
            self._return(task, now)

    def _fail(
        self, task: NodeTask, one: PlacedSubtask, by: SubtaskHappening, now: float, why: str
    ) -> None:
        one.life.follow(by, SubtaskState.FAILED, now, why)
        message = f"subtask {one.spec.name!r} failed on node {self.machine}: {why}"
        self._end(task, TaskOutcome.FAILED, message, now)

    def _end(self, task: NodeTask, outcome: TaskOutcome, message: str, now: float) -> None:
        """Begin to end it; it is over when none of its runs remains. The first reason counts."""
        if task.ending is None:
            task.ending, task.message = outcome, message
            for one in task.subtasks.values():
                if one.life.take(SubtaskHappening.TASK_ENDED, now, message):
                    self._unready(one)
            for run in task.running:
                self._stop(run, RunOutcome.STOPPED, message)
        self._settle(task)

    def _settle(self, task: NodeTask) -> None:
        if task.ending is None or task.running:
            return
        del self.tasks[task.spec.task_id]
        self._report_end(task, task.ending, task.message)

    def _report_end(self, task: NodeTask, outcome: TaskOutcome, message: str) -> None:
        self._commands.append(
            m.EndTask(
                task_id=task.spec.task_id,
                attempt=task.attempt,
                outcome=outcome,
                message=message,
                timings=tuple(task.timings),
            )
        )

    # --- runs ---------------------------------------------------------------------------------

    def _unready(self, one: PlacedSubtask) -> None:
        one.ready = None
        self._ready.discard(one.key)

    def _start(self, start: StartDecision, now: float, profile: bool) -> None:
        ready = self._ready[start.key]
        task = self.tasks[start.key.task_id]
        one = task.subtasks[start.key.subtask]
        self._last_run += 1
        on_gpu = start.device is Device.GPU
        run = Run(
            run=self._last_run,
            key=start.key,
            row=one.row,
            device=start.device,
            number=start.number,
            ready_at_s=ready.since,
            started_at_s=now,
            expected_s=self.estimates.run_s(one.row, start.device),
            memory_mib=feasibility.host_need_mib(ready, self.estimates),
            gpu_memory_mib=feasibility.gpu_need_mib(ready, self.estimates) if on_gpu else 0.0,
            gpu_peak=feasibility.gpu_need_peak(ready, self.estimates) if on_gpu else certain(0.0),
            deadline=now + one.spec.timeout_s,
            profile=profile,
            sm=float(self.estimates.gpu_features(one.row)[_SM]) if on_gpu else 0.0,
            placed_by=start.placed_by,
            fallback=start.fallback,
        )
        self.resources.take(run)
        self._unready(one)
        one.run = run
        one.runs += 1
        why = f"on {start.device.value} {start.number}"
        one.life.take(SubtaskHappening.STARTED, now, why)
        self._commands.append(
            m.StartSubtask(
                key=start.key,
                run=run.run,
                attempt=task.attempt,
                device=start.device,
                number=start.number,
                memory_limit_mib=one.spec.memory_mib,
                timeout_s=one.spec.timeout_s,
                profile=profile,
            )
        )

    def _stop(self, run: Run, outcome: RunOutcome, why: str) -> None:
        if run.stop is None:
            run.stop = outcome
            self._commands.append(m.StopSubtask(key=run.key, run=run.run, why=why))

    def _time_out(self, now: float) -> None:
        for run in self.resources.runs:
            if run.stop is None and now >= run.deadline:
                if now - run.deadline > _LATE_S and not run.excused:
                    # This process slept, and the run may have ended meanwhile, unread.
                    run.deadline, run.excused = now + _LATE_S, True
                    continue
                limit_s = run.deadline - run.started_at_s
                self._stop(run, RunOutcome.TIMED_OUT, f"longer than its limit of {limit_s:g} s")

    def _find(self, key: SubtaskKey, run: int) -> tuple[NodeTask, PlacedSubtask] | None:
        """The subtask of this run, if the run is known and not over."""
        task = self.tasks.get(key.task_id)
        one = task.subtasks.get(key.subtask) if task else None
        if task is None or one is None or one.run is None or one.run.run != run:
            return None
        return task, one

    def _profiled(self, event: m.SubtaskProfiled) -> None:
        found = self._find(event.key, event.run)
        if found is not None:
            run = found[1].run
            assert run is not None
            run.profile, run.cells = False, event.cells
            self.estimates.observe_cells(found[1].row, event.cells)

    def _ended(self, event: m.SubtaskEnded) -> None:
        found = self._find(event.key, event.run)
        if found is None:
            return
        task, one = found
        run = one.run
        assert run is not None
        outcome, message = event.outcome, event.message
        if run.stop is not None and outcome is not RunOutcome.DONE:
            outcome = run.stop
        if outcome is RunOutcome.TIMED_OUT:
            message = f"it ran longer than its limit of {one.spec.timeout_s:g} s and was stopped"
        self.resources.release(run, event.now)
        one.run = None
        timing = self._timing(run, event, outcome, message)
        task.timings.append(timing)
        if outcome is RunOutcome.DONE:
            took = (timing.ran_s, timing.memory_mib, timing.gpu_memory_mib)
            self.estimates.observe_run(run.row, run.device, *took, timing.co_runners)
        elif outcome is RunOutcome.OUT_OF_GPU_MEMORY and run.device is Device.GPU:
            self.estimates.observe_out_of_gpu_memory(
                run.row, max(run.gpu_memory_mib, event.gpu_memory_mib)
            )
        alone = outcome is RunOutcome.DONE and run.device is Device.GPU and not run.co_runner_s
        gpu_use = event.gpu_use if alone else ()
        if gpu_use:
            self.estimates.observe_gpu_use(run.row, gpu_use)
        self._commands.append(
            m.ReportSubtask(
                task_id=task.spec.task_id, attempt=task.attempt, timing=timing, gpu_use=gpu_use
            )
        )
        self._next_state(task, one, run, outcome, message, event.now)
        self._rank(task)

    def _timing(
        self, run: Run, event: m.SubtaskEnded, outcome: RunOutcome, message: str
    ) -> m.SubtaskTiming:
        return m.SubtaskTiming(
            key=run.key,
            row=run.row,
            device=run.device,
            number=run.number,
            run=run.run,
            outcome=outcome,
            ready_at_s=run.ready_at_s,
            started_at_s=run.started_at_s,
            # The clock may be set back, and a master always refuses negative values.
            waited_s=max(0.0, run.started_at_s - run.ready_at_s),
            ran_s=max(0.0, event.now - run.started_at_s) if event.ran_s is None else event.ran_s,
            memory_mib=event.memory_mib,
            gpu_memory_mib=event.gpu_memory_mib,
            gpu_memory_reserved_mib=run.gpu_memory_mib,
            co_runners=run.co_runners(event.now),
            message=message,
            placed_by=run.placed_by,
            fallback=run.fallback,
            cells=run.cells,
        )

    def _next_state(
        self,
        task: NodeTask,
        one: PlacedSubtask,
        run: Run,
        outcome: RunOutcome,
        message: str,
        now: float,
    ) -> None:
        failed, done = SubtaskHappening.RUN_FAILED, outcome is RunOutcome.DONE
        if done:
            one.life.take(SubtaskHappening.RETURNED, now, "it returned")
        elif task.ending is not None:
            one.life.take(SubtaskHappening.RUN_STOPPED, now, message)
        if task.ending is not None:
            self._settle(task)
            return
        if done:
            self._release_followers(task, now)
            if all(other.state is SubtaskState.DONE for other in task.subtasks.values()):
                self._end(task, TaskOutcome.DONE, "", now)
        elif outcome is RunOutcome.OUT_OF_GPU_MEMORY and run.device is Device.GPU:
            self._retry_with_memory(task, one, run, message, now)
        elif outcome is RunOutcome.NOT_IMPORTABLE:
            self._fail(task, one, failed, now, f"it cannot be imported: {message}")
        elif one.runs < one.spec.attempts:
            self._make_ready(task, one, failed, now, f"run {one.runs} of it: {outcome.value}")
        else:
            times = f" ({one.runs} times)" if one.runs > 1 else ""
            why = f"{outcome.value}{times}: {message}".rstrip(": ")
            self._fail(task, one, failed, now, why)
        if self.finishing:
            self._yield(task, now)

    def _retry_with_memory(
        self, task: NodeTask, one: PlacedSubtask, run: Run, message: str, now: float
    ) -> None:
        """Try again with half as much memory more; then on a core, or not at all."""
        one.out_of_gpu_memory += 1
        if one.out_of_gpu_memory == 1:
            one.gpu_need_mib = run.gpu_memory_mib * OUT_OF_MEMORY_FACTOR
        else:
            one.devices = one.devices & {Device.CPU}
        why = f"out of device memory: {message}".rstrip(": ")
        self._make_ready(task, one, SubtaskHappening.RUN_FAILED, now, why)
