"""What fits where, computed independently by the oracle: no code is shared with the core.

Units of a pool show the same vcores and memory, which must be counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import Resources, ResourceUnit

__all__ = ["demand_of", "fits_offer", "how_many", "next_to", "serves"]


def fits_offer(demand: Vector, offer: Sequence[int]) -> bool:
    return all(need <= have for need, have in zip(demand, offer, strict=True))


def demand_of(resources: Resources, gpus: int, units: Iterable[ResourceUnit]) -> Vector:
    """What one container takes; a whole GPU is as much as the largest of ``units`` has."""
    device_mib = resources.gpu_memory_mib
    if gpus and not device_mib:
        device_mib = max((unit.gpu.memory_mib for unit in units if unit.gpu), default=1 << 40)
    return (resources.vcores, resources.memory_mib, device_mib, 1)


def serves(demand: Vector, unit: ResourceUnit) -> bool:
    """Could the unit run it when it is empty?"""
    kept = unit.gpu_only and not demand[Column.GPU_MEMORY_MIB]
    return not kept and fits_offer(demand, _offer(unit))


def how_many(demand: Vector, units: Sequence[ResourceUnit]) -> int:
    """How many of them these units run together when they are empty."""
    free = {unit.unit_id: list(_offer(unit)) for unit in units}
    pools: dict[str, list[list[int]]] = {}
    for unit in units:
        pools.setdefault(unit.pool or unit.unit_id, []).append(free[unit.unit_id])
    count = 0
    for unit in units:
        here = free[unit.unit_id]
        while serves(demand, unit) and fits_offer(demand, here):
            count += 1
            for column in (Column.GPU_MEMORY_MIB, Column.SLOTS):
                here[column] -= demand[column]
            for each in pools[unit.pool or unit.unit_id]:
                for column in (Column.VCORES, Column.MEMORY_MIB):
                    each[column] -= demand[column]
    return count


def next_to(driver: Vector, demand: Vector, units: Sequence[ResourceUnit]) -> int:
    """How many of ``demand`` these units run together with one driver, which stands where it leaves
    the most; 0: none holds the driver. Units of a pool are not told apart."""
    most = 0
    for home in units:
        if not serves(driver, home):
            continue
        rest = [
            replace(
                unit,
                capacity=unit.capacity - Resources(driver[0], driver[1]),
                run_limit=unit.run_limit - (1 if unit is home else 0),
            )
            if (unit.pool or unit.unit_id) == (home.pool or home.unit_id)
            else unit
            for unit in units
        ]
        most = max(most, how_many(demand, rest))
    return most


def _offer(unit: ResourceUnit) -> Vector:
    capacity = unit.target
    slots = unit.run_limit * unit.gpus_used
    return (capacity.vcores, capacity.memory_mib, capacity.gpu_memory_mib, slots)
