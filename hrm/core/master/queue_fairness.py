"""What is observed of how queues are served (``core.tenancy.observed_fairness``), and from where.

At each tick, of each leaf queue that wants or holds something: the cores that its containers hold
at nodes, and the cores that are *due* to it. Due is what the division of the cluster would give it
of what all want now, by guarantees and weights alone: maxima and past use do not count, for they
are among what is observed. A queue that wants less than its part is due what it wants, and what it
leaves is due to others. So a queue that its maximum keeps from its part is seen to be served worse
than others, as is one that waits for what others hold.

The tree is walked from ``root`` down, into queues that want something only: the work of a tick
grows with the leaves that do, and their siblings, not with all queues.

A container's wait is from its request, which may be before its application was allowed to hold any,
to its start. What an earlier master started is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_usage import QueueUsage
from hrm.core.tenancy.accounts import AccountTree, QueueAccount
from hrm.core.tenancy.division import divide
from hrm.core.tenancy.observed_fairness import FairnessSummary, LeafObservation, ObservedFairness
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.vocabulary.columns import Floats

__all__ = ["QueueFairness"]

_CORES = slice(0, 1)


class QueueFairness:
    """Nothing is observed while no queue is governed. ``now``: of the latest tick."""

    def __init__(self, usage: QueueUsage, half_life_s: float) -> None:
        self._usage = usage
        self._observed = ObservedFairness(half_life_s)
        self._accounts: AccountTree | None = None
        self._capacity = -1.0
        self._guaranteed: dict[QueueName, Floats] | None = None
        self.now = 0.0

    def tick(self, now: float) -> None:
        passed_s, self.now = now - self.now, max(now, self.now)
        accounts, before = self._usage.accounts, self._accounts
        if accounts is None:
            self._accounts = None
            return
        if accounts is not before or accounts.capacity[0] != self._capacity:
            self._follow(accounts)
        if before is None or passed_s <= 0:
            return
        for account, due in self._due(accounts):
            self._observed.had(account.name, due, account.placed[0], passed_s, now)

    def started(self, app: Application, container: Container, now: float) -> None:
        """A container has started, as far as this master knows for the first time."""
        if self._usage.accounts is None or container.started_at_s < container.requested_at_s:
            return
        if app.recovered and container.requested_at_s == container.assigned_at_s:
            return  # an earlier master granted it: when it was requested is not known
        waited_s = container.started_at_s - container.requested_at_s
        self._observed.started(QueueName(app.record.queue), waited_s, now)

    def of(self, name: QueueName) -> LeafObservation | None:
        """None: nothing has been observed of that leaf."""
        return self._observed.of(name, self.now)

    def summary(self) -> FairnessSummary:
        return self._observed.summary(self.now)

    def _follow(self, accounts: AccountTree) -> None:
        """There are other queues, or another cluster: what queues are guaranteed where no maxima
        hold, by parent, shape (children, 1)."""
        if accounts is not self._accounts:
            self._accounts = accounts
            self._observed.keep({x.name for x in accounts.leaves()})
        self._capacity = accounts.capacity[0]
        self._guaranteed = None
        if any(any(spec.maximum) for spec in accounts.tree.specs.values()):
            limits = accounts.tree.limits(accounts.capacity, with_maxima=False)
            self._guaranteed = {
                name: np.asarray([limits[x].guaranteed[_CORES] for x in children])
                for name, children in accounts.tree.children.items()
            }

    def _due(self, accounts: AccountTree) -> Iterator[tuple[QueueAccount, float]]:
        """All leaves that want or hold something, with the cores that are due to each."""
        left = [(accounts.root, accounts.capacity[0])]
        while left:
            account, cores = left.pop()
            family = account.family
            if family is None:
                yield account, cores
                continue
            active = np.flatnonzero(family.wanted.any(axis=1))
            guaranteed = family.guaranteed[:, _CORES]
            if self._guaranteed is not None:
                guaranteed = self._guaranteed[account.name]
            due = divide(
                np.asarray([cores]),
                guaranteed[active],
                family.wanted[active, _CORES],
                family.weights[active],
            )
            for position, each in zip(active.tolist(), due[:, 0].tolist(), strict=True):
                left.append((account.children[position], each))
