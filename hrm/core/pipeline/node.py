"""The node's core for pipeline tasks: which subtask runs where, and when. Sans-IO.

Tasks arrive whole. Their subtasks become ready as what they come after ends; a ``NodePolicy`` says
which of the ready ones start on which core or GPU, and whatever it says is held against
``feasible.refusal`` before anything starts. Before the policy is asked, two go first:

- a row of which fewer than two metrics were measured, one at a time on each device, so that the
  estimates learn of it (section 3.1; the run itself is the profile, so no work is lost);
- who has waited 5 times its predicted run time (section 3.4), and at least ``starvation_floor_s``:
  under a long backlog everybody waits, and first come first served is then no cure. What such a
  subtask needs and cannot have yet is kept free for it.

The core never knows how long a run will take: it hears of ends (``SubtaskEnded``) and of the clock
(``ClockTicked``), and tells an interpreter what to start and stop. The agent and the simulator are
its two interpreters.

GPUs asked for from outside (``GpuAsked``) stand in the same queue, under the same rules.

Source: LDWP + IAWP, sections 2.1, 3.4 and algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hrm.core.pipeline import feasible
from hrm.core.pipeline import node_messages as m
from hrm.core.pipeline.feasible import Limits
from hrm.core.pipeline.load import node_load
from hrm.core.pipeline.model import (
    CO_RUN_FEATURES,
    Device,
    LearningEstimates,
    NodePolicy,
    NodeView,
    PipelineSpec,
    ReadySubtask,
    Start,
    SubtaskKey,
    SubtaskSpec,
    TaskId,
    TaskSpec,
    row_of,
)
from hrm.core.pipeline.node_messages import RunOutcome, TaskOutcome
from hrm.core.pipeline.room import Room
from hrm.core.pipeline.subtasks import PlacedSubtask, PlacedTask, Run, SubtaskState

__all__ = ["NodeBounds", "PipelineNode"]

_SM = CO_RUN_FEATURES.index("sm")
_PROFILED_CELLS = 2
_OUT_OF_MEMORY_FACTOR = 1.5
_CLAIM = "gpu"
_REFUSALS_KEPT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBounds:
    """Bounds of a node's core; the daemon fills them from its settings."""

    tasks_limit: int = 1_000
    claims_limit: int = 256
    starvation_factor: float = 5.0
    starvation_floor_s: float = 30.0
    profiling: bool = True


class PipelineNode:
    """``handle(event) -> commands``. ``load`` is what the node reports, ``view`` what policies see.

    Invariants (``hrm.core.pipeline.invariants``): every run is booked once; memory is never
    promised twice; each task ends once.
    """

    def __init__(
        self,
        capacity: m.NodeCapacity,
        policy: NodePolicy,
        estimates: LearningEstimates,
        *,
        bounds: NodeBounds | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.capacity = capacity
        self.policy = policy
        self.estimates = estimates
        self.bounds = bounds or NodeBounds()
        self.room = Room(capacity, estimates, limits or Limits())
        self.tasks: dict[TaskId, PlacedTask] = {}
        self.draining = False
        self.refusals: list[str] = []
        """The latest things that the policy proposed and may not."""
        self.refused = 0
        self._ready: dict[SubtaskKey, ReadySubtask] = {}
        self._last_run = 0
        self._commands: list[m.NodeCommand] = []

    def handle(self, event: m.NodeEvent) -> list[m.NodeCommand]:
        """Take the event in and say what is to be done, in order."""
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
                self.room.sampled(event)
            case m.ClockTicked():
                self._time_out(event.now)
            case m.DrainAsked():
                self._drain(event)
            case m.GpuAsked():
                self._ask(event)
            case m.GpuReleased():
                self._released(event)
        self._dispatch(event.now)
        return commands

    # --- what others ask ----------------------------------------------------------------------

    def load(self, now: float) -> m.NodeLoad:
        """What the node reports of itself."""
        return node_load(self.room, self.tasks.values(), now)

    def view(self, now: float) -> NodeView:
        """What its policy would see now."""
        return self.room.view(now, tuple(self._ready.values()))

    def next_deadline(self) -> float:
        """When ``ClockTicked`` is due; inf: not before the next event."""
        return min((run.deadline for run in self.room.runs if run.stop is None), default=math.inf)

    def states(self, task_id: TaskId) -> dict[str, SubtaskState]:
        """Of each subtask of a task that is here; empty: it is not."""
        task = self.tasks.get(task_id)
        return {name: one.state for name, one in task.subtasks.items()} if task else {}

    # --- tasks --------------------------------------------------------------------------------

    def _place(self, event: m.TaskPlaced) -> None:
        spec, known = event.task, self.tasks.get(event.task.task_id)
        if known is not None and known.attempt == event.attempt:
            return
        task = PlacedTask(spec, event.attempt)
        if known is not None:
            self._give_back(task, f"attempt {known.attempt} of it is still here")
        elif self.draining:
            self._give_back(task, f"node {self.capacity.name} is draining")
        elif len(self.tasks) >= self.bounds.tasks_limit:
            self._give_back(task, f"node {self.capacity.name} has {len(self.tasks)} tasks already")
        else:
            self._take_in(task, event.now)

    def _give_back(self, task: PlacedTask, why: str) -> None:
        self._say_end(task, TaskOutcome.GIVEN_BACK, why)

    def _take_in(self, task: PlacedTask, now: float) -> None:
        """Make its subtasks, and refuse the whole if one of them can never run here."""
        spec = task.spec
        for one in spec.pipeline.subtasks:
            row = row_of(one, spec.size_mb, self.capacity.gpu_model)
            self.estimates.declare(row, one)
            key = SubtaskKey(spec.task_id, one.name)
            task.subtasks[one.name] = PlacedSubtask(key, one, row)
            why = feasible.never_fits(one, self.capacity, self.room.limits)
            if why:
                self._say_end(task, TaskOutcome.FAILED, f"node {self.capacity.name}: {why}")
                return
        self.tasks[spec.task_id] = task
        self._release_followers(task, now)

    def _release_followers(self, task: PlacedTask, now: float) -> None:
        """What has all its inputs is ready."""
        done = {n for n, one in task.subtasks.items() if one.state is SubtaskState.DONE}
        for one in task.subtasks.values():
            if one.state is SubtaskState.PENDING and done.issuperset(one.spec.after):
                self._make_ready(task, one, now, "its inputs are there")

    def _make_ready(self, task: PlacedTask, one: PlacedSubtask, now: float, why: str) -> None:
        """It may start now. What it is charged is settled here: an estimate that is more than there
        is may be wrong, and keeps it from no empty node; a need that is known to be more does."""
        capacity, estimates = self.capacity, self.estimates
        room_mib = max((gpu.memory_mib for gpu in capacity.gpus), default=0.0)
        room_mib *= self.room.limits.gpu_memory
        known_mib = max(one.gpu_need_mib, one.spec.gpu_memory_mib)
        if not capacity.gpus or known_mib > room_mib:
            one.devices = one.devices & {Device.CPU}
        if not capacity.cores:
            one.devices = one.devices & {Device.GPU}
        one.life.move(SubtaskState.READY, now, why)
        if not one.devices:
            self._fail(task, one, now, f"no device of the node suffices ({why})")
            return
        rows = {one.row._replace(gpu_model=gpu.model) for gpu in capacity.gpus}
        estimated_mib = max((estimates.gpu_memory_mib(row) for row in rows), default=0.0)
        host_mib = min(capacity.memory_mib, estimates.memory_mib(one.row))
        one.ready = self._ready[one.key] = ReadySubtask(
            key=one.key,
            row=one.row,
            devices=one.devices,
            since=now,
            workload=task.workload,
            memory_mib=one.spec.memory_mib or host_mib,
            gpu_memory_mib=max(known_mib, min(room_mib, estimated_mib)),
        )

    def _withdraw(self, event: m.TaskWithdrawn) -> None:
        task = self.tasks.get(event.task_id)
        if task is not None and task.attempt == event.attempt:
            self._end(
                task, TaskOutcome.CANCELLED, event.why or "nobody wants it any more", event.now
            )

    def _drain(self, event: m.DrainAsked) -> None:
        self.draining = event.draining
        if not event.draining:
            return
        why = f"node {self.capacity.name} is draining"
        for task in list(self.tasks.values()):
            if not task.claim and (event.begun or not task.begun):
                self._end(task, TaskOutcome.GIVEN_BACK, why, event.now)

    def _fail(self, task: PlacedTask, one: PlacedSubtask, now: float, why: str) -> None:
        one.life.move(SubtaskState.FAILED, now, why)
        message = f"subtask {one.spec.name!r} failed on node {self.capacity.name}: {why}"
        self._end(task, TaskOutcome.FAILED, message, now)

    def _end(self, task: PlacedTask, outcome: TaskOutcome, message: str, now: float) -> None:
        """Begin to end it; it is over when none of its runs is left. The first reason stays."""
        if task.ending is None:
            task.ending, task.message = outcome, message
            for one in task.subtasks.values():
                if one.state in (SubtaskState.PENDING, SubtaskState.READY):
                    self._unready(one)
                    one.life.move(SubtaskState.DROPPED, now, message)
            for run in task.running:
                self._stop(run, RunOutcome.STOPPED, message)
        self._settle(task)

    def _settle(self, task: PlacedTask) -> None:
        if task.ending is None or task.running:
            return
        del self.tasks[task.spec.task_id]
        self._say_end(task, task.ending, task.message)

    def _say_end(self, task: PlacedTask, outcome: TaskOutcome, message: str) -> None:
        if task.claim:
            if outcome is TaskOutcome.FAILED:
                self._commands.append(m.RefuseGpu(holder=task.claim, why=message))
            return
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
        self._ready.pop(one.key, None)

    def _start(self, start: Start, now: float, *, profile: bool = False) -> None:
        ready = self._ready[start.key]
        task = self.tasks[start.key.task_id]
        one = task.subtasks[start.key.subtask]
        self._last_run += 1
        row, gpu_need_mib, sm = one.row, 0.0, 0.0
        if start.device is Device.GPU:
            gpu = self.room.cards[start.number].view(now, self.estimates)
            row = feasible.row_on(one.row, gpu)
            self.estimates.declare(row, one.spec)
            sm = float(self.estimates.gpu_features(row)[_SM])
            gpu_need_mib = feasible.gpu_need_mib(gpu, one.row, self.estimates, ready.gpu_memory_mib)
        run = Run(
            run=self._last_run,
            key=start.key,
            row=row,
            device=start.device,
            number=start.number,
            ready_at=ready.since,
            started_at=now,
            expected_s=self.estimates.run_s(row, start.device),
            memory_mib=feasible.host_need_mib(ready, self.estimates),
            gpu_memory_mib=gpu_need_mib,
            deadline=math.inf if task.claim else now + one.spec.timeout_s,
            profile=profile,
            sm=sm,
        )
        self.room.take(run)
        self._unready(one)
        one.run = run
        one.runs += 1
        one.life.move(SubtaskState.RUNNING, now, f"on {start.device.value} {start.number}")
        if task.claim:
            self._commands.append(m.GrantGpu(holder=task.claim, number=start.number))
            return
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
        for run in self.room.runs:
            if run.stop is None and now >= run.deadline:
                limit_s = run.deadline - run.started_at
                self._stop(run, RunOutcome.TIMED_OUT, f"longer than its limit of {limit_s:g} s")

    def _find(self, key: SubtaskKey, run: int) -> tuple[PlacedTask, PlacedSubtask] | None:
        """The subtask that this run is of, if the run is known and not over."""
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
            run.profile = False
            self.estimates.observe_cells(run.row, event.cells)

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
        self.room.release(run, event.now)
        one.run = None
        timing = self._timing(run, event, outcome, message)
        task.timings.append(timing)
        if outcome is RunOutcome.DONE:
            self._learn(run, timing)
        if not task.claim:
            report = m.ReportSubtask(task_id=task.spec.task_id, attempt=task.attempt, timing=timing)
            self._commands.append(report)
        self._next_state(task, one, run, outcome, message, event.now)

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
            ready_at=run.ready_at,
            started_at=run.started_at,
            waited_s=run.started_at - run.ready_at,
            ran_s=event.now - run.started_at if event.ran_s is None else event.ran_s,
            memory_mib=event.memory_mib,
            gpu_memory_mib=event.gpu_memory_mib,
            co_runners=run.co_runners(event.now),
            message=message,
        )

    def _learn(self, run: Run, timing: m.SubtaskTiming) -> None:
        self.estimates.observe_run(
            run.row,
            run.device,
            timing.ran_s,
            timing.memory_mib,
            timing.gpu_memory_mib,
            timing.co_runners,
        )

    def _next_state(
        self,
        task: PlacedTask,
        one: PlacedSubtask,
        run: Run,
        outcome: RunOutcome,
        message: str,
        now: float,
    ) -> None:
        if task.ending is not None:
            done = outcome is RunOutcome.DONE
            one.life.move(SubtaskState.DONE if done else SubtaskState.DROPPED, now, message)
            self._settle(task)
        elif outcome is RunOutcome.DONE:
            one.life.move(SubtaskState.DONE, now, "it returned")
            self._release_followers(task, now)
            if all(other.state is SubtaskState.DONE for other in task.subtasks.values()):
                self._end(task, TaskOutcome.DONE, "", now)
        elif outcome is RunOutcome.OUT_OF_GPU_MEMORY:
            self._retry_with_memory(task, one, run, message, now)
        elif outcome is RunOutcome.NOT_IMPORTABLE:
            self._fail(task, one, now, f"it cannot be imported: {message}")
        elif one.runs < one.spec.attempts:
            self._make_ready(task, one, now, f"run {one.runs} of it: {outcome.value}")
        else:
            times = f" ({one.runs} times)" if one.runs > 1 else ""
            self._fail(task, one, now, f"{outcome.value}{times}: {message}".rstrip(": "))

    def _retry_with_memory(
        self, task: PlacedTask, one: PlacedSubtask, run: Run, message: str, now: float
    ) -> None:
        """Once more with half as much memory again; then on a core, or not at all."""
        one.out_of_gpu_memory += 1
        if one.out_of_gpu_memory == 1:
            one.gpu_need_mib = run.gpu_memory_mib * _OUT_OF_MEMORY_FACTOR
        else:
            one.devices = one.devices & {Device.CPU}
        self._make_ready(task, one, now, f"out of device memory: {message}".rstrip(": "))

    # --- claims from outside ------------------------------------------------------------------

    def _ask(self, event: m.GpuAsked) -> None:
        task_id = _claim_id(event.holder)
        if task_id in self.tasks:
            return
        if sum(bool(task.claim) for task in self.tasks.values()) >= self.bounds.claims_limit:
            why = f"{self.bounds.claims_limit} claims on GPUs are here already; try again later"
            self._commands.append(m.RefuseGpu(holder=event.holder, why=why))
            return
        subtask = SubtaskSpec(
            name=_CLAIM,
            kind=event.kind,
            devices=frozenset({Device.GPU}),
            gpu_memory_mib=event.gpu_memory_mib,
            attempts=1,
        )
        pipeline = PipelineSpec(name=event.kind, reference="", subtasks=(subtask,))
        spec = TaskSpec(
            task_id=task_id,
            pipeline=pipeline,
            size_mb=event.size_mb,
            workload=event.workload,
            submitted_at=event.now,
        )
        self._take_in(PlacedTask(spec, 1, claim=event.holder), event.now)

    def _released(self, event: m.GpuReleased) -> None:
        task = self.tasks.get(_claim_id(event.holder))
        if task is None:
            return
        one = task.subtasks[_CLAIM]
        if one.run is None:
            self._end(task, TaskOutcome.CANCELLED, "the holder has gone", event.now)
            return
        ended = m.SubtaskEnded(now=event.now, key=one.key, run=one.run.run, outcome=RunOutcome.DONE)
        self._ended(ended)

    # --- dispatch -----------------------------------------------------------------------------

    def _dispatch(self, now: float) -> None:
        if not self._ready:
            return
        if self.bounds.profiling:
            self._start_profiles(now)
        held, memory_held = self._start_starved(now)
        if not self._ready:
            return
        view = self.room.view(now, tuple(self._ready.values()), held=held, memory_held=memory_held)
        for start in self.policy.dispatch(view):
            self._start_if_fits(start, now, held, memory_held)
        if self._ready and not self.room.runs:
            # A policy may wait for something that ends; where nothing runs, nothing will end.
            self._start_anything(now)

    def _start_if_fits(
        self, start: Start, now: float, held: frozenset[int], memory_held: bool
    ) -> None:
        ready = self._ready.get(start.key)
        if ready is None:
            why = "it is not ready"
        else:
            view = self.room.view(now, (), held=held, memory_held=memory_held)
            limits = self.room.limits
            why = feasible.refusal(view, ready, start.device, start.number, limits)
        if not why:
            self._start(start, now)
            return
        self.refused += 1
        del self.refusals[: len(self.refusals) + 1 - _REFUSALS_KEPT]
        self.refusals.append(
            f"{self.policy.name}: {start.key.subtask} of {start.key.task_id} on "
            f"{start.device.value} {start.number}: {why}"
        )

    def _places(self, ready: ReadySubtask) -> list[tuple[Device, int]]:
        """Where it could run were the node empty, the faster device first; GPUs emptiest first."""
        cards = self.room.cards.values()
        by_runs = sorted(cards, key=lambda card: (len(card.runs), card.card.index))
        gpus = [(Device.GPU, card.card.index) for card in by_runs]
        cores = [(Device.CPU, number) for number in range(self.capacity.cores)]
        seconds = self.estimates.run_s
        gpu_first = seconds(ready.row, Device.GPU) <= seconds(ready.row, Device.CPU)
        places = gpus + cores if gpu_first else cores + gpus
        return [place for place in places if place[0] in ready.devices]

    def _first_fit(
        self, ready: ReadySubtask, now: float, places: list[tuple[Device, int]]
    ) -> Start | None:
        view, limits = self.room.view(now, ()), self.room.limits
        for device, number in places:
            if not feasible.refusal(view, ready, device, number, limits):
                return Start(ready.key, device, number)
        return None

    def _start_profiles(self, now: float) -> None:
        """Little-known rows, each on the device of which least is known, one run a device."""
        profiling = {(run.device, run.number) for run in self.room.runs if run.profile}
        on_core = any(device is Device.CPU for device, _ in profiling)
        rows = {run.row for run in self.room.runs if run.profile}
        for ready in list(self._ready.values()):
            if ready.row in rows or self._is_claim(ready.key):
                continue
            if self.estimates.measured_cells(ready.row) >= _PROFILED_CELLS:
                continue
            places = [
                place
                for place in self._places(ready)
                if not (on_core if place[0] is Device.CPU else place in profiling)
            ]
            start = self._first_fit(ready, now, places)
            if start is not None:
                self._start(start, now, profile=True)
                rows.add(ready.row)
                profiling.add((start.device, start.number))
                on_core = on_core or start.device is Device.CPU

    def _is_claim(self, key: SubtaskKey) -> bool:
        return bool(self.tasks[key.task_id].claim)

    def _starving(self, ready: ReadySubtask, now: float) -> bool:
        run_s = min(self.estimates.run_s(ready.row, device) for device in ready.devices)
        bounds = self.bounds
        patience_s = max(bounds.starvation_floor_s, bounds.starvation_factor * run_s)
        return now - ready.since > patience_s

    def _start_starved(self, now: float) -> tuple[frozenset[int], bool]:
        """Start who has waited too long; for the first who cannot, keep a GPU or the memory."""
        starved = [ready for ready in self._ready.values() if self._starving(ready, now)]
        starved.sort(key=lambda ready: ready.since)
        for ready in starved:
            start = self._first_fit(ready, now, self._places(ready))
            if start is not None:
                self._start(start, now)
                continue
            if ready.memory_mib > self.room.memory_free_mib:
                return frozenset(), True
            gpus = [number for device, number in self._places(ready) if device is Device.GPU]
            return frozenset(gpus[:1]), False
        return frozenset(), False

    def _start_anything(self, now: float) -> None:
        for ready in list(self._ready.values()):
            start = self._first_fit(ready, now, self._places(ready))
            if start is not None:
                self._start(start, now)
                return


def _claim_id(holder: str) -> TaskId:
    return TaskId(f"gpu claim of {holder}")
