"""Bugs of the order in which batch starts on a shared GPU: bounds that do not hold."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.messages.claims import Entry
from hrm.core.node.gpu_waiters import GpuWaiters
from hrm.core.queue.resource_unit import StartBatch, UnitQueue
from hrm.core.vocabulary.bounds import GpuWaiterBounds
from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ContainerId,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.policies.shared_gpu.container_uses import ContainerKind
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.sim.faults.plan import (
    KINDS,
    TRAITS,
    ApplicationPlan,
    GpuWaitersPlan,
    Limits,
    Plan,
    source,
)
from hrm.sim.faults.plan_generator import draw
from tests.sim.planted import yielding

__all__ = ["BUGS", "many_for_one_gpu"]

BOUNDS = GpuWaiterBounds(passes_max=1, ageing_factor=10.0, kept_max_s=2.0)


def many_for_one_gpu(
    seed: int, *, stream: bool = False, greedy: bool = False, yields: bool = False
) -> Plan:
    """Nothing fails. An application has all eight slots of one GPU, and gives them back one by one;
    seven wait for them, each with the one executor that is its fair share. Those that came last
    hardly use the GPU, and are named first. A ``stream`` comes that needs all of it; or every
    second one is ``greedy``, known to need more device memory than it requests; or the first
    application ``yields``, and gives nothing back."""
    chance = source(seed, "many for one gpu")
    without = frozenset({*KINDS, *TRAITS})
    plan = draw(seed, Limits(nodes=1, applications=0, horizon_s=20.0, without=without))
    unit = ResourceUnit(unit_id=NO_UNIT, capacity=Resources(8, 16_384, 16_384), run_limit=8)
    backwards = tuple((6.0 + chance.uniform(0.9, 1.1) * n, 7 - n) for n in range(7))
    targets = ((0.0, 8), *(() if yields else backwards))
    first = replace(_app("all", 0.5, 30.0, targets=targets, work_s=70.0), yields=yields)
    applications = [first]
    known = [_use("all", 0.1, 1_000.0)]
    for number in range(7):
        name, heavy = f"app-{number}", number < 4
        applications.append(_app(name, 2.0 + 0.3 * number, 60.0 if heavy else 20.0))
        known.append(
            _use(name, 0.9 if heavy else 0.05, 9_000.0 if greedy and number % 2 else 1_000.0)
        )
    if stream:
        size = Resources(8, 512, 8_192)
        app = replace(_app("stream", 4.0, 60.0, work_s=40.0), resources=size)
        applications.append(replace(app, declared=WorkloadClass.STREAM))
    (node,) = plan.nodes
    node = replace(
        node,
        units=(replace(unit, unit_id=ResourceUnitId(f"{node.name}/gpu0")),),
        preemption_grace_s=None,
        gpu_waiters=GpuWaitersPlan(tuple(known), BOUNDS),
    )
    bounds = replace(plan.bounds, waiting_limit=64, wait_max_s=600.0, gang_wait_s=math.inf)
    return replace(plan, nodes=(node,), applications=tuple(applications), bounds=bounds)


def _app(
    name: str,
    start_s: float,
    hint_s: float,
    *,
    targets: tuple[tuple[float, int], ...] = ((0.0, 1),),
    work_s: float = 8.0,
) -> ApplicationPlan:
    size = Resources(1, 512, 2_048)
    return ApplicationPlan(name, start_s, size, targets, work_s, duration_hint_s=hint_s)


def _use(name: str, load: float, mib: float) -> tuple[ContainerKind, RecordedUse]:
    kind = ContainerKind("somebody", name, "executor", 0, 2_048)
    return kind, RecordedUse((GpuUsePart(load, mib, load, 0.0),) * USE_PARTS)


def passed_without_bound(patch: pytest.MonkeyPatch) -> None:
    """Whatever is named starts, however often others have been passed."""
    make = GpuWaiters.__init__

    def unbound(self: GpuWaiters, policy: Any, containers: Any, bounds: GpuWaiterBounds) -> None:
        make(self, policy, containers, replace(bounds, passes_max=64))

    patch.setattr(GpuWaiters, "__init__", unbound)


def memory_as_declared(patch: pytest.MonkeyPatch) -> None:
    """What containers request is taken for what they need."""
    patch.setattr(GpuWaiters, "keeps_back", lambda *_: False)


def need_of_what_runs_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What runs counts with what it declares, and only what waits with its profile."""
    keeps_back, mib = GpuWaiters.keeps_back, GpuWaiters._mib

    def keep(self: GpuWaiters, queue: UnitQueue, entry: Entry) -> bool:
        def own(_: GpuWaiters, other: Entry) -> int:
            return mib(self, entry) if other is entry else other.demand[2]

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(GpuWaiters, "_mib", own)
            return keeps_back(self, queue, entry)

    patch.setattr(GpuWaiters, "keeps_back", keep)


def kept_back_for_good(patch: pytest.MonkeyPatch) -> None:
    """What is kept back is never returned."""
    patch.setattr(GpuWaiters, "kept_too_long", lambda *_: [])


def named_before_streams(patch: pytest.MonkeyPatch) -> None:
    """Batch that is named starts before it is asked whether a stream waits."""
    start_all = UnitQueue.start_all

    def start(
        self: UnitQueue,
        now: float,
        ending: Container[ContainerId] = (),
        batch: StartBatch | None = None,
    ) -> list[Entry]:
        units = [x for x in self.pool if x.batch_waiting and not x.unit.draining]
        named = batch(units, now) if batch is not None else []
        return named + start_all(self, now, ending, batch)

    patch.setattr(UnitQueue, "start_all", start)


def all_yield_to_what_is_named(patch: pytest.MonkeyPatch) -> None:
    """As ``yielding.all_yield``, where what waits is ordered."""
    yielding.all_yield(patch)


BUGS = (
    all_yield_to_what_is_named,
    passed_without_bound,
    memory_as_declared,
    need_of_what_runs_forgotten,
    kept_back_for_good,
    named_before_streams,
)
