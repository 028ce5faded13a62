"""A container that passes a batch waiter does not delay it, as far as run times are known; checked
on what a node has started.

The waiters of each node are followed in order of arrival, replacements of preempted containers
before the others; these delay whom they may. When later ones have started at the unit
of one that is left, the moment at which it would fit is computed twice, as it is and as if they
had not started. What yields delays nobody: that it ends in time is checked elsewhere
(``hrm.sim.oracle.yielding``). Where recorded uses order what waits for a GPU, one that could have
started is passed by choice, which is counted elsewhere (``hrm.sim.oracle.gpu_waiters``). Units
that share cores are left to the property tests of the core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from hrm.core.messages import commands as c
from hrm.core.messages.claims import Entry
from hrm.core.node.core import NodeCore
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.bounds import PASSES_MAX
from hrm.core.vocabulary.feasibility import Column
from hrm.core.vocabulary.model import DRIVER_PREFIX, ContainerId, WorkloadClass
from hrm.sim.faults.capacity import fits_offer
from hrm.sim.oracle.gpu_waiters import GpuWaiterChecks

__all__ = ["Overtaking", "held_up"]


class Overtaking:
    """``_lines``: of each node its batch waiters, in order of arrival."""

    def __init__(
        self, violated: Callable[[str], None], gpu_waiters: GpuWaiterChecks | None = None
    ) -> None:
        self._violated = violated
        self._gpu_waiters = gpu_waiters
        self._lines: dict[str, list[ContainerId]] = {}

    def after(self, core: NodeCore, commands: Iterable[c.NodeCommand], now: float) -> None:
        """Check what a node has started in one event."""
        began = [x.spec.container_id for x in commands if isinstance(x, c.StartProcess)]
        waiting = [x for unit in core.units.values() for x in unit.batch_waiting]
        line = self._lines.get(core.name, [])
        for unit in core.units.values() if began else ():
            left = [x for x in line if x in unit.batch_waiting]
            if left and len(unit.pool) == 1:
                first = unit.batch_waiting[left[0]]
                older = line[: line.index(left[0])]
                may = [x for x in began if core.containers[x].spec.stands_first]
                later = [x for x in began if x in unit.running and x not in (*older, *may)]
                self._check(core, unit, first, later, now)
        known = [x for x in line if x in waiting]
        for container_id in waiting:
            if container_id not in known:
                known.insert(_arrival(core, known, container_id), container_id)
        self._lines[core.name] = known

    def _check(
        self, core: NodeCore, unit: UnitQueue, first: Entry, later: list[ContainerId], now: float
    ) -> None:
        passed = [x for x in later if _delays(unit.running[x])]
        expected_s = _fits_at(unit, first, now, without=passed)
        by_choice = self._gpu_waiters is not None and self._gpu_waiters.orders(core, unit)
        if by_choice and expected_s == now:
            return  # it could have started, and others were named before it
        if passed and _fits_at(unit, first, now, without=()) > expected_s:
            self._violated(
                f"{', '.join(passed)} started before {first.container_id}, which came earlier and "
                f"could have started {expected_s - now:.1f} s later"
            )


def _arrival(core: NodeCore, line: list[ContainerId], container_id: ContainerId) -> int:
    """Where a new waiter stands in the line of its node."""
    specs = {x: core.containers[x].spec for x in (*line, container_id)}
    if not specs[container_id].stands_first:
        return len(line)
    passed = {x: core.units[specs[x].unit_id].batch_waiting[x].passed for x in line}
    ahead = [specs[x].stands_first or passed[x] >= PASSES_MAX for x in line]
    return max((index for index, stays in enumerate(ahead, start=1) if stays), default=0)


def held_up(unit: UnitQueue, entry: Entry) -> bool:
    """Is there another batch waiter, at the unit or at one that shares its cores, that ``entry``
    could delay?"""
    return any(
        other is not entry
        and not fits_offer(other.demand, each.free)
        and (
            each is unit or other.demand[Column.GPU_MEMORY_MIB] <= each.free[Column.GPU_MEMORY_MIB]
        )
        and not math.isinf(_fits_at(each, other, 0.0, without=()))
        for each in unit.pool
        for other in each.batch_waiting.values()
    )


def _delays(entry: Entry) -> bool:
    """Not if it yields: that it does in time is checked elsewhere."""
    return entry.workload_class is WorkloadClass.BATCH and not entry.yields


def _is_driver(entry: Entry) -> bool:
    return entry.container_id.startswith(DRIVER_PREFIX)


def _due_s(entry: Entry, now: float) -> float:
    """When a running one is due. One that is late gets a quarter of its run time more, or twice,
    four times, … that: the least that leaves it some."""
    due_s = expected_s = entry.started_at_s + entry.duration_s
    more_s = max(entry.duration_s / 4, 0.001)
    while expected_s < now and due_s <= now:
        due_s = expected_s + more_s
        more_s *= 2
    return due_s


def _fits_at(
    unit: UnitQueue, waiter: Entry, now: float, *, without: Iterable[ContainerId]
) -> float:
    """When a waiter would fit if no other started; infinite where streams and drivers hold what it
    needs."""
    free = list(unit.free)
    ends: list[tuple[float, tuple[int, ...]]] = []
    for owner in unit.pool:
        for entry in owner.running.values():
            vcores, memory_mib, gpu_mib, slots = entry.demand
            held: tuple[int, ...] = (
                vcores,
                memory_mib,
                *((gpu_mib, slots) if owner is unit else (0, 0)),
            )
            if entry.container_id in without:
                free = [a + b for a, b in zip(free, held, strict=True)]
            elif entry.workload_class is WorkloadClass.BATCH and not _is_driver(entry):
                end_s = _due_s(entry, now)
                if entry.yields:
                    end_s = min(end_s, now + unit.unit.yield_grace_s)
                ends.append((end_s, held))
    at_s = now
    for end_s, held in sorted(ends):
        if fits_offer(waiter.demand, free):
            break
        at_s = end_s
        free = [a + b for a, b in zip(free, held, strict=True)]
    return at_s if fits_offer(waiter.demand, free) else math.inf
