"""Which container that waits for a shared GPU starts next, by what such containers use of it.

The question of the DqnGPU paper for a node's queues: a ``GpuSharingPolicy`` imagines or scores what
runs and what waits as the recorded uses have it (``ContainerUses``), and names one that may start.
It decides the order alone; what may start, and the bounds of all this, the node has
(``hrm.core.node.gpu_waiters``).

A container is expected to run as long as its queue expects, and is as far as its time so far, as if
it had been alone. A stream holds its greatest use for as long as anything is imagined. Containers
have no known slow-downs of pairs: they share at full speed as far as their uses together stay
within the card, and one for which that does not hold is not named. Where none may be named, the
first of the line starts.

Source: DqnGPU (Oh and Kim, Cluster Computing 2020), sections 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hrm.core.node.gpu_waiters import GpuSharer, SharedGpuView
from hrm.core.vocabulary.gpu_use import GpuUsePart
from hrm.core.vocabulary.model import ContainerId, ContainerSpec
from hrm.policies.shared_gpu.container_uses import ContainerUses
from hrm.policies.shared_gpu.guarded import GuardedGpuSharing
from hrm.policies.shared_gpu.heuristics import GpuSharingPolicy, GpuSharingView, WaitingGpuJob
from hrm.policies.shared_gpu.look_ahead import LENGTH_MAX
from hrm.policies.shared_gpu.profiles import (
    CapacityRule,
    GpuUseProfile,
    ProfileTable,
    constant,
)
from hrm.policies.shared_gpu.recorded_use import profile_of, tick_of_runs

__all__ = ["ProfiledWaiters"]

_NUMBERS_MAX = 10_000
_RUN_LEAST_S = 1.0
"""Of a container, however short it is expected to be."""


class ProfiledWaiters:
    """A ``GpuWaiterPolicy``: see the module."""

    def __init__(
        self, uses: ContainerUses, sharing: GpuSharingPolicy, rule: CapacityRule | None = None
    ) -> None:
        self.uses = uses
        self.sharing = sharing
        self._rule = CapacityRule() if rule is None else rule
        self._numbers: dict[ContainerId, int] = {}
        self._next = 0

    def peak_mib(self, spec: ContainerSpec) -> int | None:
        """See ``GpuWaiterPolicy``."""
        parts = self.uses.get(spec)
        return math.ceil(max(part.memory_mib for part in parts)) if parts else None

    def choose(self, view: SharedGpuView) -> int | None:
        """See ``GpuWaiterPolicy``."""
        ending = [x for x in view.running if math.isfinite(x.run_s)]
        runs_s = [max(_RUN_LEAST_S, x.run_s) for x in (*ending, *view.waiting)]
        tick_s = tick_of_runs(runs_s)
        horizon = min(LENGTH_MAX, sum(math.ceil(run_s / tick_s) for run_s in runs_s))
        running = [self._profile(x, tick_s, horizon, view.memory_mib) for x in view.running]
        profiles = [self._profile(x, tick_s, horizon, view.memory_mib) for x in view.waiting]
        done = [max(0.0, view.now - x.since_s) / tick_s for x in view.running]
        held = [
            (profile, min(int(ticks), len(profile) - 1) if math.isfinite(x.run_s) else 0)
            for profile, ticks, x in zip(running, done, view.running, strict=True)
        ]
        fits = self._rule.fitting(held, ProfileTable(profiles))
        if not fits.any():
            return None
        if isinstance(self.sharing, GuardedGpuSharing):
            self.sharing.at(view.now, tick_s)
        begin_s = min(x.since_s for x in (*view.running, *view.waiting))
        progress = [
            ticks if math.isfinite(x.run_s) else 0.0
            for ticks, x in zip(done, view.running, strict=True)
        ]
        return self.sharing.choose(
            GpuSharingView(
                now=_ticks(view.now - begin_s, tick_s),
                running=held,
                waiting=[
                    WaitingGpuJob(self._number(one), profile, _ticks(one.since_s - begin_s, tick_s))
                    for one, profile in zip(view.waiting, profiles, strict=True)
                ],
                fits=fits,
                rule=self._rule,
                progress=progress,
                together_max=view.together_max,
            )
        )

    def ended(self, container_id: ContainerId, *, now: float, ran_s: float, ok: bool) -> None:
        """A container that was named has ended; not ``ok``: it had more device memory than it held.
        By that a learned policy is compared with what it replaces."""
        number = self._numbers.pop(container_id, None)
        if number is not None and isinstance(self.sharing, GuardedGpuSharing):
            self.sharing.ended(number, now=now, ran_s=ran_s, ok=ok)

    def _number(self, one: GpuSharer) -> int:
        """Of a container, the same in all views."""
        container_id = one.spec.container_id
        if container_id not in self._numbers:
            self._numbers[container_id] = self._next
            self._next += 1
            if len(self._numbers) > _NUMBERS_MAX:
                del self._numbers[next(iter(self._numbers))]
        return self._numbers[container_id]

    def _profile(
        self, one: GpuSharer, tick_s: float, horizon: int, memory_mib: int
    ) -> GpuUseProfile:
        parts: Sequence[GpuUsePart] = self.uses.get(one.spec)
        if math.isfinite(one.run_s):
            run_s = max(_RUN_LEAST_S, one.run_s)
            return profile_of(tuple(parts), run_s, tick_s, memory_mib)
        whole = profile_of(tuple(parts), horizon * tick_s, tick_s, memory_mib)
        return constant(whole, "max")


def _ticks(seconds: float, tick_s: float) -> int:
    return max(0, int(seconds / tick_s))
