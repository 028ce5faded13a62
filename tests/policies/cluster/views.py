"""Views, tasks and models made up for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import (
    Device,
    PipelineClusterView,
    PipelineSpec,
    SubtaskSpec,
    TaskId,
    TaskSpec,
)
from hrm.pipelines.policies.cluster.features import (
    NODE_FIELDS,
    PAPER_NODE_FIELDS,
    PAPER_TASK_FIELDS,
    TASK_FIELDS,
    Layout,
)
from hrm.pipelines.policies.cluster.networks import mlp_shapes, set_shapes
from hrm.pipelines.policies.cluster.scale_free import NODE_INPUTS, SET_SCHEMA, TASK_INPUTS
from hrm.policies.model_files import Model

PLATFORMS = ("p4x4", "k80x4", "p4x2")


def task_of(
    number: int = 0, pipeline: str = "video-synopsis", *, size_mb: float = 60.0, **fields: Any
) -> TaskSpec:
    """A task of two steps."""
    both = frozenset({Device.CPU, Device.GPU})
    steps = (
        SubtaskSpec(name="first", kind="a", devices=both, memory_mib=512, gpu_memory_mib=800),
        SubtaskSpec(name="second", kind="b", after=("first",), devices=frozenset({Device.CPU})),
    )
    spec = PipelineSpec(name=pipeline, reference="m:p", subtasks=steps)
    return TaskSpec(task_id=TaskId(f"task-{number}"), pipeline=spec, size_mb=size_mb, **fields)


def view_of(nodes: int, seed: int = 0, **columns: Any) -> PipelineClusterView:
    """A cluster of ``nodes`` in some random state; ``columns`` as given."""
    rng = np.random.default_rng(seed)

    def share() -> Any:
        return rng.random(nodes).astype(np.float32)

    def count(most: int) -> Any:
        return rng.integers(most, size=nodes).astype(np.float32)

    view = PipelineClusterView(
        now=100.0,
        names=tuple(NodeName(f"n{number}") for number in range(nodes)),
        cpu=share(),
        gpu=share(),
        memory=share(),
        gpu_memory=share(),
        sent=share(),
        received=share(),
        running=count(8),
        waiting_batch=count(4),
        waiting_stream=count(2),
        expected_wait_s=30.0 * share(),
        task_s=5.0 + 20.0 * share(),
        cores=np.full(nodes, 16, dtype=np.float32),
        free_cores=count(16),
        free_memory_mib=1024.0 * count(32),
        gpus=np.full(nodes, 2, dtype=np.float32),
        free_gpu_memory_mib=8192.0 * share(),
        platform=tuple(PLATFORMS[number % 3] for number in range(nodes)),
        cpu_speed=np.ones(nodes, dtype=np.float32),
        gpu_speed=np.ones(nodes, dtype=np.float32),
        report_age_s=np.full(nodes, 0.5, dtype=np.float32),
        queue_length=3,
        arrival_rate_per_s=0.8,
        alive=np.ones(nodes, dtype=np.bool_),
    )
    return dataclasses.replace(view, **columns)


def arranged(view: PipelineClusterView, rows: Any) -> PipelineClusterView:
    """The same cluster with its rows in another order, or some of them."""
    order = np.asarray(rows)
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(view):
        value = getattr(view, field.name)
        if isinstance(value, np.ndarray):
            changed[field.name] = value[order]
        elif isinstance(value, tuple):
            changed[field.name] = tuple(value[row] for row in order)
    return dataclasses.replace(view, **changed)


def all_fit(view: PipelineClusterView) -> Any:
    return np.ones(len(view.names), dtype=np.bool_)


def _weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) / shape[-2:][0] ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
    }


def _ranges(size: int) -> dict[str, Any]:
    return {"low": np.zeros(size, dtype=np.float32), "high": np.full(size, 2.0, dtype=np.float32)}


def set_model(seed: int = 0, *, schema: str = SET_SCHEMA, **meta: Any) -> Model:
    """Random weights of ``ldwp-set``."""
    held = {"nodes_min": 1, "nodes_max": 64, "q_abs_max": 99.0, "spread_max": 99.0, **meta}
    arrays = _weights(set_shapes(), seed) | _ranges(len(NODE_INPUTS) + len(TASK_INPUTS))
    arrays["low"] -= 3.0
    return Model(kind="ldwp-set", version=1, schema=schema, arrays=arrays, meta=held)


def mlp_model(nodes: int = 11, layout: Layout | None = None, seed: int = 0, **meta: Any) -> Model:
    """Random weights of ``ldwp`` for the nodes of ``view_of(nodes)``."""
    shape = Layout() if layout is None else layout
    view = view_of(nodes)
    held = {
        "types": list(shape.types), "features": shape.features, "history": shape.history,
        "nodes": [list(pair) for pair in zip(view.names, view.platform, strict=True)],
        "nodes_min": 1, "nodes_max": 64, "q_abs_max": 10.0, **meta,
    }  # fmt: skip
    fields = len(PAPER_NODE_FIELDS + PAPER_TASK_FIELDS)
    if shape.features == "extended":
        fields = len(NODE_FIELDS) + len(TASK_FIELDS)
    arrays = _weights(mlp_shapes(shape, nodes), seed) | _ranges(fields)
    return Model(kind="ldwp", version=1, schema=shape.schema(), arrays=arrays, meta=held)
