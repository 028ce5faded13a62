"""The order in which batch starts on a shared GPU has bounds, whatever the policy names.

By what nodes have started, with a count of its own:

- one that could have started itself, and whose turn no reservation of an earlier one has, is passed
  by later batch of its unit ``passes_max`` times at most;
- none starts next to others of which, with it, more device memory is known than the unit has;
- none starts while a stream is left to wait there;
- what is kept back for its device memory is returned when ``kept_max_s`` are over.

What is known is asked of the machine's records; what follows from it is computed here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.node.core import NodeCore
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.bounds import GpuWaiterBounds
from hrm.core.vocabulary.feasibility import Column
from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.core.vocabulary.model import DRIVER_PREFIX, ContainerId, ContainerSpec, WorkloadClass
from hrm.sim.faults.capacity import fits_offer

__all__ = ["GpuWaiterChecks"]

_SLACK_S = 3.0
"""A node looks before it acts, and the check after that."""
KnownUse = Callable[[ContainerSpec], Sequence[GpuUsePart]]


@dataclass(slots=True)
class _Seen:
    """Of one agent. ``line``: its batch waiters as they came; ``kept_since_s``: since when each has
    been kept back at every heartbeat."""

    core: NodeCore
    line: list[ContainerId] = field(default_factory=list)
    passed: Counter[ContainerId] = field(default_factory=Counter)
    kept_since_s: dict[ContainerId, float] = field(default_factory=dict)


class GpuWaiterChecks:
    """Checks the nodes that order by recorded uses, and no others."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._machines: dict[str, tuple[KnownUse, GpuWaiterBounds]] = {}
        self._seen: dict[str, _Seen] = {}

    def machine(self, name: str, known: KnownUse, bounds: GpuWaiterBounds) -> None:
        """What the containers at a machine are known to use, and its bounds."""
        self._machines[name] = known, bounds

    def orders(self, core: NodeCore, queue: UnitQueue) -> bool:
        """Does the node order what waits at this unit?"""
        return (
            core.name in self._machines
            and queue.unit.gpus_used == 1
            and queue.capacity[Column.GPU_MEMORY_MIB] > 0
            and queue.capacity[Column.SLOTS] > 1
        )

    def kept_back(self, core: NodeCore, queue: UnitQueue, entry: Entry) -> bool:
        """Is more device memory known of it and of what runs there than there is?"""
        return self.orders(core, queue) and self._too_much(core, queue, queue.running, entry)

    def holds_up(self, core: NodeCore, queue: UnitQueue, entry: Entry) -> bool:
        """Is ``entry`` kept back, or behind one that is and has been passed often enough?"""
        if not self.orders(core, queue):
            return False
        _, bounds = self._machines[core.name]
        for waiter in queue.batch_waiting.values():
            kept = self.kept_back(core, queue, waiter)
            if waiter is entry:
                return kept
            if kept and waiter.passed >= bounds.passes_max:
                return True
        return False

    def after(self, core: NodeCore, event: e.NodeEvent, commands: Iterable[c.NodeCommand]) -> None:
        """Check what a node has started in one event, and what it keeps back."""
        if core.name not in self._machines:
            return
        seen = self._seen.get(core.name)
        if seen is None or seen.core is not core:
            seen = self._seen[core.name] = _Seen(core)
        began = [x.spec.container_id for x in commands if isinstance(x, c.StartProcess)]
        for queue in core.units.values():
            here = [x for x in began if x in queue.running]
            if here and self.orders(core, queue):
                self._started(seen, queue, here, began)
        waiting = [x for unit in core.units.values() for x in unit.batch_waiting]
        places = {x: n for unit in core.units.values() for n, x in enumerate(unit.line)}
        seen.line = sorted(waiting, key=lambda x: places[x])
        seen.passed = Counter({x: seen.passed[x] for x in waiting})
        if isinstance(event, e.HeartbeatDue):
            self._too_long(seen, event.now)

    def _started(
        self, seen: _Seen, queue: UnitQueue, here: list[ContainerId], began: list[ContainerId]
    ) -> None:
        """``began``, in this order, of which ``here`` at this unit."""
        core = seen.core
        bounds = self._machines[core.name][1]
        entries = {x: y for each in queue.pool for x, y in each.running.items()}
        free = list(queue.free)
        for name in began:
            if name in entries:
                free = _sum(free, _part(queue, entries[name]), 1)
        running = {x: y for x, y in queue.running.items() if x not in here}
        for name in began:
            entry = entries.get(name)
            if entry is None:
                continue
            if name in here and _is_batch(entry):
                if queue.stream_waiting:
                    self._violated(f"{name} starts at {queue.unit.unit_id}, and a stream waits")
                if entry.demand[Column.GPU_MEMORY_MIB] and self._too_much(
                    core, queue, running, entry
                ):
                    self._violated(
                        f"{name} starts at {queue.unit.unit_id} next to {', '.join(running)}, and "
                        f"more device memory is known of them than there is"
                    )
                for waiter in self._passed(seen, queue, name, free, running):
                    seen.passed[waiter] += 1
                    if seen.passed[waiter] > bounds.passes_max:
                        self._violated(
                            f"{name} starts before {waiter}, which could start itself and was "
                            f"passed {bounds.passes_max} times before"
                        )
            free = _sum(free, _part(queue, entry), -1)
            if name in here:
                running[name] = entry

    def _passed(
        self,
        seen: _Seen,
        queue: UnitQueue,
        name: ContainerId,
        free: Sequence[int],
        running: dict[ContainerId, Entry],
    ) -> list[ContainerId]:
        """Those that wait before ``name`` at its unit and could start, up to the first of the pool
        that does not fit, which may have a reservation."""
        if name not in seen.line or len(queue.pool) > 1:
            return []
        found = []
        for waiter in seen.line[: seen.line.index(name)]:
            entry = queue.batch_waiting.get(waiter)
            if entry is None:
                continue  # it has started before, or gone
            if not fits_offer(entry.demand, free):
                break
            if not self._too_much(seen.core, queue, running, entry):
                found.append(waiter)
        return found

    def _too_long(self, seen: _Seen, now: float) -> None:
        """At a heartbeat: what is kept back now, as at all those before, must not be for long."""
        core = seen.core
        kept = {
            name
            for queue in core.units.values()
            for name, entry in queue.batch_waiting.items()
            if fits_offer(entry.demand, queue.free) and self.kept_back(core, queue, entry)
        }
        seen.kept_since_s = {x: seen.kept_since_s.get(x, now) for x in kept}
        limit_s = self._machines[core.name][1].kept_max_s + _SLACK_S
        for name, since_s in seen.kept_since_s.items():
            if now - since_s > limit_s:
                self._violated(f"{name} is kept back on {core.name} for {now - since_s:.1f} s")

    def _too_much(
        self, core: NodeCore, queue: UnitQueue, running: dict[ContainerId, Entry], entry: Entry
    ) -> bool:
        users = [x for x in running.values() if x.demand[Column.GPU_MEMORY_MIB]]
        if not users or not entry.demand[Column.GPU_MEMORY_MIB]:
            return False
        needed = sum(self._mib(core, x) for x in (*users, entry))
        return needed > queue.capacity[Column.GPU_MEMORY_MIB]

    def _mib(self, core: NodeCore, entry: Entry) -> int:
        known, _ = self._machines[core.name]
        parts = known(core.containers[entry.container_id].spec)
        if not parts:
            return entry.demand[Column.GPU_MEMORY_MIB]
        return math.ceil(max(part.memory_mib for part in parts))


def _is_batch(entry: Entry) -> bool:
    is_driver = entry.container_id.startswith(DRIVER_PREFIX)
    return entry.workload_class is WorkloadClass.BATCH and not entry.yields and not is_driver


def _part(queue: UnitQueue, entry: Entry) -> tuple[int, ...]:
    """What one takes of the unit."""
    vcores, memory_mib, device_mib, slots = entry.demand
    own = entry.container_id in queue.running
    return (vcores, memory_mib, device_mib, slots) if own else (vcores, memory_mib, 0, 0)


def _sum(free: Sequence[int], part: Sequence[int], sign: int) -> list[int]:
    return [a + sign * b for a, b in zip(free, part, strict=True)]
