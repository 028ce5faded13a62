"""Elasticity on measured training curves: what learning adds to a rule, and what is left to gain.

Jobs arrive by a Poisson process at three loads, on curves, noise and scalings measured by others
(``rlpto_curves``); resizes cost 5 to 60 s, a worker fails every other hour, and every job runs to
its iteration limit, for a resource manager ends none. What is compared is the time from arrival
until a job is delivered (within a hundredth of its final accuracy), weighted by its points, and the
mean completion time. Headroom comes first: an oracle that knows all curves. Then the rules, each
tuned on validation seeds, and several trainings of ``rlpto``, on the test seeds; no curve of these
was seen in training.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hrm.core.elasticity.beta_rule import BetaRule, ElasticityPolicy
from hrm.core.elasticity.elasticity_core import ElasticityCore
from hrm.core.elasticity.speed_up_rule import SpeedUpRule
from hrm.learn.elasticity_oracle import ElasticityOracle
from hrm.learn.ppo import PpoArgs, train
from hrm.learn.training_cluster import TrainingCluster, run_policy
from hrm.learn.training_jobs import ClusterRules
from hrm.learn.training_workloads import DrawCurve, arriving_jobs
from hrm.policies import model_files
from hrm.policies.elasticity.fixed import (
    ConstantWorkers,
    EqualTenants,
    KeepWorkers,
    RandomResize,
)
from hrm.policies.elasticity.learned import LearnedElasticity
from hrm.policies.model_files import Model

__all__ = [
    "LOADS",
    "Entry",
    "World",
    "bootstrap",
    "cluster_of",
    "compare",
    "constants",
    "gain",
    "learned_entries",
    "measure",
    "oracle_entry",
    "plain_entries",
    "speed_up_entry",
    "trained_models",
    "tune",
]

LOADS = (0.5, 0.8, 1.1)
TUNED_BETAS = (0.0001, 0.0003, 0.001, 0.003)
FIGURES = ("delivery_s", "completion_mean_s", "completion_p95_s", "almost_s", "accuracy",
           "points_per_node_hour", "resizes", "interruptions", "late")  # fmt: skip
VALIDATION_FIRST, TEST_FIRST = 50_000, 60_000
JOBS_PER_WORKER = 2
_RESAMPLES = 4_000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A policy that takes part; ``beta`` of all jobs."""

    name: str
    policy: Callable[[TrainingCluster], ElasticityPolicy]
    beta: float = 0.0003


class World(NamedTuple):
    """``workers`` of the cluster, ``workers_max`` of a job, and how many times longer than 5 to 60
    s a resize stops a job."""

    workers: int = 12
    workers_max: int = 4
    standstill: float = 1.0


USUAL = World()


def cluster_of(
    draw: DrawCurve, seed: int, load: float, *, world: World, beta: float
) -> TrainingCluster:
    """The jobs of ``seed`` and ``load``, the same for all policies."""
    rng = np.random.default_rng([seed, int(10 * load), world.workers])
    jobs = arriving_jobs(
        rng, draw, count=JOBS_PER_WORKER * world.workers, workers=world.workers, load=load,
        beta=beta, workers_max=world.workers_max,
    )  # fmt: skip
    rules = ClusterRules(
        workers=world.workers, by_priority=True, stops_flat=False,
        resize_s=(5.0 * world.standstill, 60.0 * world.standstill), failures_per_hour=0.5,
    )  # fmt: skip
    return TrainingCluster(jobs, rules, ElasticityCore(), seed)


def measure(
    entry: Entry, draw: DrawCurve, seeds: Sequence[int], load: float, *, world: World = USUAL
) -> list[dict[str, float]]:
    """The figures of each seed."""
    found = []
    for seed in seeds:
        cluster = cluster_of(draw, seed, load, world=world, beta=entry.beta)
        figures = run_policy(cluster, entry.policy(cluster)).figures()
        found.append({name: figures[name] for name in FIGURES})
    return found


def plain_entries() -> list[Entry]:
    """What needs no training, at all settings that are tuned."""
    return [
        *(Entry(name=f"beta-{b:g}", policy=lambda c: BetaRule(), beta=b) for b in TUNED_BETAS),
        *(
            Entry(name=f"on-demand-{b:g}", policy=lambda c: BetaRule(on_demand=True), beta=b)
            for b in TUNED_BETAS
        ),
        *constants(),
        speed_up_entry(),
        Entry(name="keep", policy=lambda c: KeepWorkers()),
        Entry(name="drf", policy=lambda c: EqualTenants()),
        Entry(name="random", policy=lambda c: RandomResize(np.random.default_rng(0xA11))),
    ]


def constants() -> list[Entry]:
    return [
        Entry(name=f"constant-{w}", policy=lambda c, w=w: ConstantWorkers(w))  # type: ignore[misc]
        for w in (1, 2, 3, 4)
    ]


def oracle_entry() -> Entry:
    return Entry(name="oracle", policy=ElasticityOracle)


def speed_up_entry() -> Entry:
    """What the network is before it is trained, too, so that what learning adds can be told
    apart."""
    return Entry(name=SpeedUpRule.name, policy=lambda c: SpeedUpRule())


def learned_entries(models: Sequence[Model]) -> list[Entry]:
    """One for each training."""
    policies = [LearnedElasticity(model) for model in models]
    return [
        Entry(name=f"rlpto-{n}", policy=lambda c, policy=policy: policy)  # type: ignore[misc]
        for n, policy in enumerate(policies)
    ]


def tune(draw: DrawCurve, seeds: int) -> tuple[dict[str, float], dict[str, Entry]]:
    """Mean time to delivery on validation seeds by entry, over all loads, and the best beta rule,
    the best on demand, the best constant and the rest."""
    entries = plain_entries()
    numbers = range(VALIDATION_FIRST, VALIDATION_FIRST + seeds)
    scores = {
        entry.name: statistics.fmean(
            row["delivery_s"] for load in LOADS for row in measure(entry, draw, numbers, load)
        )
        for entry in entries
    }
    best: dict[str, Entry] = {}
    for family in ("beta", "on-demand", "constant", "speed-up", "keep", "drf", "random"):
        own = [entry for entry in entries if entry.name.startswith(family)]
        best[family] = min(own, key=lambda entry: scores[entry.name])
    return scores, best


def compare(
    entries: Sequence[Entry], draw: DrawCurve, seeds: int
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Figures by load, entry and test seed, of which each load has a third."""
    numbers = range(TEST_FIRST, TEST_FIRST + seeds)
    return {
        f"{load:g}": {
            entry.name: measure(entry, draw, numbers[place :: len(LOADS)], load)
            for entry in entries
        }
        for place, load in enumerate(LOADS)
    }


def bootstrap(values: Floats, seed: int = 0) -> dict[str, float]:
    """Mean of ``values`` (trainings, seeds) and its 95 % interval, both resampled: percentiles of
    the means of 4,000 draws. The same values and seed give the same interval."""
    rng = np.random.default_rng(seed)
    trainings, seeds = values.shape
    means = [
        values[rng.integers(trainings, size=trainings)][:, rng.integers(seeds, size=seeds)].mean()
        for _ in range(_RESAMPLES)
    ]
    low, high = np.percentile(means, (2.5, 97.5))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high),
            "trainings": float(trainings), "seeds": float(seeds)}  # fmt: skip


def gain(
    found: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]],
    ours: Sequence[str],
    theirs: str,
    figure: str = "delivery_s",
) -> dict[str, float]:
    """By how much ``figure`` of ``ours`` is less than that of ``theirs``, as a share of its mean at
    the seed's load, paired by seed."""
    loads = []
    for by_entry in found.values():
        base = np.array([row[figure] for row in by_entry[theirs]])
        own = np.array([[row[figure] for row in by_entry[name]] for name in ours])
        loads.append((base - own) / base.mean())
    return bootstrap(np.concatenate(loads, axis=1))


def trained_models(trainings: int, cache: Path, **changes: Any) -> list[Model]:
    """Models of training seeds 0, 1, ..., from ``cache`` where they are there; a file's name has
    all that it depends on but the code: remove it after a change of that."""
    made = []
    for seed in range(trainings):
        words = "-".join(f"{name}-{value}" for name, value in sorted(changes.items()))
        path = cache / f"{words or 'default'}-{seed}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            train(PpoArgs(out=path, seed=seed, **changes))
        made.append(model_files.read(path, kind="rlpto"))
    return made
