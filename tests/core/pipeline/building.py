"""Helpers to build what a test needs: pipelines, tasks, nodes, and a node that records commands."""

from __future__ import annotations

from hrm.core.vocabulary.model import NodeName, WorkloadClass
from hrm.pipelines.core import node_messages as m
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import (
    Device,
    NodePolicy,
    NodeView,
    PipelineSpec,
    StartDecision,
    SubtaskSpec,
    TaskId,
    TaskSpec,
)
from hrm.pipelines.core.node import NodeBounds, PipelineNode
from hrm.pipelines.core.node_messages import RunOutcome
from hrm.pipelines.policies.corun.tentative import Tentative
from tests.core.pipeline.invariants import check_node
from tests.core.pipeline.running_means import RunningMeans

CPU = frozenset({Device.CPU})
GPU = frozenset({Device.GPU})
BOTH = CPU | GPU


def subtask(name: str, *after: str, on: frozenset[Device] = CPU, **more: object) -> SubtaskSpec:
    return SubtaskSpec(name=name, kind=f"kind/{name}", after=after, devices=on, **more)  # type: ignore[arg-type]


def pipeline(*subtasks: SubtaskSpec) -> PipelineSpec:
    return PipelineSpec(name="p", reference="tests:p", subtasks=subtasks)


def task(
    name: str,
    spec: PipelineSpec | None = None,
    *,
    workload: WorkloadClass = WorkloadClass.BATCH,
    at: float = 0.0,
) -> TaskSpec:
    return TaskSpec(
        task_id=TaskId(name),
        pipeline=spec or pipeline(subtask("a")),
        size_mb=10.0,
        workload_class=workload,
        submitted_at_s=at,
    )


def capacity(
    name: str = "n1",
    *,
    cores: int = 2,
    memory_mib: float = 4096,
    gpus: int = 0,
    gpu_memory_mib: float = 8000,
) -> m.NodeCapacity:
    cards = tuple(m.GpuCard(index=i, model="P4", memory_mib=gpu_memory_mib) for i in range(gpus))
    return m.NodeCapacity(name=NodeName(name), cores=cores, memory_mib=memory_mib, gpus=cards)


class FirstFit:
    """In the order of readiness, each on the faster device where it fits, on ties a GPU."""

    name = "first-fit"

    def dispatch(self, view: NodeView) -> list[StartDecision]:
        free, run_s = Tentative(view, CAPS), view.estimates.run_s
        for one in view.ready:
            emptiest = sorted(free.gpus, key=lambda gpu: (len(gpu.running), gpu.index))
            gpus = [(Device.GPU, gpu.index) for gpu in emptiest]
            cores = [(Device.CPU, core) for core in free.idle_cores]
            gpu_first = run_s(one.row, Device.GPU) <= run_s(one.row, Device.CPU)
            places = gpus + cores if gpu_first else cores + gpus
            place = next((place for place in places if free.fits(one, *place)), None)
            if place is not None:
                free.take(one, *place)
        return free.starts


class Node:
    """A core whose commands are recorded, and whose invariants are checked after every event."""

    def __init__(
        self,
        what: m.NodeCapacity | None = None,
        *,
        policy: NodePolicy | None = None,
        bounds: NodeBounds | None = None,
    ) -> None:
        self.estimates = RunningMeans()
        self.core = PipelineNode(
            what or capacity(),
            policy or FirstFit(),
            self.estimates,
            bounds=bounds or NodeBounds(profiling=False),
        )
        self.running: dict[str, m.StartSubtask] = {}
        self.ended: list[m.EndTask] = []
        self.reports: list[m.ReportSubtask] = []
        self.commands: list[m.NodeCommand] = []

    def handle(self, event: m.NodeEvent) -> list[m.NodeCommand]:
        commands = self.core.handle(event)
        check_node(self.core)
        for command in commands:
            if isinstance(command, m.StartSubtask):
                self.running[f"{command.key.task_id}.{command.key.subtask}"] = command
            if isinstance(command, m.ReportSubtask):
                self.reports.append(command)
            if isinstance(command, m.EndTask):
                self.ended.append(command)
        self.commands.extend(commands)
        return commands

    def place(self, spec: TaskSpec, now: float = 0.0, attempt: int = 1) -> list[m.NodeCommand]:
        return self.handle(m.TaskPlaced(now=now, task=spec, attempt=attempt))

    def end(
        self,
        which: str,
        now: float,
        outcome: RunOutcome = RunOutcome.DONE,
        message: str = "",
    ) -> list[m.NodeCommand]:
        start = self.running.pop(which)
        return self.handle(
            m.SubtaskEnded(now=now, key=start.key, run=start.run, outcome=outcome, message=message)
        )
