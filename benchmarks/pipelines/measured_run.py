"""A run of pipeline tasks on the simulated cluster, with the measurements of ``run_measures``.

Nothing here changes what happens in a run: loads are read every ten seconds, the GPUs' work between
the end of the warm-up and the last arrival, and the clock around decisions of the cluster policy.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.pipelines.run_measures import WARM_UP, Result, Span, balance, load_of, node_use
from hrm.core.vocabulary.model import NodeName
from hrm.pipelines.core.model import Choice, ClusterPolicy, PipelineClusterView, TaskId, TaskSpec
from hrm.pipelines.sim.run import Policies, Simulation
from hrm.pipelines.sim.scenario import Scenario, Work, WorkerNode
from hrm.pipelines.sim.simulated_machine import Totals
from hrm.pipelines.sim.worker import SimulatedWorker

__all__ = ["simulate"]

BALANCE_S = 10.0


class _Timed:
    """A cluster policy, with the wall-clock time of its decisions."""

    def __init__(self, inner: ClusterPolicy) -> None:
        self.inner = inner
        self.name = inner.name
        self.micros: list[float] = []

    def choose(self, task: TaskSpec, view: PipelineClusterView, fits: Any) -> Choice:
        began = time.perf_counter_ns()
        choice = self.inner.choose(task, view, fits)
        self.micros.append((time.perf_counter_ns() - began) / 1e3)
        return choice

    def ended(self, task_id: TaskId, *, now: float, response_s: float, ok: bool) -> None:
        self.inner.ended(task_id, now=now, response_s=response_s, ok=ok)


class _Measured(Simulation):
    """A run that ends in a ``Result``."""

    def __init__(self, scenario: Scenario, policies: Policies, work: Work | None) -> None:
        self._timed = _Timed(policies.cluster)
        self._left: list[SimulatedWorker] = []
        self._samples: list[tuple[float, float, float]] = []
        self._uses: dict[NodeName, Totals] = {}
        self._begins: dict[NodeName, Totals] = {}
        self._spans: list[Span] = []
        super().__init__(scenario, replace(policies, cluster=self._timed), work)
        last_s = self.work.arrives_s[-1]
        self.queue.at(BALANCE_S, self._sample)
        self.queue.at(WARM_UP * last_s, self._spans_begin)
        self.queue.at(last_s, self._spans_end)

    def join(self, worker: WorkerNode) -> None:
        super().join(worker)
        self._uses[worker.name] = self._begins[worker.name] = self.nodes[worker.name].seen

    def gone(self, node: SimulatedWorker) -> None:
        self._left.append(node)
        super().gone(node)

    def _sample(self) -> None:
        """Equations 7 to 10 over the last ten seconds, for nodes that were present throughout."""
        if self.over:
            return
        now, uses = self.queue.now, []
        for name, node in self.nodes.items():
            after = node.machine.totals(now)
            before = self._uses.get(name)
            if before is not None and before.at_s < now - BALANCE_S / 2 and node.alive:
                uses.append(node_use(node.machine, before, after))
            self._uses[name] = after
        if uses:
            loads = np.minimum(1.0, load_of(uses))
            self._samples.append((now, balance(loads), float(loads.mean())))
        self.queue.at(now + BALANCE_S, self._sample)

    def _spans_begin(self) -> None:
        for node in self.nodes.values():
            self._begins[node.worker.name] = node.machine.totals(self.queue.now)

    def _spans_end(self) -> None:
        for node in (*self.nodes.values(), *self._left):
            after = node.machine.totals(self.queue.now)
            before = self._begins[node.worker.name]
            self._spans.append(
                Span(
                    worker=str(node.worker.name),
                    type=node.worker.type.name,
                    used_s=sum(after.gpu_used_s) - sum(before.gpu_used_s),
                    busy_s=sum(after.gpu_busy_s) - sum(before.gpu_busy_s),
                    work_s=sum(after.gpu_work_s) - sum(before.gpu_work_s),
                    gpu_s=(after.at_s - before.at_s) * len(node.machine.gpus),
                )
            )

    def result(self) -> Result:
        """The result, after the run is over."""
        nodes = (*self.nodes.values(), *self._left)
        guard: Any = getattr(self._timed.inner, "guard", None)
        fallbacks = sum(guard.status(self.queue.now).fallbacks.values()) if guard else 0
        return Result(
            cluster_policy=self.policies.cluster_name,
            node_policy=self.policies.node_name,
            seed=self.scenario.seed,
            rate_per_min=self.scenario.rate_per_min,
            tasks=len(self.work.tasks),
            arrived_s=self.work.arrives_s[-1],
            ended=self.ended,
            failed=len(self.work.tasks) - len(self.ended),
            spans=self._spans,
            balance=self._samples,
            decision_us=self._timed.micros,
            fallbacks=self.cluster.policy_faults + fallbacks,
            refused=sum(node.core.refused for node in nodes),
            retries=sum(node.retries for node in nodes),
            events=self.queue.events,
            log_hash=self.queue.hash(),
        )


def simulate(scenario: Scenario, policies: Policies, work: Work | None = None) -> Result:
    """Run it to its end."""
    run = _Measured(scenario, policies, work)
    while run.step():
        pass
    return run.result()
