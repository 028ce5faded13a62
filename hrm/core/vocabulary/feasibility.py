"""May this demand be served from that offer? One answer for scheduler, negotiator and node.

Components that disagree about it livelock: one proposes what the other refuses. So there is one
rule, in two forms that a test holds equal: for one offer, and for all rows of the resource table.

The dimensions, in this order: vcores, memory (MiB), device memory (MiB), slots. A container takes
one slot on each GPU that it uses, or one; a unit offers ``run_limit`` of them on each GPU.

A container that requests device memory fits only units with as many GPUs as it is to use, because
it takes an equal part of each: a unit whose device memory suffices has as much free on every GPU.
One that requests none may use a GPU's unit only where the node has no other (even split).

Source: HRM paper, sections 3.1 and 3.4.1.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hrm.core.vocabulary.model import Resources, ResourceUnit

__all__ = [
    "DIMENSIONS",
    "Column",
    "Vector",
    "capacity_vector",
    "could_hold",
    "current_vector",
    "demand_vector",
    "fits",
    "fitting_rows",
    "folds",
    "leaves",
    "minus",
    "own_part",
    "plus",
    "pool_folds",
    "pooled_part",
    "serves",
    "serving_rows",
    "times",
]


class Column(enum.IntEnum):
    """The columns of a table with one row a resource unit, and the places in a ``Vector``."""

    VCORES = 0
    MEMORY_MIB = 1
    GPU_MEMORY_MIB = 2
    SLOTS = 3


DIMENSIONS = ("vcores", "memory_mib", "gpu_memory_mib", "slots")

Vector: TypeAlias = tuple[int, int, int, int]


def demand_vector(resources: Resources) -> Vector:
    """What one container takes."""
    return (resources.vcores, resources.memory_mib, resources.gpu_memory_mib, resources.gpus)


def capacity_vector(unit: ResourceUnit) -> Vector:
    """What one resource unit offers when it is empty, and no other unit's container holds any."""
    c = unit.target
    return (c.vcores, c.memory_mib, c.gpu_memory_mib, unit.run_limit * unit.gpus_used)


def current_vector(unit: ResourceUnit) -> Vector:
    """What its containers may hold together now; see ``ResourceUnit``."""
    c = unit.current
    return (c.vcores, c.memory_mib, c.gpu_memory_mib, unit.run_limit * unit.gpus_used)


def could_hold(demand: Vector, unit: ResourceUnit) -> bool:
    """May ``unit`` ever hold this demand, when it is empty?"""
    return fits(demand, capacity_vector(unit)) and serves(demand, unit.gpus_used, unit.gpu_only)


def serves(demand: Vector, gpus: int, gpu_only: bool) -> bool:
    """Is a unit where containers use so many ``gpus`` meant for this one, whatever its size?"""
    return demand[Column.SLOTS] == gpus if demand[Column.GPU_MEMORY_MIB] else not gpu_only


def serving_rows(
    demand: Vector, gpus: npt.NDArray[np.int64], gpu_only: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """``serves`` for every row, shape (rows,)."""
    if demand[Column.GPU_MEMORY_MIB]:
        rows: npt.NDArray[np.bool_] = gpus == demand[Column.SLOTS]
        return rows
    return ~gpu_only


def fits(demand: Vector, offer: Vector) -> bool:
    """True iff no dimension of ``demand`` exceeds ``offer``."""
    return (
        demand[0] <= offer[0]
        and demand[1] <= offer[1]
        and demand[2] <= offer[2]
        and demand[3] <= offer[3]
    )


def times(demand: Vector, offer: Vector) -> int:
    """How many containers of ``demand``, which is not nothing, fit into ``offer`` together."""
    return max(0, min(y // x for x, y in zip(demand, offer, strict=True) if x > 0))


def fitting_rows(demand: Vector, offers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """``fits`` for every row of ``offers``, shape (rows, 4); returns shape (rows,)."""
    fitting: npt.NDArray[np.bool_] = np.all(offers >= np.asarray(demand, np.int64), axis=1)
    return fitting


def folds(demand: Vector, offers: npt.NDArray[np.int64], pools: npt.NDArray[np.int64]) -> int:
    """How many containers of ``demand`` fit into ``offers``, shape (rows, 4), together. ``pools``,
    shape (rows,): the same number for rows that share their vcores and memory, which count once."""
    return int(pool_folds(demand, offers, pools)[0].sum())


def pool_folds(
    demand: Vector, offers: npt.NDArray[np.int64], pools: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """``folds`` of each pool, shape (pools,), and of each row the index of its pool there, shape
    (rows,). An offer may be negative: nothing fits it."""
    wanted = np.asarray(demand, np.int64)
    requested, common = wanted > 0, wanted[:2] > 0
    alone = (offers[:, requested] // wanted[requested]).min(axis=1)
    alone = np.maximum(alone, 0)
    _, first, pool = np.unique(pools, return_index=True, return_inverse=True)
    shared = (offers[first, :2][:, common] // wanted[:2][common]).min(
        axis=1, initial=np.iinfo(np.int64).max
    )
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, pool, alone)
    return np.minimum(sums, np.maximum(shared, 0)), pool


def leaves(free: Sequence[int], demand: Vector) -> bool:
    """``fits``, where ``free`` may be negative in a dimension of which nothing is requested."""
    return all(have >= want for have, want in zip(free, demand, strict=True) if want)


def plus(a: Vector, b: Vector) -> Vector:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])


def minus(a: Vector, b: Vector) -> Vector:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3])


def pooled_part(demand: Vector) -> Vector:
    """What a container takes from its siblings: vcores and memory, no device memory, no slot."""
    return (demand[0], demand[1], 0, 0)


def own_part(demand: Vector) -> Vector:
    """What it takes from its unit alone."""
    return minus(demand, pooled_part(demand))
