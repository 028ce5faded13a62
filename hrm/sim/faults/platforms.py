"""Unlike platforms: which nodes are of which, and how fast each queue's tasks run there.

What the master would learn from task times is drawn here, anew for each reign and a few times
within one, so that divisions change while containers run, and rest in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hrm.core.vocabulary.columns import Floats
from hrm.sim.faults.plan import Plan, source

__all__ = ["DrawnRunTimes", "with_platforms"]

_NAMES = ("new", "old", "odd")


def with_platforms(plan: Plan) -> Plan:
    """The plan with nodes of two or three platforms, and bounds that are met within a run."""
    chance = source(plan.seed, "platforms")
    names = _NAMES[: chance.choice((2, 2, 3))]
    nodes = tuple(replace(node, platform=chance.choice(names)) for node in plan.nodes)
    bounds = replace(
        plan.bounds,
        platform_wait_s=chance.uniform(0.0, 4.0),
        platform_move_after_s=chance.uniform(1.0, 6.0),
        platform_moves=chance.random() < 0.8,
    )
    return replace(plan, nodes=nodes, bounds=bounds)


_LASTS = 12
"""Divisions in which nothing new is learned."""
_PHASES = 4


@dataclass
class DrawnRunTimes:
    """See ``hrm.core.tenancy.platform_division.RunTimes``; some are not known."""

    seed: int
    reign: int
    divisions: int = 0

    def run_times(
        self, queues: Mapping[str, Mapping[str, float]], platforms: Sequence[str]
    ) -> Floats:
        self.divisions += 1
        rows = [[self._time(queue, platform) for platform in platforms] for queue in queues]
        return np.array(rows, np.float64).reshape(len(queues), len(platforms))

    def _time(self, queue: str, platform: str) -> float:
        phase = min(self.divisions // _LASTS, _PHASES)
        chance = source(self.seed, f"run time {self.reign} {phase} {queue} {platform}")
        return float("nan") if chance.random() < 0.1 else chance.uniform(0.5, 5.0)
