"""How long containers run: an estimate from the past, and a bound on how many may wait.

Most applications come back every night, so how long their containers ran is the best estimate for
the next time (``RunTimeTable``): one row for each application name, user and resource profile. A
user who has not run an application gets the latest estimate of another who has. Batch applications
that succeeded count; how long one ran that did not is a lower bound, and counts where it is more
than was expected.

How fast a *unit* finishes containers (``FinishTimes``) bounds its queue, where ``waiting_bound`` is
``feedback``: between two heartbeats a unit of r slots finishes r*mu*tau containers, so r running
and b waiting ones cover exactly that time when r + b = r*mu*tau.

Means are geometric, since errors are relative: one run that takes ten times as long does not spoil
the estimate of the next.

Where submitters state how much their application reads (``spark.hrm.input.size``), run times
follow the size: in proportion until runs of several sizes have shown how steeply, a straight line
through logarithms.

Limits: the containers of one run are alike, so a run counts at least ``RUN_SHARE_MIN``, and the
past fades. Means of units fade after ``WEIGHT_MAX`` containers. Where no size is stated, none is
known before an application runs; while it does, ``hrm.core.master.run_time_corrections`` counts its
tasks. The length bound assumes like run times, and lets none wait where containers outlast a
heartbeat.

Source: HRM paper, section 3.4.2 (run times of recurring jobs; the static length, whose garbled
equation is read as r + b = r*mu*tau, rounded up and never negative).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TypeAlias

from hrm.core.vocabulary.model import ResourceUnitId

__all__ = ["FinishTimes", "RunTime", "RunTimeKey", "RunTimeTable", "length_bound", "lower_bounds"]

WEIGHT_MAX = 100
"""As many containers as the past counts for at most, in the means of units."""

RUN_SHARE_MIN = 0.15
"""What the latest run of an application counts for at least."""

LEAST_S = 0.001
"""Run times below count as this."""

PROPORTION_WEIGHT = 0.05
"""Of the assumption that run times are in proportion to inputs, as a variance of the logarithms of
sizes: runs that differ by a factor of 1.25 count as much."""

ELASTICITY_MAX = 2.0

SIZE_RATIO_MAX = 1_000.0
"""An input that differs by more from what has been seen counts as one that differs by this."""

RunTimeKey: TypeAlias = tuple[str, str, int]
"""Application name, user, resource profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """The mean run time of ``containers`` containers. Durable.

    ``input_bytes``: the mean size of what their runs read, 0 where none has stated it.
    ``input_variance``: of the logarithms of the sizes; ``input_covariance``: with the logarithms of
    run times.
    """

    name: str
    user: str
    resource_profile_id: int
    mean_s: float
    containers: int
    input_bytes: float = 0.0
    input_variance: float = 0.0
    input_covariance: float = 0.0

    @property
    def key(self) -> RunTimeKey:
        return (self.name, self.user, self.resource_profile_id)

    @property
    def elasticity(self) -> float:
        """The exponent of the input's size that run times follow, from 0 (none) to
        ``ELASTICITY_MAX``; 1 is in proportion."""
        shown = self.input_covariance + PROPORTION_WEIGHT
        return min(ELASTICITY_MAX, max(0.0, shown / (self.input_variance + PROPORTION_WEIGHT)))

    def expected_s(self, input_bytes: int) -> float:
        """How long a container runs, in seconds, if its run reads ``input_bytes`` (0: unknown)."""
        if not input_bytes or not self.input_bytes:
            return self.mean_s
        ratio = min(SIZE_RATIO_MAX, max(1 / SIZE_RATIO_MAX, input_bytes / self.input_bytes))
        return self.mean_s * float(ratio**self.elasticity)


class RunTimeTable:
    """Invariants: at most ``limit`` rows, the least recently used first. ``_latest`` has for each
    name and profile of ``rows``, and no others, a row's key: of the user who ran it last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows: OrderedDict[RunTimeKey, RunTime] = OrderedDict()
        self._latest: dict[tuple[str, int], RunTimeKey] = {}

    def find(self, key: RunTimeKey) -> RunTime | None:
        """The row of ``key``, else that of the latest user of this application."""
        name, _, profile = key
        if key not in self.rows:
            key = self._latest.get((name, profile), key)
        found = self.rows.get(key)
        if found is not None:
            self.rows.move_to_end(key)
        return found

    def put(self, row: RunTime) -> list[RunTimeKey]:
        """Keep a row; returns those that it displaced."""
        self.rows[row.key] = row
        self.rows.move_to_end(row.key)
        self._latest[row.name, row.resource_profile_id] = row.key
        displaced = []
        while len(self.rows) > self.limit:
            key, gone = self.rows.popitem(last=False)
            displaced.append(key)
            if self._latest.get((gone.name, gone.resource_profile_id)) == key:
                del self._latest[gone.name, gone.resource_profile_id]
        return displaced

    def learned(self, key: RunTimeKey, durations_s: list[float], input_bytes: int = 0) -> RunTime:
        """The row of ``key`` with these run times of a run, at least one, in it. ``put`` keeps it.

        ``input_bytes``: what the run read, 0 where it is not known.
        """
        known = self.rows.get(key)
        logs = [math.log(max(LEAST_S, duration_s)) for duration_s in durations_s]
        mean = sum(logs) / len(logs)
        if known is None:
            name, user, profile = key
            return RunTime(
                name=name,
                user=user,
                resource_profile_id=profile,
                mean_s=math.exp(mean),
                containers=len(logs),
                input_bytes=float(input_bytes),
            )
        containers = known.containers + len(logs)
        share = max(RUN_SHARE_MIN, len(logs) / containers)
        before = math.log(max(LEAST_S, known.mean_s))
        longer = mean - before
        row = replace(known, mean_s=math.exp(before + share * longer), containers=containers)
        if not input_bytes:
            return row
        if not known.input_bytes:
            return replace(row, input_bytes=float(input_bytes))
        larger = math.log(input_bytes / known.input_bytes)
        return replace(
            row,
            input_bytes=known.input_bytes * math.exp(share * larger),
            input_variance=(1 - share) * (known.input_variance + share * larger * larger),
            input_covariance=(1 - share) * (known.input_covariance + share * larger * longer),
        )


def lower_bounds(expected_s: float, durations_s: list[float]) -> list[float]:
    """Of run times that were cut short, those that show that ``expected_s`` is too little."""
    return [duration_s for duration_s in durations_s if duration_s > expected_s]


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
