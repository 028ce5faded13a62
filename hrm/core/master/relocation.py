"""Waiting containers that move to capacity that is free now.

A container waits at the unit that was expected to have capacity for it first. That is an estimate:
units elsewhere may become free before. So containers that have waited for long are searched
periodically, and if one could start elsewhere now its node is ordered to return it, if it still
waits. It ends there, its application requests it again, and the request goes to the free unit.

A stream that waits where other streams or drivers hold what it needs is returned at once, wherever
it may go: it may have been batch when it was queued. They have no end, and while it waits no batch
starts there. At its scheduler it waits for any unit. So does batch, once it has waited for long: it
would keep gangs from the unit, which wait behind nothing, and the driver may be theirs.

A stream that waits where batch is not preempted waits for batch to end, which may be never. It
moves to a unit where batch is preempted for it as to one that has capacity: batch that has come
there before is preempted.

One that waits at a node which does not meet its application's requirement, as when the node has
changed or Spark has excluded its host, is returned at once, too; a driver as well.

What others yield counts as free for one that does not yield itself; and one that yields moves to
what is free when all others have been looked at, also beside batch that waits for more than that.

Which containers stay, see ``core.master.returns``. One container is moved to a unit at a time, and
the next no sooner than ``relocation_wait_s`` later: it takes its application a while to request
again.

Source: not in the HRM paper, whose containers stay with their unit (sections 3.3 and 3.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hrm.core.master.entities import Container
from hrm.core.master.returns import may_return, return_waiting, starts_where_it_waits
from hrm.core.master.state import MasterState
from hrm.core.queue.yielding import spare
from hrm.core.vocabulary.columns import Ints
from hrm.core.vocabulary.feasibility import Column, Vector, fits, leaves, plus, serves
from hrm.core.vocabulary.model import ContainerState, NodeName, ResourceUnitId
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["ROWS_MAX", "Relocation"]

ROWS_MAX = 256
"""Units with waiters, and units with free capacity, examined in one tick; others come next time."""

_ENDLESS = "streams and drivers hold what it needs there"


class _Wanted(NamedTuple):
    """What a container needs of another unit. ``in_vain``: batch is not preempted for it.
    ``yields``: others do not yield to it."""

    demand: Vector
    avoided: frozenset[NodeName]
    requires: NodeRequirement | None
    in_vain: bool
    yields: bool = False


class Relocation:
    """Scans all units, some at a time."""

    def __init__(self, master_state: MasterState) -> None:
        self._master_state = master_state
        self._from = self._free_from = self._spare_from = self._batch_from = 0
        self._offered: dict[ResourceUnitId, float] = {}
        self._next_run_s = 0.0

    def tick(self, now: float) -> None:
        """Periodically, all that may be better off elsewhere."""
        master_state = self._master_state
        if now < self._next_run_s or master_state.recovering:
            return
        self._next_run_s = now + master_state.bounds.relocation_period_s
        state = master_state.state
        self._return_streams(now)
        self._return_unsuited(now)
        waiting = state.waiting_batch + state.waiting_stream
        if not waiting.any() and not state.waiting_last:
            return
        self._return_batch(now)
        wait_s = master_state.bounds.relocation_wait_s
        self._offered = {unit: at for unit, at in self._offered.items() if now - at < wait_s}
        free_rows = self._free_rows(waiting)
        unserved = (state.waiting_stream > 0) & ~state.preempts
        rows = np.flatnonzero(waiting if free_rows else unserved)
        hopeless: set[_Wanted] = set()
        found = sorted(self._waiting(rows, now), key=_age)
        spare_rows = self._spare_rows(now) if state.waiting_last else {}
        if free_rows or spare_rows:
            found += sorted(self._waiting_last(now), key=_age)
        for container, demand in found:
            avoided = master_state.exclusions.avoided(container.application_id, now)
            requires = master_state.required(master_state.applications[container.application_id])
            waits_in_vain = self._waits_in_vain(container)
            yields = container.request.yields
            wanted = _Wanted(demand, avoided, requires, waits_in_vain, yields)
            if wanted in hopeless:
                continue
            why, row = "has capacity now", self._place(wanted, free_rows, container.unit_id)
            if row is None and yields:
                why, row = "has some to spare", self._place(wanted, spare_rows, container.unit_id)
            if row is None and waits_in_vain:
                why, row = "preempts batch for it", self._preempting(wanted)
            if row is None:
                hopeless.add(wanted)
                continue
            free_rows.pop(row, None)
            spare_rows.pop(row, None)
            self._offered[state.ids[row]] = now
            return_waiting(master_state, container, f"{state.ids[row]} {why}", now)

    def _return_streams(self, now: float) -> None:
        """Streams for which batch could not make capacity where they wait, the latest first."""
        master_state, state = self._master_state, self._master_state.state
        some = np.flatnonzero((state.waiting_stream > 0) & (state.stream_headroom < 0).any(axis=1))
        for row in some[:ROWS_MAX].tolist():
            queue, node = state.queue(row), master_state.nodes[state.node(row)]
            headroom = queue.stream_headroom
            for entry in reversed(queue.stream_waiting.values()):
                headroom = plus(headroom, entry.demand)
                if leaves(headroom, entry.demand):
                    break
                container = node.containers.get(entry.container_id)
                if container is not None and may_return(master_state, container, now):
                    return_waiting(master_state, container, _ENDLESS, now)

    def _return_batch(self, now: float) -> None:
        """Batch to which the streams and drivers that run where it waits leave too little, and that
        keeps others from what they do leave."""
        master_state, state = self._master_state, self._master_state.state
        some = (state.waiting_batch > 0) & (state.stream_headroom < state.total).any(axis=1)
        some &= state.free[:, Column.VCORES] > 0
        rows, self._batch_from = _some(np.flatnonzero(some), self._batch_from)
        for row in rows.tolist():
            queue, node = state.queue(row), master_state.nodes[state.node(row)]
            if not any(x.has_no_end for each in queue.pool for x in each.running.values()):
                continue
            left = queue.beside_endless()
            for entry in queue.batch_waiting.values():
                container = node.containers.get(entry.container_id)
                if container is None or fits(entry.demand, left):
                    continue
                if self._may_move(container, now):
                    return_waiting(master_state, container, _ENDLESS, now)

    def _return_unsuited(self, now: float) -> None:
        """Containers that wait where their application may have none."""
        resend_s = self._master_state.bounds.resend_delay_s
        for app in self._master_state.restricted.values():
            for container in app.in_state(ContainerState.ASSIGNED, ContainerState.WAITING):
                if now - container.sent_at_s < resend_s or container.stop_cause is not None:
                    continue
                why = self._master_state.unsuited(container)
                if why:
                    reason = f"{container.node} {why}"
                    return_waiting(self._master_state, container, reason, now)

    def _waits_in_vain(self, container: Container) -> bool:
        """Is it a stream where batch is not preempted for it?"""
        queue = self._master_state.state.find(container.unit_id)
        return (
            queue is not None
            and container.container_id in queue.stream_waiting
            and not queue.unit.preempts
        )

    def _place(
        self, wanted: _Wanted, free_rows: dict[int, Vector], own: ResourceUnitId
    ) -> int | None:
        """A row that could start such a container at once, or once others have yielded. Where one
        does not yield nothing waits there but what does, so it is another than the container's
        ``own``, perhaps of the same node: each of its GPUs has one."""
        demand, avoided, requires, _, yields = wanted
        state = self._master_state.state
        suited = None if requires is None else state.suited(requires)
        for row, free in free_rows.items():
            if state.node(row) in avoided or not fits(demand, free):
                continue
            if yields and (state.ids[row] == own or not fits(demand, state.queue(row).free)):
                continue
            if suited is not None and not suited[row]:
                continue
            if serves(demand, int(state.gpus[row]), bool(state.gpu_only[row])):
                return row
        return None

    def _preempting(self, wanted: _Wanted) -> int | None:
        """A row at which such a stream may wait, and has batch preempted for it."""
        demand, avoided, requires, _, _ = wanted
        state = self._master_state.state
        if not self._master_state.bounds.waiting_limit:
            return None
        asked = np.flatnonzero(demand)
        rows = state.open & state.preempts & state.serving(demand)
        rows &= (state.stream_headroom[:, asked] >= np.asarray(demand)[asked]).all(axis=1)
        if requires is not None:
            rows &= state.suited(requires)
        if avoided:
            rows &= ~state.rows_of(avoided)
        found = (row for row in np.flatnonzero(rows) if state.ids[row] not in self._offered)
        return next(map(int, found), None)

    def _free_rows(self, waiting: Ints) -> dict[int, Vector]:
        """Rows without waiters and with something free, mapped to what is free. Rows to which a
        container is on its way are left out."""
        state, free = self._master_state.state, self._master_state.state.available()
        rows = np.flatnonzero(
            state.open & (free[:, Column.VCORES] > 0) & (free[:, Column.SLOTS] > 0) & (waiting == 0)
        )
        some, self._free_from = _some(rows, self._free_from)
        numbers = free[some].tolist()
        return {
            int(row): (a, b, c, d)
            for row, (a, b, c, d) in zip(some, numbers, strict=True)
            if state.ids[row] not in self._offered
        }

    def _spare_rows(self, now: float) -> dict[int, Vector]:
        """The same of rows where batch waits for more than is free, for what yields: what it finds
        there (``yielding.spare``)."""
        state = self._master_state.state
        rows = np.flatnonzero(
            state.open
            & (state.waiting_batch > 0)
            & (state.waiting_stream == 0)
            & (state.free[:, Column.VCORES] > 0)
            & (state.free[:, Column.SLOTS] > 0)
        )
        some, self._spare_from = _some(rows, self._spare_from)
        found = {
            int(x): spare(state.queue(x), now) for x in some if state.ids[x] not in self._offered
        }
        return {row: left for row, left in found.items() if any(left)}

    def _waiting(self, rows: Ints, now: float) -> Iterator[tuple[Container, Vector]]:
        """Those that may move, with what they request; at some units now, at others next time."""
        master_state, state = self._master_state, self._master_state.state
        some, self._from = _some(rows, self._from)
        for row in some:
            queue = state.queue(int(row))
            node = master_state.nodes[state.node(int(row))]
            for entry in (*queue.stream_waiting.values(), *queue.batch_waiting.values()):
                container = node.containers.get(entry.container_id)
                if container is not None and self._may_move(container, now):
                    yield container, entry.demand

    def _waiting_last(self, now: float) -> Iterator[tuple[Container, Vector]]:
        """Those that yield and may move."""
        master_state, state = self._master_state, self._master_state.state
        for row in sorted(state.waiting_last)[:ROWS_MAX]:
            node = master_state.nodes[state.node(row)]
            for entry in state.queue(row).yielding_waiting.values():
                container = node.containers.get(entry.container_id)
                if container is not None and self._may_move(container, now):
                    yield container, entry.demand

    def _may_move(self, container: Container, now: float) -> bool:
        """Where it starts where it waits, by all that is known, it would be placed there again: a
        node may run what this master does not know yet, whose store was lost."""
        wait_s = self._master_state.bounds.relocation_wait_s
        has_waited = now - container.assigned_at_s >= wait_s
        return (
            has_waited
            and may_return(self._master_state, container, now)
            and not starts_where_it_waits(self._master_state, container)
        )


def _some(rows: Ints, start: int) -> tuple[Ints, int]:
    """Some of these rows, in order from ``start`` on and then from the first; where to go on."""
    some = np.roll(rows, -int(np.searchsorted(rows, start)))[:ROWS_MAX]
    return some, int(some[-1]) + 1 if len(rows) > ROWS_MAX else 0


def _age(found: tuple[Container, Vector]) -> tuple[float, str]:
    return found[0].assigned_at_s, found[0].container_id
