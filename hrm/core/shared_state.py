"""The shared resource state: a table of numpy columns, one row a resource unit.

All schedulers read it, each through a view of its own; only the negotiator writes it. The columns
repeat what the units' queues say, so that a decision over ten thousand units is a handful of vector
operations. Rows are reused; ``version`` of a row never goes back, so a claim made on an older
version can be told.

What changes with every container stands in one array, ``table``, of which the columns are parts: to
bring a view up to date is to copy the rows that have changed since, in one operation. The table in
turn takes in what has changed in the queues when somebody looks at it, all at once.

Source: HRM paper, sections 2.2 (global resource state) and 4.1 (record RS).
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hrm.core.estimate import simulate
from hrm.core.feasibility import Vector, could_hold, fits, fitting_rows, minus
from hrm.core.model import NodeName, ResourceUnitId, WorkloadClass
from hrm.core.resource_unit import Entry, UnitImage, UnitQueue, pooled_part
from hrm.core.waits import WaitTable

__all__ = ["ClusterView", "SharedState"]

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_FIRST_ROWS = 16
_NO_LIMIT = np.iinfo(np.int64).max
_CELLS = 12
_LOG_MIN = 4_096
_SPAN = 512
_DEMANDS_KEPT = 256


class _Columns(abc.ABC):
    """Names for the parts of a table, shape (rows, ``_CELLS``)."""

    @property
    @abc.abstractmethod
    def table(self) -> Ints:
        """The whole of it, up to date."""

    @property
    def free(self) -> Ints:
        return self.table[:, 0:4]

    @property
    def stream_room(self) -> Ints:
        return self.table[:, 4:8]

    @property
    def waiting_stream(self) -> Ints:
        return self.table[:, 8]

    @property
    def waiting_batch(self) -> Ints:
        return self.table[:, 9]

    @property
    def version(self) -> Ints:
        return self.table[:, 10]

    @property
    def waiting_limit(self) -> Ints:
        return self.table[:, 11]


class SharedState(_Columns):
    """The authoritative table.

    Invariants:
        For every row in use: ``free``, ``waiting_stream`` and ``waiting_batch`` equal what its
        queue's image says; ``open`` is True iff its node takes new containers and the unit is not
        draining; ``gpu_only`` is the unit's; ``pool`` is the same number for rows whose units share
        vcores and memory, and for no others.
        A row that is not in use is closed, with zeros in ``total`` and ``free``.
        ``waiting_limit`` is how many may wait at a row; ``limit_waiting`` sets it.
        ``rows`` maps all and only the unit ids in use to their rows, ``ids`` the rows to them.
        ``log`` lists the rows that have changed, the latest last, from entry ``log_start`` on;
        ``shape`` rises when rows come, go, open or close, which the log does not tell.
    """

    def __init__(self) -> None:
        self.rows: dict[ResourceUnitId, int] = {}
        self._queues: list[UnitQueue | None] = [None] * _FIRST_ROWS
        self._nodes: list[NodeName | None] = [None] * _FIRST_ROWS
        self.ids: list[ResourceUnitId] = [ResourceUnitId("")] * _FIRST_ROWS
        self._unused: list[int] = list(range(_FIRST_ROWS - 1, -1, -1))
        self._waits = WaitTable()
        self._table: Ints = np.zeros((_FIRST_ROWS, _CELLS), dtype=np.int64)
        self._table[:, 11] = _NO_LIMIT
        self._dirty: set[int] = set()
        self.total: Ints = np.zeros((_FIRST_ROWS, 4), dtype=np.int64)
        self.open: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.gpu_only: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.pool: Ints = np.arange(_FIRST_ROWS, dtype=np.int64)
        self.pools = 0
        self.log: list[int] = []
        self.log_start = 0
        self.shape = 0
        self._could_hold: dict[Vector, bool] = {}
        self._could_hold_at = 0
        self._watchers: list[set[ResourceUnitId]] = []
        self._seen: dict[ResourceUnitId, int] = {}

    def watch(self) -> set[ResourceUnitId]:
        """A set that gets the id of every unit that changes, for its owner to empty; all at first.

        ``unwatch`` ends it.
        """
        changed = set(self.rows)
        self._watchers.append(changed)
        return changed

    def unwatch(self, changed: set[ResourceUnitId]) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher is not changed]

    def add(self, node: NodeName, queue: UnitQueue) -> int:
        """Give a unit a row; answers it. The unit's id must be new."""
        unit_id = queue.unit.unit_id
        assert unit_id not in self.rows, f"{unit_id} has a row already"
        if not self._unused:
            self._grow()
        row = self._unused.pop()
        self.rows[unit_id] = row
        self._queues[row] = queue
        self._nodes[row] = node
        self.ids[row] = unit_id
        self.total[row] = queue.capacity
        self.open[row] = not queue.unit.draining
        self.gpu_only[row] = queue.unit.gpu_only
        owner = self.find(queue.unit.pool)
        if owner is not None and owner not in queue.pool:
            queue.join(owner)
        siblings = self.siblings(row)
        self.pool[row] = self.pool[siblings[0]] if siblings else row
        self.pools += bool(queue.unit.pool)
        self.shape += 1
        self.refresh(row)
        return row

    def exchange(self, queue: UnitQueue) -> None:
        """Put another queue of the same unit into its row; units that share a pool go together."""
        row = self.rows[queue.unit.unit_id]
        assert self.queue(row).unit == queue.unit, f"{queue.unit.unit_id} is cut anew"
        self._queues[row] = queue
        self._seen.pop(queue.unit.unit_id, None)
        self.refresh(row)

    def remove(self, unit_id: ResourceUnitId) -> None:
        """Take a unit's row out of use; units that share a pool go together."""
        row = self.rows.pop(unit_id)
        self._seen.pop(unit_id, None)
        self._changed(unit_id)
        self.pools -= bool(self.queue(row).unit.pool)
        self.shape += 1
        self._queues[row] = None
        self._nodes[row] = None
        self.ids[row] = ResourceUnitId("")
        self.open[row] = False
        self.gpu_only[row] = False
        self.total[row] = 0
        self._dirty.discard(row)
        self._table[row] = (*[0] * 10, self._table[row, 10] + 1, _NO_LIMIT)
        self._waits.stale.add(row)
        self._unused.append(row)

    def set_open(self, unit_id: ResourceUnitId, is_open: bool) -> None:
        row = self.rows[unit_id]
        self.open[row] = is_open
        self.version[row] += 1
        self.shape += 1
        self._changed(unit_id)

    def limit_waiting(self, unit_id: ResourceUnitId, limit: int) -> None:
        """From now on at most ``limit`` containers may wait at this unit."""
        row = self.rows.get(unit_id)
        if row is not None and self.waiting_limit[row] != limit:
            self.waiting_limit[row] = limit
            self.version[row] += 1
            self._write_down((row,))
            self._changed(unit_id)

    def queue(self, row: int) -> UnitQueue:
        queue = self._queues[row]
        assert queue is not None, f"row {row} is not in use"
        return queue

    def find(self, unit_id: ResourceUnitId) -> UnitQueue | None:
        row = self.rows.get(unit_id)
        return None if row is None else self.queue(row)

    def siblings(self, row: int) -> list[int]:
        """Rows of the other units that share this row's vcores and memory."""
        pool = self.queue(row).pool
        if len(pool) == 1:
            return []
        rows = (self.rows.get(queue.unit.unit_id) for queue in pool)
        return [each for each in rows if each is not None and each != row]

    def node(self, row: int) -> NodeName:
        node = self._nodes[row]
        assert node is not None, f"row {row} is not in use"
        return node

    @property
    def table(self) -> Ints:
        if self._dirty:
            self._flush()
        return self._table

    def refresh(self, row: int) -> None:
        """A queue has changed, and so have its siblings: their numbers are to be copied into their
        rows, which happens when somebody looks."""
        self.refresh_all((row,))

    def refresh_all(self, rows: Iterable[int]) -> None:
        """The same for several rows."""
        each = rows if not self.pools else self._with_siblings(rows)
        self._dirty.update(each)
        if self._watchers:
            for row in each:
                queue = self.queue(row)
                unit_id = queue.unit.unit_id
                if self._seen.get(unit_id) != queue.version:
                    self._seen[unit_id] = queue.version
                    self._changed(unit_id)

    def taken(self, rows: list[int], demand: Vector, *, stream: bool) -> None:
        """``refresh_all`` after each of ``rows`` has let one container of ``demand`` run, and
        nothing else happened: the common case, in a few vector operations."""
        changed = set(rows)
        if (
            self.pools
            or self._watchers
            or len(changed) < len(rows)
            or not self._dirty.isdisjoint(changed)
        ):
            self.refresh_all(changed)
            return
        held = tuple(-x for x in demand)
        self._table[rows] += np.array(
            (*held, *(held if stream else (0,) * 4), 0, 0, 1, 0), np.int64
        )
        self._waits.stale |= changed
        self._write_down(rows)

    def _flush(self) -> None:
        each = list(self._dirty)
        self._dirty.clear()
        versions = self._table[each, 10].tolist()
        limits = self._table[each, 11].tolist()
        queues = self._queues
        self._table[each] = [
            _numbers(queues[row], version, limit)
            for row, version, limit in zip(each, versions, limits, strict=True)
        ]
        self._waits.stale.update(each)
        self._write_down(each)

    def _with_siblings(self, rows: Iterable[int]) -> list[int]:
        found: dict[int, None] = {}
        for row in rows:
            found[row] = None
            found.update(dict.fromkeys(self.siblings(row)))
        return list(found)

    def _write_down(self, rows: Sequence[int]) -> None:
        self.log.extend(rows)
        if len(self.log) > max(_LOG_MIN, 2 * len(self._queues)):
            self.log_start += len(self.log)
            self.log.clear()

    def waits_s(self, demand: Vector, rows: Ints, now: float) -> Floats:
        """``estimate.simulate`` for each of ``rows``; infinite at rows that are not in use."""
        if self._dirty:
            self._flush()
        self._waits.update(self._image, len(self._queues))
        return self._waits.waits_s(demand, rows, now)

    def refusal(self, row: int, demand: Vector) -> str:
        """Why nobody may propose ``row`` for ``demand``, queue or no queue; empty if one may."""
        if not 0 <= row < len(self._queues):
            return f"there is no row {row}; rows are 0 to {len(self._queues) - 1}"
        if self._queues[row] is None:
            return f"row {row} is not in use"
        if not self.open[row]:
            return f"row {row} is closed: its node takes no new containers"
        unit = self.queue(row).unit
        if unit.gpu_only and not demand[2]:
            return f"the unit of row {row} is for containers that use its GPU"
        if not could_hold(demand, unit):
            return f"the unit of row {row} is too small, even when it is empty"
        return ""

    def could_hold(self, demand: Vector) -> bool:
        """Would any unit, closed or not, hold ``demand`` when it is empty?"""
        if self._could_hold_at != self.shape or len(self._could_hold) > _DEMANDS_KEPT:
            self._could_hold.clear()
            self._could_hold_at = self.shape
        if demand not in self._could_hold:
            fitting = fitting_rows(demand, self.total)
            if not demand[2]:
                fitting &= ~self.gpu_only
            self._could_hold[demand] = bool(fitting.any())
        return self._could_hold[demand]

    def view(self) -> ClusterView:
        """A snapshot for one scheduling round."""
        return ClusterView(self)

    def _changed(self, unit_id: ResourceUnitId) -> None:
        for watcher in self._watchers:
            watcher.add(unit_id)

    def _image(self, row: int) -> UnitImage | None:
        queue = self._queues[row]
        return None if queue is None else queue.image()

    def _grow(self) -> None:
        old, pool = len(self._queues), self.pool
        self._queues.extend([None] * old)
        self._nodes.extend([None] * old)
        self.ids.extend([ResourceUnitId("")] * old)
        self._unused = list(range(2 * old - 1, old - 1, -1))
        more = np.zeros_like(self._table)
        more[:, -1] = _NO_LIMIT
        self._table = np.concatenate([self._table, more])
        self.total = np.concatenate([self.total, np.zeros_like(self.total)])
        self.open = np.concatenate([self.open, np.zeros(old, np.bool_)])
        self.gpu_only = np.concatenate([self.gpu_only, np.zeros(old, np.bool_)])
        self.pool = np.arange(2 * old, dtype=np.int64)
        self.pool[:old] = pool
        self.shape += 1


class ClusterView(_Columns):
    """One scheduler's copy of the state, which it may spend while it places a job.

    ``apply`` takes a placement off the copy, so that the next container of the job sees it. The
    state itself is untouched, and nobody can write into the columns: images are immutable, too. A
    view is for one round: unit images are read when first asked for. ``renew`` makes it fit for the
    next round, at the cost of what has changed.

    Attributes, each with one row a unit: ``free``, ``total`` and ``stream_room`` (what the streams
    of the unit leave to one more, see ``UnitQueue``), shape (rows, 4) in the order of
    ``feasibility.DIMENSIONS``; ``waiting_stream``, ``waiting_batch``, ``waiting_limit``,
    ``version``, ``gpu_only`` and ``open``, shape (rows,). Rows that are not open to the demand
    being placed, or that the round may not use, are closed: see ``open_to`` and ``keep_open``.
    """

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._images: dict[int, UnitImage] = {}
        self._added: dict[int, list[tuple[Entry, bool]]] = {}
        self._together: list[tuple[list[int], Sequence[Entry], float]] = []
        self._spent: set[int] = set()
        self._copy()

    def _copy(self) -> None:
        state = self._state
        self._table = state.table.copy()
        self._sealed = _sealed(self._table.view())
        self.total = _sealed(state.total.copy())
        self.gpu_only = _sealed(state.gpu_only.copy())
        self.open = self._open = _sealed(state.open.copy())
        self._pool = state.pool.copy()
        self._allowed = self._open
        self._gpu_only_rows = bool(self.gpu_only.any())
        self._shape = state.shape
        self._position = state.log_start + len(state.log)

    @property
    def table(self) -> Ints:
        return self._sealed

    def renew(self) -> None:
        """Bring the view up to date, and take back what was spent of it."""
        state, table = self._state, self._state.table
        self._images.clear()
        self._added.clear()
        self._together.clear()
        behind = self._position - state.log_start
        if self._shape != state.shape or behind < 0:
            self._spent.clear()
            self._copy()
            return
        self._spent.update(state.log[behind:])
        if self._spent:
            rows = list(self._spent)
            self._table[rows] = table[rows]
            self._spent.clear()
        self._position = state.log_start + len(state.log)
        self.open = self._allowed = self._open

    def open_to(self, demand: Vector) -> None:
        """Close the rows that hold cores for a GPU to a demand without need of one; open others."""
        self.open = self._allowed
        if self._gpu_only_rows:
            self.open = _sealed(self._allowed & self._useful(demand))

    def _useful(self, demand: Vector) -> Bools:
        """Rows that are not kept for containers of another kind than this."""
        return np.ones_like(self.gpu_only) if demand[2] else ~self.gpu_only

    @property
    def waiting(self) -> Ints:
        return self.waiting_stream + self.waiting_batch

    def waiting_at(self, row: int) -> int:
        return int(self.waiting_stream[row] + self.waiting_batch[row])

    def waits_s(self, demand: Vector, rows: Ints, now: float) -> Floats:
        """Estimated seconds until a new batch container would start at each of ``rows``.

        Algorithm 1 for all of them at once; the same shape as ``rows``.
        """
        waits = self._state.waits_s(demand, rows, now)
        self._part()
        changed = [*self._images, *self._added]
        if changed:
            for index in np.flatnonzero(np.isin(rows, changed)).tolist():
                waits[index] = self.wait_s(demand, int(rows[index]), now)
        return waits

    def wait_s(self, demand: Vector, row: int, now: float) -> float:
        """The same for one row."""
        return simulate(demand, self.image(row), now)

    def refusal(self, row: int, demand: Vector) -> str:
        """See ``SharedState.refusal``; asks the state, whatever was written into this view."""
        return self._state.refusal(row, demand)

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
    def shares_cores(self) -> bool:
        """Are there units that share cores and memory?"""
        return self._state.pools > 0

    def unit_ids(self, rows: Iterable[int]) -> list[ResourceUnitId]:
        """Of rows that are all in use."""
        ids = self._state.ids
        return [ids[row] for row in rows]

    def may_propose(self, rows: Ints, demand: Vector) -> bool:
        """Is ``refusal`` empty for every one of ``rows``?"""
        state = self._state
        if not len(rows):
            return True
        if rows.min() < 0 or rows.max() >= len(state.open) or not state.open[rows].all():
            return False
        if not demand[2] and state.gpu_only[rows].any():
            return False
        return bool(fitting_rows(demand, state.total[rows]).all())

    def rows_with_room(
        self, demand: Vector, workload_class: WorkloadClass, first: int, many: int
    ) -> Ints:
        """The first ``many`` rows, from row ``first`` on and round, at which one would start at
        once.

        Looks at a few rows, then at more: where there is room it is found soon.
        """
        found: list[Ints] = []
        left = many
        for start, stop in _spans(first, len(self.open)):
            rows = np.flatnonzero(self._has_room(demand, workload_class, start, stop))[:left]
            if len(rows):
                found.append(rows + start)
                left -= len(rows)
            if left <= 0:
                break
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _has_room(
        self, demand: Vector, workload_class: WorkloadClass, start: int, stop: int
    ) -> Bools:
        part = self._table[start:stop]
        room: Bools = self.open[start:stop] & (part[:, 8] == 0)
        if workload_class is not WorkloadClass.STREAM:
            room &= part[:, 9] == 0
        for dimension, wanted in enumerate(demand):
            if wanted:
                room &= part[:, dimension] >= wanted
        return room

    def image(self, row: int) -> UnitImage:
        """The unit's queues as this view has them."""
        self._part()
        image = self._images.get(row)
        if image is None:
            image = self._state.queue(row).image()
        for entry, runs in self._added.pop(row, ()):
            image = _with(image, entry, runs=runs)
            self._images[row] = image
        return image

    def apply(self, row: int, entry: Entry, now: float) -> bool:
        """Put a container on a unit of this view; True if it would run at once, False if wait."""
        self._part()
        numbers = self._table[row]
        free, waiting_stream, waiting_batch = numbers[:4].tolist(), numbers[8], numbers[9]
        stream = entry.workload_class is WorkloadClass.STREAM
        demand = entry.demand
        at_once = not waiting_stream and (stream or not waiting_batch) and fits(demand, tuple(free))
        self._spent.add(row)
        if stream:
            self._take_stream_room(row, demand)
        if at_once:
            self._take(row, entry.started(now))
        else:
            self._added.setdefault(row, []).append((entry, False))
            self._table[row, 8 if stream else 9] += 1
        return at_once

    def apply_all(self, rows: Ints, entries: Sequence[Entry], now: float) -> bool:
        """Put one of ``entries``, all of one demand, on each of ``rows``, all of which have room,
        none twice. False, and nothing is done, where units share cores: what one takes is gone from
        others."""
        if self._state.pools:
            return False
        demand = np.asarray(entries[0].demand, np.int64)
        self._table[rows, :4] -= demand
        if entries[0].workload_class is WorkloadClass.STREAM:
            self._table[rows, 4:8] -= demand
        numbers = rows.tolist()
        self._spent.update(numbers)
        self._together.append((numbers, entries, now))
        return True

    def _part(self) -> None:
        """Tell row by row what came together: few rounds ask."""
        for rows, entries, now in self._together:
            for row, entry in zip(rows, entries, strict=True):
                self._added.setdefault(row, []).append((entry.started(now), True))
        self._together.clear()

    def _take_stream_room(self, row: int, demand: Vector) -> None:
        self._table[row, 4:8] -= np.asarray(demand, np.int64)
        for sibling in self.siblings(row) if self._state.pools else ():
            self._table[sibling, 4:8] -= np.asarray(pooled_part(demand), np.int64)
            self._spent.add(sibling)

    def _take(self, row: int, entry: Entry) -> None:
        """What starts at ``row`` is gone from every unit that shares its cores."""
        self._added.setdefault(row, []).append((entry, True))
        self._table[row, :4] -= np.asarray(entry.demand, np.int64)
        for sibling in self.siblings(row) if self._state.pools else ():
            part = entry.pooled()
            self._added.setdefault(sibling, []).append((part, True))
            self._table[sibling, :4] -= np.asarray(part.demand, np.int64)
            self._spent.add(sibling)

    def waiting_before(self, workload_class: WorkloadClass) -> Ints:
        """How many waiters a new container of this class would find before it; shape (rows,)."""
        return self.waiting_stream if workload_class is WorkloadClass.STREAM else self.waiting

    def candidates(self, demands: Mapping[Vector, int]) -> frozenset[ResourceUnitId]:
        """Units that a stream of these demands has to consider (``demands``: how many of each).

        Those with room for it at once; where they cannot take all of it, every open unit that is
        large enough. With each come its siblings, whose containers could take its cores.
        """
        chosen = np.zeros_like(self.open)
        for demand, many in demands.items():
            usable = self._allowed & self._useful(demand)
            room = usable & (self.waiting_stream == 0) & fitting_rows(demand, self.free)
            enough = self._folds(demand, room) >= many
            chosen |= room if enough else usable & self.could_ever_fit(demand)
        chosen = self._allowed & np.isin(self._pool, self._pool[chosen])
        return frozenset(self.unit_id(row) for row in np.flatnonzero(chosen).tolist())

    def room_for(self, demand: Vector) -> int:
        """How many batch containers of ``demand``, and nothing else, could start at once."""
        usable = self._allowed & self._useful(demand)
        room = usable & (self.waiting == 0) & fitting_rows(demand, self.free)
        return self._folds(demand, room)

    def _folds(self, demand: Vector, rows: Bools) -> int:
        """How many of ``demand`` the free part of ``rows`` takes; cores that they share once."""
        wanted = np.asarray(demand, np.int64)
        asked, common = wanted > 0, wanted[:2] > 0
        free = self.free[rows]
        folds = (free[:, asked] // wanted[asked]).min(axis=1)
        _, first, pool = np.unique(self._pool[rows], return_index=True, return_inverse=True)
        shared = (free[first, :2][:, common] // wanted[:2][common]).min(
            axis=1, initial=np.iinfo(np.int64).max
        )
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, pool, folds)
        return int(np.minimum(sums, shared).sum())

    def keep_open(self, units: frozenset[ResourceUnitId] | None) -> None:
        """Close every unit but these; None: leave all as they are."""
        if units is not None:
            rows = [self._state.rows[unit] for unit in units if unit in self._state.rows]
            kept = np.zeros_like(self.open)
            kept[rows] = True
            self._allowed = _sealed(self._allowed & kept)
            self.open = _sealed(self.open & kept)

    def streams_leave(self, demand: Vector) -> Bools:
        """Rows where a stream of ``demand`` would fit if batch made way; shape (rows,)."""
        asked = np.flatnonzero(demand)
        leaves: Bools = np.all(
            self.stream_room[:, asked] >= np.asarray(demand, np.int64)[asked], axis=1
        )
        return leaves

    def could_ever_fit(self, demand: Vector) -> Bools:
        """Rows whose empty unit would hold ``demand``; shape (rows,)."""
        return fitting_rows(demand, self.total)


def _numbers(queue: UnitQueue | None, version: int, limit: int) -> tuple[int, ...]:
    """The row of a queue that has changed."""
    assert queue is not None
    waiting = queue.stream_waiting if len(queue.pool) == 1 else queue.image().stream_waiting
    counts = (len(waiting), len(queue.batch_waiting), version + 1, limit)
    return queue.free + queue.stream_room + counts


def _sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, which nobody can write through this name."""
    array.flags.writeable = False
    return array


def _spans(first: int, rows: int) -> Iterator[tuple[int, int]]:
    """All of ``rows`` from ``first`` on and round, in parts that grow."""
    size = _SPAN
    for start, end in ((first, rows), (0, min(first, rows))):
        while start < end:
            yield start, min(start + size, end)
            start, size = start + size, 4 * size


def _with(image: UnitImage, entry: Entry, *, runs: bool) -> UnitImage:
    """The image after one more has come."""
    capacity, free, running, streams, batch = image
    if runs:
        return UnitImage(capacity, minus(free, entry.demand), (*running, entry), streams, batch)
    if entry.workload_class is WorkloadClass.STREAM:
        return UnitImage(capacity, free, running, (*streams, entry), batch)
    return UnitImage(capacity, free, running, streams, (*batch, entry))
