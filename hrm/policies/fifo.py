"""First in, first out: first fit in row order, and nothing overtakes a container without a place.

No container waits at a unit, all wait with the scheduler until the first of them fits.
``strict_order`` makes the scheduler do its half: the oldest job blocks the others, streams before
batch. What it does not do: order jobs *across* schedulers; for one queue in the whole cluster run
one (``schedulers = 1``). A head that needs a node which has left blocks until a node like it
comes.
"""

from __future__ import annotations

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.policies.placement_helpers import immediately_feasible, in_order, with_nones

__all__ = ["Fifo"]


class Fifo:
    """Keeps nothing between rounds."""

    name = "fifo"
    strict_order = True

    def __init__(self, index: int = 0) -> None:
        del index

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        rows = immediately_feasible(view, placement)
        chosen = in_order(view, placement.demand, placement.entries, rows, now)
        return with_nones(chosen, placement.entries)
