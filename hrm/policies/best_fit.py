"""Best fit: the fullest immediately feasible unit, so that others stay free for large containers.

How full a unit is: the mean part in use of its vcores, memory, device memory and slots. The unit
that was fullest before it got a container is the fullest after it as well, so units are sorted once
and filled one after the other. If none is immediately feasible, containers wait at the unit with
the fewest waiters.
"""

from __future__ import annotations

import numpy as np

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.policies.placement_helpers import (
    immediately_feasible,
    in_order,
    to_shortest_queue,
    used_share,
    with_nones,
)

__all__ = ["BestFit"]


class BestFit:
    """Keeps nothing between rounds, so it is the same for every scheduler."""

    name = "best-fit"

    def __init__(self, index: int = 0) -> None:
        del index

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries = placement.entries
        rows = immediately_feasible(view, placement)
        fullest_first = rows[np.argsort(-used_share(view, rows), kind="stable")]
        chosen = in_order(view, placement.demand, entries, fullest_first, now)
        chosen += to_shortest_queue(view, placement, entries[len(chosen) :], now)
        return with_nones(chosen, entries)
