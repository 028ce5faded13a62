"""A change of binding moves what is idle at once, and takes nothing from what runs or waits.

Checked on the layout that a binding gives, on what runs, and on the processes themselves: on which
cores each is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.model import (
    ContainerSpec,
    EndCause,
    NodeName,
    ResourceUnit,
    ResourceUnitId,
)
from hrm.core.vocabulary.partitioning import partition

__all__ = ["Bindings", "shared_cores"]


@dataclass(slots=True)
class _Before:
    """A node's core after its latest event: the vcores that its binding gives each unit, and the
    units at which a stream waited."""

    core: NodeCore
    vcores: dict[ResourceUnitId, int] = field(default_factory=dict)
    streams: set[ResourceUnitId] = field(default_factory=set)


class Bindings:
    """Checks each event of a node, and what each registration says of its units."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._before: dict[NodeName, _Before] = {}

    def after(self, core: NodeCore, event: e.NodeEvent, commands: Iterable[c.NodeCommand]) -> None:
        if core.hardware is None:
            return
        layout = partition(core.name, core.hardware, core.binding)
        before = self._before.get(core.name)
        if before is not None and before.core is core:
            if isinstance(event, e.RebindReceived | e.UsageMeasured):
                self._preempts_nothing(core, commands)
            if isinstance(event, e.UsageMeasured):
                self._leaves_streams(core, before, layout)
        self._holds_nothing_back(core, layout)
        self._before[core.name] = _Before(
            core,
            {unit.unit_id: unit.capacity.vcores for unit in layout},
            {unit_id for unit_id, queue in core.units.items() if queue.stream_waiting},
        )

    def registered(self, event: e.NodeRegistered) -> None:
        """The master learns of units that add up, whatever they lend each other."""
        own = [(unit.own(unit.capacity), unit) for unit in event.units]
        for name in ("vcores", "memory_mib"):
            lent = sum(getattr(unit.lent, name) for _, unit in own if not unit.pool)
            borrowed = sum(getattr(unit.borrowed, name) for _, unit in own if not unit.pool)
            if lent != borrowed:
                self._violated(
                    f"{event.node} registers units that lend {lent} and borrow {borrowed} {name}"
                )

    def _preempts_nothing(self, core: NodeCore, commands: Iterable[c.NodeCommand]) -> None:
        """Batch is preempted for a stream in what its unit has, which ``preemptions`` checks."""
        for command in commands:
            if isinstance(command, c.StopProcess) and command.cause is not EndCause.PREEMPTED:
                self._violated(f"{core.name} ends {command.container_id} for another binding")

    def _leaves_streams(
        self, core: NodeCore, before: _Before, layout: Iterable[ResourceUnit]
    ) -> None:
        """A node takes no cores of its own accord where a stream waits."""
        for unit in layout:
            had = before.vcores.get(unit.unit_id, 0)
            if unit.unit_id in before.streams and unit.capacity.vcores < had:
                self._violated(f"{core.name} takes cores of {unit.unit_id}, where a stream waits")

    def _holds_nothing_back(self, core: NodeCore, layout: tuple[ResourceUnit, ...]) -> None:
        """A unit has more than the layout gives it only as far as its containers hold it, and the
        others lack no more than that."""
        given = {unit.unit_id: unit for unit in layout}
        for place, name in enumerate(("vcores", "memory_mib")):
            excess = lack = 0
            for unit_id, queue in core.units.items():
                unit = given.get(unit_id)
                gets = 0 if unit is None else getattr(unit.capacity, name)
                held = sum(entry.demand[place] for entry in queue.running.values())
                has = queue.capacity[place]
                if has > max(gets, held):
                    self._violated(
                        f"{unit_id} has {has} {name}, its containers hold {held} and its binding "
                        f"gives it {gets}: the rest is held back"
                    )
                if not queue.unit.pool:
                    excess += max(0, has - gets)
                    lack += max(0, gets - has)
            if excess != lack:
                self._violated(f"{core.name}'s units lack {lack} {name}, {excess} are borrowed")


def shared_cores(
    machine: str, held_on: Iterable[tuple[ContainerSpec, tuple[int, ...]]]
) -> list[str]:
    """What is wrong with the cores that processes are held on: no core is two units', and each unit
    has as many as its containers were given. ``held_on``: each process with its cores."""
    owners: dict[int, ResourceUnitId] = {}
    needed: dict[ResourceUnitId, int] = {}
    cores: dict[ResourceUnitId, tuple[int, ...]] = {}
    found: list[str] = []
    for spec, cpus in held_on:
        if not cpus:
            continue
        needed[spec.unit_id] = needed.get(spec.unit_id, 0) + spec.resources.vcores
        cores[spec.unit_id] = cpus
        found += [
            f"core {cpu} of {machine} is {owners[cpu]}'s and {spec.unit_id}'s"
            for cpu in cpus
            if owners.setdefault(cpu, spec.unit_id) != spec.unit_id
        ]
    found += [
        f"containers of {vcores} vcores are held on {len(cores[unit_id])} cores at {unit_id}"
        for unit_id, vcores in needed.items()
        if vcores > len(cores[unit_id])
    ]
    return found
