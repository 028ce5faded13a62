"""The workload of an experiment, drawn by its seed: jobs, and when they request what.

A job is one application that requests all of its containers once (the paper's tasks), which run for
a fixed time each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from hrm.core.vocabulary.model import Resources, WorkloadClass

__all__ = ["TASKS_A_JOB", "JobPlan", "arrivals", "burst", "mixed", "saturated"]

TASKS_A_JOB = 40
TASK = Resources(1, 1024)
AT_ONCE_S = 0.001
"""Jobs that are submitted at once arrive within this time, in an order that the seed draws."""
SATURATED_AT_S = 0.9
_FILLED_S = 300.0
STREAM_CONTAINERS = 4
STREAM_RESOURCES = Resources(1, 73_728)
"""More memory than an ordinary node of the experiments has: streams need the large ones."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """``at_s``: when it requests, seconds from the start. ``run_s``: how long a container runs.
    ``counted``: it is measured, not only there."""

    at_s: float
    containers: int
    run_s: float
    workload_class: WorkloadClass = WorkloadClass.BATCH
    resources: Resources = TASK
    counted: bool = True


def burst(count: int, seed: int, *, run_s: float = 25.0, tasks: int = TASKS_A_JOB) -> list[JobPlan]:
    """``count`` jobs at once: the paper's set-up (section 6.1)."""
    chance = _source(seed, f"burst/{count}")
    times = sorted(chance.uniform(0.0, AT_ONCE_S) for _ in range(count))
    return [JobPlan(at_s, tasks, run_s) for at_s in times]


def saturated(count: int, seed: int, *, slots: int) -> list[JobPlan]:
    """``count`` jobs at once, when others that are not counted have taken every one of ``slots``
    and run until the last of these jobs has its places in queues."""
    fillers, rest = divmod(slots, TASKS_A_JOB)
    sizes = [TASKS_A_JOB] * fillers + [rest] * bool(rest)
    jobs = [JobPlan(0.0, size, _FILLED_S, counted=False) for size in sizes]
    measured = burst(count, seed)
    return jobs + [replace(job, at_s=SATURATED_AT_S + job.at_s) for job in measured]


def arrivals(
    rate_per_s: float, count: int, seed: int, *, run_s: float, tasks: int = TASKS_A_JOB
) -> list[JobPlan]:
    """``count`` jobs, with exponential times between them."""
    chance = _source(seed, "arrivals")
    at_s = 0.0
    jobs = []
    for _ in range(count):
        # Drawn for rate 1 and divided: every rate has the same pattern, faster or slower.
        at_s += chance.expovariate(1.0) / rate_per_s
        jobs.append(JobPlan(at_s, tasks, run_s))
    return jobs


def mixed(
    rate_per_s: float, count: int, streams_per_s: float, seed: int, *, run_s: float
) -> list[JobPlan]:
    """Batch jobs as in ``arrivals``, and streams at uniform times among them."""
    jobs = arrivals(rate_per_s, count, seed, run_s=run_s)
    chance = _source(seed, "streams")
    end_s = jobs[-1].at_s
    jobs += [
        JobPlan(
            chance.uniform(0.0, end_s),
            STREAM_CONTAINERS,
            run_s,
            WorkloadClass.STREAM,
            STREAM_RESOURCES,
        )
        for _ in range(max(1, round(streams_per_s * end_s)))
    ]
    return sorted(jobs, key=lambda job: job.at_s)


def _source(seed: int, purpose: str) -> Random:
    return Random(f"{seed}/{purpose}")  # nosec B311
