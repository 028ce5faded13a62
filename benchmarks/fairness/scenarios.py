"""The worlds: the source's 23 scenarios, the same with arrivals, and draws of measured jobs.

Source: two-level fairness paper, table 8 and section 6.5. A platform of 75 nodes that is halved has
38; the rates of arrival are not stated there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from benchmarks.fairness.interference import drawn
from benchmarks.fairness.world import DEFAULT, HOUR_S, World

__all__ = ["GAPS_H", "Scenario", "arriving", "scenarios"]

GAPS_H = (0.25, 0.5, 1.0, 2.0)
"""Mean times between two arrivals, where five tenants alone would take some six hours."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``kind``: a row of table 8."""

    kind: str
    name: str
    world: World


def scenarios(seed: int) -> list[Scenario]:
    """All 23, with the slowdowns of ``seed``."""
    world = replace(DEFAULT, slowdowns=drawn(seed))
    found = [Scenario("default", "default", world)]
    for at, platform in enumerate(world.platforms):
        found.append(
            Scenario("without a platform", f"no {platform.name}", world.without_platform(at))
        )
    for factor, size in ((0.5, "small"), (2.0, "large")):
        for at, platform in enumerate(world.platforms):
            sized = world.with_nodes(at, factor)
            found.append(Scenario("platform's size", f"{size} {platform.name}", sized))
    for at, tenant in enumerate(world.tenants):
        found.append(Scenario("without a tenant", f"no {tenant}", world.without_tenant(at)))
    for at, tenant in enumerate(world.tenants):
        factors = [0.5 if index == at else 2.0 for index in range(len(world.tenants))]
        found.append(Scenario("tenant's size", f"small {tenant}", world.with_tasks(factors)))
    return found


def arriving(seed: int, gaps_h: Sequence[float] = GAPS_H) -> list[Scenario]:
    """The default, and those without one tenant; tenants come one after the other, in an order
    and with gaps (exponential) that ``seed`` draws."""
    random = Random(f"arrivals {seed}")
    found = []
    for each in scenarios(seed):
        if each.kind not in ("default", "without a tenant"):
            continue
        for gap_h in gaps_h:
            order = list(range(len(each.world.tenants)))
            random.shuffle(order)
            at_s, arrivals = 0.0, [0.0] * len(order)
            for tenant in order:
                arrivals[tenant] = at_s
                at_s += random.expovariate(1 / (gap_h * HOUR_S))
            world = replace(each.world, arrivals_s=tuple(arrivals))
            found.append(Scenario(f"a tenant every {gap_h:g} h", each.name, world))
    return found
