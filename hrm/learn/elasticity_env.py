"""The simulated cluster of training jobs as a Gymnasium environment, with action masks.

An episode is a set of jobs on a cluster, a step one question of the elasticity core that is due
(``hrm.policies.elasticity.features.is_due``); questions that are not are answered with "no change".
Several questions may be of one moment. ``info["action_mask"]`` has what is allowed, another action
is an error of the agent; action 0 changes nothing, 1 to n gives a job its part of what is free,
``JOBS_MAX`` + 1 to ``JOBS_MAX`` + n takes a worker from one. A state in which only action 0 is
allowed is no step.

Rewards (``r`` of RLPTO, eq. 5, is paid for each report that was made since the last step):

- ``printed``: va + sign(va - beta) T w kw, summed over running jobs, T = 1 report. It pays for
  workers while va is above beta.
- ``smooth``: the same with tanh((va - beta) / beta) in place of the sign.
- ``net``: points / 40 va / beta kw - w kw: a worker must earn its power.
- ``progress``: of each job, by its points over the mean, its share of the epochs until it is
  delivered, and a tenth of its share of those after, less what is done in the mean of such a time:
  else its variance would be that of the time between questions. It needs the true curve, as the
  next one does, which only a simulator has.
- ``delivered``: minus the share of points that is not yet delivered, a tenth of it until jobs end,
  per hundredth of the time that all jobs would take in a row on the whole cluster. It is what runs
  are compared by, up to a constant.

``info["cycles"]`` is the time since the last step in cycles, each as long as the longest epoch that
runs: rewards are to be discounted by that, not by steps.

Source: RLPTO (Lu et al., IEEE TPDS 2023), section 4, with repairs: T is one report, not seconds
since the start, and the reward is summed over jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from hrm.core.elasticity.elastic_job import ElasticityView, ElasticJobView
from hrm.core.elasticity.elasticity_core import ElasticityCore
from hrm.errors import InvalidRequest
from hrm.learn.training_cluster import TrainingCluster
from hrm.learn.training_jobs import DELIVERED, ClusterRules, TrainingRun
from hrm.learn.training_workloads import drawn_jobs
from hrm.policies.elasticity.features import (
    CLUSTER_FIELDS,
    ELASTIC_FIELDS,
    ElasticityState,
    is_due,
    observe_elasticity,
    resize_of,
)

__all__ = ["JOBS_MAX", "KW", "ElasticityEnv", "ElasticityReward", "drawn_cluster", "reward_of_job"]

ElasticityReward = Literal["printed", "smooth", "net", "progress", "delivered"]
DrawCluster = Callable[[int], TrainingCluster]
Observation = dict[str, npt.NDArray[np.float32]]

KW = 0.000625
"""Power of a worker for one report."""
JOBS_MAX = 32
"""Running jobs that an observation has a place for."""
_UNTIL_END = 0.1
_TIME_UNITS = 100.0


def reward_of_job(
    kind: ElasticityReward, change: float, beta: float, workers: int, points: float = 40.0
) -> float:
    """Of one report of one job, T = 1: see the module, and RLPTO, eq. 5."""
    power = workers * KW
    if kind == "net":
        return points / 40.0 * change / beta * KW - power
    if kind == "smooth":
        return change + math.tanh((change - beta) / beta) * power
    sign = (change > beta) - (change < beta)
    return change + sign * power


def drawn_cluster(seed: int) -> TrainingCluster:
    """An episode of training: drawn jobs that all run to their iteration limit, resizes that cost 5
    to 60 s, and a worker that fails every other hour."""
    jobs, workers = drawn_jobs(seed)
    rules = ClusterRules(
        workers=workers, by_priority=True, stops_flat=False, resize_s=(5.0, 60.0),
        failures_per_hour=0.5,
    )  # fmt: skip
    return TrainingCluster(jobs, rules, ElasticityCore(), seed)


class ElasticityEnv(gymnasium.Env[Observation, int]):
    """See the module. Observations: ``jobs`` (``JOBS_MAX``, fields), rows beyond the running jobs
    are zeros, and ``cluster`` (fields,); ``info["state"]`` has both without padding.

    Args:
        draw: makes the cluster of an episode from its number.
        masked: False, for comparison: every change is allowed, and one that cannot be is lost.
    """

    def __init__(
        self,
        draw: DrawCluster = drawn_cluster,
        reward: ElasticityReward = "progress",
        *,
        masked: bool = True,
    ) -> None:
        shape = (JOBS_MAX, len(ELASTIC_FIELDS))
        self.observation_space = spaces.Dict(  # type: ignore[assignment]
            jobs=spaces.Box(-1.0, 1.0, shape, np.float32),
            cluster=spaces.Box(-1.0, 1.0, (len(CLUSTER_FIELDS),), np.float32),
        )
        self.action_space = spaces.Discrete(2 * JOBS_MAX + 1)  # type: ignore[assignment]
        self._draw = draw
        self._reward = reward
        self._masked = masked
        self._cluster: TrainingCluster | None = None
        self._view: ElasticityView | None = None
        self._state: ElasticityState | None = None
        self._due = 0.0
        self._cycles = 0.0
        self._undelivered = 0.0
        self._progress = 0.0
        self._at = 0.0
        self._time_unit_s = 1.0
        self._episode = -1

    @property
    def cluster(self) -> TrainingCluster:
        """That of the present episode."""
        assert self._cluster is not None, "reset comes first"
        return self._cluster

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A seed determines the whole episode; without one it is that of the next."""
        super().reset(seed=seed)
        self._episode = self._episode + 1 if seed is None else seed
        self._cluster = cluster = self._draw(self._episode)
        jobs = [held.job for held in cluster.jobs.values()]
        work_s = sum(job.curve.seconds(1) * job.curve.epochs_max for job in jobs)
        self._time_unit_s = work_s / cluster.rules.workers / _TIME_UNITS
        self._points_mean = float(np.mean([job.points for job in jobs]))
        self._arrivals_s = max(1.0, *(job.arrives for job in jobs))
        self._delivery = {job.job_id: job.curve.reaches(DELIVERED) for job in jobs}
        self._at = self._progress = 0.0
        self._advance()
        return self._observation(), self._info()

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Make the change that ``action`` means.

        Raises:
            InvalidRequest: the mask does not allow it, or the episode is over.
        """
        state, view = self._state, self._view
        if state is None or view is None:
            raise InvalidRequest("the episode is over; reset the environment")
        count = len(state.jobs)
        own = action if action <= JOBS_MAX else action - JOBS_MAX + count
        place = 0 if action == 0 else (action - 1) % JOBS_MAX + 1
        if not 0 <= action <= 2 * JOBS_MAX or place > count or not state.mask[own]:
            raise InvalidRequest(f"action {action} is not allowed; see info['action_mask']")
        self.cluster.decide(resize_of(own, view))
        self._advance()
        return self._observation(), self._due, self._state is None, False, self._info()

    def result(self) -> TrainingRun:
        """Of an episode that is over."""
        return self.cluster.result()

    def _advance(self) -> None:
        """To the next question that is due."""
        self._state = None
        self._due, began = 0.0, self.cluster.now
        cycle_s = max((x.job.curve.seconds(x.workers) for x in self.cluster.running.values()),
                      default=self._time_unit_s)  # fmt: skip
        while (view := self.cluster.advance()) is not None:
            self._pay(view)
            if is_due(view) and len(view.jobs) <= JOBS_MAX:
                state = observe_elasticity(view)
                mask = state.mask if self._masked else np.ones_like(state.mask)
                self._state = state._replace(mask=mask)
                self._view = view
                self._cycles = (self.cluster.now - began) / cycle_s
                return
            self.cluster.decide(None)
        self._pay(None)

    def _pay(self, view: ElasticityView | None) -> None:
        """Add what is due since the last question."""
        cluster = self.cluster
        if self._reward == "delivered":
            self._due -= self._undelivered * (cluster.now - self._at) / self._time_unit_s
            self._undelivered = self._not_delivered()
            self._at = cluster.now
        elif self._reward == "progress":
            progress = self._progressed()
            mean = (1.0 + _UNTIL_END) * len(cluster.jobs) / self._arrivals_s
            self._due += progress - self._progress - mean * (cluster.now - self._at)
            self._progress = progress
            self._at = cluster.now
        elif view is not None and view.steps == 0 and view.reporter is not None:
            self._due += self._reported(view.jobs[view.reporter])

    def _reported(self, job: ElasticJobView) -> float:
        if math.isnan(job.change):
            return 0.0
        return reward_of_job(self._reward, job.change, job.beta, job.workers, job.points)

    def _progressed(self) -> float:
        """Of all jobs, the present epochs included as far as they have come."""
        total = 0.0
        for held in self.cluster.jobs.values():
            epochs = held.job.curve.epochs_max
            done = held.state.epoch + self.cluster.epoch_share(held)
            until = self._delivery[held.job.job_id]
            before = min(done, until)
            worth = before / until + _UNTIL_END * (done - before) / max(1.0, epochs - until)
            total += worth * held.job.points / self._points_mean
        return total

    def _not_delivered(self) -> float:
        """Share of the points of all jobs that have arrived and are not delivered, or not ended."""
        owed = total = 0.0
        for held in self.cluster.jobs.values():
            total += held.job.points
            if held.job.arrives <= self.cluster.now and math.isnan(held.outcome.completed):
                delivered = not math.isnan(held.outcome.delivered)
                owed += held.job.points * (_UNTIL_END if delivered else 1.0)
        return owed / total

    def _observation(self) -> Observation:
        jobs = np.zeros((JOBS_MAX, len(ELASTIC_FIELDS)), dtype=np.float32)
        cluster = np.zeros(len(CLUSTER_FIELDS), dtype=np.float32)
        if self._state is not None:
            jobs[: len(self._state.jobs)] = self._state.jobs
            cluster = self._state.cluster
        return {"jobs": jobs, "cluster": cluster}

    def _info(self) -> dict[str, Any]:
        mask = np.zeros(2 * JOBS_MAX + 1, dtype=np.int8)
        if self._state is None:
            return {"action_mask": mask, "cycles": self._cycles}
        count = len(self._state.jobs)
        mask[: count + 1] = self._state.mask[: count + 1]
        mask[JOBS_MAX + 1 : JOBS_MAX + 1 + count] = self._state.mask[count + 1 :]
        return {
            "action_mask": mask, "state": self._state, "view": self._view, "cycles": self._cycles,
        }  # fmt: skip
