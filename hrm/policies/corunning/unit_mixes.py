"""Which tenants run on which unit, kept up to date from the rows of a view that have changed.

What counts of a unit is its cores, and of one with a GPU its slots. A row is read again where its
version or its free slots differ from when it was read last, so tentative reservations are seen, and
are forgotten when they are undone. Of units that share their cores, each has its own mix.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.co_running import CoRunning, Tenant
from hrm.core.vocabulary.feasibility import Column
from hrm.core.vocabulary.model import ContainerId, application_of
from hrm.policies.corunning.slowdowns import IDLE
from hrm.policies.placement_helpers import Floats, Ints

__all__ = ["TenantMix", "UnitMixes"]

TenantMix = dict[int, int]
"""Cores (or slots) of each tenant that runs on a unit, by the tenant's number."""

_DISTINCT = 8
"""Tenants of a unit that count in its cost: those with the most cores."""
_APPLICATIONS_MIN = 8_192
_UNREAD = -1


class UnitMixes:
    """Invariants, after ``update``: ``mixes`` has the mix of every row of the view, as the view has
    it. Tenants have numbers from 1 on; ``tenants`` has them by number, with ``IDLE`` for
    number 0.

    ``size``, shape (rows,): cores of each unit, slots of one with a GPU (``on_gpu``); ``used``: how
    many of them run something. ``who`` and ``cores``, shape (rows, 8): the mix again, as columns.
    ``generation`` rises when numbers are given out again from 1 on.
    """

    def __init__(self, co_running: CoRunning) -> None:
        self._co_running = co_running
        self._view: ClusterView | None = None
        self._applications_max = _APPLICATIONS_MIN
        self.generation = 0
        self._begin(0)

    def _begin(self, rows: int) -> None:
        """As if nothing had been read."""
        self.generation += 1
        self.tenants: list[Tenant] = [IDLE]
        self._numbers: dict[Tenant, int] = {}
        self._applications: dict[str, int] = {}
        self.mixes: list[TenantMix] = [{} for _ in range(rows)]
        self.size: Ints = np.zeros(rows, np.int64)
        self.used: Ints = np.zeros(rows, np.int64)
        self.on_gpu: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self.who: Ints = np.zeros((rows, _DISTINCT), np.int64)
        self.cores: Ints = np.zeros((rows, _DISTINCT), np.int64)
        self._version: Ints = np.full(rows, _UNREAD, np.int64)
        self._slots: Ints = np.full(rows, _UNREAD, np.int64)

    def update(self, view: ClusterView) -> list[tuple[int, TenantMix]]:
        """Read what has changed; returns those rows, each with its mix before."""
        rows = len(view.open)
        if view is not self._view or rows != len(self.mixes):
            self._view = view
            self._begin(rows)
        if len(self._applications) > self._applications_max:
            self._begin(rows)
        version, slots = view.version, view.free[:, Column.SLOTS]
        changed = np.flatnonzero((version != self._version) | (slots != self._slots))
        before = [(row, self._read(view, row)) for row in changed.tolist()]
        self._version[changed], self._slots[changed] = version[changed], slots[changed]
        if len(changed) == rows:
            self._applications_max = max(_APPLICATIONS_MIN, 4 * len(self._applications))
        return before

    def number_of(self, container_id: ContainerId) -> int:
        """The tenant of a container, by number."""
        application_id = application_of(container_id)
        number = self._applications.get(application_id)
        if number is None:
            tenant = self._co_running.tenant_of(application_id)
            number = self._applications[application_id] = self.number(tenant)
        return number

    def number(self, tenant: Tenant) -> int:
        """Of a tenant, whether it runs anything or not."""
        number = self._numbers.get(tenant)
        if number is None:
            number = self._numbers[tenant] = len(self.tenants)
            self.tenants.append(tenant)
        return number

    def has(self, tenant: int, rows: Ints) -> Ints:
        """Cores of a tenant on each of ``rows``; the same shape."""
        cores: Ints = ((self.who[rows] == tenant) * self.cores[rows]).sum(axis=1)
        return cores

    def expected(self, weights: Floats, rows: Ints) -> Floats:
        """Sum over the tenants of each row of their cores times ``weights``, by tenant; the same
        shape as ``rows``."""
        sums: Floats = (weights[self.who[rows]] * self.cores[rows]).sum(axis=1)
        return sums

    def _read(self, view: ClusterView, row: int) -> TenantMix:
        """Read a row; returns its mix before."""
        before = self.mixes[row]
        vcores, _, device_mib, slots = view.total[row].tolist()
        self.on_gpu[row] = device_mib > 0
        self.size[row] = slots if device_mib else vcores
        mix: TenantMix = {}
        if vcores:
            column = Column.SLOTS if device_mib else Column.VCORES
            for entry in view.image(row).running:
                number = self.number_of(entry.container_id)
                mix[number] = mix.get(number, 0) + entry.demand[column]
        if mix == before:
            return before
        self.mixes[row] = mix
        self.used[row] = sum(mix.values())
        shown = list(mix.items())
        if len(shown) > _DISTINCT:
            shown = sorted(shown, key=lambda item: (-item[1], item[0]))[:_DISTINCT]
        self.who[row], self.cores[row] = 0, 0
        for place, (number, cores) in enumerate(shown):
            self.who[row, place], self.cores[row, place] = number, cores
        return before
