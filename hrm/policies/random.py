"""At random: uniform over immediately feasible units; if there are none, over queueable ones.

The baseline that every other policy has to beat. It is also how parallel schedulers best avoid
conflicts without communication: two of them seldom draw the same unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.vocabulary.feasibility import fits
from hrm.policies.placement_helpers import (
    Ints,
    immediately_feasible,
    may_still_wait,
    queueable,
    with_nones,
)

__all__ = ["Random"]

_SEED = 20221233


class Random:
    """``index``: which scheduler it serves. Each has a stream of numbers of its own, and the same
    one in every run."""

    name = "random"

    def __init__(self, index: int = 0) -> None:
        self._generator = np.random.default_rng([_SEED, index])

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries, demand = placement.entries, placement.demand
        chosen = self._draw(
            view,
            entries,
            immediately_feasible(view, placement),
            lambda row: fits(demand, view.image(row).free),
            now,
        )
        left = entries[len(chosen) :]
        if left:
            chosen += self._draw(
                view,
                left,
                queueable(view, placement, now)[0],
                lambda row: may_still_wait(view, placement, row, now)[0],
                now,
            )
        return with_nones(chosen, entries)

    def _draw(
        self,
        view: ClusterView,
        entries: Sequence[Entry],
        rows: Ints,
        admits: Callable[[int], bool],
        now: float,
    ) -> list[int]:
        """Draw a row for each entry; a row that admits no more is taken out of the urn."""
        urn = rows.tolist()
        chosen: list[int] = []
        for entry in entries:
            if not urn:
                break
            index = int(self._generator.integers(len(urn)))
            row = urn[index]
            view.apply(row, entry, now)
            chosen.append(row)
            if not admits(row):
                urn[index] = urn[-1]
                urn.pop()
        return chosen
