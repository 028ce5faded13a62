"""Round robin: one container to each unit in turn, first where it starts at once, then to wait.

The simplest policy that spreads. It considers bounds, never the length of a wait, so it shows the
value of the estimate of ``min-wait``: the two differ only when no unit is immediately feasible.
"""

from __future__ import annotations

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.policies.placement_helpers import (
    first_row,
    in_turn,
    in_turn_feasible,
    queueable,
    with_nones,
)

__all__ = ["RoundRobin"]


class RoundRobin:
    """``index``: which scheduler it serves. Each begins at a place of its own in the table."""

    name = "round-robin"

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self._cursor: int | None = None

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries = placement.entries
        cursor = first_row(self._index, view) if self._cursor is None else self._cursor
        chosen, self._cursor = in_turn_feasible(view, placement, cursor, now)
        waiting, self._cursor = in_turn(
            view,
            entries[len(chosen) :],
            lambda: queueable(view, placement, now)[0],
            self._cursor,
            now,
        )
        return with_nones(chosen + waiting, entries)
