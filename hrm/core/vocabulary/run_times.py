"""How long containers run: an estimate from the past, and a bound on how many may wait.

Most applications come back every night, so how long their containers ran is the best estimate for
the next time (``RunTimeTable``): one row for each application name, user and resource profile. Only
batch applications that succeeded count.

How fast a *unit* finishes containers (``FinishTimes``) bounds its queue, where ``waiting_bound`` is
``feedback``: between two heartbeats a unit of r slots finishes r*mu*tau containers, so r running
and b waiting ones cover exactly that time when r + b = r*mu*tau.

Limits: means weigh the past evenly up to ``WEIGHT_MAX`` containers and fade it after; the length
bound assumes like run times, and lets none wait where containers outlast a heartbeat.

Source: HRM paper, section 3.4.2 (run times of recurring jobs; the static length, whose garbled
equation is read as r + b = r*mu*tau, rounded up and never negative).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from hrm.core.vocabulary.model import ResourceUnitId

__all__ = ["FinishTimes", "RunTime", "RunTimeKey", "RunTimeTable", "length_bound"]

WEIGHT_MAX = 100
"""As many containers as the past counts for at most."""

RunTimeKey: TypeAlias = tuple[str, str, int]
"""Application name, user, resource profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """The mean run time of ``containers`` containers. Durable."""

    name: str
    user: str
    resource_profile_id: int
    mean_s: float
    containers: int

    @property
    def key(self) -> RunTimeKey:
        return (self.name, self.user, self.resource_profile_id)


class RunTimeTable:
    """Invariant: at most ``limit`` rows, the least recently used first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows: OrderedDict[RunTimeKey, RunTime] = OrderedDict()

    def find(self, key: RunTimeKey) -> RunTime | None:
        found = self.rows.get(key)
        if found is not None:
            self.rows.move_to_end(key)
        return found

    def put(self, row: RunTime) -> list[RunTimeKey]:
        """Keep a row; returns those that it displaced."""
        self.rows[row.key] = row
        self.rows.move_to_end(row.key)
        displaced = []
        while len(self.rows) > self.limit:
            displaced.append(self.rows.popitem(last=False)[0])
        return displaced

    def learned(self, key: RunTimeKey, durations_s: list[float]) -> RunTime:
        """The row of ``key`` with these run times, at least one, in it. ``put`` keeps it."""
        known = self.rows.get(key)
        mean_s, containers = (known.mean_s, known.containers) if known else (0.0, 0)
        for duration_s in durations_s:
            weight = min(containers, WEIGHT_MAX - 1)
            mean_s = (weight * mean_s + duration_s) / (weight + 1)
            containers += 1
        name, user, profile = key
        return RunTime(
            name=name, user=user, resource_profile_id=profile, mean_s=mean_s, containers=containers
        )


def length_bound(slots: int, mu_per_s: float, tau_s: float) -> int:
    """b of r + b = r*mu*tau: how many may wait at a unit of r ``slots``, each of which finishes
    ``mu_per_s`` containers a second, reported every ``tau_s`` seconds."""
    return max(0, math.ceil(slots * (mu_per_s * tau_s - 1)))


class FinishTimes:
    """Mean run times of the containers that each unit has finished. No more rows than units."""

    def __init__(self, default_s: float) -> None:
        self.default_s = default_s
        self._means: dict[ResourceUnitId, tuple[float, int]] = {}

    def finished(self, unit_id: ResourceUnitId, duration_s: float) -> None:
        mean_s, containers = self._means.get(unit_id, (0.0, 0))
        weight = min(containers, WEIGHT_MAX - 1)
        self._means[unit_id] = ((weight * mean_s + duration_s) / (weight + 1), weight + 1)

    def forget(self, unit_id: ResourceUnitId) -> None:
        self._means.pop(unit_id, None)

    def rate_per_s(self, unit_id: ResourceUnitId) -> float:
        """mu: containers that one slot of the unit finishes a second."""
        mean_s, _ = self._means.get(unit_id, (self.default_s, 0))
        return 1.0 / max(mean_s, 0.001)
