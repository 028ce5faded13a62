"""When a node binds more cores to its GPUs, or fewer, without an order.

Some GPU jobs starve on the cores bound to their GPU, others leave them idle. So the node watches
what containers use of bound cores, and which wait for cores, and moves the border:

* **up** by one core, where the containers of a GPU used nearly all of its cores; or where a
  container waited all the time at a GPU for nothing but cores (and the memory and slots that are
  divided with them), by as many as let it start;
* **down** by one core, where a container waited all the time for cores of the unit without a GPU,
  and the GPUs are empty, or would use but a part of the cores that they would have left.

One number holds for all GPUs of a node, so the busiest GPU decides. A change must be worth its
cost:

* It uses a *window* of measurements, which starts over with every change. The busy share is above
  the idle one, so that a steady load never moves the border to and fro; cores for which a container
  waited are not given back before the GPUs were empty for a whole window.
* Between two changes lies a *pause*.
* What runs keeps what it holds (``hrm.core.node.layout``), and so a unit may have less than its
  binding gives it. Decisions are about bindings: a container that waits for what is lent lacks
  nothing.
* No change takes cores from units at which a stream waits.
* Bounds: the reserve for CPU jobs stays without a GPU, one core at least; ``cores_min`` stay bound
  to each GPU; and no unit becomes too small for the largest container of its kind since the agent
  started, or an application that was served yesterday would be refused today.

This module decides; ``hrm.core.node.core`` carries out. Only a partial binding moves.

Source: HRM paper, section 3.1 (more cores for GPU tasks with much CPU work, idle ones back, some
always kept). Thresholds, window, pause and limits are HRM's choice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.vocabulary.bounds import AutoBindingRules
from hrm.core.vocabulary.feasibility import Column, Vector, capacity_vector, fits, minus, plus
from hrm.core.vocabulary.model import (
    ContainerId,
    NodeName,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.core.vocabulary.partitioning import Hardware, Partitioning, partition
from hrm.errors import InvalidRequest

__all__ = [
    "AutoBinding",
    "AutoBindingRules",
    "ChangePartitioning",
    "UtilizationSample",
    "sample_utilization",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilizationSample:
    """One measurement of a node with a partial binding; its units as the binding has them.

    ``used``: cores in use at the unit of each GPU. ``needed``: bound cores with which a container
    that waits at ``needed_at`` for cores alone would start; 0: none waits. ``cpu_short``: a
    container waits for cores of the unit without a GPU. ``gpu_largest``, ``cpu_largest``: most
    vcores and most MiB of one container, waiting or running, at a unit of that kind; 0: none is
    there. ``gpu_stream``, ``cpu_stream``: a stream's container waits at such a unit. ``cores``:
    all of the node.
    """

    cores: int
    used: Mapping[ResourceUnitId, float]
    needed: int = 0
    needed_at: str = ""
    cpu_short: bool = False
    gpu_largest: tuple[int, int] = (0, 0)
    cpu_largest: tuple[int, int] = (0, 0)
    gpu_stream: bool = False
    cpu_stream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePartitioning:
    """Change to this binding."""

    binding: Partitioning
    why: str


class AutoBinding:
    """A node's measurements, and the decisions that follow.

    Invariant: the window holds measurements under one binding alone.
    """

    def __init__(
        self, rules: AutoBindingRules, units_under: Callable[[Partitioning], Sequence[ResourceUnit]]
    ) -> None:
        """``units_under``: the units under a binding; raises InvalidRequest if it cannot be."""
        self.rules = rules
        self._units_under = units_under
        self._seen: Partitioning | None = None
        self._window: deque[UtilizationSample] = deque(maxlen=rules.window)
        self._rest_until_s = -math.inf
        self._gpu_largest = (0, 0)
        self._cpu_largest = (0, 0)
        self._wanted = 0

    def forget(self) -> None:
        """The node's partitioning has no border to move."""
        self._seen = None
        self._window.clear()

    def measured(
        self, now: float, binding: Partitioning, sample: UtilizationSample, *, may_begin: bool
    ) -> ChangePartitioning | None:
        """Take in a measurement; returns what to do now, None for nothing.

        ``binding`` is in force and is a partial one. Without ``may_begin`` nothing is begun.
        """
        self._gpu_largest = _larger(self._gpu_largest, sample.gpu_largest)
        self._cpu_largest = _larger(self._cpu_largest, sample.cpu_largest)
        if binding != self._seen:
            self._changed(now, binding)
        self._window.append(sample)
        if not may_begin or now < self._rest_until_s or len(self._window) < self.rules.window:
            return None
        more = None if sample.cpu_stream else self._more(binding)
        fewer = None if sample.gpu_stream else self._fewer(binding)
        decision = more or fewer
        if decision is None or not self._serves_all(decision.binding):
            return None
        return decision

    def _changed(self, now: float, binding: Partitioning) -> None:
        """Another binding is in force, chosen by this object or by an operator."""
        if self._seen is not None:
            self._rest_until_s = now + self.rules.pause_s
        self._seen = binding
        self._window.clear()

    def _more(self, binding: Partitioning) -> ChangePartitioning | None:
        last = self._window[-1]
        most = (last.cores - max(1, binding.reserve_cores)) // len(last.used)
        if all(sample.needed for sample in self._window) and last.needed <= most:
            self._wanted = last.needed
            why = f"a container at {last.needed_at} waits for nothing but cores"
            return _bind(binding, last.needed, why)
        unit_id, used = max(self._means().items(), key=lambda item: item[1])
        full = self.rules.busy_percent / 100 * binding.bound_cores
        if used <= full or binding.bound_cores >= most:
            return None
        why = f"containers at {unit_id} used {used:.1f} of its {binding.bound_cores} cores"
        return _bind(binding, binding.bound_cores + 1, why)

    def _fewer(self, binding: Partitioning) -> ChangePartitioning | None:
        fewer = binding.bound_cores - 1
        empty = not any(sample.gpu_largest[0] for sample in self._window)
        if empty:
            self._wanted = 0
        if fewer < max(self.rules.cores_min, self._wanted) or not all(
            sample.cpu_short for sample in self._window
        ):
            return None
        unit_id, used = max(self._means().items(), key=lambda item: item[1])
        idle = used < self.rules.idle_percent / 100 * fewer
        if not empty and (not idle or any(sample.needed for sample in self._window)):
            return None
        what = "no container was at a GPU"
        if not empty:
            what = f"containers at {unit_id} used {used:.1f} of its {binding.bound_cores} cores"
        return _bind(binding, fewer, f"{what}, while others waited for cores")

    def _serves_all(self, binding: Partitioning) -> bool:
        """Could each unit hold the largest container that one of its kind has held?"""
        try:
            units = self._units_under(binding)
        except InvalidRequest:
            return False
        for unit in units:
            vcores, memory_mib = self._cpu_largest if unit.gpu is None else self._gpu_largest
            if unit.capacity.vcores < vcores or unit.capacity.memory_mib < memory_mib:
                return False
        return True

    def _means(self) -> dict[ResourceUnitId, float]:
        """Cores in use at each GPU's unit, on average of the window."""
        many = len(self._window)
        return {
            unit_id: math.fsum(sample.used.get(unit_id, 0.0) for sample in self._window) / many
            for unit_id in self._window[-1].used
        }


def sample_utilization(
    name: NodeName,
    hardware: Hardware,
    binding: Partitioning,
    units: Iterable[UnitQueue],
    cpu_percent: Mapping[ContainerId, float],
) -> UtilizationSample:
    """What the units show now. ``cpu_percent``: of one CPU, by container; absent is 0."""
    queues = [queue for queue in units if not queue.unit.draining]
    at_gpus = [queue for queue in queues if queue.unit.gpu is not None]
    elsewhere = [queue for queue in queues if queue.unit.gpu is None]
    needed, needed_at = _needed(name, hardware, binding, at_gpus)
    return UtilizationSample(
        cores=len(hardware.cores),
        used={
            queue.unit.unit_id: math.fsum(cpu_percent.get(x, 0.0) for x in queue.running) / 100
            for queue in at_gpus
        },
        needed=needed,
        needed_at=needed_at,
        cpu_short=any(_lack(queue, entry) for queue in elsewhere for entry in _waiting(queue)),
        gpu_largest=_largest(at_gpus),
        cpu_largest=_largest(elsewhere),
        gpu_stream=any(queue.stream_waiting for queue in at_gpus),
        cpu_stream=any(queue.stream_waiting for queue in elsewhere),
    )


def _bind(binding: Partitioning, bound_cores: int, why: str) -> ChangePartitioning:
    return ChangePartitioning(binding=replace(binding, bound_cores=bound_cores), why=why)


def _waiting(queue: UnitQueue) -> tuple[Entry, ...]:
    return (*queue.stream_waiting.values(), *queue.batch_waiting.values())


def _largest(queues: Iterable[UnitQueue]) -> tuple[int, int]:
    largest = (0, 0)
    for queue in queues:
        for entry in (*queue.running.values(), *_waiting(queue)):
            vcores, memory_mib, *_ = entry.demand
            largest = _larger(largest, (vcores, memory_mib))
    return largest


def _larger(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), max(a[1], b[1])


def _spare(queue: UnitQueue) -> Vector:
    """What the containers of a unit leave of what the binding gives it; negative: they hold more.

    No unit of a partial binding shares with another.
    """
    return minus(capacity_vector(queue.unit), minus(queue.capacity, queue.free))


def _lack(queue: UnitQueue, entry: Entry) -> int:
    """Vcores that a waiter still lacks, once what is lent has come back."""
    return max(0, entry.demand[Column.VCORES] - _spare(queue)[Column.VCORES])


def _needed(
    name: NodeName, hardware: Hardware, binding: Partitioning, at_gpus: Iterable[UnitQueue]
) -> tuple[int, str]:
    """The fewest bound cores with which a waiter at a GPU starts that now lacks cores, and where.

    (0, "") where there is none, or no such partitioning is possible, or it would not be enough.
    """
    waiters = [(_lack(q, x), i, q, x) for i, q in enumerate(at_gpus) for x in _waiting(q)]
    for lack, _, queue, entry in sorted(waiters, key=lambda waiter: waiter[:2]):
        if not lack:
            continue
        bound_cores = binding.bound_cores + lack
        try:
            units = partition(name, hardware, replace(binding, bound_cores=bound_cores))
        except InvalidRequest:
            break  # the others lack more
        new = next(unit for unit in units if unit.unit_id == queue.unit.unit_id)
        more = minus(capacity_vector(new), capacity_vector(queue.unit))
        if fits(entry.demand, plus(_spare(queue), more)):
            return bound_cores, queue.unit.unit_id
    return 0, ""
