"""What placement policies share: which rows admit a container, and orders in which to take them.

The masks are vector operations over all units; what takes rows loops over containers, never
over units, and put what they choose on the view at once (``ClusterView.apply``), so that the next
choice sees it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.vocabulary.feasibility import Column, Vector, fitting_rows, leaves
from hrm.core.vocabulary.model import WorkloadClass

__all__ = [
    "Floats",
    "Ints",
    "by_score",
    "first_row",
    "fullest_nodes_first",
    "immediately_feasible",
    "in_order",
    "in_turn",
    "in_turn_feasible",
    "may_still_wait",
    "queueable",
    "to_least_wait",
    "to_shortest_queue",
    "used_share",
    "with_nones",
]

GOLDEN_SECTION = (5**0.5 - 1) / 2

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


def first_row(index: int, view: ClusterView) -> int:
    """Where scheduler number ``index`` begins, so that any number of them stand far apart.

    Steps of the golden section put each next one into the largest gap. Schedulers that begin at
    neighbouring rows choose the same units, and all but one of them fail to commit.
    """
    return int(index * GOLDEN_SECTION % 1.0 * view.units)


def immediately_feasible(view: ClusterView, placement: Placement) -> Ints:
    """Rows at which a container of ``placement`` would start at once, in row order."""
    no_waiters = view.waiting_before(placement.workload_class) == 0
    feasible = view.open & no_waiters & fitting_rows(placement.demand, view.free)
    return np.flatnonzero(feasible)


def queueable(view: ClusterView, placement: Placement, now: float) -> tuple[Ints, Floats]:
    """Rows at which one more may wait, in row order, with the wait at each.

    The wait is Algorithm 1's: estimated seconds for batch, stream waiters for streams. Batch waits
    under both bounds, and at no unit that shares its cores (``hrm.core.scheduling.negotiator``). A
    stream waits only where batch can make capacity for it (section 4.3.1), so there is no other
    bound of how many do, and batch that waits is none. Other streams have no end:
    what they hold it waits for at its scheduler, bound to no unit. Nor is it certain when batch
    ends that is not preempted: there wait none that start together, and others as a last resort.
    """
    admitting = view.open & view.could_ever_fit(placement.demand)
    if placement.workload_class is WorkloadClass.STREAM:
        if not placement.waiting_limit:
            admitting = np.zeros_like(admitting)
        rows = np.flatnonzero(admitting & view.streams_leave(placement.demand))
        certain = rows[view.preempts[rows]]
        if placement.together or len(certain):
            rows = certain
        return rows, view.waiting_stream[rows].astype(np.float64)
    admitting &= view.waiting < np.minimum(placement.waiting_limit, view.waiting_limit)
    rows = np.flatnonzero(admitting & ~view.shares)
    if not len(rows):
        return rows, np.zeros(0)
    waits = view.waits_s(placement.demand, rows, now, placement.run_s)
    bounded = (waits < placement.wait_max_s) & np.isfinite(waits)
    return rows[bounded], waits[bounded]


def may_still_wait(
    view: ClusterView, placement: Placement, row: int, now: float
) -> tuple[bool, float]:
    """The same for one row that has just got a container: does it admit another, at what wait?"""
    if placement.workload_class is WorkloadClass.STREAM:
        left = leaves(view.stream_headroom[row].tolist(), placement.demand)
        left = left and (bool(view.preempts[row]) or not placement.together)
        return left and placement.waiting_limit > 0, float(view.waiting_stream[row])
    limit = min(placement.waiting_limit, int(view.waiting_limit[row]))
    if view.waiting_at(row) >= limit or view.shares[row]:
        return False, math.inf
    wait_s = view.wait_s(placement.demand, row, now, placement.run_s)
    return wait_s < placement.wait_max_s and not math.isinf(wait_s), wait_s


def in_order(
    view: ClusterView, demand: Vector, entries: Sequence[Entry], rows: Ints, now: float
) -> list[int]:
    """Fill the first of ``rows``, which all have capacity, then the second, and so on."""
    if not len(rows):
        return []
    wanted = np.asarray(demand, np.int64)
    fold = view.free[rows][:, wanted > 0] // wanted[wanted > 0]
    placed: list[int] = []
    for row in map(int, np.repeat(rows, np.minimum(fold.min(axis=1), len(entries)))):
        if len(placed) == len(entries):
            break
        # Of units that share their cores, the first may have taken what the next counted on.
        if np.all(view.free[row] >= wanted):
            view.apply(row, entries[len(placed)], now)
            placed.append(row)
    return placed


def fullest_nodes_first(view: ClusterView, rows: Ints, demand: Vector) -> Ints:
    """``rows`` in another order: of a node whose units share cores all together, the node with the
    least left first, and within it the unit with the least device memory left.

    So whole GPUs, and nodes that have cores for them, stay free for those that need one. What has
    no need of a GPU goes where the fewest are left.
    """
    pool, device, cores = view.pool, Column.GPU_MEMORY_MIB, Column.VCORES
    nodes = int(pool.max(initial=0)) + 1
    left, total = (
        np.bincount(pool, x[:, device], nodes)[pool[rows]] for x in (view.free, view.total)
    )
    cores_left = view.free[rows, cores] / np.maximum(1, view.total[rows, cores])
    if demand[device]:
        left = left / np.maximum(1, total) + cores_left
    order: Ints = np.lexsort((view.free[rows, device], pool[rows], cores_left, left))
    return rows[order]


def in_turn_feasible(
    view: ClusterView, placement: Placement, cursor: int, now: float
) -> tuple[list[int], int]:
    """One entry to each row with capacity, from row ``cursor`` on, pass after pass.

    Returns the choice and the next cursor. Most of the time only the first few rows are read, and
    where all of them were, the next pass reads those alone that had capacity.
    """
    demand, workload_class = placement.demand, placement.workload_class
    entries = placement.entries
    chosen: list[int] = []
    turn = None
    while len(chosen) < len(entries):
        left = entries[len(chosen) :]
        if turn is None:
            turn = view.immediately_feasible(demand, workload_class, cursor, len(left))
        else:
            turn = view.still_feasible(demand, turn)[: len(left)]
        if not len(turn):
            break
        together = view.apply_all(turn, left[: len(turn)], now)
        if not together:
            turn = turn[:1]  # what it takes is gone from its siblings too: query again
            view.apply(int(turn[0]), left[0], now)
        chosen += turn.tolist()
        cursor = chosen[-1] + 1
        if not together:
            turn = None
    return chosen, cursor


def in_turn(
    view: ClusterView,
    entries: Sequence[Entry],
    rows: Callable[[], Ints],
    cursor: int,
    now: float,
) -> tuple[list[int], int]:
    """One entry to each row after the other, from row ``cursor`` on, pass after pass.

    ``rows``: called before every pass. Returns the choice and the next cursor.
    """
    chosen: list[int] = []
    while len(chosen) < len(entries):
        admitting = rows()
        turn = np.roll(admitting, -int(np.searchsorted(admitting, cursor)))
        turn = turn[: len(entries) - len(chosen)]
        if not len(turn):
            break
        for row in turn.tolist():
            view.apply(row, entries[len(chosen)], now)
            chosen.append(row)
            if view.siblings(row):
                break  # what it took is gone from them too: query the rows again
        cursor = chosen[-1] + 1
    return chosen, cursor


def by_score(
    view: ClusterView,
    entries: Sequence[Entry],
    rows: Ints,
    scores: Floats,
    again: Callable[[int], tuple[bool, float]],
    now: float,
    *,
    contended: Vector | None = None,
) -> list[int]:
    """Each entry to the row with the least score; of equals, the one that stands first in ``rows``.

    ``again``: whether a row that has just got a container admits another, and its new score, which
    must not be less than the old one. So at most as many rows as entries can ever matter, except
    where a row loses the capacity ``contended`` to one that shares its cores.
    """
    best = np.argsort(scores, kind="stable").tolist()
    if contended is None or not view.shares_cores:
        best = best[: len(entries)]
    heap = [(float(scores[index]), index, int(rows[index])) for index in best]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < len(entries):
        _, index, row = heapq.heappop(heap)
        if contended is not None and not leaves(view.free[row].tolist(), contended):
            continue
        view.apply(row, entries[len(chosen)], now)
        chosen.append(row)
        admits, score = again(row)
        if admits:
            heapq.heappush(heap, (score, index, row))
    return chosen


def to_shortest_queue(
    view: ClusterView, placement: Placement, entries: Sequence[Entry], now: float
) -> list[int]:
    """Let entries wait where the fewest wait; of equals at the first row."""
    if not entries:
        return []
    rows, _ = queueable(view, placement, now)

    def again(row: int) -> tuple[bool, float]:
        return may_still_wait(view, placement, row, now)[0], float(view.waiting_at(row))

    lengths = view.waiting[rows].astype(np.float64)
    return by_score(view, entries, rows, lengths, again, now)


def to_least_wait(
    view: ClusterView, placement: Placement, entries: Sequence[Entry], first: int, now: float
) -> list[int]:
    """Let entries wait where the estimated wait is least; of equals at the next row from ``first``
    on."""
    if not entries or not placement.waiting_limit:
        return []
    rows, waits = queueable(view, placement, now)
    shift = -int(np.searchsorted(rows, first))
    return by_score(
        view,
        entries,
        np.roll(rows, shift),
        np.roll(waits, shift),
        lambda row: may_still_wait(view, placement, row, now),
        now,
    )


def used_share(view: ClusterView, rows: Ints) -> Floats:
    """How full each row is: the mean over what it has of the part in use, 0 to 1."""
    total = view.total[rows]
    used = np.divide(total - view.free[rows], total, out=np.zeros(total.shape), where=total > 0)
    shares: Floats = used.sum(axis=1) / np.maximum((total > 0).sum(axis=1), 1)
    return shares


def with_nones(chosen: Sequence[int], entries: Sequence[Entry]) -> list[int | None]:
    """The answer of ``place``: None for the entries at the end that got no row."""
    return [*chosen, *[None] * (len(entries) - len(chosen))]
