"""Queues in the order of classes, and requests for other priorities.

Requests come in bursts, too, beyond what may be requested in a period; and while the master is
away, where they get lost.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hrm.core.tenancy.queue_spec import QueueSpec
from hrm.core.vocabulary.bounds import Bounds
from hrm.sim.faults.plan import ApplicationPlan, Plan, source

__all__ = ["with_priorities"]

_NUMBERS = (1, 2, 3, 4, 5, 5)
_BURST_CHANCE = 0.3


def with_priorities(plan: Plan) -> Plan:
    """The plan with some of its leaves in the order of classes, most of which interrupt, and with
    applications that are raised and lowered as they wait."""
    chance = source(plan.seed, "priorities")
    parents = {spec.parent for spec in plan.queues}
    queues = tuple(
        spec if spec.name in parents or spec.name == "root" else _ordered(chance, spec)
        for spec in plan.queues
    )
    plan = replace(plan, queues=queues, bounds=_bounds(chance, plan.bounds))
    apps = tuple(_of_class(plan, app) for app in plan.applications)
    return replace(plan, applications=apps)


def _ordered(chance: Random, spec: QueueSpec) -> QueueSpec:
    if chance.random() < 0.15:
        return spec
    if chance.random() < 0.85:
        return replace(spec, order="classes", interrupts=True, preemptible=True)
    return replace(spec, order="classes")


def _of_class(plan: Plan, app: ApplicationPlan) -> ApplicationPlan:
    chance = source(plan.seed, f"priority of {app.name}")
    requests: list[tuple[float, int]] = []
    for _ in range(chance.randint(0, 6)):
        at_s = chance.uniform(0.5, plan.horizon_s)
        many = chance.randint(2, 5) if chance.random() < _BURST_CHANCE else 1
        steps = (chance.choice((-5, -3, -2, -1, 1, 1, 2, 3, 5)) for _ in range(many))
        requests += [(at_s + 0.05 * number, each) for number, each in enumerate(steps)]
    return replace(app, priority=chance.choice(_NUMBERS), priority_requests=tuple(sorted(requests)))


def _bounds(chance: Random, bounds: Bounds) -> Bounds:
    return replace(
        bounds,
        priority_period_s=chance.uniform(0.5, 6.0),
        priority_steps=chance.randint(2, 5),
        priority_steps_per_user=chance.choice((5, 8, 100)),
        priority_ageing_s=chance.choice((0.0, 1.0, 3.0)),
    )
