"""Fragmentation: a container goes where it makes the least of the free GPUs useless to others.

Useless is what the containers that usually come could not use, each weighed by how often it comes
(``unusable_share``, ``demand_mix``). Of all units where one would start at once, it gets that whose
pool of units loses the least to it: one that asks for many cores goes where GPUs are used up and
cores are left, one that asks for few to GPUs that have few, and a part of a GPU fills up another.

Where there is no GPU, this is ``min-wait``: on nodes without one, which what needs none gets first,
and where containers can only wait.

Each choice follows from what is free and from how often demands came, which what runs states again
after a restart. What is kept between rounds is a cache: for each demand the rises at all units,
of which those alone are found again whose pool has changed since.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.vocabulary.columns import Bools, Floats, Ints
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import WorkloadClass
from hrm.policies.demand_mix import DemandMix
from hrm.policies.min_wait import MinWait
from hrm.policies.placement_helpers import (
    GOLDEN_SECTION,
    first_row,
    immediately_feasible,
    in_turn,
    to_least_wait,
    with_nones,
)
from hrm.policies.unusable_share import UnusableShare

__all__ = ["Fragmentation"]

_CELLS_MAX = 4_000_000
"""Rises that are kept, of all demands together: 32 MB."""
_FEW_LINES = 128


class Fragmentation:
    """``index``: which scheduler it serves. Of nodes that are alike, each begins with others."""

    name = "fragmentation"

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self._elsewhere = MinWait(index)
        self._cursor: int | None = None
        self._mix: DemandMix | None = None
        self._rises: _Rises | None = None

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        rises = self._followed(view)
        if rises is None:
            return self._elsewhere.place(view, placement, now)
        entries, demand, mix = placement.entries, placement.demand, self._mix
        assert mix is not None, "there is one where there are GPUs"
        mix.count(demand, entries)
        if mix.settle():
            rises.weigh(mix.weights)
        cursor = first_row(self._index, view) if self._cursor is None else self._cursor
        chosen: list[int] = []
        if rises.others and not demand[Column.GPU_MEMORY_MIB]:
            without = partial(rises.without_gpus, view, placement)
            chosen, self._cursor = in_turn(view, entries, without, cursor, now)
        chosen += rises.least_first(view, placement, entries[len(chosen) :], self._index, now)
        chosen += to_least_wait(view, placement, entries[len(chosen) :], cursor, now)
        return with_nones(chosen, entries)

    def _followed(self, view: ClusterView) -> _Rises | None:
        """The rises at the units of this view as it is now; None where there is no GPU."""
        if self._rises is None or not self._rises.is_of(view):
            self._rises = _Rises(view, {} if self._mix is None else self._mix.weights)
        if not len(self._rises.share):
            return None
        if self._mix is None:
            self._mix = DemandMix(self._rises.share.whole_gpus(view))
            self._mix.count_running(view)
        self._rises.follow(view)
        return self._rises


class _Rises:
    """By how much the unusable share rises at each unit of a view, for the demands that come.
    ``others``: are there units without a GPU near?

    Invariants: ``_free`` is what was free at each row when it was looked at for the last time, and
    ``_changed`` the tick at which that changed last in each line of ``share``; lines with the same
    number in ``_alike`` have the same units, with as much free. ``_known`` has the rises for some
    demands, the least of each line, and the tick at which they were right.
    """

    def __init__(self, view: ClusterView, weights: Mapping[Vector, float]) -> None:
        self.share = UnusableShare(view)
        self.others = bool((view.total[self.share.line_of < 0] > 0).any())
        self._layout = _layout(view)
        self._free: Ints = view.free.copy()
        self._view = weakref.ref(view)
        self._mark = -1
        self._tick = 0
        self._alike: Ints = np.zeros(len(self.share), np.int64)
        self._tell_apart(np.arange(len(self.share)))
        self.weigh(weights)

    def is_of(self, view: ClusterView) -> bool:
        """Has this view the units of the one that this was made for?"""
        layout = _layout(view)
        if all(a is b for a, b in zip(layout, self._layout, strict=True)):
            return True
        self._layout, before = layout, self._layout
        return all(np.array_equal(a, b) for a, b in zip(layout, before, strict=True))

    def weigh(self, weights: Mapping[Vector, float]) -> None:
        """Measure by another mix of demands."""
        self.share.weigh(weights)
        self._changed: Ints = np.full(len(self.share), self._tick, np.int64)
        self._known: OrderedDict[Vector, tuple[int, Floats, Floats]] = OrderedDict()

    def follow(self, view: ClusterView) -> None:
        """Look at what is free now, where it may have changed."""
        mark = self._mark if self._view() is view else -1
        self._mark, changed = view.changed_since(mark)
        self._view = weakref.ref(view)
        free = view.free
        rows = np.arange(len(free)) if changed is None else np.array(changed, np.int64)
        if len(rows):
            rows = rows[(free[rows] != self._free[rows]).any(axis=1)]
        if len(rows):
            lines = np.unique(self.share.line_of[rows])
            self._look(free, rows, lines[lines >= 0])

    def without_gpus(self, view: ClusterView, placement: Placement) -> Ints:
        """Rows of nodes without a GPU at which one would start at once."""
        rows = immediately_feasible(view, placement)
        return rows[self.share.line_of[rows] < 0]

    def least_first(
        self,
        view: ClusterView,
        placement: Placement,
        entries: Sequence[Entry],
        index: int,
        now: float,
    ) -> list[int]:
        """Each entry where the share rises least; of pools that are alike to the next, from one on
        that is the scheduler's own. Fewer than all where no row has capacity for more."""
        first = int(index * GOLDEN_SECTION % 1.0 * len(self.share))
        chosen: list[int] = []
        for entry in entries:
            row = self._least(view, placement, first)
            if row is None:
                break
            view.apply(row, entry, now)
            chosen.append(row)
            line = self.share.line_of[row : row + 1]
            self._look(view.free, self.share.rows[line[0]], line)
        return chosen

    def _least(self, view: ClusterView, placement: Placement, first: int) -> int | None:
        """The row with the least rise of those that are open and where nothing waits before; None:
        there is none."""
        rises, least = self._of(placement.demand)
        line = _first_least(least, first)
        unit = int(rises[line].argmin())
        row = int(self.share.rows[line, unit])
        if math.isinf(least[line]):
            return None
        stream = placement.workload_class is WorkloadClass.STREAM
        if view.open[row] and not (view.waiting_stream[row] if stream else view.waiting_at(row)):
            return row
        usable = view.open & (view.waiting_before(placement.workload_class) == 0)
        rises = np.where(usable[self.share.rows], rises, np.inf)
        line = _first_least(rises.min(axis=1), first)
        unit = int(rises[line].argmin())
        return None if math.isinf(rises[line, unit]) else int(self.share.rows[line, unit])

    def _look(self, free: Ints, rows: Ints, lines: Ints) -> None:
        """What is free has changed at these rows, which are in these lines or in none."""
        self._free[rows] = free[rows]
        self._tick += 1
        self._changed[lines] = self._tick
        self._tell_apart(lines)

    def _tell_apart(self, lines: Ints) -> None:
        """Bring ``_alike`` up to date: a digest, which does not differ between two processes."""
        for line in lines.tolist():
            free = self._free[self.share.rows[line]].tobytes()
            digest = hashlib.blake2b(free, key=self.share.units[line], digest_size=8).digest()
            self._alike[line] = int.from_bytes(digest, "little", signed=True)

    def _of(self, demand: Vector) -> tuple[Floats, Floats]:
        """The rise at each unit, infinite where one cannot start, and the least of each line."""
        tick, rises, least = self._known.pop(demand, (-1, None, None))
        if rises is None or least is None:
            rises, least = np.empty(self.share.rows.shape), np.empty(len(self.share))
        lines = (self._changed > tick).nonzero()[0]
        if len(lines) > _FEW_LINES:  # many of which are alike, as nodes that are idle
            _, first, same = np.unique(self._alike[lines], return_index=True, return_inverse=True)
            rises[lines] = found = self.share.rises(lines[first], demand, self._free)[same]
            least[lines] = found.min(axis=1)
        elif len(lines):
            rises[lines] = found = self.share.rises(lines, demand, self._free)
            least[lines] = found.min(axis=1)
        self._known[demand] = self._tick, rises, least
        if len(self._known) > max(1, _CELLS_MAX // rises.size):
            self._known.popitem(last=False)
        return rises, least


def _first_least(values: Floats, first: int) -> int:
    """Where the least value is; of several the next from ``first`` on."""
    at = int(values[first:].argmin()) + first
    before = int(values[:first].argmin()) if first else at
    return before if values[before] < values[at] else at


def _layout(view: ClusterView) -> tuple[Ints, Ints, Ints, Bools]:
    return view.total, view.pool, view.gpus, view.gpu_only
