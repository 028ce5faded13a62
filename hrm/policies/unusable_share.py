"""How much of the free GPUs is useless to what usually comes, and what one more container changes.

What is free of a unit's GPUs is *unusable* for a demand that could not start there, because too
little device memory is free, or with it too few cores or too little memory. The unusable share of a
unit, in GPUs, is what is free of them times the part of all requests that could not start:

    F = free * (1 - U(cores, memory, device memory)),     F(pool) = the sum over its units

``U`` rises with each of its three numbers, so it is a table over the sizes that are requested, made
once for a mix of demands; looking it up costs the same for one demand and for a hundred. A
container that starts changes what is free of its unit, and the cores and memory of all in its pool.
By how much F of the pool *rises* is what the placement costs; it is less than 0 where more is used
than becomes useless.

Measured so, each GPU counts as if the others left all cores to it. Eight idle GPUs with cores for
four are all usable then, and the node ends with GPUs and no cores. So ``U`` is the mean of two
here: with all cores and memory of the pool, and with what is one GPU's if they are divided evenly
over those that are free.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023, sections 3 and 4: F with all cores, and the descent. The even
part and the table are HRM's. Demands without a GPU are not in the mix: they would add the same to
each place of a container. One for several GPUs counts at units with as many, where HRM places it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.vocabulary.columns import Bools, Floats, Ints
from hrm.core.vocabulary.feasibility import Column, Vector, serving_rows

__all__ = ["UnusableShare"]

_FOUR_TRUE = 0x01010101
_BEFORE_AND_AFTER = np.array((0, 1, 1))


class UnusableShare:
    """The pools with GPUs of a view, each a line of a rectangle with its units and padding.

    ``weights``: of demands with device memory; their sum is 1, or there are none.

    Attributes: ``rows`` of the view and ``real`` (no padding), shape (lines, width); ``line_of``
    each row of the view, -1 of those without a GPU near, shape (rows,); ``units``: the same for
    lines whose units are alike, when they are idle.
    """

    def __init__(self, view: ClusterView) -> None:
        device = view.total[:, Column.GPU_MEMORY_MIB]
        near = np.isin(view.pool, view.pool[device > 0]) & view.total.any(axis=1)
        rows = np.flatnonzero(near)
        rows = rows[np.argsort(view.pool[rows], kind="stable")]
        _, first, line, width = np.unique(
            view.pool[rows], return_index=True, return_inverse=True, return_counts=True
        )
        shape = (len(first), int(width.max(initial=1)))
        place = np.arange(len(rows)) - first[line]
        self.rows: Ints = np.zeros(shape, np.int64)
        self.rows[line, place] = rows
        self.real: Bools = np.zeros(shape, np.bool_)
        self.real[line, place] = True
        self.line_of: Ints = np.full(len(device), -1, np.int64)
        self.line_of[rows] = line
        self._gpus: Ints = view.gpus[self.rows]
        self._gpu_only: Bools = view.gpu_only[self.rows]
        has_gpu = self.real & (device[self.rows] > 0)
        self._per_mib: Floats = np.where(has_gpu, self._gpus / np.maximum(1, device[self.rows]), 0)
        kinds = np.concatenate((view.total, view.gpus[:, np.newaxis]), axis=1)[self.rows]
        self.units = [
            hashlib.blake2b(each.tobytes() + only.tobytes() + real.tobytes()).digest()
            for each, only, real in zip(kinds, self._gpu_only, self.real, strict=True)
        ]
        self._served: dict[tuple[int, bool], Bools] = {}
        self.weigh({})

    def __len__(self) -> int:
        return len(self.rows)

    def whole_gpus(self, view: ClusterView) -> dict[Vector, float]:
        """Demands for one whole GPU and an even part of its pool's cores and memory, each weighed
        by how many GPUs it would fill: what is expected while nothing has been requested."""
        found: dict[Vector, float] = {}
        total, gpus = view.total[self.rows], np.where(self.real, self._gpus, 0)
        for units, of_unit in zip(total, gpus, strict=True):
            many = int(of_unit.sum())
            first = int(of_unit.argmax())
            device_mib = int(units[first, Column.GPU_MEMORY_MIB]) // int(of_unit[first])
            cores, memory_mib = (int(x) // many for x in units[first, :2])
            demand = cores, memory_mib, device_mib, 1
            found[demand] = found.get(demand, 0.0) + many
        everything = sum(found.values())
        return {demand: count / everything for demand, count in found.items()}

    def weigh(self, weights: Mapping[Vector, float]) -> None:
        """Measure by this mix from now on."""
        demands = np.array([*weights], np.int64).reshape(-1, 4)
        levels = [np.unique(demands[:, column]) for column in range(4)]
        cell = [np.searchsorted(each, demands[:, n]) for n, each in enumerate(levels)]
        cores, memory, device, gpus = levels
        table = np.zeros((len(gpus) + 1, len(cores) + 1, len(memory) + 1, len(device) + 1))
        part = np.array([*weights.values()])
        np.add.at(table, (cell[3], cell[0] + 1, cell[1] + 1, cell[2] + 1), part)
        for axis in (1, 2, 3):
            np.cumsum(table, axis=axis, out=table)
        self._levels = [each.astype(np.float64) for each in (cores, memory, device)]
        self._half_usable: Floats = table.ravel() / 2
        self._steps = table[0, 0].size, table.shape[3]
        # The last part of the table, all zeros, is of units whose number of GPUs none requests.
        kind = np.searchsorted(gpus, self._gpus)
        known = np.isin(self._gpus, gpus)
        self._kind: Ints = np.where(known, kind, len(gpus)) * table[0].size

    def rises(self, lines: Ints, demand: Vector, free: Ints) -> Floats:
        """By how much the unusable share of the pool, in GPUs, rises if one of ``demand`` starts at
        a unit, shape (lines, width): infinite where it does not fit, or is not served. ``free``: of
        all rows, shape (rows, 4)."""
        now = free[self.rows[lines]]
        fits = _all_of_four(now >= np.asarray(demand, np.int64)) & self._serving(demand)[lines]
        some = np.flatnonzero(fits.any(axis=1))  # few, once units have filled up
        if len(some) == len(lines):
            return np.where(fits, self._finite(lines, demand, now), np.inf)
        rises = np.full(fits.shape, np.inf)
        if len(some):
            finite = self._finite(lines[some], demand, now[some])
            rises[some] = np.where(fits[some], finite, np.inf)
        return rises

    def _finite(self, lines: Ints, demand: Vector, now: Ints) -> Floats:
        """The rises as if the demand fitted and were served at every unit of these lines, of which
        ``now`` is free, shape (lines, width, 4)."""
        wanted, per_mib = demand[Column.GPU_MEMORY_MIB], self._per_mib[lines]
        device, of_node = now[..., Column.GPU_MEMORY_MIB], now[:, 0, :2]
        gpus = (device * per_mib).sum(axis=1)
        # Before, and after, of the unit's siblings and of the unit itself.
        begin = self._begin(
            np.array((of_node, of_node - demand[:2])),
            np.array((gpus, gpus - wanted * per_mib.max(axis=1) if wanted else gpus)),
        )
        devices = np.array((device, device, device - wanted))
        cell = self._levels[2].searchsorted(devices, "right")
        cell += self._kind[lines]
        usable = self._half_usable[begin[:, _BEFORE_AND_AFTER] + cell].sum(axis=0)
        before, beside, at = (1.0 - usable) * devices * per_mib
        rises: Floats = (beside - before).sum(axis=1)[:, np.newaxis] + (at - beside)
        return rises

    def _begin(self, of_node: Ints, gpus: Floats) -> Ints:
        """Where the parts of the table begin for so many cores and so much memory, shape (cases,
        lines, 2), with so many ``gpus`` free, shape (cases, lines): with all of them, and with an
        even part; shape (2, cases, lines, 1)."""
        parts = np.ones((2, *gpus.shape, 1))
        np.maximum(gpus, 1.0, out=parts[1, ..., 0])
        even = np.floor(of_node / parts)
        of_cores, of_memory, _ = self._levels
        begin = self._steps[0] * of_cores.searchsorted(even[..., 0], "right")
        begin += self._steps[1] * of_memory.searchsorted(even[..., 1], "right")
        cells: Ints = begin[..., np.newaxis]
        return cells

    def _serving(self, demand: Vector) -> Bools:
        """The units that are meant for containers of this kind, shape (lines, width)."""
        kind = demand[Column.SLOTS], bool(demand[Column.GPU_MEMORY_MIB])
        if kind not in self._served:
            self._served[kind] = self.real & serving_rows(demand, self._gpus, self._gpu_only)
        return self._served[kind]


def _all_of_four(answers: Bools) -> Bools:
    """``answers.all(axis=-1)`` of a contiguous array, shape (..., 4), as one comparison each."""
    every: Bools = answers.view(np.uint32)[..., 0] == _FOUR_TRUE
    return every
