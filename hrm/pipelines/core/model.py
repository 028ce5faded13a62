"""The terms of pipeline tasks, and the two decisions that policies make.

Times are seconds, ``size_mb`` is the size of the task's input in megabytes (10**6 bytes), memory is
MiB, utilisations are shares in 0..1. Nothing here is mutable: state lives in the two cores.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, Protocol

import numpy as np
import numpy.typing as npt

from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.core.vocabulary.model import NodeName, WorkloadClass
from hrm.pipelines.core.device_memory import PeakMemory

__all__ = [
    "CO_RUN_FEATURES",
    "SIZE_BUCKETS_MB",
    "Choice",
    "ClusterPolicy",
    "Device",
    "Estimates",
    "GpuView",
    "LearningEstimates",
    "NodePolicy",
    "NodeView",
    "PipelineClusterView",
    "PipelineSpec",
    "ReadySubtask",
    "ResultFormat",
    "Row",
    "StartDecision",
    "SubtaskKey",
    "SubtaskSpec",
    "TaskId",
    "TaskSpec",
    "row_of",
    "size_bucket",
]

TaskId = NewType("TaskId", str)
Vector = npt.NDArray[np.float32]

SIZE_BUCKETS_MB = (20.0, 60.0, 120.0, 200.0, 400.0)
"""Upper bounds of the buckets of input size; anything larger is in the last bucket, number 5."""

CO_RUN_FEATURES = ("sm", "l1", "l2", "tex", "dram", "load", "store", "size")
"""What describes a subtask on a shared GPU, in this order, each 0..1 (table 2)."""


class Device(enum.Enum):
    """Where a version of a subtask runs."""

    __hash__ = object.__hash__

    CPU = "cpu"
    GPU = "gpu"


class ResultFormat(enum.Enum):
    """How a task's result travels to its client. AUTO: the worker chooses what loses nothing."""

    __hash__ = object.__hash__

    AUTO = "auto"
    PICKLE = "pickle"
    JSON = "json"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSpec:
    """One step of a pipeline. Estimates are kept for its ``kind``, which pipelines may share."""

    name: str
    kind: str
    after: tuple[str, ...] = ()
    devices: frozenset[Device]
    memory_mib: int = 0
    """Most host memory that it may use; 0: no limit of its own."""
    gpu_memory_mib: int = 0
    """Device memory that its GPU version takes, as far as its author knows; 0: to be measured."""
    timeout_s: float = 600.0
    attempts: int = 3
    """Runs, the first one included, before the task fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A DAG of subtasks in a topological order. ``reference`` ("module:attribute") is its code."""

    name: str
    reference: str
    subtasks: tuple[SubtaskSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One input for a pipeline: what schedulers may know. Its bytes travel separately.

    ``user``: its owner, as claimed by the client. ``result_dir``: where its result stays; empty:
    with the master.
    """

    task_id: TaskId
    pipeline: PipelineSpec
    size_mb: float
    workload_class: WorkloadClass = WorkloadClass.BATCH
    submitted_at_s: float = 0.0
    user: str = ""
    result_format: ResultFormat = ResultFormat.PICKLE
    result_dir: str = ""


class Row(NamedTuple):
    """The key of a row of measurements and estimates: a kind, a size, a model of GPU.

    ``gpu_model`` is "" for the row of a node without GPUs.
    """

    kind: str
    bucket: int
    gpu_model: str


class SubtaskKey(NamedTuple):
    """A subtask of one task."""

    task_id: TaskId
    subtask: str


def size_bucket(size_mb: float) -> int:
    """The number of the bucket of an input of ``size_mb``, 0 to 5."""
    return bisect.bisect_left(SIZE_BUCKETS_MB, size_mb)


def row_of(subtask: SubtaskSpec, size_mb: float, gpu_model: str) -> Row:
    """The row of a subtask with an input of ``size_mb`` on a node with GPUs of ``gpu_model``."""
    return Row(subtask.kind, size_bucket(size_mb), gpu_model)


class Estimates(Protocol):
    """What a node estimates of its subtasks: measured values where available, else predictions.

    Every policy gets the same one. A number is never NaN; an unknown one has a default that the
    implementation documents.
    """

    def run_s(self, row: Row, device: Device) -> float:
        """Expected time alone on one core or one GPU, seconds; inf: there is no such version."""

    def speedup(self, row: Row) -> float:
        """CPU time over GPU time; 0 without a GPU version, inf without a CPU version."""

    def gpu_features(self, row: Row) -> Vector:
        """Shape (8,), ``CO_RUN_FEATURES``: the load that the row's GPU version puts on a GPU."""

    def memory_mib(self, row: Row) -> float:
        """Host memory while it runs, MiB."""

    def gpu_memory_mib(self, row: Row) -> float:
        """Device memory of the GPU version, MiB."""

    def run_deviation_s(self, row: Row, device: Device) -> float:
        """Standard deviation of the time alone, seconds; 0: it was not measured."""

    def gpu_memory_peak(self, row: Row) -> PeakMemory | None:
        """Device memory that the next run reaches, as a distribution; None: too little is known,
        and ``gpu_memory_mib`` counts as certain."""

    def runs_alone(self, row: Row) -> int:
        """How many runs without co-runners on a GPU are known; large numbers may be cut off."""

    def gpu_use(self, row: Row) -> tuple[GpuUsePart, ...]:
        """What runs alone on a GPU have used of it over their lives; empty: not measured."""


class LearningEstimates(Estimates, Protocol):
    """Estimates that measurements update. Each core keeps one and passes all measurements to it."""

    def declare(self, row: Row, subtask: SubtaskSpec) -> None:
        """Register a row and what its author declared. Called before any query about the row."""

    def measured_cells(self, row: Row) -> int:
        """How many metrics of the row were measured; with fewer than two it is to be profiled."""

    def measured_s(self, row: Row, device: Device) -> float | None:
        """Time of exactly this row, seconds; None: it never ran on the device. On a core it may be
        one that was measured next to GPUs of another model."""

    def measured_models(self, kind: str) -> Collection[str]:
        """The models of GPU of the rows of this kind of which something was measured."""

    @property
    def changes(self) -> int:
        """Increases whenever something that was measured here may have changed."""

    def observe_run(
        self,
        row: Row,
        device: Device,
        seconds: float,
        memory_mib: float,
        gpu_memory_mib: float,
        co_runners: tuple[Row, ...],
    ) -> None:
        """A run succeeded. Memory is its peak, MiB, 0 if it was not measured;
        ``co_runners`` shared its GPU for at least half of its time."""

    def observe_cells(self, row: Row, cells: Mapping[str, float]) -> None:
        """What a profile measured: shares 0..1 by name (``CO_RUN_FEATURES``, "cpu")."""

    def observe_out_of_gpu_memory(self, row: Row, had_mib: float) -> None:
        """A run that had so much device memory, MiB, ran out of it."""

    def observe_gpu_use(self, row: Row, use: Sequence[GpuUsePart]) -> None:
        """A run that was alone on its GPU used this of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadySubtask:
    """A subtask whose inputs are there and that is not running yet."""

    key: SubtaskKey
    row: Row
    devices: frozenset[Device]
    since: float
    workload_class: WorkloadClass = WorkloadClass.BATCH
    memory_mib: float = 0.0
    """What it is charged while it runs, MiB; 0: the estimate of its row."""
    gpu_memory_mib: float = 0.0
    """The same on a GPU. More than estimated where a run before this one had too little."""
    gpu_peak: PeakMemory | None = None
    """What it reaches on a GPU that it shares; None: ``gpu_memory_mib``, which is certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One GPU as the node sees it. ``memory_used_mib`` includes what is reserved.

    ``peaks``: what all that runs there is expected to reach; None: ``memory_used_mib``, which is
    certain. ``memory_risk``: the probability of more than it offers that a start may bring about.
    """

    index: int
    model: str
    memory_mib: float
    memory_used_mib: float
    utilisation: float
    running: tuple[Row, ...] = ()
    elapsed_s: tuple[float, ...] = ()
    """Of each that runs there, since its start; empty: not known."""
    remaining_s: float = 0.0
    """Estimated time until all that runs there has ended."""
    peaks: PeakMemory | None = None
    memory_risk: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What a ``NodePolicy`` decides from. ``ready``: what its core has to choose from, the subtask
    of the task that is due first in front."""

    now: float
    ready: Sequence[ReadySubtask]
    idle_cores: tuple[int, ...]
    core_remaining_s: tuple[float, ...]
    """Of every core of the node, by number: estimated time until it is free; 0: idle."""
    gpus: tuple[GpuView, ...]
    memory_free_mib: float
    estimates: Estimates


class StartDecision(NamedTuple):
    """Start this subtask's version for ``device`` on core or GPU ``number``.

    ``placed_by``: the decider, "" for the policy that was called; ``fallback``: why the learned
    policy did not decide, "" if it did or was not meant to.
    """

    key: SubtaskKey
    device: Device
    number: int
    placed_by: str = ""
    fallback: str = ""


class NodePolicy(Protocol):
    """Stage 2. One object for each node; it may keep queues of its own over ``ready``.

    It is called after every arrival, end and profile. What it names must be ready, have a version
    for the device, and fit (``memory_free_mib``, ``GpuView``); the node's core refuses the rest.
    """

    name: str

    def dispatch(self, view: NodeView) -> list[StartDecision]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineClusterView:
    """What a ``ClusterPolicy`` decides from: a column per fact, a row per node, in a fixed order.

    All arrays have shape (nodes,). The first six are table 1 of the paper, each 0..1.
    """

    now: float
    names: tuple[NodeName, ...]
    cpu: Vector
    gpu: Vector
    memory: Vector
    gpu_memory: Vector
    sent: Vector
    received: Vector
    running: Vector
    """Tasks that have started a subtask and not ended."""
    waiting_batch: Vector
    waiting_stream: Vector
    expected_wait_s: Vector
    """Estimated work that the node has accepted and not done, over what it can do at once."""
    task_s: Vector
    """Estimated time of the task in question on this node, alone; inf: it can never run there."""
    cores: Vector
    free_cores: Vector
    free_memory_mib: Vector
    gpus: Vector
    free_gpu_memory_mib: Vector
    platform: tuple[str, ...]
    cpu_speed: Vector
    """Relative to the reference platform, 1.0."""
    gpu_speed: Vector
    report_age_s: Vector
    """Since each node last reported."""
    queue_length: int
    arrival_rate_per_s: float
    alive: npt.NDArray[np.bool_]
    """Neither lost nor draining."""
    unmeasured_steps: int = 0
    """Steps of the task in question that never ran here with inputs of about this size: what
    ``task_s`` says of them is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The row of ``PipelineClusterView`` that is to run the task; ``why`` is for people, one line.

    ``node`` -1: none now. The head of the queue, and with it the queue, waits for the next event.
    ``placed_by`` and ``fallback``: as in ``StartDecision``.
    """

    node: int
    why: str
    placed_by: str = ""
    fallback: str = ""
    scores: Vector | None = field(default=None, compare=False)


class ClusterPolicy(Protocol):
    """Stage 1. ``fits`` (nodes,) marks those that may take the task; at least one does.

    ``ended`` reports a task that this policy placed and that has ended or was returned, so that
    policies can learn and monitor themselves; ``ok`` is false for a failure or a lost node.
    """

    name: str

    def choose(
        self, task: TaskSpec, view: PipelineClusterView, fits: npt.NDArray[np.bool_]
    ) -> Choice: ...

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None: ...
