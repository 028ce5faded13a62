"""Which containers are preempted for one that waits at their resource unit.

A stream that finds no capacity takes that of running batch containers, of its own unit and, where
units share their cores, of its siblings. A batch container never takes another's capacity, nor does
a stream take a stream's. Both take that of containers that yield (``hrm.core.queue.yielding``), a
stream before other batch's. Batch takes it where it would start then by the rules of its unit: what
is behind the reservation of another ends nothing.

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
from hrm.core.queue.resource_unit import StartBatch, UnitQueue, seen_from
from hrm.core.queue.yielding import supposed_starts, yields_there
from hrm.core.vocabulary.feasibility import Vector, fits, minus, plus
from hrm.core.vocabulary.model import ApplicationId, ContainerId, WorkloadClass, is_driver

__all__ = ["Preemption", "preemptions"]

NO_APPLICATION = ApplicationId("")


@dataclass(frozen=True, slots=True)
class Preemption:
    """``victim`` is preempted for ``waiter``. ``yields``: it would have been for any waiter."""

    victim: ContainerId
    waiter: ContainerId
    yields: bool = False


def preemptions(
    queue: UnitQueue,
    ending: Container[ContainerId],
    owners: Mapping[ContainerId, ApplicationId],
    now: float,
    *,
    preempts_batch: bool = True,
    batch: StartBatch | None = None,
) -> list[Preemption]:
    """The victims for what waits in the pool of ``queue``: for streams unit by unit, those with a
    GPU first, and at each in order of arrival; then for batch in its order.

    ``ending``: running containers that have been ordered to end. ``owners``: the application of
    each container; none but what yields is preempted for its own application, whose containers may
    become streams one by one. ``preempts_batch``: is batch that does not yield preempted, too?
    ``batch``: as for ``UnitQueue.start_all``.
    """
    capacity = _PoolCapacity(queue, ending)
    yields = yields_there(queue)
    found: list[Preemption] = []

    def choose(unit: UnitQueue, waiter: Entry, *, yields_only: bool) -> None:
        victims = _victims(capacity, unit, waiter, owners, now, yields_only=yields_only)
        if victims is None:
            return
        for owner, victim in victims:
            capacity.comes(owner, victim)
            why = victim.container_id, waiter.container_id, victim.yields_now
            found.append(Preemption(*why))
        capacity.goes(unit, waiter)

    for unit in queue.pool:
        for waiter in unit.stream_waiting.values() if not unit.unit.draining else ():
            choose(unit, waiter, yields_only=not preempts_batch)
    if yields and queue.line:
        for unit, waiter in supposed_starts(queue, capacity.taken, now, batch):
            choose(unit, waiter, yields_only=True)
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
    *,
    yields_only: bool,
) -> list[tuple[UnitQueue, Entry]] | None:
    """Those that yield first, then those that lose least, none that is not needed; empty if there
    is capacity; None if all of them are not enough."""
    own = owners.get(waiter.container_id)
    candidates = [
        (owner, entry)
        for owner in capacity.pool
        for entry in owner.running.values()
        if entry.workload_class is WorkloadClass.BATCH
        and entry.container_id not in capacity.taken
        and (
            entry.yields_now
            or (not yields_only and (own is None or owners.get(entry.container_id) != own))
        )
        and not is_driver(owners.get(entry.container_id, NO_APPLICATION))
    ]
    candidates.sort(key=lambda x: (not x[1].yields_now, now - x[1].started_at_s, x[1].container_id))
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
