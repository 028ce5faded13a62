"""The simulated cluster as a training environment: it stops at every decision of its policy.

``environment(...)`` is the factory that ``hrm.learn.ldwp`` names. ``reset(seed)`` draws a run and
returns its first decision, ``step(node)`` places that task and advances to the next; with -1 the
task is presented again after the next event. One seed gives the same cluster, arrivals, sizes and
failures, whatever is decided.

``nodes=11`` is the paper's cluster with rates of 30 to 70 per minute, for a network with one output
per node. ``nodes=random`` draws 3 to 64 nodes of any mix of types, rates between 0.4 and 1.1 times
the maximum of such a cluster, a world of interference, and in half of the runs nodes that join,
leave or fail; with as many tasks per node as the other kind.

Source: LDWP + IAWP, section 7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hrm.core.vocabulary.model import NodeName
from hrm.errors import InvalidConfig
from hrm.learn.environment import EpisodeStep, EpisodeTaskEnded, TaskDecision
from hrm.pipelines.core import cluster_messages as cm
from hrm.pipelines.core.model import Choice, PipelineClusterView, TaskId, TaskSpec
from hrm.pipelines.core.table import Mask
from hrm.pipelines.sim import profiles as tables
from hrm.pipelines.sim.interference import WORLDS
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.run import Simulation
from hrm.pipelines.sim.scenario import (
    NODE_TYPES,
    SATURATION_PER_MIN,
    WORKERS,
    Change,
    Scenario,
    WorkerNode,
    workers,
)

__all__ = ["LearningEnvironment", "draw", "environment"]

NODES_LEAST, NODES_MOST = 3, 64
LOAD_LEAST, LOAD_MOST = 0.4, 1.1
TASKS_MOST = 2_000
"""Maximum for a drawn cluster, however large it is."""
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

    ``tasks``: of a cluster of that many nodes; for a drawn one, of eleven nodes.
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
    count = round(float(np.exp(rng.uniform(np.log(NODES_LEAST), np.log(NODES_MOST)))))
    shares = rng.dirichlet(np.ones(len(NODE_TYPES)))
    types = rng.choice(sorted(NODE_TYPES), size=count, p=shares)
    cluster = tuple(
        WorkerNode(NodeName(f"worker-{place + 1}"), NODE_TYPES[str(one)])
        for place, one in enumerate(types)
    )
    power = sum(worker.type.gpus for worker in cluster)
    most = SATURATION_PER_MIN * power / sum(NODE_TYPES[one].gpus for one in WORKERS)
    rate = float(rng.uniform(LOAD_LEAST, LOAD_MOST)) * most
    tasks = min(max(1, tasks * count // len(WORKERS)), TASKS_MOST)
    return Scenario(
        profiles=table,
        rate_per_min=rate,
        tasks=tasks,
        workers=cluster,
        changes=_changes(rng, cluster, 60.0 * tasks / rate),
        world=world or drawn_world,
        seed=seed,
    )


def _changes(
    rng: np.random.Generator, cluster: tuple[WorkerNode, ...], span_s: float
) -> tuple[Change, ...]:
    """In half of the runs, up to a quarter of the nodes change in the middle of the run."""
    if rng.random() < 0.5:
        return ()
    found = []
    most = max(1, len(cluster) // 4)
    chosen = rng.permutation(len(cluster))[: int(rng.integers(1, most + 1))]
    for number, place in enumerate(sorted(int(one) for one in chosen)):
        at_s = float(rng.uniform(0.2, 0.8)) * span_s
        what = str(rng.choice(("join", "leave", "fail")))
        worker = cluster[place]
        if what == "join":
            kind = NODE_TYPES[str(rng.choice(sorted(NODE_TYPES)))]
            worker = WorkerNode(NodeName(f"worker-{len(cluster) + number + 1}"), kind)
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
        "tasks": "1000",
        "world": "",
        "node_policy": "iawp:guarded",
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
