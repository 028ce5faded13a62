"""Clients that submit tasks of pipelines, cancel some, leave and come back; and what must have come
of their tasks.

A client repeats a call until it gets a reply. A task has its client's id, so that repeating is
harmless.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId, ResourceUnit, container_id_of
from hrm.errors import AlreadyExists, DiskFull, HrmError, LimitReached, NotFound, Unavailable
from hrm.pipelines.core.model import SubtaskKey, TaskSpec
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.pipelines.core.task_record import TaskRecord
from hrm.pipelines.core.workload import WorkloadKey
from hrm.sim.actors.pipeline_worker import PipelineWorker
from hrm.sim.faults.pipeline_plan import PipelineClientPlan, PipelineTaskPlan
from hrm.sim.faults.pipelines import could_serve
from hrm.sim.faults.plan import TimedFault, source

if TYPE_CHECKING:
    from hrm.sim.world import World

__all__ = ["PipelineClients"]

_POLL_S = 1.0
_RETRY_S = 0.4
_MB_PER_S = 20.0
"""Input of a task by the time of its steps: those of about the same size take about as long."""
_AGAIN = (AlreadyExists, DiskFull, LimitReached, Unavailable)
_CRASHES = ("executor-crash", "launch-failure", "bad-node", "worker-mute", "node-crash")
_SILENCES = (
    *("partition", "loss", "delay", "sleep", "revocation", "driver-cut", "hang"),
    *("master-crash", "agent-crash", "worker-mute"),
)
_STORES = ("lost-store", "old-store")


class PipelineClients:
    """``killed``: workloads that were killed. ``refused``: those that had a request refused."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = source(world.plan.seed, "pipeline-clients")
        self.killed: set[ApplicationId] = set()
        self.refused_by: set[str] = set()
        self.clients = [_PipelineClient(self, plan) for plan in world.plan.pipelines]
        self._tasks = {x.task_id: (c, x) for c in world.plan.pipelines for x in c.tasks}

    # --- what steps do --------------------------------------------------------------------------

    def run_of(self, key: SubtaskKey) -> float:
        client, task = self._tasks[key.task_id]
        names = [x.name for x in client.pipeline.subtasks]
        return task.run_s[names.index(key.subtask)]

    def fails(self, key: SubtaskKey) -> bool:
        client, task = self._tasks[key.task_id]
        return task.fails and key.subtask == client.pipeline.subtasks[-1].name

    def workers(self) -> list[PipelineWorker]:
        """Those that live, on whatever machine."""
        processes = (x for machine in self.world.machines for x in machine.processes.values())
        return [process.worker for process in processes if process.worker is not None]

    # --- faults ---------------------------------------------------------------------------------

    def kill(self, fault: TimedFault) -> bool:
        """A user kills the application of a workload."""
        actor = self.world.master.pipelines
        live = [] if actor is None else [x for x in actor.workloads.live.values() if x.started]
        if not live:
            return False
        app_id = live[int(fault.pick * len(live))].application_id
        self.killed.add(app_id)
        self.world.ask_master(e.KillRequested(now=0.0, call_id=0, application_id=app_id))
        return True

    def could_do_with(self, units: Sequence[ResourceUnit], fewer: Sequence[ResourceUnit]) -> bool:
        """Do the workers that fit ``units`` fit ``fewer``, too?"""
        sizes = [x.size for x in self.world.plan.pipelines]
        return all(could_serve(x, fewer) for x in sizes if could_serve(x, units))

    def refused(
        self, app_id: ApplicationId, units: Sequence[ResourceUnit], executor_ids: Sequence[str]
    ) -> tuple[str, bool]:
        """The client whose workers cannot be had, empty if none; could these units run them?"""
        actor = self.world.master.pipelines
        workload = None if actor is None else actor.workloads.live.get(app_id)
        if workload is None:
            return "", False
        ids = (container_id_of(app_id, x) for x in executor_ids)
        workers = [x for container_id in ids if (x := workload.workers.get(container_id))]
        if workload.key.size.gpu_memory_mib and not any(x.on_gpu for x in workers):
            return "", False  # they were to do without a GPU; others wait for one
        self.refused_by.add(workload.key.pipeline)
        return workload.key.pipeline, could_serve(workload.key.size, units)

    def store_changed(self) -> None:
        """The disk has lost something, perhaps tasks that were accepted."""
        for client in self.clients:
            client.store_changed()
        self.world.oracle.pipelines.store_changed()

    # --- the end --------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """What is not done yet."""
        left = [x for client in self.clients for x in client.left()]
        actor = self.world.master.pipelines
        if left or actor is None:
            return left
        left = [f"workload {x} is live" for x in actor.workloads.live]
        left += [f"{x} is still a worker" for x in actor.workloads.of_worker]
        return left + [f"the stream of {x} is open" for x in actor.streams]

    def outcomes(self) -> dict[str, str]:
        return {task: words for client in self.clients for task, words in client.outcomes.items()}

    def check_outcomes(self) -> None:
        """Each task has ended as it may."""
        for client in self.clients:
            for task in client.plan.tasks:
                self._check(client.plan, task, client.ends[task.task_id], client.cancelled)

    def _check(
        self,
        plan: PipelineClientPlan,
        task: PipelineTaskPlan,
        end: TaskRecord | HrmError,
        cancelled: set[str],
    ) -> None:
        if isinstance(end, HrmError):
            is_excused = self._may_be_refused(end)
            what = f"is refused: {end.message}"
        elif end.outcome is TaskOutcome.DONE:
            is_excused, what = not task.fails, "is done, though its last step never returns"
        elif end.outcome is TaskOutcome.CANCELLED:
            is_excused = task.task_id in cancelled
            is_excused |= any(x in end.message for x in self.killed)
            is_excused |= "has ended" in end.message and self._happened(*_STORES)
            what = f"is cancelled: {end.message}"
        else:
            is_excused = self._may_fail(plan, task, end.message)
            what = f"has failed: {end.message}"
        if not is_excused:
            self.world.oracle.violated(f"{task.task_id} {what}")

    def _happened(self, *kinds: str) -> bool:
        return any(self.world.network.injected[x] for x in kinds)

    def _may_be_refused(self, error: HrmError) -> bool:
        return self._lacks_its_queue(error.message)

    def _lacks_its_queue(self, why: str) -> bool:
        return "there is no queue" in why and self.world.could_lack_its_queue()

    def _may_fail(self, plan: PipelineClientPlan, task: PipelineTaskPlan, why: str) -> bool:
        if "in a row have failed" in why:
            return self._happened(*_CRASHES)
        if "its worker was lost" in why:
            return self._happened(*_CRASHES, *_SILENCES)
        if "no worker can be had" in why:
            return plan.pipeline.name in self.refused_by
        if why.startswith("subtask "):
            return task.fails or self._happened("step-crash")
        is_killed = any(f"{x} has ended: killed" in why for x in self.killed)
        return is_killed or self._lacks_its_queue(why)


class _PipelineClient:
    """One client. ``ends``: of its tasks, as it got to know them."""

    def __init__(self, clients: PipelineClients, plan: PipelineClientPlan) -> None:
        self.plan = plan
        self.name = plan.name
        self.ends: dict[str, TaskRecord | HrmError] = {}
        self.cancelled: set[str] = set()
        self._world = clients.world
        self._accepted: set[str] = set()
        self._stores = 0
        for task in plan.tasks:
            self._after(task.start_s, self._submit, task)
            if task.cancel_s < math.inf:
                self._after(task.start_s + task.cancel_s, self._cancel, task)

    @property
    def outcomes(self) -> dict[str, str]:
        return {
            x: end.message if isinstance(end, HrmError) or end.outcome is None
            else end.outcome.value
            for x, end in self.ends.items()
        }  # fmt: skip

    def left(self) -> list[str]:
        return [
            f"{x.task_id} has not ended, accepted: {x.task_id in self._accepted}"
            for x in self.plan.tasks
            if x.task_id not in self.ends
        ]

    def store_changed(self) -> None:
        """What was accepted may be lost, and so may what is about to be."""
        self._accepted.clear()
        self._stores += 1

    def _after(self, delay_s: float, action: Any, *arguments: Any) -> None:
        """As soon as it is there."""
        now = self._world.clock.now - self._world.begin_s
        at_s, back_s = now + delay_s, self.plan.leaves_s + self.plan.away_s
        if self.plan.leaves_s <= at_s < back_s:
            delay_s = back_s - now
        self._world.clock.after(delay_s, self._world.sleepers.ring, self.name, action, *arguments)

    # --- submissions ----------------------------------------------------------------------------

    def _submit(self, task: PipelineTaskPlan) -> None:
        if task.task_id in self._accepted or task.task_id in self.ends:
            return
        plan, world = self.plan, self._world
        spec = TaskSpec(
            task_id=task.task_id,
            pipeline=plan.pipeline,
            size_mb=_MB_PER_S * sum(task.run_s),
            workload_class=plan.workload_class,
            user=plan.user,
        )
        key = WorkloadKey(
            plan.user, plan.queue, plan.workload_class, plan.pipeline.name, "", plan.size
        )

        def serve(reply: Any) -> None:
            if world.master.pipelines is not None:
                world.master.pipelines.submit(spec, key, reply)

        stores = self._stores

        def replied(result: Any) -> None:
            self._submitted(task, result if stores == self._stores else None)

        world.network.call(self.name, serve, replied)
        if world.network.happens("duplicate"):
            world.network.call(self.name, serve, lambda _result: None)

    def _submitted(self, task: PipelineTaskPlan, result: Any) -> None:
        if result is True:
            self._accepted.add(task.task_id)
            self._poll(task)
        elif isinstance(result, AlreadyExists):
            self._poll(task)
        elif result is None or isinstance(result, _AGAIN):
            self._after(_RETRY_S, self._submit, task)
        else:
            self._end(task, result)

    def _poll(self, task: PipelineTaskPlan) -> None:
        if task.task_id in self.ends:
            return
        world = self._world

        def serve(reply: Any) -> None:
            if world.master.pipelines is not None:
                world.master.pipelines.outcome(task.task_id, lambda x: reply((x,)))

        world.network.call(self.name, serve, lambda result: self._polled(task, result))

    def _polled(self, task: PipelineTaskPlan, result: Any) -> None:
        (answer,) = result or (None,)
        if answer is None:
            self._after(_POLL_S, self._poll, task)
        elif isinstance(answer, NotFound) and task.task_id not in self._accepted:
            self._after(_RETRY_S, self._submit, task)
        elif isinstance(answer, NotFound):
            self._world.oracle.violated(f"{task.task_id} was accepted, and is not known any more")
        else:
            self._end(task, answer)

    def _end(self, task: PipelineTaskPlan, end: TaskRecord | HrmError) -> None:
        self.ends.setdefault(task.task_id, end)

    def _cancel(self, task: PipelineTaskPlan) -> None:
        """Repeat until it is answered."""
        if task.task_id in self.ends:
            return
        self.cancelled.add(task.task_id)
        world = self._world

        def serve(reply: Any) -> None:
            if world.master.pipelines is not None:
                world.master.pipelines.cancel(task.task_id, reply)

        def replied(result: Any) -> None:
            if result is None:
                self._after(_RETRY_S, self._cancel, task)

        world.network.call(self.name, serve, replied)
