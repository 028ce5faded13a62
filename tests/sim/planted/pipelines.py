"""Bugs of pipelines in the pool, and plans in which they show."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.vocabulary.model import Resources, ResourceUnit, ResourceUnitId
from hrm.core.vocabulary.workload_bounds import WorkloadBounds
from hrm.pipelines.core import cluster_messages as m
from hrm.pipelines.core import pipelines_core
from hrm.pipelines.core.cluster import PipelineCluster
from hrm.pipelines.core.node import PipelineNode
from hrm.pipelines.core.node_messages import DrainAsked, TaskOutcome
from hrm.pipelines.core.order import DueOrder, RemainingTimes
from hrm.pipelines.core.pipelines_core import PipelinesCore
from hrm.pipelines.core.pool_facts import MasterFacts
from hrm.pipelines.core.task_record import TaskRecord
from hrm.sim.actors.pipelines_actor import PipelinesActor
from hrm.sim.faults.pipeline_plan import PipelineClientPlan
from hrm.sim.faults.plan import KINDS, TRAITS, Limits, Plan, TimedFault, source
from hrm.sim.faults.plan_generator import draw

__all__ = ["BUGS", "busy_workers", "cut_workers", "few_cores", "restored_store"]


def end_of_an_old_attempt(patch: pytest.MonkeyPatch) -> None:
    """An end counts, whichever placement it is of."""

    def any_attempt(self: PipelineCluster, name: Any, what: Any) -> TaskRecord | None:
        record = self.tasks.get(what.task_id)
        is_placed = record is not None and record.node is not None and name in self.table.nodes
        return record if is_placed else None

    patch.setattr(PipelineCluster, "_current", any_attempt)


def tasks_of_a_lost_worker(patch: pytest.MonkeyPatch) -> None:
    """They are not placed again."""

    def lose(self: PipelineCluster, name: Any, _now: float, _why: str, **_counts: bool) -> None:
        if name in self.table.nodes:
            self.table.remove(name)

    patch.setattr(PipelineCluster, "_lose", lose)


def placed_though_it_came_back(patch: pytest.MonkeyPatch) -> None:
    """What a worker brings with it from an earlier master waits for the end of the recovery."""
    join = PipelineCluster._join

    def join_without(self: PipelineCluster, event: m.NodeJoined) -> None:
        left = tuple(x for x in event.tasks if x[0] not in self.away)
        join(self, replace(event, tasks=left))

    patch.setattr(PipelineCluster, "_join", join_without)


def acknowledged_too_early(patch: pytest.MonkeyPatch) -> None:
    """A worker may forget a task whose end is not on the disk."""
    patch.setattr(PipelinesActor, "_acknowledge", PipelinesActor._send)


def another_step_while_yielding(patch: pytest.MonkeyPatch) -> None:
    """A worker that is to end goes on with the next step."""
    drain = PipelineNode._drain

    def drain_as_others(self: PipelineNode, event: DrainAsked) -> None:
        drain(self, replace(event, after_step=False))

    patch.setattr(PipelineNode, "_drain", drain_as_others)


def tasks_of_a_released_worker(patch: pytest.MonkeyPatch) -> None:
    """What a worker gives back is over."""

    def give_back(self: PipelineCluster, record: TaskRecord, now: float, why: str) -> None:
        self._finish(record, TaskOutcome.CANCELLED, why, now)

    patch.setattr(PipelineCluster, "_give_back", give_back)


def numbers_of_an_earlier_master(patch: pytest.MonkeyPatch) -> None:
    """A master gives workers numbers that an earlier one has given."""
    patch.setattr(pipelines_core, "_NUMBERS_A_SECOND", 0)


def mute_workers_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A worker that never connects keeps its place."""
    patch.setattr(PipelinesCore, "_release_lost", lambda *_: None)


def ends_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A master does not know how the tasks of an earlier one have ended."""
    patch.setattr(PipelinesCore, "recover_ended", lambda *_: None)


def workloads_that_do_not_end(patch: pytest.MonkeyPatch) -> None:
    """The application of a workload that is over stays."""
    end = PipelinesCore._end

    def end_silently(self: PipelinesCore, *args: Any) -> None:
        end(self, *args)
        self._out = [x for x in self._out if not _is_finish(x)]

    patch.setattr(PipelinesCore, "_end", end_silently)


def workers_that_do_not_yield(patch: pytest.MonkeyPatch) -> None:
    """A workload keeps whatever it has got, though no queue says so."""
    patch.setattr(MasterFacts, "staying", lambda *_: math.inf)


def latest_task_first(patch: pytest.MonkeyPatch) -> None:
    """Of the tasks that have the same work left, the latest is placed."""
    add = DueOrder.add

    def add_reversed(self: Any, key: Any, work: Any, submitted_at_s: float, number: int) -> None:
        add(self, key, work, -submitted_at_s, number)

    patch.setattr(DueOrder, "add", add_reversed)


def remaining_times_freeze(patch: pytest.MonkeyPatch) -> None:
    """What a task has left is what was known when one like it came first."""
    patch.setattr(RemainingTimes, "_forget", lambda *_: None)


def _is_finish(step: Any) -> bool:
    return type(getattr(step, "event", None)).__name__ == "ApplicationFinished"


def busy_workers(seed: int) -> Plan:
    """Clients that leave for a while keep workers busy while masters and nodes crash, nodes are
    drained and partitioned, and workers end or never connect."""
    without = frozenset({*KINDS, *TRAITS} - {"pipelines"})
    plan = draw(seed, Limits(nodes=3, applications=1, horizon_s=24.0, without=without))
    chance = source(seed, "busy workers")
    kinds = {"master-crash": 3, "partition": 6, "drain": 5, "agent-crash": 2, "node-crash": 1}
    faults = [
        TimedFault(
            *(chance.uniform(3.0, 22.0), kind, 0.7 * chance.random()),
            chance.uniform(0.6, 1.0) if kind == "partition" else chance.random(),
        )
        for kind, many in kinds.items()
        for _ in range(many)
    ]
    faults.sort(key=lambda fault: fault.at_s)
    rates = {"worker-mute": 0.1, "executor-crash": 0.1, "delay": 0.1}
    bounds = WorkloadBounds(
        workers_max=8, worker_idle_s=1.0, workload_idle_s=2.0, recovery_s=6.0, connect_s=5.0
    )
    nodes = tuple(replace(node, units=(_unit(node.name),)) for node in plan.nodes)
    return replace(
        plan,
        nodes=nodes,
        faults=tuple(faults),
        rates=rates,
        workload_bounds=bounds,
        pipelines=tuple(_longer(x) for x in plan.pipelines),
    )


def cut_workers(seed: int) -> Plan:
    """Workers cannot reach the master for a little longer than it takes to lose them, and have time
    to end when they are released: their ends arrive when their tasks are at others."""
    plan, chance = busy_workers(seed), source(seed, "workers that are cut off")
    faults = tuple(
        TimedFault(3.0 + n, "partition", chance.uniform(0.4, 0.69), chance.uniform(0.35, 0.6))
        for n in range(18)
    )
    bounds = replace(plan.bounds, node_timeout_s=2.5, stop_grace_s=8.0)
    return replace(plan, faults=faults, rates={}, bounds=bounds)


def restored_store(seed: int) -> Plan:
    """A master's store is an older copy, so that the next one has the epoch of the one before."""
    faults = (
        TimedFault(7.0, "master-crash", 0.2, 0.1),
        TimedFault(12.0, "old-store", 0.5, 0.1),
    )
    return replace(busy_workers(seed), faults=faults, rates={})


def few_cores(seed: int) -> Plan:
    """Nothing fails; there is more to do than the nodes have cores for."""
    plan = busy_workers(seed)
    nodes = tuple(replace(x, units=(_unit(x.name, vcores=2),)) for x in plan.nodes)
    return replace(plan, nodes=nodes, faults=(), rates={})


def _longer(client: PipelineClientPlan) -> PipelineClientPlan:
    tasks = [replace(x, run_s=tuple(2.5 * run_s for run_s in x.run_s)) for x in client.tasks]
    return replace(client, tasks=tuple(tasks), leaves_s=9.0, away_s=9.0)


def _unit(node: str, vcores: int = 6) -> ResourceUnit:
    unit_id = ResourceUnitId(f"{node}/cpu")
    return ResourceUnit(unit_id=unit_id, capacity=Resources(vcores, 8192), run_limit=vcores)


BUGS = [
    end_of_an_old_attempt,
    tasks_of_a_lost_worker,
    placed_though_it_came_back,
    acknowledged_too_early,
    another_step_while_yielding,
    tasks_of_a_released_worker,
    numbers_of_an_earlier_master,
    mute_workers_are_kept,
    ends_are_forgotten,
    workloads_that_do_not_end,
    workers_that_do_not_yield,
    latest_task_first,
    remaining_times_freeze,
]
