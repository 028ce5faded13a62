"""Tasks of pipelines: each ends once, of a whole placement; nothing is reported before it is on the
disk; steps run where a container holds capacity for them.

What is durable and what steps have run is recorded from the disk and the workers, not from the
cores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hrm.core.master.state import MasterState
from hrm.core.messages import events as e
from hrm.core.messages.hosted import SubmitToMaster
from hrm.core.vocabulary.feasibility import Column
from hrm.core.vocabulary.model import ContainerId, NodeName
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core import pipelines_core as w
from hrm.pipelines.core.cluster import PipelineCluster
from hrm.pipelines.core.model import Device, SubtaskKey, SubtaskSpec, TaskId, TaskSpec, row_of
from hrm.pipelines.core.node_messages import EndTask, StartSubtask, TaskOutcome
from hrm.pipelines.core.order import STRETCH
from hrm.pipelines.core.workload import Workload
from hrm.pipelines.core.workload_steps import FollowCommand, WorkloadStep

__all__ = ["PipelineChecks"]

_ROUNDING_S = 1e-6


class PipelineChecks:
    """``processes``: of the whole cluster, as the oracle records them."""

    def __init__(self, violated: Callable[[str], None], processes: Mapping[str, str]) -> None:
        self.checks = 0
        self._violated = violated
        self._processes = processes
        self._accepted: set[TaskId] = set()
        self._reported: dict[TaskId, TaskOutcome] = {}
        self._done: dict[tuple[str, TaskId, int], set[str]] = {}
        """Steps that a worker has run to their end, of a placement as numbered on the wire."""
        self._yielding: set[str] = set()
        self._recovering_until_s = 0.0
        self._recovered: set[str] = set()
        self._came_back: dict[TaskId, NodeName] = {}
        """Of tasks of earlier masters: the first worker that came back with each in time."""
        self._finished: set[TaskId] = set()
        self._placed: dict[TaskId, tuple[NodeName, int]] = {}
        self._waited: set[TaskId] = set()
        """Tasks that were in a queue when the core had last taken something in."""
        self._attempts_before = 0
        self._cores_max = 0
        self._divided = False
        """Have queues divided the cluster, at some time? Then workers may be kept of which a share
        was the reason."""

    def master_began(
        self, now: float, recovery_s: float, attempts_before: int, disk: Mapping[str, Any]
    ) -> None:
        self._recovered = {task_id for task_id, kept in disk.items() if kept.outcome is None}
        self._finished.clear()
        self._placed.clear()
        self._waited.clear()
        self._came_back.clear()
        self._recovering_until_s = now + recovery_s
        self._attempts_before = attempts_before

    def store_changed(self) -> None:
        """The disk has lost something: guarantees rest on what it has now."""
        self._accepted.clear()
        self._reported.clear()

    # --- workers --------------------------------------------------------------------------------

    def yielding(self, worker: str) -> None:
        self._yielding.add(worker)

    def step_began(
        self, worker: str, machine: str, start: StartSubtask, after: Sequence[str]
    ) -> None:
        """It holds capacity there, has not been ordered to end, and has the step's inputs."""
        self.checks += 1
        what = f"{worker} starts {start.key.subtask} of {start.key.task_id}"
        if self._processes.get(worker) != machine:
            self._violated(f"{what} on {machine}, where it does not run")
        if worker in self._yielding:
            self._violated(f"{what}, though it is to end")
        done = self._done.get((worker, start.key.task_id, start.attempt), set())
        if not done.issuperset(after):
            self._violated(f"{what}, and has done {sorted(done)} of {after} alone")

    def step_done(self, worker: str, key: SubtaskKey, attempt: int) -> None:
        self._done.setdefault((worker, key.task_id, attempt), set()).add(key.subtask)

    # --- the disk -------------------------------------------------------------------------------

    def accepted(self, task_id: TaskId, disk: Mapping[str, Any]) -> None:
        """A client is to know that its task is there."""
        self.checks += 1
        self._accepted.add(task_id)
        if task_id not in disk:
            self._violated(f"{task_id} is accepted, and is not on the disk")

    def reported(self, task_id: TaskId, outcome: TaskOutcome, disk: Mapping[str, Any]) -> None:
        """A client is to know how its task has ended."""
        before = self._reported.setdefault(task_id, outcome)
        if before is not outcome:
            self._violated(f"{task_id} was reported as {before.value}, and is {outcome.value}")
        if task_id not in disk or disk[task_id].outcome is None:
            self._violated(f"the end of {task_id} is reported before it is on the disk")

    def acknowledged(self, task_id: TaskId, disk: Mapping[str, Any], *, is_live: bool) -> None:
        """A worker may forget its task."""
        if not is_live and task_id in disk and disk[task_id].outcome is None:
            self._violated(f"the end of {task_id} is acknowledged before it is on the disk")

    def written(self, task_id: TaskId, before: TaskOutcome | None, outcome: TaskOutcome) -> None:
        if before is not None:
            self._violated(f"{task_id} was {before.value}, and ends again as {outcome.value}")

    # --- the master -----------------------------------------------------------------------------

    def joining(self, workloads: w.PipelinesCore, event: m.NodeJoined) -> None:
        """A worker is about to be taken in."""
        name = event.capacity.name
        workload = workloads.of_worker[ContainerId(name)]
        here = {x for x, _ in event.tasks}
        gone = [x for x, worker in self._came_back.items() if worker == name and x not in here]
        for task_id in gone:
            del self._came_back[task_id]
        for task_id, _ in event.tasks:
            is_old = task_id in self._recovered and task_id in workload.cluster.tasks
            if is_old and event.now < self._recovering_until_s and task_id not in self._placed:
                self._came_back.setdefault(task_id, name)

    def attempt_ended(self, name: NodeName, end: EndTask) -> None:
        is_back = self._came_back.get(end.task_id) == name
        if is_back and end.outcome not in (TaskOutcome.DONE, TaskOutcome.FAILED):
            del self._came_back[end.task_id]

    def decided(
        self,
        workloads: w.PipelinesCore,
        steps: Iterable[WorkloadStep],
        steps_of: Callable[[TaskId], set[str]],
        state: MasterState,
    ) -> None:
        """After whatever the core has taken in."""
        self.checks += 1
        self._count_cores(state)
        steps = tuple(steps)
        for step in steps:
            if isinstance(step, FollowCommand):
                self._commanded(workloads, step.command, steps_of)
            elif isinstance(step, SubmitToMaster):
                self._requested(workloads, step.event, state)
        of_worker: dict[ContainerId, Workload] = {}
        for workload in workloads.live.values():
            self._placed_once(workloads, workload)
            of_worker |= dict.fromkeys(workload.workers, workload)
            rows = workload.cluster.table.nodes
            for name in [x for x in rows if ContainerId(x) not in workload.workers]:
                self._violated(f"{name} is a node of {workload.application_id}, and no worker")
        self._in_order(workloads, steps)
        if of_worker != workloads.of_worker:
            self._violated("the workers of all workloads are not those of each")

    def _count_cores(self, state: MasterState) -> None:
        """The most that there were: what nodes hold that are lost is not known at once."""
        units = {state.state.pool[row]: row for row in state.state.rows.values()}
        cores = int(state.state.total[list(units.values()), Column.VCORES].sum())
        self._cores_max = max(self._cores_max, cores)

    def _requested(
        self, workloads: w.PipelinesCore, event: e.MasterEvent, state: MasterState
    ) -> None:
        """No more workers than it may have. Where no queues divide the cluster, those on more than
        half of it yield: at least one application more may come."""
        if not isinstance(event, e.ContainersRequested):
            return
        workload = workloads.live.get(event.application_id)
        if workload is None or event.application_id not in state.live:
            return  # what has been killed requests in vain, until it knows
        has = [x for x in workload.workers.values() if not (x.leaves or x.released)]
        if len(has) > workloads.bounds.workers_max:
            self._violated(f"{workload.application_id} has, or requests, {len(has)} workers")
        self._divided = self._divided or state.queues.governs
        if self._divided:
            return
        kept = sum(not x.yields and x.requested_at_s < math.inf for x in has)
        vcores = workload.key.size.vcores
        if kept > 1 and kept * vcores > self._cores_max / 2:
            self._violated(
                f"{workload.application_id} keeps {kept} workers of {vcores} cores whoever comes, "
                f"of {self._cores_max}"
            )

    def _placed_once(self, workloads: w.PipelinesCore, workload: Workload) -> None:
        """Each live task is in one place of one workload."""
        cluster = workload.cluster
        places = Counter([*cluster.queue, *cluster.stranded, *cluster.away])
        for name, row in cluster.table.nodes.items():
            places.update(list(row.placed))
            for task_id in row.placed:
                record = cluster.tasks.get(task_id)
                if record is None or record.node != name:
                    self._violated(f"{task_id} is at {name}, by one record of two")
        if places != Counter(list(cluster.tasks)):
            self._violated(f"{dict(places)}: tasks of {workload.application_id} in no place or two")
        for task_id in cluster.tasks:
            if workloads.of_task.get(task_id) is not workload:
                self._violated(f"{task_id} is of {workload.application_id}, which is not its own")

    def _in_order(self, workloads: w.PipelinesCore, steps: Iterable[WorkloadStep]) -> None:
        """Nothing is placed before a task of the same workload that was waiting, waits still, and
        is due first."""
        commands = [step.command for step in steps if isinstance(step, FollowCommand)]
        for placed in [one.task for one in commands if isinstance(one, m.PlaceTask)]:
            workload = workloads.of_task.get(placed.task_id)
            if workload is None:
                continue
            cluster = workload.cluster
            placed_due_s = _due_s(cluster, placed)
            for task_id in sorted(self._waited.intersection(cluster.queue)):
                due_s = _due_s(cluster, cluster.tasks[task_id].spec)
                if due_s < placed_due_s - _ROUNDING_S:
                    self._violated(
                        f"{placed.task_id} is placed, due at {placed_due_s:.3f}, and {task_id} "
                        f"waits, due at {due_s:.3f}"
                    )
        self._waited = {x for one in workloads.live.values() for x in one.cluster.queue}

    def _commanded(
        self,
        workloads: w.PipelinesCore,
        command: m.ClusterCommand,
        steps_of: Callable[[TaskId], set[str]],
    ) -> None:
        match command:
            case m.PlaceTask():
                task_id = command.task.task_id
                if task_id in self._placed:
                    self._violated(f"{task_id} is placed twice: {self._placed[task_id]}, {command}")
                self._placed[task_id] = command.node, command.attempt
                workload = workloads.of_worker[ContainerId(command.node)]
                row = workload.cluster.table.nodes.get(command.node)
                if row is not None and len(row.placed) > workload.key.size.slots:
                    self._violated(f"{command.node} gets one task more than it takes")
                back = self._came_back.get(task_id)
                alive = back is not None and any(
                    back in x.cluster.table.nodes for x in workloads.live.values()
                )
                if alive:
                    self._violated(f"{task_id} is placed at {command.node}, though {back} has it")
            case m.ReportPlacement(node=None):
                self._placed.pop(command.task_id, None)
                self._came_back.pop(command.task_id, None)
                self._recovered.discard(command.task_id)  # an older placement counts no more
            case m.FinishTask():
                self._finish(command, steps_of(command.task_id))

    def _finish(self, command: m.FinishTask, steps: set[str]) -> None:
        task_id = command.task_id
        self._placed.pop(task_id, None)
        self._came_back.pop(task_id, None)
        if task_id in self._finished:
            self._violated(f"{task_id} ends twice")
        self._finished.add(task_id)
        if command.outcome is not TaskOutcome.DONE:
            if not command.message:
                self._violated(f"{task_id} is {command.outcome.value} for no reason")
            return
        attempt = command.attempt + self._attempts_before
        done = self._done.get((command.node or "", task_id, attempt), set())
        if done != steps:
            self._violated(
                f"{task_id} is done, of attempt {attempt} at {command.node}, where "
                f"{sorted(done)} of {sorted(steps)} have run"
            )


def _due_s(cluster: PipelineCluster, task: TaskSpec) -> float:
    """By what is known of its steps now, on the workers that are there."""
    left_s = sum(_fastest_s(cluster, one, task.size_mb) for one in task.pipeline.subtasks)
    return task.submitted_at_s + STRETCH * left_s


def _fastest_s(cluster: PipelineCluster, step: SubtaskSpec, size_mb: float) -> float:
    measured_s = cluster.estimates.measured_s
    here: list[float | None] = []
    for node in cluster.table.nodes.values():
        row = row_of(step, size_mb, node.capacity.gpu_model)
        if Device.CPU in step.devices and node.capacity.cores:
            here.append(measured_s(row, Device.CPU))
        if Device.GPU in step.devices and node.capacity.gpus:
            here.append(measured_s(row, Device.GPU))
    ever = [
        measured_s(row_of(step, size_mb, model), device)
        for model in cluster.estimates.measured_models(step.kind)
        for device in step.devices
    ]
    for times in (here, ever):
        known = [seconds for seconds in times if seconds is not None]
        if known:
            return min(known)
    return 0.0
