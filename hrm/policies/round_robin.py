"""Round robin: one container to each unit in turn, first to those with room, then to wait.

The simplest policy that spreads. It looks at bounds, never at how long a wait would be, so it shows
what the estimate of ``min-wait`` is worth: the two differ only when no unit has room.
"""

from __future__ import annotations

from hrm.core.scheduler import Placement
from hrm.core.shared_state import ClusterView
from hrm.policies.spending import in_turn, in_turn_with_room, rows_that_let_wait, with_nones

__all__ = ["RoundRobin"]


class RoundRobin:
    """``start``: the row at which this scheduler begins."""

    name = "round-robin"

    def __init__(self, start: int = 0) -> None:
        self._cursor = start

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries = placement.entries
        chosen, self._cursor = in_turn_with_room(view, placement, self._cursor, now)
        waiting, self._cursor = in_turn(
            view,
            entries[len(chosen) :],
            lambda: rows_that_let_wait(view, placement, now)[0],
            self._cursor,
            now,
        )
        return with_nones(chosen + waiting, entries)
