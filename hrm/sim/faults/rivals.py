"""A cluster whose applications compete for GPUs: few devices, batch alone, all like each other.

Their targets rise and fall beyond the end of the faults, so that some come late, some are alone for
a while and queue for more than their share, and containers end while others wait.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hrm.core.vocabulary.model import Gpu, NodeName, Resources
from hrm.core.vocabulary.partitioning import BindingMode, Core, Hardware, Partitioning, partition
from hrm.sim.faults.plan import ApplicationPlan, NodePlan, source

__all__ = ["rival_applications", "with_rival_gpus"]

_GPU_MIB = 8192
_WORK_S = 50.0
"""How long GPUs would be busy with all of the work, if none were ever idle."""
_TAIL_S = 40.0
"""How long targets change after the horizon."""


def with_rival_gpus(seed: int, nodes: tuple[NodePlan, ...]) -> tuple[NodePlan, ...]:
    """The nodes, each with a few like GPUs."""
    return tuple(_with_gpus(source(seed, f"rival-{node.name}"), node) for node in nodes)


def rival_applications(
    seed: int, horizon_s: float, nodes: tuple[NodePlan, ...], count: int, *, losses: bool = True
) -> tuple[ApplicationPlan, ...]:
    """At least two, each of whose executors requests a whole GPU. ``losses``: a node may
    be lost, and the smallest alone must finish the work in time."""
    gpus = [sum(unit.gpu is not None for unit in node.units) for node in nodes]
    count = max(2, count)
    work_s = (_WORK_S * min(gpus) if losses else _WORK_S * sum(gpus)) / count
    return tuple(_rival(seed, n + 1, horizon_s, work_s, 2 * sum(gpus)) for n in range(count))


def _with_gpus(chance: Random, node: NodePlan) -> NodePlan:
    count, cores = chance.randint(2, 8), chance.randint(9, 12)
    hardware = Hardware(
        cores=tuple(Core(index, index % 2) for index in range(cores)),
        memory_mib=1024 * cores,
        gpus=tuple(Gpu(index=x, memory_mib=_GPU_MIB, numa=x % 2) for x in range(count)),
    )
    binding = Partitioning(mode=chance.choice(list(BindingMode)))
    units = partition(NodeName(node.name), hardware, binding)
    return replace(node, units=units, hardware=hardware, binding=binding, auto_binding=None)


def _rival(seed: int, number: int, horizon_s: float, work_s: float, most: int) -> ApplicationPlan:
    chance = source(seed, f"rival-{number}")
    late_s = chance.choice((0.0, chance.uniform(0.0, horizon_s + 0.5 * _TAIL_S)))
    targets = [(0.0, chance.randint(1, most))]
    at_s = 1.0 + late_s
    while at_s < horizon_s + _TAIL_S:
        at_s += chance.uniform(2.0, 12.0)
        targets.append((at_s, chance.randint(0, most)))
    targets.append((at_s + 1.0, chance.randint(max(1, most // 2), most)))
    return ApplicationPlan(
        name=f"app-{number}",
        start_s=1.0 + late_s,
        resources=Resources(1, 512),
        targets=tuple(targets),
        work_s=work_s * chance.uniform(0.5, 1.5),
        kill_chance=chance.choice((0.5, 1.0)),
        duration_hint_s=chance.choice((0.0, 3.0)),
        gpus=1,
    )
