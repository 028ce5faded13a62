"""Sets of training jobs: RLPTO's twelve, its four combinations of priorities, and arrivals.

Source: RLPTO (Lu et al., IEEE TPDS 2023), section 5.1 and table V. The counts printed with the
second combination are not those of its sequence; the sequence is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hrm.core.vocabulary.model import ApplicationId
from hrm.learn.experiment_queue import POINTS
from hrm.learn.training_curves import TrainingCurve, drawn_curve, fitted_curve
from hrm.learn.training_jobs import TrainingJob

__all__ = ["COMBINATIONS", "DrawCurve", "arriving_jobs", "drawn_jobs", "twelve_jobs"]

COMBINATIONS: dict[int, tuple[int, ...]] = {
    1: (1, 2, 2, 3, 1, 2, 1, 3, 1, 1, 1, 3),
    2: (2, 3, 1, 4, 1, 2, 2, 1, 4, 1, 1, 3),
    3: (1, 4, 2, 3, 1, 4, 4, 3, 4, 4, 1, 4),
    4: (1, 4, 4, 3, 1, 2, 5, 3, 4, 4, 5, 1),
}
"""Priorities of jobs 1 to 12, in the order of their submission: four large, medium, small ones."""
SCALES = (2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0)
TENANTS = 3
DEADLINES = 0.2
DrawCurve = Callable[[np.random.Generator], TrainingCurve]


def twelve_jobs(
    seed: int,
    *,
    priorities: Sequence[int] = (1,) * 12,
    beta: float = 0.0003,
    speed: float = 1.0,
    workers_max: int = 3,
) -> list[TrainingJob]:
    """The twelve jobs of the source's experiments, all of which arrive at 0.

    Each has random numbers of its own, so that jobs of one seed are alike under all methods.
    """
    return [
        TrainingJob(
            job_id=ApplicationId(f"task-{number + 1}"),
            curve=fitted_curve(np.random.default_rng([seed, number]), scale, speed),
            priority=priority,
            points=POINTS[priority],
            scale=scale,
            tenant=f"tenant-{number % TENANTS}",
            beta=beta,
            workers_max=workers_max,
        )
        for number, (scale, priority) in enumerate(zip(SCALES, priorities, strict=True))
    ]


def arriving_jobs(
    rng: np.random.Generator,
    draw: DrawCurve,
    *,
    count: int,
    workers: int,
    load: float,
    beta: float = 0.0003,
    workers_max: int = 4,
) -> list[TrainingJob]:
    """Poisson arrivals of jobs with curves of ``draw``, at ``load``: the work that arrives, each
    job on two workers, over what ``workers`` can do. A fifth has a deadline."""
    curves = [draw(rng) for _ in range(count)]
    work = [2.0 * curve.seconds(2) * curve.epochs_max for curve in curves]
    between_s = float(np.mean(work)) / (load * workers)
    small, large = np.quantile(work, (1 / 3, 2 / 3))
    now, jobs = 0.0, []
    for number, (curve, own) in enumerate(zip(curves, work, strict=True)):
        priority = int(rng.integers(1, 5))
        ideal_s = curve.epochs_max * curve.seconds(workers_max)
        due = ideal_s * float(rng.uniform(1.5, 4.0))
        jobs.append(
            TrainingJob(
                job_id=ApplicationId(f"task-{number + 1}"),
                curve=curve,
                arrives=now,
                priority=priority,
                points=POINTS[priority],
                scale=int(own > small) + int(own > large),
                tenant=f"tenant-{int(rng.integers(TENANTS))}",
                beta=beta,
                workers_max=workers_max,
                deadline_s=due if rng.random() < DEADLINES else math.inf,
            )
        )
        now += float(rng.exponential(between_s))
    return jobs


def drawn_jobs(seed: int, *, count: int = 24) -> tuple[list[TrainingJob], int]:
    """An episode of training: jobs of the drawn family, and the workers of their cluster."""
    rng = np.random.default_rng([seed, 0xE1A5])
    workers = int(rng.choice([8, 12, 16, 24]))
    load = float(rng.choice([0.5, 0.8, 1.1]))
    jobs = arriving_jobs(rng, drawn_curve, count=count, workers=workers, load=load)
    return jobs, workers
