"""Pipelines on a virtual cluster: the cores of master and nodes, and workers that do as told."""

from __future__ import annotations

from dataclasses import replace

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import hosted
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerId,
    ContainerState,
    NodeName,
    WorkloadClass,
)
from hrm.errors import HrmError
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core import pipelines_core as w
from hrm.pipelines.core.cluster import ClusterBounds, LeastWait, PipelineCluster
from hrm.pipelines.core.model import PipelineSpec, TaskId
from hrm.pipelines.core.node_messages import EndTask, NodeCapacity, TaskOutcome
from hrm.pipelines.core.pool_facts import MasterFacts
from hrm.pipelines.core.resizing import Resizing
from hrm.pipelines.core.task_record import TaskRecord
from hrm.pipelines.core.workload import WorkerSize, WorkloadKey, workload_id
from hrm.pipelines.core.workload_steps import CompleteOpening, FollowCommand, WorkloadStep
from hrm.testing.virtual import VirtualCluster
from tests.core.pipeline.building import pipeline, subtask, task
from tests.core.pipeline.running_means import RunningMeans

STEP_S = 1.0
SMALL = WorkerSize(1, 1024)


class Pool:
    """``connected``: workers that run and have connected. Tasks run until ``finish``."""

    def __init__(self, virtual: VirtualCluster, resizing: Resizing | None = None) -> None:
        self.virtual = virtual
        self.connects = True
        self.connected: dict[ContainerId, ApplicationId] = {}
        self.outcomes: dict[str, TaskOutcome] = {}
        self.messages: dict[str, str] = {}
        self._count = 0
        self._heard: dict[ApplicationId, int] = {}
        self._answers: dict[int, ApplicationId | HrmError] = {}
        self.workloads = w.PipelinesCore(
            self._new_cluster,
            self._new_id,
            facts=MasterFacts(virtual.master),
            resizing=resizing,
        )

    def _new_cluster(self, key: WorkloadKey, ended: dict[TaskId, TaskRecord]) -> PipelineCluster:
        bounds = ClusterBounds(
            node_tasks_limit=key.size.slots, node_timeout_s=1e9, attempts_limit=50
        )
        return PipelineCluster(LeastWait(), RunningMeans(), bounds=bounds, ended=ended)

    def _new_id(self, now: float) -> ApplicationId:
        self._count += 1
        return workload_id(now, self.virtual.master.master_state.epoch, self._count)

    @staticmethod
    def task_id(name: str) -> TaskId:
        return TaskId(name)

    def submit(
        self,
        *names: str,
        user: str = "ana",
        queue: str = "",
        workload: WorkloadClass = WorkloadClass.BATCH,
        size: WorkerSize = SMALL,
        spec: PipelineSpec | None = None,
    ) -> ApplicationId:
        """Submit tasks; raises what refuses them."""
        spec = spec or pipeline(subtask("a"))
        key = WorkloadKey(user, queue, workload, spec.name, "", size)
        call_id = self.virtual.next_call()
        self._carry_out(self.workloads.open(call_id, key, TaskId(""), self.virtual.now))
        answer = self._answers.pop(call_id)
        if isinstance(answer, HrmError):
            raise answer
        for name in names:
            one = replace(task(name, spec, workload=workload), user=user)
            self._carry_out(self.workloads.submit(answer, one, self.virtual.now))
        return answer

    def _carry_out(self, steps: list[WorkloadStep]) -> None:
        for step in steps:
            match step:
                case hosted.SubmitToMaster():
                    self.virtual.submit_to_master(replace(step.event, now=self.virtual.now))
                case hosted.CallMaster():
                    call_id = self.virtual.next_call()
                    event = replace(step.event, now=self.virtual.now, call_id=call_id)
                    self.virtual.submit_to_master(event)
                    self.virtual.settle()
                    reply = self.virtual.replies[call_id]
                    now = self.virtual.now
                    self._carry_out(self.workloads.reply_received(step.application_id, reply, now))
                case hosted.Listen():
                    self._heard.setdefault(step.application_id, 0)
                case hosted.StopListening():
                    self._heard.pop(step.application_id, None)
                case CompleteOpening():
                    self._answers[step.call_id] = step.result
                case FollowCommand():
                    self._follow(step.command)

    def _follow(self, command: m.ClusterCommand) -> None:
        if isinstance(command, m.FinishTask):
            assert command.task_id not in self.outcomes, "a task ends once"
            self.outcomes[command.task_id] = command.outcome
            self.messages[command.task_id] = command.message

    def advance(self, seconds: float) -> None:
        """Time passes, and what was sent arrives."""
        end_s = self.virtual.now + seconds
        while self.virtual.now < end_s - 1e-9:
            self.virtual.advance(min(STEP_S, end_s - self.virtual.now))
            self._pass_notices()
            self._connect()
            self._carry_out(self.workloads.ticked(self.virtual.now))

    def _pass_notices(self) -> None:
        for app_id in list(self._heard):
            notices = self.virtual.notices.get(app_id, [])
            while app_id in self._heard and self._heard[app_id] < len(notices):
                notice = notices[self._heard[app_id]]
                self._heard[app_id] += 1
                if isinstance(notice, c.ContainerChanged):
                    status = notice.status
                    if status.state is ContainerState.ENDED:
                        self.connected.pop(status.container_id, None)
                now = self.virtual.now
                self._carry_out(self.workloads.notice_received(app_id, notice, now))

    def _connect(self) -> None:
        for workload in list(self.workloads.live.values()):
            for worker in list(workload.workers.values()):
                known = worker.container_id in self.connected
                if self.connects and not known and worker.started_at_s <= self.virtual.now:
                    self.connected[worker.container_id] = workload.application_id
                    self.join(worker.container_id)

    def join(self, container_id: str) -> None:
        """A worker connects; raises what refuses it."""
        capacity = NodeCapacity(name=NodeName(container_id), cores=1, memory_mib=4096)
        joined = m.NodeJoined(now=self.virtual.now, capacity=capacity)
        self._carry_out(self.workloads.worker_reported(ContainerId(container_id), joined))

    def worker_of(self, name: str) -> NodeName | None:
        record = self.workloads.find(TaskId(name))
        assert record is not None
        return record.node

    def finish(self, name: str, outcome: TaskOutcome = TaskOutcome.DONE) -> None:
        """A task that is at a worker ends, well if nothing else is said."""
        record = self.workloads.find(TaskId(name))
        assert record is not None
        assert record.node is not None
        end = EndTask(
            task_id=TaskId(name), attempt=record.attempt, outcome=outcome, message="",
            timings=(),
        )  # fmt: skip
        event = m.TaskEnded(now=self.virtual.now, name=record.node, end=end)
        self._carry_out(self.workloads.worker_reported(ContainerId(record.node), event))

    def finish_all(self) -> None:
        """All tasks end well, as they get their workers."""
        for _ in range(100):
            live = list(self.workloads.records(ended=False))
            if not live:
                return
            for record in live:
                if record.node is not None:
                    self.finish(record.spec.task_id)
            self.advance(STEP_S)
        raise AssertionError("tasks are left")

    def end_worker(self, worker: NodeName | ContainerId | None, end: ContainerEnd) -> None:
        """Its container ends so, by itself."""
        assert worker is not None
        container_id = ContainerId(worker)
        node = next(x for x in self.virtual.nodes.values() if container_id in x.core.containers)
        del node.processes[container_id]
        event = e.ProcessEnded(now=self.virtual.now, container_id=container_id, end=end)
        self.virtual.submit_to_node(node, event)
        self.advance(STEP_S)
