"""One resource unit with its stacked queues: a stream queue over a batch queue over what yields.

All share the unit's resources. A container *waits* or *runs*. Whenever capacity may have
appeared, ``startable`` returns what starts, in one discipline for the node, the master's table and
the wait estimate:

1. stream waiters in order of arrival, those that do not fit are skipped;
2. while a stream waiter is left, no batch container starts: small ones must not starve it;
3. then batch waiters in order of arrival, first fit, but for the reservation of the first that does
   not fit (``reservation``). A waiter that running streams alone would keep from starting has none;
4. containers that yield come last (``yielding``): in order of arrival those that fit, and none
   while a stream waits here, or at a sibling, or batch for which there would be enough once all
   that yields, or is about to end, has ended.

The replacement of a preempted container has a *place* at its unit: it waits there before other
batch, behind those that had such a place before and any that has been passed ``PASSES_MAX`` times.
To stand before a waiter counts as a pass, so that preemption without end starves none.

A container starts iff the demands of all running ones and its own do not exceed the unit in any
dimension; device memory and the number of containers (``run_limit``) are dimensions.

A driver is queued and started as its application's class is. Once it runs it counts as a stream:
it is never preempted, and may itself wait for what waits, so that nothing counts on its end.

Units of one node may share vcores and memory (binding mode "shared"): they are *siblings* in a
pool, each with its own queues, slots and device memory. What one starts is gone from all. Streams
of all siblings go before batch of all: one for which the pool's cores and memory collect stands in
the stream queue of each sibling's image, so that start rule, ``free``, table and estimate agree.
(One that lacks device memory or a slot which only other streams could give back does not.) Batch
waiters of all siblings are served in one order of arrival (``line``). The reservation of the first
at each unit binds later ones at its unit, and at siblings while its unit has the rest and it needs
what the pool shares; such a first is in the siblings' images, too. What other waiters of siblings
may take before it, an estimate does not count.

Node and master hold to the same rule, each with its own clock and what it has seen. A restarted
master counts passes from 0: then an estimate is wrong, no more, for the node alone decides.

Source: HRM paper, sections 3.1 (shared cores), 3.3 (queue stacking), 3.4.1 (start rule) and 4.3.1
(what is preempted queues again). Point 2 and the discipline of pools are HRM's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import TypeAlias

from hrm.core.messages.claims import Entry
from hrm.core.queue.batch_turn import BatchTurn
from hrm.core.queue.start_rule import (
    UnitImage,
    due_s,
    free_soon,
    less_endless,
    startable,
)
from hrm.core.vocabulary.bounds import PASSES_MAX
from hrm.core.vocabulary.feasibility import (
    Vector,
    capacity_vector,
    current_vector,
    fits,
    leaves,
    minus,
    own_part,
    plus,
    pooled_part,
    serves,
)
from hrm.core.vocabulary.model import (
    DRIVER_PREFIX,
    NO_UNIT,
    ContainerId,
    ResourceUnit,
    WorkloadClass,
)

__all__ = ["StartBatch", "UnitQueue", "seen_from"]


_as_tuple = tuple.__new__  # makes a named tuple twice as fast as calling its class


StartBatch: TypeAlias = Callable[[list["UnitQueue"], float], list[Entry]]
"""Starts batch that waits at units of one pool, none of which a stream waits for, at a time."""


def seen_from(unit: UnitQueue, owner: UnitQueue, entry: Entry) -> Vector:
    """What ``entry``, which is at ``owner``, takes from ``unit``, and gives back to it."""
    return entry.demand if unit is owner else pooled_part(entry.demand)


class UnitQueue:
    """The queues of one resource unit.

    ``capacity`` is the unit's current one: what may run. Its target says what may wait here.

    Invariants:
        ``free`` is the capacity less the demands of all and only the running containers, and less
        the pooled part of what the siblings run; no dimension is negative.
        ``pool`` lists this queue and its siblings, those with a GPU first; all share one list.
        ``line`` has all and only the batch waiters of the pool, in their order (of arrival, but for
        those that have a place), and whose queue each is in; all share one. ``yielding_line`` is
        the same of those that yield.
        A container is in exactly one of ``running``, ``stream_waiting``, ``batch_waiting`` and
        ``yielding_waiting``; the waiting dictionaries are in that order and hold only their own.
        ``yielding`` of those that run give way.
        ``stream_headroom`` is the capacity less the demands of all streams here, running or
        waiting, and of the drivers that run, and less the pooled part of the siblings': what one
        more stream could have if all batch containers went. It may be negative. ``version`` rises
        with every change.
    """

    __slots__ = (
        "_image",
        "batch_waiting",
        "capacity",
        "free",
        "gpu_only",
        "gpus",
        "line",
        "pool",
        "running",
        "stream_headroom",
        "stream_waiting",
        "unit",
        "version",
        "yielding",
        "yielding_line",
        "yielding_waiting",
    )

    def __init__(self, unit: ResourceUnit) -> None:
        self.unit = unit
        self.gpu_only = unit.gpu_only
        self.gpus = unit.gpus_used
        self.capacity = current_vector(unit)
        self.free = self.capacity
        self.stream_headroom = self.capacity
        self.running: dict[ContainerId, Entry] = {}
        self.stream_waiting: dict[ContainerId, Entry] = {}
        self.batch_waiting: dict[ContainerId, Entry] = {}
        self.yielding_waiting: dict[ContainerId, Entry] = {}
        self.yielding = 0
        self.version = 0
        self.pool: list[UnitQueue] = [self]
        self.line: dict[ContainerId, UnitQueue] = {}
        self.yielding_line: dict[ContainerId, UnitQueue] = {}
        self._image: UnitImage | None = None

    def join(self, owner: UnitQueue) -> None:
        """Share vcores and memory with ``owner`` and its siblings from now on."""
        assert len(self.pool) == 1, f"{self.unit.unit_id} shares already"
        assert pooled_part(self.capacity) == pooled_part(owner.capacity), "a pool has one size"
        for sibling in owner.pool:
            for one, other in ((self, sibling), (sibling, self)):
                for entry in other.running.values():
                    one.free = minus(one.free, pooled_part(entry.demand))
                for entry in other._streams():
                    one.stream_headroom = minus(one.stream_headroom, pooled_part(entry.demand))
        owner.pool.append(self)
        owner.pool.sort(key=lambda queue: queue.unit.gpu is None)
        self.pool = owner.pool
        owner.line.update(self.line)
        self.line = owner.line
        owner.yielding_line.update(self.yielding_line)
        self.yielding_line = owner.yielding_line
        self._changed()

    def __contains__(self, container_id: ContainerId) -> bool:
        return (
            container_id in self.running
            or container_id in self.stream_waiting
            or container_id in self.batch_waiting
            or container_id in self.yielding_waiting
        )

    def get(self, container_id: ContainerId) -> Entry | None:
        return (
            self.running.get(container_id)
            or self.stream_waiting.get(container_id)
            or self.batch_waiting.get(container_id)
            or self.yielding_waiting.get(container_id)
        )

    def could_hold(self, demand: Vector) -> bool:
        """See ``feasibility.could_hold``."""
        return fits(demand, capacity_vector(self.unit)) and serves(demand, self.gpus, self.gpu_only)

    @property
    def waiting_count(self) -> int:
        return len(self.stream_waiting) + len(self.batch_waiting) + len(self.yielding_waiting)

    @property
    def ranked_count(self) -> int:
        """How many wait here that do not yield."""
        return len(self.stream_waiting) + len(self.batch_waiting)

    def runs_at_once(self, demand: Vector, workload_class: WorkloadClass) -> bool:
        """See ``UnitImage.runs_at_once``."""
        if len(self.pool) > 1:
            return self.image().runs_at_once(demand, workload_class)
        if self.stream_waiting or (
            self.batch_waiting and workload_class is not WorkloadClass.STREAM
        ):
            return False
        return fits(demand, self.free)

    def enqueue(self, entry: Entry) -> None:
        """Put a new container at the end of its class's queue, or at its place in it."""
        assert entry.container_id not in self, f"{entry.container_id} is here already"
        is_batch = entry.workload_class is WorkloadClass.BATCH
        if entry.place == self.unit.unit_id and is_batch and not entry.yields:
            self._put_first(entry)
        else:
            self._put(entry)
        self._count_stream(entry, minus)
        self._changed()

    def restore(self, entry: Entry) -> None:
        """Put a container at the end of its class's queue: they come in the order of an image."""
        self._put(entry)
        self._count_stream(entry, minus)
        self._changed()

    def run(self, entry: Entry, now: float) -> Entry:
        """Let a container hold its resources from now on, whether it waited here or is new."""
        assert entry.container_id not in self.running
        assert fits(entry.demand, self.free), f"{entry.container_id} over-commits {self.unit}"
        self._take(entry.demand)
        if entry.workload_class is WorkloadClass.BATCH:
            if entry.container_id in self.batch_waiting:
                self._overtake(entry.container_id)
                self._pull(entry.container_id)
            elif entry.container_id in self.yielding_waiting:
                self._pull(entry.container_id)
            self._count(entry, minus)
        elif self.stream_waiting.pop(entry.container_id, None) is None:
            self._count_stream(entry, minus)
        started = entry.started(now)
        self.running[entry.container_id] = started
        if started.yields:
            self.yielding += started.yields_now
        self._changed()
        return started

    def run_if_free(self, entry: Entry, now: float) -> bool:
        """``run`` a new container if ``runs_at_once`` allows it, and if it may be here at all.

        The common case of a commit, in one step: units of a pool take the general path.
        """
        container_id, workload_class, demand, duration_s, _, _, _, yields = entry
        vcores, memory_mib, device_mib, slots = self.free
        wanted_vcores, wanted_memory_mib, wanted_device_mib, wanted_slots = demand
        vcores -= wanted_vcores
        memory_mib -= wanted_memory_mib
        device_mib -= wanted_device_mib
        slots -= wanted_slots
        batch = workload_class is WorkloadClass.BATCH
        if (
            vcores < 0
            or memory_mib < 0
            or device_mib < 0
            or slots < 0
            or self.stream_waiting
            or (self.batch_waiting and (batch or container_id in self.batch_waiting))
            or (wanted_slots != self.gpus if wanted_device_mib else self.gpu_only)
            or container_id in self.running
        ):
            return False
        if not batch or yields or len(self.pool) > 1 or container_id.startswith(DRIVER_PREFIX):
            is_last = yields and bool(self.line or self.yielding_line) and entry.yields_now
            if is_last or not self.runs_at_once(demand, workload_class):
                return False
            self.run(entry, now)
            return True
        started = (container_id, workload_class, demand, duration_s, now, 0, NO_UNIT, False)
        self.running[container_id] = _as_tuple(Entry, started)
        self.free = (vcores, memory_mib, device_mib, slots)
        self.version += 1
        self._image = None
        return True

    def unrun(self, container_id: ContainerId) -> None:
        """Back from running to the head of its queue: the node has not started it after all."""
        entry = self.running.pop(container_id)
        if entry.yields:
            self.yielding -= entry.yields_now
        self._give_back(entry.demand)
        if entry.workload_class is WorkloadClass.BATCH:
            self._count(entry, plus)
        queue = self._queue_of(entry)
        line = self.yielding_line if entry.yields_now else self.line
        rest, others = dict(queue), dict(line)
        queue.clear()
        line.clear()
        self._put(entry)
        queue.update(rest)
        line.update(others)
        self._changed()

    def remove(self, container_id: ContainerId) -> Entry | None:
        """Take a container out; what it held is free again. None if it is not here."""
        entry = self.running.pop(container_id, None)
        if entry is not None:
            if entry.yields:
                self.yielding -= entry.yields_now
            self._give_back(entry.demand)
            self._count(entry, plus)
        else:
            entry = self._pull(container_id)
            if entry is not None:
                self._count_stream(entry, plus)
        if entry is not None:
            self._changed()
        return entry

    def reclassify(self, container_id: ContainerId, workload_class: WorkloadClass) -> bool:
        """Change a container's class; a waiting one goes to the end of the other queue."""
        entry = self.get(container_id)
        if entry is None or entry.workload_class is workload_class:
            return False
        changed = entry._replace(workload_class=workload_class, passed=0, place=NO_UNIT)
        if container_id in self.running:
            self._count(entry, plus)
            self._count(changed, minus)
            self.yielding += changed.yields_now - entry.yields_now
            self.running[container_id] = changed
        else:
            self._count_stream(entry, plus)
            self._count_stream(changed, minus)
            self._pull(container_id)
            self._put(changed)
        self._changed()
        return True

    def expect(self, container_id: ContainerId, run_s: float) -> None:
        """From now on a running container is expected to take ``run_s`` seconds from its start."""
        self.running[container_id] = self.running[container_id]._replace(duration_s=run_s)
        self._changed()

    def start_all(
        self, now: float, ending: Container[ContainerId] = (), batch: StartBatch | None = None
    ) -> list[Entry]:
        """Start all that the rules let start, here and at siblings; returns them in order.
        ``ending``: running containers that have been ordered to end. ``batch``: starts the batch
        that waits at these units of the pool, where it does not start in its order."""
        started = []
        units = [queue for queue in self.pool if not queue.unit.draining]
        for queue in units:
            streams = queue.stream_waiting.values()
            chosen = list(startable(streams, (), queue.free, queue.free, tuple, now))
            started += [queue.run(entry, now) for entry in chosen]
        # A stream that is left, here or at a sibling, is in the image and lets no batch start.
        units = [queue for queue in units if queue.batch_waiting]
        units = [queue for queue in units if not queue.image().stream_waiting]
        if batch is not None:
            started += batch(units, now)
        elif len(self.pool) > 1:
            started += self._start_batch(units, now)
        else:
            for queue in units:
                waiting, held = queue.batch_waiting.values(), partial(queue.held, now)
                chosen = list(startable((), waiting, queue.free, queue.beside_endless(), held, now))
                started += [queue.run(entry, now) for entry in chosen]
        return started + self._start_yielding(now, ending) if self.yielding_line else started

    def _start_yielding(self, now: float, ending: Container[ContainerId]) -> list[Entry]:
        """Start what yields, here and at siblings, once all else has been tried."""
        started: list[Entry] = []
        if self.awaited_soon(now, ending):
            return started
        for container_id, queue in list(self.yielding_line.items()):
            entry = queue.yielding_waiting[container_id]
            if queue.unit.draining or queue.image().stream_waiting:
                continue
            if fits(entry.demand, queue.free):
                started.append(queue.run(entry, now))
        return started

    def awaited_soon(self, now: float, ending: Container[ContainerId] = ()) -> bool:
        """Could batch that waits here, or at a sibling, use what is free, now or as soon as all
        that yields, or is about to end, has ended?"""
        most: dict[int, Vector] = {}
        for queue in self.pool if self.line else ():
            runs = ((x, seen_from(queue, y, x)) for y in queue.pool for x in y.running.values())
            most[id(queue)] = free_soon(queue.free, runs, now, ending, queue.unit.yield_grace_s)
        return any(
            fits(queue.batch_waiting[x].demand, most[id(queue)]) for x, queue in self.line.items()
        )

    def _start_batch(self, units: list[UnitQueue], now: float) -> list[Entry]:
        """``startable`` for the batch of a pool that waits at ``units``."""
        started: list[Entry] = []
        turn: BatchTurn[UnitQueue] = BatchTurn(now)
        for container_id, queue in list(self.line.items()):
            if queue in units and turn.admits(queue, queue.batch_waiting[container_id]):
                entry = queue.batch_waiting[container_id]
                turn.begins(queue, entry)
                started.append(queue.run(entry, now))
        return started

    def _first(self) -> Entry | None:
        """The batch waiter for which the cores and memory of the pool are to collect."""
        if self.stream_waiting or self.unit.draining:
            return None
        for entry in self.batch_waiting.values():
            if not fits(entry.demand, self.free) and fits(entry.demand, self.beside_endless()):
                return entry if self.has_rest(entry) else None
        return None

    def has_rest(self, entry: Entry) -> bool:
        """Is what ``entry`` needs besides the pool's cores and memory free?"""
        return leaves(self.free, own_part(entry.demand))

    def beside_endless(self) -> Vector:
        """See ``UnitImage.stream_free``."""
        if self.stream_headroom == self.capacity:
            return self.capacity
        stream_free = less_endless(self.capacity, self.running.values())
        others = (x.pooled() for q in self.pool if q is not self for x in q.running.values())
        return less_endless(stream_free, others)

    def held(self, now: float) -> list[tuple[float, Vector]]:
        """What those that run here and at siblings hold of this unit, and until when."""
        grace_s = self.unit.yield_grace_s
        return [
            (due_s(x, now, grace_s), seen_from(self, queue, x))
            for queue in self.pool
            for x in queue.running.values()
        ]

    def collecting(self) -> Iterator[Entry]:
        """Streams that wait here and would have what this unit alone offers, device memory and
        slots, if its batch were preempted: for them the pool's cores and memory collect."""
        free = less_endless(self.capacity, self.running.values())
        for entry in self.stream_waiting.values():
            if leaves(free, own_part(entry.demand)):
                free = minus(free, entry.demand)
                yield entry

    def image(self) -> UnitImage:
        """The present state, immutable; made once per version."""
        if self._image is None and len(self.pool) == 1:
            self._image = UnitImage(
                self.capacity,
                self.free,
                tuple(self.running.values()),
                tuple(self.stream_waiting.values()),
                tuple(self.batch_waiting.values()),
                self.unit.yield_grace_s,
            )
        elif self._image is None:
            siblings = [queue for queue in self.pool if queue is not self]
            self._image = UnitImage(
                self.capacity,
                self.free,
                (
                    *self.running.values(),
                    *(x.pooled() for queue in siblings for x in queue.running.values()),
                ),
                (
                    *self.stream_waiting.values(),
                    *(x.pooled() for queue in siblings for x in queue.collecting()),
                ),
                (
                    *(x.pooled() for queue in siblings if (x := queue._first()) is not None),
                    *self.batch_waiting.values(),
                ),
                self.unit.yield_grace_s,
            )
        return self._image

    @property
    def first_count(self) -> int:
        """How many batch containers wait here that stand first."""
        return sum(1 for entry in self.batch_waiting.values() if entry.place)

    def image_at_place(self) -> UnitImage:
        """What one that stands first would find here: the image without those after it."""
        ahead = set(list(self.line)[: self._ahead_of_first()])
        image = self.image()
        return image._replace(
            batch_waiting=tuple(x for x in image.batch_waiting if x.container_id in ahead)
        )

    def _queue_of(self, entry: Entry) -> dict[ContainerId, Entry]:
        if entry.workload_class is WorkloadClass.STREAM:
            return self.stream_waiting
        yields_now = entry.yields and entry.yields_now
        return self.yielding_waiting if yields_now else self.batch_waiting

    def _put(self, entry: Entry) -> None:
        """To the end of its queue."""
        self._queue_of(entry)[entry.container_id] = entry
        if entry.workload_class is not WorkloadClass.STREAM:
            yields_now = entry.yields and entry.yields_now
            line = self.yielding_line if yields_now else self.line
            line[entry.container_id] = self

    def _put_first(self, entry: Entry) -> None:
        """Before the batch waiters of the pool that it may pass; each of them is passed once."""
        line = list(self.line.items())
        ahead = self._ahead_of_first()
        for container_id, queue in line[ahead:]:
            queue.batch_waiting[container_id] = queue.batch_waiting[container_id].overtaken()
        self.line.clear()
        self.line.update((*line[:ahead], (entry.container_id, self), *line[ahead:]))
        waiting = {**self.batch_waiting, entry.container_id: entry}
        self.batch_waiting.clear()
        own = (x for x, queue in self.line.items() if queue is self)
        self.batch_waiting.update((x, waiting[x]) for x in own)

    def _ahead_of_first(self) -> int:
        """How many of ``line`` one that stands first has before it: all up to the last that stands
        first, too, or that has been passed as often as it may be."""
        ahead = 0
        for index, (container_id, queue) in enumerate(self.line.items(), start=1):
            waiter = queue.batch_waiting[container_id]
            if waiter.place or waiter.passed >= PASSES_MAX:
                ahead = index
        return ahead

    def _pull(self, container_id: ContainerId) -> Entry | None:
        """Out of the queue in which it waits."""
        entry = self.stream_waiting.pop(container_id, None)
        if entry is None and (entry := self.batch_waiting.pop(container_id, None)) is not None:
            del self.line[container_id]
        elif entry is None and (entry := self.yielding_waiting.pop(container_id, None)) is not None:
            del self.yielding_line[container_id]
        return entry

    def _overtake(self, container_id: ContainerId) -> None:
        """Count for earlier waiters that this one has passed them."""
        for each, queue in self.line.items():
            if each == container_id:
                return
            waiter = queue.batch_waiting[each]
            if queue is self or (
                queue.has_rest(waiter) and not fits(pooled_part(waiter.demand), queue.free)
            ):
                queue.batch_waiting[each] = waiter.overtaken()

    def _streams(self) -> Iterator[Entry]:
        yield from self.stream_waiting.values()
        yield from (x for x in self.running.values() if x.has_no_end)

    def _count_stream(self, entry: Entry, how: Callable[[Vector, Vector], Vector]) -> None:
        """Keep ``stream_headroom`` when a stream comes to wait (``minus``) or goes (``plus``)."""
        if entry.workload_class is WorkloadClass.STREAM:
            self._count(entry, how)

    def _count(self, entry: Entry, how: Callable[[Vector, Vector], Vector]) -> None:
        """The same of one that runs."""
        if entry.has_no_end:
            for queue in self.pool:
                queue.stream_headroom = how(queue.stream_headroom, seen_from(queue, self, entry))

    def _take(self, demand: Vector) -> None:
        if len(self.pool) == 1:
            self.free = minus(self.free, demand)
            return
        for queue in self.pool:
            queue.free = minus(queue.free, demand if queue is self else pooled_part(demand))

    def _give_back(self, demand: Vector) -> None:
        for queue in self.pool:
            queue.free = plus(queue.free, demand if queue is self else pooled_part(demand))

    def _changed(self) -> None:
        if len(self.pool) == 1:
            self.version += 1
            self._image = None
            return
        for queue in self.pool:
            queue.version += 1
            queue._image = None
