"""Nodes that start batch for a shared GPU in the order that recorded uses suggest.

Many small executors want the same GPU. Nodes know what some of their applications use, each node
for itself: one has the record of an application that another has never run, and some records have
more device memory than the application requests, so that a container is kept back.
"""

from __future__ import annotations

from dataclasses import replace

from hrm.core.vocabulary.bounds import GpuWaiterBounds
from hrm.core.vocabulary.gpu_use import USE_PARTS, GpuUsePart
from hrm.core.vocabulary.model import Resources, ResourceUnit, ResourceUnitId, WorkloadClass
from hrm.policies.shared_gpu.container_uses import ContainerKind
from hrm.policies.shared_gpu.recorded_use import RecordedUse
from hrm.sim.faults.plan import ApplicationPlan, GpuWaitersPlan, NodePlan, Plan, source

__all__ = ["use_of", "with_gpu_waiters", "with_known_uses"]

_SIZES_MIB = (1_024, 2_048, 4_096)


def with_gpu_waiters(plan: Plan) -> Plan:
    """The plan with more batch for shared GPUs, and at least one of these."""
    nodes = plan.nodes if any(map(_shares, plan.nodes)) else _with_gpu(plan.seed, plan.nodes)
    here = any(map(_shares, nodes))
    applications = tuple(_wants(plan.seed, app, here=here) for app in plan.applications)
    if here and plan.limits.applications is None:
        applications += _crowd(plan.seed, plan.horizon_s)
    return replace(plan, nodes=nodes, applications=applications)


def with_known_uses(plan: Plan) -> Plan:
    """The plan with nodes that know uses of its applications, by the users that they now have."""
    nodes = tuple(
        replace(node, gpu_waiters=_known(plan.seed, node, plan.applications)) for node in plan.nodes
    )
    return replace(plan, nodes=nodes)


def _with_gpu(seed: int, nodes: tuple[NodePlan, ...]) -> tuple[NodePlan, ...]:
    """One node that is not partitioned has a GPU, too; none, if all are."""
    chance = source(seed, "gpu-waiters' gpu")
    plain = [node for node in nodes if node.hardware is None]
    if not plain:
        return nodes
    home = chance.choice(plain)
    size = Resources(chance.randint(2, 4), 4_096, chance.choice((4_096, 8_192)))
    unit = ResourceUnit(
        unit_id=ResourceUnitId(f"{home.name}/gpu0"), capacity=size, run_limit=chance.randint(2, 4)
    )
    return tuple(replace(x, units=(*x.units, unit)) if x is home else x for x in nodes)


def use_of(seed: int, kind: ContainerKind) -> tuple[GpuUsePart, ...]:
    """What containers of a kind use: two levels of load and memory. One in four has more device
    memory than it requests."""
    chance = source(seed, f"gpu use {kind}")
    load, most = chance.uniform(0.1, 1.0), chance.uniform(0.3, 1.0)
    if chance.random() < 0.25:
        most = chance.uniform(1.2, 2.5)
    turn = chance.randint(1, USE_PARTS - 1)
    before = GpuUsePart(load * chance.random(), most * kind.gpu_memory_mib / 2, load / 2, 0.0)
    after = GpuUsePart(load, most * kind.gpu_memory_mib, load, 0.0)
    return (before,) * turn + (after,) * (USE_PARTS - turn)


def _shares(node: NodePlan) -> bool:
    return any(
        unit.capacity.gpu_memory_mib and unit.run_limit > 1 and not unit.more_gpus
        for unit in node.units
    )


def _wants(seed: int, app: ApplicationPlan, *, here: bool) -> ApplicationPlan:
    """Most batch wants little of a GPU for each of many executors, never more than it did."""
    chance = source(seed, f"gpu-waiters {app.name}")
    is_stream = app.declared is WorkloadClass.STREAM or any(x == "STREAM" for _, x in app.classes)
    if is_stream and chance.random() < 0.6:
        is_stream, app = False, replace(app, declared=None, classes=())
    mib = min(app.resources.gpu_memory_mib or _SIZES_MIB[-1], chance.choice(_SIZES_MIB))
    takes = app.resources.gpu_memory_mib and not app.gpus
    bound = bool(app.labels or app.spark or app.exclusions or app.gang_min or app.other)
    if is_stream or chance.random() < 0.15 or not (takes or (here and not bound)):
        return app
    (begin_s, _), *later, last = app.targets
    many = chance.randint(3, 10)
    return replace(
        app,
        gpus=0,
        start_s=min(app.start_s, chance.uniform(0.5, 4.0)),
        resources=Resources(1, min(512, app.resources.memory_mib), mib),
        targets=((begin_s, many), *later, last) if not app.gang_min else app.targets,
        work_s=app.work_s + chance.uniform(5.0, 25.0),
        duration_hint_s=chance.choice((0.5, 3.0, 10.0)),
    )


def _crowd(seed: int, horizon_s: float) -> tuple[ApplicationPlan, ...]:
    """One that takes what there is and gives it back piece by piece, and several that come
    meanwhile with an executor or two: that is the fair share of each, so that they wait at units.
    """
    chance = source(seed, "gpu-waiters' crowd")
    size = Resources(1, 512, chance.choice(_SIZES_MIB))
    turns_s = sorted(chance.uniform(2.0, horizon_s) for _ in range(chance.randint(2, 6)))
    less = tuple((at_s, len(turns_s) - n) for n, at_s in enumerate(turns_s, start=1))
    many = ApplicationPlan(
        "many", 0.5, size, ((0.0, chance.randint(4, 8)), *less, (horizon_s, 1)),
        work_s=chance.uniform(10.0, 40.0), duration_hint_s=chance.choice((3.0, 10.0)),
    )  # fmt: skip
    at_s = [chance.uniform(0.5, 0.7 * horizon_s) for _ in range(chance.randint(2, 6))]
    few = [
        ApplicationPlan(
            f"few-{number}",
            start_s,
            Resources(1, 512, chance.choice(_SIZES_MIB)),
            ((0.0, chance.randint(1, 2)), (horizon_s, 1)),
            work_s=chance.uniform(0.5, 5.0),
            duration_hint_s=chance.choice((0.5, 3.0, 10.0)),
        )
        for number, start_s in enumerate(sorted(at_s), start=1)
    ]
    return (many, *few)


def _known(
    seed: int, node: NodePlan, applications: tuple[ApplicationPlan, ...]
) -> GpuWaitersPlan | None:
    """What a node has recorded before the run; None: it starts containers in the line's order."""
    chance = source(seed, f"gpu-waiters at {node.name}")
    if chance.random() < 0.15:
        return None
    kinds = [
        ContainerKind(app.user, app.title or app.name, "executor", 0, app.resources.gpu_memory_mib)
        for app in applications
        if app.resources.gpu_memory_mib
    ]
    bounds = GpuWaiterBounds(
        passes_max=chance.randint(0, 3),
        ageing_factor=chance.choice((0.5, 2.0, 10.0)),
        kept_max_s=chance.uniform(1.0, 6.0),
    )
    known = {x: RecordedUse(use_of(seed, x)) for x in kinds if chance.random() < 0.8}
    return GpuWaitersPlan(tuple(known.items()), bounds)
