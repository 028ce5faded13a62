"""Bugs of containers that yield: in the way of others, or ended in vain."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.messages.claims import Entry
from hrm.core.node import core as node
from hrm.core.node import preemption
from hrm.core.node.core import NodeCore
from hrm.core.node.preemption import Preemption
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling import negotiator
from hrm.core.scheduling import scheduler as scheduling
from hrm.core.scheduling.placing import ask
from hrm.core.vocabulary.feasibility import fits
from hrm.core.vocabulary.model import (
    NO_UNIT,
    ApplicationId,
    ContainerId,
    ContainerSpec,
    Resources,
    ResourceUnit,
    ResourceUnitId,
    WorkloadClass,
)
from hrm.sim.faults.plan import (
    KINDS,
    TRAITS,
    ApplicationPlan,
    Limits,
    Plan,
    TimedFault,
    source,
)
from hrm.sim.faults.plan_generator import draw

__all__ = ["BUGS", "beside_what_yields"]


def beside_what_yields(seed: int, *, crashes: bool = False) -> Plan:
    """Nothing fails, or agents crash. What yields fills two nodes, with executors of one core and
    of two; then come batch, a stream that could take from both, batch of larger executors that has
    to wait for enough of them to end, and a gang."""
    chance = source(seed, "beside what yields")
    plan = draw(
        seed,
        Limits(nodes=2, applications=0, horizon_s=20.0, without=frozenset({*KINDS, *TRAITS})),
    )
    unit = ResourceUnit(unit_id=NO_UNIT, capacity=Resources(4, 8_192), run_limit=4)
    nodes = tuple(
        replace(
            node,
            units=(replace(unit, unit_id=ResourceUnitId(f"{node.name}/cpu")),),
            preemption_grace_s=1.0,
            yield_grace_s=1.0,
        )
        for node in plan.nodes
    )

    def app(name: str, start_s: float, vcores: int, many: int, work_s: float) -> ApplicationPlan:
        size = Resources(vcores, 512)
        return ApplicationPlan(name, start_s, size, ((0.0, many),), work_s)

    applications = (
        replace(app("small", 0.5, 1, 12, 300.0), yields=True),
        replace(app("middle", 0.6, 2, 4, 30.0), yields=True),
        app("batch", 3.0 + chance.uniform(0.0, 1.0), 1, 2, 60.0),
        replace(
            app("stream", 5.0 + chance.uniform(0.0, 1.0), 2, 1, 12.0),
            declared=WorkloadClass.STREAM,
        ),
        app("later", 7.0 + chance.uniform(0.0, 1.0), 3, 2, 12.0),
        replace(app("gang", 9.0 + chance.uniform(0.0, 2.0), 1, 3, 6.0), gang_min=3),
    )
    times_s = [chance.uniform(2.0, 4.0), chance.uniform(4.0, 8.0)] if crashes else []
    faults = tuple(TimedFault(at_s, "agent-crash", x / 2, 0.0) for x, at_s in enumerate(times_s))
    bounds = replace(plan.bounds, waiting_limit=64, wait_max_s=600.0)
    return replace(plan, nodes=nodes, applications=applications, faults=faults, bounds=bounds)


def batch_waits_for_what_yields(patch: pytest.MonkeyPatch) -> None:
    """Only streams are yielded to."""
    patch.setattr(preemption, "supposed_starts", lambda *_, **__: [])


def yields_before_others(patch: pytest.MonkeyPatch) -> None:
    """What yields starts where it fits, whoever waits for more than is free."""

    def start(self: UnitQueue, now: float, _: Container[ContainerId]) -> list[Entry]:
        started = []
        for container_id, queue in list(self.yielding_line.items()):
            entry = queue.yielding_waiting[container_id]
            if not queue.unit.draining and fits(entry.demand, queue.free):
                started.append(queue.run(entry, now))
        return started

    patch.setattr(UnitQueue, "_start_yielding", start)


def all_yield(patch: pytest.MonkeyPatch) -> None:
    """Where one is to end, all end that yield there."""
    choose = preemption.preemptions

    def too_many(
        queue: UnitQueue,
        ending: Container[ContainerId],
        owners: Mapping[ContainerId, ApplicationId],
        now: float,
        **how: Any,
    ) -> list[Preemption]:
        found = choose(queue, ending, owners, now, **how)
        if not any(x.yields for x in found):
            return found
        chosen = {x.victim for x in found}
        rest = [x for each in queue.pool for x in each.running.values() if x.yields_now]
        rest = [x for x in rest if x.container_id not in chosen and x.container_id not in ending]
        return found + [Preemption(x.container_id, found[0].waiter, True) for x in rest]

    patch.setattr(node, "preemptions", too_many)


def batch_before_what_yields(patch: pytest.MonkeyPatch) -> None:
    """A stream takes from what yields as from any batch: from what has started last."""
    victims = preemption._victims

    def as_any(*args: Any, yields_only: bool) -> Any:
        found = victims(*args, yields_only=yields_only)
        if yields_only or not found:
            return found
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Entry, "yields_now", property(lambda _: False))
            return victims(*args, yields_only=False) or found

    patch.setattr(preemption, "_victims", as_any)


def forgotten_by_the_agent(patch: pytest.MonkeyPatch) -> None:
    """What an agent finds after its restart does not yield any more."""
    adopt, entry = NodeCore._adopt, NodeCore._entry

    def kept(self: NodeCore, event: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(NodeCore, "_entry", as_batch)
            adopt(self, event)

    def as_batch(self: NodeCore, spec: ContainerSpec) -> Entry:
        return entry(self, replace(spec, yields=False))

    patch.setattr(NodeCore, "_adopt", kept)


def nothing_yields_at_the_master(patch: pytest.MonkeyPatch) -> None:
    """Schedulers wait until what yields ends by itself, and nothing is queued for it."""
    patch.setattr(scheduling, "ask_in_steps", ask)
    patch.setattr(negotiator, "starts_once_yielded", lambda *_: False)
    patch.setattr(negotiator.Negotiator, "may_wait", lambda *_: "nothing waits at a unit")


BUGS = (
    batch_waits_for_what_yields,
    yields_before_others,
    all_yield,
    batch_before_what_yields,
    forgotten_by_the_agent,
    nothing_yields_at_the_master,
)
