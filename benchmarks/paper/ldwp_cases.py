"""The cases of ``benchmarks.paper.ldwp``: which cluster, which load, which pairs of policies.

Four nodes, with one or two GPUs of two models each, so that nodes differ and tasks have to be
placed; ``cores`` and the length of tasks (``time_scale``, 192: as in the paper's experiments) are
what cells differ by. Load is a share of the bound of exactly this cluster and mix: what its cores
and GPUs could do if work were fluid, or its links carry, if that is less.

Every task counts, those that end after the last arrival too; ``spans`` says how many times the 95th
percentile of response tasks arrived for. Where it is a few times only, much of a run is the
beginning on an empty cluster and the end without arrivals, so ``window_of`` chooses how many tasks
a case needs for ``SPANS`` of them, from a pilot run on a seed of validation.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from benchmarks.pipelines.fluid_bound import Fluid
from benchmarks.pipelines.measured_run import simulate
from benchmarks.pipelines.run_measures import Result
from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.policies.cluster.guarded import GuardedClusterPolicy
from hrm.pipelines.sim import profiles as tables
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.profiles import K80, P4, TIME_SCALE
from hrm.pipelines.sim.run import Policies
from hrm.pipelines.sim.scenario import NodeType, Scenario, Work, WorkerNode, arrivals, workers
from hrm.pipelines.sim.simulated_machine import LINK_MB_PER_S

__all__ = [
    "SPANS",
    "VALIDATION_SEED",
    "Case",
    "Found",
    "Window",
    "bound_per_min",
    "run_case",
    "scenario_of",
    "window_of",
]

SPANS = 10.0
"""Tasks arrive for this many times the 95th percentile of response, at least."""
SPANS_WANTED = 1.15 * SPANS
"""More, because queues of a longer run are longer, and seeds differ."""
VALIDATION_SEED = 100

_GPUS = ((P4, 8_192, 1), (P4, 8_192, 2), (K80, 12_288, 1), (K80, 12_288, 2))
_MEMORY_MIB = 32_768
_SAMPLED = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A point of an experiment. ``cores`` 0: the paper's own nodes. ``load``: of the fluid bound;
    0: ``rate_per_min``. ``pairs``: ``cluster+node`` each."""

    experiment: str
    name: str
    pairs: tuple[str, ...]
    tasks: int
    cores: int = 0
    nodes: int = 4
    time_scale: float = TIME_SCALE
    load: float = 0.0
    rate_per_min: float = 0.0
    world: str = "measured"
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Figures of one run, by name; of a learned policy, too, why it fell back, how often, and the
    mode of its guard in the end."""

    case: str
    pair: str
    seed: int
    values: dict[str, float]
    fallbacks: dict[str, int] = field(default_factory=dict)
    mode: str = ""


class Window(NamedTuple):
    """The tasks that a case needs, by the ``pair`` with the longest ``response_p95_s`` in the
    pilot run, which had ``pilot_tasks``."""

    case: str
    tasks: int
    pilot_tasks: int
    pair: str
    response_p95_s: float


@functools.lru_cache(maxsize=64)
def _table(time_scale: float) -> tables.MeasuredPipelines:
    return tables.load().scaled(time_scale / TIME_SCALE)


def _workers(case: Case) -> tuple[WorkerNode, ...]:
    if not case.cores:
        return workers(case.nodes)
    kinds = [
        NodeType(
            name=f"cell-{number}",
            memory_mib=_MEMORY_MIB,
            gpu_model=model,
            gpu_memory_mib=memory_mib,
            gpus=gpus,
            cores=case.cores,
        )
        for number, (model, memory_mib, gpus) in enumerate(_GPUS)
    ]
    return tuple(
        WorkerNode(NodeName(f"worker-{place + 1}"), kinds[place % len(kinds)])
        for place in range(case.nodes)
    )


def _scenario(case: Case) -> Scenario:
    return Scenario(
        profiles=_table(case.time_scale), workers=_workers(case), world=case.world, tasks=case.tasks
    )


@functools.lru_cache(maxsize=64)
def _fluid(cores: int, nodes: int, world: str) -> Fluid:
    case = Case(experiment="", name="", pairs=(), tasks=1, cores=cores, nodes=nodes, world=world)
    return Fluid(_scenario(case))


@functools.lru_cache(maxsize=64)
def _carried_per_min(nodes: int) -> float:
    case = Case(experiment="", name="", pairs=(), tasks=_SAMPLED, nodes=nodes)
    sizes_mb = [task.size_mb for task in arrivals(_scenario(case)).tasks]
    return 60.0 * nodes * LINK_MB_PER_S * len(sizes_mb) / sum(sizes_mb)


def bound_per_min(case: Case) -> float:
    """The fluid bound of cores and GPUs, which is inversely proportional to the length of tasks, or
    what the nodes' links carry of their inputs, if that is less: it is for short tasks."""
    at_192 = _fluid(case.cores, case.nodes, case.world).rate_per_min
    return min(at_192 * TIME_SCALE / case.time_scale, _carried_per_min(case.nodes))


def scenario_of(case: Case, seed: int) -> Scenario:
    """The run of a seed."""
    rate = case.load * bound_per_min(case) if case.load else case.rate_per_min
    return replace(_scenario(case), rate_per_min=rate, seed=seed)


def run_case(case: Case, seed: int) -> list[Found]:
    """All pairs of the case on the same arrivals.

    ``slowdown``: mean of response over ideal; ``of_bound``: tasks that ended while tasks arrived,
    over what the fluid bound allows of this mix; ``work_of_bound``: the same in ideal seconds, in
    which preferring short tasks gains nothing; ``decided``: share that a learned policy decided.
    """
    scenario = scenario_of(case, seed)
    work = arrivals(scenario)
    found = []
    for pair in case.pairs:
        cluster, _, node = pair.partition("+")
        began_s = time.process_time()
        made = policies(cluster, node, scenario, known=case.known)
        result = simulate(scenario, made, work)
        values = _values(case, result, work)
        values["cpu_s"] = time.process_time() - began_s
        one = Found(case=case.name, pair=pair, seed=seed, values=values)
        found.append(_with_decisions(one, made))
    return found


def window_of(pilot: Case, runs: Sequence[Found], *, tasks_most: int) -> Window:
    """How many tasks arrive in ``SPANS_WANTED`` times the longest 95th percentile of response of
    ``runs``, those of ``pilot``; in fifties, and at most ``tasks_most``."""
    own = [run for run in runs if run.case == pilot.name]
    slowest = max(own, key=lambda run: run.values["response_p95_s"])
    p95_s = slowest.values["response_p95_s"]
    needed = SPANS_WANTED * p95_s * scenario_of(pilot, VALIDATION_SEED).rate_per_min / 60.0
    tasks = min(tasks_most, 50 * math.ceil(needed / 50.0))
    return Window(pilot.name, tasks, pilot.tasks, slowest.pair, p95_s)


def _values(case: Case, result: Result, work: Work) -> dict[str, float]:
    responses = np.array([response_s for _, _, response_s, _ in result.ended])
    ideals = np.array([ideal_s for *_, ideal_s in result.ended])
    ends_s = np.array([at_s for at_s, *_ in result.ended])
    slowdowns = responses / ideals
    minutes = result.arrived_s / 60.0
    in_time = ends_s <= result.arrived_s
    bound = bound_per_min(case)
    mean_ideal_s = sum(map(work.least_s, work.tasks)) / len(work.tasks)
    used, busy, _ = result.gpu()
    return {
        "slowdown": float(slowdowns.mean()),
        "log_slowdown": float(np.log(slowdowns).mean()),
        "slowdown_max": float(slowdowns.max()),
        "response_mean_s": float(responses.mean()),
        "response_p95_s": float(np.percentile(responses, 95)),
        "throughput": result.throughput(),
        "in_time_per_min": float(in_time.sum()) / minutes,
        "of_bound": float(in_time.sum()) / minutes / bound,
        "work_of_bound": float(ideals[in_time].sum()) / mean_ideal_s / minutes / bound,
        "spans": result.arrived_s / float(np.percentile(responses, 95)),
        "gpu_utilisation": used,
        "gpu_busy": busy,
        "balance": result.balance_until(result.arrived_s)[0],
        "failed": float(result.failed),
    }


def _with_decisions(found: Found, made: Policies) -> Found:
    if not isinstance(made.cluster, GuardedClusterPolicy):
        return found
    status = made.cluster.guard.status(0.0)
    decided = status.learned / max(1, status.asked)
    values = {"decided": decided, "fallbacks": float(sum(status.fallbacks.values()))}
    return replace(
        found,
        values={**found.values, **values},
        fallbacks=dict(status.fallbacks),
        mode=status.mode.value,
    )
