"""The shared resource state: a table of numpy columns, one row a resource unit.

All schedulers read it, each through a view of its own; only the negotiator writes it. The columns
repeat the state of the units' queues, so that a decision over ten thousand units is a handful of
vector operations. Rows are reused; ``version`` of a row never goes back, so a claim made on an
older version can be detected.

What changes with every container is in one array, ``table``: to bring a view up to date is to copy
the rows that have changed. The table takes in what has changed in the queues when it is read.

Source: HRM paper, sections 2.2 (global resource state) and 4.1 (record RS).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from hrm.core.messages.state_changes import UnitState
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.queue.start_rule import UnitImage
from hrm.core.queue.wait_table import WaitTable
from hrm.core.queue.yielding import to_come
from hrm.core.vocabulary.columns import (
    CELLS,
    VERSION,
    WAITERS_MAX,
    Bools,
    Floats,
    Ints,
    TableColumns,
)
from hrm.core.vocabulary.feasibility import (
    Column,
    Vector,
    capacity_vector,
    could_hold,
    fitting_rows,
    folds,
    pooled_part,
    serves,
    serving_rows,
)
from hrm.core.vocabulary.model import NodeName, ResourceUnitId
from hrm.core.vocabulary.node_requirement import (
    UNKNOWN_PROPERTIES,
    NodeProperties,
    NodeRequirement,
    suits,
)

__all__ = ["SharedState"]

_FIRST_ROWS = 16
_NO_LIMIT = np.iinfo(np.int64).max
_LOG_MIN = 4_096
_FEW = 4
_DEMANDS_KEPT = 256
_NODE_SETS_KEPT = 64
_REQUIREMENTS_KEPT = 256

_NONE_COMING: Vector = (0, 0, 0, 0)
_NOTHING: Mapping[int, Vector] = MappingProxyType({})


class SharedState(TableColumns):
    """The authoritative table.

    Invariants:
        For every row in use: ``free``, ``waiting_stream`` and ``waiting_batch`` equal those of
        its queue's image; ``total`` is the unit's target capacity; ``open`` is True iff its node
        and the unit take new containers; ``gpu_only``, ``gpus`` (``gpus_used``) and ``preempts``
        are the unit's;
        ``pool`` is the same number for rows whose units share vcores and memory, and for no others;
        ``shares`` is True iff there is such another.
        A row that is not in use is closed, with zeros in ``total`` and ``free``.
        ``waiting_limit`` is how many may wait at a row; ``limit_waiting`` sets it.
        ``coming`` is what containers that yield will leave there (``yielding.to_come``), and
        ``yields`` is True where that is something, at ``yielding_rows``, as of the last time that
        ``table`` was read. ``waiting_last``: the rows where such containers wait, as of then.
        ``rows`` maps all and only the unit ids in use to their rows, ``ids`` the rows to them;
        ``queues`` and ``nodes`` hold each row's queue and its node, None where it is not in use;
        ``properties`` what is known of that node.
        ``_suited`` has, of requirements that were asked for lately, the rows of nodes that meet
        them, right for every row in use.
        ``log`` lists the rows that have changed, the latest last, from entry ``log_start`` on;
        ``shape`` rises when rows come, go, open or close, which the log does not contain.
        ``_states`` has units that have not changed since ``unit_state`` returned this; it is empty
        where no watcher is.
    """

    def __init__(self) -> None:
        self.rows: dict[ResourceUnitId, int] = {}
        self.queues: list[UnitQueue | None] = [None] * _FIRST_ROWS
        self.nodes: list[NodeName | None] = [None] * _FIRST_ROWS
        self.ids: list[ResourceUnitId] = [ResourceUnitId("")] * _FIRST_ROWS
        self.properties: list[NodeProperties] = [UNKNOWN_PROPERTIES] * _FIRST_ROWS
        self._suited: dict[NodeRequirement, Bools] = {}
        self._hosts: tuple[int, frozenset[str]] = (-1, frozenset())
        self._restricting: dict[NodeRequirement, tuple[int, bool]] = {}
        self._unused: list[int] = list(range(_FIRST_ROWS - 1, -1, -1))
        self._waits = WaitTable()
        self._table: Ints = np.zeros((_FIRST_ROWS, CELLS), dtype=np.int64)
        self._table[:, WAITERS_MAX] = _NO_LIMIT
        self._dirty: set[int] = set()
        self.coming: Ints = np.zeros((_FIRST_ROWS, 4), dtype=np.int64)
        self.yields: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.yielding_rows: set[int] = set()
        self.waiting_last: set[int] = set()
        self.total: Ints = np.zeros((_FIRST_ROWS, 4), dtype=np.int64)
        self.open: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.gpu_only: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.gpus: Ints = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self.preempts: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.pool: Ints = np.arange(_FIRST_ROWS, dtype=np.int64)
        self.shares: Bools = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self.pools = 0
        self.log: list[int] = []
        self.log_start = 0
        self.shape = 0
        self._could_hold: dict[tuple[Vector, NodeRequirement | None], bool] = {}
        self._could_hold_at = 0
        self._rows_of: dict[frozenset[NodeName], Bools] = {}
        self._rows_of_at = 0
        self._platforms_known: tuple[dict[str, int], Ints] = ({}, np.zeros(0, np.int64))
        self._platforms_at = -1
        self._watchers: list[set[ResourceUnitId]] = []
        self._seen: dict[ResourceUnitId, int] = {}
        self._states: dict[ResourceUnitId, UnitState] = {}

    def watch(self) -> set[ResourceUnitId]:
        """A set that gets the id of every unit that changes, for its owner to empty; all at first.

        ``unwatch`` ends it.
        """
        changed = set(self.rows)
        self._watchers.append(changed)
        return changed

    def unwatch(self, changed: set[ResourceUnitId]) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher is not changed]
        if not self._watchers:
            self._states.clear()

    def unit_state(self, unit_id: ResourceUnitId) -> UnitState:
        """The unit as it is sent to copies: the same object until it changes, for all of them."""
        assert self._watchers, "changes are followed for watchers alone"
        known = self._states.get(unit_id)
        if known is None:
            known = self._states[unit_id] = self._unit_state(self.rows[unit_id])
        return known

    def add(
        self, node: NodeName, queue: UnitQueue, properties: NodeProperties = UNKNOWN_PROPERTIES
    ) -> int:
        """Give a unit a row; returns it. The unit's id must be new. ``properties``: its node's."""
        unit_id = queue.unit.unit_id
        assert unit_id not in self.rows, f"{unit_id} has a row already"
        if not self._unused:
            self._grow()
        row = self._unused.pop()
        self.rows[unit_id] = row
        self.queues[row] = queue
        self.nodes[row] = node
        self.ids[row] = unit_id
        self.properties[row] = properties
        for requirement, rows in self._suited.items():
            rows[row] = suits(requirement, properties)
        self.total[row] = capacity_vector(queue.unit)
        self.open[row] = queue.unit.takes_more
        self.gpu_only[row] = queue.unit.gpu_only
        self.gpus[row] = queue.gpus
        self.preempts[row] = queue.unit.preempts
        owner = self.find(queue.unit.pool)
        if owner is not None and owner not in queue.pool:
            queue.join(owner)
        siblings = self.siblings(row)
        self.pool[row] = self.pool[siblings[0]] if siblings else row
        self.shares[[row, *siblings]] = bool(siblings)
        self.pools += bool(queue.unit.pool)
        self.shape += 1
        self.refresh(row)
        return row

    def exchange(self, queue: UnitQueue) -> None:
        """Put another queue of the same unit into its row; units that share a pool go together."""
        row = self.rows[queue.unit.unit_id]
        assert self.queue(row).unit == queue.unit, f"{queue.unit.unit_id} has been repartitioned"
        self.queues[row] = queue
        self._seen.pop(queue.unit.unit_id, None)
        self.refresh(row)

    def remove(self, unit_id: ResourceUnitId) -> None:
        """Take a unit's row out of use; units that share a pool go together."""
        row = self.rows.pop(unit_id)
        self._seen.pop(unit_id, None)
        self._changed(unit_id)
        self.pools -= bool(self.queue(row).unit.pool)
        self.shape += 1
        self.queues[row] = None
        self.nodes[row] = None
        self.ids[row] = ResourceUnitId("")
        self.properties[row] = UNKNOWN_PROPERTIES
        self.open[row] = False
        self.gpu_only[row] = False
        self.shares[row] = False
        self.gpus[row] = 0
        self.preempts[row] = False
        self.total[row] = 0
        self._dirty.discard(row)
        self._set_coming(row, _NONE_COMING)
        self.waiting_last.discard(row)
        self._table[row] = (*[0] * VERSION, self._table[row, VERSION] + 1, _NO_LIMIT)
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
        queue = self.queues[row]
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
        node = self.nodes[row]
        assert node is not None, f"row {row} is not in use"
        return node

    @property
    def table(self) -> Ints:
        if self._dirty:
            self._flush()
        return self._table

    @property
    def position(self) -> int:
        """The end of the log, after all that has changed in the queues has been taken in."""
        if self._dirty:
            self._flush()
        return self.log_start + len(self.log)

    def refresh(self, row: int) -> None:
        """A queue has changed, and so have its siblings: their numbers are to be copied into their
        rows, which happens when these are read."""
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

    def taken(self, rows: list[int], demand: Vector, *, no_end: bool) -> None:
        """``refresh_all`` after each of ``rows`` has let one container of ``demand`` run, and
        nothing else happened: the common case, in a few vector operations."""
        changed = set(rows)
        if (
            self.pools
            or self._watchers
            or len(changed) < len(rows)
            or not self._dirty.isdisjoint(changed)
            or (self.yielding_rows and not self.yielding_rows.isdisjoint(changed))
        ):
            self.refresh_all(changed)
            return
        held = tuple([-x for x in demand])
        change = np.array((*held, *(held if no_end else (0,) * 4), 0, 0, 1, 0), np.int64)
        if len(rows) <= _FEW:
            for row in rows:
                self._table[row] += change
        else:
            self._table[rows] += change
        self._waits.stale |= changed
        self._write_down(rows)

    def _flush(self) -> None:
        each = list(self._dirty)
        self._dirty.clear()
        table, queues = self._table, self.queues
        if len(each) <= _FEW:
            for row in each:
                version, limit = table[row, VERSION:].tolist()
                table[row] = _numbers(queues[row], version, limit)
        else:
            known = table[each, VERSION:].tolist()
            table[each] = [
                _numbers(queues[row], version, limit)
                for row, (version, limit) in zip(each, known, strict=True)
            ]
        for row in each:
            queue = queues[row]
            if queue is None:
                continue
            if queue.yielding or len(queue.pool) > 1 or row in self.yielding_rows:
                self._set_coming(row, to_come(queue))
            if queue.yielding_waiting:
                self.waiting_last.add(row)
            elif row in self.waiting_last:
                self.waiting_last.discard(row)
        self._waits.stale.update(each)
        self._write_down(each)

    def _set_coming(self, row: int, coming: Vector) -> None:
        """What yields will leave so much there."""
        self.coming[row] = coming
        self.yields[row] = coming != _NONE_COMING
        if coming != _NONE_COMING:
            self.yielding_rows.add(row)
        else:
            self.yielding_rows.discard(row)

    @property
    def any_yields(self) -> bool:
        """Do containers run that would end for others, somewhere?"""
        if self._dirty:
            self._flush()
        return bool(self.yielding_rows)

    def _with_siblings(self, rows: Iterable[int]) -> list[int]:
        found: dict[int, None] = {}
        for row in rows:
            found[row] = None
            found.update(dict.fromkeys(self.siblings(row)))
        return list(found)

    def _write_down(self, rows: Sequence[int]) -> None:
        self.log.extend(rows)
        if len(self.log) > max(_LOG_MIN, 2 * len(self.queues)):
            self.log_start += len(self.log)
            self.log.clear()

    def waits_s(self, demand: Vector, rows: Ints, now: float, run_s: float = math.inf) -> Floats:
        """``estimate.simulate`` for each of ``rows``; infinite at rows that are not in use."""
        if self._dirty:
            self._flush()
        self._waits.update(self._image, len(self.queues))
        return self._waits.waits_s(demand, rows, now, run_s)

    def refusal(self, row: int, demand: Vector) -> str:
        """Why ``row`` may not be proposed for ``demand``, queue or no queue; empty if it may."""
        if not 0 <= row < len(self.queues):
            return f"there is no row {row}; rows are 0 to {len(self.queues) - 1}"
        if self.queues[row] is None:
            return f"row {row} is not in use"
        if not self.open[row]:
            return f"row {row} is closed: its node accepts no new containers"
        unit = self.queue(row).unit
        if unit.gpu_only and not demand[Column.GPU_MEMORY_MIB]:
            return f"the unit of row {row} is for containers that use its GPU"
        if not serves(demand, unit.gpus_used, unit.gpu_only):
            return f"the unit of row {row} has another number of GPUs than the container is to use"
        if not could_hold(demand, unit):
            return f"the unit of row {row} is too small, even when it is empty"
        return ""

    def all_open(self, rows: Sequence[int]) -> bool:
        """Do the nodes and the units of all these rows take new containers?"""
        if len(rows) <= _FEW:
            return all(self.open[row] for row in rows)
        return bool(self.open[rows].all())

    def could_hold(self, demand: Vector, requires: NodeRequirement | None = None) -> bool:
        """Would any unit, closed or not, of a node that meets ``requires``, hold ``demand`` when it
        is empty?"""
        if self._could_hold_at != self.shape or len(self._could_hold) > _DEMANDS_KEPT:
            self._could_hold.clear()
            self._could_hold_at = self.shape
        key = (demand, requires)
        if key not in self._could_hold:
            fitting = fitting_rows(demand, self.total) & self.serving(demand)
            if requires is not None:
                fitting &= self.suited(requires)
            self._could_hold[key] = bool(fitting.any())
        return self._could_hold[key]

    def most(
        self,
        demand: Vector,
        held: Mapping[int, Vector] = _NOTHING,
        requires: NodeRequirement | None = None,
    ) -> int:
        """How many of ``demand`` all units, closed or not, of nodes that meet ``requires``, would
        hold when they are empty, but for what is ``held`` at some rows."""
        total = self.total.copy() if held else self.total
        for row, part in held.items():
            total[row] -= part
            total[self.siblings(row)] -= pooled_part(part)
        fitting = fitting_rows(demand, total) & self.serving(demand)
        if requires is not None:
            fitting &= self.suited(requires)
        return folds(demand, total[fitting], self.pool[fitting]) if fitting.any() else 0

    def serving(self, demand: Vector) -> Bools:
        """Rows meant for containers of this kind, see ``feasibility.serves``; shape (rows,)."""
        return serving_rows(demand, self.gpus, self.gpu_only)

    def rows_of(self, nodes: frozenset[NodeName]) -> Bools:
        """True at the rows of these nodes; shape (rows,)."""
        if self._rows_of_at != self.shape or len(self._rows_of) > _NODE_SETS_KEPT:
            self._rows_of.clear()
            self._rows_of_at = self.shape
        if nodes not in self._rows_of:
            self._rows_of[nodes] = np.fromiter(
                (node in nodes for node in self.nodes), np.bool_, len(self.nodes)
            )
        return self._rows_of[nodes]

    def rows_at(self, platform: str) -> Bools:
        """True at the rows of nodes of this platform, anything at rows that are not in use; shape
        (rows,)."""
        numbers, of_rows = self._platforms()
        found: Bools = of_rows == numbers.get(platform, -1)
        return found

    def cores_at(self) -> dict[str, int]:
        """Cores of open units by platform, in the order of names; what units share counts once."""
        numbers, of_rows = self._platforms()
        usable = np.flatnonzero(self.open)
        _, first = np.unique(self.pool[usable], return_index=True)
        usable = usable[first]
        cores = np.bincount(
            of_rows[usable], self.total[usable, Column.VCORES], minlength=len(numbers)
        )
        return {platform: int(cores[numbers[platform]]) for platform in sorted(numbers)}

    def _platforms(self) -> tuple[dict[str, int], Ints]:
        """A number for each platform, and each row's, shape (rows,)."""
        if self._platforms_at != self.shape:
            numbers: dict[str, int] = {}
            each = (numbers.setdefault(x.platform, len(numbers)) for x in self.properties)
            column = np.fromiter(each, np.int64, len(self.properties))
            self._platforms_known, self._platforms_at = (numbers, column), self.shape
        return self._platforms_known

    def suited(self, requirement: NodeRequirement) -> Bools:
        """True at the rows of nodes that meet this requirement, anything at rows that are not in
        use; shape (rows,). It is computed once, and then kept up to date row by row."""
        rows = self._suited.pop(requirement, None)
        if rows is None:
            rows = np.fromiter(
                (suits(requirement, x) for x in self.properties), np.bool_, len(self.properties)
            )
            if len(self._suited) >= _REQUIREMENTS_KEPT:
                del self._suited[next(iter(self._suited))]
        self._suited[requirement] = rows
        return rows

    @property
    def hosts(self) -> frozenset[str]:
        """Those of all nodes; the same object until one comes or goes."""
        at, hosts = self._hosts
        if at != self.shape:
            found = frozenset(x.host for x in self.properties)
            hosts = hosts if found == hosts else found
            self._hosts = self.shape, hosts
        return hosts

    def restricts(self, requirement: NodeRequirement) -> bool:
        """Is there a node that does not meet it? Most often there is none: of a cluster with one
        Spark."""
        known = self._restricting.get(requirement)
        if known is None or known[0] != self.shape:
            unsuited = ~self.suited(requirement) & (self.total[:, Column.VCORES] > 0)
            if len(self._restricting) >= _REQUIREMENTS_KEPT:
                self._restricting.clear()
            known = self._restricting[requirement] = (self.shape, bool(unsuited.any()))
        return known[1]

    def has_capacity_outside(
        self,
        nodes: frozenset[NodeName],
        demand: Vector,
        requires: NodeRequirement | None = None,
    ) -> bool:
        """Could any open unit of another node, one that meets ``requires``, hold ``demand`` when it
        is empty?"""
        rows = self.open & ~self.rows_of(nodes) & fitting_rows(demand, self.total)
        if requires is not None:
            rows &= self.suited(requires)
        return bool((rows & self.serving(demand)).any())

    def startable(
        self, demand: Vector, requires: NodeRequirement | None = None, *, yields: bool = False
    ) -> int:
        """How many containers of ``demand`` the free capacity of open units would hold, on nodes
        that meet ``requires``; what waits at units is not counted. Unless they yield themselves,
        what yields to them is free."""
        free = self.available(yields=yields)
        rows = self.open & self.serving(demand) & fitting_rows(demand, free)
        if requires is not None:
            rows &= self.suited(requires)
        return folds(demand, free[rows], self.pool[rows]) if rows.any() else 0

    def available(self, *, yields: bool = False) -> Ints:
        """What is free, and, unless it is for what yields, what others yield; shape (rows, 4)."""
        return self.free if yields or not self.any_yields else self.free + self.coming

    def _unit_state(self, row: int) -> UnitState:
        queue = self.queue(row)
        return UnitState(
            unit=queue.unit,
            node=self.node(row),
            is_open=bool(self.open[row]),
            waiting_limit=int(self.waiting_limit[row]),
            running=tuple(queue.running.values()),
            stream_waiting=tuple(queue.stream_waiting.values()),
            batch_waiting=tuple(queue.batch_waiting.values()),
            yielding_waiting=tuple(queue.yielding_waiting.values()),
        )

    def _changed(self, unit_id: ResourceUnitId) -> None:
        self._states.pop(unit_id, None)
        for watcher in self._watchers:
            watcher.add(unit_id)

    def _image(self, row: int) -> UnitImage | None:
        queue = self.queues[row]
        return None if queue is None else queue.image()

    def _grow(self) -> None:
        old, pool = len(self.queues), self.pool
        self.queues.extend([None] * old)
        self.nodes.extend([None] * old)
        self.ids.extend([ResourceUnitId("")] * old)
        self.properties.extend([UNKNOWN_PROPERTIES] * old)
        unused = np.zeros(old, np.bool_)
        self._suited = {x: np.concatenate([rows, unused]) for x, rows in self._suited.items()}
        self._unused = list(range(2 * old - 1, old - 1, -1))
        more = np.zeros_like(self._table)
        more[:, WAITERS_MAX] = _NO_LIMIT
        self._table = np.concatenate([self._table, more])
        self.total = np.concatenate([self.total, np.zeros_like(self.total)])
        self.coming = np.concatenate([self.coming, np.zeros_like(self.coming)])
        self.yields = np.concatenate([self.yields, np.zeros(old, np.bool_)])
        self.open = np.concatenate([self.open, np.zeros(old, np.bool_)])
        self.gpu_only = np.concatenate([self.gpu_only, np.zeros(old, np.bool_)])
        self.shares = np.concatenate([self.shares, np.zeros(old, np.bool_)])
        self.gpus = np.concatenate([self.gpus, np.zeros(old, np.int64)])
        self.preempts = np.concatenate([self.preempts, unused])
        self.pool = np.arange(2 * old, dtype=np.int64)
        self.pool[:old] = pool
        self.shape += 1


def _numbers(queue: UnitQueue | None, version: int, limit: int) -> tuple[int, ...]:
    """The row of a queue that has changed."""
    assert queue is not None
    waiting = queue if len(queue.pool) == 1 else queue.image()
    counts = (len(waiting.stream_waiting), len(waiting.batch_waiting), version + 1, limit)
    return queue.free + queue.stream_headroom + counts
