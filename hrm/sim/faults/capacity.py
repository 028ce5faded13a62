"""What fits where, computed independently by the oracle: no code is shared with the core.

Units of a pool show the same vcores and memory, which must be counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import Resources, ResourceUnit

__all__ = ["all_fit", "demand_of", "fits_offer", "how_many", "next_to", "serves"]


def fits_offer(demand: Vector, offer: Sequence[int]) -> bool:
    return all(need <= have for need, have in zip(demand, offer, strict=True))


def demand_of(resources: Resources, gpus: int, units: Iterable[ResourceUnit]) -> Vector:
    """What one container takes; whole GPUs are as much as the largest of ``units`` with so many
    has."""
    device_mib = resources.gpu_memory_mib
    if gpus and not device_mib:
        like = (unit for unit in units if len(unit.gpus) == gpus)
        device_mib = max((unit.target.gpu_memory_mib for unit in like), default=1 << 40)
    return (resources.vcores, resources.memory_mib, device_mib, max(1, gpus))


def serves(demand: Vector, unit: ResourceUnit) -> bool:
    """Could the unit run it when it is empty?"""
    if demand[Column.GPU_MEMORY_MIB]:
        meant = demand[Column.SLOTS] == 1 + len(unit.more_gpus)
    else:
        meant = not unit.gpu_only
    return meant and fits_offer(demand, _offer(unit))


def how_many(demand: Vector, units: Sequence[ResourceUnit]) -> int:
    """How many of them these units run together when they are empty."""
    return _fill(((demand, None),), units)[0]


def all_fit(demands: Sequence[tuple[Vector, int]], units: Sequence[ResourceUnit]) -> bool:
    """Do these units certainly run so many of each demand together when they are empty? The larger
    ones take the first units that have them, so the answer may be a wrong no, never a wrong yes."""
    wanted = sorted(demands, reverse=True)
    return _fill(wanted, units) == [most for _, most in wanted]


def _fill(demands: Iterable[tuple[Vector, int | None]], units: Sequence[ResourceUnit]) -> list[int]:
    """How many of each demand find a place, one demand after the other; at most so many of it."""
    free = {unit.unit_id: list(_offer(unit)) for unit in units}
    pools: dict[str, list[list[int]]] = {}
    for unit in units:
        pools.setdefault(unit.pool or unit.unit_id, []).append(free[unit.unit_id])
    counts = []
    for demand, most in demands:
        count = 0
        for unit in units:
            here = free[unit.unit_id]
            while count != most and serves(demand, unit) and fits_offer(demand, here):
                count += 1
                for column in (Column.GPU_MEMORY_MIB, Column.SLOTS):
                    here[column] -= demand[column]
                for each in pools[unit.pool or unit.unit_id]:
                    for column in (Column.VCORES, Column.MEMORY_MIB):
                        each[column] -= demand[column]
        counts.append(count)
    return counts


def next_to(driver: Vector, demand: Vector, units: Sequence[ResourceUnit]) -> int:
    """How many of ``demand`` these units run together with one driver, which stands where it leaves
    the most; 0: none holds the driver. Units of a pool are not distinguished."""
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
