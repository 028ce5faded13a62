"""Is what was preempted for a fair share of GPUs taken back by those that gave it?

Executors of one unit that are ordered to end in one turn end one after the other. Until the last
has, an application that gave one of them starts none there: one with less still waits, for whose
executor the first of them are too few. Each start is judged by what they have then: the one that
waits may get GPUs elsewhere, and lose them later.

Left out: what was granted before the order, which its node may start; orders that are older than
the time that victims have to end, and those since which executors of one size no longer wait: they
may have been for one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hrm.core.master.entities import Container
from hrm.core.vocabulary.model import ApplicationId, ContainerId, ContainerState, ResourceUnitId

__all__ = ["FreedGpus", "has_capacity"]

_WAITS = (ContainerState.PENDING, ContainerState.WAITING)


@dataclass(slots=True)
class _Order:
    """``victims`` at a unit, ``givers`` their applications; ``poor``: those with less than
    each of them kept, and of which sizes executors of theirs waited then; ``started``: what the
    givers have started there since."""

    at_s: float
    victims: set[ContainerId]
    givers: set[ApplicationId]
    poor: set[tuple[ApplicationId, int]]
    started: set[ContainerId] = field(default_factory=set)


class FreedGpus:
    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._orders: dict[ResourceUnitId, _Order] = {}

    def __bool__(self) -> bool:
        """Is anything to be watched?"""
        return bool(self._orders)

    def master_began(self) -> None:
        self._orders.clear()

    def ordered(
        self,
        apps: Mapping[ApplicationId, Sequence[Container]],
        stopped: set[ContainerId],
        now: float,
    ) -> None:
        """These are preempted; ``apps``: what lives of one kind of GPUs."""
        by_unit: dict[ResourceUnitId, list[Container]] = {}
        for some in apps.values():
            for container in some:
                if container.container_id in stopped:
                    by_unit.setdefault(container.unit_id, []).append(container)
        kept_mib = {
            name: sum(_mib(x) for x in some if x.container_id not in stopped and has_capacity(x))
            for name, some in apps.items()
        }
        for unit_id, victims in by_unit.items():
            givers = {x.application_id for x in victims}
            least_mib = min(kept_mib[name] for name in givers)
            poor = {x for x in _waiting(apps) if kept_mib[x[0]] < least_mib}
            names = {x.container_id for x in victims}
            self._orders[unit_id] = _Order(now, names, givers, poor)

    def after(
        self, apps: Mapping[ApplicationId, Sequence[Container]], grace_s: float, now: float
    ) -> None:
        """To be called after each event. ``apps``: as above; ``grace_s``: the time that victims
        have to end."""
        self._orders = {x: it for x, it in self._orders.items() if now - it.at_s < grace_s}
        live = {x.container_id for some in apps.values() for x in some}
        waiting = _waiting(apps)
        for unit_id, order in self._orders.items():
            started = {x: _started(apps[x], unit_id, order) for x in order.givers & apps.keys()}
            order.started.update(x.container_id for some in started.values() for x in some)
            if not order.poor or not order.poor <= waiting or not order.victims & live:
                continue
            waits = {name for name, _ in order.poor}
            most_mib = max(_kept_mib(apps[name]) for name in waits)
            for name, taken in started.items():
                before_mib = _kept_mib(apps[name]) - sum(map(_mib, taken))
                if taken and before_mib > most_mib:
                    self._violated(
                        f"{taken[0].container_id} takes back what was preempted at {unit_id} at "
                        f"{order.at_s:.2f} s for {', '.join(sorted(waits))}, too soon"
                    )


def _waiting(
    apps: Mapping[ApplicationId, Sequence[Container]],
) -> set[tuple[ApplicationId, int]]:
    """Which wait, and for executors of which sizes."""
    return {(name, _mib(x)) for name, some in apps.items() for x in some if x.state in _WAITS}


def _started(
    containers: Sequence[Container], unit_id: ResourceUnitId, order: _Order
) -> list[Container]:
    """What has been granted capacity there since the order, and is not known yet."""
    return [
        x
        for x in containers
        if x.unit_id == unit_id
        and has_capacity(x)
        and x.assigned_at_s > order.at_s
        and x.container_id not in order.victims
        and x.container_id not in order.started
    ]


def has_capacity(container: Container) -> bool:
    """Does it run, or start, as far as the master knows? What was granted a place in a queue waits
    there, though its node has not reported it yet."""
    if container.state is ContainerState.ASSIGNED:
        return not container.queued
    return container.state is ContainerState.RUNNING


def _mib(container: Container) -> int:
    return container.request.resources.gpu_memory_mib


def _kept_mib(containers: Sequence[Container]) -> int:
    return sum(_mib(x) for x in containers if has_capacity(x))
