"""What is decided of pipelines before a run: clients, their tasks, and the steps of these."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hrm.core.vocabulary.model import WorkloadClass
from hrm.pipelines.core.model import PipelineSpec, TaskId
from hrm.pipelines.core.workload import WorkerSize

__all__ = ["PipelineClientPlan", "PipelineTaskPlan"]


@dataclass(frozen=True, slots=True)
class PipelineTaskPlan:
    """``run_s``: of each step, in their order. ``fails``: its last step never returns.
    ``cancel_s``: so long after its submission its client cancels it."""

    task_id: TaskId
    start_s: float
    run_s: tuple[float, ...]
    fails: bool = False
    cancel_s: float = math.inf


@dataclass(frozen=True, slots=True)
class PipelineClientPlan:
    """One client that submits tasks of one pipeline. ``leaves_s``, ``away_s``: when it goes away,
    and for how long."""

    name: str
    pipeline: PipelineSpec
    size: WorkerSize
    workload_class: WorkloadClass
    tasks: tuple[PipelineTaskPlan, ...]
    leaves_s: float = math.inf
    away_s: float = 0.0
    queue: str = ""
    user: str = "somebody"
