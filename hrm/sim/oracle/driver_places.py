"""Drivers on nodes: their share, what they leave to executors, and that they never all wait.

Grants are recounted from the nodes' units, with the arithmetic of the plans: no code is shared with
``hrm.core.master.driver_places``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Container
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import (
    ContainerSpec,
    ContainerState,
    NodeState,
    Resources,
    ResourceUnit,
    WorkloadClass,
    is_driver,
)
from hrm.sim.faults.capacity import demand_of, how_many

__all__ = ["DriverPlacesChecks", "Held", "less", "open_units", "placed"]

Held: TypeAlias = tuple[str, Resources]
"""A unit, and what a container there requests."""
_STUCK_S = 25.0
"""Longer than any back-off, lease, exclusion or hung scheduler that there is in a run."""
_NODE_EVENTS = (e.NodeRegistered, e.NodeReported, e.ContainerReported)


class DriverPlacesChecks:
    """``_stuck_since_s``: since when only drivers hold the cluster, and all of them wait."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._stuck_since_s: float | None = None

    def master_began(self) -> None:
        self._stuck_since_s = None

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        if not isinstance(event, _NODE_EVENTS):
            for command in commands:
                match command:
                    case c.SendToNode(message=c.AssignContainer(spec=spec)):
                        if is_driver(spec.application_id):
                            self._granted(core.master_state, spec)
        if isinstance(event, e.Ticked):
            self._none_goes_on(core.master_state, event.now)

    def _granted(self, state: MasterState, spec: ContainerSpec) -> None:
        units = open_units(state)
        drivers = [x for x in placed(state, units) if is_driver(x.application_id)]
        others = [x for x in drivers if x.container_id != spec.container_id]
        name, share = spec.container_id, state.bounds.driver_share
        for what in ("vcores", "memory_mib"):
            held = sum(getattr(x.request.resources, what) for x in drivers)
            total = sum(getattr(unit.own_capacity, what) for unit in units.values())
            if others and held > share * total + 1e-6:
                self._violated(
                    f"{name} is granted a place, and drivers hold {held} {what} of {total}, more "
                    f"than {share:.2f} of them"
                )
        first = state.applications[spec.application_id].first_executors
        if first is None or not (others or first.stated):
            return
        streams = [
            x
            for x in placed(state, units)
            if not is_driver(x.application_id)
            and state.applications[x.application_id].record.workload_class is WorkloadClass.STREAM
        ]
        left = less(units, [(x.unit_id, x.request.resources) for x in (*drivers, *streams)])
        fitting = how_many(demand_of(first.resources, 0, left), left)
        if fitting < first.count:
            self._violated(
                f"{name} is granted a place that leaves capacity for {fitting} of its first "
                f"{first.count} executors"
            )

    def _none_goes_on(self, state: MasterState, now: float) -> None:
        if not _only_waiting_drivers(state):
            self._stuck_since_s = None
        elif self._stuck_since_s is None:
            self._stuck_since_s = now
        elif now - self._stuck_since_s > _STUCK_S:
            self._stuck_since_s = None
            names = ", ".join(x.application_id for x in state.drivers.values() if x.node)
            self._violated(
                f"for {_STUCK_S:.0f} s only drivers hold the cluster, and all wait: {names}"
            )


def _only_waiting_drivers(state: MasterState) -> bool:
    """In a cluster that is whole: are there drivers, each with an application that waits, and
    nothing else on any node?"""
    nodes = state.nodes.values()
    if state.recovering or any(x.state is not NodeState.ALIVE or not x.connected for x in nodes):
        return False
    if not all(state.state.open[row] for row in state.state.rows.values()):
        return False
    there = [x for node in nodes for x in node.containers.values()]
    for container in there:
        if not is_driver(container.application_id) or container.state is not ContainerState.RUNNING:
            return False
        app = state.driven.get(container.application_id)
        if app is None or not app.in_state(ContainerState.PENDING):
            return False
    return bool(there)


def open_units(state: MasterState) -> dict[str, ResourceUnit]:
    return {
        unit.unit_id: unit
        for node in state.nodes.values()
        for unit in node.units
        if (row := state.state.rows.get(unit.unit_id)) is not None and state.state.open[row]
    }


def placed(state: MasterState, units: dict[str, ResourceUnit]) -> list[Container]:
    containers = (x for node in state.nodes.values() for x in node.containers.values())
    return [x for x in containers if x.unit_id in units]


def less(units: Mapping[str, ResourceUnit], held: Iterable[Held]) -> list[ResourceUnit]:
    """The units without what is held at each."""
    left = dict(units)
    for home_id, asks in held:
        home = units[home_id]
        for unit_id, unit in units.items():
            if (unit.pool or unit_id) != (home.pool or home.unit_id):
                continue
            part = asks if unit is home else Resources(asks.vcores, asks.memory_mib)
            left[unit_id] = replace(
                left[unit_id],
                capacity=left[unit_id].capacity - part,
                run_limit=left[unit_id].run_limit - (1 if unit is home else 0),
            )
    return list(left.values())
