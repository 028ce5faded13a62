"""What is observed of how queues are served (``core.tenancy.observed_fairness``), and from where.

At each tick, of each leaf queue that wants or holds something: the cores that its containers hold
at nodes, and the cores that are *due* to it. Due is what the division of the cluster would give it
of what all want now, by guarantees and weights alone: maxima and past use do not count, for they
are among what is observed. A queue that wants less than its part is due what it wants, and what it
leaves is due to others. So a queue that its maximum keeps from its part is seen to be served worse
than others, as is one that waits for what others hold. Applications that wait for others of their
queue to end (``max_running``) want nothing yet.

The tree is walked from ``root`` down, into queues that want something only: the work of a tick
grows with the leaves that do, and their siblings, not with all queues.

A container's wait is from its request, which may be before its application was allowed to hold any,
to its start. What an earlier master started is left out.

How fast tasks ran, relative to the fastest platform, is known from what drivers report of them
(``core.master.observed_tasks``), and from what is learned of run times by platform.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_usage import QueueUsage
from hrm.core.tenancy.accounts import AccountTree, QueueAccount
from hrm.core.tenancy.affinities import Affinities
from hrm.core.tenancy.division import divide
from hrm.core.tenancy.kind_times import ApplicationKind
from hrm.core.tenancy.observed_fairness import FairnessSummary, LeafObservation, ObservedFairness
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.vocabulary.columns import Floats

__all__ = ["QueueFairness"]


class QueueFairness:
    """Nothing is observed while no queue is governed. ``now``: of the latest tick.

    ``_guaranteed``: by parent, the cores that it is guaranteed itself where no maxima hold, and
    those that its children are, shape (children,). ``_ran``: core-seconds that tasks which have
    ended since the latest tick ran, by kind of application and platform.
    """

    def __init__(self, usage: QueueUsage, affinities: Affinities, half_life_s: float) -> None:
        self._usage = usage
        self._affinities = affinities
        self._observed = ObservedFairness(half_life_s)
        self._accounts: AccountTree | None = None
        self._guaranteed: dict[QueueName, tuple[float, Floats]] = {}
        self._ran: dict[tuple[ApplicationKind, str], float] = {}
        self.now = 0.0

    def tick(self, now: float) -> None:
        passed_s, self.now = now - self.now, max(now, self.now)
        accounts, before = self._usage.accounts, self._accounts
        self._accounts = accounts
        ran, self._ran = self._ran, {}
        if accounts is None:
            return
        if accounts is not before:
            self._guaranteed.clear()
            self._observed.keep({x.name for x in accounts.leaves()})
        if before is None or passed_s <= 0:
            return
        for account, due in self._due(accounts):
            self._observed.had(account.name, due, account.placed[0], passed_s, now)
        for (kind, platform), run_s in ran.items():
            name = QueueName(kind.queue)
            if name in accounts.of:
                speed = self._affinities.speed(kind, platform)
                self._observed.ran(name, run_s, speed, now)

    def ran(self, kind: ApplicationKind, platform: str, run_s: float) -> None:
        """Tasks have ended, of applications of this kind."""
        if self._usage.accounts is not None:
            self._ran[kind, platform] = self._ran.get((kind, platform), 0.0) + run_s

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

    def _due(self, accounts: AccountTree) -> Iterator[tuple[QueueAccount, float]]:
        """All leaves that want or hold something, with the cores that are due to each."""
        whole = accounts.capacity[0]
        left = [(accounts.root, whole, whole)]
        while left:
            account, cores, guaranteed = left.pop()
            family = account.family
            if family is None:
                yield account, cores
                continue
            own, of_children = self._guaranteed.get(account.name, (math.nan, None))
            if own != guaranteed or of_children is None:
                of_children = np.asarray(accounts.tree.guarantees(account.name, 0, guaranteed))
                self._guaranteed[account.name] = guaranteed, of_children
            active = np.flatnonzero(family.wanted.any(axis=1))
            due = divide(
                np.asarray([cores]),
                of_children[active, np.newaxis],
                family.wanted[active, :1],
                family.weights[active],
            )
            amounts = due[:, 0].tolist(), of_children[active].tolist()
            for position, *each in zip(active.tolist(), *amounts, strict=True):
                left.append((account.children[position], each[0], each[1]))
