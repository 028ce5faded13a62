"""Algorithm 1 for all resource units at once: the results of ``estimate.simulate``, without a loop.

The queues of all units are in padded arrays, one column a unit, rewritten only after its queue has
changed. All units are simulated together, one ending container each a step; a few of them one by
one, since a step costs as much for one unit as for a hundred.

Results are cached: while none of a unit's running containers is overdue and none of its waiters
could start at once, the *time* at which a new container would start does not depend on the time of
the query (what ends too late for a reservation now does so later, too). It holds until the queue
changes or the first running container is due. Where one yields nothing is cached: it is due a
while after the query.

Every number is computed by the same operations in the same order as in ``estimate.simulate``, so
both give the same bits, ties included; a property test holds them to it.

Source: HRM paper, section 4.2, algorithm 1; the arrays and the memory are HRM's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hrm.core.queue.estimate import play
from hrm.core.queue.overdue import corrected_ends_s
from hrm.core.queue.start_rule import UnitImage, duration_s, end_s
from hrm.core.vocabulary.bounds import PASSES_MAX
from hrm.core.vocabulary.columns import Bools, Floats, Ints
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import WorkloadClass

__all__ = ["WaitTable"]

_DIMENSIONS = 4
_DEMANDS_KEPT = 16
_FEW = 8
_NO_WAITER, _STREAM, _BATCH, _DRIVER = 0, 1, 2, 3
_OF_RUNNING = (("_ends", np.inf), ("_begun", 0), ("_runs", 0), ("_held", 0), ("_yields", 0))
_OF_WAITING = (("_durations", 0), ("_wanted", 0), ("_kinds", _NO_WAITER), ("_passed", 0))
_OF_UNIT = (("_free", -1), ("_stream_free", 0), ("_first_end", np.inf), ("_grace_s", 0))
"""The arrays, and what their empty cells hold."""


class WaitTable:
    """The queues of all units, and the results computed from them.

    Invariants: a row that is not in ``stale`` has in its column the value of its queue; ``known``
    has at most ``_DEMANDS_KEPT`` demands with their run times, and for each the rows' start times
    with the latest moment for which they hold (-inf: never computed, or no longer true).
    """

    def __init__(self) -> None:
        self.stale: set[int] = set()
        self.known: dict[tuple[Vector, float], tuple[Floats, Floats]] = {}
        self._images: dict[int, UnitImage] = {}
        self._ends: Floats = np.zeros((0, 0))
        self._begun: Floats = np.zeros((0, 0))
        self._runs: Floats = np.zeros((0, 0))
        self._held: Ints = np.zeros((0, _DIMENSIONS, 0), np.int64)
        self._yields: Bools = np.zeros((0, 0), np.bool_)
        self._durations: Floats = np.zeros((0, 0))
        self._wanted: Ints = np.zeros((0, _DIMENSIONS, 0), np.int64)
        self._kinds: Ints = np.zeros((0, 0), np.int64)
        self._passed: Ints = np.zeros((0, 0), np.int64)
        self._free: Ints = np.zeros((_DIMENSIONS, 0), np.int64)
        self._stream_free: Ints = np.zeros((_DIMENSIONS, 0), np.int64)
        self._first_end: Floats = np.zeros(0)
        self._grace_s: Floats = np.zeros(0)

    def update(self, image: Callable[[int], UnitImage | None], rows: int) -> None:
        """Rewrite the stale columns. ``image``: of a row, None where it is not in use."""
        self._widen(rows)
        for row in self.stale:
            self._write(row, image(row))
        changed = list(self.stale)
        for _, until in self.known.values():
            until[changed] = -np.inf
        self.stale.clear()

    def waits_s(self, demand: Vector, rows: Ints, now: float, run_s: float = math.inf) -> Floats:
        """Seconds until a new batch container that runs for ``run_s`` would start at each of
        ``rows``; the same shape.

        Infinite where streams hold what it needs, and at rows that are not in use.
        """
        starts, until = self._memory((demand, run_s))
        unknown = rows[until[rows] < now]
        if len(unknown):
            found, lasting = self._play(demand, unknown, now, run_s)
            starts[unknown] = found
            until[unknown] = np.where(lasting, self._first_end[unknown], -np.inf)
        waits: Floats = starts[rows] - now
        return waits

    def _memory(self, key: tuple[Vector, float]) -> tuple[Floats, Floats]:
        if key not in self.known:
            if len(self.known) >= _DEMANDS_KEPT:
                del self.known[next(iter(self.known))]
            rows = len(self._first_end)
            self.known[key] = (np.zeros(rows), np.full(rows, -np.inf))
        return self.known[key]

    def _play(self, demand: Vector, rows: Ints, now: float, run_s: float) -> tuple[Floats, Bools]:
        """When the container would start, and whether that holds until the first end."""
        if len(rows) <= _FEW and all(row in self._images for row in rows.tolist()):
            each = [play(demand, self._images[row], now, run_s) for row in rows.tolist()]
            at = np.array([start_s for start_s, _ in each])
            begun = np.array([at_once for _, at_once in each], np.bool_)
            return at, ~begun & (self._first_end[rows] >= now)
        wanted = np.asarray(demand, np.int64)[:, np.newaxis]
        starts, at_once = _Play(self, rows, now).run(wanted, run_s)
        return starts, ~at_once & (self._first_end[rows] >= now)

    def _write(self, row: int, image: UnitImage | None) -> None:
        self._ends[:, row] = np.inf
        self._yields[:, row] = False
        self._kinds[:, row] = _NO_WAITER
        self._first_end[row] = np.inf
        if image is None:
            self._free[:, row] = -1
            self._images.pop(row, None)
            return
        self._images[row] = image
        self._free[:, row] = image.free
        self._grace_s[row] = image.yield_grace_s
        running, waiting = image.running, (*image.stream_waiting, *image.batch_waiting)
        self._deepen(len(running), len(waiting))
        if running:
            ends = [end_s(entry) for entry in running]
            self._ends[: len(running), row] = ends
            self._begun[: len(running), row] = [entry.started_at_s for entry in running]
            self._runs[: len(running), row] = [duration_s(entry) for entry in running]
            self._held[: len(running), :, row] = [entry.demand for entry in running]
            self._first_end[row] = min(ends)
            if True in [entry.yields for entry in running]:
                yields = [entry.yields_now for entry in running]
                self._yields[: len(running), row] = yields
                self._first_end[row] = -np.inf if any(yields) else min(ends)
        if image.batch_waiting:
            self._stream_free[:, row] = image.stream_free
        if waiting:
            self._passed[: len(waiting), row] = [entry.passed for entry in waiting]
            self._durations[: len(waiting), row] = [duration_s(entry) for entry in waiting]
            self._wanted[: len(waiting), :, row] = [entry.demand for entry in waiting]
            self._kinds[: len(waiting), row] = [
                _STREAM
                if entry.workload_class is WorkloadClass.STREAM
                else _DRIVER
                if entry.has_no_end
                else _BATCH
                for entry in waiting
            ]

    def _widen(self, rows: int) -> None:
        """Allocate ``rows`` units."""
        more = rows - len(self._first_end)
        if more > 0:
            self._grow(-1, more, (*_OF_RUNNING, *_OF_WAITING, *_OF_UNIT))
            self.known.clear()

    def _deepen(self, running: int, waiting: int) -> None:
        """Allocate that many containers a unit."""
        self._grow(0, running - len(self._ends), _OF_RUNNING)
        self._grow(0, waiting - len(self._kinds), _OF_WAITING)

    def _grow(self, axis: int, more: int, arrays: Iterable[tuple[str, float]]) -> None:
        for name, value in arrays if more > 0 else ():
            setattr(self, name, _pad(getattr(self, name), axis, more, value))


class _Play:
    """Some units, played forward in step. Each attribute is an array; its last axis is the unit.

    A container that starts gets the next free place behind the running ones, so that of two that
    end together the one that started first ends first, as in the heap of the literal form.
    """

    def __init__(self, table: WaitTable, rows: Ints, now: float) -> None:
        ends, kinds = table._ends[:, rows], table._kinds[:, rows]
        late = ends < now
        if late.any():
            begun, runs = table._begun[:, rows][late], table._runs[:, rows][late]
            ends[late] = corrected_ends_s(begun, runs, now)
        yields = table._yields[:, rows]
        if yields.any():
            ends = np.where(yields, np.minimum(ends, now + table._grace_s[rows]), ends)
        places, units = kinds.shape
        self.ends: Floats = _pad(ends, 0, places, np.inf)
        self.held: Ints = _pad(table._held[:, :, rows], 0, places, 0)
        self.free: Ints = table._free[:, rows]
        self.durations: Floats = table._durations[:, rows]
        self.wanted: Ints = table._wanted[:, :, rows]
        self.stream: Bools = kinds == _STREAM
        self.waiting: Bools = kinds != _NO_WAITER
        self.batch: Bools = kinds >= _BATCH
        self.endless: Bools = self.stream | (kinds == _DRIVER)
        self.passes: Ints = PASSES_MAX - table._passed[:, rows]
        self.stream_free: Ints = table._stream_free[:, rows]
        self.reserved: Bools = self.batch & _fit_each(self.wanted, self.stream_free)
        self.next_place: Ints = np.full(units, len(ends), np.int64)
        self.at: Floats = np.full(units, now)
        self.index: Ints = np.arange(units)
        self.open: Bools = np.ones(units, np.bool_)

    def run(self, demand: Ints, run_s: float) -> tuple[Floats, Bools]:
        """When ``demand``, shape (4, 1), starts; and where a waiter or it could start at once."""
        starts_s: Floats = np.full(len(self.at), np.inf)
        at_once: Bools = np.zeros(len(self.at), np.bool_)
        for step in range(len(self.ends) + 1):
            stream_left, begun, reservations = self._start()
            fitting = self.open & ~stream_left & _fit(demand, self.free)
            parts = np.broadcast_to(demand, self.free.shape)
            reservations.hold_up(fitting, parts, np.full(len(self.at), run_s))
            starts_s[self.index[fitting]] = self.at[fitting]
            if step == 0:
                at_once = begun | fitting
            if not len(self.ends):
                break
            first = self.ends.argmin(axis=0)
            units = np.arange(len(first))
            ends = self.ends[first, units]
            self.open &= ~fitting & np.isfinite(ends)
            if not self.open.any():
                break
            self.at = ends
            self.free += self.held[first, :, units].T
            self.ends[first, units] = np.inf
            self._narrow()
        return starts_s, at_once

    def _start(self) -> tuple[Bools, Bools, _Reservations]:
        """Start waiters, as ``startable``; returns where a stream is left, where a waiter started,
        and the reservations of those that are left."""
        stream_left: Bools = np.zeros(len(self.at), np.bool_)
        begun: Bools = np.zeros(len(self.at), np.bool_)
        reservations = _Reservations(self)
        for place in np.flatnonzero(self.waiting.any(axis=1)).tolist():
            here, stream, wanted = self.waiting[place], self.stream[place], self.wanted[place]
            fitting = here & _fit(wanted, self.free)
            starts = fitting & (stream | ~stream_left)
            stream_left |= here & stream & ~starts
            reservations.hold_up(starts, wanted, self.durations[place])
            reservations.to(here & ~fitting & self.reserved[place], place)
            units = np.flatnonzero(starts)
            if not len(units):
                continue
            demands, places = wanted[:, units], self.next_place[units]
            self.ends[places, units] = self.at[units] + self.durations[place, units]
            self.held[places, :, units] = demands.T
            self.free[:, units] -= demands
            self.next_place[units] += 1
            here[units] = False
            self.passes[:place, units] -= 1
            if (endless := self.endless[place, units]).any():
                self._leave_less(units[endless], place)
            begun |= starts
        return stream_left, begun, reservations

    def _leave_less(self, units: Ints, place: int) -> None:
        """The streams and drivers that have started at ``place`` leave less to others."""
        self.stream_free[:, units] -= self.wanted[place][:, units]
        could = _fit_each(self.wanted[:, :, units], self.stream_free[:, units])
        self.reserved[:, units] = self.batch[:, units] & could

    def _narrow(self) -> None:
        """Go on without the units that are done, once they are half of all."""
        left = np.flatnonzero(self.open)
        if 2 * len(left) > len(self.open):
            return
        for name, array in vars(self).items():
            setattr(self, name, array[..., left])


class _Reservations:
    """``Reservation`` to the first waiter of each unit, made when a later one could start."""

    def __init__(self, play: _Play) -> None:
        units = len(play.at)
        self.play = play
        self.place: Ints = np.full(units, -1)
        self.made: Bools = np.zeros(units, np.bool_)
        self.at: Floats = np.full(units, np.inf)
        self.extra: Ints = np.zeros((_DIMENSIONS, units), np.int64)
        self.passes: Ints = np.zeros(units, np.int64)

    def to(self, left: Bools, place: int) -> None:
        """The waiters at ``place`` are left; the first of its unit gets the reservation."""
        self.place[left & (self.place < 0)] = place

    def hold_up(self, starts: Bools, parts: Ints, durations: Floats) -> None:
        """Remove from ``starts`` what a reservation does not allow; count the others."""
        units = np.flatnonzero(starts & (self.place >= 0))
        if not len(units):
            return
        self._make(units[~self.made[units]])
        short = self.play.at[units] + durations[units] <= self.at[units]
        fitting = _fit(parts[:, units], self.extra[:, units])
        allowed = (self.passes[units] > 0) & (short | fitting)
        starts[units[~allowed]] = False
        self.passes[units[allowed]] -= 1
        long = units[allowed & ~short]
        self.extra[:, long] -= parts[:, long]

    def _make(self, units: Ints) -> None:
        if not len(units):
            return
        play, each, places = self.play, np.arange(len(units)), self.place[units]
        wanted = play.wanted[places, :, units].T
        order = play.ends[:, units].argsort(axis=0, kind="stable")
        ends = np.take_along_axis(play.ends[:, units], order, 0)
        held = np.take_along_axis(play.held[:, :, units], order[:, np.newaxis], 0)
        free = held.cumsum(axis=0) + play.free[:, units]
        enough: Bools = np.all(wanted <= free, axis=1)
        enough &= np.isfinite(ends)
        at = np.where(enough.any(axis=0), ends[enough.argmax(axis=0), each], np.inf)
        last = np.maximum(0, (ends <= at).sum(axis=0) - 1)
        self.at[units] = at
        self.extra[:, units] = free[last, :, each].T - wanted
        self.passes[units] = play.passes[places, units]
        self.made[units] = True


def _fit(demands: Ints, offers: Ints) -> Bools:
    """``feasibility.fits``, dimension by dimension, shapes (4, units): faster than a reduction."""
    fitting: Bools = demands[0] <= offers[0]
    for dimension in range(1, _DIMENSIONS):
        fitting &= demands[dimension] <= offers[dimension]
    return fitting


def _fit_each(demands: Ints, offers: Ints) -> Bools:
    """The same for each of the first axis of ``demands``, shape (n, 4, units)."""
    fitting: Bools = np.all(demands <= offers, axis=1)
    return fitting


def _pad(array: npt.NDArray[Any], axis: int, more: int, value: float) -> npt.NDArray[Any]:
    """``array`` with ``more`` cells of ``value`` at the end of ``axis``."""
    shape = list(array.shape)
    shape[axis] = more
    return np.concatenate([array, np.full(shape, value, array.dtype)], axis=axis)
