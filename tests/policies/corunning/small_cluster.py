"""A shared state whose containers a policy places one after the other, each committed at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from hrm.core.messages.claims import Entry
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerId,
    NodeName,
    ResourceUnit,
    WorkloadClass,
    container_id_of,
)
from hrm.testing.virtual import unit

__all__ = ["ONE", "SmallCluster"]

ONE: Vector = (1, 1, 0, 1)


class SmallCluster:
    def __init__(self, units: Iterable[ResourceUnit]) -> None:
        self.state = SharedState()
        for each in units:
            self.state.add(NodeName(each.unit_id.partition("/")[0]), UnitQueue(each))
        self.view = ClusterView(self.state)
        self.now = 0.0
        self._numbers = itertools.count(1)

    @staticmethod
    def of_cores(*cores: int) -> SmallCluster:
        return SmallCluster(unit(f"n{number}", vcores=each) for number, each in enumerate(cores))

    def choose(
        self, policy: PlacementPolicy, name: str, count: int = 1, demand: Vector = ONE
    ) -> list[tuple[Entry, int | None]]:
        """What the policy chooses for containers of application ``name``."""
        ids = [container_id_of(ApplicationId(name), str(next(self._numbers))) for _ in range(count)]
        batch = WorkloadClass.BATCH
        entries = tuple(Entry(each, batch, demand, 20.0) for each in ids)
        self.now += 10.0
        self.view.renew()
        placement = Placement(batch, demand, entries, 0, 600.0)
        return list(zip(entries, policy.place(self.view, placement, self.now), strict=True))

    def run(
        self, policy: PlacementPolicy, name: str, count: int = 1, demand: Vector = ONE
    ) -> list[int]:
        """Let all that got a row start there; returns the rows."""
        rows = []
        for entry, row in self.choose(policy, name, count, demand):
            if row is not None:
                assert self.state.queue(row).run_if_free(entry, self.now)
                self.state.refresh(row)
                rows.append(row)
        return rows

    def end(self, row: int, name: str) -> None:
        """Let a container of application ``name`` at ``row`` end."""
        running = self.state.queue(row).running
        self.state.queue(row).remove(next(x for x in running if x.startswith(f"{name}-x")))
        self.state.refresh(row)

    def mixes(self) -> Counter[str]:
        """How many units run what: "AABB" is two containers of A and two of B."""
        return Counter(
            "".join(sorted(_name(x) for x in self.state.queue(row).running))
            for row in self.state.rows.values()
        )


def _name(container_id: ContainerId) -> str:
    return container_id.partition("-x")[0]
