"""Jobs of the simulated training cluster, the rules of a run, and what is measured of one.

A job is *delivered* once its accuracy, without noise, is within a hundredth of what it will be at
its iteration limit: from then on its model is as good as it gets, whether it still runs or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hrm.core.vocabulary.model import ApplicationId
from hrm.learn.training_curves import TrainingCurve

__all__ = ["ClusterRules", "TrainingJob", "TrainingOutcome", "TrainingRun"]

DELIVERED = 0.99
ALMOST = 0.95
"""Shares of the final accuracy: for a job to be delivered, and for the time to nearly all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One job. ``deadline_s``: after its arrival; inf: none."""

    job_id: ApplicationId
    curve: TrainingCurve
    arrives: float = 0.0
    priority: int = 1
    points: float = 10.0
    scale: int = 1
    tenant: str = ""
    beta: float = 0.0003
    workers_min: int = 1
    workers_max: int = 4
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules:
    """How a run treats its jobs.

    Attributes:
        workers: of the cluster.
        slots: sizes of fixed slots of one job each, as of non-elastic methods; empty: elastic.
        by_priority: whether the queue knows priorities, else it is in the order of submission.
        stops_flat: whether a job that the core finds flat ends then, else at its iteration limit.
        running_max: jobs that may run at a time, each of which starts with its part of all workers
            at most; 0: as many as have workers.
        tiers: first and second target accuracy by scale. A job hands over its model at the first,
            which is when its points count, and ends at the second; None: no targets.
        resize_s: seconds of standstill of a job that is resized, drawn between these two.
        failures_per_hour: of workers of the whole cluster; ``repair_s`` each is away.
    """

    workers: int
    slots: tuple[int, ...] = ()
    by_priority: bool = False
    stops_flat: bool = True
    running_max: int = 0
    tiers: Mapping[int, tuple[float, float]] | None = None
    resize_s: tuple[float, float] = (0.0, 0.0)
    failures_per_hour: float = 0.0
    repair_s: float = 600.0


@dataclass(slots=True, kw_only=True)
class TrainingOutcome:
    """What became of a job; seconds of the run's clock, NaN: not yet."""

    job: TrainingJob
    started: float = math.nan
    handed_over: float = math.nan
    delivered: float = math.nan
    almost: float = math.nan
    completed: float = math.nan
    accuracy: float = math.nan
    node_s: float = 0.0
    resizes: int = 0
    interruptions: int = 0

    @property
    def completion_s(self) -> float:
        return self.completed - self.job.arrives

    def pays_at(self, *, delivered: bool) -> float:
        """When its points count: when its model is handed over, at its end, or when it is
        delivered."""
        if delivered:
            return self.delivered
        return self.completed if math.isnan(self.handed_over) else self.handed_over


class TrainingRun:
    """The figures of a run: one outcome for each of its jobs, all of which have completed."""

    def __init__(self, outcomes: Sequence[TrainingOutcome], rejected: int) -> None:
        self.outcomes = tuple(outcomes)
        self.rejected = rejected

    @property
    def total_s(self) -> float:
        """From the first arrival to the last completion."""
        return max(x.completed for x in self.outcomes) - min(x.job.arrives for x in self.outcomes)

    @property
    def accuracy(self) -> float:
        """Mean over jobs, a fraction, when they complete."""
        return float(np.mean([x.accuracy for x in self.outcomes]))

    def points_at(self, times: Sequence[float], *, delivered: bool = False) -> list[float]:
        """Points until each of ``times``."""
        ends = [(x.pays_at(delivered=delivered), x.job.points) for x in self.outcomes]
        return [sum(points for at, points in ends if at <= time) for time in times]

    def mean_points(self, horizon_s: float, *, delivered: bool = False) -> float:
        """Time average over ``horizon_s`` of the points so far, the mean reward of RLPTO."""
        total = 0.0
        for each in self.outcomes:
            total += each.job.points * max(0.0, horizon_s - each.pays_at(delivered=delivered))
        return total / horizon_s

    def figures(self) -> dict[str, float]:
        """The outside metrics by name."""
        done = self.outcomes
        completions = np.array([x.completion_s for x in done])
        points = np.array([x.job.points for x in done])
        waits = np.array([x.delivered - x.job.arrives for x in done])
        late = [x.completion_s > x.job.deadline_s for x in done if x.job.deadline_s < math.inf]
        return {
            "accuracy": self.accuracy,
            "total_s": self.total_s,
            "completion_mean_s": float(completions.mean()),
            "completion_p95_s": float(np.percentile(completions, 95)),
            "delivery_s": float((points * waits).sum() / points.sum()),
            "almost_s": float(np.mean([x.almost - x.job.arrives for x in done])),
            "points_per_node_hour": float(3600.0 * points.sum() / sum(x.node_s for x in done)),
            "resizes": float(np.mean([x.resizes for x in done])),
            "interruptions": float(np.mean([x.interruptions for x in done])),
            "late": float(np.mean(late)) if late else 0.0,
            "rejected": float(self.rejected),
        }
