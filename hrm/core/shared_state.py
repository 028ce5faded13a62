"""The shared resource state: a table of numpy columns, one row a resource unit.

All schedulers read it, each through a snapshot of its own; only the negotiator writes it. The
columns repeat what the units' queues say, so that a decision over ten thousand units is a handful
of vector operations. Rows are reused; ``version`` of a row never goes back, so a claim made on an
older version can be told.

Source: HRM paper, sections 2.2 (global resource state) and 4.1 (record RS).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hrm.core.estimate import simulate
from hrm.core.feasibility import Vector, could_hold, fitting_rows, minus
from hrm.core.model import NodeName, ResourceUnitId, WorkloadClass
from hrm.core.resource_unit import Entry, UnitImage, UnitQueue, pooled_part
from hrm.core.waits import WaitTable

__all__ = ["ClusterView", "SharedState"]

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_FIRST_ROWS = 16
_NO_LIMIT = np.iinfo(np.int64).max


class SharedState:
    """The authoritative table.

    Invariants:
        For every row in use: ``free``, ``waiting_stream`` and ``waiting_batch`` equal what its
        queue's image says; ``open`` is True iff its node takes new containers and the unit is not
        draining; ``gpu_only`` is the unit's; ``pool`` is the same number for rows whose units share
        vcores and memory, and for no others.
        A row that is not in use is closed, with zeros in ``total`` and ``free``.
        ``waiting_limit`` is how many may wait at a row; ``limit_waiting`` sets it.
        ``rows`` maps all and only the unit ids in use to their rows.
    """

    def __init__(self) -> None:
        self.rows: dict[ResourceUnitId, int] = {}
        self._queues: list[UnitQueue | None] = [None] * _FIRST_ROWS
        self._nodes: list[NodeName | None] = [None] * _FIRST_ROWS
        self._unused: list[int] = list(range(_FIRST_ROWS - 1, -1, -1))
        self._waits = WaitTable()
        self.free: Ints = np.zeros((_FIRST_ROWS, 4), dtype=np.int64)
        self.total: Ints = np.zeros((_FIRST_ROWS, 4), dtype=np.int64)
        self.waiting_stream: Ints = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self.waiting_batch: Ints = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self.version: Ints = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self.open: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.waiting_limit: Ints = np.full(_FIRST_ROWS, _NO_LIMIT)
        self.stream_room: Ints = np.zeros((_FIRST_ROWS, 4), dtype=np.int64)
        self.gpu_only: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.pool: Ints = np.arange(_FIRST_ROWS, dtype=np.int64)
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
        self.total[row] = queue.capacity
        self.open[row] = not queue.unit.draining
        self.gpu_only[row] = queue.unit.gpu_only
        owner = self.find(queue.unit.pool)
        if owner is not None and owner not in queue.pool:
            queue.join(owner)
        siblings = self.siblings(row)
        self.pool[row] = self.pool[siblings[0]] if siblings else row
        self.refresh(row)
        return row

    def remove(self, unit_id: ResourceUnitId) -> None:
        """Take a unit's row out of use; units that share a pool go together."""
        row = self.rows.pop(unit_id)
        self._seen.pop(unit_id, None)
        self._changed(unit_id)
        self._queues[row] = None
        self._nodes[row] = None
        self.open[row] = False
        self.gpu_only[row] = False
        self.total[row] = 0
        self.free[row] = 0
        self.stream_room[row] = 0
        self.waiting_stream[row] = 0
        self.waiting_batch[row] = 0
        self.waiting_limit[row] = _NO_LIMIT
        self.version[row] += 1
        self._waits.stale.add(row)
        self._unused.append(row)

    def set_open(self, unit_id: ResourceUnitId, is_open: bool) -> None:
        row = self.rows[unit_id]
        self.open[row] = is_open
        self.version[row] += 1
        self._changed(unit_id)

    def limit_waiting(self, unit_id: ResourceUnitId, limit: int) -> None:
        """From now on at most ``limit`` containers may wait at this unit."""
        row = self.rows.get(unit_id)
        if row is not None and self.waiting_limit[row] != limit:
            self.waiting_limit[row] = limit
            self.version[row] += 1
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

    def refresh(self, row: int) -> None:
        """Copy a queue's numbers, and its siblings', into their rows after a change."""
        for queue in self.queue(row).pool:
            unit_id = queue.unit.unit_id
            each = self.rows.get(unit_id)
            if each is None:
                continue
            image = queue.image()
            self.free[each] = image.free
            self.stream_room[each] = queue.stream_room
            self.waiting_stream[each] = len(image.stream_waiting)
            self.waiting_batch[each] = len(image.batch_waiting)
            self.version[each] += 1
            self._waits.stale.add(each)
            if self._watchers and self._seen.get(unit_id) != queue.version:
                self._seen[unit_id] = queue.version
                self._changed(unit_id)

    def waits_s(self, demand: Vector, rows: Ints, now: float) -> Floats:
        """``estimate.simulate`` for each of ``rows``; infinite at rows that are not in use."""
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
        self._unused = list(range(2 * old - 1, old - 1, -1))
        self.free = np.concatenate([self.free, np.zeros_like(self.free)])
        self.total = np.concatenate([self.total, np.zeros_like(self.total)])
        self.stream_room = np.concatenate([self.stream_room, np.zeros_like(self.stream_room)])
        self.waiting_stream = np.concatenate([self.waiting_stream, np.zeros(old, np.int64)])
        self.waiting_batch = np.concatenate([self.waiting_batch, np.zeros(old, np.int64)])
        self.version = np.concatenate([self.version, np.zeros(old, np.int64)])
        self.open = np.concatenate([self.open, np.zeros(old, np.bool_)])
        self.waiting_limit = np.concatenate([self.waiting_limit, np.full(old, _NO_LIMIT)])
        self.gpu_only = np.concatenate([self.gpu_only, np.zeros(old, np.bool_)])
        self.pool = np.arange(2 * old, dtype=np.int64)
        self.pool[:old] = pool


class ClusterView:
    """One scheduler's copy of the state, which it may spend while it places a job.

    ``apply`` takes a placement off the copy, so that the next container of the job sees it. The
    state itself is untouched, whatever is written into the columns: all are copies, and images are
    immutable. A view is for one round: unit images are read when first asked for.

    Attributes, each with one row a unit: ``free``, ``total`` and ``stream_room`` (what the streams
    of the unit leave to one more, see ``UnitQueue``), shape (rows, 4) in the order of
    ``feasibility.DIMENSIONS``; ``waiting_stream``, ``waiting_batch``, ``waiting_limit``,
    ``version``, ``gpu_only`` and ``open``, shape (rows,). Rows that are not open to the demand
    being placed, or that the round may not use, are closed: see ``open_to`` and ``keep_open``.
    """

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._images: dict[int, UnitImage] = {}
        self.free = state.free.copy()
        self.total = state.total.copy()
        self.stream_room = state.stream_room.copy()
        self.waiting_stream = state.waiting_stream.copy()
        self.waiting_batch = state.waiting_batch.copy()
        self.version = state.version.copy()
        self.open = state.open.copy()
        self.waiting_limit = state.waiting_limit.copy()
        self.gpu_only = state.gpu_only.copy()
        self._pool = state.pool.copy()
        self._allowed = state.open.copy()

    def open_to(self, demand: Vector) -> None:
        """Close the rows that hold cores for a GPU to a demand without need of one; open others."""
        self.open = self._allowed & self._useful(demand)

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
        if self._images:
            for index in np.flatnonzero(np.isin(rows, list(self._images))).tolist():
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

    def image(self, row: int) -> UnitImage:
        """The unit's queues as this view has them."""
        image = self._images.get(row)
        return self._state.queue(row).image() if image is None else image

    def apply(self, row: int, entry: Entry, now: float) -> bool:
        """Put a container on a unit of this view; True if it would run at once, False if wait."""
        image = self.image(row)
        if entry.workload_class is WorkloadClass.STREAM:
            self._take_stream_room(row, entry.demand)
        if image.runs_at_once(entry.demand, entry.workload_class):
            free = minus(image.free, entry.demand)
            running = (*image.running, replace(entry, started_at_s=now))
            self._images[row] = replace(image, free=free, running=running)
            self.free[row] = free
            self._apply_to_siblings(row, replace(entry, started_at_s=now))
            return True
        if entry.workload_class is WorkloadClass.STREAM:
            waiting = (*image.stream_waiting, entry)
            self._images[row] = replace(image, stream_waiting=waiting)
            self.waiting_stream[row] += 1
        else:
            waiting = (*image.batch_waiting, entry)
            self._images[row] = replace(image, batch_waiting=waiting)
            self.waiting_batch[row] += 1
        return False

    def _take_stream_room(self, row: int, demand: Vector) -> None:
        self.stream_room[row] -= np.asarray(demand, np.int64)
        for sibling in self.siblings(row):
            self.stream_room[sibling] -= np.asarray(pooled_part(demand), np.int64)

    def _apply_to_siblings(self, row: int, entry: Entry) -> None:
        """What starts at ``row`` is gone from every unit that shares its cores."""
        part = replace(entry, demand=pooled_part(entry.demand))
        for sibling in self.siblings(row):
            image = self.image(sibling)
            free = minus(image.free, part.demand)
            self._images[sibling] = replace(image, free=free, running=(*image.running, part))
            self.free[sibling] = free

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
            self._allowed &= kept
            self.open = self.open & kept

    def streams_leave(self, demand: Vector) -> Bools:
        """Rows where a stream of ``demand`` would fit if batch made way; shape (rows,)."""
        return fitting_rows(demand, self.stream_room)

    def could_ever_fit(self, demand: Vector) -> Bools:
        """Rows whose empty unit would hold ``demand``; shape (rows,)."""
        return fitting_rows(demand, self.total)
