"""Least estimated wait: the placement of the HRM paper (section 4.2, algorithm 1).

The search order of units is the policy's to choose; this one rotates, so that the containers of a
job spread over nodes and parallel schedulers do not all begin at one unit. Waits are estimated only
when no unit is immediately feasible, for all units at once.

Nodes whose GPUs share the cores are filled one after the other instead: spread out, parts of GPUs
leave no whole one, and cores no GPU that one can use. They come last for what needs no GPU.
"""

from __future__ import annotations

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.policies.placement_helpers import (
    Ints,
    first_row,
    fullest_nodes_first,
    immediately_feasible,
    in_order,
    in_turn,
    in_turn_feasible,
    to_least_wait,
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
        if view.shares_cores:
            chosen, self._cursor = self._packed(view, placement, cursor, now)
        else:
            chosen, self._cursor = in_turn_feasible(view, placement, cursor, now)
        if left := entries[len(chosen) :]:
            chosen += to_least_wait(view, placement, left, self._cursor, now)
        return with_nones(chosen, entries)

    def _packed(
        self, view: ClusterView, placement: Placement, cursor: int, now: float
    ) -> tuple[list[int], int]:
        """The choice where some units share their cores: first units that do not, from row
        ``cursor`` on; then the fullest of the others. And the next cursor."""

        def alone() -> Ints:
            feasible = immediately_feasible(view, placement)
            rows: Ints = feasible[~view.shares[feasible]]
            return rows

        entries = placement.entries
        chosen, cursor = in_turn(view, entries, alone, cursor, now)
        if len(chosen) < len(entries):
            rows = immediately_feasible(view, placement)
            rows = fullest_nodes_first(view, rows, placement.demand)
            chosen += in_order(view, placement.demand, entries[len(chosen) :], rows, now)
        return chosen, cursor
