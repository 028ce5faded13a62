"""Containers that yield: they use what is idle, and end soon once anything else wants it.

Idle cores are used without a second thought only by what is never in the way. So, at its resource
unit, a yielding container is on the lowest level of three. One that waits starts when nothing else
that waits there could use what is free, now or once all that yields has ended: while a large one
waits for other batch to end, cores are not left idle for it. One that runs is ordered to end by its
node, without a question to the master, when a stream or batch waits that would start in its place
(``hrm.core.node.preemption``): it has a short grace period (``yield_grace_s``) to finish its step
or to give it back, which the node reports with its units, since estimates count on it. It never
ends for another one that yields.

The master counts what yielding containers hold as held, and as capacity *to come* for whatever does
not yield: where that suffices, such a container may be queued at the unit, and starts within the
grace period. It does not wait for others there, so this is no share of the future. For one that
yields it looks for a unit where something is *spare*: free, and of no use to what waits there.

Source: HRM's. Borg's best-effort batch and YARN's opportunistic containers are at the same level;
neither has its node decide.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import StartBatch, UnitQueue, seen_from
from hrm.core.vocabulary.feasibility import Vector, leaves, minus, plus
from hrm.core.vocabulary.model import ContainerId

__all__ = [
    "beside_served",
    "instead_of",
    "served",
    "spare",
    "starts_once_yielded",
    "supposed_starts",
    "to_come",
    "yields_there",
]

_NOTHING: Vector = (0, 0, 0, 0)


def yields_there(queue: UnitQueue) -> bool:
    """Does something that yields run at the unit, or at one that shares its cores?"""
    return queue.yielding > 0 if len(queue.pool) == 1 else any(x.yielding for x in queue.pool)


def to_come(queue: UnitQueue) -> Vector:
    """What a container that comes now would find, besides what is free, once those that yield have
    ended and all that waits before it has started; nothing where that would not be enough for what
    waits."""
    found = _left(queue)
    return _NOTHING if found is None or min(plus(queue.free, found)) < 0 else found


def served(queue: UnitQueue) -> Iterator[Entry]:
    """What waits there, in order, as long as what is free or yielded suffices for it and for all
    before it. Where none yields it could start now: its node has not reported that yet, or still
    runs what is not counted here."""
    left = plus(queue.free, _yielded(queue))
    for owner, entry in _waiters(queue):
        left = minus(left, seen_from(queue, owner, entry))
        if min(left) < 0:
            return
        if owner is queue:
            yield entry


def instead_of(queue: UnitQueue, container_id: ContainerId) -> Vector:
    """What one that comes instead of this one, which waits there, finds free or yielded beside what
    is served of the others."""
    return beside_served(queue, without=container_id)


def beside_served(queue: UnitQueue, *, without: ContainerId | None = None) -> Vector:
    """What is free or yielded there beside what is ``served``, were one that waits not there."""
    left = plus(queue.free, _yielded(queue))
    for owner, entry in _waiters(queue):
        if entry.container_id != without:
            rest = minus(left, seen_from(queue, owner, entry))
            if min(rest) < 0:
                break
            left = rest
    return left


def _left(queue: UnitQueue) -> Vector | None:
    """What those that yield hold there, less what waits there; None: none yields."""
    if not yields_there(queue):
        return None
    found = _yielded(queue)
    for owner, entry in _waiters(queue):
        found = minus(found, seen_from(queue, owner, entry))
    return found


def _yielded(queue: UnitQueue) -> Vector:
    """What those that yield hold there."""
    found = _NOTHING
    for owner in queue.pool:
        for entry in owner.running.values() if owner.yielding else ():
            if entry.yields_now:
                found = plus(found, seen_from(queue, owner, entry))
    return found


def _waiters(queue: UnitQueue) -> Iterator[tuple[UnitQueue, Entry]]:
    """What waits there and at siblings but for what yields, in the order in which it starts."""
    for owner in queue.pool:
        for entry in owner.stream_waiting.values():
            yield owner, entry
    for container_id, owner in queue.line.items():
        yield owner, owner.batch_waiting[container_id]


def starts_once_yielded(queue: UnitQueue, entry: Entry) -> bool:
    """Would a new container start once those that yield have ended?"""
    coming = to_come(queue)
    return coming != _NOTHING and leaves(plus(queue.free, coming), entry.demand)


def spare(queue: UnitQueue, now: float) -> Vector:
    """What a container that yields and comes now would find free, though batch waits there; nothing
    where a stream waits, or where what is free is of use to batch. It is for those that yield and
    wait there already, first."""
    if queue.image().stream_waiting or queue.awaited_soon(now):
        return _NOTHING
    left = queue.free
    for owner in queue.pool:
        for entry in owner.yielding_waiting.values():
            left = minus(left, seen_from(queue, owner, entry))
    return _NOTHING if min(left) < 0 else left


def supposed_starts(
    queue: UnitQueue, gone: Container[ContainerId], now: float, batch: StartBatch | None = None
) -> list[tuple[UnitQueue, Entry]]:
    """The batch of the pool that would start if these running containers had ended, and nothing
    that yields ran there; with the queue where each waits. Nothing changes. ``batch``: as for
    ``UnitQueue.start_all``."""
    copies = [_without(each, gone, queue.pool) for each in queue.pool]
    originals = dict(zip(map(id, copies), queue.pool, strict=True))
    twins = {id(each): copy for each, copy in zip(queue.pool, copies, strict=True)}
    line = {container_id: twins[id(owner)] for container_id, owner in queue.line.items()}
    for copy in copies:
        copy.pool, copy.line = copies, line
    owners = dict(line)
    return [
        (originals[id(owners[entry.container_id])], entry)
        for entry in copies[0].start_all(now, batch=batch)
        if entry.container_id in owners
    ]


def _without(queue: UnitQueue, gone: Container[ContainerId], pool: list[UnitQueue]) -> UnitQueue:
    """A copy of one queue of a pool, which is not joined to the others yet."""
    copy = UnitQueue(queue.unit)
    copy.capacity, copy.free = queue.capacity, queue.free
    copy.stream_headroom = queue.stream_headroom
    copy.stream_waiting.update(queue.stream_waiting)
    copy.batch_waiting.update(queue.batch_waiting)
    for owner in pool:
        for container_id, entry in owner.running.items():
            ends = entry.yields_now or container_id in gone
            if ends:
                part = seen_from(queue, owner, entry)
                copy.free = plus(copy.free, part)
                if entry.has_no_end:
                    copy.stream_headroom = plus(copy.stream_headroom, part)
            elif owner is queue:
                copy.running[container_id] = entry
    return copy
