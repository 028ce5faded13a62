"""Which batch containers are preempted for a stream that waits at their resource unit.

A stream that finds no capacity takes that of running batch containers, of its own unit and, where
units share their cores, of its siblings. A batch container never takes another's capacity, nor does
a stream take a stream's.

The victims are those that lose the least work: the ones started last. No more are preempted than
needed, none where all of them would not be enough, and what is ending already counts as capacity to
come. Drivers are never victims: with one, all that its application has done would be lost.

Source: HRM paper, sections 3.3 and 4.3.1 (streams take resources from batch, which queues again);
the choice of victims is not in the paper.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue, seen_from
from hrm.core.vocabulary.feasibility import Vector, fits, minus, plus
from hrm.core.vocabulary.model import ApplicationId, ContainerId, WorkloadClass, is_driver

__all__ = ["Preemption", "preemptions"]

NO_APPLICATION = ApplicationId("")


@dataclass(frozen=True, slots=True)
class Preemption:
    """``victim`` is preempted for the stream ``waiter``."""

    victim: ContainerId
    waiter: ContainerId


def preemptions(
    queue: UnitQueue,
    ending: Container[ContainerId],
    owners: Mapping[ContainerId, ApplicationId],
    now: float,
) -> list[Preemption]:
    """The victims for the streams that wait in the pool of ``queue``: unit by unit, those with a
    GPU first, and at each in order of arrival.

    ``ending``: running containers that have been ordered to end. ``owners``: the application of
    each container; none is preempted for its own application, whose containers may become streams
    one by one.
    """
    capacity = _PoolCapacity(queue, ending)
    found: list[Preemption] = []
    for unit in queue.pool:
        for waiter in unit.stream_waiting.values() if not unit.unit.draining else ():
            victims = _victims(capacity, unit, waiter, owners, now)
            if victims is None:
                continue
            for owner, victim in victims:
                capacity.comes(owner, victim)
                found.append(Preemption(victim.container_id, waiter.container_id))
            capacity.goes(unit, waiter)
    return found


class _PoolCapacity:
    """What is free in a pool, or will be when those that are ending have ended."""

    def __init__(self, queue: UnitQueue, ending: Container[ContainerId]) -> None:
        self.pool = queue.pool
        self.free: list[Vector] = [unit.free for unit in queue.pool]
        self.taken: set[ContainerId] = set()
        for unit in queue.pool:
            for entry in unit.running.values():
                if entry.container_id in ending:
                    self.comes(unit, entry)

    def comes(self, owner: UnitQueue, entry: Entry) -> None:
        self.taken.add(entry.container_id)
        self.free = [plus(x, seen_from(u, owner, entry)) for u, x in self._units()]

    def goes(self, owner: UnitQueue, entry: Entry) -> None:
        self.free = [minus(x, seen_from(u, owner, entry)) for u, x in self._units()]

    def _units(self) -> zip[tuple[UnitQueue, Vector]]:
        return zip(self.pool, self.free, strict=True)


def _victims(
    capacity: _PoolCapacity,
    unit: UnitQueue,
    waiter: Entry,
    owners: Mapping[ContainerId, ApplicationId],
    now: float,
) -> list[tuple[UnitQueue, Entry]] | None:
    """Those that lose least, none that is not needed; empty if there is capacity; None if all of
    them are not enough."""
    own = owners.get(waiter.container_id)
    candidates = [
        (owner, entry)
        for owner in capacity.pool
        for entry in owner.running.values()
        if entry.workload_class is WorkloadClass.BATCH
        and entry.container_id not in capacity.taken
        and (own is None or owners.get(entry.container_id) != own)
        and not is_driver(owners.get(entry.container_id, NO_APPLICATION))
    ]
    candidates.sort(key=lambda each: (now - each[1].started_at_s, each[1].container_id))
    free = capacity.free[capacity.pool.index(unit)]
    chosen: list[tuple[UnitQueue, Entry]] = []
    for owner, entry in candidates:
        if fits(waiter.demand, free):
            break
        free = plus(free, seen_from(unit, owner, entry))
        chosen.append((owner, entry))
    if not fits(waiter.demand, free):
        return None
    for each in reversed(list(chosen)):
        without = minus(free, seen_from(unit, *each))
        if fits(waiter.demand, without):
            free = without
            chosen.remove(each)
    return chosen
