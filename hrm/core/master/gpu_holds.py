"""What is preempted for an application's fair share of GPUs is held for it until it has started.

An executor may be larger than those that end for it, and these do not end together. What the first
of them frees is too little for it, but enough for the applications that lose them: they would take
it back, the executor would still wait, and more would be preempted for it, again and again. So from
the order until one starts at that unit, no application that has more of that kind of GPU than the
one that waits may start any. It lasts no longer than the victims have to end, and then than a
scheduler needs to come to it.

Others may take what was freed all the same: streams, containers that lack cores alone. A unit at
which executors were preempted in vain is left alone for a while, twice as long each time.

Limits: held is not the unit, but all of its kind, from applications that have more; a master that
restarts holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hrm.core.master.entities import Container
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.feasibility import Column, Vector, demand_vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    ContainerState,
    NodeName,
    ResourceUnitId,
)

__all__ = ["GpuHolds", "HeldCapacity"]

_PAUSE_MAX_S = 600.0
"""The longest time for which a unit is left alone."""
_DOUBLED_MAX = 16


@dataclass(slots=True)
class HeldCapacity:
    """``victims`` are preempted at a unit since ``since_s`` for one executor of ``demand``, among
    them those at other units for others of its gang. It
    lasts until ``until_s``, which is sooner once all of them have ended (``freed``)."""

    application_id: ApplicationId
    demand: Vector
    node: NodeName
    unit_id: ResourceUnitId
    victims: dict[ContainerId, ApplicationId]
    since_s: float
    until_s: float
    freed: bool = False


@dataclass(slots=True)
class _Pause:
    """A unit at which executors were preempted in vain ``times`` in a row."""

    times: int = 0
    until_s: float = 0.0


class GpuHolds:
    """``_holds``: in the order in which they began. ``_served``: executors that each ended a hold,
    so that they end no other."""

    def __init__(self, master_state: MasterState) -> None:
        self._master_state = master_state
        self._holds: list[HeldCapacity] = []
        self._served: set[ContainerId] = set()
        self._pauses: dict[ResourceUnitId, _Pause] = {}
        self._seen_at = (-1.0, -1)

    def begin(
        self,
        application_id: ApplicationId,
        demand: Vector,
        victims: Sequence[Container],
        now: float,
        others: Sequence[Container] = (),
    ) -> None:
        """These of one unit are ordered to end for an executor. ``others``: what ends elsewhere,
        without which it does not start either."""
        first, bounds = victims[0], self._master_state.bounds
        assert first.node is not None
        until_s = now + bounds.gpu_preemption_grace_s + bounds.resend_delay_s
        owners = {x.container_id: x.application_id for x in (*victims, *others)}
        hold = HeldCapacity(application_id, demand, first.node, first.unit_id, owners, now, until_s)
        self._holds.append(hold)

    def __bool__(self) -> bool:
        """Is anything held?"""
        return bool(self._holds)

    def of_kind(self, slots: int, now: float) -> list[HeldCapacity]:
        """What is held of units with so many GPUs."""
        seen_at = (now, self._master_state.gpus.version)
        if self._holds and seen_at != self._seen_at:
            self._holds = [hold for hold in self._holds if self._lasts(hold, now)]
            self._seen_at = seen_at
            if not self._holds:
                self._served.clear()
        return [hold for hold in self._holds if hold.demand[Column.SLOTS] == slots]

    def paused(self, now: float) -> set[ResourceUnitId]:
        """Units at which none are to be preempted now."""
        long_ago_s = now - 2 * _PAUSE_MAX_S
        self._pauses = {x: it for x, it in self._pauses.items() if it.until_s > long_ago_s}
        return {unit_id for unit_id, pause in self._pauses.items() if now < pause.until_s}

    def _lasts(self, hold: HeldCapacity, now: float) -> bool:
        started = self._started(hold)
        if started is not None:
            self._served.add(started.container_id)
            self._pauses.pop(hold.unit_id, None)
            return False
        bounds = self._master_state.bounds
        if not self._is_wanted(hold):
            return False
        if not hold.freed and not any(map(self._is_live, hold.victims, hold.victims.values())):
            hold.freed = True
            hold.until_s = now + 2 * bounds.retry_delay_max_s
        if now < hold.until_s:
            return True
        pause = self._pauses.setdefault(hold.unit_id, _Pause())
        pause.times += 1
        pause_s = bounds.resend_delay_s * 2.0 ** min(pause.times, _DOUBLED_MAX)
        pause.until_s = now + min(pause_s, _PAUSE_MAX_S)
        return False

    def _is_wanted(self, hold: HeldCapacity) -> bool:
        """Does such an executor wait, or is to be requested again, or has just been granted a
        place?"""
        use = self._master_state.gpus.uses.get(hold.application_id, {}).get(hold.demand)
        if use is None:
            return False
        waits = use.pending > 0 or bool(use.waiting) or use.returned > 0
        return waits or self._at_unit(hold, ContainerState.ASSIGNED) is not None

    def _started(self, hold: HeldCapacity) -> Container | None:
        """The executor that has started where capacity was freed for it."""
        return self._at_unit(hold, ContainerState.RUNNING)

    def _at_unit(self, hold: HeldCapacity, state: ContainerState) -> Container | None:
        """One of these executors there that is in ``state`` since the hold began."""
        node = self._master_state.nodes.get(hold.node)
        for container in () if node is None else node.containers.values():
            if (
                container.unit_id == hold.unit_id
                and container.application_id == hold.application_id
                and container.state is state
                and max(container.assigned_at_s, container.started_at_s) >= hold.since_s
                and container.container_id not in self._served
                and demand_vector(container.request.resources) == hold.demand
            ):
                return container
        return None

    def _is_live(self, container_id: ContainerId, owner: ApplicationId) -> bool:
        app = self._master_state.applications.get(owner)
        return app is not None and container_id in app.containers
