"""The methods that are compared on one GPU, and one run of each.

All of them have the same capacity rule and the same restarts; they differ in what they know: *true*
profiles, constant ones at their *maximum* or *mean* (as DeepRM would see jobs), or true ones and
the slowdowns of *pairs*.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.common import note
from benchmarks.paper.dqngpu_search import simulate
from benchmarks.paper.dqngpu_workloads import TICK_S
from hrm.learn.dqngpu import DqnGpuArgs, command_of, train_ddqn
from hrm.learn.dqngpu_pg import PolicyGradientArgs, TrainedGradient, train_pg
from hrm.learn.gpu_environment import GpuSharingEnv, Observed, play
from hrm.learn.gpu_workloads import draw_jobs
from hrm.learn.shared_gpu import DrawJobs, GpuEpisode, GpuRun, SimulatedGpuJob
from hrm.policies import model_files
from hrm.policies.guard import GuardMode
from hrm.policies.model_files import Model
from hrm.policies.shared_gpu.guarded import GuardedGpuSharing
from hrm.policies.shared_gpu.heuristics import (
    FastestTogether,
    GpuSharingPolicy,
    GpuSharingView,
    RandomLegal,
)
from hrm.policies.shared_gpu.interference import GpuInterference, PairFactors
from hrm.policies.shared_gpu.learned import LearnedGpuSharing
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.policies.shared_gpu.profiles import MEMORY, CapacityRule, GpuUseProfile, constant
from hrm.policies.shared_gpu.registry import HEURISTICS

__all__ = [
    "JOIN_GAINS",
    "LEARNED",
    "REFERENCE",
    "SHIPS",
    "Method",
    "Timed",
    "classes_of",
    "figures_of",
    "methods",
    "trained_gradients",
    "trained_models",
]

REFERENCE = "sjf-packed"
LEARNED = "dqngpu-ddqn"
SHIPS = "look-ahead, pairs"
KNOW_PAIRS = ("fastest-together", "look-ahead")
"""Heuristics that use slowdowns of pairs: they are runs of their own."""
JOIN_GAINS = (0.5, 0.75, 0.9, 0.96)
"""A job joins others only where it adds so much to the sum of all speeds, 1 being no slowdown."""
Knows = Literal["true", "max", "mean", "pairs"]
WIDTH = 10
"""Units that a mean is rounded up to, as in the paper's images."""

_Play = Callable[
    [Sequence[SimulatedGpuJob], GpuInterference, CapacityRule, "PairFactors | None"], GpuRun
]


@dataclass(frozen=True)
class Method:
    """``training``: the number of the training that made it, -1 where there was none."""

    name: str
    knows: Knows
    play: _Play
    training: int = -1
    trained_s: float = 0.0

    def run(
        self,
        jobs: Sequence[SimulatedGpuJob],
        world: GpuInterference,
        rule: CapacityRule,
        pairs: PairFactors | None,
    ) -> GpuRun:
        """Decide one set of jobs. ``pairs`` are passed on only to one that knows them."""
        given = pairs if self.knows == "pairs" else None
        return self.play(believing(jobs, self.knows), world, rule, given)


def believing(jobs: Sequence[SimulatedGpuJob], knows: Knows) -> list[SimulatedGpuJob]:
    """The same jobs, of which a policy believes as much as it ``knows``."""
    if knows not in ("max", "mean"):
        return list(jobs)
    made: dict[int, GpuUseProfile] = {}
    for one in jobs:
        if id(one.believed) not in made:
            made[id(one.believed)] = constant(one.believed, knows, WIDTH)
    return [dataclasses.replace(one, believed=made[id(one.believed)]) for one in jobs]


def classes_of(slowdowns: Any) -> list[int]:
    """How many jobs ran as fast as alone (within 2 %), and slower by less than 10 %, less than 20 %
    and more: the half-open classes of figure 8."""
    over = np.asarray(slowdowns) - 1.0
    edges = [-np.inf, 0.02 + 1e-9, 0.10 - 1e-9, 0.20 - 1e-9, np.inf]
    return [int(((over > a) & (over <= b)).sum()) for a, b in itertools.pairwise(edges)]


def figures_of(run: GpuRun) -> dict[str, Any]:
    """What is reported of a run."""
    return {
        "makespan_s": TICK_S * run.makespan,
        "slowdown_mean": float(run.slowdowns.mean()),
        "slowdown_p95": float(np.percentile(run.slowdowns, 95)),
        "response_mean": float(run.response.mean()),
        "failures": run.failures,
        "lost_s": TICK_S * run.lost,
        "gpu": float(run.used[0]),
        "memory": float(run.used[MEMORY]),
        "memory_peak": run.memory_peak,
        "work_per_busy_s": run.work / run.busy,
        "classes": classes_of(run.slowdowns),
    }


def methods(models: Sequence[Model], gradients: Mapping[str, Sequence[Method]]) -> list[Method]:
    """All that are compared, the reference first. ``SHIPS`` is what a node has.

    The learned policy is compared as it is (``LEARNED``), and reported as it would be in use:
    ``guarded``, where a share of the decisions remains the heuristic's.
    """
    names = [REFERENCE, *(name for name in HEURISTICS if name not in (REFERENCE, *KNOW_PAIRS))]
    found = [Method(name, "true", _simulated(HEURISTICS[name])) for name in names]
    found.append(
        Method("random", "true", _simulated(lambda: RandomLegal(np.random.default_rng(0))))
    )
    found += [Method(f"tetris, {knows}", knows, _simulated(HEURISTICS["tetris"]))
              for knows in ("max", "mean")]  # fmt: skip
    found += [method for made in gradients.values() for method in made]
    for least in JOIN_GAINS:
        found += [
            Method(f"{name}, gain {least:g}", "pairs", _simulated(make(least)))
            for name, make in (("fastest-together", _joining), ("look-ahead", _looking_ahead))
        ]
    found.append(Method("fastest-together", "pairs", _simulated(HEURISTICS["fastest-together"])))
    found.append(Method("look-ahead", "true", _simulated(HEURISTICS["look-ahead"])))
    found.append(Method(SHIPS, "pairs", _simulated(HEURISTICS["look-ahead"])))
    played: tuple[tuple[str, Callable[[Model], _Play]], ...] = (
        (LEARNED, _unguarded),
        (f"{LEARNED} guarded", _guarded),
    )
    for name, play_of in played:
        for knows in ("true", "pairs"):
            for number, model in enumerate(models):
                full = name if knows == "true" else f"{name}, pairs"
                trained_s = model.meta["trained_s"]
                found.append(Method(full, knows, play_of(model), number, trained_s))
    return found


def _joining(least: float) -> Callable[[], GpuSharingPolicy]:
    return lambda: FastestTogether(least)


def _looking_ahead(least: float) -> Callable[[], GpuSharingPolicy]:
    return lambda: LookAhead(gain_min=least)


class Timed:
    """A policy, and the processor time of each of its decisions, in ms."""

    def __init__(self, policy: GpuSharingPolicy) -> None:
        self.name = policy.name
        self.took_ms: list[float] = []
        self._policy = policy

    def choose(self, view: GpuSharingView) -> int | None:
        """See ``GpuSharingPolicy``."""
        began_s = time.thread_time()
        chosen = self._policy.choose(view)
        self.took_ms.append(1e3 * (time.thread_time() - began_s))
        return chosen


def _unguarded(model: Model) -> _Play:
    return _simulated(lambda: LearnedGpuSharing(model))


def _simulated(make: Callable[[], GpuSharingPolicy]) -> _Play:
    return lambda jobs, world, rule, pairs: simulate(jobs, make(), world, rule, pairs)


def _guarded(model: Model) -> _Play:
    """As in use: behind its guard, which is on, and which gets to know how jobs end. Its time
    counts as none, for the machine that measures is not the one that decides. Each set of jobs has
    a GPU by another name, so that what stays with packed SJF differs between sets."""

    def run(
        jobs: Sequence[SimulatedGpuJob],
        world: GpuInterference,
        rule: CapacityRule,
        pairs: PairFactors | None,
    ) -> GpuRun:
        policy = GuardedGpuSharing(
            model,
            LearnedGpuSharing(model),
            gpu=f"gpu-{_number_of(jobs)}",
            clock_s=lambda: 0.0,
            tick_s=TICK_S,
            mode=GuardMode.ON,
        )

        def ended(job: int, now: float, ran: float, ok: bool) -> None:
            policy.ended(job, now=TICK_S * now, ran_s=TICK_S * ran, ok=ok)

        return simulate(jobs, policy, world, rule, pairs, ended)

    return run


def _number_of(jobs: Sequence[SimulatedGpuJob]) -> str:
    """Of a set of jobs: the same for all methods and trainings, another for each seed."""
    held = repr([(one.name, one.kind, len(one.true), one.arrives) for one in jobs])
    return hashlib.sha256(held.encode()).hexdigest()[:12]


def trained_models(trainings: Sequence[DqnGpuArgs], cache: Path) -> list[Model]:
    """A model for each, from ``cache`` where the same command made it before."""
    found = []
    for args in trainings:
        digest = hashlib.sha256(command_of(args).encode()).hexdigest()[:12]
        path = cache / f"dqngpu-ddqn-{digest}.npz"
        if not path.exists():
            note(f"training: {command_of(args)}")
            model_files.write(train_ddqn(args), path)
        found.append(model_files.read(path, kind="dqngpu-ddqn"))
    return found


def _believing_draw(draw: DrawJobs, knows: Knows) -> DrawJobs:
    def drawn(seed: int) -> GpuEpisode:
        jobs, world, _ = draw(seed)
        return GpuEpisode(believing(jobs, knows), world)

    return drawn


def trained_gradients(
    trainings: Sequence[PolicyGradientArgs], rule: CapacityRule
) -> dict[str, list[Method]]:
    """The paper's method and DeepRM's two, each by the same trainer on capacity alone."""
    wanted: tuple[tuple[str, Knows, Observed], ...] = (
        ("dqngpu-pg", "true", "virtual"),
        ("deeprm, max", "max", "slots"),
        ("deeprm, mean", "mean", "slots"),
    )
    found: dict[str, list[Method]] = {}
    for name, knows, observed in wanted:
        for args in trainings:
            note(f"training: {name}, seed {args.seed}")
            began_s = time.process_time()
            draw = _believing_draw(draw_jobs(worlds=("none",), arriving=0.0), knows)
            env = GpuSharingEnv(draw, rule, reward="slowdown", observed=observed)
            made = train_pg(args, env)
            took_s = time.process_time() - began_s
            method = Method(name, knows, _played(made, observed), args.seed, took_s)
            found.setdefault(name, []).append(method)
    return found


def _played(trained: TrainedGradient, observed: Observed) -> _Play:
    def run(
        jobs: Sequence[SimulatedGpuJob],
        world: GpuInterference,
        rule: CapacityRule,
        pairs: PairFactors | None,
    ) -> GpuRun:
        env = GpuSharingEnv(lambda seed: GpuEpisode(jobs, world), rule, observed=observed)
        for _ in play(env, trained.choose, 0):
            pass
        return env.result()

    return run
