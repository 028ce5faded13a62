"""Do containers of several sizes fit into the empty cluster together?

Each may fit an empty node, and all of them in sum, while no way of placing them fits: executors of
four, three and three cores on two nodes of five. To say for certain that there is no way is as hard
as bin packing. So this looks for one, and what it has not found may still exist: that is worth
telling, and no reason to refuse anything.

The search is first-fit decreasing, from *Near-optimal bin packing algorithms* (Johnson, 1973), in a
few variants, for sizes have several dimensions: which counts first, and whether small units are
filled before large ones. All of one size are placed unit by unit, so it costs sizes times units.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hrm.core.vocabulary.feasibility import (
    Vector,
    capacity_vector,
    could_hold,
    demand_vector,
    minus,
    pooled_part,
)
from hrm.core.vocabulary.model import ResourceUnit, ResourceUnitId

__all__ = ["left_over", "times"]


def times(demand: Vector, offer: Vector) -> int:
    """How many containers of ``demand`` fit into ``offer`` together."""
    folds = [have // want for want, have in zip(demand, offer, strict=True) if want > 0]
    return max(0, min(folds))


def left_over(members: Mapping[Vector, int], units: Sequence[ResourceUnit]) -> Counter[Vector]:
    """What finds no place on ``units``, all of them empty, when so many of each size are placed;
    of the trial that leaves the fewest. Empty: all fit."""
    orders: list[Callable[[Vector], tuple[int, ...]]] = [
        lambda x: (x[2], x[0], x[1]),
        lambda x: (x[2], x[1], x[0]),
    ]
    best = Counter(members)
    for order, smallest_first in itertools.product(orders, (True, False)):
        sizes = sorted(members, key=order, reverse=True)
        found = _trial([(x, members[x]) for x in sizes], units, smallest_first=smallest_first)
        if found.total() < best.total():
            best = found
        if not best:
            break
    return best


@dataclass(slots=True)
class _Pool:
    """What units that share their vcores and memory have left of these together."""

    left: Vector


def _trial(
    members: Iterable[tuple[Vector, int]], units: Sequence[ResourceUnit], *, smallest_first: bool
) -> Counter[Vector]:
    in_order = sorted(units, key=capacity_vector, reverse=not smallest_first)
    pools: dict[ResourceUnitId, _Pool] = {}
    for unit in units:
        pools.setdefault(unit.pool or unit.unit_id, _Pool(demand_vector(unit.target)))
    of = [pools[unit.pool or unit.unit_id] for unit in in_order]
    offers = [capacity_vector(unit) for unit in in_order]
    left: Counter[Vector] = Counter()
    for demand, many in members:
        shared, alone = pooled_part(demand), many
        for index, unit in enumerate(in_order):
            if not could_hold(demand, unit):
                continue
            count = min(alone, times(demand, offers[index]), times(shared, of[index].left))
            offers[index] = minus(offers[index], _by(demand, count))
            of[index].left = minus(of[index].left, _by(shared, count))
            alone -= count
            if not alone:
                break
        if alone:
            left[demand] = alone
    return left


def _by(demand: Vector, count: int) -> Vector:
    return (demand[0] * count, demand[1] * count, demand[2] * count, demand[3] * count)
