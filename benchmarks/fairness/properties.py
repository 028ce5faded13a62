"""Which properties of fair division the rules have, counted over random cases.

*Sharing incentive*: no tenant is slower than with its equal part of every platform (rounded down).
*Envy-freeness*: none would be faster with what another holds, by more than one core. *No gain by
asking*: none that states a larger want gets more that it can use. *Efficiency*: not all could be
faster at once by 1 % (a linear program, in parts of cores). All in useful throughput: tasks an hour
on the best of a tenant's cores, no more of them than it truly wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import linprog

from benchmarks.fairness.world import HOUR_S
from hrm.core.vocabulary.columns import Floats, Ints
from hrm.policies.sharing import (
    DIVISIONS,
    Affinity,
    DivisionPolicy,
    TenantDemands,
    platform_affinity,
)

__all__ = ["CASES", "Broken", "Case", "properties", "useful"]

CASES = 400
_EQUAL = 1e-9
_GAIN = 0.01
_BLIND = ("simple-fairness", "dominant-share")


@dataclass(frozen=True)
class Case:
    """Run times by tenant and platform, and what tenants truly want."""

    run_s: Floats
    wanted: Ints
    cores: Ints

    @property
    def per_hour(self) -> Floats:
        return HOUR_S / self.run_s

    def divided(
        self, policy: DivisionPolicy, measure: Affinity, wanted: Ints | None = None
    ) -> Ints:
        demands = TenantDemands(
            wanted=self.wanted if wanted is None else wanted,
            cores=self.cores,
            affinity=platform_affinity(measure, self.run_s),
        )
        return policy.divide(demands)

    def throughput(self, tenant: int, held: Ints) -> float:
        """Of ``tenant`` with the cores ``held``, by platform."""
        return useful(self.per_hour[tenant], held, int(self.wanted[tenant]))


@dataclass
class Broken:
    """In how many of ``cases`` a property is broken, and how much the worst-off or best-off tenant
    has of what it would have otherwise."""

    division: str
    affinity: str
    cases: int = 0
    incentive: int = 0
    incentive_worst: float = 1.0
    envy: int = 0
    envy_worst: float = 1.0
    asking: int = 0
    asking_most: float = 1.0
    inefficient: int = 0
    possible_gains: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """With the median of the gains in place of all."""
        found = asdict(self)
        gains = found.pop("possible_gains")
        return found | {"possible_gain_median": float(np.median(gains))}


def useful(per_hour: Floats, held: Ints, wanted: int) -> float:
    """Tasks an hour on the fastest ``wanted`` of the cores ``held``."""
    left, total = wanted, 0.0
    for platform in np.argsort(-per_hour, kind="stable").tolist():
        cores = min(left, int(held[platform]))
        total += cores * float(per_hour[platform])
        left -= cores
    return total


def properties(cases: int = CASES) -> list[Broken]:
    """A row for each rule and affinity; the same cases for all."""
    drawn = list(_cases(cases))
    rows = []
    for policy in DIVISIONS.values():
        measures: Sequence[Affinity] = list(Affinity)
        if policy.name in _BLIND:
            measures = [Affinity.RECIPROCAL]
        for measure in measures:
            row = Broken(policy.name, "-" if policy.name in _BLIND else measure.value)
            for case, asker in drawn:
                _count(row, policy, measure, case, asker)
            rows.append(row)
    return rows


def _cases(count: int) -> Iterator[tuple[Case, int]]:
    """Two to five tenants on two to four platforms, half of them with little to do; and which of
    them states too much."""
    random = np.random.default_rng(5)
    for _ in range(count):
        tenants, platforms = random.integers(2, 6), random.integers(2, 5)
        speeds = random.uniform(1, 4, platforms) * random.lognormal(0, 0.5, (tenants, platforms))
        run_s = speeds * np.exp(random.uniform(0, 4, tenants))[:, None]
        cores = random.integers(10, 100, platforms)
        little = random.integers(1, 2 * int(cores.sum()) // tenants, tenants)
        wanted = np.where(random.random(tenants) < 0.5, 10 * cores.sum(), little)
        yield Case(run_s, wanted, cores), int(random.integers(tenants))


def _count(row: Broken, policy: DivisionPolicy, measure: Affinity, case: Case, asker: int) -> None:
    row.cases += 1
    division = case.divided(policy, measure)
    tenants = range(len(case.wanted))
    found = [case.throughput(tenant, division[tenant]) for tenant in tenants]
    equal = [case.throughput(tenant, case.cores // len(case.wanted)) for tenant in tenants]
    worst = min(mine / part for mine, part in zip(found, equal, strict=True) if part > 0)
    row.incentive += worst < 1 - _EQUAL
    row.incentive_worst = min(row.incentive_worst, worst)
    envied = 1.0
    for one, other in np.ndindex(len(found), len(found)):
        theirs = case.throughput(one, division[other])
        if theirs > found[one] + float(case.per_hour[one].max()) + _EQUAL:
            envied = min(envied, found[one] / theirs)
    row.envy += envied < 1
    row.envy_worst = min(row.envy_worst, envied)
    gains = []
    for asked in (2 * int(case.wanted[asker]) + 3, 10 * int(case.cores.sum())):
        wanted = case.wanted.copy()
        wanted[asker] = max(asked, int(wanted[asker]))
        greedy = case.throughput(asker, case.divided(policy, measure, wanted)[asker])
        gains.append(greedy / found[asker] if found[asker] else float(greedy > 0) + 1)
    row.asking += max(gains) > 1 + _EQUAL
    row.asking_most = max(row.asking_most, *gains)
    gain = _possible_gain(case, found)
    row.inefficient += gain > _GAIN
    row.possible_gains.append(gain)


def _possible_gain(case: Case, found: Sequence[float]) -> float:
    """By what part all could be faster; those that have nothing may go on having nothing."""
    tenants, platforms = case.run_s.shape
    cells = tenants * platforms
    objective = np.zeros(cells + 1)
    objective[-1] = -1.0
    rows = np.zeros((2 * tenants + platforms, cells + 1))
    limits = np.zeros(len(rows))
    for tenant in range(tenants):
        own = slice(tenant * platforms, (tenant + 1) * platforms)
        scale = max(found[tenant], _EQUAL)
        rows[tenant, own] = -case.per_hour[tenant] / scale
        satisfied = found[tenant] > 0
        rows[tenant, -1], limits[tenant] = float(satisfied), -float(satisfied)
        rows[tenants + tenant, own], limits[tenants + tenant] = 1.0, float(case.wanted[tenant])
    for platform in range(platforms):
        rows[2 * tenants + platform, platform:cells:platforms] = 1.0
        limits[2 * tenants + platform] = float(case.cores[platform])
    solved = linprog(objective, A_ub=rows, b_ub=limits)
    return float(solved.x[-1]) if solved.success else 0.0
