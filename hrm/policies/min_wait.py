"""Least estimated wait: the placement of the HRM paper (section 4.2, algorithm 1).

The search order of units is the policy's to choose; this one rotates, so that the containers of a
job spread over nodes and parallel schedulers do not all begin at one unit. Waits are estimated only
when no unit is immediately feasible, for all units at once.
"""

from __future__ import annotations

import numpy as np

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.policies.placement_helpers import (
    by_score,
    first_row,
    in_turn_feasible,
    may_still_wait,
    queueable,
    with_nones,
)

__all__ = ["MinWait"]


class MinWait:
    """``index``: which scheduler it serves. Each begins at a place of its own in the table."""

    name = "min-wait"

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self._cursor: int | None = None

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries = placement.entries
        cursor = first_row(self._index, view) if self._cursor is None else self._cursor
        chosen, self._cursor = in_turn_feasible(view, placement, cursor, now)
        left = entries[len(chosen) :]
        if left:
            rows, waits = queueable(view, placement, now)
            shift = -int(np.searchsorted(rows, self._cursor))
            chosen += by_score(
                view,
                left,
                np.roll(rows, shift),
                np.roll(waits, shift),
                lambda row: may_still_wait(view, placement, row, now),
                now,
            )
        return with_nones(chosen, entries)
