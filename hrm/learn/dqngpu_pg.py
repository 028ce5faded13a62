"""Train ``dqngpu-pg``, the DqnGPU paper's algorithm 1, repaired: policy gradient, and no DQN.

REINFORCE whose baseline is the mean return of several episodes of the same jobs, as in DeepRM (Mao
et al., HotNets 2016), on images of jobs and of all their combinations (``virtual``), or of jobs
alone (``slots``, with constant beliefs DeepRM's). It begins by imitating packed SJF.

Printed, the algorithm chooses by the greatest value, which leaves nothing to a gradient of log pi,
adds its steps up without end, and has the sign of its update wrong, so that what did worse than the
baseline gets more likely. There is no model file of it: a network over images holds for one number
of slots, and ``benchmarks.paper.dqngpu`` trains it where it compares it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from hrm.learn.dqngpu import SETS_OF_SEED, TRAINING_SETS
from hrm.learn.gpu_environment import GpuSharingEnv, play
from hrm.learn.gpu_networks import SharingTensors, image_logits, image_shapes
from hrm.learn.q_networks import fresh
from hrm.policies.shared_gpu.heuristics import PackedByLength

__all__ = [
    "PolicyGradientArgs",
    "TrainedGradient",
    "baseline_by_tick",
    "policy_gradient",
    "train_pg",
]

log = logging.getLogger("hrm.learn.dqngpu_pg")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradientArgs:
    """The parameters of one training; DeepRM's where they do not take too long."""

    seed: int = 0
    """of all random choices, and of which sets are trained on"""
    start_sets: int = 15
    """sets of jobs on which packed SJF is imitated"""
    start_steps: int = 300
    """steps of descent on its decisions"""
    batch: int = 64
    """decisions in each of these"""
    iterations: int = 15
    """each one update"""
    sets: int = 2
    """sets of jobs in an iteration (DeepRM: 50)"""
    episodes: int = 6
    """of each set (DeepRM: 20)"""
    lr: float = 1e-3
    """learning rate, of RMSprop"""
    entropy: float = 0.01
    """its weight at first; it falls to 0"""


def policy_gradient(logits: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
    """-sum of log pi(a|s) times advantage: descending it raises the probability of what did better
    than the baseline. ``logits`` (steps, actions), -inf for illegal actions."""
    chosen = functional.log_softmax(logits, dim=1).gather(1, actions[:, None]).squeeze(1)
    return -(chosen * advantages).sum()


def baseline_by_tick(returns: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Shape (ticks,): the mean over episodes of the return from each tick on, (ticks,) each; an
    episode that has ended counts 0."""
    found = np.zeros(max(map(len, returns)))
    for each in returns:
        found[: len(each)] += each
    return found / len(returns)


class TrainedGradient(NamedTuple):
    """The policy network of ``dqngpu-pg``, and its mean return in each iteration."""

    weights: SharingTensors
    returns: list[float]

    def choose(self, observation: Any, info: dict[str, Any]) -> int:
        """The most probable legal action."""
        with torch.no_grad():
            logits = image_logits(self.weights, observation[None, :], info["action_mask"][None, :])
        return int(logits[0].argmax())


def train_pg(args: PolicyGradientArgs, env: GpuSharingEnv) -> TrainedGradient:
    """Train ``dqngpu-pg`` on an environment that shows images."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    observation, info = env.reset(seed=args.seed)
    shapes = image_shapes(len(observation), len(info["action_mask"]))
    weights = fresh(shapes, torch.Generator().manual_seed(args.seed))
    parameters = list(weights.values())
    optimizer = torch.optim.RMSprop(parameters, lr=args.lr, alpha=0.9, eps=1e-9)
    trained = TrainedGradient(weights, [])
    first = args.seed * SETS_OF_SEED % TRAINING_SETS
    _imitate_shortest(args, env, trained, first)

    def sample(observation: Any, info: dict[str, Any]) -> int:
        with torch.no_grad():
            logits = image_logits(weights, observation[None, :], info["action_mask"][None, :])
        chances = functional.softmax(logits[0].double(), dim=0).numpy()
        return int(rng.choice(len(chances), p=chances))

    for iteration in range(args.iterations):
        optimizer.zero_grad()
        gained = []
        for number in range(args.sets):
            seed = first + args.start_sets + iteration * args.sets + number
            runs = [list(play(env, sample, seed)) for _ in range(args.episodes)]
            rewards = [np.concatenate([step[3]["rewards"] for step in run]) for run in runs]
            returns = [np.cumsum(each[::-1])[::-1] for each in rewards]
            baseline = baseline_by_tick(returns)
            gained.append(float(np.mean([each[0] for each in returns])))
            beta = args.entropy * (1.0 - iteration / args.iterations)
            for run, each in zip(runs, returns, strict=True):
                advantage = (each - baseline[: len(each)])[[step[0][1]["tick"] for step in run]]
                _ascend(weights, run, advantage, beta, args.episodes * args.sets)
        optimizer.step()
        trained.returns.append(float(np.mean(gained)))
        log.info("iteration %d: mean return %.2f", iteration, trained.returns[-1])
    return trained


def _ascend(weights: SharingTensors, run: Any, advantage: Any, beta: float, count: int) -> None:
    """Add one episode's gradient."""
    logits = image_logits(weights, np.stack([step[0][0] for step in run]),
                          np.stack([step[0][1]["action_mask"] for step in run]))  # fmt: skip
    actions = torch.tensor([step[1] for step in run])
    chances = functional.softmax(logits, dim=1)
    entropy = -(chances * torch.log(chances.clamp_min(1e-12))).sum()
    advantages = torch.tensor(advantage, dtype=torch.float32)
    loss = (policy_gradient(logits, actions, advantages) - beta * entropy) / count
    loss.backward()  # type: ignore[no-untyped-call]


def _imitate_shortest(
    args: PolicyGradientArgs, env: GpuSharingEnv, trained: TrainedGradient, first: int
) -> None:
    """Cross-entropy on packed SJF's decisions; a start that no slot shows is to wait."""
    policy = PackedByLength()

    def shortest(observation: Any, info: dict[str, Any]) -> int:
        place = policy.choose(env.gpu.view())
        action = env.action_of(place)
        legal = action < len(info["action_mask"]) and info["action_mask"][action]
        return action if legal else int(np.argmax(info["action_mask"]))

    steps = [step for seed in range(first, first + args.start_sets)
             for step in play(env, shortest, seed)]  # fmt: skip
    optimizer = torch.optim.Adam(list(trained.weights.values()), lr=args.lr)
    rng = np.random.default_rng(args.seed)
    for _ in range(args.start_steps):
        some = [steps[int(n)] for n in rng.integers(len(steps), size=args.batch)]
        logits = image_logits(trained.weights, np.stack([step[0][0] for step in some]),
                              np.stack([step[0][1]["action_mask"] for step in some]))  # fmt: skip
        loss = functional.cross_entropy(logits, torch.tensor([step[1] for step in some]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
