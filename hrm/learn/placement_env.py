"""Placing tasks on a cluster as a Gymnasium environment: an episode is a trace, a step a decision.

It wraps whatever has ``reset`` and ``step`` of ``hrm.learn.environment``, HRM's simulator above
all, and observes with the code that policies use (``scale_free``). As in Gymnasium's own
environments with actions that may be impossible, ``info["action_mask"]`` marks those that are
allowed; another one is an error of the agent.

A placement shows its worth when its task ends, many steps later. So that it can be credited to its
own decision, ``info["ended"]`` has (number of the decision, reward) of all that has ended since the
last step; the step's reward is their sum. The trace's end is a truncation, after all of its tasks
have ended, those that end late included.
"""

from __future__ import annotations

import math
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from hrm.errors import InvalidRequest
from hrm.learn.environment import Environment, EpisodeTaskEnded, TaskDecision, ideal_s
from hrm.pipelines.core.model import TaskId
from hrm.pipelines.policies.cluster.features import CANDIDATES_MAX
from hrm.pipelines.policies.cluster.scale_free import (
    MOST,
    NODE_INPUTS,
    TASK_INPUTS,
    SetState,
    observe_set,
)

__all__ = ["REWARD_LEAST", "Observation", "PlacementEnv", "reward_of"]

Observation: TypeAlias = dict[str, npt.NDArray[np.float32]]

REWARD_LEAST = -4.0
"""Of a task that takes some fifty times its ideal, or fails."""


def reward_of(slowdown: float) -> float:
    """-ln(response / ideal), within ``REWARD_LEAST`` and 1."""
    if not slowdown > 0.0 or math.isinf(slowdown):
        return REWARD_LEAST
    return float(np.clip(-math.log(slowdown), REWARD_LEAST, 1.0))


class PlacementEnv(gymnasium.Env[Observation, int]):
    """Actions are the candidates of ``info["state"]``, in their order.

    Observations: ``nodes`` (64, 16) and ``task`` (10,), rows beyond the candidates are zeros.
    ``info``: ``action_mask`` (64,) of 0 and 1, ``decision`` (``TaskDecision``) and ``state``
    (``SetState``) of the step, ``ended``; after the last step only ``ended``.
    """

    def __init__(self, cluster: Environment) -> None:
        shape = (CANDIDATES_MAX, len(NODE_INPUTS))
        self.observation_space = spaces.Dict(  # type: ignore[assignment]
            nodes=spaces.Box(-MOST, MOST, shape, np.float32),
            task=spaces.Box(-MOST, MOST, (len(TASK_INPUTS),), np.float32),
        )
        self.action_space = spaces.Discrete(CANDIDATES_MAX)  # type: ignore[assignment]
        self._cluster = cluster
        self._decision: TaskDecision | None = None
        self._state: SetState | None = None
        self._open: dict[TaskId, tuple[int, float]] = {}
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the trace of ``seed``; without one, of 0."""
        super().reset(seed=seed)
        self._open.clear()
        self._steps = 0
        self._see(self._cluster.reset(seed or 0))
        return self._observation(), self._info(())

    def step(self, action: int) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Place the task on candidate ``action``.

        Raises:
            InvalidRequest: the mask does not allow it, or the trace is over.
        """
        state, decision = self._state, self._decision
        if state is None or decision is None:
            raise InvalidRequest("the trace is over; reset the environment")
        if not 0 <= action < len(state.rows):
            raise InvalidRequest(f"action {action} is not among the {len(state.rows)} candidates")
        self._open[decision.task.task_id] = self._steps, ideal_s(decision)
        self._steps += 1
        step = self._cluster.step(int(state.rows[action]))
        ended = tuple(one for end in step.ended if (one := self._credited(end)) is not None)
        self._see(step.decision)
        reward = sum(one for _, one in ended)
        truncated = step.decision is None and not step.terminal
        return self._observation(), reward, step.terminal, truncated, self._info(ended)

    def _credited(self, end: EpisodeTaskEnded) -> tuple[int, float] | None:
        known = self._open.pop(end.task_id, None)
        if known is None:
            return None
        number, least_s = known
        return number, reward_of(end.response_s / least_s if end.ok and least_s > 0 else math.inf)

    def _see(self, decision: TaskDecision | None) -> None:
        self._decision = decision
        self._state = None if decision is None else observe_set(*decision)

    def _observation(self) -> Observation:
        nodes = np.zeros((CANDIDATES_MAX, len(NODE_INPUTS)), dtype=np.float32)
        task = np.zeros(len(TASK_INPUTS), dtype=np.float32)
        if self._state is not None:
            nodes[: len(self._state.rows)] = self._state.nodes
            task = self._state.task
        return {"nodes": nodes, "task": task}

    def _info(self, ended: tuple[tuple[int, float], ...]) -> dict[str, Any]:
        mask = np.zeros(CANDIDATES_MAX, dtype=np.int8)
        info: dict[str, Any] = {"ended": ended, "action_mask": mask}
        if self._state is not None:
            mask[: len(self._state.rows)] = 1
            info |= {"decision": self._decision, "state": self._state}
        return info
