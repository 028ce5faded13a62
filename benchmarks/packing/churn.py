"""Arrivals and ends: how long containers wait under each policy.

Pods that ran are drawn with replacement and arrive as a Poisson process, at a rate that offers the
nodes a given load; each runs for as long as it did, and what waits goes on waiting. All of the
scheduling is the master's and the nodes' own core (``benchmarks.traces.replay``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.traces.replay import Setup, replay
from benchmarks.traces.replay_plan import (
    Assumptions,
    JobPlan,
    offered_load,
    plan_jobs,
    poisson,
    with_load,
)
from benchmarks.traces.trace_records import TraceJob, TraceNode
from hrm.core.scheduling.scheduler import PlacementPolicy

__all__ = ["Churn", "mean_wait_s", "plans_at"]

_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """The extent of a run."""

    nodes: int = 40
    jobs: int = 1_000
    schedulers: int = 4


def plans_at(
    jobs: Sequence[TraceJob], nodes: Sequence[TraceNode], churn: Churn, load: float, seed: int
) -> list[JobPlan]:
    """The arrivals of one seed. ``load``: work over capacity, of the scarcest resource, between
    first and last arrival."""
    drawn = poisson(plan_jobs(jobs, Assumptions()), churn.jobs, 1.0, seed)
    slow, fast = 1e-9, 1e9
    for _ in range(_HALVINGS):
        factor = math.sqrt(slow * fast)
        offered = offered_load(with_load(drawn, factor), nodes, Assumptions().gpu_memory_mib)
        slow, fast = (factor, fast) if offered < load else (slow, factor)
    return with_load(drawn, slow)


def mean_wait_s(
    policy: Callable[[int], PlacementPolicy],
    plans: Sequence[JobPlan],
    nodes: Sequence[TraceNode],
    schedulers: int,
) -> float:
    """From a container's request to its start. ``policy``: makes that of a scheduler, by number."""
    return replay(plans, nodes, Setup(policy=policy, schedulers=schedulers)).wait.mean
