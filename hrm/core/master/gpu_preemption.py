"""Which containers are preempted so that GPUs are shared fairly at once, where that is switched on.

An application below its fair share that waits gets capacity from those above theirs: of their
containers the newest, which lose least, and no more than are above; before others those at units
in whose queue it waits. None is preempted where the one that waits would not start for it, nor
where one that gives would then have no more than the one that waits has now: so the least that any
of them holds only rises, and executors of several sizes, for which all GPUs do not divide alike,
are not preempted for each other in turn. What they free is held for the one that waits
(``hrm.core.master.gpu_holds``).

A gang starts whole or not at all, so it gets all that it lacks at once or nothing: only where its
share holds all of it, and each of it, also those that use no GPU, would have a place. None of it
may wait in a queue, so units where others wait are of no use to it.

Limits: a gang whose executors use several kinds of GPUs gets those of one kind only if the others
could start as it is.

Source: not in the HRM paper, which shares out only what is free (section 4.3.3).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hrm.core.master.entities import Container
from hrm.core.master.gpu_contest import GpuLot, GpuUser
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector, fits, minus, plus
from hrm.core.vocabulary.model import ApplicationId, ContainerId, NodeName, ResourceUnitId
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["Lack", "lacking", "lacking_together", "victims"]

_NOTHING: Vector = (0, 0, 0, 0)


class Lack(NamedTuple):
    """``containers`` of ``demand`` that an application lacks to its share, and cannot start now.
    ``avoided``: nodes that are excluded for it; ``queued_at``: units where some wait already;
    ``requires``: what a node must meet, None: nothing; ``together``: they are of a gang."""

    application_id: ApplicationId
    demand: Vector
    containers: int
    avoided: frozenset[NodeName]
    queued_at: frozenset[ResourceUnitId]
    requires: NodeRequirement | None = None
    together: bool = False


def lacking(user: GpuUser, lacks_mib: int, startable: Sequence[int]) -> list[tuple[GpuLot, int]]:
    """How many of each lot that cannot start now would, if the user held ``lacks_mib`` more."""
    found = []
    for lot, could in zip(user.lots, startable, strict=True):
        lacks_mib -= could * lot.size_mib
    for lot, could in zip(user.lots, startable, strict=True):
        waiting = lot.waiting - lot.returned
        many = min(waiting - could, max(0, lacks_mib) // lot.size_mib)
        if many > 0:
            found.append((lot, many))
            lacks_mib -= many * lot.size_mib
    return found


def lacking_together(
    user: GpuUser, lacks_mib: int, startable: Sequence[int], members: Counter[Vector]
) -> list[tuple[GpuLot, int]]:
    """The same of a gang, all or nothing. ``startable``: how many of each lot could start now if
    nothing else did; ``members``: how many of each demand it has."""
    if sum(members[lot.demand] * lot.size_mib for lot in user.lots) > lacks_mib:
        return []
    found = []
    free_mib = max(count * lot.size_mib for lot, count in zip(user.lots, startable, strict=True))
    for lot, count in zip(user.lots, startable, strict=True):
        could = min(members[lot.demand], count, free_mib // lot.size_mib)
        free_mib -= could * lot.size_mib
        if members[lot.demand] > could:
            found.append((lot, members[lot.demand] - could))
    return found


@dataclass(slots=True)
class _Round:
    """What has been chosen so far. ``left_mib``: how much more each may give; ``kept_mib``: what
    every one has then; ``served``: units at which no more are chosen; ``taken``: what is; ``rest``:
    what the part of a gang that is being served leaves free at units; ``coming_mib``: what is about
    to be free, and for none that has been served."""

    left_mib: dict[ApplicationId, int]
    kept_mib: dict[ApplicationId, int]
    served: set[ResourceUnitId]
    coming_mib: int = 0
    taken: set[ContainerId] = field(default_factory=set)
    rest: dict[ResourceUnitId, Vector] = field(default_factory=dict)

    def copy(self) -> _Round:
        left_mib, kept_mib = dict(self.left_mib), dict(self.kept_mib)
        return _Round(left_mib, kept_mib, set(self.served), self.coming_mib, set(self.taken))

    def take_coming(self, lack: Lack) -> int:
        """How many of these need not be served: what they need is about to be free."""
        size_mib = lack.demand[Column.GPU_MEMORY_MIB]
        many = min(lack.containers, self.coming_mib // size_mib)
        self.coming_mib -= many * size_mib
        return many

    def spare_mib(self, lack: Lack) -> dict[ApplicationId, int]:
        """What each may give for one of these."""
        least_mib = self.kept_mib[lack.application_id] + 1
        return {x: min(many, self.kept_mib[x] - least_mib) for x, many in self.left_mib.items()}

    def take(self, lack: Lack, chosen: Sequence[Container], free: Vector) -> None:
        """These are preempted for one of ``lack``, with which ``free`` is left at their unit."""
        unit_id = chosen[0].unit_id
        self.kept_mib[lack.application_id] += lack.demand[Column.GPU_MEMORY_MIB]
        for container in chosen:
            self.taken.add(container.container_id)
            self.left_mib[container.application_id] -= _mib(container)
            self.kept_mib[container.application_id] -= _mib(container)
        if lack.together:
            self.rest[unit_id] = free
        else:
            self.served.add(unit_id)

    def takes_rest(self, lack: Lack) -> bool:
        """Does one of a gang start where the others of it leave capacity? It takes that."""
        for unit_id, free in self.rest.items():
            if fits(lack.demand, free):
                self.rest[unit_id] = minus(free, lack.demand)
                self.kept_mib[lack.application_id] += lack.demand[Column.GPU_MEMORY_MIB]
                return True
        return False


def victims(
    master_state: MasterState,
    lacks: Iterable[Lack],
    running: Sequence[Container],
    above_mib: dict[ApplicationId, int],
    kept_mib: Mapping[ApplicationId, int],
    closed: Collection[ResourceUnitId],
    coming_mib: int,
    could_start: Callable[[ApplicationId, Sequence[Container]], bool],
) -> Iterator[tuple[Lack, list[Container]]]:
    """Those to preempt for one container each. ``lacks``: those of an application one after the
    other; ``running``: of applications above their share; ``above_mib``: by how much each is;
    ``kept_mib``: what every one has, but for what is ending, ``coming_mib`` in all; ``closed``:
    units at which none is preempted; ``could_start``: would all of a gang start if these were
    preempted? At a unit one container is served in a round, or one gang."""
    newest = sorted(running, key=lambda x: (-x.started_at_s, x.container_id))
    so_far = _Round(dict(above_mib), dict(kept_mib), set(closed), coming_mib)
    for application_id, each in itertools.groupby(lacks, key=lambda x: x.application_id):
        own, tried = list(each), so_far.copy()
        found = list[tuple[Lack, list[Container]]]()
        short = [x for x in own if not _serve(master_state, x, newest, tried, found)]
        if any(lack.together for lack in own):
            ending = [container for _, chosen in found for container in chosen]
            if short or not could_start(application_id, ending):
                continue
            tried.served.update(tried.rest)
        so_far = tried
        yield from found


def _serve(
    master_state: MasterState,
    lack: Lack,
    newest: Sequence[Container],
    so_far: _Round,
    found: list[tuple[Lack, list[Container]]],
) -> bool:
    """Choose what is preempted for each of ``lack``, as far as there is some. Is there enough?"""
    for _ in range(lack.containers - so_far.take_coming(lack)):
        if lack.together and so_far.takes_rest(lack):
            continue
        chosen, free = _for_one(master_state, lack, newest, so_far)
        if not chosen:
            return False
        so_far.take(lack, chosen, minus(free, lack.demand))
        found.append((lack, chosen))
    return True


def _for_one(
    master_state: MasterState, lack: Lack, newest: Sequence[Container], so_far: _Round
) -> tuple[list[Container], Vector]:
    """Enough of one unit's for one container, and what is free there when they have ended; empty
    where there are none."""
    by_unit: dict[ResourceUnitId, list[Container]] = {}
    spare_mib = so_far.spare_mib(lack)
    state = master_state.state
    suited = None if lack.requires is None else state.suited(lack.requires)
    for container in sorted(newest, key=lambda x: x.unit_id not in lack.queued_at):
        unit_id = container.unit_id
        row = state.rows.get(unit_id)
        if row is None or unit_id in so_far.served or not state.open[row]:
            continue
        if container.container_id in so_far.taken or (suited is not None and not suited[row]):
            continue
        queue, here = state.queue(row), by_unit.setdefault(unit_id, [])
        mine = [x for x in here if x.application_id == container.application_id]
        if (
            spare_mib[container.application_id] < sum(map(_mib, (*mine, container)))
            or container.node in lack.avoided
            or not queue.could_hold(lack.demand)
            or (lack.together and queue.ranked_count)
        ):
            continue
        here.append(container)
        free = so_far.rest.get(unit_id, queue.free)
        for each in here:
            free = plus(free, demand_vector(each.request.resources))
        if fits(lack.demand, free):
            return here, free
    return [], _NOTHING


def _mib(container: Container) -> int:
    return container.request.resources.gpu_memory_mib
