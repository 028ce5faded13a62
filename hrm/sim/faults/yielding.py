"""Applications whose containers yield: they want far more than is idle, from early on.

Streams are left out, and so are gangs: what yields starts one by one.
"""

from __future__ import annotations

from dataclasses import replace

from hrm.core.vocabulary.model import WorkloadClass
from hrm.sim.faults.plan import ApplicationPlan, Plan, source

__all__ = ["with_yielding"]


def with_yielding(plan: Plan) -> Plan:
    """The plan with some batch that yields, and nodes with grace periods of their own for that."""
    nodes = tuple(
        replace(node, yield_grace_s=source(plan.seed, f"yields at {node.name}").uniform(0.3, 4.0))
        for node in plan.nodes
    )
    applications = tuple(_yields(plan.seed, app) for app in plan.applications)
    return replace(plan, nodes=nodes, applications=applications)


def _yields(seed: int, app: ApplicationPlan) -> ApplicationPlan:
    chance = source(seed, f"yields {app.name}")
    is_stream = app.declared is WorkloadClass.STREAM or any(x == "STREAM" for _, x in app.classes)
    if is_stream or app.gang_min or chance.random() < 0.4:
        return app
    (begin_s, _), *later, last = app.targets
    many = chance.randint(4, 16)
    most = [(at_s, chance.choice((count, many))) for at_s, count in later]
    return replace(
        app,
        yields=True,
        start_s=min(app.start_s, chance.uniform(0.5, 4.0)),
        targets=((begin_s, many), *most, last),
        work_s=app.work_s / 2 + chance.uniform(2.0, 10.0),  # they go last, one after the other
    )
