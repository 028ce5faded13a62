"""Trains the cluster half of LDWP: ``python -m hrm.learn.ldwp ldwp-set --out weights.npz``.

A thousand random decisions give the scale of the rewards. In pre-training, rounds of fitted
Q-iteration fit the network to transitions of ``ect``, with some random actions. Then the network
decides itself and continues to learn. At intervals it is evaluated, greedily, on validation seeds:
the best of these is written, with the ranges of its inputs and the command that made it. Nothing
here uses the seeds that results are measured on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hrm.errors import InvalidConfig
from hrm.learn.dqn import Hyper, Learner, Transition
from hrm.learn.environment import TRAINING, VALIDATION, Environment, TaskDecision, evaluate, load
from hrm.learn.q_networks import Brain, FlatBrain, SetBrain
from hrm.learn.rewards import MODES, Mode, Rewards, kappa_of
from hrm.pipelines.core.model import ClusterPolicy
from hrm.pipelines.policies.cluster import LEARNED
from hrm.pipelines.policies.cluster import load as load_policy
from hrm.pipelines.policies.cluster.features import TYPES, Layout
from hrm.pipelines.policies.cluster.heuristics import Ect
from hrm.policies import model_files
from hrm.policies.model_files import Model

__all__ = ["Args", "Progress", "main", "parse", "train"]

log = logging.getLogger("hrm.learn.ldwp")

Progress = Callable[[float, str], None]
"""Called with the share that is done, 0..1, and the current step."""

CALIBRATION_DECISIONS = 1_000
PRETRAIN_LR = 1e-3
PRETRAIN_BATCH = 128
STATES_MAX = 5_000  # from which ranges and the greatest |Q| are taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Args:
    """The parameters of one training."""

    policy: str = "ldwp-set"
    """ldwp (the paper's network, for one fixed cluster) or ldwp-set (any cluster)"""
    environment: str = "hrm.pipelines.sim.learning:environment"
    """module:factory of the environment (hrm.learn.environment)"""
    options: str = ""
    """name=value,... for the factory"""
    out: Path = Path("ldwp.npz")
    """the file to write"""
    version: int = 1
    """of the model; greater ones win"""
    types: str = ",".join(TYPES)
    """pipelines that are distinguished, at most 4 for ldwp-set"""
    features: str = "extended"
    """of ldwp: paper (table 1) or extended"""
    history: int = 1
    """of ldwp: observations that a decision sees"""
    reward: Mode = "slowdown"
    """delta (the paper's), smdp or slowdown (hrm.learn.rewards)"""
    gamma: float = 0.8
    """discount per decision, of delta"""
    tau_s: float = 60.0
    """time constant of the discount of smdp"""
    target: str = "double"
    """dqn (the paper's) or double"""
    loss: str = "huber"
    """squared (the paper's) or huber"""
    clip: float = 10.0
    """greatest norm of the gradient"""
    lr: float = 0.1
    """learning rate of the stochastic gradient descent"""
    batch: int = 20
    """transitions per step"""
    replay: int = 10_000
    """transitions that are kept"""
    learn_after: int = 200
    """transitions before the first step"""
    target_every: int = 100
    """steps between copies to the target network"""
    pretrain_decisions: int = 10_000
    """decisions of ect to learn from; 0: no pre-training"""
    pretrain_epsilon: float = 0.3
    """share of random ones among them"""
    pretrain_rounds: int = 20
    """rounds of fitted Q-iteration"""
    pretrain_epochs: int = 2
    """passes over these decisions in each round"""
    decisions: int = 20_000
    """decisions that the network takes while it learns"""
    validate_every: int = 4_000
    """decisions between two evaluations"""
    validation_seeds: int = 5
    """traces of each evaluation"""
    seed: int = 0
    """of all random choices"""

    def __post_init__(self) -> None:
        known = {
            "policy": LEARNED, "reward": MODES, "target": ("dqn", "double"),
            "loss": ("squared", "huber"), "features": ("paper", "extended"),
        }  # fmt: skip
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise InvalidConfig(
                    f"--{name} {getattr(self, name)!r}: name one of {', '.join(values)}"
                )
        least = {"version": 0, "history": 1, "batch": 1, "replay": 1, "learn_after": 1,
                 "target_every": 1, "pretrain_decisions": 0, "pretrain_rounds": 1,
                 "pretrain_epochs": 1, "decisions": 0, "validate_every": 1,
                 "validation_seeds": 1}  # fmt: skip
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InvalidConfig(f"--{name.replace('_', '-')}: give at least {value}")

    def hyper(self) -> Hyper:
        first = (0.3, 0.05, 400) if self.pretrain_decisions else (1.0, 0.05, 1_000)
        return Hyper(
            lr=self.lr,
            batch=self.batch,
            replay=self.replay,
            learn_after=self.learn_after,
            target_every=self.target_every,
            double=self.target == "double",
            huber=self.loss == "huber",
            clip=self.clip,
            epsilon=first,
        )


def train(args: Args, on_progress: Progress = lambda share, doing: None) -> dict[str, Any]:
    """Train as ``args`` say, write the model, and return its results on validation seeds.

    Raises:
        InvalidConfig: there is no such environment, or its nodes differ between seeds, which
            ``ldwp`` cannot learn.
    """
    torch.set_num_threads(1)
    environment = load(args.environment, args.options)
    rng = np.random.default_rng(args.seed)
    brain = _brain(args, environment)
    rewards = Rewards(args.reward, gamma=args.gamma, tau_s=args.tau_s)
    learner = Learner(brain, rewards, args.hyper(), rng)
    on_progress(0.0, "scale of the rewards")
    first = _calibrate(learner, environment)
    if args.pretrain_decisions:
        _pretrain(learner, environment, args, on_progress)
    return _learn(learner, environment, args, on_progress, first)


def run(learner: Learner, environment: Environment, decisions: int, on_progress: Progress) -> None:
    """Let ``learner`` decide training traces, one after another, until it has decided enough."""
    last = learner.decisions + decisions
    while True:
        learner.begin()
        decision: TaskDecision | None = environment.reset(TRAINING[learner.traces % len(TRAINING)])
        learner.traces += 1
        while decision is not None:
            step = environment.step(learner.choose(*decision).node)
            for end in step.ended:
                learner.ended(end.task_id, now=end.at, response_s=end.response_s, ok=end.ok)
            if learner.decisions >= last:
                return
            if learner.decisions % 500 == 0:
                on_progress(
                    1.0 - (last - learner.decisions) / decisions, f"loss {learner.loss:.4f}"
                )
            if step.decision is None and step.terminal:
                learner.finish(decision.view.now)
            decision = step.decision


def _brain(args: Args, environment: Environment) -> Brain:
    generator = torch.Generator().manual_seed(args.seed)
    types = tuple(name.strip() for name in args.types.split(",") if name.strip())
    if args.policy == SetBrain.kind:
        return SetBrain(types, generator)
    first, second = (environment.reset(seed).view for seed in TRAINING[:2])
    if first.names != second.names:
        raise InvalidConfig(
            f"environment {args.environment!r} has other nodes at every seed; ldwp has one output "
            f"a node: give the environment --options that fix them, or train ldwp-set"
        )
    nodes = list(zip(first.names, first.platform, strict=True))
    return FlatBrain(Layout(args.features, types, args.history), nodes, generator)


def _calibrate(learner: Learner, environment: Environment) -> list[Transition]:
    """A thousand random decisions for the scale of the rewards; nothing is learned from them.

    Returns the transitions, from which the first evaluation takes the ranges if nothing is learned
    before it.
    """
    epsilon, learner.learning = learner.hyper.epsilon, False
    learner.begin((1.0, 1.0, 0))
    run(learner, environment, CALIBRATION_DECISIONS, lambda share, doing: None)
    seen = list(learner.replay.held)
    learner.rewards.kappa = kappa_of([t.reward for t in seen])
    learner.replay.clear()
    learner.learning = True
    learner.begin(epsilon)
    return seen


def _pretrain(
    learner: Learner, environment: Environment, args: Args, on_progress: Progress
) -> None:
    learner.teacher, learner.learning = Ect(), False
    learner.begin((args.pretrain_epsilon, args.pretrain_epsilon, 0))
    run(
        learner,
        environment,
        args.pretrain_decisions,
        lambda share, doing: on_progress(0.2 * share, "watching ect"),
    )
    learner.teacher, learner.learning = None, True
    held = list(learner.replay.held)
    if not held:
        raise InvalidConfig("no task ended while ect was watched; raise --pretrain-decisions")
    rng = np.random.default_rng(args.seed + 1)
    optimizer = torch.optim.Adam(list(learner.brain.weights.values()), lr=PRETRAIN_LR)
    for number in range(args.pretrain_rounds):
        loss = _fit(learner, held, args.pretrain_epochs, optimizer, rng)
        on_progress(
            0.2 + 0.2 * (number + 1) / args.pretrain_rounds, f"pre-training, loss {loss:.4f}"
        )
    learner.begin(learner.hyper.epsilon)


def _fit(
    learner: Learner,
    held: Sequence[Transition],
    epochs: int,
    optimizer: torch.optim.Optimizer,
    rng: np.random.Generator,
) -> float:
    """One round of fitted Q-iteration: the targets are fixed while the network approaches them."""
    learner.copy_to_target()
    parts = range(0, len(held), PRETRAIN_BATCH)
    wanted = torch.cat([learner.targets(held[n : n + PRETRAIN_BATCH]) for n in parts])
    losses = []
    for _ in range(epochs):
        order = rng.permutation(len(held))
        for n in parts:
            some = order[n : n + PRETRAIN_BATCH]
            batch = [held[number] for number in some]
            losses.append(learner.step(batch, wanted[torch.from_numpy(some)], optimizer))
    learner.copy_to_target()
    return float(np.mean(losses))


def _learn(
    learner: Learner,
    environment: Environment,
    args: Args,
    on_progress: Progress,
    first: Sequence[Transition],
) -> dict[str, Any]:
    """Learn from own decisions; the best model on validation seeds is written and described."""
    seeds = VALIDATION[: args.validation_seeds]
    ect = dataclasses.asdict(evaluate(environment, Ect, seeds))
    log.info("ect: %s", json.dumps(ect))
    trials: list[dict[str, Any]] = []
    best: Model | None = None
    done = 0
    while True:
        model = _model(learner, args, learner.replay.held or first)
        found = dataclasses.asdict(evaluate(environment, _frozen(model), seeds))
        trials.append({"decisions": done, **found})
        log.info("after %d decisions: %s", done, json.dumps(found))
        if found["log_slowdown"] == min(trial["log_slowdown"] for trial in trials):
            best = model
            summary = {"trials": trials, "ect": ect, "kappa": learner.rewards.kappa}
            meta = {**best.meta, "validation": summary}
            model_files.write(dataclasses.replace(best, meta=meta), args.out)
        if done >= args.decisions:
            break
        part = min(args.validate_every, args.decisions - done)
        begun = done / args.decisions

        def on_part(share: float, doing: str, begun: float = begun, part: int = part) -> None:
            on_progress(0.4 + 0.6 * (begun + share * part / args.decisions), doing)

        run(learner, environment, part, on_part)
        done += part
    assert best is not None
    on_progress(1.0, f"wrote {args.out}")
    kappa = learner.rewards.kappa
    held = {"model": str(best), "out": str(args.out), "kappa": kappa, "ect": ect, "trials": trials}
    return {**held, "best": _best(trials)}


def _best(trials: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return min(trials, key=lambda trial: float(trial["log_slowdown"]))


def _frozen(model: Model) -> Callable[[], ClusterPolicy]:
    rng = np.random.default_rng(0)
    return lambda: load_policy(model.kind, rng=rng, model=model, guarded=False)


def _model(learner: Learner, args: Args, seen: Sequence[Transition]) -> Model:
    """The learner's present model, with the ranges of its inputs so far."""
    brain = learner.brain
    if not seen:
        raise InvalidConfig("no task ended in a thousand decisions; the environment is too slow")
    held = seen[:: max(1, len(seen) // STATES_MAX)]
    states = [transition.state for transition in held]
    with torch.no_grad():
        parts = [
            brain.values(brain.weights, states[n : n + 500]) for n in range(0, len(states), 500)
        ]
    greatest = max(float(q[torch.isfinite(q)].abs().max()) for q in parts)
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in brain.weights.items()}
    meta = {
        **brain.meta(),
        "nodes_min": learner.nodes_seen[0],
        "nodes_max": learner.nodes_seen[1],
        "q_abs_max": greatest,
        "reward": args.reward,
        "kappa": learner.rewards.kappa,
        "command": shlex.join(["python", "-m", "hrm.learn.ldwp", *words_of(args)]),
    }
    return Model(
        kind=brain.kind,
        version=args.version,
        schema=brain.schema(),
        arrays={**arrays, **brain.ranges(states)},
        meta=meta,
    )


def words_of(args: Args) -> list[str]:
    """The arguments of the command for ``args``, without those that are defaults."""
    words = [args.policy]
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if field.name not in ("policy", "out") and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return words


def parse(words: Sequence[str]) -> Args:
    """``Args`` from the arguments of a command line."""
    parser = argparse.ArgumentParser(prog="python -m hrm.learn.ldwp", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for field in dataclasses.fields(Args):
        kind = type(field.default)
        if field.name == "policy":
            parser.add_argument("policy", nargs="?", default=field.default, choices=LEARNED)
        else:
            flag = f"--{field.name.replace('_', '-')}"
            parser.add_argument(flag, type=kind, default=field.default)
    return Args(**vars(parser.parse_args(words)))


def main(words: Sequence[str] | None = None) -> int:
    """Train, with progress on stderr and the result as JSON on stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")

    def on_progress(share: float, doing: str) -> None:
        sys.stderr.write(f"{share:4.0%} {doing}\n")

    args = parse(sys.argv[1:] if words is None else words)
    sys.stdout.write(json.dumps(train(args, on_progress), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
