"""The measures of a replay, computed from the starts and ends of containers alone.

Nothing is read from the core's state: capacity in use is what nodes have started and not ended, so
a core that miscounts cannot look good here.

*Utilisation* and *fragmentation* are means over the time from the first to the last arrival. After
that the cluster only drains, and the duration of that depends on the longest job more than on the
policy. Fragmentation is the part of the free capacity that the median request could not use,
because it is in pieces too small for it, or because another resource of the same node is used up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hrm.core.vocabulary.model import NodeName, Resources, ResourceUnit, ResourceUnitId

__all__ = ["Distribution", "Measures", "distribution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of ``count`` values; all 0 where there are none."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    largest: float


def distribution(values: Sequence[float]) -> Distribution:
    """Mean and percentiles (linear between ranks) of ``values``."""
    if not values:
        return Distribution(count=0, mean=0.0, p50=0.0, p95=0.0, p99=0.0, largest=0.0)
    array = np.asarray(values, np.float64)
    p50, p95, p99 = (float(x) for x in np.percentile(array, [50, 95, 99]))
    return Distribution(
        count=len(values),
        mean=float(array.mean()),
        p50=p50,
        p95=p95,
        p99=p99,
        largest=float(array.max()),
    )


@dataclass(slots=True)
class _NodeFree:
    """What a node has free. ``device_mib``: of each GPU's unit. ``usable``: of the resource that
    fragmentation is counted in."""

    vcores: int
    memory_mib: int
    device_mib: dict[ResourceUnitId, int] = field(default_factory=dict)
    usable: int = 0


class Measures:
    """``median``: the request that defines fragmentation; in device memory if it requests some,
    else in vcores. ``until_s``: when the last job arrives.

    Invariant: the sums hold for the time up to ``_at_s``, and no later than ``until_s``.
    """

    def __init__(
        self, nodes: Iterable[tuple[NodeName, Sequence[ResourceUnit]]], median: Resources
    ) -> None:
        self.waits_s: list[float] = []
        self.completions_s: list[float] = []
        self.starts = 0
        self._median = median
        self._nodes_free: dict[NodeName, _NodeFree] = {}
        self._history = hashlib.sha256()
        self._at_s = self._from_s = self._until_s = 0.0
        self._used_vcore_s = self._used_device_s = self._free_s = self._usable_s = 0.0
        for name, units in nodes:
            node_free = _NodeFree(0, 0)
            for unit in units:
                own = unit.own_capacity
                node_free.vcores += own.vcores
                node_free.memory_mib += own.memory_mib
                if unit.gpu is not None:
                    node_free.device_mib[unit.unit_id] = own.gpu_memory_mib
            node_free.usable = self._usable_of(node_free)
            self._nodes_free[name] = node_free
        nodes_free = self._nodes_free.values()
        self.capacity = Resources(
            sum(node_free.vcores for node_free in nodes_free),
            sum(node_free.memory_mib for node_free in nodes_free),
            sum(sum(node_free.device_mib.values()) for node_free in nodes_free),
        )
        self._free = self.capacity
        self._usable = sum(node_free.usable for node_free in nodes_free)

    def begin(self, from_s: float, until_s: float) -> None:
        """The first job arrives at ``from_s``, the last at ``until_s``."""
        self._at_s = self._from_s = from_s
        self._until_s = until_s

    def started(
        self, what: str, node: NodeName, unit: ResourceUnitId, held: Resources, now: float
    ) -> None:
        self._pass_time(now)
        self.starts += 1
        self._history.update(f"{now:.6f} {what} {unit}\n".encode())
        self._change(node, unit, held, -1)

    def ended(self, node: NodeName, unit: ResourceUnitId, held: Resources, now: float) -> None:
        self._pass_time(now)
        self._change(node, unit, held, 1)

    def finish(self, now: float) -> None:
        """The replay is over."""
        self._pass_time(now)

    def history(self) -> str:
        """A hash over every start: what, where and when."""
        return self._history.hexdigest()

    @property
    def vcore_utilisation(self) -> float:
        return self._share(self._used_vcore_s, self.capacity.vcores)

    @property
    def device_utilisation(self) -> float:
        """Of device memory; 0 where there is none."""
        return self._share(self._used_device_s, self.capacity.gpu_memory_mib)

    @property
    def fragmentation(self) -> float:
        """The part of free capacity that the median request could not use; 0 if none was free."""
        return 1.0 - self._usable_s / self._free_s if self._free_s else 0.0

    def _share(self, used_s: float, capacity: int) -> float:
        total_s = capacity * (self._at_s - self._from_s)
        return used_s / total_s if total_s else 0.0

    def _pass_time(self, now: float) -> None:
        until_s = min(now, self._until_s)
        passed_s = until_s - self._at_s
        if passed_s <= 0:
            return
        self._at_s = until_s
        free, capacity = self._free, self.capacity
        self._used_vcore_s += passed_s * (capacity.vcores - free.vcores)
        self._used_device_s += passed_s * (capacity.gpu_memory_mib - free.gpu_memory_mib)
        counted = free.gpu_memory_mib if self._median.gpu_memory_mib else free.vcores
        self._free_s += passed_s * counted
        self._usable_s += passed_s * self._usable

    def _change(self, node: NodeName, unit: ResourceUnitId, held: Resources, sign: int) -> None:
        node_free = self._nodes_free[node]
        node_free.vcores += sign * held.vcores
        node_free.memory_mib += sign * held.memory_mib
        if held.gpu_memory_mib:
            node_free.device_mib[unit] += sign * held.gpu_memory_mib
        before, node_free.usable = node_free.usable, self._usable_of(node_free)
        self._usable += node_free.usable - before
        self._free = self._free + held if sign > 0 else self._free - held

    def _usable_of(self, node_free: _NodeFree) -> int:
        wanted = self._median
        fold = min(node_free.vcores // wanted.vcores, node_free.memory_mib // wanted.memory_mib)
        if not wanted.gpu_memory_mib:
            return fold * wanted.vcores
        on_gpus = sum(mib // wanted.gpu_memory_mib for mib in node_free.device_mib.values())
        return min(fold, on_gpus) * wanted.gpu_memory_mib
