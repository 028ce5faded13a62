"""What a decision costs on the virtual clock.

Two models. ``Measured`` charges the CPU time that the production core has just used, times a scale:
results then depend on this machine and differ a little from run to run. ``Fixed`` charges a
constant for each event and each container in it: results are the same on every machine, to the bit.
``REFERENCE`` holds constants that were measured once; ``Fixed.scaled`` makes them those of a slower
or faster implementation.

CPU time of the thread is charged, not wall-clock time: the use of a shared machine by other
processes is not a property of a scheduler.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

__all__ = ["REFERENCE", "Cost", "CostModel", "Fixed", "Kind", "Measured", "Tally"]


class Kind(enum.Enum):
    """The kind of work, with the encoding of its messages. ``ROUND`` and ``COPY_TAKEN`` are the
    work of schedulers, ``CALL`` of both ends, all else the master's."""

    REQUEST = "request"
    ROUND = "round"
    COMMIT = "commit"
    REPORT = "report"
    HEARTBEAT = "heartbeat"
    UNITS_ENCODED = "units encoded"
    """Units that have changed, for the first message with them; other copies get the same bytes."""
    COPY_SENT = "copy sent"
    """A change of the state that goes to one scheduler, by units and jobs in it. ``REFERENCE`` has
    the core's collecting of it here; where costs are measured, the event has it that was before."""
    COPY_TAKEN = "copy taken in"
    CALL = "call"
    """A message between a scheduler's process and the master, written or read, by claims in it."""
    STORE = "store"
    """A row of the store; the disk itself is waited for elsewhere."""
    OTHER = "other"


class CostModel(Protocol):
    def charge_s(self, kind: Kind, containers: int, used_s: float) -> float:
        """What one event costs that concerned ``containers`` and used ``used_s`` of CPU here."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """The CPU time used here, times ``scale``."""

    scale: float = 1.0

    def charge_s(self, kind: Kind, containers: int, used_s: float) -> float:
        return self.scale * used_s


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds for an event, and for each container in it."""

    event_s: float
    container_s: float = 0.0


@dataclass(frozen=True)
class Fixed:
    """The same constants always. A kind that is not named costs nothing."""

    costs: Mapping[Kind, Cost]

    def charge_s(self, kind: Kind, containers: int, used_s: float) -> float:
        cost = self.costs.get(kind)
        return 0.0 if cost is None else cost.event_s + containers * cost.container_s

    def scaled(self, factor: float, kinds: Iterable[Kind] = tuple(Kind)) -> Fixed:
        """The same with ``kinds`` that many times as expensive."""
        dearer = frozenset(kinds)
        return Fixed(
            {
                kind: Cost(cost.event_s * factor, cost.container_s * factor)
                if kind in dearer
                else cost
                for kind, cost in self.costs.items()
            }
        )


@dataclass(slots=True)
class Tally:
    """Sums over one run: how often each kind occurred, for how many containers, its CPU time."""

    events: dict[Kind, int] = field(default_factory=dict)
    containers: dict[Kind, int] = field(default_factory=dict)
    used_s: dict[Kind, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.thread_time

    def add(self, kind: Kind, containers: int, used_s: float) -> None:
        self.events[kind] = self.events.get(kind, 0) + 1
        self.containers[kind] = self.containers.get(kind, 0) + containers
        self.used_s[kind] = self.used_s.get(kind, 0.0) + used_s

    def cost(self, kind: Kind, other: Tally) -> Cost:
        """The line through the means of two runs, with events of different sizes; a constant where
        sizes are alike, a larger event costs no more, or only one of them has the kind. Where the
        line begins below 0, the costs of ``other`` in proportion to size."""
        if not self.events.get(kind):
            return Cost(other.mean_s(kind))
        if not other.events.get(kind):
            return Cost(self.mean_s(kind))
        mean, size = self.mean_s(kind), self._size(kind)
        grown = other._size(kind) - size
        container_s = (other.mean_s(kind) - mean) / grown if abs(grown) >= 1 else 0.0
        if container_s <= 0:
            return Cost(other.mean_s(kind))
        if container_s * size > mean:
            return Cost(0.0, other.mean_s(kind) / other._size(kind))
        return Cost(mean - container_s * size, container_s)

    def _size(self, kind: Kind) -> float:
        return self.containers.get(kind, 0) / max(1, self.events.get(kind, 0))

    def mean_s(self, kind: Kind) -> float:
        """CPU seconds per event; 0 if there was none."""
        return self.used_s.get(kind, 0.0) / max(1, self.events.get(kind, 0))


REFERENCE = Fixed(
    MappingProxyType(
        {
            Kind.REQUEST: Cost(15.2e-6, 5.9e-6),
            Kind.ROUND: Cost(71.2e-6, 3.2e-6),
            Kind.COMMIT: Cost(36.0e-6, 15.4e-6),
            Kind.REPORT: Cost(24.7e-6),
            Kind.HEARTBEAT: Cost(25.3e-6, 8.1e-6),
            Kind.STORE: Cost(74.3e-6),
            Kind.OTHER: Cost(898e-6),
            Kind.UNITS_ENCODED: Cost(2.6e-6, 16.5e-6),
            Kind.COPY_SENT: Cost(69.9e-6, 4.2e-6),
            Kind.COPY_TAKEN: Cost(0.0, 27.7e-6),
            Kind.CALL: Cost(7.1e-6, 1.3e-6),
        }
    )
)
"""``python -m benchmarks.simulation.reference`` measures them: medians of five bursts of 180 jobs
of 1 and of 40 containers on 1,050 nodes, with messages and rows of the store (2 cores of an EPYC,
load 2, Python 3.11). Only their proportions count: every experiment multiplies all of them by a
factor that is fitted to the paper's delay."""
