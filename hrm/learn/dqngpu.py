"""Train ``dqngpu-ddqn``, a policy that chooses which waiting jobs share a GPU.

    python -m hrm.learn.dqngpu --out dqngpu-ddqn-1.npz

What the name of DqnGPU says, and its algorithm 1 (``dqngpu_pg``) is not: a double DQN (van Hasselt
et al., 2016) with n-step returns and a dueling set network that places one job after another; masks
hold in choices and in targets. It begins with ``rollouts``: in the simulator every legal action is
tried, and a packing heuristic decides what follows, so that Q of that heuristic is known exactly,
and its best action is a better policy (Bertsekas et al., 1997). With ``--start imitate`` it
imitates packed SJF, by a margin.

Episodes are generated sets of jobs (``gpu_workloads``); those of training and of validation are
disjoint, and of all trials the one with the least mean makespan on validation is kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from hrm.errors import InvalidConfig
from hrm.learn.dqn import Replay
from hrm.learn.gpu_environment import GpuSharingEnv, following, play
from hrm.learn.gpu_networks import SharingTensors, ranges, set_values
from hrm.learn.gpu_rollouts import Valued, rollout_values
from hrm.learn.gpu_workloads import draw_jobs
from hrm.learn.q_networks import fresh
from hrm.learn.rewards import epsilon_at
from hrm.policies import model_files
from hrm.policies.model_files import Model
from hrm.policies.shared_gpu.features import SHARING_SCHEMA, SharingState
from hrm.policies.shared_gpu.heuristics import PackedByLength
from hrm.policies.shared_gpu.learned import BASE, improved
from hrm.policies.shared_gpu.network import action_values, network_shapes
from hrm.policies.shared_gpu.profiles import CapacityRule

__all__ = [
    "SETS_OF_SEED",
    "TRAINING_SETS",
    "DqnGpuArgs",
    "GpuTransition",
    "command_of",
    "ddqn_targets",
    "improving",
    "main",
    "margin_where_known",
    "train_ddqn",
    "transitions",
    "validate",
]

log = logging.getLogger("hrm.learn.dqngpu")

TRAINING_SETS = 10_000
VALIDATION_SETS = range(20_000, 20_040)
KNOWN_SETS = range(21_000, 21_040)
"""Of validation, too, with slowdowns of pairs that are known."""
SETS_OF_SEED = 2_000
STATES_MAX = 5_000
TICKS = 0.1
"""The unit of Q in ticks saved."""
LEVEL_WEIGHT = 0.05
"""Of the error of a state's mean, over that of the differences between its actions."""
MARGINS = (0.05, 0.1, 0.2, 0.4)
"""Of which validation chooses, in units of Q."""
MARGINS_KNOWN = (*MARGINS, 0.8, 1.6)
"""The same where slowdowns are known: the heuristic knows them, too, and is harder to improve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DqnGpuArgs:
    """The parameters of one training."""

    out: Path = Path("dqngpu.npz")
    """the file to write"""
    version: int = 1
    """of the model; greater ones win"""
    seed: int = 0
    """of all random choices, and of which sets are trained on"""
    start: Literal["rollouts", "imitate"] = "rollouts"
    """what precedes temporal differences"""
    start_sets: int = 1_200
    """sets of jobs that it begins with"""
    start_steps: int = 8_000
    """steps of descent on them"""
    steps: int = 4_000
    """decisions that follow"""
    gamma: float = 1.0
    """discount per tick"""
    n_step: int = 5
    """decisions until the bootstrap"""
    lr: float = 1e-3
    """learning rate"""
    batch: int = 64
    """transitions per step"""
    replay: int = 50_000
    """transitions that are kept"""
    tau: float = 0.005
    """of the target network's way to the other, per step"""
    margin: float = 0.05
    """by which imitated actions are to be better, tens of ticks"""
    epsilon: float = 0.1
    """share of random decisions at first; it falls to a tenth of that"""
    validate_every: int = 4_000
    """decisions between two evaluations"""

    def __post_init__(self) -> None:
        least = {"version": 0, "seed": 0, "start_sets": 1, "start_steps": 0, "steps": 0,
                 "n_step": 1, "batch": 1, "replay": 1, "validate_every": 1}  # fmt: skip
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InvalidConfig(f"--{name.replace('_', '-')}: give at least {value}")
        if not 0.0 < self.gamma <= 1.0:
            raise InvalidConfig("--gamma: give more than 0 and at most 1")


class GpuTransition(NamedTuple):
    """``discount`` 0: the episode ended; ``after`` is then ignored."""

    state: SharingState
    action: int
    reward: float
    after: SharingState
    discount: float


def state_of(observation: Any, info: dict[str, Any]) -> SharingState:
    """What the environment showed, as the set network has it."""
    jobs, gpu = observation
    mask = info["action_mask"][: len(jobs) + 1].astype(np.bool_)
    return SharingState(jobs, gpu, mask, np.arange(len(jobs)))


def validate(
    env: GpuSharingEnv,
    choose: Callable[[Any, dict[str, Any]], int],
    sets: Sequence[int],
) -> list[float]:
    """The makespan (ticks) of each of ``sets``."""
    found = []
    for seed in sets:
        for _ in play(env, choose, seed):
            pass
        found.append(env.result().makespan)
    return found


def improving(
    env: GpuSharingEnv, arrays: Mapping[str, npt.NDArray[np.float32]], margin: float
) -> Callable[[Any, dict[str, Any]], int]:
    """As the policy in use chooses."""
    base = following(env, BASE)

    def choose(observation: Any, info: dict[str, Any]) -> int:
        q = action_values(arrays, state_of(observation, info))
        return improved(q, base(observation, info), margin)

    return choose


def margin_where_known(arrays: Mapping[str, npt.NDArray[np.float32]]) -> float:
    """Of ``MARGINS_KNOWN`` the one with the least mean makespan, relative to packed SJF."""
    env = GpuSharingEnv(draw_jobs(worlds=("pairs",), known_share=1.0), CapacityRule())
    packed = np.array(validate(env, following(env, PackedByLength()), KNOWN_SETS))
    ratios = {
        margin: float(np.mean(validate(env, improving(env, arrays, margin), KNOWN_SETS) / packed))
        for margin in MARGINS_KNOWN
    }
    log.info("with known slowdowns, by margin: %s", {m: round(r, 4) for m, r in ratios.items()})
    return min(ratios, key=ratios.__getitem__)


def ddqn_targets(
    batch: Sequence[GpuTransition], weights: SharingTensors, target: SharingTensors
) -> Tensor:
    """Shape (batch,): R + d Q_target(s', argmax of Q(s', .)), over the legal actions of s'."""
    after = [transition.after for transition in batch]
    with torch.no_grad():
        best = set_values(weights, after).argmax(1, keepdim=True)
        frozen = set_values(target, after).gather(1, best).squeeze(1)
    discount = torch.tensor([t.discount for t in batch], dtype=torch.float32)
    reward = torch.tensor([t.reward for t in batch], dtype=torch.float32)
    return reward + torch.where(discount > 0.0, discount * frozen, 0.0)


def transitions(
    env: GpuSharingEnv, choose: Callable[[SharingState], int], seed: int, n_step: int
) -> Iterator[GpuTransition]:
    """The n-step transitions of one episode. Where it is truncated, the last state bootstraps."""
    window: deque[tuple[SharingState, int, float, float]] = deque()
    for (observation, info), action, reward, then, ended in play(
        env, lambda seen, info: choose(state_of(seen, info)), seed
    ):
        state = state_of(observation, info)
        discount = 0.0 if then["done"] else float(then["discount"])
        window.append((state, action, TICKS * reward, discount))
        after = state if ended else state_of(then["next"], then)
        while len(window) == n_step or (ended and window):
            total, factor = 0.0, 1.0
            for _, _, gained, each in window:
                total += factor * gained
                factor *= each
            yield GpuTransition(window[0][0], window[0][1], total, after, factor)
            window.popleft()


class _Ddqn:
    """The two networks and their steps."""

    def __init__(self, args: DqnGpuArgs) -> None:
        self.args = args
        self.rng = np.random.default_rng(args.seed)
        self.weights = fresh(network_shapes(), torch.Generator().manual_seed(args.seed))
        self.target = {name: each.detach().clone() for name, each in self.weights.items()}
        self.optimizer = torch.optim.Adam(list(self.weights.values()), lr=args.lr)
        self.replay: Replay[GpuTransition] = Replay(args.replay)

    def arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        return {name: each.detach().numpy().copy() for name, each in self.weights.items()}

    def act(self, state: SharingState, epsilon: float) -> int:
        if self.rng.random() < epsilon:
            return int(self.rng.choice(np.flatnonzero(state.mask)))
        arrays = {name: each.detach().numpy() for name, each in self.weights.items()}
        return int(action_values(arrays, state).argmax())

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self.weights.values()), 10.0)
        self.optimizer.step()
        with torch.no_grad():
            for name, held in self.target.items():
                held += self.args.tau * (self.weights[name] - held)

    def learn(self) -> None:
        """One step on a batch of the replay."""
        batch = self.replay.sample(self.args.batch, self.rng)
        self.step(self._error(batch)[0])

    def imitate(self) -> None:
        """One step that also makes the replay's actions the best by a margin."""
        batch = self.replay.sample(self.args.batch, self.rng)
        error, q, chosen = self._error(batch)
        margin = torch.full_like(q, self.args.margin).scatter(1, _actions(batch), 0.0)
        self.step(error + ((q + margin).amax(1) - chosen).mean())

    def fit(self, batch: Sequence[Valued]) -> None:
        """One step towards known values; differences between actions count most."""
        q = set_values(self.weights, [state for state, _ in batch])
        wanted = torch.zeros_like(q)
        for row, (_, values) in enumerate(batch):
            wanted[row, : len(values)] = torch.from_numpy(np.nan_to_num(TICKS * values))
        legal = torch.isfinite(q)
        count = legal.sum(1, keepdim=True)
        means = [torch.where(legal, x, 0.0).sum(1, keepdim=True) / count for x in (q, wanted)]
        ours, theirs = (torch.where(legal, x - m, 0.0)
                        for x, m in zip((q, wanted), means, strict=True))  # fmt: skip
        differences = functional.huber_loss(ours, theirs, reduction="sum", delta=0.5)
        level = functional.huber_loss(means[0], means[1])
        self.step(differences / legal.sum() + LEVEL_WEIGHT * level)

    def _error(self, batch: Sequence[GpuTransition]) -> tuple[Tensor, Tensor, Tensor]:
        q = set_values(self.weights, [transition.state for transition in batch])
        chosen = q.gather(1, _actions(batch)).squeeze(1)
        wanted = ddqn_targets(batch, self.weights, self.target)
        return functional.huber_loss(chosen, wanted), q, chosen


def _actions(batch: Sequence[GpuTransition]) -> Tensor:
    return torch.tensor([[transition.action] for transition in batch])


def _begin(learner: _Ddqn, env: GpuSharingEnv, first: int) -> None:
    """Learn from packed SJF, or from what each action is worth before a packing heuristic."""
    args = learner.args
    shortest = following(env, PackedByLength())
    valued: list[Valued] = []
    for seed in range(first, first + args.start_sets):
        if args.start == "rollouts":
            valued += rollout_values(env, BASE, seed, learner.rng)
        for each in transitions(env, lambda state: shortest(state, {}), seed, args.n_step):
            learner.replay.add(each)
    for step in range(args.start_steps):
        for group in learner.optimizer.param_groups:
            group["lr"] = args.lr * max(0.05, 1.0 - step / args.start_steps)
        if valued:
            some = learner.rng.integers(len(valued), size=args.batch)
            learner.fit([valued[int(n)] for n in some])
        else:
            learner.imitate()


def train_ddqn(args: DqnGpuArgs) -> Model:
    """Train on the sets of ``args.seed``; the best model on validation."""
    torch.set_num_threads(1)
    began_s = time.process_time()
    learner = _Ddqn(args)
    # Two, for one is tried while an episode of the other goes on.
    env, other = (GpuSharingEnv(draw_jobs(), CapacityRule(), gamma=args.gamma) for _ in range(2))
    first = args.seed * SETS_OF_SEED % TRAINING_SETS
    packed = validate(other, following(other, PackedByLength()), VALIDATION_SETS)
    _begin(learner, env, first)
    trials: list[dict[str, float]] = []
    best, margin = learner.arrays(), MARGINS[0]
    done = 0

    def trial() -> None:
        nonlocal best, margin
        for tried in MARGINS:
            found = validate(other, improving(other, learner.arrays(), tried), VALIDATION_SETS)
            ratio = float(np.mean(np.array(found) / np.array(packed)))
            trials.append({"decisions": done, "margin": tried, "makespan_ratio": ratio})
            log.info("after %d decisions, margin %g: %.4f of packed SJF", done, tried, ratio)
            if ratio <= min(each["makespan_ratio"] for each in trials):
                best, margin = learner.arrays(), tried

    trial()
    for group in learner.optimizer.param_groups:
        group["lr"] = 0.1 * args.lr
    seed = first + args.start_sets

    def explore(state: SharingState) -> int:
        return learner.act(state, epsilon_at(done, args.epsilon, 0.1 * args.epsilon, args.steps))

    while done < args.steps:
        for each in transitions(env, explore, seed, args.n_step):
            learner.replay.add(each)
            learner.learn()
            done += 1
            if done % args.validate_every == 0:
                trial()
        seed += 1
    states = [each.state for each in learner.replay.held[-STATES_MAX:]]
    greatest = max(float(np.abs(q[np.isfinite(q)]).max())
                   for q in (action_values(best, state) for state in states))  # fmt: skip
    meta = {
        "trials": trials,
        "q_abs_max": greatest,
        "margin": margin,
        "margin_known": margin_where_known(best),
        "trained_s": time.process_time() - began_s,
        "command": command_of(args),
    }
    arrays = {**best, **ranges(states)}
    return Model(
        kind="dqngpu-ddqn", version=args.version, schema=SHARING_SCHEMA, arrays=arrays, meta=meta
    )


def command_of(args: DqnGpuArgs) -> str:
    """The command that trains with ``args``."""
    words: list[str] = []
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if field.name != "out" and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return shlex.join(["python", "-m", "hrm.learn.dqngpu", *words])


def main(words: Sequence[str] | None = None) -> int:
    """Train, with progress on stderr and the result as JSON on stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(prog="python -m hrm.learn.dqngpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for field in dataclasses.fields(DqnGpuArgs):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default)
    args = DqnGpuArgs(**vars(parser.parse_args(words)))
    model = train_ddqn(args)
    model_files.write(model, args.out)
    result = {"model": str(model), "out": str(args.out), **model.meta}
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
