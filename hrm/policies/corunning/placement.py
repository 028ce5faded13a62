"""The choice: a combination that lacks the tenant, an empty unit for one, the least cost elsewhere.

All containers of a call are of one tenant. They go, in this order,

1. to units whose goal lacks their tenant, the fullest first, until each has its part;
2. to empty units, as the beginnings of combinations with it that are still wanted;
3. to any other unit that could start them, where what it costs them, and what they cost those that
   run there, is least; of those that cost the same (to a thousandth), to the fullest.

Where none is immediately feasible they wait at the unit with the fewest waiters. Where nothing is
known of slowdowns and the policy is about them, every choice is that of best fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.co_running import CoRunning, UnknownCoRunning
from hrm.core.scheduling.scheduler import Placement
from hrm.core.vocabulary.feasibility import Column, Vector, fits, fitting_rows, leaves
from hrm.policies.corunning.mappers import alone, in_turn_by_pairs, most_affected_by_pairs
from hrm.policies.corunning.slowdowns import AnyOther, PairCosts
from hrm.policies.corunning.target import Mapper, Target
from hrm.policies.corunning.unit_mixes import UnitMixes
from hrm.policies.placement_helpers import (
    Floats,
    Ints,
    by_score,
    immediately_feasible,
    in_order,
    to_shortest_queue,
    used_share,
    with_nones,
)

__all__ = ["PlaceInTurn", "PlaceMostAffectedFirst", "PlaceTenantsApart"]

_DIGITS = 3
"""Of costs that count: what is measured is not known better."""


class _FollowsMapping:
    """Keeps what can be read from the view again, so a restart misses nothing.

    ``_by_slowdowns``: is the policy about them, and has nothing to do where none is known?
    """

    name: str
    _mapper: Mapper
    _by_slowdowns = True

    def __init__(self, index: int = 0) -> None:
        del index
        self.learns_from(UnknownCoRunning())

    def learns_from(self, co_running: CoRunning) -> None:
        """Ask ``co_running`` from now on; see ``hrm.core.scheduling.co_running``."""
        self._co_running = co_running
        self._mixes = UnitMixes(co_running)
        self._target = Target(self._mixes, co_running, self._mapper)
        self._pairs = PairCosts(co_running)
        self._generation = 0

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries, demand = placement.entries, placement.demand
        rows = immediately_feasible(view, placement)
        chosen: list[int] = []
        if len(rows) and entries:
            if self._by_slowdowns and not self._co_running.revision:
                order = np.argsort(-used_share(view, rows), kind="stable")
                chosen = in_order(view, demand, entries, rows[order], now)
            else:
                chosen = self._start(view, placement, rows, now)
        chosen += to_shortest_queue(view, placement, entries[len(chosen) :], now)
        return with_nones(chosen, entries)

    def _start(self, view: ClusterView, placement: Placement, rows: Ints, now: float) -> list[int]:
        """The choice among ``rows``, at which one container at least would start at once."""
        entries, demand, mixes = placement.entries, placement.demand, self._mixes
        changed = mixes.update(view)
        if self._generation != mixes.generation:
            self._generation = mixes.generation
            self._pairs.clear()
        self._target.follow(changed)
        tenant = mixes.number_of(entries[0].container_id)
        wanted = [len(entries) * each for each in demand]
        self._target.renew(view, {tenant: (wanted[0], wanted[1], wanted[2], wanted[3])}, now)
        chosen = self._follow(view, placement, rows, tenant, now)
        left = entries[len(chosen) :]
        if left:
            weights = self._weights(tenant)
            chosen += self._cheapest(view, left, rows, tenant, weights, chosen, now)
        return chosen

    def _weights(self, tenant: int) -> Floats:
        return self._pairs.weights(tenant, self._mixes.tenants)

    def _follow(
        self, view: ClusterView, placement: Placement, rows: Ints, tenant: int, now: float
    ) -> list[int]:
        """Steps 1 and 2."""
        target, mixes, entries = self._target, self._mixes, placement.entries
        has_tenant = target.combinations_of(tenant)
        if has_tenant is None:
            return []
        each = _taken(mixes, rows, placement.demand)
        goal = target.goal[rows]
        begun = np.flatnonzero(has_tenant[goal])
        lacking = (target.parts[goal[begun]] - mixes.has(tenant, rows[begun])) // each[begun]
        begun, lacking = begun[lacking > 0], lacking[lacking > 0]
        order = np.argsort(-used_share(view, rows[begun]), kind="stable")
        chosen = _fill(view, entries, rows[begun[order]], lacking[order].tolist(), now)
        if len(chosen) < len(entries):
            empty = np.flatnonzero((mixes.used[rows] == 0) & (goal < 0))
            chosen += self._begin(
                view, entries[len(chosen) :], rows[empty], each[empty], tenant, now
            )
        return chosen

    def _begin(
        self,
        view: ClusterView,
        entries: Sequence[Entry],
        rows: Ints,
        each: Ints,
        tenant: int,
        now: float,
    ) -> list[int]:
        """Step 2, on ``rows``, all empty; ``each``: what one container takes there."""
        mixes, chosen = self._mixes, list[int]()
        kinds = 2 * mixes.size[rows] + mixes.on_gpu[rows]
        for kind in np.unique(kinds).tolist():
            group = (kind // 2, bool(kind % 2))
            some = np.flatnonzero(kinds == kind)
            counts: list[int] = []
            for part, units in self._target.still_wanted(group, tenant):
                counts += [part // int(each[some[0]])] * min(units, len(some) - len(counts))
                if len(counts) >= min(len(some), len(entries)):
                    break
            ready = rows[some[: len(counts)]]
            chosen += _fill(view, entries[len(chosen) :], ready, counts, now)
        return chosen

    def _cheapest(
        self,
        view: ClusterView,
        entries: Sequence[Entry],
        rows: Ints,
        tenant: int,
        weights: Floats,
        placed: Sequence[int],
        now: float,
    ) -> list[int]:
        """Step 3, after ``placed`` of the same tenant have gone to those rows."""
        mixes, demand = self._mixes, entries[0].demand
        if placed:
            rows = rows[fitting_rows(demand, view.free[rows])]
        each = _taken(mixes, rows, demand)
        more = each * np.isin(rows, placed) if placed else 0
        if placed:
            counts = np.bincount(placed, minlength=len(mixes.size))
            more = each * counts[rows]
        others = np.maximum(1, mixes.size[rows] - 1)
        costs = np.round((mixes.expected(weights, rows) + weights[tenant] * more) / others, _DIGITS)
        if len(rows) > len(entries) and not view.shares_cores:
            # At most as many rows as containers can matter, and what ties with the last of them.
            limit = np.partition(costs, len(entries) - 1)[len(entries) - 1]
            kept = np.flatnonzero(costs <= limit)
            rows, costs, each, others = rows[kept], costs[kept], each[kept], others[kept]
        order = np.lexsort((-used_share(view, rows), costs))
        rows, costs = rows[order], costs[order]
        if weights[tenant] <= 0:
            return in_order(view, demand, entries, rows, now)
        step = dict(
            zip(rows.tolist(), (weights[tenant] * each / others)[order].tolist(), strict=True)
        )
        cost = dict(zip(rows.tolist(), costs.tolist(), strict=True))

        def again(row: int) -> tuple[bool, float]:
            cost[row] += step[row]
            return leaves(view.free[row].tolist(), demand), cost[row]

        return by_score(view, entries, rows, costs, again, now, contended=demand)


def _taken(mixes: UnitMixes, rows: Ints, demand: Vector) -> Ints:
    """What one container takes at each of ``rows``, cores or slots; 1 at least."""
    taken: Ints = np.where(mixes.on_gpu[rows], demand[Column.SLOTS], demand[Column.VCORES])
    return np.maximum(1, taken)


def _fill(
    view: ClusterView, entries: Sequence[Entry], rows: Ints, counts: Sequence[int], now: float
) -> list[int]:
    """Put as many as ``counts`` at each of ``rows`` in their order, as far as they start there."""
    chosen: list[int] = []
    for row, count in zip(rows.tolist(), counts, strict=True):
        for _ in range(min(count, len(entries) - len(chosen))):
            entry = entries[len(chosen)]
            if not fits(entry.demand, _free(view, row)):
                break
            view.apply(row, entry, now)
            chosen.append(row)
        if len(chosen) == len(entries):
            break
    return chosen


def _free(view: ClusterView, row: int) -> Vector:
    vcores, memory_mib, device_mib, slots = view.free[row].tolist()
    return vcores, memory_mib, device_mib, slots


class PlaceTenantsApart(_FollowsMapping):
    """Whole units for each tenant; what is left over goes where the fewest cores run others."""

    name = "one-tenant-per-node"
    _mapper = staticmethod(alone)
    _by_slowdowns = False
    _others = AnyOther()

    def _weights(self, tenant: int) -> Floats:
        return self._others.weights(tenant, self._mixes.tenants)


class PlaceMostAffectedFirst(_FollowsMapping):
    """Those that suffer most from others get the neighbours that they prefer."""

    name = "most-affected-first"
    _mapper = staticmethod(most_affected_by_pairs)


class PlaceInTurn(_FollowsMapping):
    """Each tenant in turn gets the neighbours that it prefers, for a unit or a few."""

    name = "co-runner-round-robin"
    _mapper = staticmethod(in_turn_by_pairs)
