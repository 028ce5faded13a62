"""What containers with GPUs usually request: how often each demand comes, learned as they come.

A scheduler sees the containers of its own applications alone, so each has a mix of its own. It
begins with what the caller expects (``prior``) and with what runs when it starts, so that it does
not begin with nothing, on a new cluster or after a restart. A container that waits, or whose claim
fails, is asked for again and again, and counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import ContainerId

__all__ = ["DemandMix"]

_DEMANDS_MAX = 64
"""How many demands have a weight, the most frequent ones."""
_REQUESTS_MAX = 65_536
"""After so many requests all that came before count half: the mix follows the workload."""
_COUNTED_MAX = 65_536
"""Containers of which it is remembered that they have been counted, the latest ones."""
_PRIOR_REQUESTS = 32.0
"""As many requests the prior counts for."""
_FIRST_CHECK = 64
_CHECK_GROWTH = 2.0
_CHECK_EVERY = 8_192
"""Requests between two comparisons of the parts with the weights: so many more each time, up to
this. What has been found for all demands is void with other weights."""
_DRIFT_MAX = 0.1
"""Part of the weights that has to have moved before they change; less may be chance."""


class DemandMix:
    """How often each demand for GPUs is requested.

    Invariants: ``counts`` has demands with device memory alone; ``weights`` are the parts, of sum
    1, of the most frequent of them as of the latest ``settle`` that returned True.
    """

    def __init__(self, prior: Mapping[Vector, float] = MappingProxyType({})) -> None:
        """``prior``: parts of sum 1, of demands with device memory, or nothing."""
        self.counts: dict[Vector, float] = {x: _PRIOR_REQUESTS * y for x, y in prior.items()}
        self.weights: Mapping[Vector, float] = {}
        self._total = sum(self.counts.values())
        self._check_at = 1.0
        self._counted: dict[ContainerId, None] = {}

    def count_running(self, view: ClusterView) -> None:
        """Count what runs on GPUs, at every unit."""
        used = view.free[:, Column.GPU_MEMORY_MIB] < view.total[:, Column.GPU_MEMORY_MIB]
        for row in np.flatnonzero(used).tolist():
            for entry in view.image(row).running:
                if entry.demand[Column.GPU_MEMORY_MIB]:
                    self._add(entry.demand, 1)

    def count(self, demand: Vector, entries: Iterable[Entry]) -> None:
        """Count containers that are to be placed, but for those that have been counted."""
        counted = self._counted
        if not demand[Column.GPU_MEMORY_MIB]:
            return
        new = [x.container_id for x in entries if x.container_id not in counted]
        if new:
            counted.update(dict.fromkeys(new))
            self._add(demand, len(new))
        while len(counted) > _COUNTED_MAX:
            del counted[next(iter(counted))]

    def settle(self) -> bool:
        """Have the parts changed by more than chance? Then ``weights`` are the new ones."""
        if self._total < self._check_at:
            return False
        step = min((_CHECK_GROWTH - 1) * self._total, _CHECK_EVERY)
        self._check_at = max(_FIRST_CHECK, self._total + step)
        counts = self.counts
        kept = sorted(counts, key=lambda demand: (-counts[demand], demand))[:_DEMANDS_MAX]
        total = sum(counts[demand] for demand in kept)
        weights = {demand: counts[demand] / total for demand in kept}
        before = self.weights
        moved = sum(abs(weights.get(x, 0.0) - before.get(x, 0.0)) for x in {**weights, **before})
        if moved / 2 <= _DRIFT_MAX:
            return False
        self.weights = weights
        return True

    def _add(self, demand: Vector, many: int) -> None:
        self.counts[demand] = self.counts.get(demand, 0.0) + many
        self._total += many
        if self._total > _REQUESTS_MAX:
            self.counts = {x: count / 2 for x, count in self.counts.items() if count >= 1}
            self._total = sum(self.counts.values())
            self._check_at = self._total + _CHECK_EVERY
