"""The simulated cluster as a training environment: it stops at every decision of its policy.

``environment(...)`` is the factory that ``hrm.learn.ldwp`` names. ``reset(seed)`` draws a run and
returns its first decision, ``step(node)`` places that task and advances to the next; with -1 the
task is presented again after the next event. One seed gives the same cluster, arrivals, sizes and
failures, whatever is decided.

``nodes=11`` is the paper's cluster with rates of 30 to 70 per minute, for a network with one output
per node. ``nodes=random`` draws everything that a policy for any cluster must not depend on: 3 to
16 nodes of up to four kinds, with 1 to 32 cores, 0 to 4 GPUs, 8 to 64 GiB of memory; the length of
tasks, over a range of 64; rates between 0.3 and 1.2 times what such a cluster can do; a world of
interference; and in a quarter of the runs nodes that join, leave or fail.

Source: LDWP + IAWP, section 7.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidConfig
from hrm.learn.environment import EpisodeStep, EpisodeTaskEnded, TaskDecision
from hrm.pipelines.core import cluster_messages as cm
from hrm.pipelines.core.model import Choice, PipelineClusterView, TaskId, TaskSpec
from hrm.pipelines.core.node_resources import shared_out_s
from hrm.pipelines.core.table import Mask
from hrm.pipelines.sim import profiles as tables
from hrm.pipelines.sim.interference import WORLDS
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.profiles import K80, P4
from hrm.pipelines.sim.run import Simulation
from hrm.pipelines.sim.scenario import (
    Change,
    NodeType,
    Scenario,
    WorkerNode,
    arrivals,
    workers,
)
from hrm.pipelines.sim.simulated_machine import LINK_MB_PER_S

__all__ = ["LearningEnvironment", "capacity_per_min", "draw", "environment"]

NODES_LEAST, NODES_MOST = 3, 16
KINDS_MOST = 4
CORES_MOST, GPUS_MOST = 32, 4
MEMORY_MIB = (8_192, 16_384, 32_768, 65_536)
LOAD_LEAST, LOAD_MOST = 0.3, 1.2
TIMES_LEAST = 1.0 / 64.0
"""The shortest tasks are this much shorter than those of the table, which are the longest."""
_SAMPLED = 200
GPU_MEMORY_MIB = {P4: 8_192, K80: 12_288}
FIXED_RATES_PER_MIN = (30.0, 70.0)


class _Asked:
    """A ``ClusterPolicy`` whose decisions come from the environment's caller."""

    name = "asked"

    def __init__(self) -> None:
        self.question: TaskDecision | None = None
        self.chosen_node: tuple[TaskId, int] | None = None
        self.ends: list[EpisodeTaskEnded] = []

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Mask) -> Choice:
        if self.chosen_node is not None and self.chosen_node[0] == task.task_id:
            node, self.chosen_node = self.chosen_node[1], None
            return Choice(node=node, why="decided by the caller")
        self.question = TaskDecision(task, view, fits)
        return Choice(node=-1, why="no decision yet")

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        self.ends.append(EpisodeTaskEnded(task_id, now, response_s, ok))


class LearningEnvironment:
    """``reset`` and ``step``, see the module."""

    def __init__(
        self,
        *,
        nodes: int | None,
        tasks: int,
        world: str | None,
        node_policy: str,
        table: tables.MeasuredPipelines,
    ) -> None:
        self._nodes = nodes
        self._tasks = tasks
        self._world = world
        self._node_policy = node_policy
        self._table = table
        self._asked = _Asked()
        self._run: Simulation | None = None

    def reset(self, seed: int) -> TaskDecision:
        scenario = draw(
            seed, table=self._table, nodes=self._nodes, tasks=self._tasks, world=self._world
        )
        self._asked = _Asked()
        made = policies("random", self._node_policy, scenario, policy=self._asked)
        self._run = Simulation(scenario, made)
        decision = self._go_on().decision
        assert decision is not None
        return decision

    def step(self, node: int) -> EpisodeStep:
        """Place the task of the last decision on row ``node`` of its view, and continue; -1: it
        waits."""
        run, asked = self._run, self._asked
        assert run is not None and asked.question is not None
        asked.chosen_node = asked.question.task.task_id, node
        asked.question = None
        run.deliver(cm.ClusterTicked(now=run.queue.now))
        return self._go_on()

    def _go_on(self) -> EpisodeStep:
        run, asked = self._run, self._asked
        assert run is not None
        while asked.question is None and run.step():
            pass
        ends, asked.ends = tuple(asked.ends), []
        return EpisodeStep(asked.question, ends)


def draw(
    seed: int, *, table: tables.MeasuredPipelines, nodes: int | None, tasks: int, world: str | None
) -> Scenario:
    """The run of a seed. ``nodes`` None: any cluster; ``world`` None: any of them.

    ``tasks``: of each run.
    """
    rng = np.random.default_rng([seed, 0x1EA2])
    drawn_world = str(rng.choice(("measured", "measured", "overload", "none")))
    if nodes is not None:
        return Scenario(
            profiles=table,
            rate_per_min=float(rng.uniform(*FIXED_RATES_PER_MIN)),
            tasks=tasks,
            workers=workers(nodes),
            world=world or "measured",
            seed=seed,
        )
    scaled = table.scaled(float(np.exp(rng.uniform(np.log(TIMES_LEAST), 0.0))))
    cluster = _cluster(rng)
    changes_at_s = rng.random() < 0.25
    any_rate = Scenario(
        profiles=scaled, tasks=_SAMPLED, workers=cluster, world=world or drawn_world, seed=seed
    )
    rate = float(rng.uniform(LOAD_LEAST, LOAD_MOST)) * capacity_per_min(any_rate)
    span_s = 60.0 * tasks / rate
    changes = _changes(rng, cluster, span_s) if changes_at_s else ()
    return replace(any_rate, rate_per_min=rate, tasks=tasks, changes=changes)


def _cluster(rng: np.random.Generator) -> tuple[WorkerNode, ...]:
    """Nodes of one to four kinds; at least one kind has a GPU, which some steps need."""
    count = round(float(np.exp(rng.uniform(np.log(NODES_LEAST), np.log(NODES_MOST)))))
    kinds = []
    for number in range(int(rng.integers(1, KINDS_MOST + 1))):
        model = str(rng.choice((P4, K80)))
        kinds.append(
            NodeType(
                name=f"drawn-{number}",
                memory_mib=int(rng.choice(MEMORY_MIB)),
                gpu_model=model,
                gpu_memory_mib=GPU_MEMORY_MIB[model],
                gpus=int(rng.integers(0 if number else 1, GPUS_MOST + 1)),
                cores=round(float(np.exp(rng.uniform(0.0, np.log(CORES_MOST))))),
            )
        )
    of_each = [0, *rng.integers(len(kinds), size=count - 1).tolist()]
    return tuple(
        WorkerNode(NodeName(f"worker-{place + 1}"), kinds[number])
        for place, number in enumerate(of_each)
    )


def capacity_per_min(scenario: Scenario) -> float:
    """Tasks a minute of the scenario's mix if its work divides freely over all cores and GPUs,
    without co-running, and their inputs over all links: near the fluid bound, and known without a
    linear program. Of short tasks on many cores, links are the limit."""
    work = arrivals(scenario)
    types = [worker.type for worker in scenario.workers]
    models = {one.gpu_model for one in types if one.gpus}
    least_s = [
        (work.cpu_s[key], min((work.gpu_s[key][model] for model in models), default=math.inf))
        for key in work.cpu_s
    ]
    cores, gpus = sum(one.cores for one in types), sum(one.gpus for one in types)
    transfers_s = sum(task.size_mb for task in work.tasks) / LINK_MB_PER_S / len(types)
    return 60.0 * len(work.tasks) / max(shared_out_s(least_s, cores, gpus), transfers_s)


def _changes(
    rng: np.random.Generator, cluster: tuple[WorkerNode, ...], span_s: float
) -> tuple[Change, ...]:
    """Up to a quarter of the nodes change in the middle of the run; never the first one."""
    found = []
    most = max(1, len(cluster) // 4)
    chosen = 1 + rng.permutation(len(cluster) - 1)[: int(rng.integers(1, most + 1))]
    for number, place in enumerate(sorted(int(one) for one in chosen)):
        at_s = float(rng.uniform(0.2, 0.8)) * span_s
        what = str(rng.choice(("join", "leave", "fail")))
        worker = cluster[place]
        if what == "join":
            worker = WorkerNode(NodeName(f"worker-{len(cluster) + number + 1}"), worker.type)
        found.append(Change(at_s, what, worker))
    return tuple(sorted(found, key=lambda one: one.at_s))


def environment(**options: Any) -> LearningEnvironment:
    """From options as text: ``nodes`` (a number, or ``random``), ``tasks``, ``world``,
    ``node_policy``, ``profiles`` (a file).

    Raises:
        InvalidConfig: an option is unknown or invalid.
    """
    known = {
        "nodes": "random",
        "tasks": "400",
        "world": "",
        "node_policy": "mct",
        "profiles": "",
    }
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InvalidConfig(
            f"the simulated cluster has no option {unknown[0]!r}; it has {', '.join(known)}"
        )
    given = {**known, **options}
    try:
        nodes = None if given["nodes"] == "random" else int(given["nodes"])
        tasks = int(given["tasks"])
    except ValueError as error:
        raise InvalidConfig(f"nodes and tasks are whole numbers: {error}") from error
    if tasks < 1 or (nodes is not None and nodes < 1) or given["world"] not in ("", *WORLDS):
        raise InvalidConfig(
            f"nodes={given['nodes']}, tasks={tasks}, world={given['world']}: give at least one "
            f"node and task, and one of the worlds {', '.join(WORLDS)}"
        )
    table = tables.load(Path(given["profiles"]) if given["profiles"] else None)
    return LearningEnvironment(
        nodes=nodes,
        tasks=tasks,
        world=given["world"] or None,
        node_policy=given["node_policy"],
        table=table,
    )
