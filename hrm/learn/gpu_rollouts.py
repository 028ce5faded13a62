"""What each action on a shared GPU is worth if a heuristic decides all that follows.

The simulated GPU draws nothing at random, so one run after each action gives its value exactly, and
the best action is at least as good as the heuristic's own (rollouts, after Bertsekas et al., 1997).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hrm.learn.gpu_environment import GpuSharingEnv, following, play
from hrm.learn.shared_gpu import SharedGpu
from hrm.policies.shared_gpu.features import SharingState, observe
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy

__all__ = ["Valued", "rollout_values"]

Valued = tuple[SharingState, npt.NDArray[np.float32]]
"""A state, and Q of each action, NaN where it is illegal."""


def rollout_values(
    env: GpuSharingEnv, policy: GpuSharingPolicy, seed: int, rng: np.random.Generator
) -> Iterator[Valued]:
    """States of one set of jobs with Q of ``policy`` after each action, in ticks saved.

    Half of the decisions are the policy's own. Of the others, which are valued, most take the best
    action, and the rest any legal one.
    """
    follow = following(env, policy)

    def choose(observation: Any, info: dict[str, Any]) -> int:
        legal = np.flatnonzero(info["action_mask"])
        if len(legal) == 1 or rng.random() < 0.5:
            return follow(observation, info)
        state = observe(env.gpu.view())
        values = np.full(len(state.mask), np.nan, dtype=np.float32)
        before = env.gpu.saved
        for action in legal:
            other = env.gpu.copy()
            if action:
                other.start(int(state.places[action - 1]))
            else:
                other.advance()
            values[action] = _finish(other, policy) - before
        found.append((state, values))
        best = int(np.nanargmax(values))
        return best if rng.random() < 0.6 else int(rng.choice(legal))

    found: list[Valued] = []
    for _ in play(env, choose, seed):
        pass
    yield from found


def _finish(gpu: SharedGpu, policy: GpuSharingPolicy) -> float:
    while not gpu.over:
        while gpu.has_fitting and (place := policy.choose(gpu.view())) is not None:
            gpu.start(place)
        gpu.advance()
    run = gpu.result()
    return run.work - run.makespan
