"""What yields is never in the way: checked on what a node has started, and on what waits there.

- While streams or batch wait at a unit for what running containers that yield hold there, these end
  within their grace period.
- None that yields starts while a stream waits at its unit, or, first of those of its unit, batch
  that would start if all that yields there ended.
- One that could start, because nothing else waits, does.

That no more are ordered to end than needed is with the other preemptions
(``hrm.sim.oracle.preemptions``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hrm.core.messages import commands as c
from hrm.core.messages.claims import Entry
from hrm.core.node.core import NodeCore
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import DRIVER_PREFIX, ContainerId, WorkloadClass
from hrm.sim.faults.capacity import fits_offer
from hrm.sim.oracle.gpu_waiters import GpuWaiterChecks

__all__ = ["YieldingChecks", "does_yield", "starts_soon"]

_SLACK_S = 6.0
"""For ends that were ordered by others before, with grace periods of their own, and slow ones."""
_STEP_S = 1.5
"""At least one event a heartbeat: longer steps are the sleep of a machine."""


def does_yield(core: NodeCore, container_id: ContainerId) -> bool:
    """Does a container of the node end for others?"""
    spec = core.containers[container_id].spec
    is_batch = spec.workload_class is WorkloadClass.BATCH
    return spec.yields and is_batch and not container_id.startswith(DRIVER_PREFIX)


def starts_soon(queue: UnitQueue) -> bool:
    """Does all that waits at a unit fit, once what yields there has ended? As the master has it."""
    free = list(queue.free)
    for owner in queue.pool:
        columns = range(4) if owner is queue else range(2)
        yielding = [x for x in owner.running.values() if x.yields and not x.has_no_end]
        for sign, some in ((1, yielding), (-1, _waiting(owner))):
            for entry in some:
                for column in columns:
                    free[column] += sign * entry.demand[column]
    return min(free) >= 0


class YieldingChecks:
    """``_lasts_s``: of each agent, for how long each container has waited for what yields;
    ``_seen``: the agent's core, and when it last handled an event."""

    def __init__(self, violated: Callable[[str], None], gpu_waiters: GpuWaiterChecks) -> None:
        self._violated = violated
        self._gpu_waiters = gpu_waiters
        self._lasts_s: dict[str, dict[ContainerId, float]] = {}
        self._seen: dict[str, tuple[NodeCore, float]] = {}

    def after(self, core: NodeCore, commands: Iterable[c.NodeCommand], now: float) -> None:
        """Check one event of a node."""
        began = [x.spec.container_id for x in commands if isinstance(x, c.StartProcess)]
        for container_id in began:
            if does_yield(core, container_id):
                self._in_the_way(core, container_id)
        before, seen_s = self._seen.get(core.name, (core, now))
        self._seen[core.name] = core, now
        lasts_s = self._lasts_s.get(core.name, {}) if before is core else {}
        step_s = min(max(0.0, now - seen_s), _STEP_S)
        self._lasts_s[core.name] = {x: lasts_s.get(x, 0.0) + step_s for x in self._held_up(core)}
        for container_id, lasted_s in self._lasts_s[core.name].items():
            if lasted_s > core.yield_grace_s + _SLACK_S:
                self._violated(
                    f"{container_id} has waited on {core.name} for {lasted_s:.1f} s for what "
                    f"yields there"
                )
        for unit_id, queue in core.units.items():
            if queue.unit.draining or core.closed or any(_waiting(x) for x in queue.pool):
                continue
            for entry in queue.yielding_waiting.values():
                if fits_offer(entry.demand, queue.free):
                    self._violated(f"{entry.container_id} yields, and waits at idle {unit_id}")

    def _in_the_way(self, core: NodeCore, container_id: ContainerId) -> None:
        """It has started: did anything wait that could use what it has taken?"""
        queue = core.units[core.containers[container_id].spec.unit_id]
        waiting = [(queue, x) for x in queue.stream_waiting.values()]
        for each in queue.pool:
            waiting += [(each, x) for x in list(each.batch_waiting.values())[:1]]
        for owner, waiter in waiting:
            is_stream = waiter.workload_class is WorkloadClass.STREAM
            if is_stream or fits_offer(waiter.demand, _left_by(core, owner, _remains)):
                self._violated(
                    f"{container_id} yields, and starts at {queue.unit.unit_id} before "
                    f"{waiter.container_id}"
                )

    def _held_up(self, core: NodeCore) -> Iterator[ContainerId]:
        """At each unit the first that waits, if it would start without what yields there. Where
        recorded uses order what waits, it may be another's turn."""
        for queue in core.units.values():
            streams = [*queue.stream_waiting.values()]
            streams_before = any(each.stream_waiting for each in queue.pool)
            line = [x for x, _ in queue.line.items()]
            batch = [] if streams_before or not line else [*queue.batch_waiting.values()]
            if self._gpu_waiters.orders(core, queue):
                batch = []
            first = streams or [x for x in batch if x.container_id == line[0]]
            for waiter in first[:1]:
                if fits_offer(waiter.demand, _left_by(core, queue, _remains)):
                    yield waiter.container_id


def _waiting(queue: UnitQueue) -> list[Entry]:
    return [*queue.stream_waiting.values(), *queue.batch_waiting.values()]


def _remains(core: NodeCore, container_id: ContainerId) -> bool:
    return not does_yield(core, container_id)


def _left_by(
    core: NodeCore, queue: UnitQueue, remain: Callable[[NodeCore, ContainerId], bool]
) -> Vector:
    """What a unit has besides these of what runs in its pool."""
    left = list(queue.capacity)
    for owner in queue.pool:
        for entry in owner.running.values():
            if remain(core, entry.container_id):
                vcores, memory_mib, device_mib, slots = entry.demand
                held = (vcores, memory_mib, device_mib, slots)
                if owner is not queue:
                    held = (vcores, memory_mib, 0, 0)
                left = [a - b for a, b in zip(left, held, strict=True)]
    vcores, memory_mib, device_mib, slots = left
    return vcores, memory_mib, device_mib, slots
