"""The target: how many units are to run which combination of tenants, and which unit is which.

Like units, of the same number of cores (of slots, with GPUs), form a group, and each group has a
mapping of its own over the cores that tenants hold there and would get of those that are free.
Cores that none wants are a tenant as well, ``IDLE``, which neither suffers nor hurts: where there
are enough, those that suffer most share a unit with it. What a mapping leaves over, less than a
combination's part of a tenant, has no target.

A unit gets a *goal* as soon as it runs something: a combination that has all of its mix and is
still wanted. It keeps the goal while its mix fits, so each combination has as many units as are
wanted at most. The target is made again when shares or slowdowns have changed by more than a
little; whether they have is looked at the less often the more units and tenants there are, so that
this takes a small part of the time.

Source: two-level fairness paper, algorithm 3; the matching of units to its result is HRM's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.co_running import CoRunning, Tenant
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.policies.corunning.unit_mixes import TenantMix, UnitMixes
from hrm.policies.placement_helpers import Ints
from hrm.policies.sharing.fair_share import fair_share

__all__ = ["Combinations", "Group", "Mapper", "Target"]

_CHECK_S_PER_ROW = 1e-4
_CHECK_S_PER_TENANT = 1e-2
_LITTLE = 0.1
_GROUPS = 8
_NO_GOAL = -1
_IDLE = 0
"""Number 0 is no tenant's."""

Group: TypeAlias = tuple[int, bool]
"""Cores of a unit, or slots, and whether it has a GPU."""

Combinations = dict[tuple[int, ...], int]
"""On how many units of a group each combination of tenants, each with an equal part."""


class Mapper(Protocol):
    """How a group's cores are mapped."""

    def __call__(
        self, tenants: Sequence[Tenant], cores: Sequence[int], size: int, co_running: CoRunning
    ) -> Combinations:
        """``cores`` of each of ``tenants``, which the result has by their place; ``size``: cores
        of a unit. One of the tenants may be ``IDLE``, the last."""
        ...


@dataclass(slots=True)
class _Combination:
    """``part``: cores of each tenant on a unit. ``left``: units that are wanted and do not have it
    for their goal yet."""

    group: Group
    tenants: tuple[int, ...]
    part: int
    left: int


@dataclass
class _Wanted:
    """Invariants: ``still`` has, by group and tenant, all and only the combinations with units
    ``left``, in the order of the mapping for those that were never used up. ``numbers`` are the
    places in ``combinations``."""

    combinations: list[_Combination] = field(default_factory=list)
    numbers: dict[tuple[Group, tuple[int, ...]], int] = field(default_factory=dict)
    by_tenant: dict[int, list[int]] = field(default_factory=dict)
    still: dict[tuple[Group, int], dict[int, None]] = field(default_factory=dict)

    def add(self, group: Group, tenants: tuple[int, ...], units: int) -> None:
        number = len(self.combinations)
        self.combinations.append(_Combination(group, tenants, group[0] // len(tenants), units))
        self.numbers[group, tenants] = number
        for tenant in tenants:
            self.by_tenant.setdefault(tenant, []).append(number)
            self.still.setdefault((group, tenant), {})[number] = None

    def take(self, number: int, units: int) -> None:
        """``units`` more have it for their goal, or fewer."""
        combination = self.combinations[number]
        before, combination.left = combination.left, combination.left - units
        if (before > 0) != (combination.left > 0):
            for tenant in combination.tenants:
                still = self.still[combination.group, tenant]
                if combination.left > 0:
                    still[number] = None
                else:
                    still.pop(number)

    def admits(self, number: int, mix: TenantMix) -> bool:
        """Is the mix a part of the combination?"""
        combination = self.combinations[number]
        return all(
            tenant in combination.tenants and cores <= combination.part
            for tenant, cores in mix.items()
        )

    def choose(self, group: Group, mix: TenantMix) -> int:
        """The first combination that is wanted and admits the mix, which is not empty."""
        tenants = tuple(sorted(mix))
        if len(tenants) > 1:
            number = self.numbers.get((group, tenants), _NO_GOAL)
            if number == _NO_GOAL or self.combinations[number].left <= 0:
                return _NO_GOAL
            return number if self.admits(number, mix) else _NO_GOAL
        alone = self.numbers.get((group, tenants))
        if 2 * mix[tenants[0]] > group[0]:
            some: Iterable[int] = () if alone is None else (alone,)
        else:
            some = self.still.get((group, tenants[0]), ())
        return next((x for x in some if self.combinations[x].left > 0), _NO_GOAL)


class Target:
    """Invariants, after ``follow``: ``goal``, shape (rows,), is each row's combination, -1 for
    none; a row that has one has it wanted, and runs a part of it."""

    def __init__(self, mixes: UnitMixes, co_running: CoRunning, mapper: Mapper) -> None:
        self._mixes = mixes
        self._co_running = co_running
        self._mapper = mapper
        self._generation = -1
        self._begin(0)

    def _begin(self, rows: int) -> None:
        self.goal: Ints = np.full(rows, _NO_GOAL, np.int64)
        self.wanted = _Wanted()
        self._held: dict[Group, Counter[int]] = {}
        self._groups: list[Group] = [(0, False)] * rows
        self._shares: dict[Group, dict[int, int]] = {}
        self._checked_s = -np.inf
        self._revision = -1
        self._masks: dict[int, npt.NDArray[np.bool_]] = {}
        self.parts: Ints = np.zeros(1, np.int64)
        self.made = 0

    def follow(self, changed: Iterable[tuple[int, TenantMix]]) -> None:
        """Rows have changed, each with its mix before: what they hold, and their goals."""
        mixes, wanted = self._mixes, self.wanted
        if self._generation != mixes.generation:
            self._generation = mixes.generation
            self._begin(len(mixes.mixes))
            changed = [(row, {}) for row in range(len(mixes.mixes))]
            wanted = self.wanted
        for row, before in changed:
            mix, group = mixes.mixes[row], (int(mixes.size[row]), bool(mixes.on_gpu[row]))
            moved = self._groups[row] != group
            if mix is before and not moved:
                continue
            if before:
                self._held[self._groups[row]].subtract(before)
            self._groups[row] = group
            if mix:
                self._held.setdefault(group, Counter()).update(mix)
            goal = int(self.goal[row])
            if goal != _NO_GOAL:
                if mix and not moved and wanted.admits(goal, mix):
                    continue
                wanted.take(goal, -1)
                self.goal[row] = _NO_GOAL
            if mix:
                self._set_goal(row, group, mix)

    def renew(self, view: ClusterView, asking: Mapping[int, Vector], now: float) -> None:
        """Make the target again if that is due. ``asking``: tenants that want more than they hold,
        of whom the master need not know, and how much."""
        revision = self._co_running.revision
        tenants = sum(len(shares) for shares in self._shares.values())
        interval_s = _CHECK_S_PER_ROW * len(self.goal) + _CHECK_S_PER_TENANT * tenants
        if self._checked_s <= now < self._checked_s + interval_s:
            return
        self._checked_s = now
        shares = self._divided(view, asking)
        if revision != self._revision or _differ(shares, self._shares):
            self._revision, self._shares = revision, shares
            self._make()

    def combinations_of(self, tenant: int) -> npt.NDArray[np.bool_] | None:
        """True at those with ``tenant``, and False at the end, for rows without a goal; None: there
        is none."""
        numbers = self.wanted.by_tenant.get(tenant)
        if not numbers:
            return None
        mask = self._masks.get(tenant)
        if mask is None:
            mask = self._masks[tenant] = np.zeros(len(self.wanted.combinations) + 1, np.bool_)
            mask[numbers] = True
        return mask

    def still_wanted(self, group: Group, tenant: int) -> list[tuple[int, int]]:
        """Combinations with ``tenant`` for which units are still wanted: its part, and how many."""
        numbers = self.wanted.still.get((group, tenant), ())
        found = (self.wanted.combinations[x] for x in numbers)
        return [(x.part, x.left) for x in found]

    def _set_goal(self, row: int, group: Group, mix: TenantMix) -> None:
        goal = self.wanted.choose(group, mix)
        if goal != _NO_GOAL:
            self.goal[row] = goal
            self.wanted.take(goal, 1)

    def _divided(
        self, view: ClusterView, asking: Mapping[int, Vector]
    ) -> dict[Group, dict[int, int]]:
        """The cores of each tenant in each group: those that it holds, and its part of the free."""
        mixes = self._mixes
        sizes = np.where(view.open, 2 * mixes.size + mixes.on_gpu, 0)
        kinds, first, units = np.unique(sizes, return_index=True, return_counts=True)
        capacity = {
            (int(mixes.size[row]), bool(mixes.on_gpu[row])): int(mixes.size[row]) * int(count)
            for kind, row, count in zip(kinds, first, units, strict=True)
            if kind > 1
        }
        largest = sorted(capacity, key=lambda group: (-capacity[group], group))[:_GROUPS]
        wanted = {mixes.number(x): demand for x, demand in self._co_running.wanted().items()}
        shares: dict[Group, dict[int, int]] = {}
        for on_gpu in (False, True):
            groups = [group for group in largest if group[1] is on_gpu]
            held = {x: {t: n for t, n in self._held.get(x, {}).items() if n > 0} for x in groups}
            all_held = Counter[int]()
            for each in held.values():
                all_held.update(each)
            lacking = _lacking(all_held, wanted, asking, on_gpu=on_gpu)
            free = {x: max(0, capacity[x] - sum(held[x].values())) for x in groups}
            for group in groups:
                part = free[group] / max(1, sum(free.values()))
                some = [round(lacks * part) for lacks in lacking.values()]
                given = dict(zip(lacking, fair_share(some, free[group]), strict=True))
                shares[group] = {
                    tenant: cores
                    for tenant in {*held[group], *given}
                    if (cores := held[group].get(tenant, 0) + given.get(tenant, 0)) > 0
                }
                shares[group][_IDLE] = max(0, capacity[group] - sum(shares[group].values()))
        return shares

    def _make(self) -> None:
        mixes = self._mixes
        self.made += 1
        self.wanted = wanted = _Wanted()
        self._masks.clear()
        for group, shares in self._shares.items():
            # Not in the order in which they came: who chooses first must not depend on it.
            tenants = sorted(shares, key=lambda x: (x == _IDLE, mixes.tenants[x]))
            names = [mixes.tenants[x] for x in tenants]
            mapped = self._mapper(names, [shares[x] for x in tenants], group[0], self._co_running)
            for places, units in mapped.items():
                combination = tuple(sorted(tenants[x] for x in places))
                if combination != (_IDLE,):
                    wanted.add(group, combination, units)
        self.parts = np.array([x.part for x in wanted.combinations] + [0], np.int64)
        self.goal[:] = _NO_GOAL
        running = np.flatnonzero(mixes.used)
        for row in running[np.argsort(-mixes.used[running], kind="stable")].tolist():
            self._set_goal(row, self._groups[row], mixes.mixes[row])


def _lacking(
    held: Mapping[int, int],
    wanted: Mapping[int, Vector],
    asking: Mapping[int, Vector],
    *,
    on_gpu: bool,
) -> dict[int, int]:
    """What each tenant wants more than it holds, in cores or in slots of GPUs."""
    column = Column.SLOTS if on_gpu else Column.VCORES

    def cores(demand: Vector) -> int:
        return demand[column] if (demand[Column.GPU_MEMORY_MIB] > 0) is on_gpu else 0

    lacking = {x: max(0, cores(demand) - held.get(x, 0)) for x, demand in wanted.items()}
    for tenant, demand in asking.items():
        lacking[tenant] = max(lacking.get(tenant, 0), cores(demand))
    return {tenant: lacking[tenant] for tenant in sorted(lacking) if lacking[tenant]}


def _differ(
    shares: Mapping[Group, Mapping[int, int]], before: Mapping[Group, Mapping[int, int]]
) -> bool:
    """By more than a little?"""
    if shares.keys() != before.keys():
        return True
    for group, now in shares.items():
        then = before[group]
        change = sum(abs(now.get(x, 0) - then.get(x, 0)) for x in {*now, *then})
        if change > _LITTLE * sum(then.values()):
            return True
    return False
