"""What of a cluster's state says how many nodes it needs, and which of them must stay.

A node is *protected* from being drained if it holds anything that is no executor of a live
application: a driver, or what is not understood. Nodes and applications are listed one after the
other, so that an executor that started in between may be among the applications' alone: numbers of
containers show what is not understood, and drivers protect their nodes by themselves.

Amounts are divided by those of the mean node that has any: how many nodes of which kind there
should be, only who provides machines can say. Which of those there are must stay, amounts say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hrm.core.pool.scaler import NOTHING, Amount, NodeSample, PoolSample
from hrm.core.tenancy.queue_status import HELD_BY_LIMITS, WaitReason
from hrm.core.vocabulary.model import ApplicationId, is_driver

__all__ = ["PoolApplication", "PoolNode", "PoolQueue", "held_share", "pool_sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """A node that is not lost. ``is_open``: it gets new containers. ``containers``: how many hold
    or await something of it."""

    name: str
    is_open: bool
    containers: int
    capacity: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolApplication:
    """A live application, or a driver on a node. ``executors``: how many containers of it hold or
    await something of which node. ``running_on``: where any of them runs."""

    name: ApplicationId
    is_batch: bool
    executors: Mapping[str, int]
    running_on: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQueue:
    """A queue of applications; those above it have its name's beginning, up to a dot.

    Attributes:
        maximum: of its own, in numbers; infinite where none is stated, or a part of the cluster,
            which grows with it.
        guaranteed: in numbers; 0 where it is a part of the cluster.
        held_share: of what waits, the part that a limit of applications or users holds back.
        is_without_place: something may start by its queue, and no node has a place for it.
    """

    name: str
    is_leaf: bool
    used: Amount
    pending: Amount
    maximum: Amount = (math.inf, math.inf, math.inf)
    guaranteed: Amount = NOTHING
    held_share: float = 0.0
    is_without_place: bool = False


def held_share(waits: Iterable[tuple[WaitReason, int]], unlisted: int) -> float:
    """Of what waits in a leaf, the part that more nodes would not start.

    Args:
        waits: of applications that wait, why, and with how many containers.
        unlisted: how many applications wait besides; they count as one container each that could
            start.
    """
    held = others = 0
    for reason, containers in waits:
        if reason in HELD_BY_LIMITS:
            held += containers
        else:
            others += containers
    return held / (held + others + unlisted) if held else 0.0


def pool_sample(
    now: float,
    nodes: Iterable[PoolNode],
    applications: Iterable[PoolApplication],
    queues: Iterable[PoolQueue],
    forecast_nodes: int | None,
    *,
    is_complete: bool = True,
) -> PoolSample:
    """The cluster as a scaler sees it. ``is_complete``: all that runs is known."""
    nodes, queues = list(nodes), list(queues)
    leaves = [queue for queue in queues if queue.is_leaf]
    understood: Counter[str] = Counter()
    with_drivers: set[str] = set()
    streams: dict[str, set[str]] = {}
    for application in applications:
        if is_driver(application.name):
            with_drivers.update(node for node, held in application.executors.items() if held)
            continue
        understood.update(application.executors)
        if not application.is_batch:
            for node in application.running_on:
                streams.setdefault(node, set()).add(application.name)
    startable = _startable(queues)
    needed = _sum([startable, *(leaf.used for leaf in leaves)])
    guaranteed = _sum(leaf.guaranteed for leaf in leaves)
    return PoolSample(
        now=now,
        nodes=tuple(
            NodeSample(
                name=node.name,
                is_open=node.is_open,
                containers=node.containers,
                is_protected=node.name in with_drivers or node.containers > understood[node.name],
                streams=frozenset(streams.get(node.name, ())),
                capacity=node.capacity,
            )
            for node in nodes
        ),
        needed_nodes=_nodes_for(needed, nodes),
        guaranteed_nodes=_nodes_for(guaranteed, nodes),
        forecast_nodes=forecast_nodes,
        waiting=startable,
        needed=_most(needed, guaranteed),
        is_complete=is_complete,
        is_without_place=any(leaf.is_without_place for leaf in leaves),
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    cores = memory = gpus = 0.0
    for each in amounts:
        cores, memory, gpus = cores + each[0], memory + each[1], gpus + each[2]
    return (cores, memory, gpus)


def _most(one: Amount, other: Amount) -> Amount:
    """Of each resource."""
    return (max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2]))


def _startable(queues: list[PoolQueue]) -> Amount:
    """What waits, as far as the maxima of its queue and of those above it let it start."""
    left = {
        queue.name: [max(0.0, x - y) for x, y in zip(queue.maximum, queue.used, strict=True)]
        for queue in queues
    }
    found = [0.0, 0.0, 0.0]
    for leaf in queues:
        if not leaf.is_leaf:
            continue
        parts = leaf.name.split(".")
        path = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
        bounds = [left[name] for name in path if name in left]
        for index, pending in enumerate(leaf.pending):
            wanted = pending * (1.0 - leaf.held_share)
            amount = min([wanted, *(bound[index] for bound in bounds)])
            found[index] += amount
            for bound in bounds:
                bound[index] -= amount
    return (found[0], found[1], found[2])


def _nodes_for(amount: Amount, nodes: list[PoolNode]) -> int:
    """Nodes like the mean of those that have any of it; a first one where none has. More of what
    only some have, such as GPUs, are more than all that there are."""
    found = 0
    for index, total in enumerate(amount):
        having = [x.capacity[index] for x in nodes if x.capacity[index] > 0]
        if total <= 0:
            continue
        if not having:
            found = max(found, len(nodes) + 1)
            continue
        wanted = math.ceil(total * len(having) / sum(having) - 1e-9)
        others = len(nodes) - len(having) if wanted > len(having) else 0
        found = max(found, wanted + others)
    return found
