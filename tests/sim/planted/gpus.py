"""Bugs of GPUs: who gets them, and what a container holds of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hrm.core.master import (
    admission,
    gangs,
    gpu_contest,
    gpu_shares,
    max_min,
    relocation,
    request_checks,
)
from hrm.core.master.entities import Container
from hrm.core.master.gpu_contest import GpuLot, GpuUser
from hrm.core.master.gpu_holds import GpuHolds
from hrm.core.master.gpu_index import GpuIndex
from hrm.core.master.gpu_preemption import Lack, lacking, victims
from hrm.core.master.gpu_shares import FairGpuParts
from hrm.core.master.max_min import Contender
from hrm.core.master.state import MasterState
from hrm.core.messages.claims import Entry
from hrm.core.queue import resource_unit
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling import shared_state
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary import feasibility
from hrm.core.vocabulary.feasibility import Column, Vector, pooled_part
from hrm.core.vocabulary.model import ApplicationId, ContainerState, ResourceUnitId

__all__ = ["BUGS"]


def gpus_of_all_kinds_as_one(patch: pytest.MonkeyPatch) -> None:
    """What an application holds of pairs of GPUs counts in its share of single ones."""
    kinds = FairGpuParts._kinds

    def as_one(self: FairGpuParts, now: float) -> list[list[GpuUser]]:
        users: dict[ApplicationId, GpuUser] = {}
        for each in kinds(self, now):
            for user in each:
                name, others = user.application_id, users.get(user.application_id)
                lots = user.lots if others is None else others.lots + user.lots
                users[name] = GpuUser(name, user.job, lots)
        return [list(users.values())]

    def startable(self: FairGpuParts, user: GpuUser, now: float) -> Sequence[int]:
        """Not what has been counted for one kind of its lots alone."""
        return self._counted(user, now) if user.waits else user.nothing

    patch.setattr(FairGpuParts, "_kinds", as_one)
    patch.setattr(FairGpuParts, "_startable_of", startable)


def gpu_sizes_counted_alike(patch: pytest.MonkeyPatch) -> None:
    """An application holds as much device memory as if all of its containers, also those that
    wait, were of one size."""

    def mean_mib(lots: Sequence[GpuLot]) -> int:
        many = sum(lot.placed + lot.waiting for lot in lots)
        all_mib = sum((lot.placed + lot.waiting) * lot.size_mib for lot in lots)
        return sum(lot.placed for lot in lots) * all_mib // max(1, many)

    patch.setattr(gpu_contest, "placed_mib", mean_mib)


def one_too_many(patch: pytest.MonkeyPatch) -> None:
    """One has a container more than its share, another of the same size one less."""
    fair = max_min.fair_parts

    def moved(free_mib: int, users: Sequence[Contender]) -> list[int]:
        parts = fair(free_mib, users)
        pairs = itertools.permutations(range(len(parts)), 2)
        for gets, gives in pairs:
            is_alike = users[gets].size_mib == users[gives].size_mib
            if is_alike and gets < gives and parts[gets] < users[gets].most and parts[gives]:
                parts[gets] += 1
                parts[gives] -= 1
                break
        return parts

    patch.setattr(gpu_contest, "fair_parts", moved)


def freed_gpus_taken_back(patch: pytest.MonkeyPatch) -> None:
    """What one victim frees is anyone's, before the others have ended."""
    patch.setattr(GpuHolds, "of_kind", lambda *_: [])


def returned_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a node returns from its queue counts for nothing until it is requested again."""
    patch.setattr(GpuIndex, "expect_again", lambda *_: None)


def preempted_for_parts_of_gangs(patch: pytest.MonkeyPatch) -> None:
    """For a gang as much is preempted as its share holds, though it starts whole or not at all."""

    def some(
        user: GpuUser, lacks_mib: int, startable: Sequence[int], members: Counter[Vector]
    ) -> list[tuple[GpuLot, int]]:
        return lacking(user, lacks_mib, [0] * len(startable))

    patch.setattr(gpu_shares, "lacking_together", some)
    patch.setattr(FairGpuParts, "_gang_could_start_after", lambda *_: True)


def started_gangs_preempted_as_others(patch: pytest.MonkeyPatch) -> None:
    """Of a gang that has started, executors that it needs are preempted as well."""
    patch.setattr(gpu_shares, "_needed", lambda *_: [])


def gpu_shares_of_each_scheduler(patch: pytest.MonkeyPatch) -> None:
    """Each scheduler shares out GPUs among its own jobs alone."""
    kinds = FairGpuParts._kinds

    def of_each(self: FairGpuParts, now: float) -> list[list[GpuUser]]:
        by_scheduler: dict[tuple[int, str], list[GpuUser]] = {}
        for index, users in enumerate(kinds(self, now)):
            for user in users:
                name = self._master_state.applications[user.application_id].scheduler
                by_scheduler.setdefault((index, name), []).append(user)
        return list(by_scheduler.values())

    patch.setattr(FairGpuParts, "_kinds", of_each)


def gpus_counted_by_request(patch: pytest.MonkeyPatch) -> None:
    """A container that starts or waits counts among those that wait for a place, until it ends."""
    changed = GpuIndex.changed

    def at_request_and_end(self: GpuIndex, container: Container) -> None:
        if container.state in (ContainerState.PENDING, ContainerState.ENDED):
            changed(self, container)

    patch.setattr(GpuIndex, "changed", at_request_and_end)


def newcomer_without_gpus(patch: pytest.MonkeyPatch) -> None:
    """What an application queued for GPUs while it was alone starts before what comes later."""
    patch.setattr(FairGpuParts, "rebalance", lambda *_: None)


def gpus_taken_below_a_share(patch: pytest.MonkeyPatch) -> None:
    """For a newcomer all containers of the others are preempted, not those above their share."""

    def any_of_them(
        master_state: MasterState,
        lacks: Sequence[Lack],
        running: Sequence[Container],
        above_mib: dict[ApplicationId, int],
        kept_mib: dict[ApplicationId, int],
        closed: Collection[ResourceUnitId],
        coming_mib: int,
        could_start: Callable[[ApplicationId, Sequence[Container]], bool],
    ) -> Iterator[tuple[Lack, list[Container]]]:
        some = [lack._replace(containers=len(running)) for lack in lacks]
        any_mib = dict.fromkeys(above_mib, 1 << 40)
        kept = kept_mib | any_mib
        return victims(master_state, some, running, any_mib, kept, closed, 0, could_start)

    patch.setattr(gpu_shares, "victims", any_of_them)


def several_gpus_as_one(patch: pytest.MonkeyPatch) -> None:
    """How many GPUs a request is for is forgotten once it is known how much memory they have."""

    def of_one(master_state: MasterState, request: Any, *about: Any) -> Any:
        resolved = resolve(master_state, request, *about)
        return replace(resolved, resources=replace(resolved.resources, gpus=1))

    resolve = admission.resolve
    patch.setattr(request_checks, "resolve", of_one)
    patch.setattr(gangs, "resolve", of_one)


def gpus_of_any_number(patch: pytest.MonkeyPatch) -> None:
    """A container goes wherever there is enough device memory, over however many GPUs."""

    def meant_for(demand: Vector, _gpus: int, gpu_only: bool) -> bool:
        return bool(demand[Column.GPU_MEMORY_MIB]) or not gpu_only

    def rows(self: SharedState, demand: Vector) -> Any:
        return np.ones_like(self.open) if demand[Column.GPU_MEMORY_MIB] else ~self.gpu_only

    for module in (feasibility, relocation, resource_unit, shared_state):
        patch.setattr(module, "serves", meant_for)
    patch.setattr(SharedState, "serving", rows)


def gpu_granted_twice(patch: pytest.MonkeyPatch) -> None:
    """What a batch container that runs holds of a GPU counts as free, at the master and its node:
    their accounts agree with each other, and the GPU has two owners."""
    run, taken, run_if_free = UnitQueue.run, SharedState.taken, UnitQueue.run_if_free

    def counted(entry: Entry) -> Entry:
        uses_gpu = entry.demand[Column.GPU_MEMORY_MIB] and not entry.has_no_end
        return entry._replace(demand=pooled_part(entry.demand)) if uses_gpu else entry

    def run_counted(self: UnitQueue, entry: Entry, now: float) -> Entry:
        return run(self, counted(entry), now)

    def run_if_fits(self: UnitQueue, entry: Entry, now: float) -> bool:
        if counted(entry) is entry:
            return run_if_free(self, entry, now)
        known = entry.container_id in self
        if known or not self.could_hold(entry.demand):
            return False
        if not self.runs_at_once(entry.demand, entry.workload_class):
            return False
        run_counted(self, entry, now)
        return True

    def taken_counted(self: SharedState, rows: list[int], demand: Vector, *, no_end: bool) -> None:
        uses_gpu = demand[Column.GPU_MEMORY_MIB] and not no_end
        taken(self, rows, pooled_part(demand) if uses_gpu else demand, no_end=no_end)

    patch.setattr(UnitQueue, "run", run_counted)
    patch.setattr(UnitQueue, "run_if_free", run_if_fits)
    patch.setattr(SharedState, "taken", taken_counted)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    one_too_many,
    gpus_of_all_kinds_as_one,
    gpu_sizes_counted_alike,
    freed_gpus_taken_back,
    returned_and_forgotten,
    preempted_for_parts_of_gangs,
    started_gangs_preempted_as_others,
    gpu_shares_of_each_scheduler,
    gpus_counted_by_request,
    newcomer_without_gpus,
    gpus_taken_below_a_share,
    several_gpus_as_one,
    gpus_of_any_number,
    gpu_granted_twice,
]
