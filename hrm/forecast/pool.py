"""How many nodes a volume of tasks needs, by how many a busy node has served.

``TasksPerNode`` follows how many tasks a node serves in an interval in which it is busy: an
exponentially weighted mean. The source divides by the nodes that are on; then every size of the
pool confirms itself, for half of the work on half of the nodes is as many tasks a node. Here it is
*busy* node time that counts, in which at least one container runs.

Source: RLPTO, eq. 2 and 3, and its pool that shrinks slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["RHO", "PoolBounds", "TasksPerNode", "pool_size"]

RHO = 0.8
"""How much of the past the mean keeps (the source's rho)."""
HEADROOM = 0.1
SHRINK_PART = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBounds:
    """Limits of a size. ``headroom``: nodes beyond what is needed, as a part of that;
    ``shrink_part``: of the present size, how much may go at once."""

    nodes_min: int = 0
    nodes_max: int = 1_000_000
    headroom: float = HEADROOM
    shrink_part: float = SHRINK_PART


@dataclass(slots=True, kw_only=True)
class TasksPerNode:
    """Tasks that a busy node serves in an interval; ``value``: None before the first observation,
    which is taken as it is."""

    rho: float = RHO
    value: float | None = None

    def observe(self, tasks: float, busy_nodes: float) -> None:
        """An interval in which ``tasks`` started, and ``busy_nodes`` nodes were busy in the mean
        (busy node time over the interval's length). One without either says nothing."""
        if not (math.isfinite(tasks) and math.isfinite(busy_nodes)):
            return
        if tasks <= 0 or busy_nodes <= 0:
            return
        seen = tasks / busy_nodes
        self.value = seen if self.value is None else self.rho * self.value + (1 - self.rho) * seen


def pool_size(
    tasks: float,
    tasks_per_node: float,
    bounds: PoolBounds | None = None,
    present: int | None = None,
) -> int:
    """Nodes for that many tasks in the next interval.

    ``present``: how many there are now; the result is not less than what may remain of them at
    once. None: it does not matter.
    """
    bounds = bounds or PoolBounds()
    needed = math.ceil(tasks / tasks_per_node * (1.0 + bounds.headroom) - 1e-9)
    if present is not None:
        needed = max(needed, present - math.floor(bounds.shrink_part * present))
    return min(max(needed, bounds.nodes_min), bounds.nodes_max)
