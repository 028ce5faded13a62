"""The environment in which policies for shared GPUs are trained: Gymnasium, with action masks.

One episode is one set of jobs on one GPU (``SharedGpu``). Starting a job takes no time: reward 0,
discount 1. Waiting lets one tick pass, and then as many as leave nothing to choose: rewards are
discounted and added up (``info["rewards"]`` has each), and ``info["discount"]`` is the factor of
what follows.
``info["action_mask"]`` has the legal actions; an illegal one is a fault of the caller. After the
end the last observation is returned again.

Observations: ``set``, a row for each kind of job, and one of the GPU (``features.observe``);
``slots`` and ``virtual``, the paper's images of ``slots`` jobs or of all their combinations. Action
0 is to wait.

Rewards: ``slowdown``, per tick -sum 1/length over all jobs in the system, as DeepRM has it;
``makespan``, -1 per tick; ``saved``, -1 per tick plus the work done in it: the same but for the sum
of the lengths, a potential that no decision changes (Ng et al., 1999), with far less variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from hrm.learn.shared_gpu import DrawJobs, GpuRun, SharedGpu
from hrm.policies.shared_gpu.features import GPU_FIELDS, JOB_FIELDS, ROWS_MAX, observe
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy
from hrm.policies.shared_gpu.profiles import CapacityRule
from hrm.policies.shared_gpu.slots import WAIT, combination_mask, members, state_images

__all__ = [
    "GpuSharingEnv",
    "Images",
    "Observed",
    "SharingReward",
    "following",
    "play",
]

Observed = Literal["set", "slots", "virtual"]
SharingReward = Literal["slowdown", "makespan", "saved"]


@dataclass(frozen=True, slots=True)
class Images:
    """Sizes of the paper's images; ``slots`` are the visible jobs."""

    slots: int = 5
    horizon: int = 20
    width: int = 10


class GpuSharingEnv(gymnasium.Env[Any, np.int64]):
    """See the module. ``rule``: the capacity rule, the same for all policies."""

    def __init__(
        self,
        draw: DrawJobs,
        rule: CapacityRule,
        *,
        reward: SharingReward = "saved",
        gamma: float = 1.0,
        observed: Observed = "set",
        sizes: Images | None = None,
    ) -> None:
        self._draw = draw
        self._rule = rule
        self._reward = reward
        self._gamma = gamma
        self._observed = observed
        self._sizes = Images() if sizes is None else sizes
        self._gpu: SharedGpu | None = None
        self._mask: npt.NDArray[np.int8] = np.zeros(0, dtype=np.int8)
        self._places: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._seen: Any = None
        self._episode = 0
        self.action_space: spaces.Discrete
        self.action_space, self.observation_space = self._spaces()

    @property
    def gpu(self) -> SharedGpu:
        assert self._gpu is not None, "reset comes first"
        return self._gpu

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A seed determines the jobs and the world; without one they are those of the next."""
        super().reset(seed=seed)
        self._episode = self._episode + 1 if seed is None else seed
        jobs, world, known = self._draw(self._episode)
        self._gpu = SharedGpu(jobs, world, self._rule, known=known)
        # Before the first job comes there is nothing to choose and nothing to be rewarded for.
        while not self._choice():
            self.gpu.advance()
        self._seen = self._observation()
        return self._seen, self._info(1.0)

    def step(self, action: np.int64 | int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See ``gymnasium.Env``."""
        assert self._mask[action], f"action {action} is illegal; see info['action_mask']"
        reward, discount = 0.0, 1.0
        rewards: list[float] = []
        if action != WAIT:
            self._start(int(action))
        moved = action != WAIT
        while not self.gpu.over and not (moved and self._choice()):
            rewards.append(self._tick())
            reward += discount * rewards[-1]
            discount *= self._gamma
            moved = True
        done = self.gpu.over and not self.gpu.truncated
        if not self.gpu.over:
            self._seen = self._observation()
        info = self._info(discount) | {"rewards": np.array(rewards)}
        return self._seen, reward, done, self.gpu.truncated, info

    def result(self) -> GpuRun:
        """Of the episode so far."""
        return self.gpu.result()

    def action_of(self, place: int | None) -> int:
        """The action that starts the waiting job at ``place``; None: to wait."""
        if place is None or self._observed == "slots":
            return WAIT if place is None else place + 1
        if self._observed == "virtual":
            return 1 << place
        waiting = self.gpu.view().waiting
        rows = [id(waiting[row].profile) for row in self._places]
        return 1 + rows.index(id(waiting[place].profile))

    def _tick(self) -> float:
        gpu = self.gpu
        if self._reward == "slowdown":
            held = [n for n, record in enumerate(gpu.records)
                    if np.isnan(record.ended) and gpu.jobs[n].arrives <= gpu.tick]  # fmt: skip
            gpu.advance()
            return -sum(1.0 / len(gpu.jobs[n].true) for n in held)
        work = gpu.advance()
        return work - 1.0 if self._reward == "saved" else -1.0

    def _choice(self) -> bool:
        """Whether more than one action is legal, or one that is not to wait."""
        return self.gpu.has_fitting

    def _start(self, action: int) -> None:
        if self._observed == "set":
            self.gpu.start(int(self._places[action - 1]))
            return
        chosen = members(action) if self._observed == "virtual" else (action - 1,)
        for place in reversed(chosen):
            self.gpu.start(place)

    def _observation(self) -> Any:
        view = self.gpu.view()
        self._mask = np.zeros(int(self.action_space.n), dtype=np.int8)
        if self._observed == "set":
            state = observe(view)
            self._places = state.places
            self._mask[: len(state.mask)] = state.mask
            return state.jobs, state.gpu
        sizes = self._sizes
        visible = [one.profile for one in view.waiting[: sizes.slots]]
        if self._observed == "virtual":
            self._mask[:] = combination_mask(view.rule, view.running, visible, sizes.slots)
        else:
            self._mask[1 : 1 + len(visible)] = view.fits[: sizes.slots]
            self._mask[WAIT] = bool(view.running) or not self._mask.any()
        return state_images(
            view.rule,
            view.running,
            visible,
            slots=sizes.slots,
            virtual=self._observed == "virtual",
            horizon=sizes.horizon,
            width=sizes.width,
            backlog=len(view.waiting) - len(visible),
            since_arrival=view.now - self.gpu.last_arrival,
        )

    def _info(self, discount: float) -> dict[str, Any]:
        return {"discount": discount, "tick": self.gpu.tick, "action_mask": self._mask}

    def _spaces(self) -> tuple[spaces.Discrete, spaces.Space[Any]]:
        if self._observed == "set":
            jobs = spaces.Box(-np.inf, np.inf, (len(JOB_FIELDS),), np.float32)
            gpu = spaces.Box(-np.inf, np.inf, (len(GPU_FIELDS),), np.float32)
            actions = spaces.Discrete(ROWS_MAX + 1)
            return actions, spaces.Tuple((spaces.Sequence(jobs, stack=True), gpu))
        sizes = self._sizes
        inputs = state_images(
            self._rule, [], [], slots=sizes.slots, virtual=self._observed == "virtual",
            horizon=sizes.horizon, width=sizes.width,
        )  # fmt: skip
        count = 1 << sizes.slots if self._observed == "virtual" else sizes.slots + 1
        images = spaces.Box(0.0, np.inf, inputs.shape, np.float32)
        return spaces.Discrete(count), images


def play(
    env: GpuSharingEnv, choose: Callable[[Any, dict[str, Any]], int], seed: int
) -> Iterator[tuple[Any, int, float, dict[str, Any], bool]]:
    """One episode: observation with its info, action, reward, the next info, and whether it is
    the end."""
    observation, info = env.reset(seed=seed)
    ended = False
    while not ended:
        action = choose(observation, info)
        seen = (observation, info)
        observation, reward, done, truncated, info = env.step(action)
        ended = done or truncated
        yield seen, action, reward, {**info, "next": observation, "done": done}, ended


def following(env: GpuSharingEnv, policy: GpuSharingPolicy) -> Callable[[Any, Any], int]:
    """A heuristic as a chooser of actions."""
    return lambda observation, info: env.action_of(policy.choose(env.gpu.view()))
