"""Which platforms' cores a queue's share is made of, where nodes are unlike.

How much a queue may have is decided before (``hrm.core.tenancy.accounts``). Where nodes are of more
than one platform, what queues may have now is divided over platforms, too, by a rule that knows how
fast the tasks of each run there (``hrm.core.tenancy.platform_division``). When a container passes
its queue (``hrm.core.master.queue_gate``), it gets a platform of which its queue has a part left:
for ``platform_wait_s`` it is placed nowhere else (``Scheduler``), and what others have borrowed
there is reclaimed first (``hrm.core.master.reclaim_plan``). After that it goes anywhere: a share is
a right, a platform is a preference, and no core idles for long because of it. Where that was in
vain, the queue's next containers look there first and do not wait, until one has found a place.

What is lent, drivers, what uses GPUs and what no node of a platform could ever hold get none; they
count where they are. What runs on the wrong one is moved by ``hrm.core.master.platform_moves``.

Where nothing of a queue has run on some platform, one batch container at a time is sent there,
whatever its part: else it would never be known. It is not moved back before.

A division is computed again from time to time, and when a queue begins to want something or has
none of its part left, at most ``_CELLS_PER_S`` queues times platforms in a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hrm.core.master.entities import Application, Container
from hrm.core.master.platform_use import PlatformUse
from hrm.core.master.state import MasterState
from hrm.core.tenancy.accounts import AccountTree, QueueAccount
from hrm.core.tenancy.platform_division import PlatformDivision, RunTimes
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_status import PlatformPart
from hrm.core.vocabulary.feasibility import Vector, demand_vector, fitting_rows
from hrm.core.vocabulary.model import ContainerRequest, WorkloadClass
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["PlatformShares", "platform_line"]

PLATFORMS_MAX = 64
"""Shares are divided over so many platforms, the largest; what is left goes to no queue by plan."""
_CELLS_PER_S = 10_000
_CELLS_FEW = 100
"""So many are divided whenever something has changed."""
_PERIOD_S = 1.0


@dataclass(slots=True)
class _Divided:
    """``parts``: by leaf, cores of each of ``platforms``; ``order``: of each leaf the platforms, by
    their positions, the most preferred first; ``unknown``: those where nothing of it has run."""

    at_s: float = -math.inf
    shape: int = -1
    platforms: tuple[str, ...] = ()
    parts: dict[QueueName, list[int]] = field(default_factory=dict)
    affinities: dict[QueueName, list[float]] = field(default_factory=dict)
    order: dict[QueueName, list[int]] = field(default_factory=dict)
    unknown: dict[QueueName, list[int]] = field(default_factory=dict)
    by_name: dict[QueueName, dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {
            name: dict(zip(self.platforms, cores, strict=True))
            for name, cores in self.parts.items()
        }


class PlatformShares:
    """``rule``: None: shares are not divided."""

    def __init__(self, master_state: MasterState, rule: PlatformDivision | None) -> None:
        self._master_state = master_state
        self._rule = rule
        self._run_times: RunTimes = master_state.affinities
        self._divided = _Divided()
        self._seen = (-1, False)
        self._could_hold: dict[tuple[str, Vector, NodeRequirement | None], bool] = {}

    def learn_from(self, run_times: RunTimes) -> None:
        """From now on these are the run times of tasks, instead of what the master learns."""
        self._run_times = run_times
        self._divided = _Divided()

    @property
    def divides(self) -> bool:
        return self._master_state.queues.on_platforms is not None

    def follow_nodes(self) -> None:
        """Nodes may have come or gone: are there several platforms now?"""
        state, usage = self._master_state.state, self._master_state.queues
        if self._rule is None or self._seen == (state.shape, self.divides):
            return
        divides = usage.accounts is not None and len(_largest(state.cores_at())) > 1
        if divides and usage.on_platforms is None:
            usage.count_platforms(PlatformUse(state), self._master_state.holding_applications())
        elif not divides:
            usage.on_platforms = None
        self._seen = (state.shape, divides)

    def choose(self, app: Application, some: Sequence[Container], now: float) -> None:
        """Give each of these, which pass within the share of their queue, the platform that it
        prefers among those of which a part is left; none, if there is no such part."""
        usage = self._master_state.queues
        if usage.on_platforms is None or app.is_driver:
            return
        if any(x.request.gpus or x.request.resources.gpu_memory_mib for x in some):
            return
        name = usage.account(app).name
        wanted = sum(x.request.resources.vcores for x in some)
        if self._is_stale(name, wanted, now):
            self._divide(now)
        divided = self._divided
        left = [
            cores - usage.on_platforms.held(name, platform)
            for platform, cores in zip(divided.platforms, divided.parts.get(name, ()), strict=False)
        ]
        wait_s, in_vain = self._master_state.bounds.platform_wait_s, usage.on_platforms.in_vain
        is_batch = app.record.workload_class is WorkloadClass.BATCH
        unknown = [
            position
            for position in divided.unknown.get(name, ())
            if is_batch and not usage.on_platforms.held(name, divided.platforms[position])
        ]
        for container in some:
            cores, chosen = container.request.resources.vcores, ""
            best = self._explore(unknown, container, app.requires)
            if best is None:
                best = self._best(name, left, container, app.requires)
            until_s = 0.0
            if best is not None:
                left[best] -= cores
                chosen = divided.platforms[best]
                until_s = now if (name, chosen) in in_vain else now + wait_s
            if chosen or container.request.platform:
                container.request = replace(
                    container.request, platform=chosen, platform_until_s=until_s
                )

    def forget(self, some: Sequence[Container]) -> None:
        """These may be placed anywhere."""
        if not self.divides:
            return
        for container in some:
            if container.request.platform:
                container.request = replace(container.request, platform="", platform_until_s=0.0)

    def tick(self, now: float) -> None:
        """Divide again what has not been divided for a while."""
        cells = len(self._divided.parts) * len(self._divided.platforms)
        if self.divides and now >= self._divided.at_s + max(_PERIOD_S, cells / _CELLS_PER_S):
            self._divide(now)

    def parts(self, name: QueueName) -> list[PlatformPart]:
        """Of a leaf, in the order of platforms; empty where nothing is divided for it."""
        usage = self._master_state.queues
        if usage.on_platforms is None:
            return []
        divided = self._divided
        if name not in divided.parts:
            return []
        return [
            PlatformPart(platform, cores, usage.on_platforms.held(name, platform), affinity)
            for platform, cores, affinity in zip(
                divided.platforms,
                divided.parts[name],
                divided.affinities[name],
                strict=True,
            )
        ]

    def divided(self) -> Mapping[QueueName, Mapping[str, int]]:
        """Cores by leaf and platform, as they were divided last: the same object until they are
        divided again. For tests and simulators."""
        return self._divided.by_name

    def is_current(self) -> bool:
        """Have no nodes come or gone since?"""
        return self._divided.shape == self._master_state.state.shape

    def _is_stale(self, name: QueueName, wanted: float, now: float) -> bool:
        """Is the division another one now, as far as this leaf wants so many cores more?"""
        divided, usage = self._divided, self._master_state.queues
        assert usage.on_platforms is not None, "platforms are divided"
        if divided.shape != self._master_state.state.shape:
            return True
        cells = len(divided.parts) * len(divided.platforms)
        if cells > _CELLS_FEW and now < divided.at_s + cells / _CELLS_PER_S:
            return False
        parts = divided.parts.get(name)
        if parts is None:
            return True
        held = sum(usage.on_platforms.held(name, x) for x in divided.platforms)
        return sum(parts) < held + wanted

    def _divide(self, now: float) -> None:
        """Divide what each leaf that wants something may have now."""
        usage, state = self._master_state.queues, self._master_state.state
        assert usage.accounts is not None and usage.on_platforms is not None
        assert self._rule is not None, "it divides by a rule"
        cores_at = _largest(state.cores_at())
        platforms = tuple(cores_at)
        leaves = [x for x in usage.accounts.leaves() if x.wanted[0] > 0]
        names = [x.name for x in leaves]
        queues = self._applications(names)
        run_s = self._run_times.run_times(queues, platforms)
        has_run = self._run_times.has_run(queues, platforms)
        wanted = np.array([_cores_of(usage.accounts, x) for x in leaves], np.int64)
        there = np.array(list(cores_at.values()), np.int64)
        parts, affinity = self._rule.divide(wanted, there, run_s)
        order = np.argsort(-affinity, axis=1, kind="stable")
        self._could_hold.clear()
        self._divided = _Divided(
            now,
            state.shape,
            platforms,
            dict(zip(names, parts.tolist(), strict=True)),
            dict(zip(names, affinity.tolist(), strict=True)),
            dict(zip(names, order.tolist(), strict=True)),
            {
                name: np.flatnonzero(~row).tolist()
                for name, row in zip(names, has_run, strict=True)
                if not row.all()
            },
        )

    def _applications(self, names: Sequence[QueueName]) -> dict[str, dict[str, float]]:
        """Of each leaf, the names of its applications, and by how much each counts."""
        usage = self._master_state.queues
        queues: dict[str, dict[str, float]] = {name: {} for name in names}
        for application_id, account in usage.active.items():
            app = self._master_state.applications[application_id]
            of_queue = queues.get(account.name)
            if of_queue is not None and not app.is_driver:
                weight = 1.0 + usage.of_application[application_id][0]
                of_queue[app.record.name] = of_queue.get(app.record.name, 0.0) + weight
        return queues

    def _best(
        self,
        name: QueueName,
        left: Sequence[float],
        container: Container,
        requires: NodeRequirement | None,
    ) -> int | None:
        """The platform that a leaf prefers of those where it has as much left as this takes."""
        resources, demand = container.request.resources, demand_vector(container.request.resources)
        for position in self._divided.order.get(name, ()):
            platform = self._divided.platforms[position]
            if left[position] >= resources.vcores and self.could_hold(platform, demand, requires):
                return position
        return None

    def _explore(
        self, unknown: list[int], container: Container, requires: NodeRequirement | None
    ) -> int | None:
        """One of the platforms where nothing of the queue has run, which is left out then."""
        demand = demand_vector(container.request.resources)
        for position in unknown:
            if self.could_hold(self._divided.platforms[position], demand, requires):
                unknown.remove(position)
                return position
        return None

    def is_unknown(self, name: QueueName, platform: str) -> bool:
        """Has nothing of this leaf run there, as far as is known?"""
        divided = self._divided
        return any(divided.platforms[x] == platform for x in divided.unknown.get(name, ()))

    def could_hold(self, platform: str, demand: Vector, requires: NodeRequirement | None) -> bool:
        """Could a node of this platform hold so much that meets this?"""
        known = self._could_hold.get((platform, demand, requires))
        if known is None:
            state = self._master_state.state
            rows = state.rows_at(platform) & state.open & fitting_rows(demand, state.total)
            if requires is not None:
                rows &= state.suited(requires)
            known = bool((rows & state.serving(demand)).any())
            self._could_hold[platform, demand, requires] = known
        return known


def _largest(cores_at: Mapping[str, int]) -> dict[str, int]:
    """Those platforms that have cores, the largest of them, in the order of names."""
    found = sorted(cores_at, key=lambda x: (-cores_at[x], x))[:PLATFORMS_MAX]
    return {x: cores_at[x] for x in sorted(found) if cores_at[x] > 0}


def _cores_of(accounts: AccountTree, account: QueueAccount) -> int:
    """Cores that a leaf may have now."""
    return math.floor(min(accounts.share(account)[0], account.wanted[0]) + 1e-6)


def platform_line(request: ContainerRequest, now: float) -> str:
    """What a container waits for whose queue has a part of a platform left; empty once it is
    over."""
    left_s = request.platform_until_s - now
    if not request.platform or left_s <= 0:
        return ""
    return (
        f"for {left_s:.1f} s more it is placed only where it could start at once on the platform "
        f"{request.platform}, which its queue prefers and has a part of left (platform_wait_s)"
    )
