"""What one run is: the cluster of table 4, arrivals, and which nodes join, leave and fail.

A scenario and its seed decide everything that policies do not: arrivals, applications, sizes and
how long each subtask would take alone on every device. All policies get the same.

Chosen where the paper does not say: 16 cores per node; "24 GB" is a K80 board of two 12-GB devices,
"8 GB" a P4, and "GPUs" counts devices; the manager is one of the two smallest servers; workers are
numbered so that any first few of them mix all types, and worker 1 is of type 1.

Source: LDWP + IAWP, tables 4 and 5, section 5; 1,500 tasks, 500 of each application.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import Device, PipelineSpec, SubtaskKey, TaskId, TaskSpec
from hrm.pipelines.sim.interference import InterferenceWorld, Law, world
from hrm.pipelines.sim.profiles import K80, P4, MeasuredPipelines

__all__ = [
    "APPLICATIONS",
    "NODE_TYPES",
    "SATURATION_PER_MIN",
    "SIZES_MB",
    "WORKERS",
    "Change",
    "NodeType",
    "Scenario",
    "Work",
    "WorkerNode",
    "arrivals",
    "workers",
]

APPLICATIONS = ("intrusion-detection", "video-synopsis", "face-recognition")
"""The three of the paper; others in a table of profiles are not part of its experiments."""

SIZES_MB = (10.0, 20.0, 60.0, 120.0, 200.0, 400.0)
"""Of figure 12. Elsewhere sizes are drawn between the first and the last, log-uniformly."""

CORES = 16

SATURATION_PER_MIN = 90.0
"""The fluid bound of eleven workers, tasks a minute, world ``measured``. The times of the profiles
are scaled to it. With 66, a tenth above the highest of the paper's rates, all schedulers tried,
random ones included, were far beyond saturation at 50 a minute (they did 34 to 41); with 90 their
saturation is at about the paper's 50 to 60. Fixed before any learned policy had run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A row of table 4. ``gpu_memory_mib``: of one device."""

    name: str
    memory_mib: int
    gpu_model: str
    gpu_memory_mib: int
    gpus: int
    cores: int = CORES


NODE_TYPES = {
    one.name: one
    for one in (
        NodeType(name="1", memory_mib=32_768, gpu_model=K80, gpu_memory_mib=12_288, gpus=2),
        NodeType(name="2", memory_mib=32_768, gpu_model=P4, gpu_memory_mib=8_192, gpus=4),
        NodeType(name="3", memory_mib=16_384, gpu_model=K80, gpu_memory_mib=12_288, gpus=4),
        NodeType(name="4", memory_mib=8_192, gpu_model=P4, gpu_memory_mib=8_192, gpus=2),
    )
}

WORKERS = ("1", "2", "3", "4", "2", "3", "1", "2", "3", "2", "3")
"""Types of workers 1 to 11: 2, 4, 4 and 1 of types 1 to 4; the manager is the other of type 4."""


@dataclass(frozen=True, slots=True)
class WorkerNode:
    """A node of the cluster."""

    name: NodeName
    type: NodeType


def workers(count: int = len(WORKERS), types: Sequence[str] = WORKERS) -> tuple[WorkerNode, ...]:
    """The first ``count``; beyond its end the list repeats."""
    return tuple(
        WorkerNode(NodeName(f"worker-{place + 1}"), NODE_TYPES[types[place % len(types)]])
        for place in range(count)
    )


@dataclass(frozen=True, slots=True)
class Change:
    """At ``at_s`` a node joins, leaves (finishes what it has, gets nothing new) or fails."""

    at_s: float
    what: str
    worker: WorkerNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All input of a run. ``rate_per_min``: Poisson arrivals; ``size_mb``: one size for all."""

    profiles: MeasuredPipelines
    rate_per_min: float = 50.0
    tasks: int = 1_500
    workers: tuple[WorkerNode, ...] = field(default_factory=workers)
    changes: tuple[Change, ...] = ()
    world: str = "measured"
    applications: tuple[str, ...] = APPLICATIONS
    size_mb: float | None = None
    laws: Mapping[str, Law] | None = None
    """Of a measured world, by model of GPU; None: the shipped ones."""
    seed: int = 0

    @property
    def pipelines(self) -> tuple[PipelineSpec, ...]:
        """Those of ``applications`` that the profiles have; all of the profiles if none."""
        named = [one for one in self.profiles.pipelines if one.name in self.applications]
        return tuple(named) or self.profiles.pipelines

    @property
    def truth(self) -> InterferenceWorld:
        """The interference of this run."""
        return world(self.world, self.profiles.kinds, laws=self.laws)

    @property
    def all_workers(self) -> tuple[WorkerNode, ...]:
        """All workers that are ever present."""
        joining = (change.worker for change in self.changes if change.what == "join")
        return tuple(dict.fromkeys((*self.workers, *joining)))


@dataclass(slots=True)
class Work:
    """The tasks of a run in order of arrival, and the truth about each of their subtasks."""

    tasks: list[TaskSpec]
    arrives_s: list[float]
    cpu_s: dict[SubtaskKey, float]
    """Alone on one core; inf without such a version."""
    gpu_s: dict[SubtaskKey, dict[str, float]]
    """Alone on one GPU, by its model."""

    def least_s(self, task: TaskSpec) -> float:
        """The longest path through the task with every subtask on its fastest device, alone."""
        ends: dict[str, float] = {}
        for subtask in task.pipeline.subtasks:
            key = SubtaskKey(task.task_id, subtask.name)
            own = min(self.cpu_s[key], *self.gpu_s[key].values())
            ends[subtask.name] = own + max((ends[one] for one in subtask.after), default=0.0)
        return max(ends.values())


def arrivals(scenario: Scenario) -> Work:
    """Draw the run. Applications come in equal numbers, in random order."""
    rng = np.random.default_rng([scenario.seed, 0x5EED])
    pipelines = scenario.pipelines
    gaps = rng.exponential(60.0 / scenario.rate_per_min, scenario.tasks)
    which = rng.permutation(np.arange(scenario.tasks) % len(pipelines))
    low, high = np.log(SIZES_MB[0]), np.log(SIZES_MB[-1])
    sizes = np.exp(rng.uniform(low, high, scenario.tasks))
    if scenario.size_mb is not None:
        sizes[:] = scenario.size_mb
    work = Work([], np.cumsum(gaps).tolist(), {}, {})
    models = sorted({worker.type.gpu_model for worker in scenario.all_workers})
    for number in range(scenario.tasks):
        task = TaskSpec(
            task_id=TaskId(f"task-{number}"),
            pipeline=pipelines[which[number]],
            size_mb=float(sizes[number]),
            submitted_at_s=work.arrives_s[number],
        )
        work.tasks.append(task)
        noise = rng.standard_normal(len(task.pipeline.subtasks))
        for subtask, deviation in zip(task.pipeline.subtasks, noise, strict=True):
            kind = scenario.profiles.kinds[subtask.kind]
            key = SubtaskKey(task.task_id, subtask.name)
            factor = float(np.exp(kind.variation * deviation))
            on_cpu = Device.CPU in subtask.devices
            on_gpu = Device.GPU in subtask.devices
            work.cpu_s[key] = (
                factor * kind.run_s(Device.CPU, task.size_mb) if on_cpu else float("inf")
            )
            work.gpu_s[key] = {
                model: factor * kind.run_s(Device.GPU, task.size_mb, model)
                if on_gpu
                else float("inf")
                for model in models
            }
    return work
