"""How long a cluster policy takes to place one pipeline task: ``python -m benchmarks.policies``.

Processor time of the deciding thread, because that is what the budget of learned policies counts
and other load on the machine hardly affects it. Each decision gets another view of the cluster,
made before the clock runs; the first ones are not counted. Weights are random numbers, which does
not affect the time. ``(hosted)`` includes the heuristic that every hosted decision calls as well,
the checks, and the bookkeeping.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import (
    CONSOLE,
    add_common_arguments,
    provenance,
    table,
    write_json,
    write_results,
)
from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import (
    ClusterPolicy,
    Device,
    PipelineClusterView,
    PipelineSpec,
    SubtaskSpec,
    TaskId,
    TaskSpec,
)
from hrm.pipelines.policies.cluster import HEURISTICS, load
from hrm.pipelines.policies.cluster.features import NODE_FIELDS, TASK_FIELDS, TYPES, Layout
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy
from hrm.pipelines.policies.cluster.networks import mlp_shapes, set_shapes
from hrm.pipelines.policies.cluster.scale_free import NODE_INPUTS, SET_SCHEMA, TASK_INPUTS
from hrm.policies.guard import GuardMode
from hrm.policies.model_files import Model

__all__ = ["main", "measure", "report"]

NODES = (11, 64, 256, 1_000, 10_000)
BUDGET_MS, BUDGET_NODES = 1.0, 1_000
WARM_UP = 20
VIEWS = 16


def view_of(nodes: int, seed: int) -> PipelineClusterView:
    """A busy cluster of three platforms, drawn at random."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        field.name: rng.random(nodes).astype(np.float32)
        for field in dataclasses.fields(PipelineClusterView)
        if field.name not in ("now", "names", "platform", "queue_length", "arrival_rate_per_s")
    }
    for name, most in (("running", 8), ("waiting_batch", 4), ("free_cores", 16)):
        arrays[name] = rng.integers(most, size=nodes).astype(np.float32)
    arrays |= {
        "expected_wait_s": 60.0 * arrays["expected_wait_s"],
        "task_s": 5.0 + 20.0 * arrays["task_s"],
        "cores": np.full(nodes, 16, dtype=np.float32),
        "gpus": np.full(nodes, 2, dtype=np.float32),
        "alive": np.ones(nodes, dtype=np.bool_),
    }
    return PipelineClusterView(
        now=0.0,
        names=tuple(NodeName(f"node-{number}") for number in range(nodes)),
        platform=tuple(f"type-{number % 3}" for number in range(nodes)),
        queue_length=3,
        arrival_rate_per_s=0.8,
        **arrays,
    )


def task_of(number: int) -> TaskSpec:
    """A chain of six steps."""
    steps = tuple(
        SubtaskSpec(
            name=f"step-{n}",
            kind=f"kind-{n}",
            after=(f"step-{n - 1}",) if n else (),
            devices=frozenset(Device),
        )
        for n in range(6)
    )
    spec = PipelineSpec(name="video-synopsis", reference="benchmarks:none", subtasks=steps)
    return TaskSpec(task_id=TaskId(f"task-{number}"), pipeline=spec, size_mb=60.0)


def _model(kind: str, nodes: int) -> Model:
    rng = np.random.default_rng(0)
    layout, view = Layout(), view_of(nodes, 0)
    shapes = set_shapes() if kind == "ldwp-set" else mlp_shapes(layout, nodes)
    arrays = {
        name: (rng.standard_normal(shape) / shape[-2:][0] ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
    }
    fields = len(NODE_FIELDS) + len(TASK_FIELDS)
    if kind == "ldwp-set":
        fields = len(NODE_INPUTS) + len(TASK_INPUTS)
    arrays |= {"low": np.full(fields, -1e9, np.float32), "high": np.full(fields, 1e9, np.float32)}
    meta = {
        "types": list(TYPES), "nodes_min": 1, "nodes_max": nodes, "q_abs_max": 1e6,
        "spread_max": 1e6,
        "features": layout.features, "history": layout.history,
        "nodes": [list(pair) for pair in zip(view.names, view.platform, strict=True)],
    }  # fmt: skip
    schema = SET_SCHEMA if kind == "ldwp-set" else layout.schema()
    return Model(kind=kind, version=1, schema=schema, arrays=arrays, meta=meta)


def _policies(nodes: int) -> dict[str, ClusterPolicy]:
    found = {name: load(name, rng=np.random.default_rng(0)) for name in HEURISTICS}
    for kind in ("ldwp", "ldwp-set"):
        model = _model(kind, nodes)
        rng = np.random.default_rng(0)
        found[kind] = load(kind, rng=rng, model=model, guarded=False)
        found[f"{kind} (hosted)"] = load(kind, rng=rng, model=model, mode=GuardMode.ON)
    return found


def measure(name: str, policy: ClusterPolicy, nodes: int, decisions: int) -> dict[str, Any]:
    """Processor time of single decisions of ``policy``, in milliseconds."""
    views = [view_of(nodes, seed) for seed in range(VIEWS)]
    fits = np.ones(nodes, dtype=np.bool_)
    times_ms = []
    gc.collect()
    gc.disable()
    try:
        for number in range(WARM_UP + decisions):
            task, view = task_of(number), views[number % VIEWS]
            began = time.thread_time_ns()
            policy.choose(task, view, fits)
            times_ms.append((time.thread_time_ns() - began) / 1e6)
    finally:
        gc.enable()
    p50, p99 = np.percentile(times_ms[WARM_UP:], (50, 99))
    found = {"policy": name, "nodes": nodes, "p50_ms": float(p50), "p99_ms": float(p99)}
    if isinstance(policy, GuardedClusterPolicy):
        # With random weights only time causes refusals; anything else voids the result.
        found["fallbacks"] = policy.guard.status(0.0).fallbacks
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure all policies; exit status 1 if a learned one is over its budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_common_arguments(parser)
    args = parser.parse_args(words)
    decisions = 300 if args.quick else 2_000
    rows = []
    for nodes in NODES:
        for name, policy in _policies(nodes).items():
            rows.append(measure(name, policy, nodes, decisions if nodes < 10_000 else 200))
            row = rows[-1]
            CONSOLE.print(
                f"{name:22} {nodes:6} nodes: p50 {row['p50_ms']:.3f} ms, p99 {row['p99_ms']:.3f} ms"
            )
    late = [
        row
        for row in rows
        if row["policy"].startswith("ldwp-set")
        and row["nodes"] <= BUDGET_NODES
        and row["p50_ms"] > BUDGET_MS
    ]
    document = {
        "provenance": provenance("benchmarks.policies", ["numpy"]),
        "budget_ms": BUDGET_MS,
        "decisions": decisions,
        "rows": rows,
        "over_budget": late,
    }
    if args.json is not None:
        write_json(args.json, document)
    if not args.quick:
        write_results("policies", "Placing one pipeline task", document, report(document))
    return 1 if late else 0


def report(document: Mapping[str, Any]) -> str:
    """Markdown: p50 and p99 of every policy by number of nodes."""
    held = {(row["policy"], row["nodes"]): row for row in document["rows"]}
    lines = []
    for name in dict.fromkeys(row["policy"] for row in document["rows"]):
        rows = [held[name, nodes] for nodes in NODES]
        lines.append([name, *(f"{row['p50_ms']:.3f} / {row['p99_ms']:.3f}" for row in rows)])
    late = "is" if document["over_budget"] else "is not"
    return (
        f"Processor time of a decision, p50 / p99 in ms, {document['decisions']:,} decisions each "
        f"(200 at 10,000 nodes), random weights. The median of `ldwp-set` {late} over its budget "
        f"of {document['budget_ms']:g} ms at up to {BUDGET_NODES:,} nodes.\n\n"
        + table(["policy", *(f"{nodes:,} nodes" for nodes in NODES)], lines)
    )


if __name__ == "__main__":
    sys.exit(main())
