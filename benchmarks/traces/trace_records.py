"""Contents of traces in HRM's units: one record for every job trace, one for each measured table.

Job traces differ in their columns, not in their content: a user submitted at some time, and wanted
some resources of some machines for some time. ``TraceJob`` holds that. What a trace does not
contain is 0 (unknown) here, never a guess; the replay defines the assumptions.

Measured tables (throughput of pairs, kernels, interference, traffic) have no common shape and get a
record each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.vocabulary.model import WorkloadClass

__all__ = [
    "InferenceInterference",
    "InferenceProfile",
    "JobGenerator",
    "KernelProfile",
    "MeasuredJob",
    "PairThroughput",
    "PlacementProfile",
    "Record",
    "RequestGap",
    "ScalabilityProfile",
    "TraceJob",
    "TraceNode",
    "TraceTask",
    "TrafficSample",
    "ValidationPoint",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTask:
    """``instances`` like pieces of work of a job, each of which takes ``duration_s``.

    ``vcores`` (may be a fraction), ``memory_mib``, ``gpus`` and ``gpu_memory_mib`` are of one
    instance; 0: none, or not known. ``gpu_share``: the part of each of its GPUs, 0 to 1.
    ``parents``: names of tasks of the job that must have ended before. ``measured_s``: run times of
    single instances where the trace has them; ``duration_s`` is their mean then.
    """

    name: str
    duration_s: float
    instances: int = 1
    vcores: float = 0.0
    memory_mib: int = 0
    gpus: int = 0
    gpu_share: float = 1.0
    gpu_memory_mib: int = 0
    parents: tuple[str, ...] = ()
    measured_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job. ``arrival_s`` is on the trace's own clock; only differences mean something.

    ``user``: the submitters that the trace distinguishes (user, virtual cluster). ``kind``: what it
    runs (model, query). ``wait_s``: how long it waited in the original cluster; None if unknown.
    ``together``: its instances must run together (distributed training).
    """

    job_id: str
    arrival_s: float
    tasks: tuple[TraceTask, ...]
    workload_class: WorkloadClass = WorkloadClass.BATCH
    user: str = ""
    kind: str = ""
    wait_s: float | None = None
    together: bool = False

    @property
    def duration_s(self) -> float:
        """Run time with all resources it could use: the longest path through its tasks."""
        ends: dict[str, float] = {}
        for task in self.tasks:
            begin = max((ends[parent] for parent in task.parents), default=0.0)
            ends[task.name] = begin + task.duration_s
        return max(ends.values(), default=0.0)

    @property
    def instances(self) -> int:
        return sum(task.instances for task in self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    """One machine of a cluster; ``gpus`` of ``model``."""

    name: str
    vcores: int
    memory_mib: int
    gpus: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairThroughput:
    """A training job on ``gpu``, alone or with another one on the same GPU.

    ``scale``: GPUs that each job uses. ``iterations_per_s`` is the first job's, ``other_per_s`` the
    second's. ``other`` is empty where it is alone. Both rates 0: the two do not fit its memory.
    """

    gpu: str
    job: str
    scale: int
    iterations_per_s: float
    other: str = ""
    other_scale: int = 0
    other_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProfile:
    """Time of a training step with ``placement`` GPUs on each node, and its part of synchronising.

    ``local_batch``: samples of one GPU.
    """

    placement: tuple[int, ...]
    local_batch: int
    step_s: float
    sync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalabilityProfile:
    """Time of a training step with ``replicas`` GPUs spread over ``nodes``."""

    nodes: int
    replicas: int
    local_batch: int
    step_s: float
    sync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPoint:
    """A training run at one moment; ``metric`` is the application's own.

    ``progress``: iterations scaled to the base batch; ``gradient_square`` and
    ``gradient_variance`` give the gradient noise scale.
    """

    progress: float
    iteration: int
    metric: float
    gradient_square: float
    gradient_variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceProfile:
    """An inference model alone on ``gpu_percent`` of a GPU. ``metric``: ``latency`` (ms),
    ``throughput`` (images/s), ``l2cache`` or ``dram`` (utilisation, percent)."""

    model: str
    metric: str
    batch: int
    gpu_percent: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceInterference:
    """Two inference models on one GPU: ``first`` with ``gpu_percent`` of it, ``second`` with the
    rest; latencies of a batch in ms."""

    first: str
    second: str
    first_batch: int
    second_batch: int
    gpu_percent: int
    first_latency_ms: float
    second_latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """One kernel launch. ``bound``: ``compute``, ``memory`` or ``unknown``.

    ``multiprocessors`` that it needs may be more than the GPU has.
    """

    name: str
    bound: str
    memory_footprint: int
    multiprocessors: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGap:
    """Seconds between two requests of an inference client."""

    gap_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSample:
    """Bits that passed a link in the interval that begins at ``time_s`` (the trace's local time,
    seconds as if it were UTC)."""

    time_s: float
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """The outcome of a job of a testbed trace; seconds on the trace's clock."""

    job_id: str
    gpus: int
    submit_s: float
    start_s: float
    end_s: float
    executed_s: float
    pending_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGenerator:
    """Parameters of a synthetic workload: time in steps, sizes in slots of each resource.

    Each step a job arrives with ``arrival_probability``. It is short with ``short_probability``;
    ranges are inclusive. One resource, drawn evenly, is the dominant one.
    """

    resources: int
    slots: int
    arrival_probability: float
    short_probability: float
    short_steps: tuple[int, int]
    long_steps: tuple[int, int]
    dominant_slots: tuple[int, int]
    other_slots: tuple[int, int]
    queue_visible: int
    backlog: int
    extra: Mapping[str, float]


Record: TypeAlias = (
    TraceJob
    | TraceNode
    | PairThroughput
    | PlacementProfile
    | ScalabilityProfile
    | ValidationPoint
    | InferenceProfile
    | InferenceInterference
    | KernelProfile
    | RequestGap
    | TrafficSample
    | MeasuredJob
    | JobGenerator
)
