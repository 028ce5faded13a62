"""Fills a cluster with pods that never leave, as its master would: the real policy, view and
negotiator.

A node is partitioned as an agent does by default (``shared``): a unit for each GPU, which shares
the node's cores and memory with the others and with one that has no GPU. Cores are counted in
thousandths, device memory in thousandths of a GPU. A pod starts at once, or is dropped.

HRM has no container that takes several GPUs of units with one each: its nodes have units of several
instead, for those containers alone. Here any GPUs of a node must do, as in the trace. So a pod of
several is so many containers with a part of its cores and memory each, which the policy has to
place on one node, and the negotiator commits together or not at all: the policy chooses for the
first among the nodes with a place for all, and for the rest within that node.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.packing.lists import GpuMachine, Pod
from hrm.core.messages.claims import Claim, Decision, Entry, Proposal
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.negotiator import Negotiator
from hrm.core.scheduling.placing import Placement, PlacementPolicy, ask
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.columns import Bools
from hrm.core.vocabulary.feasibility import Vector, pool_folds
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    Gpu,
    NodeName,
    ResourceUnit,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import Core, Hardware, Partitioning, partition

__all__ = ["Filling", "Site", "fill"]

_GPU_MILLI = 1000
_BATCH = WorkloadClass.BATCH
_RUN_S = 3600.0


class Site:
    """The nodes of a list with their units. ``gpu_milli``: what all their GPUs are."""

    def __init__(self, machines: Sequence[GpuMachine]) -> None:
        self.nodes = [(machine, _units(machine)) for machine in machines]
        self.gpu_milli = _GPU_MILLI * sum(machine.gpus for machine in machines)

    def state(self) -> SharedState:
        """The table of these nodes, all idle."""
        state = SharedState()
        for machine, units in self.nodes:
            for unit in units:
                state.add(NodeName(machine.name), UnitQueue(unit))
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """``allocated``: part of all GPUs, 0 to 1. ``choice_s``: processor time of the policy, with
    what it reserves in the view, for the pods that got a place; ``search_s``: for the others."""

    pods: int
    placed: int
    allocated: float
    choice_s: float
    search_s: float

    @property
    def placements_per_s(self) -> float:
        """Pods that got a place, over the time of these choices."""
        return self.placed / self.choice_s


def fill(policy: PlacementPolicy, site: Site, pods: Sequence[Pod]) -> Filling:
    """Offer ``pods`` to the policy one after the other, each once."""
    filler = _Filler(policy, site)
    placed, choice_s = list[Pod](), {True: 0.0, False: 0.0}
    for number, pod in enumerate(pods):
        before_s = filler.asked_s
        starts = filler.starts(number, pod)
        choice_s[starts] += filler.asked_s - before_s
        if starts:
            placed.append(pod)
    return Filling(
        pods=len(pods),
        placed=len(placed),
        allocated=sum(pod.gpu_milli_sum for pod in placed) / site.gpu_milli,
        choice_s=choice_s[True],
        search_s=choice_s[False],
    )


class _Filler:
    def __init__(self, policy: PlacementPolicy, site: Site) -> None:
        self.asked_s = 0.0
        self._policy = policy
        self._state = site.state()
        self._view = ClusterView(self._state)
        self._negotiator = Negotiator(self._state, Bounds())
        rows = self._state.rows
        self._models = np.full(len(self._state.queues), "", dtype=object)
        for machine, units in site.nodes:
            self._models[[rows[unit.unit_id] for unit in units]] = machine.model

    def starts(self, number: int, pod: Pod) -> bool:
        """Did it get a place?"""
        view, many = self._view, max(1, pod.gpus)
        demand = _demand(pod)
        entries = tuple(
            Entry(ContainerId(f"pod-{number}-{part}"), _BATCH, demand, _RUN_S)
            for part in range(many)
        )
        view.renew()
        if pod.models:
            view.keep_rows(np.isin(self._models, list(pod.models)))
        view.open_to(demand)
        if many > 1:
            view.keep_rows(self._with_place_for(many, demand))
        rows = self._choose(demand, entries[:1])
        if many > 1 and rows[0] is not None:
            view.open_only((self._state.node(rows[0]),), demand)
            rows += self._choose(demand, entries[1:])
        chosen = [row for row in rows if row is not None]
        return len(chosen) == many and self._commit(entries, chosen)

    def _choose(self, demand: Vector, entries: tuple[Entry, ...]) -> list[int | None]:
        placement = Placement(_BATCH, demand, entries, 0, 0.0, together=len(entries) > 1)
        begun_s = time.thread_time()
        rows = ask(self._policy, self._view, placement, 0.0)
        self.asked_s += time.thread_time() - begun_s
        return rows

    def _with_place_for(self, many: int, demand: Vector) -> Bools:
        """The rows of nodes that have a place for so many of ``demand``."""
        folds, pool = pool_folds(demand, self._view.free, self._view.pool)
        rows: Bools = (folds >= many)[pool]
        return rows

    def _commit(self, entries: Sequence[Entry], rows: Sequence[int]) -> bool:
        ids, versions = self._view.unit_ids(rows), self._view.versions(rows)
        claims = tuple(map(Claim, entries, ids, versions))
        proposal = Proposal("packing", ApplicationId("pods"), _BATCH, claims, gang=len(claims))
        outcomes = self._negotiator.commit(proposal, 0.0)
        granted = outcomes is not None and all(x.decision is Decision.RUN for x in outcomes)
        assert granted, f"what fits is granted, but: {outcomes}"
        return granted


def _demand(pod: Pod) -> Vector:
    """What each container of a pod takes."""
    parts = max(1, pod.gpus)
    return (
        math.ceil(pod.cpu_milli / parts),
        math.ceil(pod.memory_mib / parts),
        pod.gpu_milli,
        1,
    )


def _units(machine: GpuMachine) -> tuple[ResourceUnit, ...]:
    hardware = Hardware(
        cores=(Core(None),) * machine.cpu_milli,
        memory_mib=machine.memory_mib,
        gpus=tuple(Gpu(index=index, memory_mib=_GPU_MILLI) for index in range(machine.gpus)),
    )
    return partition(NodeName(machine.name), hardware, Partitioning())
