"""Trains the paper's network, ``ldwp``: ``python -m hrm.learn.ldwp --out ldwp-1.npz``.

A thousand random decisions give the scale of the rewards. In pre-training, rounds of fitted
Q-iteration fit the network to transitions of ``ect``, with some random actions. Then the network
decides itself and continues to learn. At intervals it is evaluated, greedily, on validation seeds:
the best of these is written, with the ranges of its inputs and the command that made it. Nothing
here uses the seeds that results are measured on.
"""

from __future__ import annotations

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
from hrm.learn.arguments import parsed, words_of
from hrm.learn.dqn import DqnAgent, Hyper, Transition
from hrm.learn.environment import TRAINING, VALIDATION, Environment, TaskDecision, evaluate, load
from hrm.learn.q_networks import FlatQNetwork, QNetwork
from hrm.learn.rewards import MODES, Mode, Rewards, kappa_of
from hrm.pipelines.core.model import ClusterPolicy
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

    environment: str = "hrm.pipelines.sim.learning:environment"
    """module:factory of the environment (hrm.learn.environment)"""
    options: str = ""
    """name=value,... for the factory"""
    out: Path = Path("ldwp.npz")
    """the file to write"""
    version: int = 1
    """of the model; greater ones win"""
    types: str = ",".join(TYPES)
    """pipelines that are distinguished"""
    features: str = "extended"
    """paper (table 1) or extended"""
    history: int = 1
    """observations that a decision sees"""
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
            "reward": MODES, "target": ("dqn", "double"),
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
    network = _network(args, environment)
    rewards = Rewards(args.reward, gamma=args.gamma, tau_s=args.tau_s)
    agent = DqnAgent(network, rewards, args.hyper(), rng)
    on_progress(0.0, "scale of the rewards")
    first = _calibrate(agent, environment)
    if args.pretrain_decisions:
        _pretrain(agent, environment, args, on_progress)
    return _learn(agent, environment, args, on_progress, first)


def run(agent: DqnAgent, environment: Environment, decisions: int, on_progress: Progress) -> None:
    """Let ``agent`` decide training traces, one after another, until it has decided enough."""
    last = agent.decisions + decisions
    while True:
        agent.begin()
        decision: TaskDecision | None = environment.reset(TRAINING[agent.traces % len(TRAINING)])
        agent.traces += 1
        while decision is not None:
            step = environment.step(agent.choose(*decision).node)
            for end in step.ended:
                agent.ended(end.task_id, now=end.at, response_s=end.response_s, ok=end.ok)
            if agent.decisions >= last:
                return
            if agent.decisions % 500 == 0:
                on_progress(1.0 - (last - agent.decisions) / decisions, f"loss {agent.loss:.4f}")
            if step.decision is None and step.terminal:
                agent.finish(decision.view.now)
            decision = step.decision


def _network(args: Args, environment: Environment) -> QNetwork:
    generator = torch.Generator().manual_seed(args.seed)
    types = tuple(name.strip() for name in args.types.split(",") if name.strip())
    first, second = (environment.reset(seed).view for seed in TRAINING[:2])
    if first.names != second.names:
        raise InvalidConfig(
            f"environment {args.environment!r} has other nodes at every seed; ldwp has one output "
            f"a node: give the environment --options that fix them, or train ldwp-set"
        )
    nodes = list(zip(first.names, first.platform, strict=True))
    return FlatQNetwork(Layout(args.features, types, args.history), nodes, generator)


def _calibrate(agent: DqnAgent, environment: Environment) -> list[Transition]:
    """A thousand random decisions for the scale of the rewards; nothing is learned from them.

    Returns the transitions, from which the first evaluation takes the ranges if nothing is learned
    before it.
    """
    epsilon, agent.learning = agent.hyper.epsilon, False
    agent.begin((1.0, 1.0, 0))
    run(agent, environment, CALIBRATION_DECISIONS, lambda share, doing: None)
    seen = list(agent.replay.held)
    agent.rewards.kappa = kappa_of([t.reward for t in seen])
    agent.replay.clear()
    agent.learning = True
    agent.begin(epsilon)
    return seen


def _pretrain(agent: DqnAgent, environment: Environment, args: Args, on_progress: Progress) -> None:
    agent.teacher, agent.learning = Ect(), False
    agent.begin((args.pretrain_epsilon, args.pretrain_epsilon, 0))
    run(
        agent,
        environment,
        args.pretrain_decisions,
        lambda share, doing: on_progress(0.2 * share, "watching ect"),
    )
    agent.teacher, agent.learning = None, True
    held = list(agent.replay.held)
    if not held:
        raise InvalidConfig("no task ended while ect was watched; raise --pretrain-decisions")
    rng = np.random.default_rng(args.seed + 1)
    optimizer = torch.optim.Adam(list(agent.network.weights.values()), lr=PRETRAIN_LR)
    for number in range(args.pretrain_rounds):
        loss = _fit(agent, held, args.pretrain_epochs, optimizer, rng)
        on_progress(
            0.2 + 0.2 * (number + 1) / args.pretrain_rounds, f"pre-training, loss {loss:.4f}"
        )
    agent.begin(agent.hyper.epsilon)


def _fit(
    agent: DqnAgent,
    held: Sequence[Transition],
    epochs: int,
    optimizer: torch.optim.Optimizer,
    rng: np.random.Generator,
) -> float:
    """One round of fitted Q-iteration: the targets are fixed while the network approaches them."""
    agent.copy_to_target()
    parts = range(0, len(held), PRETRAIN_BATCH)
    wanted = torch.cat([agent.targets(held[n : n + PRETRAIN_BATCH]) for n in parts])
    losses = []
    for _ in range(epochs):
        order = rng.permutation(len(held))
        for n in parts:
            some = order[n : n + PRETRAIN_BATCH]
            batch = [held[number] for number in some]
            losses.append(agent.step(batch, wanted[torch.from_numpy(some)], optimizer))
    agent.copy_to_target()
    return float(np.mean(losses))


def _learn(
    agent: DqnAgent,
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
        model = _model(agent, args, agent.replay.held or first)
        found = dataclasses.asdict(evaluate(environment, _frozen(model), seeds))
        trials.append({"decisions": done, **found})
        log.info("after %d decisions: %s", done, json.dumps(found))
        if found["log_slowdown"] == min(trial["log_slowdown"] for trial in trials):
            best = model
            summary = {"trials": trials, "ect": ect, "kappa": agent.rewards.kappa}
            meta = {**best.meta, "validation": summary}
            model_files.write(dataclasses.replace(best, meta=meta), args.out)
        if done >= args.decisions:
            break
        part = min(args.validate_every, args.decisions - done)
        begun = done / args.decisions

        def on_part(share: float, doing: str, begun: float = begun, part: int = part) -> None:
            on_progress(0.4 + 0.6 * (begun + share * part / args.decisions), doing)

        run(agent, environment, part, on_part)
        done += part
    assert best is not None
    on_progress(1.0, f"wrote {args.out}")
    kappa = agent.rewards.kappa
    held = {"model": str(best), "out": str(args.out), "kappa": kappa, "ect": ect, "trials": trials}
    return {**held, "best": _best(trials)}


def _best(trials: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return min(trials, key=lambda trial: float(trial["log_slowdown"]))


def _frozen(model: Model) -> Callable[[], ClusterPolicy]:
    rng = np.random.default_rng(0)
    return lambda: load_policy(model.kind, rng=rng, model=model, guarded=False)


def _model(agent: DqnAgent, args: Args, seen: Sequence[Transition]) -> Model:
    """The agent's present model, with the ranges of its inputs so far."""
    network = agent.network
    if not seen:
        raise InvalidConfig("no task ended in a thousand decisions; the environment is too slow")
    held = seen[:: max(1, len(seen) // STATES_MAX)]
    states = [transition.state for transition in held]
    with torch.no_grad():
        parts = [
            network.values(network.weights, states[n : n + 500]) for n in range(0, len(states), 500)
        ]
    greatest = max(float(q[torch.isfinite(q)].abs().max()) for q in parts)
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in network.weights.items()}
    meta = {
        **network.meta(),
        "nodes_min": agent.nodes_seen[0],
        "nodes_max": agent.nodes_seen[1],
        "q_abs_max": greatest,
        "reward": args.reward,
        "kappa": agent.rewards.kappa,
        "command": shlex.join(["python", "-m", "hrm.learn.ldwp", *words_of(args)]),
    }
    return Model(
        kind=network.kind,
        version=args.version,
        schema=network.schema(),
        arrays={**arrays, **network.ranges(states)},
        meta=meta,
    )


def parse(words: Sequence[str]) -> Args:
    """``Args`` from the arguments of a command line."""
    return parsed(Args, words, module="hrm.learn.ldwp", about=__doc__)


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
