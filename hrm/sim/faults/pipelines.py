"""Pipelines next to Spark: which clients submit which tasks, and bounds that are met in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hrm.core.vocabulary.model import ResourceUnit, WorkloadClass
from hrm.core.vocabulary.workload_bounds import WorkloadBounds
from hrm.pipelines.core.model import Device, PipelineSpec, SubtaskSpec, TaskId
from hrm.pipelines.core.workload import WorkerSize
from hrm.sim.faults.capacity import demand_of, serves
from hrm.sim.faults.pipeline_plan import PipelineClientPlan, PipelineTaskPlan
from hrm.sim.faults.plan import Plan, source

__all__ = ["could_serve", "with_pipelines"]

_CPU, _GPU = frozenset({Device.CPU}), frozenset({Device.GPU})


def with_pipelines(plan: Plan) -> Plan:
    """The plan with one to three clients. Where like GPUs are compared there are none."""
    if "rival-gpus" in plan.traits:
        return plan
    chance = source(plan.seed, "pipelines")
    clients = tuple(_client(plan, number + 1) for number in range(chance.randint(1, 3)))
    return replace(plan, pipelines=clients, workload_bounds=_bounds(chance, plan))


def could_serve(size: WorkerSize, units: Sequence[ResourceUnit]) -> bool:
    """Does a worker of this size fit one of these units?"""
    demand = demand_of(size.resources, 0, units)
    return any(serves(demand, unit) for unit in units)


def _bounds(chance: Random, plan: Plan) -> WorkloadBounds:
    bounds = WorkloadBounds(
        workers_max=chance.randint(1, 6),
        begun_max=chance.randint(1, 4),
        worker_idle_s=chance.uniform(0.5, 4.0),
        workload_idle_s=chance.uniform(0.5, 6.0),
        failures_max=chance.randint(3, 8),
        recovery_s=plan.bounds.recovery_window_s + chance.uniform(0.5, 4.0),
        connect_s=chance.uniform(3.0, 9.0),
    )
    return replace(bounds, stream_idle_s=2 * bounds.worker_idle_s)


def _client(plan: Plan, number: int) -> PipelineClientPlan:
    chance = source(plan.seed, f"pipeline-{number}")
    units = [unit for node in plan.nodes for unit in node.units]
    size = _size(chance, units)
    pipeline = _pipeline(chance, f"flow-{number}", size)
    is_stream = chance.random() < 0.3 and not {"policies", "feedback"} & {*plan.traits}
    burst, begin_s = chance.random() < 0.5, chance.uniform(0.5, 0.6 * plan.horizon_s)
    tasks = [
        _task(chance, f"task-{number}-{n + 1}", pipeline, begin_s if burst else None, plan)
        for n in range(chance.randint(1, 8))
    ]
    leaves_s, away_s = chance.uniform(1.0, plan.horizon_s), chance.uniform(1.0, 15.0)
    client = PipelineClientPlan(
        name=f"submitter-{number}",
        pipeline=pipeline,
        size=size,
        workload_class=WorkloadClass.STREAM if is_stream else WorkloadClass.BATCH,
        tasks=tuple(tasks),
    )
    return replace(client, leaves_s=leaves_s, away_s=away_s) if chance.random() < 0.4 else client


def _size(chance: Random, units: Sequence[ResourceUnit]) -> WorkerSize:
    """One that fits some unit; a part of a GPU where it has one."""
    home = chance.choice(units)
    has_gpu = bool(home.capacity.gpu_memory_mib) and len(home.gpus) <= 1
    vcores = chance.randint(1, min(2, home.capacity.vcores))
    memory_mib = min(512 * chance.randint(1, 2), home.capacity.memory_mib)
    gpu_memory_mib = chance.choice((2048, 4096))
    if home.gpu_only and not has_gpu:
        return WorkerSize(1, 512)
    if has_gpu and (home.gpu_only or chance.random() < 0.7):
        return WorkerSize(vcores, memory_mib, gpu_memory_mib)
    return WorkerSize(vcores, memory_mib)


def _pipeline(chance: Random, name: str, size: WorkerSize) -> PipelineSpec:
    """One to three steps, each after some of those before it."""
    steps: list[SubtaskSpec] = []
    for number in range(chance.randint(1, 3)):
        before = tuple(x.name for x in steps if chance.random() < 0.6)
        kinds = (_CPU, _GPU, _CPU | _GPU) if size.gpu_memory_mib else (_CPU,)
        devices = chance.choice(kinds)
        steps.append(
            SubtaskSpec(
                name=f"step-{number + 1}",
                kind=f"{name}-{number + 1}",
                after=before,
                devices=devices,
                gpu_memory_mib=size.gpu_memory_mib // 2 if Device.GPU in devices else 0,
                attempts=chance.randint(1, 3),
            )
        )
    return PipelineSpec(name=name, reference="", subtasks=tuple(steps))


def _task(
    chance: Random, name: str, pipeline: PipelineSpec, start_s: float | None, plan: Plan
) -> PipelineTaskPlan:
    if start_s is None:
        start_s = chance.uniform(0.5, 0.9 * plan.horizon_s)
    longest_s = chance.choice((0.5, 3.0, 8.0))
    run_s = tuple(chance.uniform(0.1, longest_s) for _ in pipeline.subtasks)
    task = PipelineTaskPlan(TaskId(name), start_s, run_s, fails=chance.random() < 0.05)
    cancel_s = chance.uniform(0.0, 8.0)
    return replace(task, cancel_s=cancel_s) if chance.random() < 0.1 else task
