"""What one scheduler sees of the shared state, and may reserve tentatively while it places a job.

A view is a copy, but not a new one for each round: ``renew`` copies the rows that have changed
since the last one. Unit images are read on demand, and then include what the round has already
placed there.

Source: HRM paper, section 4.3.2 (a scheduler matches on a copy of the state).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hrm.core.messages.claims import Entry
from hrm.core.queue.estimate import simulate
from hrm.core.queue.start_rule import UnitImage
from hrm.core.queue.yielding import spare
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.columns import (
    FREE,
    STREAM_HEADROOM,
    VERSION,
    WAITING_BATCH,
    WAITING_STREAM,
    Bools,
    Floats,
    Ints,
    TableColumns,
)
from hrm.core.vocabulary.feasibility import (
    Column,
    Vector,
    fits,
    fitting_rows,
    folds,
    leaves,
    minus,
    pooled_part,
    serving_rows,
)
from hrm.core.vocabulary.model import NodeName, ResourceUnitId, WorkloadClass
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["ClusterView"]

_SPAN = 512
_FEW = 4
_JOURNAL_MIN = 4_096
_SPARE_MAX = 64
"""Units with waiters that are examined for one demand of what yields, in one round."""


class ClusterView(TableColumns):
    """One scheduler's copy of the state, for tentative reservations while it places a job.

    ``apply`` takes a placement off the copy, so that the next container of the job sees it. The
    state itself is untouched, and the columns are read-only; images are immutable, too. A view is
    for one round: unit images are read on demand. ``renew`` prepares it for the next round, at the
    cost of what has changed.

    Attributes, each with one row a unit: ``free``, ``total`` and ``stream_headroom`` (what the
    streams of the unit leave to one more, see ``UnitQueue``), shape (rows, 4) in the order of
    ``feasibility.DIMENSIONS``; ``waiting_stream``, ``waiting_batch``, ``waiting_limit``,
    ``version``, ``gpu_only``, ``gpus``, ``preempts`` (batch, for streams that wait), ``shares``
    (cores and memory, with other units) and ``open``, shape (rows,). Rows that are not open to the
    demand being placed, or that the round may not use, are closed: see ``open_to`` and
    ``keep_open``. ``yielding_rows``: where containers would end for others.
    """

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._images: dict[int, UnitImage] = {}
        self._added: dict[int, list[tuple[Entry, bool]]] = {}
        self._together: list[tuple[list[int], Sequence[Entry], float]] = []
        self._reduced: set[int] = set()
        self._journal: list[int] = []
        self._journal_start = 0
        self._journals = False
        self._coming: Ints | None = None
        self._spare: dict[int, Vector] = {}
        self._supposed: _Supposed | None = None
        self._copy()

    def _copy(self) -> None:
        state = self._state
        self._table = state.table.copy()
        self._sealed = _sealed(self._table.view())
        self.total = _sealed(state.total.copy())
        self.gpu_only = _sealed(state.gpu_only.copy())
        self.shares = _sealed(state.shares.copy())
        self.gpus = _sealed(state.gpus.copy())
        self.preempts = _sealed(state.preempts.copy())
        self.open = self._open = _sealed(state.open.copy())
        self._pool = _sealed(state.pool.copy())
        self._avoided: Bools | None = None
        self._suited: Bools | None = None
        self._allowed = self._open
        self._kinds = bool(self.gpu_only.any() or (self.gpus > 1).any())
        self._shape = state.shape
        self._position = state.log_start + len(state.log)
        self._forget_changes()
        self.yielding_rows = state.yielding_rows

    @property
    def table(self) -> Ints:
        return self._sealed

    def renew(self) -> None:
        """Bring the view up to date, and undo its tentative reservations."""
        state, table = self._state, self._state.table
        self._coming = self._supposed = None
        if self._spare:
            self._spare.clear()
        self._images.clear()
        self._added.clear()
        self._together.clear()
        behind = self._position - state.log_start
        if self._shape != state.shape or behind < 0:
            self._reduced.clear()
            self._copy()
            return
        self._reduced.update(state.log[behind:])
        if self._reduced:
            if len(self._reduced) <= _FEW:
                for row in self._reduced:
                    self._table[row] = table[row]
            else:
                rows = list(self._reduced)
                self._table[rows] = table[rows]
            if self._journals:
                self._journal += self._reduced
                if len(self._journal) > self._journal_max:
                    self._forget_changes()
            self._reduced.clear()
        self._position = state.log_start + len(state.log)
        self._avoided = self._suited = None
        self.open = self._allowed = self._open

    def _forget_changes(self) -> None:
        self._journal_start += len(self._journal) + 1
        self._journal_max = max(_JOURNAL_MIN, 2 * len(self._table))
        self._journal.clear()

    def changed_since(self, mark: int) -> tuple[int, list[int] | None]:
        """Rows of ``table`` that may have changed since this method returned ``mark``, with those
        of which the change was undone; None: any may have, as at first (``mark`` -1). And the mark
        for the next time. Marks are of one view."""
        self._journals = True  # of views that nobody asks nothing is kept
        since, end = mark - self._journal_start, self._journal_start + len(self._journal)
        return end, [*self._journal[since:], *self._reduced] if since >= 0 else None

    def follow(self, other: ClusterView) -> None:
        """Be as ``other``, a view of the same state, is now, with its tentative reservations, what
        it supposes and the rows that it has closed; without sharing anything that either may
        write."""
        assert other._state is self._state, "a view follows others of its own state"
        self.renew()
        if other._reduced:
            rows = list(other._reduced)
            self._table[rows] = other._table[rows]
            self._reduced.update(rows)
        self._images.update(other._images)
        self._added.update((row, list(added)) for row, added in other._added.items())
        self._together.extend(other._together)
        self._avoided, self._suited = other._avoided, other._suited
        self._coming = None if other._coming is None else other._coming.copy()
        self._spare.update(other._spare)
        self._supposed = other._supposed
        self._allowed = _sealed(other._allowed.copy())
        self.open = _sealed(other.open.copy())

    def is_of(self, other: ClusterView) -> bool:
        """Is this a view of the same state as ``other``?"""
        return self._state is other._state

    def fork(self) -> ClusterView:
        """Another view, which is as this one is now."""
        made = ClusterView(self._state)
        made.follow(self)
        return made

    def avoid(self, nodes: frozenset[NodeName]) -> None:
        """Close the rows of these nodes to every demand that an open row of another could hold."""
        self._avoided = self._state.rows_of(nodes)

    def require(self, requirement: NodeRequirement) -> None:
        """Close the rows of nodes that do not meet this requirement, whatever others are left."""
        if self._state.restricts(requirement):
            self._suited = self._state.suited(requirement)
            self.keep_rows(self._suited)

    def open_only(self, nodes: Iterable[NodeName], demand: Vector) -> bool:
        """Close the rows of all other nodes; ``open_to`` opens them again. False: none of those
        left could ever hold ``demand``."""
        return self._open_among(self._state.rows_of(frozenset(nodes)), demand)

    def open_at(self, platform: str, demand: Vector) -> bool:
        """The same for the rows of nodes of other platforms."""
        return self._open_among(self._state.rows_at(platform), demand)

    def _open_among(self, rows: Bools, demand: Vector) -> bool:
        self.open = _sealed(self.open & rows)
        return bool((self.open & self.could_ever_fit(demand)).any())

    def open_to(self, demand: Vector) -> None:
        """Close the rows that hold cores for a GPU to a demand without need of one, those that have
        another number of GPUs than it is to use, and those to be avoided; open others."""
        self.open = self._allowed
        if self._kinds or demand[Column.SLOTS] > 1 or self._avoided is not None:
            self.open = _sealed(self._allowed & self._useful(demand))

    def _useful(self, demand: Vector) -> Bools:
        """Rows that are not kept for containers of another kind than this, nor to be avoided."""
        rows = serving_rows(demand, self.gpus, self.gpu_only)
        if self._avoided is None:
            return rows
        rest = rows & ~self._avoided
        others = rest & self._open & self.could_ever_fit(demand)
        if self._suited is not None:
            others &= self._suited
        return rest if others.any() else rows

    @property
    def waiting(self) -> Ints:
        return self.waiting_stream + self.waiting_batch

    def waiting_at(self, row: int) -> int:
        return int(self.waiting_stream[row] + self.waiting_batch[row])

    def waits_s(self, demand: Vector, rows: Ints, now: float, run_s: float = math.inf) -> Floats:
        """Estimated seconds until a new batch container that runs for ``run_s`` would start at
        each of ``rows``.

        Algorithm 1 for all of them at once; the same shape as ``rows``.
        """
        waits = self._state.waits_s(demand, rows, now, run_s)
        self._part()
        changed = [*self._images, *self._added]
        if changed:
            for index in np.flatnonzero(np.isin(rows, changed)).tolist():
                waits[index] = self.wait_s(demand, int(rows[index]), now, run_s)
        return waits

    def wait_s(self, demand: Vector, row: int, now: float, run_s: float = math.inf) -> float:
        """The same for one row."""
        return simulate(demand, self.image(row), now, run_s)

    def refusal(self, row: int, demand: Vector) -> str:
        """See ``SharedState.refusal``; reads the state, whatever was written into this view, and
        ``require``."""
        why = self._state.refusal(row, demand)
        if not why and self._suited is not None and not self._suited[row]:
            return f"row {row} is closed: its node does not meet the application's requirement"
        return why

    def siblings(self, row: int) -> list[int]:
        """Rows of the other units that share this row's vcores and memory."""
        return self._state.siblings(row)

    def unit_id(self, row: int) -> ResourceUnitId:
        return self._state.queue(row).unit.unit_id

    @property
    def units(self) -> int:
        """How many rows are in use."""
        return len(self._state.rows)

    @property
    def pool(self) -> Ints:
        """The same number for rows whose units share cores and memory; shape (rows,)."""
        return self._pool

    @property
    def shares_cores(self) -> bool:
        """Are there units that share cores and memory?"""
        return self._state.pools > 0

    def unit_ids(self, rows: Iterable[int]) -> list[ResourceUnitId]:
        """Of rows that are all in use."""
        ids = self._state.ids
        return [ids[row] for row in rows]

    def versions(self, rows: Sequence[int]) -> list[int]:
        """The version of each row."""
        if len(rows) <= _FEW:
            return [self._table.item(row, VERSION) for row in rows]
        versions: list[int] = self._table[rows, VERSION].tolist()
        return versions

    def may_propose(self, chosen: Sequence[int], demand: Vector) -> bool:
        """Is ``refusal`` empty for every one of these rows?"""
        state = self._state
        if len(chosen) <= _FEW:
            refusal = state.refusal if self._suited is None else self.refusal
            return not any(refusal(row, demand) for row in chosen)
        rows = np.array(chosen, np.int64)
        if rows.min() < 0 or rows.max() >= len(state.open) or not state.open[rows].all():
            return False
        if self._suited is not None and not self._suited[rows].all():
            return False
        if not serving_rows(demand, state.gpus[rows], state.gpu_only[rows]).all():
            return False
        return bool(fitting_rows(demand, state.total[rows]).all())

    def immediately_feasible(
        self, demand: Vector, workload_class: WorkloadClass, first: int, many: int
    ) -> Ints:
        """The first ``many`` rows, from row ``first`` on and round, at which one would start at
        once.

        Examines a few rows, then more: where there is capacity it is found soon.
        """
        found: list[Ints] = []
        left = many
        for start, stop in _spans(first, len(self.open)):
            rows = self._feasible_now(demand, workload_class, start, stop)[:left]
            if len(rows):
                found.append(rows)
                left -= len(rows)
            if left <= 0:
                break
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def still_feasible(self, demand: Vector, rows: Ints) -> Ints:
        """Those of ``rows`` that have capacity for one more, in their order, where each had it and
        has since got containers that started at once, and nothing else."""
        return rows[fitting_rows(demand, self._table[rows, FREE])]

    def _feasible_now(
        self, demand: Vector, workload_class: WorkloadClass, start: int, stop: int
    ) -> Ints:
        """Rows from ``start`` to ``stop`` at which one would start at once, in row order."""
        part = self._table[start:stop]
        stream = workload_class is WorkloadClass.STREAM
        feasible: Bools = part[:, 0] >= demand[0]
        rows: Ints = feasible.nonzero()[0]
        if len(rows) <= _FEW:  # of a cluster that is full
            rows += start
            for row in rows.tolist():
                if not self._is_feasible(row, demand, stream):
                    rows = rows[rows != row]
            return rows
        feasible &= self.open[start:stop]
        feasible &= part[:, WAITING_STREAM] == 0
        if not stream:
            feasible &= part[:, WAITING_BATCH] == 0
        for dimension, wanted in enumerate(demand):
            if dimension and wanted:
                feasible &= part[:, dimension] >= wanted
        rows = feasible.nonzero()[0]
        rows += start
        return rows

    def _is_feasible(self, row: int, demand: Vector, stream: bool) -> bool:
        """Would one start at this row at once?"""
        numbers = self._table[row].tolist()
        waits = numbers[WAITING_STREAM] or (numbers[WAITING_BATCH] and not stream)
        return not waits and bool(self.open[row]) and leaves(numbers[FREE], demand)

    def image(self, row: int) -> UnitImage:
        """The unit's queues as this view has them."""
        self._part()
        image = self._images.get(row)
        if image is None:
            image = self._state.queue(row).image()
        for entry, runs in self._added.pop(row, ()):
            image = image.with_one(entry, runs=runs)
            self._images[row] = image
        return image

    def apply(self, row: int, entry: Entry, now: float) -> bool:
        """Put a container on a unit of this view; True if it would run at once, False if wait."""
        self._part()
        numbers = self._table[row]
        free, waiting_stream, waiting_batch = (
            numbers[FREE].tolist(),
            numbers[WAITING_STREAM],
            numbers[WAITING_BATCH],
        )
        stream = entry.workload_class is WorkloadClass.STREAM
        demand = entry.demand
        at_once = not waiting_stream and (stream or not waiting_batch) and fits(demand, tuple(free))
        self._reduced.add(row)
        if stream:
            self._take_stream_headroom(row, demand)
        if at_once:
            self._take(row, entry.started(now))
        else:
            self._added.setdefault(row, []).append((entry, False))
            self._table[row, WAITING_STREAM if stream else WAITING_BATCH] += 1
        return at_once

    def apply_all(self, rows: Ints, entries: Sequence[Entry], now: float) -> bool:
        """Put one of ``entries``, all of one demand, on each of ``rows``, all of which have
        capacity, none twice. False, and nothing is done, where units share cores: what one takes is
        gone from others."""
        if self._state.pools:
            return False
        demand = np.asarray(entries[0].demand, np.int64)
        numbers = rows.tolist()
        for each in numbers if len(numbers) <= _FEW else (rows,):
            self._table[each, FREE] -= demand
            if entries[0].workload_class is WorkloadClass.STREAM:
                self._table[each, STREAM_HEADROOM] -= demand
        self._reduced.update(numbers)
        self._together.append((numbers, entries, now))
        return True

    def give_back(self, row: int, demand: Vector) -> None:
        """Count what one that runs at ``row`` holds as free, in every unit that shares its cores;
        not in unit images."""
        self._reduced.add(row)
        self._table[row, FREE] += np.asarray(demand, np.int64)
        for sibling in self.siblings(row) if self._state.pools else ():
            self._table[sibling, FREE] += np.asarray(pooled_part(demand), np.int64)
            self._reduced.add(sibling)

    def suppose_yielded(self) -> None:
        """Until ``resume``, as if containers that yield had ended, and what waits for that had
        started; other rows are closed."""
        if self._coming is None:
            self._coming = self._state.coming.copy()
        rows = np.flatnonzero(self._coming.any(axis=1))
        self._suppose(rows, self._table[rows, FREE] + self._coming[rows])

    def suppose_last(self, demand: Vector, now: float) -> bool:
        """Until ``resume``, as one that yields finds units where others wait for more than is free
        (``yielding.spare``); other rows are closed. False, and nothing is done, where ``demand``
        fits into none of them."""
        rows = self.open & (self.waiting_batch > 0) & (self.waiting_stream == 0)
        rows &= fitting_rows(demand, self.free)
        found = []
        for row in np.flatnonzero(rows)[:_SPARE_MAX].tolist():
            if row not in self._spare:
                self._spare[row] = spare(self._state.queue(row), now)
            if leaves(self._spare[row], demand):
                found.append(row)
        if found:
            self._suppose(np.array(found, np.int64), np.array([self._spare[x] for x in found]))
        return bool(found)

    def _suppose(self, rows: Ints, free: Ints) -> None:
        """Until ``resume``, as if nothing waited at ``rows``, and this were free there."""
        self._part()
        added = {row: list(entries) for row, entries in self._added.items()}
        numbers = self._table[rows]
        self._supposed = _Supposed(rows, numbers, added, dict(self._images), self.open)
        self._table[rows, FREE] = free
        self._table[rows, WAITING_STREAM] = self._table[rows, WAITING_BATCH] = 0
        self._reduced.update(rows.tolist())
        chosen = np.zeros_like(self.open)
        chosen[rows] = True
        self.open = _sealed(self.open & chosen)

    def resume(self, placed: Iterable[tuple[int, Entry]], now: float) -> None:
        """As it is again; ``placed``, which start as supposed, wait at their rows."""
        supposed = self._supposed
        assert supposed is not None, "a supposition goes before"
        self._supposed = None
        self._together.clear()
        self._table[supposed.rows] = supposed.numbers
        self._added, self._images, self.open = supposed.added, supposed.images, supposed.open
        for row, entry in placed:
            self._count_supposed(row, entry.demand, yields=entry.yields_now)
            for sibling in self.siblings(row) if self._state.pools else ():
                self._count_supposed(sibling, pooled_part(entry.demand), yields=entry.yields_now)
            self.apply(row, entry, now)

    def _count_supposed(self, row: int, part: Vector, *, yields: bool) -> None:
        """So much less is there for the next supposition of this round."""
        if not yields:
            assert self._coming is not None, "suppose_yielded goes before"
            self._coming[row] -= np.asarray(part, np.int64)
        elif row in self._spare:
            self._spare[row] = minus(self._spare[row], part)

    def _part(self) -> None:
        """Split by row what came together: few rounds need it."""
        for rows, entries, now in self._together:
            for row, entry in zip(rows, entries, strict=True):
                self._added.setdefault(row, []).append((entry.started(now), True))
        self._together.clear()

    def _take_stream_headroom(self, row: int, demand: Vector) -> None:
        self._table[row, STREAM_HEADROOM] -= np.asarray(demand, np.int64)
        for sibling in self.siblings(row) if self._state.pools else ():
            self._table[sibling, STREAM_HEADROOM] -= np.asarray(pooled_part(demand), np.int64)
            self._reduced.add(sibling)

    def _take(self, row: int, entry: Entry) -> None:
        """What starts at ``row`` is gone from every unit that shares its cores."""
        self._added.setdefault(row, []).append((entry, True))
        self._table[row, FREE] -= np.asarray(entry.demand, np.int64)
        siblings = self.siblings(row) if self._state.pools else []
        if siblings:
            part = entry.pooled()
            self._table[siblings, FREE] -= np.asarray(part.demand, np.int64)
            self._reduced.update(siblings)
            for sibling in siblings:
                self._added.setdefault(sibling, []).append((part, True))

    def waiting_before(self, workload_class: WorkloadClass) -> Ints:
        """How many waiters a new container of this class would find before it; shape (rows,)."""
        return self.waiting_stream if workload_class is WorkloadClass.STREAM else self.waiting

    def candidates(self, demands: Mapping[Vector, int]) -> frozenset[ResourceUnitId]:
        """Units that a stream of these demands has to consider (``demands``: how many of each).

        Those where it could start at once; where they cannot take all of it, every open unit that
        is large enough. With each come its siblings, whose containers could take its cores.
        """
        chosen = np.zeros_like(self.open)
        for demand, many in demands.items():
            usable = self._allowed & self._useful(demand)
            feasible = usable & (self.waiting_stream == 0) & fitting_rows(demand, self.free)
            enough = self._folds(demand, feasible) >= many
            chosen |= feasible if enough else usable & self.could_ever_fit(demand)
        chosen = self._allowed & np.isin(self._pool, self._pool[chosen])
        return frozenset(self.unit_id(row) for row in np.flatnonzero(chosen).tolist())

    def startable_count(self, demand: Vector) -> int:
        """How many batch containers of ``demand``, and nothing else, could start at once, or as
        soon as others have yielded."""
        usable = self._allowed & self._useful(demand)
        no_waiters = self.waiting == 0
        if not self.yielding_rows:
            feasible = usable & no_waiters & fitting_rows(demand, self.free)
            return self._folds(demand, feasible) if feasible.any() else 0
        free = self.free + self._state.coming
        feasible = usable & (no_waiters | self._state.yields) & fitting_rows(demand, free)
        return folds(demand, free[feasible], self._pool[feasible]) if feasible.any() else 0

    def _folds(self, demand: Vector, rows: Bools) -> int:
        """How many of ``demand`` the free part of ``rows`` takes; cores that they share once."""
        return folds(demand, self.free[rows], self._pool[rows])

    def keep_open(self, units: frozenset[ResourceUnitId] | None) -> None:
        """Close every unit but these; None: leave all as they are."""
        if units is not None:
            rows = [self._state.rows[unit] for unit in units if unit in self._state.rows]
            kept = np.zeros_like(self.open)
            kept[rows] = True
            self._allowed = _sealed(self._allowed & kept)
            self.open = _sealed(self.open & kept)

    def keep_rows(self, rows: Bools) -> None:
        """Close every row but these; shape (rows,)."""
        self._allowed = _sealed(self._allowed & rows)
        self.open = _sealed(self.open & rows)

    def streams_leave(self, demand: Vector) -> Bools:
        """Rows where a stream of ``demand`` would fit if batch were preempted; shape (rows,)."""
        asked = np.flatnonzero(demand)
        wanted = np.asarray(demand, np.int64)[asked]
        leaves: Bools = np.all(self.stream_headroom[:, asked] >= wanted, axis=1)
        return leaves

    def most_beside_endless(self, demand: Vector) -> int:
        """How many of ``demand`` all units together would hold if all batch had ended."""
        rows = self._state.serving(demand)
        if self._suited is not None:
            rows = rows & self._suited
        headroom = self.stream_headroom[rows]
        return folds(demand, headroom, self._pool[rows]) if rows.any() else 0

    def could_ever_fit(self, demand: Vector) -> Bools:
        """Rows whose empty unit would hold ``demand``; shape (rows,)."""
        return fitting_rows(demand, self.total)


class _Supposed(NamedTuple):
    """What a view was before it supposed something."""

    rows: Ints
    numbers: Ints
    added: dict[int, list[tuple[Entry, bool]]]
    images: dict[int, UnitImage]
    open: Bools


def _sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, read-only through this name."""
    array.flags.writeable = False
    return array


def _spans(first: int, rows: int) -> Iterator[tuple[int, int]]:
    """All of ``rows`` from ``first`` on and round, in parts that grow."""
    size = _SPAN
    for start, end in ((first, rows), (0, min(first, rows))):
        while start < end:
            yield start, min(start + size, end)
            start, size = start + size, 4 * size
