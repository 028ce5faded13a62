"""Plans for bugs that are too rare for the faults of a seed: one kind of fault, many times."""

from __future__ import annotations

from dataclasses import replace

from hrm.sim.faults.plan import Limits, Plan, TimedFault, source
from hrm.sim.faults.plan_generator import draw

__all__ = ["crashing_agents", "cut_drivers", "hanging_agents"]


def crashing_agents(seed: int) -> Plan:
    """On a slow network agents crash repeatedly, and nodes are repartitioned meanwhile: an agent's
    registration arrives after its successor's."""
    chance = source(seed, "agents that crash")
    faults = [
        TimedFault(2.0 + 0.3 * n, "agent-crash", chance.random(), 0.2 * chance.random())
        for n in range(20)
    ]
    faults += [
        TimedFault(2.1 + 0.3 * n, "rebind", chance.random(), chance.random()) for n in range(20)
    ]
    faults.sort(key=lambda fault: fault.at_s)
    without = frozenset({"submissions", "remotes"})
    plan = draw(seed, Limits(nodes=2, applications=2, horizon_s=9.0, without=without))
    return replace(plan, rates={"delay": 0.5}, faults=tuple(faults))


def cut_drivers(seed: int) -> Plan:
    """Machines on which submitted drivers run are disconnected for longer than a lease."""
    chance = source(seed, "drivers that are cut off")
    faults = tuple(
        TimedFault(2.0 + 0.5 * n, "driver-cut", chance.random(), chance.uniform(0.5, 1.0))
        for n in range(30)
    )
    plan = draw(seed, Limits(nodes=3, applications=0, horizon_s=18.0))
    return replace(plan, rates={}, faults=faults)


def hanging_agents(seed: int) -> Plan:
    """Agents hang until their nodes are lost and forgotten, and go on while the master's disk is
    full."""
    chance = source(seed, "agents that hang")
    faults = []
    for n in range(3):
        at_s, size = 3.0 + 30.0 * n, chance.uniform(0.8, 0.99)
        on_s = at_s + 24.0 * size
        faults.append(TimedFault(at_s, "hang", chance.random(), size))
        faults.append(TimedFault(on_s - 4.0, "full-master-disk", 0.0, chance.uniform(0.5, 0.8)))
    without = frozenset({"submissions", "remotes"})
    plan = draw(seed, Limits(nodes=2, applications=2, horizon_s=95.0, without=without))
    return replace(plan, rates={}, faults=tuple(faults))
