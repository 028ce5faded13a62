"""Requests that differ within one application, and units of several GPUs.

An application may request executors of two sizes: small ones and then large ones, or both from the
start. So what it has requested before is not what it waits for now, and small containers wait
behind large ones. A node may offer GPUs in pairs, to containers that use both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hrm.core.vocabulary.model import Gpu, NodeName, Resources, ResourceUnit
from hrm.core.vocabulary.partitioning import Core, partition
from hrm.sim.faults.capacity import all_fit, demand_of
from hrm.sim.faults.plan import ApplicationPlan, NodePlan, OtherSize

__all__ = ["fits_whole", "with_other_size", "with_several_gpus"]


def with_other_size(
    chance: Random, plan: ApplicationPlan, nodes: Sequence[NodePlan], horizon_s: float
) -> ApplicationPlan:
    """Most applications request a second size: as large as a unit, or of any size within it.

    A gang is counted over both sizes, so its second one is no larger than the first.
    """
    home = _cpu_unit(chance, nodes)
    if home is None or chance.random() < 0.3:
        return plan
    vcores = home.vcores if chance.random() < 0.5 else chance.randint(1, home.vcores)
    resources = Resources(vcores, min(512 * chance.randint(1, 4), home.memory_mib))
    if plan.gang_min:
        first = plan.resources
        resources = Resources(
            min(vcores, first.vcores), min(resources.memory_mib, first.memory_mib)
        )
    at_s, count = chance.uniform(0.5, 0.6 * horizon_s), chance.randint(1, 4)
    last = (horizon_s, chance.choice((0, 0, 1, 2)))
    kind = chance.choice(("beside", "later", "instead"))
    if kind == "beside":
        return replace(plan, other=OtherSize(resources, ((0.0, count), last)))
    other = OtherSize(resources, ((0.0, 0), (at_s, count), last))
    if kind == "instead":
        *before, end = plan.targets
        kept = [x for x in before if x[0] < at_s]
        plan = replace(plan, targets=(*kept, (at_s, 0), end))
    return replace(plan, other=other)


def fits_whole(plan: ApplicationPlan, units: Sequence[ResourceUnit]) -> bool:
    """Do these units, when they are empty, run the most that it ever requests of both sizes?"""
    demand = demand_of(plan.resources, plan.gpus, units)
    demands = [(demand, max(count for _, count in plan.targets))]
    if plan.other is not None:
        most = max(count for _, count in plan.other.targets)
        demands.append((demand_of(plan.other.resources, plan.other.gpus, units), most))
    return all_fit(demands, units)


def with_several_gpus(chance: Random, node: NodePlan) -> NodePlan:
    """Most nodes with GPUs have two to four, two to a unit; an odd one is left alone."""
    hardware, binding = node.hardware, node.binding
    if hardware is None or binding is None or not hardware.gpus or chance.random() < 0.25:
        return node
    count = chance.randint(2, 4)
    cores = max(len(hardware.cores), count + chance.randint(1, 4))
    sockets = 1 + max(core.numa for core in hardware.cores)
    hardware = replace(
        hardware,
        cores=tuple(Core(index, index % sockets) for index in range(cores)),
        gpus=tuple(
            Gpu(index=index, memory_mib=chance.choice((8192, 16384)), numa=index % sockets)
            for index in range(count)
        ),
    )
    bound = min(binding.bound_cores, (cores - binding.reserve_cores) // count)
    binding = replace(binding, bound_cores=bound, gpu_host_memory_mib=0, gpus_per_unit=2)
    units = partition(NodeName(node.name), hardware, binding)
    return replace(node, units=units, hardware=hardware, binding=binding)


def _cpu_unit(chance: Random, nodes: Sequence[NodePlan]) -> Resources | None:
    """What some unit has that runs containers without a GPU."""
    units = [unit for node in nodes for unit in node.units if not unit.gpu_only]
    return chance.choice(units).capacity if units else None
