"""Least estimated wait: the placement of the HRM paper (section 4.2, algorithm 1).

The search order of units is the policy's to choose; this one rotates, so that the containers of a
job spread over nodes and parallel schedulers do not all begin at the same unit. Units with room are
found by vector operations on the whole table. Only when there is no room anywhere are waits
estimated, once per unit, and thereafter again only for the unit that a container was put on.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from hrm.core.estimate import simulate
from hrm.core.feasibility import fitting_rows
from hrm.core.model import WorkloadClass
from hrm.core.resource_unit import Entry
from hrm.core.scheduler import Placement
from hrm.core.shared_state import ClusterView

__all__ = ["MinWait"]


class MinWait:
    """``start``: where in the table this scheduler begins; schedulers get different ones."""

    name = "min-wait"

    def __init__(self, start: int = 0) -> None:
        self._cursor = start

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        rows: list[int | None] = []
        left = list(placement.entries)
        while left:
            room = self._rows_with_room(view, placement)[: len(left)]
            if len(room) == 0:
                break
            for row in room.tolist():
                view.apply(row, left.pop(0), now)
                rows.append(row)
            self._cursor = int(room[-1]) + 1
        rows.extend(self._place_waiting(view, placement, left, now))
        return rows

    def _rows_with_room(self, view: ClusterView, placement: Placement) -> np.ndarray:
        nobody_before = view.waiting_before(placement.workload_class) == 0
        room = view.open & nobody_before & fitting_rows(placement.demand, view.free)
        return self._rotate(np.flatnonzero(room))

    def _rotate(self, rows: np.ndarray) -> np.ndarray:
        return np.roll(rows, -int(np.searchsorted(rows, self._cursor)))

    def _place_waiting(
        self, view: ClusterView, placement: Placement, entries: list[Entry], now: float
    ) -> list[int | None]:
        """No unit has room: the least wait of those that still admit a waiter."""
        if not entries:
            return []
        admitting = (
            view.open
            & view.could_ever_fit(placement.demand)
            & (view.waiting < placement.waiting_limit)
        )
        order = self._rotate(np.flatnonzero(admitting)).tolist()
        heap = [
            (wait, index, row)
            for index, row in enumerate(order)
            if self._admits(wait := self._wait(view, placement, row, now), placement)
        ]
        heapq.heapify(heap)
        rows: list[int | None] = []
        for entry in entries:
            if not heap:
                rows.append(None)
                continue
            _, index, row = heapq.heappop(heap)
            view.apply(row, entry, now)
            rows.append(row)
            wait = self._wait(view, placement, row, now)
            if view.waiting[row] < placement.waiting_limit and self._admits(wait, placement):
                heapq.heappush(heap, (wait, index, row))
        return rows

    @staticmethod
    def _wait(view: ClusterView, placement: Placement, row: int, now: float) -> float:
        if placement.workload_class is WorkloadClass.STREAM:
            return float(view.waiting_stream[row])
        return simulate(placement.demand, view.image(row), now)

    @staticmethod
    def _admits(wait: float, placement: Placement) -> bool:
        if placement.workload_class is WorkloadClass.STREAM:
            return True
        return wait < placement.wait_max_s and not math.isinf(wait)
