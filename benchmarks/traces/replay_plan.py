"""From a trace to requests for HRM: jobs become applications, tasks become containers.

Fractions of a core in the trace are counted in tenths: one core is ``PARTS_PER_CORE`` vcores on
nodes and in requests alike. What it does not contain is assumed (``Assumptions``). Two things
differ from the trace, since HRM serves one GPU per container and an executor runs many tasks:

- an instance of several GPUs becomes as many containers of one, which share its cores and memory;
- a task of more instances than ``containers_per_task`` gets that many containers, and each runs its
  part of the instances one after the other. The work stays the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.traces.trace_records import TraceJob, TraceNode, TraceTask
from hrm.core.vocabulary.model import Resources
from hrm.errors import InvalidRequest

__all__ = [
    "PARTS_PER_CORE",
    "Assumptions",
    "JobPlan",
    "TaskPlan",
    "median_request",
    "offered_load",
    "plan_jobs",
    "poisson",
    "sampled_nodes",
    "uniform_nodes",
    "with_load",
]

PARTS_PER_CORE = 10
LEAST_RUN_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumptions where a trace is silent. ``gpu_memory_mib`` is of a whole GPU, on any node."""

    vcores: float = 1.0
    memory_mib: int = 1024
    gpu_memory_mib: int = 16_384
    containers_per_task: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """Like containers, one for each of ``durations_s``. ``resources`` in parts of cores."""

    name: str
    resources: Resources
    durations_s: tuple[float, ...]
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """An application: ``gang`` of its first containers start together, or none."""

    job: TraceJob
    tasks: tuple[TaskPlan, ...]
    arrival_s: float
    gang: int

    @property
    def containers(self) -> int:
        return sum(len(task.durations_s) for task in self.tasks)


def plan_jobs(jobs: Iterable[TraceJob], assumed: Assumptions) -> list[JobPlan]:
    """The plans of ``jobs`` in order of arrival, the first at 0.

    Raises:
        InvalidRequest: there is no job, or none has a run time: the trace leaves it to the
            schedule.
    """
    ordered = sorted(jobs, key=lambda job: job.arrival_s)
    if not ordered:
        raise InvalidRequest("there is no job to replay; name another trace")
    if not any(task.duration_s for job in ordered for task in job.tasks):
        raise InvalidRequest(
            "no job of this trace has a run time: it leaves that to the schedule; put the "
            "measurements of the same origin beside it, or above it (docs/traces.md)"
        )
    begin_s = ordered[0].arrival_s
    return [_plan(job, job.arrival_s - begin_s, assumed) for job in ordered]


def _plan(job: TraceJob, arrival_s: float, assumed: Assumptions) -> JobPlan:
    tasks = tuple(_task(task, assumed) for task in job.tasks)
    several_gpus = any(task.gpus > 1 for task in job.tasks)
    gang = len(tasks[0].durations_s) if (job.together or several_gpus) and len(tasks) == 1 else 0
    return JobPlan(job=job, tasks=tasks, arrival_s=arrival_s, gang=gang if gang > 1 else 0)


def _task(task: TraceTask, assumed: Assumptions) -> TaskPlan:
    parts = max(1, task.gpus)
    vcores = (task.vcores or assumed.vcores) / parts
    device_mib = task.gpu_memory_mib or math.ceil(task.gpu_share * assumed.gpu_memory_mib)
    resources = Resources(
        # 0.3 cores are 3 parts, and not 4 because of the binary representation of 0.3.
        max(1, math.ceil(round(vcores * PARTS_PER_CORE, 6))),
        max(1, math.ceil((task.memory_mib or assumed.memory_mib) / parts)),
        device_mib if task.gpus else 0,
    )
    # What runs on GPUs is not folded: its instances work at the same time.
    limit = task.instances if task.gpus else min(task.instances, assumed.containers_per_task)
    if task.measured_s:
        durations = [sum(task.measured_s[first::limit]) for first in range(limit)]
    else:
        durations = [task.duration_s * task.instances / limit] * limit
    return TaskPlan(
        name=task.name,
        resources=resources,
        durations_s=tuple(max(LEAST_RUN_S, x) for x in durations for _ in range(parts)),
        parents=task.parents,
    )


def uniform_nodes(count: int, vcores: int, memory_mib: int, gpus: int = 0) -> list[TraceNode]:
    """``count`` like nodes."""
    return [
        TraceNode(name=f"node-{number:05d}", vcores=vcores, memory_mib=memory_mib, gpus=gpus)
        for number in range(1, count + 1)
    ]


def sampled_nodes(nodes: Sequence[TraceNode], count: int) -> list[TraceNode]:
    """``count`` machines evenly spread over a cluster's list, repeated if necessary."""
    whole, rest = divmod(count, len(nodes))
    chosen = [*nodes] * whole + [nodes[index * len(nodes) // rest] for index in range(rest)]
    return [replace(node, name=f"{node.name}-{at}") for at, node in enumerate(chosen)]


def offered_load(
    plans: Sequence[JobPlan], nodes: Iterable[TraceNode], gpu_memory_mib: int
) -> float:
    """Work over capacity from the first to the last arrival, if every job started on arrival.

    What jobs would do after the last arrival does not count: run times have long tails, and a week
    of one job is not evidence of how full an hour is. Of the resource of which it is largest:
    vcores, memory or device memory.
    """
    end_s = plans[-1].arrival_s
    if end_s <= plans[0].arrival_s:
        return math.inf
    capacity = np.zeros(3)
    for node in nodes:
        gpus_mib = node.gpus * gpu_memory_mib
        capacity += (node.vcores * PARTS_PER_CORE, node.memory_mib, gpus_mib)
    work = np.zeros(3)
    for plan in plans:
        ends_s: dict[str, float] = {}
        for task in plan.tasks:
            begin_s = max((ends_s[x] for x in task.parents), default=plan.arrival_s)
            ends_s[task.name] = begin_s + max(task.durations_s)
            left_s = max(0.0, end_s - begin_s)
            run_s = sum(min(x, left_s) for x in task.durations_s)
            held = task.resources
            work += (held.vcores * run_s, held.memory_mib * run_s, held.gpu_memory_mib * run_s)
    asked = work > 0
    if np.any(capacity[asked] == 0):
        return math.inf
    load = work[asked] / (capacity[asked] * (end_s - plans[0].arrival_s))
    return float(load.max(initial=0.0))


def poisson(plans: Sequence[JobPlan], count: int, gap_s: float, seed: int) -> list[JobPlan]:
    """``count`` jobs drawn from ``plans``, on average ``gap_s`` apart, if a trace has none."""
    chance = random.Random(seed)  # nosec B311
    at_s, drawn = 0.0, []
    for _ in range(count):
        drawn.append(replace(chance.choice(plans), arrival_s=at_s))
        at_s += chance.expovariate(1.0 / gap_s)
    return drawn


def with_load(plans: Sequence[JobPlan], factor: float) -> list[JobPlan]:
    """The same jobs, ``factor`` times as many per hour."""
    if not (factor > 0 and math.isfinite(factor)):
        raise InvalidRequest(f"the load cannot be scaled by {factor:g}; name a number above 0")
    return [replace(plan, arrival_s=plan.arrival_s / factor) for plan in plans]


def median_request(plans: Iterable[JobPlan]) -> Resources:
    """The median container, ordered by device memory, vcores, memory."""
    requests = sorted(
        (task.resources.gpu_memory_mib, task.resources.vcores, task.resources.memory_mib)
        for plan in plans
        for task in plan.tasks
        for _ in task.durations_s
    )
    device_mib, vcores, memory_mib = requests[len(requests) // 2]
    return Resources(vcores, memory_mib, device_mib)
