"""One run of pipeline tasks on a simulated cluster: the production cores in virtual time.

``PipelineCluster`` and a ``PipelineNode`` on every worker run with the policies and the estimates
of production. Simulated are the machines (``machine``), the network (a task's input takes its
node's link), telemetry (means over the last second, reported every 4 s), and what costs time:

- a decision of the cluster policy occupies the manager for ``DECISION_S``, the budget of a
  decision, which is more than any policy here takes;
- a start on a node costs ``START_S``;
- a run that is also a profile takes 4 s longer for each of the two metrics (table 3).

Policies never see the truth: they only have estimates, which begin with some history (``warm``), or
empty.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core import cluster_messages as cm
from hrm.pipelines.core import node_messages as nm
from hrm.pipelines.core.cluster import PipelineCluster
from hrm.pipelines.core.model import (
    ClusterPolicy,
    LearningEstimates,
    NodePolicy,
    SubtaskKey,
    SubtaskSpec,
    TaskSpec,
)
from hrm.pipelines.core.node_messages import TaskOutcome
from hrm.pipelines.policies.corun import Stdm
from hrm.pipelines.sim.priors import warm
from hrm.pipelines.sim.scenario import Change, Scenario, Work, WorkerNode, arrivals
from hrm.pipelines.sim.worker import REPORT_S, TELEMETRY_S, SimulatedWorker
from hrm.runtime.clock import Clock

__all__ = ["Policies", "Simulation"]

DECISION_S = 0.001
LATENCY_S = 0.0005
LOST_AFTER_S = 15.0
SHARE_S = 10.0
DRAIN_LIMIT_S = 7_200.0
"""A run ends this long after the last arrival, whatever is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The deciders. ``node`` and ``estimates`` make one object for each node and the manager."""

    cluster_name: str
    node_name: str
    cluster: ClusterPolicy
    node: Callable[[WorkerNode], NodePolicy]
    estimates: Callable[[], LearningEstimates]
    known: bool = True
    """Estimates begin ``warm``."""
    shared: bool = True
    """What any node has measured reaches all others through the manager, as in production."""


class _Queue(Clock):
    """Virtual time and a hash of what happened."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.events = 0
        self._hash = hashlib.sha256()

    def emit(self, what: str) -> None:
        self.events += 1
        self._hash.update(f"{self.now:.6f} {what}\n".encode())

    def hash(self) -> str:
        return self._hash.hexdigest()


class Simulation:
    """A run, one event per step: training stops at every decision, measurements run to the end."""

    def __init__(self, scenario: Scenario, policies: Policies, work: Work | None = None) -> None:
        self.scenario = scenario
        self.policies = policies
        self.work = work or arrivals(scenario)
        self.queue = _Queue()
        self.rng = np.random.default_rng([scenario.seed, 0xCE11])
        self.truth = scenario.truth
        estimates = policies.estimates()
        if policies.known:
            for model in sorted({one.type.gpu_model for one in scenario.all_workers}):
                warm(estimates, scenario.profiles, model)
        self.cluster = PipelineCluster(policies.cluster, estimates)
        self.nodes: dict[NodeName, SimulatedWorker] = {}
        self._priors: dict[str, LearningEstimates] = {}
        self.ended: list[tuple[float, str, float, float]] = []
        self.failed = 0
        self.over = False
        self._manager_free_s = 0.0
        self._shared: dict[NodeName, tuple[float, int]] = {}
        """To each node, when the manager's estimates were sent last, and their changes then."""
        self._specs = {
            SubtaskKey(task.task_id, one.name): (one, task)
            for task in self.work.tasks
            for one in task.pipeline.subtasks
        }
        for worker in scenario.workers:
            self.join(worker)
        for change in scenario.changes:
            self.queue.at(change.at_s, self._change, change)
        for at_s, task in zip(self.work.arrives_s, self.work.tasks, strict=True):
            self.queue.at(at_s, self._arrive, task)
        self._limit_s = self.work.arrives_s[-1] + DRAIN_LIMIT_S

    def prior(self, gpu_model: str) -> LearningEstimates:
        """What a node with GPUs of this model knows when it joins."""
        if gpu_model not in self._priors:
            estimates = self._priors[gpu_model] = self.policies.estimates()
            if self.policies.known:
                warm(estimates, self.scenario.profiles, gpu_model)
        return copy.deepcopy(self._priors[gpu_model])

    def subtask(self, key: SubtaskKey) -> tuple[SubtaskSpec, TaskSpec]:
        return self._specs[key]

    @property
    def undecided(self) -> bool:
        """A decision may follow, for which the manager needs the nodes' reports."""
        return self.queue.now <= self.work.arrives_s[-1] or bool(self.cluster.queue)

    def step(self) -> bool:
        """Let the next event happen; False: the run is over."""
        if self.over or self.queue.now > self._limit_s:
            return False
        return self.queue.step()

    def deliver(self, event: cm.ClusterEvent) -> None:
        """Pass the event to the manager, and execute its commands."""
        for command in self.cluster.handle(event):
            if isinstance(command, cm.PlaceTask):
                self._place(command)
            elif isinstance(command, cm.FinishTask):
                self._finish(command)
            elif isinstance(command, cm.CancelTask):
                node = self.nodes.get(command.node)
                if node is not None:
                    node.handle(
                        nm.TaskWithdrawn(
                            now=self.queue.now,
                            task_id=command.task_id,
                            attempt=command.attempt,
                            why=command.why,
                        )
                    )

    def share(self, node: SimulatedWorker) -> None:
        """Pass on what all have measured, if the node does not have it."""
        known, own = self.cluster.estimates, node.core.estimates
        if not (self.policies.shared and isinstance(known, Stdm) and isinstance(own, Stdm)):
            return
        now, (at_s, changes) = self.queue.now, self._shared.get(node.worker.name, (-math.inf, -1))
        if now - at_s < SHARE_S or changes == known.changes:
            return
        self._shared[node.worker.name] = now, known.changes
        pairs = known.pair_effects.since(changes)
        own.merge(known.since(changes), known.devices, known.declared_mib, pairs)

    # --- nodes come and go --------------------------------------------------------------------

    def join(self, worker: WorkerNode) -> None:
        node = self.nodes[worker.name] = SimulatedWorker(self, worker, self.policies)
        now = self.queue.now
        load = node.core.load(now)
        self.deliver(cm.NodeJoined(now=now, capacity=node.capacity, load=load))
        # Nodes report at different phases, as real ones do.
        phase = REPORT_S * (1.0 + (len(self.nodes) * 0.618) % 1.0)
        self.queue.at(now + phase - TELEMETRY_S, node.begin_sample)
        self.queue.at(now + phase, node.report)

    def gone(self, node: SimulatedWorker) -> None:
        """The node is empty or dead: the manager forgets it."""
        node.alive = False
        del self.nodes[node.worker.name]
        self.deliver(cm.NodeLost(now=self.queue.now, name=node.worker.name, why="it left"))

    def _change(self, change: Change) -> None:
        name = change.worker.name
        self.queue.emit(f"{name} {change.what}")
        if change.what == "join":
            self.join(change.worker)
            return
        node = self.nodes.get(name)
        if node is None:
            return
        if change.what == "leave":
            node.draining = True
            self.deliver(cm.NodeAway(now=self.queue.now, name=name))
            node.handle(nm.DrainAsked(now=self.queue.now))
        else:
            node.alive = False
            self.queue.at(self.queue.now + LOST_AFTER_S, self._lost, node)

    def _lost(self, node: SimulatedWorker) -> None:
        if self.nodes.get(node.worker.name) is node:
            self.gone(node)

    # --- tasks --------------------------------------------------------------------------------

    def _arrive(self, task: TaskSpec) -> None:
        self.deliver(cm.TaskSubmitted(now=self.queue.now, task=task))

    def _place(self, command: cm.PlaceTask) -> None:
        now = self.queue.now
        self._manager_free_s = max(now, self._manager_free_s) + DECISION_S
        node = self.nodes[command.node]
        self.queue.emit(f"{command.task.task_id} to {command.node}")
        arrives_s = node.machine.receive(self._manager_free_s + LATENCY_S, command.task.size_mb)
        self.queue.at(arrives_s, node.place, command.task, command.attempt)

    def _finish(self, command: cm.FinishTask) -> None:
        now = self.queue.now
        self.queue.emit(f"{command.task_id} {command.outcome.value}")
        if command.outcome is TaskOutcome.DONE:
            task = self.cluster.ended[command.task_id].spec
            ideal_s = self.work.least_s(task)
            self.ended.append((now, str(command.node), command.response_s, ideal_s))
        else:
            self.failed += 1
        self.over = len(self.ended) + self.failed == len(self.work.tasks)
