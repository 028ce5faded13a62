"""Queues of applications: a tree, who is in which, and what it must leave to all of them.

Every application is to end, so no queue may keep one for ever by what an administrator has stated:
a maximum, or what one user may have, holds the largest thing that starts together in the queue,
also once the largest node is gone. Drivers on nodes are counted all at once, for they end only
when their executors have done their work.

What a queue is guaranteed and may have is computed here and nowhere else in the simulator,
independently of the core: the oracle compares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

from hrm.core.tenancy.queue_rules import QueueRule
from hrm.core.tenancy.queue_spec import Amount, Order, QueueName, QueueSpec, Quota
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import Resources, ResourceUnit, WorkloadClass
from hrm.sim.faults.capacity import demand_of
from hrm.sim.faults.pipeline_plan import PipelineClientPlan
from hrm.sim.faults.plan import ApplicationPlan, NodePlan, Plan, SubmissionPlan, source

__all__ = [
    "Amounts",
    "amounts_of_queues",
    "leave_enough",
    "lineage_of",
    "total_of",
    "with_another_spec",
    "with_queues",
]

Amounts: TypeAlias = tuple[float, float, float]
"""Cores, MiB of memory, MiB of GPUs' memory."""

_USERS = ("ana", "bob", "eve")
_ORDERS: tuple[Order, ...] = ("fifo", "fair", "priority")
_NONE: Amounts = (0.0, 0.0, 0.0)
_UNLIMITED: Amounts = (math.inf, math.inf, math.inf)
_ZERO: Quota = (Amount(0.0), Amount(0.0), Amount(0.0))
_ALL: Quota = (None, None, None)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """What must fit a queue at once. ``together``: of each resource the most that starts in one
    go. ``drivers``: of all drivers on nodes together."""

    together: Amounts = _NONE
    drivers: Amounts = _NONE

    @property
    def most(self) -> Amounts:
        return _plus(self.together, self.drivers)

    def and_also(self, other: _Crowd) -> _Crowd:
        a, b = self.together, other.together
        most = (max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2]))
        return _Crowd(most, _plus(self.drivers, other.drivers))


def with_queues(plan: Plan) -> Plan:
    """The plan with a tree of queues, and everything in one of them."""
    chance = source(plan.seed, "queues")
    leaves = _leaves(chance)
    is_free = "rival-gpus" not in plan.traits
    apps = tuple(
        _in_queue(plan.seed, _that_borrows(plan.seed, app) if is_free else app, leaves)
        for app in plan.applications
    )
    if "priorities" in plan.traits:
        apps = _in_one_leaf(plan.seed, apps)
    rules = tuple(
        QueueRule("name", f"{each.name} (driver)", chance.choice(leaves))
        for each in plan.submissions
    )
    clients = tuple(_of_client(plan.seed, each, leaves) for each in plan.pipelines)
    plan = replace(plan, applications=apps, queue_rules=rules, pipelines=clients)
    crowds = _crowds(plan)
    groups = sorted({x.rpartition(".")[0] for x in leaves} - {"root"})
    queues = [QueueSpec(name=QueueName(x)) for x in (*groups, *leaves)]
    if chance.random() < 0.15:
        queues.append(QueueSpec(name=QueueName("root"), max_running=chance.randint(2, 4)))
    queues = _guaranteed(chance, queues)
    least = _least(plan)
    for index, spec in enumerate(queues):
        crowd = crowds.get(spec.name, _Crowd())
        queues[index] = _limited(chance, spec, crowd, least, is_leaf=spec.name in leaves)
    queues = _with_limits_of_users(chance, queues, crowds, least)
    return replace(plan, queues=tuple(queues), bounds=_bounds(chance, plan.bounds))


def with_another_spec(chance: Random, plan: Plan, spec: QueueSpec) -> QueueSpec:
    """What an administrator may state of a queue instead: its weight, its order, and how much it
    may have."""
    crowd, least = _crowds(plan).get(spec.name, _Crowd()), _least(plan)
    plain = replace(spec, maximum=_ALL, max_running=None, weight=chance.choice((0.5, 1.0, 3.0)))
    if chance.random() < 0.3 and spec.user_limit_factor is None and "." in spec.name:
        plain = replace(plain, guaranteed=_ALL if chance.random() < 0.5 else _ZERO)
    return _limited(chance, plain, crowd, least, is_leaf=True)


def leave_enough(plan: Plan, queues: Iterable[QueueSpec], nodes: Sequence[NodePlan]) -> bool:
    """Would these queues, with only these nodes, let everything start in the end?"""
    amounts = amounts_of_queues(queues, _total(nodes))
    crowds = _crowds(plan)
    return all(
        all(x <= y for x, y in zip(crowds[spec.name].most, amounts[spec.name][1], strict=True))
        and all(
            x <= spec.user_limit_factor * y
            for x, y in zip(crowds[spec.name].most, amounts[spec.name][0], strict=True)
            if spec.user_limit_factor is not None
        )
        for spec in queues
        if spec.name in crowds and (spec.maximum != _ALL or spec.user_limit_factor is not None)
    )


def lineage_of(name: str) -> list[str]:
    """A queue and those above it, itself first."""
    parts = name.split(".")
    return [".".join(parts[:many]) for many in range(len(parts), 0, -1)]


def amounts_of_queues(
    stated: Iterable[QueueSpec], total: Amounts
) -> dict[str, tuple[Amounts, Amounts]]:
    """What each queue is guaranteed and may have at most, where ``total`` is all there is."""
    specs = {str(x.name): x for x in stated}
    for name in list(specs):
        for above in lineage_of(name):
            specs.setdefault(above, QueueSpec(name=QueueName(above)))
    specs.setdefault("root", QueueSpec(name=QueueName("root")))
    if "root.default" not in specs:
        quota = _ZERO if len(specs) > 1 else _ALL
        specs["root.default"] = QueueSpec(name=QueueName("root.default"), guaranteed=quota)
    found: dict[str, tuple[Amounts, Amounts]] = {"root": (total, _UNLIMITED)}
    for name in sorted(specs, key=lambda x: x.count(".")):
        below = [x for x in specs if x.rpartition(".")[0] == name]
        columns = [_division(specs, below, which, found[name][0][which]) for which in range(3)]
        for child in below:
            most = [
                min(above, above if stated is None else stated.of(whole))
                for stated, above, whole in zip(
                    specs[child].maximum, found[name][1], total, strict=True
                )
            ]
            least = [min(column[child], x) for column, x in zip(columns, most, strict=True)]
            found[child] = ((least[0], least[1], least[2]), (most[0], most[1], most[2]))
    return found


def _division(
    specs: Mapping[str, QueueSpec], below: Sequence[str], which: int, whole: float
) -> dict[str, float]:
    """What a parent that is guaranteed so much leaves to each of its children."""
    fixed = {
        name: amount.of(whole)
        for name in below
        if (amount := specs[name].guaranteed[which]) is not None
    }
    total = sum(fixed.values())
    if total > whole:
        fixed = {name: x * whole / total for name, x in fixed.items()}
    weights = {name: specs[name].weight for name in below if name not in fixed}
    left = max(0.0, whole - total)
    parts = {name: left * x / sum(weights.values()) for name, x in weights.items()}
    return fixed | parts


def total_of(units: Iterable[ResourceUnit]) -> Amounts:
    """What these units have together; cores and memory that several share count once."""
    pools: dict[str, Resources] = {}
    gpu_memory_mib = 0
    for unit in units:
        pools[unit.pool or unit.unit_id] = unit.target
        gpu_memory_mib += unit.target.gpu_memory_mib
    cores = sum(x.vcores for x in pools.values())
    return float(cores), float(sum(x.memory_mib for x in pools.values())), float(gpu_memory_mib)


def _total(nodes: Iterable[NodePlan]) -> Amounts:
    return total_of(unit for node in nodes for unit in node.units)


def _least(plan: Plan) -> Amounts:
    """What there is of each resource without the node that has the most of it."""
    if len(plan.nodes) == 1:
        return _total(plan.nodes)
    rests = [_total(x for x in plan.nodes if x is not gone) for gone in plan.nodes]
    each = [min(rest[which] for rest in rests) for which in range(3)]
    return each[0], each[1], each[2]


def _leaves(chance: Random) -> list[str]:
    """Two to six; in some trees a few of them are below a group, or below a group of that."""
    names = [f"root.{x}" for x in "abcdef"[: chance.randint(2, 6)]]
    if chance.random() < 0.4 and len(names) > 2:
        many = chance.randint(2, len(names))
        names[:many] = [x.replace("root.", "root.g.") for x in names[:many]]
        if chance.random() < 0.4 and many > 2:
            names[:2] = [x.replace("root.g.", "root.g.h.") for x in names[:2]]
    return names


def _in_queue(seed: int, app: ApplicationPlan, leaves: Sequence[str]) -> ApplicationPlan:
    chance = source(seed, f"queue-of-{app.name}")
    queue = chance.choice(leaves) if chance.random() < 0.9 else ""
    return replace(app, queue=queue, user=chance.choice(_USERS), priority=chance.randint(0, 3))


def _in_one_leaf(seed: int, apps: tuple[ApplicationPlan, ...]) -> tuple[ApplicationPlan, ...]:
    """In most runs all are in one queue, so that they wait for each other."""
    leaf = next((x.queue for x in apps if x.queue), "")
    if not leaf or source(seed, "one-leaf").random() < 0.3:
        return apps
    return tuple(replace(app, queue=leaf) for app in apps)


def _of_client(seed: int, client: PipelineClientPlan, leaves: Sequence[str]) -> PipelineClientPlan:
    chance = source(seed, f"queue-of-{client.name}")
    queue = chance.choice(leaves) if chance.random() < 0.9 else ""
    return replace(client, queue=queue, user=chance.choice(_USERS))


def _that_borrows(seed: int, app: ApplicationPlan) -> ApplicationPlan:
    """Most batch takes what there is, and for longer, so that something is to be taken back."""
    chance = source(seed, f"borrows-{app.name}")
    is_batch = app.declared is not WorkloadClass.STREAM and not app.classes
    if not is_batch or chance.random() < 0.3:
        return app
    (begin_s, first), *later = app.targets
    targets = ((begin_s, max(first, chance.randint(4, 12))), *later)
    return replace(app, targets=targets, work_s=app.work_s + chance.uniform(5.0, 30.0))


def _guaranteed(chance: Random, queues: Sequence[QueueSpec]) -> list[QueueSpec]:
    """By weight, in parts, in amounts, or nothing at all."""
    left: dict[str, float] = {}
    found: list[QueueSpec] = []
    for spec in queues:
        parent, kind = spec.name.rpartition(".")[0], chance.random()
        spec = replace(spec, weight=chance.choice((0.5, 1.0, 1.0, 2.0)))
        part = round(chance.uniform(0.1, 0.6), 2)
        if not parent or kind < 0.35:
            pass
        elif kind < 0.5:
            spec = replace(spec, guaranteed=_ZERO)
        elif kind < 0.8 and part <= left.get(parent, 1.0):
            left[parent] = left.get(parent, 1.0) - part
            amount = Amount(part, is_part=True)
            spec = replace(spec, guaranteed=(amount, amount, amount))
        elif kind >= 0.8 and parent == "root":
            spec = replace(spec, guaranteed=(Amount(float(chance.randint(1, 6))), None, None))
        found.append(spec)
    return found


def _limited(
    chance: Random, spec: QueueSpec, crowd: _Crowd, least: Amounts, *, is_leaf: bool
) -> QueueSpec:
    """A maximum, a number of applications, and so on, at times."""
    if spec.name == "root":
        return spec
    if chance.random() < 0.35:
        part = chance.uniform(0.2, 1.0)
        limits = [_part_for(part, x, y) for x, y in zip(crowd.most, least, strict=True)]
        spec = replace(spec, maximum=(limits[0], limits[1], limits[2]))
    if chance.random() < 0.25:
        spec = replace(spec, max_running=chance.randint(1, 3))
    if is_leaf:
        spec = replace(spec, order=chance.choice(_ORDERS), preemptible=chance.random() < 0.85)
        if any(crowd.drivers) and chance.random() < 0.3:
            spec = replace(spec, driver_share=chance.uniform(0.2, 0.8))
    return spec


def _part_for(part: float, needed: float, least: float) -> Amount | None:
    """The part, or as much as is needed; None: all."""
    most = max(part, 1.01 * needed / least) if least else 2.0
    return Amount(round(most + 0.005, 2), is_part=True) if most < 0.99 else None


def _with_limits_of_users(
    chance: Random, queues: Sequence[QueueSpec], crowds: Mapping[str, _Crowd], least: Amounts
) -> list[QueueSpec]:
    """In a few queues, that no driver is in."""
    amounts = amounts_of_queues(queues, least)
    found: list[QueueSpec] = []
    for spec in queues:
        crowd = crowds.get(spec.name, _Crowd())
        is_group = any(x.parent == spec.name for x in queues)
        if chance.random() < 0.25 and not is_group and not any(crowd.drivers):
            factor, guaranteed = chance.choice((1.0, 2.0, 4.0)), amounts[spec.name][0]
            if chance.random() < 0.5:
                spec = replace(spec, minimum_user_limit=chance.choice((0.25, 0.5)))
            elif all(x <= factor * y for x, y in zip(crowd.most, guaranteed, strict=True)):
                spec = replace(spec, user_limit_factor=factor)
        found.append(spec)
    return found


def _bounds(chance: Random, bounds: Bounds) -> Bounds:
    return replace(
        bounds,
        queue_preemption=chance.random() < 0.85,
        queue_preemption_grace_s=chance.uniform(0.2, 2.0),
        queue_preemption_part=chance.choice((0.1, 0.3, 1.0)),
        queue_reclaim_wait_s=chance.uniform(0.3, 4.0),
    )


def _crowds(plan: Plan) -> dict[str, _Crowd]:
    """Of each queue in which there is something."""
    units = [unit for node in plan.nodes for unit in node.units]
    found: dict[str, _Crowd] = {}
    each = [
        (x.queue or "root.default", _crowd_of(x, units, plan.traits)) for x in plan.applications
    ]
    each += [(x.queue or "root.default", _crowd_of_client(x)) for x in plan.pipelines]
    of_rule = {rule.pattern: rule.queue for rule in plan.queue_rules}
    each += [(of_rule[f"{x.name} (driver)"], _crowd_of_driver(x)) for x in plan.submissions]
    for queue, crowd in each:
        for name in lineage_of(queue):
            found[name] = found.get(name, _Crowd()).and_also(crowd)
    return found


def _crowd_of(app: ApplicationPlan, units: Sequence[ResourceUnit], traits: Sequence[str]) -> _Crowd:
    """What it starts at once: of a stream, or what may become one, all that it requests."""
    is_batch = app.declared is not WorkloadClass.STREAM and "recurring" not in traits
    is_batch &= all(name != "STREAM" for _, name in app.classes)

    def many(most: int) -> int:
        return max(1, app.gang_min) if is_batch else most

    demand = demand_of(app.resources, app.gpus, units)
    total = _times(demand, many(max(count for _, count in app.targets)))
    if app.other is not None:
        most = max(count for _, count in app.other.targets)
        other = demand_of(app.other.resources, app.other.gpus, units)
        total = _plus(total, _times(other, many(most)))
    return _Crowd(together=total)


def _crowd_of_driver(plan: SubmissionPlan) -> _Crowd:
    first, own = plan.executor, plan.resources
    many = max(plan.executors, plan.gang_min)
    return _Crowd(
        together=(float(many * first.vcores), float(many * first.memory_mib), 0.0),
        drivers=(float(own.vcores), float(own.memory_mib), 0.0),
    )


def _crowd_of_client(client: PipelineClientPlan) -> _Crowd:
    """One of its workers; the others may come later."""
    size = client.size
    return _Crowd(together=(float(size.vcores), float(size.memory_mib), float(size.gpu_memory_mib)))


def _times(demand: tuple[int, int, int, int], many: int) -> Amounts:
    return float(many * demand[0]), float(many * demand[1]), float(many * demand[2])


def _plus(a: Amounts, b: Amounts) -> Amounts:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]
