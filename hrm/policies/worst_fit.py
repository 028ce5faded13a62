"""Worst fit: the emptiest feasible unit, so that load is level and containers interfere least.

How full a unit is: the mean part in use of its vcores, memory, device memory and slots. If none is
immediately feasible, containers wait at the unit with the fewest waiters.
"""

from __future__ import annotations

import numpy as np

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.vocabulary.feasibility import fits
from hrm.policies.placement_helpers import (
    by_score,
    immediately_feasible,
    to_shortest_queue,
    used_share,
    with_nones,
)

__all__ = ["WorstFit"]


class WorstFit:
    """Keeps nothing between rounds, so it is the same for every scheduler."""

    name = "worst-fit"

    def __init__(self, index: int = 0) -> None:
        del index

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries = placement.entries

        def again(row: int) -> tuple[bool, float]:
            feasible = fits(placement.demand, view.image(row).free)
            return feasible, float(used_share(view, np.array([row]))[0])

        rows = immediately_feasible(view, placement)
        scores = used_share(view, rows)
        chosen = by_score(view, entries, rows, scores, again, now, contended=placement.demand)
        chosen += to_shortest_queue(view, placement, entries[len(chosen) :], now)
        return with_nones(chosen, entries)
