"""Decisions with a tree of queues against those without, on the same applications.

As ``backlog``: the master's core, its schedulers and the order of their rounds, in virtual time.
``APPS`` applications arrive one after the other, one in each queue where there are queues: ten
parents of as many leaves. *Filling*: from an empty cluster, all that they request has a place in
the end. *Full*: they request twice as much as there is, and each end of a container lets another
one start, of the queue whose share has it.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from benchmarks.scheduling.backlog import FullCluster, measure_ends
from benchmarks.scheduling.cells import NODE_SLOTS, TASK
from hrm.core.tenancy.queue_spec import QueueSpec, spec_from

__all__ = ["Sample", "measure"]

PARENTS = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """Containers placed in a second of processor time, and ends with what follows of each."""

    filling_per_s: float
    ends_per_s: float


class _Cluster(FullCluster):
    """``each``: containers that each of ``names`` requests; an empty name is no queue."""

    def __init__(self, nodes: int, names: list[str], each: int, schedulers: int) -> None:
        self._names, self._each = names, each
        self.filling_s = 0.0
        specs: list[QueueSpec] = [spec_from(name, {}) for name in names if name]
        super().__init__(nodes, 0, schedulers, tasks=len(names) * each, queues=specs)

    def _fill(self, slots: int, jobs: int, tasks: int, kind: str) -> None:
        del slots, jobs, tasks, kind
        apps = [self.register(queue=name) for name in self._names]
        gc.collect()
        begun_s = time.process_time()
        for app in apps:
            self.request(app, self._each, TASK)
        self.filling_s = time.process_time() - begun_s


def measure(nodes: int, apps: int, containers: int, ends: int, *, with_queues: bool) -> Sample:
    """``containers`` are requested in all to fill the cluster, and then twice what it holds."""
    names = [f"root.p{x % PARENTS}.q{x}" if with_queues else "" for x in range(apps)]
    filling = _Cluster(nodes, names, containers // apps, schedulers=1)
    placed = len(filling.running)
    assert placed == containers // apps * apps, f"{placed} of {containers} have a place"
    rate = placed / filling.filling_s
    del filling
    full = _Cluster(nodes, names, 2 * nodes * NODE_SLOTS // apps, schedulers=1)
    assert len(full.running) == nodes * NODE_SLOTS, "the cluster is full"
    each = measure_ends(full, ends)
    assert each.placed == ends, f"{ends} ends, {each.placed} starts"
    return Sample(rate, 1e3 * len(each.ms) / sum(each.ms))
