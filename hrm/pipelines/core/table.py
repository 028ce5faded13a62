"""The nodes as columns: what cluster policies decide from, kept up to date row by row.

A row is a node, in the order of joining, while it is present; columns are numpy arrays, so a view
of 1,000 nodes is a few copies of 4 KiB. What was placed since a node last reported is added to its
report, so that bursts do not all go to the node that looked idle at the last heartbeat.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hrm.core.vocabulary.model import NodeName, WorkloadClass
from hrm.pipelines.core.feasibility import CAPS
from hrm.pipelines.core.model import (
    Device,
    LearningEstimates,
    PipelineClusterView,
    PipelineSpec,
    TaskId,
    TaskSpec,
    row_of,
)
from hrm.pipelines.core.node_messages import NodeCapacity, NodeLoad
from hrm.pipelines.core.order import RemainingTimes, Speeds
from hrm.pipelines.core.reported_runs import RowsOfWorker

__all__ = ["NodeRow", "NodeTable"]

_LOAD = ("cpu", "gpu", "memory", "gpu_memory", "sent", "received")
_COUNTS = ("running", "waiting_batch", "waiting_stream", "expected_wait_s")
_FREE = ("free_cores", "free_memory_mib", "free_gpu_memory_mib")
_FIXED = ("cores", "gpus", "cpu_speed", "gpu_speed")
_OWN = ("reported_at_s", "memory_total_mib", "largest_gpu_mib", "group")
_COLUMNS = (*_LOAD, *_COUNTS, *_FREE, *_FIXED, *_OWN)

Mask = npt.NDArray[np.bool_]
Column = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class NodeRow:
    """One node. ``placed``: every task that is placed there; ``unreported``: the estimated work,
    seconds, of those that its latest report does not include; ``rows``: of the tasks that it has
    had; ``gave_back``: it returned a task since that report; ``excused_at_s``: its silence does
    not count until then."""

    capacity: NodeCapacity
    reported_at_s: float
    away: bool = False
    gave_back: bool = False
    load: NodeLoad | None = None
    excused_at_s: float = 0.0
    placed: dict[TaskId, TaskSpec] = field(default_factory=dict)
    unreported: dict[TaskId, float] = field(default_factory=dict)
    rows: RowsOfWorker = field(default_factory=RowsOfWorker)

    @property
    def machine(self) -> str:
        return self.capacity.machine or self.capacity.name


class NodeTable:
    """Invariant: row i of every column is node i of ``names``; ``recount`` rebuilds them."""

    def __init__(self, estimates: LearningEstimates) -> None:
        self.estimates = estimates
        self.remaining_s = RemainingTimes(estimates)
        """Of a task's work, on the nodes that are here."""
        self.nodes: dict[NodeName, NodeRow] = {}
        self.names: tuple[NodeName, ...] = ()
        self._index: dict[NodeName, int] = {}
        self._platforms: tuple[str, ...] = ()
        self._models: list[str] = []
        self._columns: dict[str, Column] = {name: np.zeros(0) for name in _COLUMNS}
        self._alive: Mask = np.zeros(0, dtype=np.bool_)

    def add(self, capacity: NodeCapacity, now: float) -> NodeRow:
        row = self.nodes[capacity.name] = NodeRow(capacity, now)
        self._rebuild()
        return row

    def remove(self, name: NodeName) -> NodeRow:
        row = self.nodes.pop(name)
        self._rebuild()
        return row

    def _rebuild(self) -> None:
        self.names = tuple(self.nodes)
        self._index = {name: i for i, name in enumerate(self.names)}
        self._platforms = tuple(row.capacity.platform for row in self.nodes.values())
        models = {row.capacity.gpu_model: 0 for row in self.nodes.values()}
        self._models = list(models)
        self.remaining_s.set_machines(_speeds(row.capacity) for row in self.nodes.values())
        self._columns = {name: np.zeros(len(self.names)) for name in _COLUMNS}
        self._alive = np.zeros(len(self.names), dtype=np.bool_)
        for name in self.names:
            self.recount(name)

    def recount(self, name: NodeName) -> None:
        """Compute the node's row from its record."""
        row, i, columns = self.nodes[name], self._index[name], self._columns
        capacity, load = row.capacity, row.load
        for column in (*_LOAD, *_COUNTS):
            columns[column][i] = getattr(load, column) if load else 0.0
        cards_mib = [gpu.memory_mib for gpu in capacity.gpus]
        columns["free_cores"][i] = load.free_cores if load else capacity.cores
        columns["free_memory_mib"][i] = load.free_memory_mib if load else capacity.memory_mib
        free_gpu_mib = load.free_gpu_memory_mib if load else sum(cards_mib)
        columns["free_gpu_memory_mib"][i] = free_gpu_mib
        columns["cores"][i] = capacity.cores
        columns["gpus"][i] = len(cards_mib)
        columns["cpu_speed"][i] = capacity.cpu_speed
        columns["gpu_speed"][i] = capacity.gpu_speed
        columns["reported_at_s"][i] = row.reported_at_s
        columns["memory_total_mib"][i] = capacity.memory_mib
        columns["largest_gpu_mib"][i] = max(cards_mib, default=0.0)
        columns["group"][i] = self._models.index(capacity.gpu_model)
        for task_id, work_s in row.unreported.items():
            streaming = row.placed[task_id].workload_class is WorkloadClass.STREAM
            columns["waiting_stream" if streaming else "waiting_batch"][i] += 1
            columns["expected_wait_s"][i] += work_s / max(1, capacity.cores + len(cards_mib))
        self._alive[i] = not row.away

    def placed(self, name: NodeName, task: TaskSpec) -> None:
        row = self.nodes[name]
        row.placed[task.task_id] = task
        row.rows.add(task, row.capacity.gpu_model)
        row.unreported[task.task_id] = self.work_s(task, row.capacity)
        self.recount(name)

    def over(self, name: NodeName, task_id: TaskId) -> None:
        """The task has left the node."""
        row = self.nodes[name]
        row.placed.pop(task_id, None)
        if row.unreported.pop(task_id, None) is not None:
            self.recount(name)

    def reported(self, name: NodeName, load: NodeLoad, now: float) -> None:
        row = self.nodes[name]
        row.load, row.reported_at_s, row.gave_back = load, now, False
        for task_id in load.tasks:
            row.unreported.pop(task_id, None)
        self.recount(name)

    # --- of one task --------------------------------------------------------------------------

    def declare(self, pipeline: PipelineSpec, size_mb: float) -> None:
        for model in self._models or [""]:
            for one in pipeline.subtasks:
                self.estimates.declare(row_of(one, size_mb, model), one)

    def fits(self, task: TaskSpec, tasks_limit: int) -> tuple[Mask, str]:
        """Shape (nodes,): which may take the task now; if none may, the reason as text."""
        could = self.could_ever(task)
        if not could.any():
            return could, "no node here could ever run all of its subtasks"
        alive = could & self._alive
        if not alive.any():
            return alive, "all workers that could run it are away: not connected, or about to end"
        takes = (len(row.placed) < tasks_limit and not row.gave_back for row in self.nodes.values())
        free = alive & np.fromiter(takes, np.bool_, len(self.nodes))
        if not free.any():
            return free, (
                f"all nodes that could run it have {tasks_limit} tasks already, or gave one back "
                f"since they last reported"
            )
        return free, ""

    def elsewhere(self, fits: Mask, machines: Collection[str]) -> Mask:
        """Those of ``fits`` on other machines than these; all of them, where there are none."""
        if not machines:
            return fits
        others = (row.machine not in machines for row in self.nodes.values())
        left = fits & np.fromiter(others, np.bool_, len(self.nodes))
        return left if left.any() else fits

    def waits_for_capacity(self, task: TaskSpec) -> bool:
        """Whether a node that accepts tasks could run it once capacity is free."""
        return bool((self.could_ever(task) & self._alive).any())

    def could_ever(self, task: TaskSpec) -> Mask:
        """Nodes that could, empty, run every subtask: ``feasibility.never_fits``, vectorised.

        Those whose memory is estimated to be too small are left out, unless that leaves none.
        """
        self.declare(task.pipeline, task.size_mb)
        declared = self._could(task, estimated=False)
        likely = declared & self._could(task, estimated=True)
        return likely if likely.any() else declared

    def _could(self, task: TaskSpec, *, estimated: bool) -> Mask:
        columns, estimates = self._columns, self.estimates
        mask = np.ones(len(self.names), dtype=np.bool_)
        memory_limit_mib = columns["largest_gpu_mib"] * CAPS.gpu_memory_share
        for one in task.pipeline.subtasks:
            host = gpu = np.zeros(len(self.names))
            if estimated:
                rows = [row_of(one, task.size_mb, model) for model in self._models]
                host = self._of_group([estimates.memory_mib(row) for row in rows])
                gpu = self._of_group([estimates.gpu_memory_mib(row) for row in rows])
            fits = np.zeros(len(self.names), dtype=np.bool_)
            if Device.CPU in one.devices:
                fits |= columns["cores"] > 0
            if Device.GPU in one.devices:
                needed = np.maximum(gpu, one.gpu_memory_mib)
                fits |= (columns["gpus"] > 0) & (needed <= memory_limit_mib)
            if one.memory_mib:
                host = np.full(len(self.names), float(one.memory_mib))
            mask &= fits & (host <= columns["memory_total_mib"])
        return mask

    def _of_group(self, values: list[float]) -> Column:
        """One value per GPU model, spread over the nodes."""
        spread: Column = np.array(values or [0.0])[self._columns["group"].astype(np.int64)]
        return spread

    def task_s(self, task: TaskSpec) -> Column:
        """Estimated time of the task alone on each node: the longest path through its subtasks."""
        columns = self._columns
        ends: dict[str, Column] = {}
        total = np.zeros(len(self.names))
        for one in task.pipeline.subtasks:
            rows = [row_of(one, task.size_mb, model) for model in self._models]
            seconds = np.full(len(self.names), math.inf)
            for device in one.devices:
                alone = self._of_group([self.estimates.run_s(row, device) for row in rows])
                on_cpu = device is Device.CPU
                speed, units = ("cpu_speed", "cores") if on_cpu else ("gpu_speed", "gpus")
                here = np.where(columns[units] > 0, alone / columns[speed], math.inf)
                seconds = np.minimum(seconds, here)
            begin = np.zeros(len(self.names))
            for name in one.after:
                begin = np.maximum(begin, ends[name])
            ends[one.name] = begin + seconds
            total = np.maximum(total, ends[one.name])
        return total

    def work_s(self, task: TaskSpec, capacity: NodeCapacity) -> float:
        """Estimated seconds of work that the task adds to a node, each subtask where faster."""
        work_s = 0.0
        for one in task.pipeline.subtasks:
            row = row_of(one, task.size_mb, capacity.gpu_model)
            options = [math.inf]
            if Device.CPU in one.devices and capacity.cores:
                options.append(self.estimates.run_s(row, Device.CPU) / capacity.cpu_speed)
            if Device.GPU in one.devices and capacity.gpus:
                options.append(self.estimates.run_s(row, Device.GPU) / capacity.gpu_speed)
            best_s = min(options)
            work_s += best_s if math.isfinite(best_s) else 0.0
        return work_s

    def _unmeasured(self, task: TaskSpec) -> int:
        """Steps of which no time was measured, on any device, next to any model of GPU here."""
        measured_s = self.estimates.measured_s
        return sum(
            all(
                measured_s(row_of(one, task.size_mb, model), device) is None
                for model in self._models
                for device in one.devices
            )
            for one in task.pipeline.subtasks
        )

    def view(
        self, task: TaskSpec, fits: Mask, *, now: float, queue_length: int, rate_per_s: float
    ) -> PipelineClusterView:
        columns: dict[str, Any] = {
            name: self._columns[name].astype(np.float32)
            for name in (*_LOAD, *_COUNTS, *_FREE, *_FIXED)
        }
        could = np.where(self.could_ever(task), self.task_s(task), math.inf)
        return PipelineClusterView(
            now=now,
            names=self.names,
            platform=self._platforms,
            task_s=could.astype(np.float32),
            report_age_s=(now - self._columns["reported_at_s"]).astype(np.float32),
            queue_length=queue_length,
            arrival_rate_per_s=rate_per_s,
            alive=self._alive.copy(),
            unmeasured_steps=self._unmeasured(task),
            **columns,
        )


def _speeds(capacity: NodeCapacity) -> Speeds:
    """The master's estimates are those of speed 1."""
    return Speeds(
        capacity.gpu_model,
        capacity.cpu_speed if capacity.cores else 0.0,
        capacity.gpu_speed if capacity.gpus else 0.0,
    )
