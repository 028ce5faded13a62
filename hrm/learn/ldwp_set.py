"""Trains ``ldwp-set``: ``python -m hrm.learn.ldwp_set --out ldwp-set-2.npz``.

A contextual bandit, unless ``gamma`` is above 0: the value of a candidate is the expected
-ln(response / ideal) of the task that goes there, and, with ``gamma``, of the ``horizon`` tasks
placed after it, discounted. Rounds alternate between traces and regression:

1. traces of drawn clusters are played, in the first round by heuristics and then by one member of
   the ensemble each, with a share of random actions; every decision is kept with its return;
2. every member is fitted to a resampling of all decisions so far, by Adam;
3. the ensemble plays validation seeds greedily; the best round is written.

``--from-shadow FILE`` is another source: decisions that a master has logged, whoever made them.
The newest model is fitted to the earlier 80 % of them with a small step, and written only if its
error on the later 20 % falls. Features and times in the log are the word of users' workers: what
cannot have been is left out, no user has more of the records than all others together, and the new
model's guards are nowhere wider than those it began with, unless ``--widen-guards`` says so.

Seeds of training, validation and test are disjoint (``hrm.learn.environment``).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hrm.errors import InvalidConfig
from hrm.learn.arguments import parsed, words_of
from hrm.learn.environment import TRAINING, VALIDATION, evaluate, load
from hrm.learn.placement_env import PlacementEnv, reward_of
from hrm.pipelines.core.model import ClusterPolicy, Vector
from hrm.pipelines.policies.cluster import load as load_policy
from hrm.pipelines.policies.cluster.networks import MEMBERS, set_q, set_shapes
from hrm.pipelines.policies.cluster.placement_log import PlacementRecord, read_records
from hrm.pipelines.policies.cluster.scale_free import NODE_INPUTS, SET_SCHEMA, SetState
from hrm.policies import model_files
from hrm.policies.model_files import Model

__all__ = [
    "Batch", "EnsembleArgs", "PlacementSample", "batch_of", "fit", "main", "parse", "q_values",
    "returns_of", "train",
]  # fmt: skip

log = logging.getLogger("hrm.learn.ldwp_set")

KIND = "ldwp-set"
TEACHERS = ("ect", "min-wait", "least-loaded")
Progress = Callable[[float, str], None]
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleArgs:
    """The parameters of one training."""

    environment: str = "hrm.pipelines.sim.learning:environment"
    """module:factory of the cluster (hrm.learn.environment)"""
    options: str = ""
    """name=value,... for the factory"""
    out: Path = Path("ldwp-set-2.npz")
    """the file to write"""
    version: int = 2
    """of the model; greater ones win"""
    rounds: int = 4
    """of traces and regression"""
    traces: int = 25
    """of each round, one drawn cluster each"""
    epsilon: float = 0.2
    """share of random actions; in the first round twice as many"""
    gamma: float = 0.0
    """discount per decision; 0: a contextual bandit"""
    horizon: int = 20
    """decisions after its own that count for a placement, with gamma above 0"""
    epochs: int = 12
    """passes over all decisions in each round"""
    batch: int = 256
    """decisions per step"""
    lr: float = 1e-3
    """learning rate of Adam; a tenth of it with --from-shadow"""
    validation_seeds: int = 10
    """traces of each validation"""
    from_shadow: str = ""
    """a master's log of placements, instead of the environment"""
    models: str = ""
    """with --from-shadow, a directory of models next to HRM's own; default: that of --out"""
    widen_guards: int = 0
    """1: with --from-shadow, the log may widen the guards of the model"""
    seed: int = 0
    """of all random choices"""

    def __post_init__(self) -> None:
        for name in ("rounds", "traces", "epochs", "batch", "horizon", "validation_seeds"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"--{name.replace('_', '-')}: give at least 1")
        if self.widen_guards not in (0, 1):
            raise InvalidConfig("--widen-guards: give 0 or 1")
        if not (0.0 <= self.gamma < 1.0 and 0.0 <= self.epsilon <= 0.5 and self.lr > 0.0):
            raise InvalidConfig("--gamma is in [0, 1), --epsilon in [0, 0.5], --lr above 0")


class PlacementSample(NamedTuple):
    """A decision: what was seen, the candidate that was chosen, and its return."""

    state: SetState
    action: int
    value: float


def returns_of(rewards: Vector, gamma: float, horizon: int) -> Vector:
    """Shape (decisions,): of each its own reward and those of the next ``horizon``, discounted."""
    total = rewards.astype(np.float64)
    for ahead in range(1, horizon + 1 if gamma else 1):
        total[:-ahead] += gamma**ahead * rewards[ahead:]
    return total.astype(np.float32)


def fresh(generator: torch.Generator) -> Tensors:
    """New weights, uniform within one over the root of the inputs of their layer, as in Linear."""
    weights, inputs = {}, 1
    for name, shape in set_shapes().items():
        inputs = shape[1] if name.startswith("w") else inputs
        bound = inputs**-0.5
        drawn = torch.rand(shape, generator=generator) * (2.0 * bound) - bound
        weights[name] = drawn.requires_grad_()
    return weights


class Batch(NamedTuple):
    """States: ``nodes`` (states, candidates, 16), ``tasks`` (states, 10), and ``there`` (states,
    candidates, 1), False beyond a state's own candidates."""

    nodes: Tensor
    there: Tensor
    tasks: Tensor

    def some(self, which: Tensor) -> Batch:
        """These states, without candidates that none of them has."""
        there = self.there[which]
        longest = int(there.sum(1).max())
        return Batch(self.nodes[which, :longest], there[:, :longest], self.tasks[which])


def batch_of(states: Sequence[SetState]) -> Batch:
    """The states, padded with zeros to the one with the most candidates."""
    longest = max(len(state.rows) for state in states)
    nodes = torch.zeros((len(states), longest, len(NODE_INPUTS)))
    there = torch.zeros((len(states), longest, 1), dtype=torch.bool)
    for number, state in enumerate(states):
        nodes[number, : len(state.rows)] = torch.from_numpy(state.nodes)
        there[number, : len(state.rows)] = True
    return Batch(nodes, there, torch.from_numpy(np.stack([state.task for state in states])))


def q_values(w: Tensors, batch: Batch) -> Tensor:
    """Shape (members, states, candidates), -inf beyond a state's own; as ``networks.set_q``."""
    mask, tasks = batch.there, batch.tasks[None, :, None]
    v = {name: tensor[:, None] for name, tensor in w.items()}
    hidden = torch.relu(batch.nodes @ v["wn"] + tasks @ v["wc"] + v["b1"])
    hidden = torch.relu(hidden @ v["w2"] + v["b2"])
    mean = (hidden * mask).sum(2, keepdim=True) / mask.sum(1, keepdim=True)
    most = hidden.masked_fill(~mask, -torch.inf).amax(2, keepdim=True)
    pooled = torch.cat((mean, most), 3) @ v["wg"] + v["b3"]
    q = torch.relu(hidden @ v["wh"] + pooled) @ v["w"] + v["b4"]
    return q.masked_fill(~mask, -torch.inf).squeeze(3)


def fit(
    weights: Tensors,
    samples: Sequence[PlacementSample],
    *,
    epochs: int,
    batch: int,
    lr: float,
    rng: np.random.Generator,
) -> float:
    """Regression of the chosen candidates' values; each member sees its own resampling, each
    decision as often as a Poisson variable of mean 1 says. Returns the last epoch's loss."""
    optimizer = torch.optim.Adam(list(weights.values()), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs, lr / 20)
    often = torch.from_numpy(rng.poisson(1.0, (MEMBERS, len(samples))).astype(np.float32))
    every = batch_of([one.state for one in samples])
    actions = torch.tensor([one.action for one in samples])
    values = torch.tensor([one.value for one in samples])
    losses: list[float] = []
    for _ in range(epochs):
        losses.clear()
        order = torch.from_numpy(rng.permutation(len(samples)))
        for first in range(0, len(samples), batch):
            some = order[first : first + batch]
            chosen = actions[some].expand(MEMBERS, -1)[:, :, None]
            q = q_values(weights, every.some(some)).gather(2, chosen)[:, :, 0]
            wanted = values[some].expand(MEMBERS, -1)
            error = torch.nn.functional.huber_loss(q, wanted, reduction="none")
            loss = (error * often[:, some]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        schedule.step()
    return float(np.mean(losses))


def play(
    env: PlacementEnv,
    seed: int,
    choose: Callable[[dict[str, Any]], int],
    *,
    epsilon: float,
    rng: np.random.Generator,
) -> tuple[list[SetState], list[int], Vector]:
    """A trace: states, actions and the reward of each decision's own task."""
    states: list[SetState] = []
    actions: list[int] = []
    rewards: dict[int, float] = {}
    _, info = env.reset(seed=seed)
    over = False
    while not over:
        allowed = np.flatnonzero(info["action_mask"])
        action = int(rng.choice(allowed)) if rng.random() < epsilon else choose(info)
        states.append(info["state"])
        actions.append(action)
        _, _, terminated, truncated, info = env.step(action)
        rewards |= dict(info["ended"])
        over = terminated or truncated
    found = [rewards.get(number, np.nan) for number in range(len(states))]
    return states, actions, np.array(found, dtype=np.float32)


def _teacher(name: str, rng: np.random.Generator) -> Callable[[dict[str, Any]], int]:
    policy = load_policy(name, rng=rng)

    def choose(info: dict[str, Any]) -> int:
        row = policy.choose(*info["decision"]).node
        return int(np.flatnonzero(info["state"].rows == row)[0])

    return choose


def _member(weights: Tensors, number: int) -> Callable[[dict[str, Any]], int]:
    own = {name: w[number : number + 1].detach().numpy() for name, w in weights.items()}

    def choose(info: dict[str, Any]) -> int:
        return int(set_q(own, info["state"].nodes, info["state"].task)[0].argmax())

    return choose


def _collect(
    env: PlacementEnv, args: EnsembleArgs, number: int, weights: Tensors, rng: np.random.Generator
) -> list[PlacementSample]:
    samples: list[PlacementSample] = []
    for trace in range(args.traces):
        seed = TRAINING[(number * args.traces + trace) % len(TRAINING)]
        if number == 0:
            choose = _teacher(TEACHERS[trace % len(TEACHERS)], rng)
        else:
            choose = _member(weights, int(rng.integers(MEMBERS)))
        epsilon = args.epsilon * (2.0 if number == 0 else 1.0)
        states, actions, rewards = play(env, seed, choose, epsilon=epsilon, rng=rng)
        values = returns_of(np.nan_to_num(rewards), args.gamma, args.horizon)
        samples += [
            PlacementSample(state, action, float(value))
            for state, action, value, reward in zip(states, actions, values, rewards, strict=True)
            if np.isfinite(reward)
        ]
    if not samples:
        raise InvalidConfig("no task ended in the traces of training; make them longer")
    return samples


def train(args: EnsembleArgs, on_progress: Progress = lambda share, doing: None) -> dict[str, Any]:
    """Train as ``args`` say, write the best model, and return the results on validation seeds.

    Raises:
        InvalidConfig: there is no such environment or log, or the log improves nothing.
        NotFound: with ``from_shadow``, there is no log or no model to begin with.
    """
    torch.set_num_threads(1)
    if args.from_shadow:
        return _from_shadow(args, on_progress)
    cluster = load(args.environment, args.options)
    env = PlacementEnv(cluster)
    rng = np.random.default_rng([args.seed, 0x5E7])
    weights = fresh(torch.Generator().manual_seed(args.seed))
    seeds = VALIDATION[: args.validation_seeds]
    heuristics = {
        name: dataclasses.asdict(evaluate(cluster, partial(load_policy, name, rng=rng), seeds))
        for name in TEACHERS
    }
    log.info("heuristics: %s", json.dumps(heuristics))
    samples: list[PlacementSample] = []
    trials: list[dict[str, Any]] = []
    for number in range(args.rounds):
        on_progress(number / args.rounds, f"round {number + 1}, traces")
        samples += _collect(env, args, number, weights, rng)
        on_progress((number + 0.5) / args.rounds, f"round {number + 1}, {len(samples)} decisions")
        loss = fit(weights, samples, epochs=args.epochs, batch=args.batch, lr=args.lr, rng=rng)
        model = _model(weights, samples, args)
        found = dataclasses.asdict(evaluate(cluster, _frozen(model), seeds))
        trials.append({"decisions": len(samples), "loss": loss, **found})
        log.info("round %d: %s", number + 1, json.dumps(trials[-1]))
        if found["log_slowdown"] == min(trial["log_slowdown"] for trial in trials):
            meta = {**model.meta, "validation": {"trials": trials, "heuristics": heuristics}}
            model_files.write(dataclasses.replace(model, meta=meta), args.out)
    on_progress(1.0, f"wrote {args.out}")
    first = min(trials, key=lambda trial: float(trial["log_slowdown"]))
    return {"model": str(model), "out": str(args.out), "trials": trials, "best": first,
            "heuristics": heuristics, "ect": heuristics["ect"]}  # fmt: skip


def _from_shadow(args: EnsembleArgs, on_progress: Progress) -> dict[str, Any]:
    records = read_records(Path(args.from_shadow))
    sound = [one for one in records if one.is_sound]
    fair = of_no_user_most(sound)
    unsound, crowded = len(records) - len(sound), len(sound) - len(fair)
    if unsound or crowded:
        log.info("left out: %d absurd, %d of a user with most of the rest", unsound, crowded)
    samples = [PlacementSample(one.state, one.action, reward_of(one.slowdown)) for one in fair]
    split = int(0.8 * len(samples))
    if split < args.batch:
        left = f" ({unsound} absurd ones and {crowded} of one user are left out)"
        raise InvalidConfig(
            f"{args.from_shadow} has {len(samples)} placements{left if unsound or crowded else ''}"
            f", fewer than {args.batch / 0.8:.0f}: wait for more, or give a smaller --batch"
        )
    before = model_files.find(KIND, state_dir=Path(args.models or args.out.parent))
    if before.schema != SET_SCHEMA:
        raise InvalidConfig(f"model {before} is for other features; train one first")
    earlier, later = samples[:split], samples[split:]
    names = set_shapes()
    weights = {name: torch.tensor(before.arrays[name], requires_grad=True) for name in names}
    first = _error(weights, later)
    rng = np.random.default_rng([args.seed, 0x5AD])
    fit(weights, earlier, epochs=args.epochs, batch=args.batch, lr=args.lr / 10, rng=rng)
    last = _error(weights, later)
    on_progress(1.0, f"error {first:.4f} before, {last:.4f} after")
    if not last < first:
        raise InvalidConfig(
            f"nothing is written: on the later {len(later)} placements the error of {before} is "
            f"{first:.4f}, after fine-tuning {last:.4f}; collect more of them"
        )
    model = _model(weights, earlier, args)
    if not args.widen_guards:
        model = no_wider(model, before)
    tuned = {"from": str(before), "placements": len(samples), "before": first, "after": last,
             "absurd": unsound, "crowded": crowded}  # fmt: skip
    meta = {**before.meta, **model.meta, "tuned": tuned}
    model_files.write(dataclasses.replace(model, meta=meta), args.out)
    return {"model": str(model), "out": str(args.out), "tuned": tuned}


def of_no_user_most(records: Sequence[PlacementRecord]) -> list[PlacementRecord]:
    """Without the oldest of a user that has more than all others together. Those of one user alone,
    and of a log without users, stay."""
    many = Counter(one.user for one in records)
    if len(many) < 2:
        return list(records)
    user, most = many.most_common(1)[0]
    over = most - (len(records) - most)
    kept = []
    for one in records:
        if one.user == user and over > 0:
            over -= 1
        else:
            kept.append(one)
    return kept


def no_wider(model: Model, before: Model) -> Model:
    """``model`` with guards that nowhere exceed those of ``before``."""
    low, high = before.arrays["low"], before.arrays["high"]
    ranges = {name: np.clip(model.arrays[name], low, high) for name in ("low", "high")}
    meta = dict(model.meta)
    for name in ("nodes_min", "nodes_max"):
        least, most = before.meta["nodes_min"], before.meta["nodes_max"]
        meta[name] = min(max(meta[name], least), most)
    for name in ("q_abs_max", "spread_max"):
        meta[name] = min(meta[name], before.meta[name])
    return dataclasses.replace(model, arrays={**model.arrays, **ranges}, meta=meta)


def _error(weights: Tensors, samples: Sequence[PlacementSample]) -> float:
    """Mean squared error of the ensemble's mean on the chosen candidates."""
    arrays = {name: tensor.detach().numpy() for name, tensor in weights.items()}
    errors = [
        float(set_q(arrays, one.state.nodes, one.state.task).mean(axis=0)[one.action] - one.value)
        for one in samples
    ]
    return float(np.mean(np.square(errors)))


def _frozen(model: Model) -> Callable[[], ClusterPolicy]:
    return partial(load_policy, KIND, rng=np.random.default_rng(0), model=model, guarded=False)


def _model(weights: Tensors, samples: Sequence[PlacementSample], args: EnsembleArgs) -> Model:
    """The present weights, with the ranges of what they were trained on."""
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in weights.items()}
    held = samples[:: max(1, len(samples) // 10_000)]
    values = [set_q(arrays, one.state.nodes, one.state.task) for one in held]
    spreads = [q[:, int(q.mean(axis=0).argmax())].std() for q in values]
    nodes = np.concatenate([one.state.nodes for one in held])
    tasks = np.stack([one.state.task for one in held])
    for name, percent in (("low", 0.1), ("high", 99.9)):
        both = np.percentile(nodes, percent, axis=0), np.percentile(tasks, percent, axis=0)
        arrays[name] = np.concatenate(both).astype(np.float32)
    counts = [len(one.state.rows) for one in samples]
    meta = {
        "nodes_min": min(counts),
        "nodes_max": max(counts),
        "q_abs_max": float(max(np.abs(q.mean(axis=0)).max() for q in values)),
        "spread_max": float(np.percentile(spreads, 99.9)),
        "decisions": len(samples),
        "command": shlex.join(["python", "-m", "hrm.learn.ldwp_set", *words_of(args)]),
    }
    return Model(kind=KIND, version=args.version, schema=SET_SCHEMA, arrays=arrays, meta=meta)


def parse(words: Sequence[str]) -> EnsembleArgs:
    """``EnsembleArgs`` from the arguments of a command line."""
    return parsed(EnsembleArgs, words, module="hrm.learn.ldwp_set", about=__doc__)


def main(words: Sequence[str] | None = None) -> int:
    """Train, with progress on stderr and the result as JSON on stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    args = parse(sys.argv[1:] if words is None else words)
    result = train(args, lambda share, doing: log.info("%4.0f %% %s", 100 * share, doing))
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
