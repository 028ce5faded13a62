"""Which waiting containers start at a unit, and what it is expected to hold until when.

The rule of ``hrm.core.queue.resource_unit``, as functions of what waits and what runs: its queues
apply it, and so do estimates (``hrm.core.queue.estimate``) on an image of them.

Source: HRM paper, section 3.4.1 (start rule); the reservation of the first waiter is EASY
backfilling's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

from hrm.core.messages.claims import Entry
from hrm.core.queue.overdue import corrected_end_s
from hrm.core.queue.reservation import Held, Reservation
from hrm.core.vocabulary.feasibility import Vector, fits, minus, plus
from hrm.core.vocabulary.model import ContainerId, WorkloadClass

__all__ = [
    "UnitImage",
    "due_s",
    "duration_s",
    "end_s",
    "free_soon",
    "less_endless",
    "overtake",
    "startable",
]


class UnitImage(NamedTuple):
    """An immutable snapshot of a unit's queues, for estimates. ``yield_grace_s``: the unit's."""

    capacity: Vector
    free: Vector
    running: tuple[Entry, ...]
    stream_waiting: tuple[Entry, ...]
    batch_waiting: tuple[Entry, ...]
    yield_grace_s: float

    @property
    def waiting(self) -> int:
        return len(self.stream_waiting) + len(self.batch_waiting)

    @property
    def stream_free(self) -> Vector:
        """What the running streams and drivers leave to batch."""
        return less_endless(self.capacity, self.running)

    def runs_at_once(self, demand: Vector, workload_class: WorkloadClass) -> bool:
        """Would a new container start without waiting? A stream passes batch waiters."""
        ahead = self.stream_waiting if workload_class is WorkloadClass.STREAM else self.waiting
        return not ahead and fits(demand, self.free)

    def with_one(self, entry: Entry, *, runs: bool) -> UnitImage:
        """The image after one more has come."""
        if runs:
            free = minus(self.free, entry.demand)
            return self._replace(free=free, running=(*self.running, entry))
        if entry.workload_class is WorkloadClass.STREAM:
            return self._replace(stream_waiting=(*self.stream_waiting, entry))
        return self._replace(batch_waiting=(*self.batch_waiting, entry))


def startable(
    stream_waiting: Iterable[Entry],
    batch_waiting: Iterable[Entry],
    free: Vector,
    stream_free: Vector,
    held: Callable[[], Held],
    now: float,
) -> Iterator[Entry]:
    """What starts now, in order, when ``free`` is free and running streams leave ``stream_free``.

    ``held``: what those that run hold, and until when.
    """
    stream_left = False
    for entry in stream_waiting:
        if fits(entry.demand, free):
            free, stream_free = minus(free, entry.demand), minus(stream_free, entry.demand)
            yield entry
        else:
            stream_left = True
    if stream_left:
        return
    first: Entry | None = None
    reservation: Reservation | None = None
    begun: list[tuple[float, Vector]] = []
    for entry in batch_waiting:
        if not fits(entry.demand, free):
            if first is None and fits(entry.demand, stream_free):
                first = entry
            continue
        until_s = now + duration_s(entry)
        if first is not None:
            if reservation is None:
                reservation = Reservation.to(first.demand, first.passed, free, (*held(), *begun))
            if not reservation.allows(entry.demand, until_s):
                continue
            reservation.passed_by(entry.demand, until_s)
        free = minus(free, entry.demand)
        if entry.has_no_end:
            stream_free = minus(stream_free, entry.demand)
        begun.append((until_s, entry.demand))
        yield entry


def duration_s(entry: Entry) -> float:
    """How long a waiting container will run once it has started; infinite for streams, drivers."""
    if entry.has_no_end:
        return math.inf
    return max(0.0, entry.duration_s)


def end_s(entry: Entry) -> float:
    """When a running container is due, whether or not that is past; infinite for a stream."""
    return entry.started_at_s + duration_s(entry)


def due_s(entry: Entry, now: float, grace_s: float) -> float:
    """When a running container is due, not before ``now``; infinite for a stream. One that yields
    ends within its unit's ``grace_s`` once anything waits for that."""
    run_s = duration_s(entry)
    if entry.yields and entry.yields_now:
        if math.isinf(run_s):
            return now + grace_s
        return min(corrected_end_s(entry.started_at_s, run_s, now), now + grace_s)
    return math.inf if math.isinf(run_s) else corrected_end_s(entry.started_at_s, run_s, now)


def overtake(batch_waiting: list[Entry], entry: Entry) -> None:
    """``entry`` starts: remove it, and count the pass for earlier waiters."""
    place = batch_waiting.index(entry)
    batch_waiting[: place + 1] = [waiter.overtaken() for waiter in batch_waiting[:place]]


def less_endless(stream_free: Vector, running: Iterable[Entry]) -> Vector:
    """``stream_free`` less what streams and drivers among ``running`` hold."""
    for entry in running:
        if entry.has_no_end:
            stream_free = minus(stream_free, entry.demand)
    return stream_free


def free_soon(
    free: Vector,
    running: Iterable[tuple[Entry, Vector]],
    now: float,
    ending: Container[ContainerId],
    grace_s: float,
) -> Vector:
    """What is free once all of these have ended, with what each holds, that yields, has been
    ordered to end, or is due within ``grace_s``, the time that what yields there has to end."""
    soon_s = now + grace_s
    for entry, part in running:
        if entry.yields_now or entry.container_id in ending or due_s(entry, now, grace_s) <= soon_s:
            free = plus(free, part)
    return free
