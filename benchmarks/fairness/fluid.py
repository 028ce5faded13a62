"""One pair of policies in a fluid model: rates are constant between the ends of tenants.

Both levels run when a tenant comes or has finished, over those that are there. A tenant's rate is
the sum over its cores of what each does in an hour, slowed down by what shares its node. There are
no single tasks (an error of one task for each tenant), no cost of a decision and none of moving; a
core that a tenant loses before its end is counted.

With ``Learning``, run times are not given: the first level sees what tasks took, with noise, and is
run again at intervals, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import numpy as np

from benchmarks.fairness.world import HOUR_S, World
from hrm.core.vocabulary.columns import Floats, Ints
from hrm.policies.mapping import Combination, CoRunnerTimes, Mapping, Mix
from hrm.policies.sharing import (
    Affinity,
    Division,
    DivisionPolicy,
    ObservedRunTimes,
    TenantDemands,
    platform_affinity,
)

__all__ = ["Learning", "MappingPolicy", "Run", "System", "run"]

_DONE = 1e-9
"""Of a tenant's tasks: what may be left of them by rounding."""


class MappingPolicy(Protocol):
    """Of ``hrm.policies.mapping``."""

    @property
    def name(self) -> str: ...

    def map(
        self,
        cores: Sequence[int],
        node_cores: int,
        times: CoRunnerTimes,
        random: np.random.Generator,
    ) -> Mapping: ...


@dataclass(frozen=True, slots=True)
class Learning:
    """``sigma``: of the logarithm of tasks' run times, within a tenant. ``most``: tasks seen in one
    interval of each tenant in each mix at most; 0: nothing is ever seen. ``partly``: the part of
    what is seen that ran on a node of which its tenant had some cores, drawn, and the others were
    idle. Rates are those of full nodes all the same: only what is learned changes."""

    interval_s: float = 600.0
    sigma: float = 0.3
    most: int = 20
    partly: float = 0.0


@dataclass(frozen=True)
class System:
    """A policy of either level, with the affinity that the first one uses. ``disturbed``: it is
    given the times on a node that the tenant has for itself and fills, not those alone."""

    division: DivisionPolicy
    affinity: Affinity
    mapping: MappingPolicy
    learning: Learning | None = None
    disturbed: bool = False


@dataclass(frozen=True)
class Run:
    """``throughput``: of each tenant from its arrival to its end, over its ideal. ``waits_s``:
    until each had its first core. ``moved``: cores of a platform that tenants lost before their
    ends. ``error``: by how much learned times differ from the true ones alone, as the mean of the
    absolute logarithms' differences over what is known at each division; NaN without any."""

    ends_s: tuple[float, ...]
    throughput: tuple[float, ...]
    waits_s: tuple[float, ...]
    moved: int
    error: float = math.nan

    @property
    def makespan_s(self) -> float:
        return max(self.ends_s)

    @property
    def fairness(self) -> float:
        """1 less the coefficient of variation of the throughputs, of all tenants (ddof 0)."""
        return 1.0 - float(np.std(self.throughput)) / float(np.mean(self.throughput))

    @property
    def jain(self) -> float:
        values = np.asarray(self.throughput)
        return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


@dataclass(frozen=True)
class Times:
    """``CoRunnerTimes`` of one platform of a world."""

    world: World
    platform: int
    node_cores: int
    known: dict[tuple[int, Combination], float] = field(default_factory=dict)

    def alone_s(self, tenant: int) -> float:
        return float(self.world.run_s[tenant, self.platform])

    def run_s(self, tenant: int, combination: Combination) -> float:
        key = (tenant, combination)
        if key not in self.known:
            part = self.node_cores // len(combination)
            mix = Mix(tuple((each, part) for each in combination))
            slowdown = self.world.slowdowns.slowdown(tenant, mix, self.platform)
            self.known[key] = self.alone_s(tenant) * slowdown
        return self.known[key]


@dataclass(frozen=True, slots=True)
class _Work:
    """What a tenant's tasks do on the nodes of one mix."""

    tenant: int
    platform: int
    run_s: float
    load: float
    per_s: float


def run(world: World, system: System, seed: int = 0) -> Run:
    """From the first arrival until every task is done. ``seed``: of what mappings draw, and of what
    tasks take."""
    return _Simulation(world, system, seed).run()


class _Simulation:
    def __init__(self, world: World, system: System, seed: int) -> None:
        self._world, self._system = world, system
        self._random = np.random.default_rng(seed)
        self._learning, self._observed = system.learning, ObservedRunTimes()
        self._noise = Random(f"noise {seed}")
        self._work: list[_Work] = []
        count = len(world.tenants)
        self._left = np.array(world.tasks, float)
        self._arrivals = np.zeros(count) if world.arrivals_s is None else np.array(world.arrivals_s)
        self._ends = np.full(count, math.nan)
        self._first = np.full(count, math.nan)
        self._held: Division = np.zeros(world.run_s.shape, np.int64)
        self._moved = 0
        self._errors: list[float] = []
        self._times = [
            Times(world, index, platform.node_cores)
            for index, platform in enumerate(world.platforms)
        ]

    def run(self) -> Run:
        now = float(self._arrivals.min())
        while np.isnan(self._ends).any():
            here = np.flatnonzero((self._arrivals <= now) & np.isnan(self._ends))
            rates = self._rates(here, now)
            coming = self._arrivals[self._arrivals > now]
            spans = [float(coming.min()) - now] if len(coming) else []
            working = rates > 0
            spans += (self._left[working] / rates[working]).tolist()
            assert spans, "a tenant runs, or one is to come"
            if self._learning is not None and working.any():
                spans.append(self._learning.interval_s)
            span = min(spans)
            self._observe(span)
            self._left -= rates * span
            now += span
            for tenant in here.tolist():
                if self._left[tenant] <= _DONE * self._world.tasks[tenant]:
                    self._left[tenant] = 0.0
                    self._ends[tenant] = now
        taken = self._ends - self._arrivals
        ideal = np.array(self._world.ideal_per_h()) / HOUR_S
        return Run(
            ends_s=tuple(self._ends.tolist()),
            throughput=tuple((np.array(self._world.tasks) / taken / ideal).tolist()),
            waits_s=tuple((self._first - self._arrivals).tolist()),
            moved=self._moved,
            error=float(np.mean(self._errors)) if self._errors else math.nan,
        )

    def _rates(self, here: Ints, now: float) -> Floats:
        """Tasks a second of every tenant, after both levels have run for those that are here."""
        rates = np.zeros(len(self._left))
        self._work = []
        if not len(here):
            return rates
        self._divide(here)
        newly = (self._held.sum(axis=1) > 0) & np.isnan(self._first)
        self._first[newly] = now
        for index, platform in enumerate(self._world.platforms):
            cores = self._held[:, index].tolist()
            mapping = self._system.mapping.map(
                cores, platform.node_cores, self._times[index], self._random
            )
            for mix, nodes in mapping.items():
                busy = sum(count for _, count in mix.cores)
                load = (busy - 1) / max(platform.node_cores - 1, 1)
                for tenant, count in mix.cores:
                    slowdown = self._world.slowdowns.slowdown(tenant, mix, index)
                    run_s = float(self._world.run_s[tenant, index]) * slowdown
                    per_s = nodes * count / run_s
                    rates[tenant] += per_s
                    self._work.append(_Work(tenant, index, run_s, load, per_s))
        return rates

    def _observe(self, span: float) -> None:
        """What tasks took that have ended within ``span``."""
        if self._learning is None:
            return
        for work in self._work:
            tenant = self._world.tenants[work.tenant]
            platform = self._world.platforms[work.platform].name
            for _ in range(min(self._learning.most, int(work.per_s * span))):
                run_s, load = work.run_s, work.load
                if self._learning.partly and self._noise.random() < self._learning.partly:
                    run_s, load = self._on_a_part_of_a_node(work)
                took_s = run_s * self._noise.lognormvariate(0.0, self._learning.sigma)
                self._observed.observe(tenant, platform, took_s, load)

    def _on_a_part_of_a_node(self, work: _Work) -> tuple[float, float]:
        """Run time and load where the tenant has any number of a node's cores, others none."""
        node_cores = self._world.platforms[work.platform].node_cores
        cores = self._noise.randint(1, node_cores)
        load = (cores - 1) / max(node_cores - 1, 1)
        return self._own_s(work.tenant, work.platform, cores), load

    def _own_s(self, tenant: int, platform: int, cores: int) -> float:
        """Run time of a tenant's task where it has ``cores`` of a node, and no other tenant any."""
        mix = Mix(((tenant, cores),))
        slowdown = self._world.slowdowns.slowdown(tenant, mix, platform)
        return float(self._world.run_s[tenant, platform]) * slowdown

    def _run_s(self, here: Ints) -> Floats:
        """As the first level knows them."""
        if self._system.disturbed:
            platforms = list(enumerate(self._world.platforms))
            return np.array(
                [
                    [self._own_s(tenant, index, each.node_cores) for index, each in platforms]
                    for tenant in here.tolist()
                ]
            )
        if self._learning is None:
            return self._world.run_s[here]
        tenants = [self._world.tenants[tenant] for tenant in here.tolist()]
        found = self._observed.table(tenants, [each.name for each in self._world.platforms])
        off = np.abs(np.log(found / self._world.run_s[here]))
        if np.isfinite(off).any():
            self._errors.append(float(np.nanmean(off)))
        return found

    def _divide(self, here: Ints) -> None:
        affinity = platform_affinity(self._system.affinity, self._run_s(here))
        demands = TenantDemands(
            wanted=np.ceil(self._left[here]).astype(np.int64),
            cores=np.array([platform.cores for platform in self._world.platforms], np.int64),
            affinity=affinity,
            previous=self._held[here],
        )
        held: Division = np.zeros_like(self._held)
        held[here] = self._system.division.divide(demands)
        self._moved += int(np.maximum(self._held - held, 0)[here].sum())
        self._held = held
