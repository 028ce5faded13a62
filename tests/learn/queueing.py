"""A small cluster to learn in: every node serves its tasks in order of arrival, on its cores.

Nodes differ in speed, some types of tasks gain from a GPU, and reported waits are exact. With
``fixed=false`` each seed draws its own number of nodes, platforms and rate, and nodes fail.
"""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np

from hrm.core.vocabulary.model import NodeName
from hrm.learn.environment import EpisodeStep, EpisodeTaskEnded, TaskDecision
from hrm.pipelines.core.model import PipelineClusterView, TaskSpec
from hrm.pipelines.policies.cluster.features import TYPES
from tests.policies.cluster.views import PLATFORMS, task_of, view_of

SPEEDS = np.array([4.0, 1.0, 2.0])  # of PLATFORMS
CORES = 2


class Queueing:
    """``tasks`` per trace; ``fixed``: six nodes at 80 % load, else 3 to 12 at 30 to 90 %."""

    def __init__(self, tasks: str = "200", fixed: str = "true") -> None:
        self._tasks = int(tasks)
        self._fixed = fixed == "true"

    def reset(self, seed: int) -> TaskDecision:
        self._rng = np.random.default_rng(seed)
        nodes = 6 if self._fixed else int(self._rng.integers(3, 13))
        kinds = np.arange(nodes) % 3 if self._fixed else self._rng.integers(3, size=nodes)
        load = 0.8 if self._fixed else self._rng.uniform(0.3, 0.9)
        self._speed = SPEEDS[kinds]
        self._rate = load * CORES * self._speed.sum() / 15.0  # a mean task takes 15 s at speed 1
        self._free_at = np.zeros((nodes, CORES))
        self._ends: list[tuple[float, EpisodeTaskEnded]] = []
        self._away = (
            int(self._rng.integers(nodes)),
            self._rng.uniform(0, self._tasks / self._rate),
        )
        self._now, self._count = 0.0, 0
        platform = tuple(PLATFORMS[kind] for kind in kinds)
        self._view = view_of(nodes, seed, platform=platform)
        return self._arrived()

    def step(self, node: int) -> EpisodeStep:
        core = int(self._free_at[node].argmin())
        done = max(self._now, self._free_at[node, core]) + self._times[node]
        self._free_at[node, core] = done
        task_id = self._task.task_id
        heapq.heappush(self._ends, (done, EpisodeTaskEnded(task_id, done, done - self._now, True)))
        over = self._count == self._tasks
        until = np.inf if over else self._now + self._rng.exponential(1.0 / self._rate)
        ended = []
        while self._ends and self._ends[0][0] <= until:
            ended.append(heapq.heappop(self._ends)[1])
        if over:
            return EpisodeStep(None, tuple(ended))
        self._now = until
        return EpisodeStep(self._arrived(), tuple(ended))

    def _arrived(self) -> TaskDecision:
        self._count += 1
        kind = int(self._rng.integers(len(TYPES)))
        self._task: TaskSpec = task_of(
            self._count, TYPES[kind], size_mb=float(self._rng.choice([20, 60, 200]))
        )
        self._times = self._rng.exponential(15.0) / self._speed
        view = self._seen()
        return TaskDecision(self._task, view, view.alive.copy())

    def _seen(self) -> PipelineClusterView:
        busy = (self._free_at > self._now).sum(axis=1)
        wait_s = np.maximum(self._free_at.min(axis=1) - self._now, 0.0)
        alive = np.ones(len(self._speed), dtype=np.bool_)
        if not self._fixed and self._now > self._away[1]:
            alive[self._away[0]] = False

        def column(values: np.ndarray) -> np.ndarray:
            return values.astype(np.float32)

        zero = np.zeros(len(self._speed), dtype=np.float32)
        return dataclasses.replace(
            self._view,
            now=self._now,
            names=tuple(NodeName(f"n{n}") for n in range(len(self._speed))),
            cpu=column(busy / CORES), gpu=zero, memory=zero, gpu_memory=zero, sent=zero,
            received=zero, running=column(busy), waiting_batch=zero, waiting_stream=zero,
            expected_wait_s=column(wait_s), task_s=column(self._times),
            cores=zero + CORES, free_cores=column(CORES - busy), free_memory_mib=zero + 1024,
            gpus=zero, free_gpu_memory_mib=zero, cpu_speed=column(self._speed),
            queue_length=0, arrival_rate_per_s=float(self._rate), alive=alive,
        )  # fmt: skip
