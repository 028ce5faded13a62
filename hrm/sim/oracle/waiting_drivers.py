"""Does the driver that comes next start, where all that it needs is free?

Drivers on nodes get their turn in order of request. One is passed over that no open node could
hold, or that waits for what streams and their drivers hold there, for these have no end. The first
that is not comes next: once faults have stopped it starts soon if a unit has capacity for it at
which nothing waits, drivers hold no more than their share with it, and its first executors and
those of the drivers that are there fit next to it. What drivers before it wait for is no reason.

Recounted from the nodes' units, as grants are (``driver_places``). Left out: drivers whose own
application is there, that avoid a node or are to start with GPUs, and what comes after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Container
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import (
    ContainerId,
    ContainerRequest,
    ContainerState,
    FirstExecutors,
    Resources,
    ResourceUnit,
    WorkloadClass,
    is_driver,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.sim.faults.capacity import demand_of, fits_offer, how_many, serves
from hrm.sim.faults.labels import meets
from hrm.sim.oracle.driver_places import Held, less, open_units, placed

__all__ = ["WaitingDrivers", "next_driver"]

_LIMIT_S = 12.0
"""Longer than any back-off, lease or round of a scheduler that hangs."""
_TURN_S = 50.0
"""Shorter than it holds up others at first."""
_TOO_MUCH = FirstExecutors(count=1 << 30, resources=Resources(1, 1), stated=False)
"""Of what uses GPUs, which are not counted here: no state has capacity for it."""


class WaitingDrivers:
    """``_next``: the number of the driver that comes next, since when it does, and since when it
    fits. ``_before``: the drivers that were with their schedulers at the latest tick, or while the
    one that comes next was: it may have come too late when its claim was committed, and they in
    time."""

    def __init__(self, violated: Callable[[str], None], *, every_policy: bool) -> None:
        """``every_policy``: a policy may leave idle what it could have."""
        self._violated = violated
        self._every_policy = every_policy
        self._next: tuple[int, float, float] | None = None
        self._before: set[ContainerId] = set()

    def master_began(self) -> None:
        self._next = None

    def after(
        self,
        core: MasterCore,
        event: e.MasterEvent,
        commands: Iterable[c.MasterCommand],
        quiet_since_s: float,
    ) -> None:
        if event.now < quiet_since_s:
            return
        if self._next is not None and self._is_kept(core.master_state, self._next[0]):
            self._next = None
        if isinstance(event, e.ClaimsProposed):
            for command in commands:
                match command:
                    case c.SendToNode(message=c.AssignContainer(spec=spec)):
                        self._granted(core.master_state, spec.container_id, event.now)
        self._note_company(core.master_state)
        if isinstance(event, e.Ticked):
            self._look(core.master_state, event.now)

    def _look(self, state: MasterState, now: float) -> None:
        container, fits = next_driver(state, now)
        waiting = [x for x in state.drivers.values() if _has_its_turn(x)]
        self._before = {x.container_id for x in waiting if x.waits_for is None}
        if container is None:
            self._next = None
            return
        number, since_s, fits_since_s = self._next or (-1, now, now)
        if number != container.number:
            since_s = fits_since_s = now
        self._next = (container.number, since_s, fits_since_s if fits else now)
        if now - self._next[2] > _LIMIT_S and not self._every_policy:
            name = container.container_id
            self._violated(f"{name} comes next, fits, and has waited for {_LIMIT_S:.0f} s")
            self._next = None

    def _note_company(self, state: MasterState) -> None:
        """Those that are with their schedulers while the one that comes next is, too."""
        there = [x for x in state.drivers.values() if _has_its_turn(x) and x.waits_for is None]
        if self._next is not None and any(x.number == self._next[0] for x in there):
            self._before.update(x.container_id for x in there)

    @staticmethod
    def _is_kept(state: MasterState, number: int) -> bool:
        """Does its queue keep it, as it may when the turn has come?"""
        return any(x.withheld for x in state.drivers.values() if x.number == number)

    def _granted(self, state: MasterState, container_id: ContainerId, now: float) -> None:
        container = state.drivers.get(container_id)
        if container is None or self._next is None or container_id in self._before:
            return
        number, since_s, _ = self._next
        first, _ = next_driver(state, now)
        if first is None or first.number != number or container.number <= number:
            return
        if first.waits_for is not None and now - since_s < _TURN_S:
            self._violated(
                f"{container_id} is granted a place while {first.container_id} comes next, since "
                f"{now - since_s:.1f} s"
            )


def next_driver(state: MasterState, now: float) -> tuple[Container | None, bool]:
    """The driver that comes next, if that is certain, and whether it could start."""
    pending = [x for x in state.drivers.values() if _has_its_turn(x)]
    if not pending or state.recovering:
        return None, False
    cluster = _Cluster.of(state)
    for container in sorted(pending, key=lambda x: x.number):
        if _is_left_out(state, container, now):
            break
        homes = [*cluster.homes(container)]
        if not homes:
            continue
        if not cluster.would_begin(container, homes):
            break
        return container, cluster.could_begin(container, homes)
    return None, False


def _has_its_turn(driver: Container) -> bool:
    """Does it wait with the others, and not before them for its queue of applications?"""
    return driver.state is ContainerState.PENDING and not driver.withheld


def _is_left_out(state: MasterState, container: Container, now: float) -> bool:
    name = container.application_id
    is_known = name not in state.driven and _need(state, container) is not _TOO_MUCH
    return container.held or not is_known or bool(state.exclusions.avoided(name, now))


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The open units, the drivers there, and what streams and their drivers hold of them."""

    state: MasterState
    units: dict[str, ResourceUnit]
    drivers: list[Container]
    endless: list[Container]

    @classmethod
    def of(cls, state: MasterState) -> _Cluster:
        units = open_units(state)
        there = placed(state, units)
        drivers = [x for x in there if is_driver(x.application_id)]
        endless = [x for x in there if _has_no_end(state, x)]
        return cls(state, units, drivers, endless)

    def homes(self, container: Container) -> Iterator[ResourceUnit]:
        """The units that could hold a driver once batch has ended."""
        demand = demand_vector(container.request.resources)
        requires = self.state.applications[container.application_id].requires
        left = less(self.units, map(_held, self.endless))
        return (x for x in self._suited(requires, left) if serves(demand, x))

    def would_begin(self, container: Container, homes: Iterable[ResourceUnit]) -> bool:
        """Would it, at one of these, once all drivers of batch have ended?"""
        drivers = [x for x in self.endless if is_driver(x.application_id)]
        return self._is_within_share(container, drivers) and any(
            self._leaves(container, home, drivers) for home in homes
        )

    def could_begin(self, container: Container, homes: Iterable[ResourceUnit]) -> bool:
        """Could it now?"""
        demand = demand_vector(container.request.resources)
        return self._is_within_share(container, self.drivers) and any(
            self._has_free(home, demand) and self._leaves(container, home, self.drivers)
            for home in homes
        )

    def _has_free(self, unit: ResourceUnit, demand: Vector) -> bool:
        queue = self.state.state.find(unit.unit_id)
        if queue is None or any(x.waiting_count for x in queue.pool):
            return False
        return fits_offer(demand, queue.free)

    def _is_within_share(self, container: Container, drivers: list[Container]) -> bool:
        share, asks = self.state.bounds.driver_share, container.request.resources
        for what in ("vcores", "memory_mib"):
            held = sum(getattr(x.request.resources, what) for x in drivers)
            total = sum(getattr(x.own_capacity, what) for x in self.units.values())
            if drivers and held + getattr(asks, what) > share * total:
                return False
        return True

    def _leaves(self, container: Container, home: ResourceUnit, drivers: list[Container]) -> bool:
        """Do its first executors fit next to it, and those of drivers that are there?"""
        there = [*map(_held, drivers), (home.unit_id, container.request.resources)]
        streams = [_held(x) for x in self.endless if not is_driver(x.application_id)]
        needs = [(_need(self.state, container), less(self.units, [*there, *streams]))]
        left = less(self.units, there)
        needs += [(_need(self.state, x), left) for x in drivers]
        return all(self._has_capacity(*x) for x in needs)

    def _has_capacity(self, need: FirstExecutors | None, left: list[ResourceUnit]) -> bool:
        if need is None:
            return True
        suited = list(self._suited(need.requires, left))
        return how_many(demand_of(need.resources, 0, suited), suited) >= need.count

    def _suited(
        self, requires: NodeRequirement | None, units: Iterable[ResourceUnit]
    ) -> Iterator[ResourceUnit]:
        state = self.state.state
        return (x for x in units if meets(requires, state.properties[state.rows[x.unit_id]]))


def _need(state: MasterState, driver: Container) -> FirstExecutors | None:
    """What it needs to go on, or more: of what its application requests the most of each. None:
    nothing that is known."""
    app = state.driven.get(driver.application_id)
    some = [] if app is None else [x.request for x in (*app.containers.values(), *app.ended)]
    if app is None or not some:
        first = state.applications[driver.application_id].first_executors
        return _TOO_MUCH if first is not None and _uses_gpus(first) else first
    if any(map(_uses_gpus, some)):
        return _TOO_MUCH
    vcores = max(x.resources.vcores for x in some)
    memory_mib = max(x.resources.memory_mib for x in some)
    return FirstExecutors(
        count=max(1, app.record.gang_min),
        resources=Resources(vcores, memory_mib),
        stated=False,
        requires=app.requires,
    )


def _uses_gpus(wanted: FirstExecutors | ContainerRequest) -> bool:
    return bool(wanted.gpus or wanted.resources.gpu_memory_mib)


def _held(container: Container) -> Held:
    return container.unit_id, container.request.resources


def _has_no_end(state: MasterState, container: Container) -> bool:
    app, driven = state.applications[container.application_id], state.driven
    both = (app, driven.get(container.application_id))
    return any(x is not None and x.record.workload_class is WorkloadClass.STREAM for x in both)
