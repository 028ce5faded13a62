"""An oracle for training jobs: it knows each job's curve and scaling, which no policy does.

It is the reference for what any policy could gain over the beta rule, a strong heuristic with
perfect knowledge and no bound. Workers go one by one to where they bring the most points nearer:
a job's points, times by how much one worker more raises its epochs per second, over a power of the
epochs left until it is delivered. A delivered job brings but a part of its points, and jobs that
wait compete for their first worker in the same way. The defaults were chosen on validation seeds.
"""

from __future__ import annotations

import heapq
import math

from hrm.core.elasticity.beta_rule import Resize
from hrm.core.elasticity.elastic_job import ElasticityView
from hrm.learn.training_cluster import SimulatedJob, TrainingCluster
from hrm.learn.training_jobs import DELIVERED
from hrm.policies.elasticity.fixed import toward

__all__ = ["ElasticityOracle"]


class ElasticityOracle:
    """An ``ElasticityPolicy`` for jobs of ``cluster``.

    Args:
        power: of the epochs that are left; more favours those that are nearly done.
        after: share of a job's points that it brings nearer by its end, after it is delivered.
        keep: by how much more a worker is worth to the job that has it, for a resize costs.
    """

    name = "oracle"

    def __init__(
        self, cluster: TrainingCluster, power: float = 0.0, after: float = 0.3, keep: float = 4.0
    ) -> None:
        self._cluster = cluster
        self._power = power
        self._after = after
        self._keep = keep
        self._delivery: dict[str, float] = {}

    def propose(self, view: ElasticityView) -> Resize | None:
        running = [self._cluster.jobs[job.job_id] for job in view.jobs]
        targets = [held.job.workers_min for held in running]
        left = view.free + sum(job.workers for job in view.jobs) - sum(targets)
        offers = [(-self._gain(held, targets[n]), n) for n, held in enumerate(running)]
        waiting = [held for held in self._cluster.waiting if self._starts(len(running))]
        offers += [(-self._gain(held, 0), len(running) + n) for n, held in enumerate(waiting)]
        heapq.heapify(offers)
        while left > 0 and offers:
            _, place = heapq.heappop(offers)
            left -= 1
            if place >= len(running):
                continue
            targets[place] += 1
            held = running[place]
            if targets[place] < held.job.workers_max:
                heapq.heappush(offers, (-self._gain(held, targets[place]), place))
        return toward(view, targets)

    def _starts(self, running: int) -> bool:
        most = self._cluster.rules.running_max
        return not most or running < most

    def _gain(self, held: SimulatedJob, workers: int) -> float:
        """Points per second that one worker beyond ``workers`` brings nearer."""
        curve, state = held.job.curve, held.state
        rate = 1.0 / curve.seconds(workers + 1) - (1.0 / curve.seconds(workers) if workers else 0.0)
        points = held.job.points
        left = self._delivered_at(held) - state.effective
        if not math.isnan(held.outcome.delivered) or left <= 0.0:
            points *= self._after
            left = curve.epochs_max - state.epoch
        if workers < held.workers:
            points *= 1.0 + self._keep
        return points * rate / float(max(1.0, left) ** self._power)

    def _delivered_at(self, held: SimulatedJob) -> float:
        found = self._delivery.get(held.job.job_id)
        if found is None:
            found = self._delivery[held.job.job_id] = held.job.curve.reaches(DELIVERED)
        return found
