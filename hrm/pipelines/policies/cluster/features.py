"""The features from which the paper's network decides: the same code for training and for use.
Those of ``ldwp-set`` are in ``scale_free``.

Two sets of features. ``paper`` is table 1 of the LDWP paper: type and size of the task, and six
utilisations of every node. ``extended`` (the default) adds backlog, capacity and speed:
``NODE_FIELDS`` and ``TASK_FIELDS``. All numbers are scaled to about 0..1, by constants and never by
the view's contents: otherwise the paper's learning rate of 0.1 ends in NaN after a few updates. A
number that is NaN in the view remains NaN here, so that the caller notices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hrm.core.vocabulary.model import NodeName, WorkloadClass
from hrm.pipelines.core.model import PipelineClusterView, TaskSpec, Vector

__all__ = [
    "CANDIDATES_MAX",
    "NODE_FIELDS",
    "PAPER_NODE_FIELDS",
    "PAPER_TASK_FIELDS",
    "TASK_FIELDS",
    "TYPES",
    "TYPES_MAX",
    "FlatEncoder",
    "FlatState",
    "Layout",
    "completion_s",
    "node_features",
    "schema_hash",
    "size_feature",
    "task_features",
    "usable",
]

TYPES = ("face-recognition", "intrusion-detection", "object-detection", "video-synopsis")
"""The pipelines that the default weights know."""
TYPES_MAX = 4
CANDIDATES_MAX = 64

PAPER_TASK_FIELDS = ("type", "size")
PAPER_NODE_FIELDS = ("cpu", "gpu", "memory", "gpu_memory", "sent", "received")
NODE_FIELDS = (
    *PAPER_NODE_FIELDS,
    "running", "waiting_batch", "waiting_stream", "expected_wait", "free_cores", "free_memory",
    "free_gpu_memory", "gpus", "cpu_speed", "completion",
)  # fmt: skip
"""Per node. ``completion`` is the expected wait plus the time that this task takes there: the speed
of the node's devices for this type of task, in the unit of the wait."""
TASK_FIELDS = (
    "type_0", "type_1", "type_2", "type_3", "size", "cores", "memory", "gpu_memory", "stream",
    "arrival_rate", "queue", "nodes",
)  # fmt: skip

_SCALES = {
    "size_mb": 400.0, "tasks": 64.0, "seconds": 600.0, "memory_log2": 20.0, "gpus": 4.0,
    "cpu_speed": 2.0, "cores": 16.0, "per_minute": 120.0, "queue": 1000.0, "nodes": 64.0,
}  # fmt: skip
_MOST = 2.0
_SIZE_MOST = 1.5

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]


def schema_hash(*parts: object) -> str:
    """16 hexadecimal digits that change with the fields, their scales and ``parts``."""
    text = json.dumps([NODE_FIELDS, TASK_FIELDS, _SCALES, _MOST, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def size_feature(size_mb: float) -> float:
    """log1p(MB) / log1p(400), 0 to 1.5."""
    return float(np.clip(np.log1p(size_mb) / np.log1p(_SCALES["size_mb"]), 0.0, _SIZE_MOST))


def completion_s(view: PipelineClusterView) -> Vector:
    """Shape (nodes,): when the task would be done, seconds from now; inf where unknown."""
    total = view.expected_wait_s + view.task_s
    return np.where(np.isnan(total), np.float32(np.inf), total)


def usable(view: PipelineClusterView, fits: Bools) -> Bools:
    """Nodes that may take the task: all of ``fits`` if ``alive`` or ``task_s`` leaves none."""
    good: Bools = fits & view.alive & (view.task_s < np.inf)
    return good if good.any() else fits


def _log(values: Vector, scale: float) -> Vector:
    scaled: Vector = np.minimum(np.log1p(np.maximum(values, 0.0)) / np.log1p(scale), _MOST)
    return scaled


def node_features(view: PipelineClusterView, rows: Rows) -> Vector:
    """Shape (len(rows), 16), ``NODE_FIELDS``; the first six are ``PAPER_NODE_FIELDS``."""
    features = np.empty((len(rows), len(NODE_FIELDS)), dtype=np.float32)
    for number, column in enumerate(
        (view.cpu, view.gpu, view.memory, view.gpu_memory, view.sent, view.received)
    ):
        features[:, number] = column[rows]
    counts = np.stack((view.running[rows], view.waiting_batch[rows], view.waiting_stream[rows]), 1)
    features[:, 6:9] = _log(counts, _SCALES["tasks"])
    wait = view.expected_wait_s[rows]
    features[:, 9] = _log(wait, _SCALES["seconds"])
    features[:, 10] = view.free_cores[rows] / np.maximum(view.cores[rows], 1.0)
    features[:, 11] = np.log2(1.0 + view.free_memory_mib[rows]) / _SCALES["memory_log2"]
    features[:, 12] = np.log2(1.0 + view.free_gpu_memory_mib[rows]) / _SCALES["memory_log2"]
    features[:, 13] = np.minimum(view.gpus[rows] / _SCALES["gpus"], _MOST)
    features[:, 14] = np.minimum(view.cpu_speed[rows] / _SCALES["cpu_speed"], _MOST)
    features[:, 15] = _log(wait + view.task_s[rows], _SCALES["seconds"])
    return features


def _width(task: TaskSpec) -> int:
    """Subtasks that may run at once: the most that have the same depth in the DAG."""
    depth: dict[str, int] = {}
    for subtask in task.pipeline.subtasks:
        depth[subtask.name] = 1 + max((depth[name] for name in subtask.after), default=0)
    levels = list(depth.values())
    return max((levels.count(level) for level in set(levels)), default=0)


def task_features(
    task: TaskSpec, view: PipelineClusterView, types: Sequence[str], nodes: int
) -> Vector:
    """Shape (12,), ``TASK_FIELDS``. A type that is not among ``types`` has four zeros."""
    features = np.zeros(len(TASK_FIELDS), dtype=np.float32)
    if task.pipeline.name in types:
        features[types.index(task.pipeline.name)] = 1.0
    subtasks = task.pipeline.subtasks
    features[4] = size_feature(task.size_mb)
    features[5] = min(_width(task) / _SCALES["cores"], _MOST)
    features[6] = np.log2(1.0 + max(s.memory_mib for s in subtasks)) / _SCALES["memory_log2"]
    features[7] = np.log2(1.0 + max(s.gpu_memory_mib for s in subtasks)) / _SCALES["memory_log2"]
    features[8] = float(task.workload_class is WorkloadClass.STREAM)
    of_cluster = np.array(
        (60.0 * view.arrival_rate_per_s, view.queue_length, nodes), dtype=np.float32
    )
    scales = np.log1p((_SCALES["per_minute"], _SCALES["queue"], _SCALES["nodes"]))
    features[9:] = np.minimum(np.log1p(np.maximum(of_cluster, 0.0)) / scales, _MOST)
    return features


class Layout(NamedTuple):
    """The position of each number in the paper's observation, for any number of nodes."""

    features: str = "extended"
    """``paper`` or ``extended``."""
    types: tuple[str, ...] = TYPES
    history: int = 1
    """H: observations that a decision sees, the last one included."""

    @property
    def task_fields(self) -> int:
        return len(PAPER_TASK_FIELDS if self.features == "paper" else TASK_FIELDS)

    @property
    def node_fields(self) -> int:
        return len(PAPER_NODE_FIELDS if self.features == "paper" else NODE_FIELDS)

    def observation(self, nodes: int) -> int:
        """Numbers of one observation: 2 + 6M in the paper."""
        return self.task_fields + self.node_fields * nodes

    def inputs(self, nodes: int) -> int:
        """H observations and the H - 1 actions between them, as one-hots."""
        return self.history * self.observation(nodes) + (self.history - 1) * nodes

    def schema(self) -> str:
        return schema_hash("ldwp", self.features, list(self.types), self.history)


class FlatState(NamedTuple):
    """What ``ldwp`` decides from, nodes in the order of the model.

    ``x`` (``Layout.inputs``,), ``mask`` (M,) of those that may be chosen, ``rows`` (M,) of the
    view, -1 where the view has no such node.
    """

    x: Vector
    mask: Bools
    rows: Rows


class FlatEncoder:
    """Observations for a fixed list of nodes, with their history.

    Two calls per decision: ``observe``, then ``acted`` with the number of the chosen node.
    """

    def __init__(self, layout: Layout, names: Sequence[NodeName]) -> None:
        self.layout = layout
        self.names = tuple(names)
        self._index = {name: number for number, name in enumerate(self.names)}
        self._now: tuple[Vector, Vector] | None = None
        self._past: list[tuple[Vector, Vector, int]] = []  # task, nodes, action

    def observe(self, task: TaskSpec, view: PipelineClusterView, fits: Bools) -> FlatState:
        """The state of this decision; left-padded with zeros while there is little history."""
        rows = self._rows(view.names)
        there = rows >= 0
        mask = np.zeros(len(self.names), dtype=np.bool_)
        mask[there] = usable(view, fits)[rows[there]]
        nodes = np.zeros((len(self.names), self.layout.node_fields), dtype=np.float32)
        nodes[there] = node_features(view, rows[there])[:, : self.layout.node_fields]
        self._now = (self._task(task, view), nodes)
        return FlatState(self._stacked(), mask, rows)

    def acted(self, action: int) -> None:
        """The task of the last observation went to node ``action`` of the model."""
        assert self._now is not None
        if self.layout.history > 1:
            self._past = [*self._past, (*self._now, action)][-(self.layout.history - 1) :]

    def renamed(self, names: Sequence[NodeName]) -> FlatEncoder:
        """The same history for other nodes: removed ones are dropped, new ones get zeros."""
        other = FlatEncoder(self.layout, names)
        where = np.array([self._index.get(name, -1) for name in names], dtype=np.intp)
        for task, nodes, action in self._past:
            name = self.names[action] if action >= 0 else NodeName("")
            moved = np.where((where >= 0)[:, None], nodes[where], np.float32(0.0))
            other._past.append((task, moved, other._index.get(name, -1)))
        return other

    def forget(self) -> None:
        """Begin a new history."""
        self._past.clear()

    def _rows(self, names: tuple[NodeName, ...]) -> Rows:
        if names == self.names:
            return np.arange(len(names))
        found = {name: row for row, name in enumerate(names)}
        return np.array([found.get(name, -1) for name in self.names], dtype=np.intp)

    def _task(self, task: TaskSpec, view: PipelineClusterView) -> Vector:
        types = self.layout.types
        if self.layout.features == "paper":
            known = task.pipeline.name in types
            number = types.index(task.pipeline.name) if known else len(types)
            return np.array((number / len(types), size_feature(task.size_mb)), dtype=np.float32)
        return task_features(task, view, types, int(np.count_nonzero(view.alive)))

    def _stacked(self) -> Vector:
        assert self._now is not None
        nodes = len(self.names)
        x = np.zeros(self.layout.inputs(nodes), dtype=np.float32)
        width = self.layout.observation(nodes) + nodes
        at = (self.layout.history - 1 - len(self._past)) * width
        for task, features, action in self._past:
            x[at : at + width - nodes] = np.concatenate((task, features.ravel()))
            if action >= 0:
                x[at + width - nodes + action] = 1.0
            at += width
        x[at:] = np.concatenate((self._now[0], self._now[1].ravel()))
        return x
