"""One resource unit with its stacked queues: a stream queue over a batch queue.

Both queues share the unit's resources. A container *waits* or *runs*. Whenever room may have
appeared, ``startable`` says who starts, in one discipline that the node, the master's mirror and
the wait estimate share (an estimate made under another discipline than the node's is wrong):

1. stream waiters in order of arrival, those that do not fit are skipped;
2. while a stream waiter is left, no batch container starts: what the batch gives back collects
   until the stream fits, so that small batch containers cannot starve it;
3. then batch waiters in order of arrival, first fit.

A container starts iff the demands of all running ones and its own do not exceed the unit in any
dimension, the number of running containers (``run_limit``) among them.

Source: HRM paper, sections 3.3 (queue stacking) and 3.4.1 (start rule). Point 2 is HRM's choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hrm.core.feasibility import Vector, capacity_vector, fits, minus, plus
from hrm.core.model import ContainerId, ResourceUnit, WorkloadClass

__all__ = ["Entry", "UnitImage", "UnitQueue", "startable"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A container in a unit's queue.

    ``duration_s`` is its estimated run time, infinite for streams; ``started_at_s`` counts only
    while it runs.
    """

    container_id: ContainerId
    workload_class: WorkloadClass
    demand: Vector
    duration_s: float
    started_at_s: float = 0.0

    def remaining_s(self, now: float) -> float:
        """Estimated seconds until it ends; never negative, infinite for a stream."""
        if self.workload_class is WorkloadClass.STREAM:
            return math.inf
        return max(0.0, self.duration_s - (now - self.started_at_s))


@dataclass(frozen=True, slots=True)
class UnitImage:
    """An immutable picture of a unit's queues, for estimates on a snapshot."""

    capacity: Vector
    free: Vector
    running: tuple[Entry, ...]
    stream_waiting: tuple[Entry, ...]
    batch_waiting: tuple[Entry, ...]

    @property
    def waiting(self) -> int:
        return len(self.stream_waiting) + len(self.batch_waiting)

    def runs_at_once(self, demand: Vector, workload_class: WorkloadClass) -> bool:
        """Would a new container start without waiting? A stream passes batch waiters."""
        ahead = self.stream_waiting if workload_class is WorkloadClass.STREAM else self.waiting
        return not ahead and fits(demand, self.free)


def startable(
    stream_waiting: Iterable[Entry], batch_waiting: Iterable[Entry], free: Vector
) -> Iterator[Entry]:
    """Who starts now, in order, when ``free`` is free."""
    stream_left = False
    for entry in stream_waiting:
        if fits(entry.demand, free):
            free = minus(free, entry.demand)
            yield entry
        else:
            stream_left = True
    if stream_left:
        return
    for entry in batch_waiting:
        if fits(entry.demand, free):
            free = minus(free, entry.demand)
            yield entry


class UnitQueue:
    """The queues of one resource unit.

    Invariants:
        ``free`` is the capacity less the demands of all and only the running containers, and no
        dimension is negative.
        A container is in exactly one of ``running``, ``stream_waiting``, ``batch_waiting``; the
        waiting dictionaries are in order of arrival and hold only their own class.
        ``version`` rises with every change.
    """

    __slots__ = (
        "_image",
        "batch_waiting",
        "capacity",
        "free",
        "running",
        "stream_waiting",
        "unit",
        "version",
    )

    def __init__(self, unit: ResourceUnit) -> None:
        self.unit = unit
        self.capacity = capacity_vector(unit)
        self.free = self.capacity
        self.running: dict[ContainerId, Entry] = {}
        self.stream_waiting: dict[ContainerId, Entry] = {}
        self.batch_waiting: dict[ContainerId, Entry] = {}
        self.version = 0
        self._image: UnitImage | None = None

    def __contains__(self, container_id: ContainerId) -> bool:
        return self.get(container_id) is not None

    def get(self, container_id: ContainerId) -> Entry | None:
        return (
            self.running.get(container_id)
            or self.stream_waiting.get(container_id)
            or self.batch_waiting.get(container_id)
        )

    @property
    def waiting_count(self) -> int:
        return len(self.stream_waiting) + len(self.batch_waiting)

    def runs_at_once(self, demand: Vector, workload_class: WorkloadClass) -> bool:
        """See ``UnitImage.runs_at_once``."""
        return self.image().runs_at_once(demand, workload_class)

    def enqueue(self, entry: Entry) -> None:
        """Put a new container at the end of its class's queue."""
        assert entry.container_id not in self, f"{entry.container_id} is here already"
        self._queue_of(entry.workload_class)[entry.container_id] = entry
        self._changed()

    def run(self, entry: Entry, now: float) -> Entry:
        """Let a container hold its resources from now on, whether it waited here or is new."""
        assert entry.container_id not in self.running
        assert fits(entry.demand, self.free), f"{entry.container_id} over-commits {self.unit}"
        self._queue_of(entry.workload_class).pop(entry.container_id, None)
        started = replace(entry, started_at_s=now)
        self.running[entry.container_id] = started
        self.free = minus(self.free, entry.demand)
        self._changed()
        return started

    def unrun(self, container_id: ContainerId) -> None:
        """Back from running to the head of its queue: the node has not started it after all."""
        entry = self.running.pop(container_id)
        self.free = plus(self.free, entry.demand)
        queue = self._queue_of(entry.workload_class)
        rest = dict(queue)
        queue.clear()
        queue[container_id] = entry
        queue.update(rest)
        self._changed()

    def remove(self, container_id: ContainerId) -> Entry | None:
        """Take a container out; what it held is free again. None if it is not here."""
        entry = self.running.pop(container_id, None)
        if entry is not None:
            self.free = plus(self.free, entry.demand)
        else:
            entry = self.stream_waiting.pop(container_id, None) or self.batch_waiting.pop(
                container_id, None
            )
        if entry is not None:
            self._changed()
        return entry

    def reclassify(self, container_id: ContainerId, workload_class: WorkloadClass) -> bool:
        """Change a container's class; a waiting one goes to the end of the other queue."""
        entry = self.get(container_id)
        if entry is None or entry.workload_class is workload_class:
            return False
        changed = replace(entry, workload_class=workload_class)
        if container_id in self.running:
            self.running[container_id] = changed
        else:
            del self._queue_of(entry.workload_class)[container_id]
            self._queue_of(workload_class)[container_id] = changed
        self._changed()
        return True

    def start_all(self, now: float) -> list[Entry]:
        """Start everybody whom the rules let start; answers them in order."""
        chosen = list(
            startable(self.stream_waiting.values(), self.batch_waiting.values(), self.free)
        )
        return [self.run(entry, now) for entry in chosen]

    def image(self) -> UnitImage:
        """The present state, immutable; made once per version."""
        if self._image is None:
            self._image = UnitImage(
                self.capacity,
                self.free,
                tuple(self.running.values()),
                tuple(self.stream_waiting.values()),
                tuple(self.batch_waiting.values()),
            )
        return self._image

    def _queue_of(self, workload_class: WorkloadClass) -> dict[ContainerId, Entry]:
        if workload_class is WorkloadClass.STREAM:
            return self.stream_waiting
        return self.batch_waiting

    def _changed(self) -> None:
        self.version += 1
        self._image = None
