"""Train ``rlpto``: proximal policy optimisation with an adaptive KL penalty, in one file.

    python -m hrm.learn.ppo --out rlpto-1.npz

The policy is a network over a set of training jobs (``hrm.policies.elasticity.network``) that is
the rule of speed-ups before it is trained. Rounds alternate: some thousand decisions are sampled
in ``ElasticityEnv``; then the network climbs, for a few epochs over these,

    ratio A - beta_kl KL(old || new) + entropy,    ratio = new(a|s) / old(a|s),

where A is the generalised advantage estimate (Schulman et al., 2016), normalised, and the critic
learns the return. Where the KL divergence ends above 1.5 times its target, beta_kl doubles; below
1 / 1.5 of it, it halves. ``--penalty clip`` is the other surrogate of PPO, for comparison. After
every few rounds the policy plays validation episodes greedily; the best one so far is what is
written, and that may be the one of the beginning, the rule.

Episodes are drawn (``training_workloads.drawn_jobs``); those of training and validation differ, and
none of the curves that policies are tested on is among them.

Source: RLPTO (Lu et al., IEEE TPDS 2023), section 4.3, of which eq. 15 is the surrogate objective,
not its gradient, and theta' the parameters that sampled; PPO with a KL penalty is of Schulman et
al. (2017), whose rule for beta_kl it names without numbers.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hrm.core.elasticity.beta_rule import BetaRule, ElasticityPolicy
from hrm.errors import InvalidConfig
from hrm.learn.arguments import parsed, words_of
from hrm.learn.elasticity_batches import (
    DecisionBatch,
    SampledDecision,
    batch_logits,
    decision_batch,
    padded,
)
from hrm.learn.elasticity_env import JOBS_MAX, ElasticityEnv, ElasticityReward, drawn_cluster
from hrm.learn.q_networks import fresh
from hrm.learn.training_cluster import run_policy
from hrm.policies import model_files
from hrm.policies.elasticity.features import ELASTICITY_SCHEMA, RULE, ElasticityState
from hrm.policies.elasticity.learned import LearnedElasticity
from hrm.policies.elasticity.network import (
    RULE_LOGIT,
    ZERO_ARRAYS,
    action_logits,
    elastic_shapes,
    state_value,
)
from hrm.policies.model_files import Model

__all__ = [
    "VALIDATION_EPISODES",
    "PpoArgs",
    "SampledDecision",
    "adapted",
    "advantages",
    "divergence",
    "main",
    "parse",
    "train",
]

log = logging.getLogger("hrm.learn.ppo")

KIND = "rlpto"
EPISODES_OF_SEED = 10_000
VALIDATION_EPISODES = range(900_000, 900_024)
BETA_KL_RANGE = (1e-3, 100.0)
VALUE_WEIGHT = 0.5
_PERCENTILES = (0.1, 99.9)
_RANGE_STATES = 4_000
Penalty = Literal["kl", "clip"]
Singles = npt.NDArray[np.float32]
Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoArgs:
    """The parameters of one training."""

    out: Path = Path("rlpto-1.npz")
    """the file to write"""
    version: int = 1
    """of the model; greater ones win"""
    seed: int = 0
    """of all random choices, and of which episodes are trained on"""
    decisions: int = 81_920
    """of all rounds together"""
    round: int = 4_096
    """decisions sampled before each update"""
    epochs: int = 5
    """passes over them"""
    batch: int = 256
    """decisions per step of descent"""
    lr: float = 6e-4
    """learning rate of Adam"""
    gamma: float = 0.99
    """discount per cycle, the longest epoch that runs"""
    lam: float = 0.95
    """of generalised advantage estimation"""
    entropy: float = 0.0
    """weight of the entropy"""
    norm: float = 0.5
    """greatest norm of the gradient"""
    penalty: str = "kl"
    """kl, or clip"""
    kl_target: float = 0.001
    """divergence of an update that beta_kl steers to"""
    beta_kl: float = 1.0
    """its first value"""
    clip: float = 0.2
    """with --penalty clip, greatest departure of the ratio from 1"""
    reward: str = "progress"
    """printed, smooth, net, progress or delivered (hrm.learn.elasticity_env)"""
    masked: int = 1
    """0: what is not allowed may be chosen in training, and is lost"""
    validate_every: int = 4
    """updates between two evaluations"""

    def __post_init__(self) -> None:
        for name in ("decisions", "round", "epochs", "batch", "validate_every"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"--{name.replace('_', '-')}: give at least 1")
        if not (0.0 < self.gamma < 1.0 and 0.0 <= self.lam <= 1.0 and self.lr > 0.0):
            raise InvalidConfig("--gamma is in (0, 1), --lam in [0, 1], --lr above 0")
        for name, known in (("reward", ElasticityReward), ("penalty", Penalty)):
            if getattr(self, name) not in get_args(known):
                raise InvalidConfig(f"--{name}: give one of {', '.join(get_args(known))}")


def divergence(old: Tensor, new: Tensor) -> Tensor:
    """Shape (states,): KL(old || new) of log-probabilities (states, actions); actions that are not
    allowed, -inf in both, count for nothing."""
    allowed = torch.isfinite(old)
    old, new = (each.masked_fill(~allowed, 0.0) for each in (old, new))
    return (allowed * old.exp() * (old - new)).sum(1)


def adapted(beta_kl: float, found: float, target: float) -> float:
    """The next weight of the penalty, after an update of divergence ``found``."""
    if found > 1.5 * target:
        beta_kl *= 2.0
    elif found < target / 1.5:
        beta_kl /= 2.0
    return min(max(beta_kl, BETA_KL_RANGE[0]), BETA_KL_RANGE[1])


def advantages(
    decisions: Sequence[SampledDecision], after: float, gamma: float, lam: float
) -> tuple[Singles, Singles]:
    """Advantage and return of each decision. ``after``: the value of the state that follows the
    last one; 0 where its episode has ended."""
    found = np.zeros(len(decisions), dtype=np.float32)
    following, carried = after, 0.0
    for number in range(len(decisions) - 1, -1, -1):
        one = decisions[number]
        if one.last:
            following, carried = 0.0, 0.0
        discount = gamma**one.cycles
        delta = one.reward + discount * following - one.value
        carried = delta + discount * lam * carried
        found[number] = carried
        following = one.value
    values = np.array([one.value for one in decisions], dtype=np.float32)
    return found, found + values


def log_softmax(logits: Singles) -> Singles:
    """Of one state; -inf stays -inf."""
    shifted = logits - logits.max()
    found: Singles = shifted - np.float32(np.log(np.exp(shifted).sum()))
    return found


class _Sampler:
    """Plays episodes with the current weights, one after another, as far as each round goes."""

    def __init__(self, args: PpoArgs, rng: np.random.Generator) -> None:
        reward: Any = args.reward
        self._env = ElasticityEnv(drawn_cluster, reward, masked=bool(args.masked))
        self._rng = rng
        self._next = args.seed * EPISODES_OF_SEED % VALIDATION_EPISODES.start
        self._info: dict[str, Any] = {}
        self.returns: list[float] = []
        self._return = 0.0

    def sample(self, w: Mapping[str, Singles], count: int) -> tuple[list[SampledDecision], float]:
        """The next decisions, and the value of the state after them."""
        found: list[SampledDecision] = []
        while len(found) < count:
            while "state" not in self._info:
                _, self._info = self._env.reset(seed=self._next)
                self._next += 1
            state: ElasticityState = self._info["state"]
            logp = log_softmax(action_logits(w, state))
            drawn = self._rng.random() * np.exp(logp).sum()
            action = int(np.searchsorted(np.cumsum(np.exp(logp)), drawn))
            action = min(action, len(logp) - 1)
            own = padded(action, len(state.jobs), JOBS_MAX)
            value = state_value(w, state)
            _, reward, over, _, self._info = self._env.step(own)
            self._return += reward
            cycles = self._info["cycles"]
            found.append(SampledDecision(state, action, logp, value, reward, over, cycles))
            if over:
                self.returns.append(self._return)
                self._return = 0.0
        return found, state_value(w, self._info["state"]) if "state" in self._info else 0.0


class _Learner:
    def __init__(self, args: PpoArgs) -> None:
        self.args = args
        self.rng = np.random.default_rng([args.seed, 0x990])
        self.weights = fresh(elastic_shapes(), torch.Generator().manual_seed(args.seed))
        with torch.no_grad():
            for name in ZERO_ARRAYS:
                self.weights[name].zero_()
            self.weights["rule"].fill_(RULE_LOGIT)
        self.optimizer = torch.optim.Adam(list(self.weights.values()), lr=args.lr)
        self.beta_kl = args.beta_kl
        self.kl = 0.0
        self.scale = 0.0
        """Of rewards, so that returns of the first round have a standard deviation of 1."""

    def arrays(self) -> dict[str, Singles]:
        return {name: each.detach().numpy().copy() for name, each in self.weights.items()}

    def update(self, decisions: Sequence[SampledDecision], after: float) -> None:
        """Climb on ``decisions``, and adapt the penalty to how far that went."""
        args = self.args
        if not self.scale:
            # Else the critic's error would be all of the gradient whose norm is bounded.
            _, returns = advantages(decisions, after, args.gamma, args.lam)
            self.scale = 1.0 / max(float(returns.std()), 1e-6)
        decisions = [one._replace(reward=self.scale * one.reward) for one in decisions]
        gains, returns = advantages(decisions, after, args.gamma, args.lam)
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        rows = decision_batch(decisions, gains, returns)
        for _ in range(args.epochs):
            order = self.rng.permutation(len(decisions))
            divergences = []
            for first in range(0, len(order), args.batch):
                loss, kl = self._loss(rows.of(torch.from_numpy(order[first : first + args.batch])))
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(list(self.weights.values()), args.norm)
                self.optimizer.step()
                divergences.append(float(kl))
        self.kl = float(np.mean(divergences))
        self.beta_kl = adapted(self.beta_kl, self.kl, args.kl_target)

    def _loss(self, some: DecisionBatch) -> tuple[Tensor, Tensor]:
        args, gain = self.args, some.gains
        logits, values = batch_logits(self.weights, some.batch)
        new, old = torch.log_softmax(logits, 1), some.old
        ratio = (new.gather(1, some.actions) - old.gather(1, some.actions)).exp()[:, 0]
        kl = divergence(old, new).mean()
        if args.penalty == "clip":
            bounded = ratio.clamp(1.0 - args.clip, 1.0 + args.clip)
            climb = torch.minimum(ratio * gain, bounded * gain).mean()
        else:
            climb = (ratio * gain).mean() - self.beta_kl * kl
        plogp = new.exp() * new.masked_fill(~some.batch.mask, 0.0)
        error = (values - some.returns).square().mean()
        return -climb + VALUE_WEIGHT * error + args.entropy * plogp.sum(1).mean(), kl.detach()


def validate(policy: ElasticityPolicy) -> dict[str, float]:
    """Means over validation episodes: of the points-weighted time to delivery over that of the beta
    rule, and of the completion time over its."""
    ratios = []
    for episode in VALIDATION_EPISODES:
        if episode not in _BETA_RULE:
            _BETA_RULE[episode] = run_policy(drawn_cluster(episode), BetaRule()).figures()
        ours, theirs = run_policy(drawn_cluster(episode), policy).figures(), _BETA_RULE[episode]
        ratios.append([ours[name] / theirs[name] for name in ("delivery_s", "completion_mean_s")])
    delivery, completion = np.mean(ratios, axis=0).tolist()
    return {"delivery": delivery, "completion": completion}


_BETA_RULE: dict[int, dict[str, float]] = {}
"""Its figures of validation episodes, which never change."""


def train(args: PpoArgs, on_progress: Progress = lambda share, doing: None) -> dict[str, Any]:
    """Train as ``args`` say, write the best model, and return the results on validation."""
    torch.set_num_threads(1)
    began_s = time.process_time()
    learner = _Learner(args)
    sampler = _Sampler(args, learner.rng)
    rounds = max(1, args.decisions // args.round)
    trials = [{"decisions": 0.0, **validate(RULE)}]
    best = learner.arrays()
    states: list[ElasticityState] = []
    for number in range(1, rounds + 1):
        decisions, after = sampler.sample(learner.arrays(), args.round)
        learner.update(decisions, after)
        states = [*states, *(one.state for one in decisions)][-_RANGE_STATES:]
        on_progress(number / rounds, f"{number * args.round} decisions, KL {learner.kl:.4f}")
        if number % args.validate_every and number < rounds:
            continue
        model = _model(learner.arrays(), states, args, {})
        state = {"kl": learner.kl, "beta_kl": learner.beta_kl,
                 "return": float(np.mean(sampler.returns[-16:] or [0.0]))}  # fmt: skip
        done = {"decisions": float(number * args.round)}
        trials.append({**done, **validate(LearnedElasticity(model)), **state})
        log.info("%s", json.dumps(trials[-1]))
        if trials[-1]["delivery"] <= min(trial["delivery"] for trial in trials):
            best = learner.arrays()
    meta = {"trials": trials, "trained_s": time.process_time() - began_s}
    model = _model(best, states, args, meta)
    model_files.write(model, args.out)
    first = min(trials, key=lambda trial: trial["delivery"])
    summary = (
        f"{model} in {args.out}: time to delivery {first['delivery']:.3f} of the beta rule's on "
        f"validation episodes, after {first['decisions']:.0f} decisions"
    )
    return {"model": str(model), "out": str(args.out), "best": first, "summary": summary, **meta}


def _model(
    arrays: dict[str, Singles],
    states: Sequence[ElasticityState],
    args: PpoArgs,
    meta: Mapping[str, Any],
) -> Model:
    jobs = np.concatenate([state.jobs for state in states])
    cluster = np.stack([state.cluster for state in states])
    low, high = (
        np.concatenate([np.percentile(x, p, axis=0) for x in (jobs, cluster)]).astype(np.float32)
        for p in _PERCENTILES
    )
    logits = (action_logits(arrays, state) for state in states)
    greatest = max(float(np.abs(each[np.isfinite(each)]).max()) for each in logits)
    words = ["python", "-m", "hrm.learn.ppo", *words_of(args)]
    about = {**meta, "logit_abs_max": max(greatest, 1e-6), "command": shlex.join(words)}
    return Model(
        kind=KIND, version=args.version, schema=ELASTICITY_SCHEMA,
        arrays={**arrays, "low": low, "high": high}, meta=about,
    )  # fmt: skip


def parse(words: Sequence[str]) -> PpoArgs:
    """``PpoArgs`` from the arguments of a command line."""
    return parsed(PpoArgs, words, module="hrm.learn.ppo", about=__doc__)


def main(words: Sequence[str] | None = None) -> int:
    """Train, with progress on stderr and the result as JSON on stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    args = parse(sys.argv[1:] if words is None else words)
    sys.stdout.write(json.dumps(train(args), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
