"""What of a cluster's state says how many nodes it needs, and which of them must stay.

A node is *protected* from being drained if it holds anything that is no executor of a live
application: a driver, or what is not understood.

Amounts are cores, MiB, and MiB of GPUs, and are divided by those of the mean node: how many nodes
of which kind there should be, only who provides machines can say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.pool.scaler import NodeSample, PoolSample
from hrm.core.vocabulary.model import ApplicationId, is_driver

__all__ = ["Amount", "PoolApplication", "PoolLeaf", "PoolNode", "pool_sample"]

Amount: TypeAlias = tuple[float, float, float]
"""Cores, MiB, MiB of GPUs."""


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
class PoolLeaf:
    """A queue without others below it.

    Attributes:
        maximum: in numbers; infinite where none is stated, or a part of the cluster, which grows
            with it.
        guaranteed: in numbers; 0 where it is a part of the cluster.
        is_without_place: something may start by its queue, and no node has a place for it.
    """

    used: Amount
    pending: Amount
    maximum: Amount = (math.inf, math.inf, math.inf)
    guaranteed: Amount = (0.0, 0.0, 0.0)
    is_without_place: bool = False

    @property
    def startable(self) -> Amount:
        """What waits, as far as the maximum lets it start."""
        columns = zip(self.pending, self.maximum, self.used, strict=True)
        cores, memory, gpus = (min(x, max(0.0, most - used)) for x, most, used in columns)
        return (cores, memory, gpus)


def pool_sample(
    now: float,
    nodes: Iterable[PoolNode],
    applications: Iterable[PoolApplication],
    leaves: Iterable[PoolLeaf],
    forecast_nodes: int | None,
    *,
    is_complete: bool = True,
) -> PoolSample:
    """The cluster as a scaler sees it. ``is_complete``: all that runs is known."""
    nodes, leaves = list(nodes), list(leaves)
    understood: Counter[str] = Counter()
    streams: dict[str, set[str]] = {}
    for application in applications:
        if is_driver(application.name):
            continue
        understood.update(application.executors)
        if not application.is_batch:
            for node in application.running_on:
                streams.setdefault(node, set()).add(application.name)
    startable = _sum(leaf.startable for leaf in leaves)
    return PoolSample(
        now=now,
        nodes=tuple(
            NodeSample(
                name=node.name,
                is_open=node.is_open,
                containers=node.containers,
                is_protected=node.containers > understood[node.name],
                streams=frozenset(streams.get(node.name, ())),
            )
            for node in nodes
        ),
        needed_nodes=_nodes_for(_sum([startable, *(leaf.used for leaf in leaves)]), nodes),
        guaranteed_nodes=_nodes_for(_sum(leaf.guaranteed for leaf in leaves), nodes),
        forecast_nodes=forecast_nodes,
        waiting=startable,
        is_complete=is_complete,
        is_without_place=any(leaf.is_without_place for leaf in leaves),
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    cores = memory = gpus = 0.0
    for each in amounts:
        cores, memory, gpus = cores + each[0], memory + each[1], gpus + each[2]
    return (cores, memory, gpus)


def _nodes_for(amount: Amount, nodes: list[PoolNode]) -> int:
    """Nodes of the mean size; a first one where there is none whose size could be counted in."""
    found = 0
    for total, of_all in zip(amount, _sum(node.capacity for node in nodes), strict=True):
        if total > 0:
            mean = of_all / len(nodes) if nodes else 0.0
            found = max(found, math.ceil(total / mean - 1e-9) if mean > 0 else 1)
    return found
