"""Platforms, tenants and their run times: the source's default, and how it is varied.

Source: two-level fairness paper, tables 3, 4, 5 and 6. The node counts and the tasks of table 6
were chosen there such that all tenants end at the same time under an equal division.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from benchmarks.fairness.published import PER_HOUR, TENANTS
from hrm.core.vocabulary.columns import Floats
from hrm.policies.mapping import Mix

__all__ = ["DEFAULT", "HOUR_S", "NoInterference", "Platform", "Slowdowns", "World"]

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Platform:
    name: str
    nodes: int
    node_cores: int

    @property
    def cores(self) -> int:
        return self.nodes * self.node_cores


class Slowdowns(Protocol):
    """By how much tasks on one node slow each other down."""

    def slowdown(self, tenant: int, mix: Mix, platform: int) -> float:
        """Run time of a task of ``tenant`` in ``mix`` over that alone on a node."""
        ...


class NoInterference:
    """A node with every core at work is as fast for each as one with a single task."""

    def slowdown(self, tenant: int, mix: Mix, platform: int) -> float:
        return 1.0


@dataclass(frozen=True)
class World:
    """``run_s``: of a task alone on a node, by tenant and platform. ``tasks``: of each tenant.
    ``arrivals_s``: when each comes; without them, all at 0."""

    platforms: tuple[Platform, ...]
    tenants: tuple[str, ...]
    tasks: tuple[float, ...]
    run_s: Floats
    slowdowns: Slowdowns
    arrivals_s: tuple[float, ...] | None = None

    @property
    def cores(self) -> int:
        return sum(platform.cores for platform in self.platforms)

    def ideal_per_h(self) -> list[float]:
        """Tasks an hour of each tenant with its equal part of all cores, each one a node of its
        own of the platform that is fastest for it."""
        part = self.cores / len(self.tenants)
        return [part * HOUR_S / float(row.min()) for row in self.run_s]

    def without_platform(self, at: int) -> World:
        """The others; slowdowns go by the number of the platform."""
        kept = [index for index in range(len(self.platforms)) if index != at]
        return replace(
            self,
            platforms=tuple(self.platforms[index] for index in kept),
            run_s=self.run_s[:, kept],
            slowdowns=_Renumbered(self.slowdowns, range(len(self.tenants)), kept),
        )

    def without_tenant(self, at: int) -> World:
        kept = [index for index in range(len(self.tenants)) if index != at]
        return replace(
            self,
            tenants=tuple(self.tenants[index] for index in kept),
            tasks=tuple(self.tasks[index] for index in kept),
            run_s=self.run_s[kept],
            slowdowns=_Renumbered(self.slowdowns, kept, range(len(self.platforms))),
        )

    def with_nodes(self, at: int, factor: float) -> World:
        """A platform of another size; half a node counts as one."""
        platform = self.platforms[at]
        sized = replace(platform, nodes=int(platform.nodes * factor + 0.5))
        return replace(self, platforms=(*self.platforms[:at], sized, *self.platforms[at + 1 :]))

    def with_tasks(self, factors: Sequence[float]) -> World:
        pairs = zip(self.tasks, factors, strict=True)
        return replace(self, tasks=tuple(tasks * factor for tasks, factor in pairs))


@dataclass(frozen=True)
class _Renumbered:
    """The slowdowns of a larger world, for some of its tenants and platforms."""

    whole: Slowdowns
    tenants: Sequence[int]
    platforms: Sequence[int]

    def slowdown(self, tenant: int, mix: Mix, platform: int) -> float:
        cores = tuple((self.tenants[each], count) for each, count in mix.cores)
        return self.whole.slowdown(self.tenants[tenant], Mix(cores), self.platforms[platform])


DEFAULT = World(
    platforms=(
        Platform("gene", 300, 2),
        Platform("cheetah", 75, 8),
        Platform("darth", 75, 8),
        Platform("lcloud", 50, 12),
    ),
    tenants=TENANTS,
    tasks=(34_600, 248_800, 31_230, 72_950, 112_420),
    run_s=HOUR_S / PER_HOUR,
    slowdowns=NoInterference(),
)
"""The source's default, without its run times beside others, which were not published."""
