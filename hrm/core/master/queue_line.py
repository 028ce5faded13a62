"""The applications of one leaf queue whose containers it keeps from their schedulers, in order."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from hrm.core.master.entities import Application, Container
from hrm.core.tenancy.accounts import QueueAccount
from hrm.core.tenancy.queue_status import WaitReason
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.model import ApplicationId, ContainerId, WorkloadClass

__all__ = ["QueueLine", "Waiter", "dominant_part"]

_Key: TypeAlias = tuple[bool, int, int, float, ApplicationId]


@dataclass(slots=True, eq=False)
class Waiter:
    """One application, and those of its containers that wait here, in order of request.
    ``reason``: says why the next of them does not pass."""

    line: QueueLine
    app: Application
    key: _Key
    reason: Callable[[Waiter], tuple[WaitReason, str]]
    containers: dict[ContainerId, Container] = field(default_factory=dict)

    @property
    def why(self) -> str:
        return self.reason(self)[1]

    @property
    def position(self) -> tuple[int, int]:
        """The how many-th it is of all that wait here, the first is 1; a fair order moves with what
        each holds, and is not seen here."""
        order = self.line.order
        return bisect.bisect_left(order, self.key) + 1, len(order)


class QueueLine:
    """Invariant: ``order`` has the keys of all ``waiters``, sorted; none of them is empty, and each
    is what its application is ``kept`` by. ``users``: how many of the applications are whose."""

    def __init__(
        self, account: QueueAccount, reason: Callable[[Waiter], tuple[WaitReason, str]]
    ) -> None:
        self.account = account
        self._reason = reason
        self.waiters: dict[ApplicationId, Waiter] = {}
        self.order: list[_Key] = []
        self.users: Counter[str] = Counter()

    def add(self, app: Application, containers: Iterable[Container]) -> None:
        waiter = self.waiters.get(app.application_id)
        if waiter is None:
            waiter = Waiter(self, app, self.key(app), self._reason)
            self.waiters[app.application_id] = app.kept = waiter
            bisect.insort(self.order, waiter.key)
            self.users[app.record.user] += 1
        waiter.containers.update((x.container_id, x) for x in containers)

    def remove(self, app: Application, containers: Iterable[Container]) -> None:
        waiter = self.waiters[app.application_id]
        for container in containers:
            del waiter.containers[container.container_id]
        if not waiter.containers:
            app.kept = None
            user = app.record.user
            self.users[user] -= 1
            if not self.users[user]:
                del self.users[user]
            del self.waiters[app.application_id]
            self._take_out(waiter.key)

    def reordered(self, app: Application) -> None:
        """Its class of workload, or where it stands, is another: streams go first."""
        waiter = self.waiters.get(app.application_id)
        if waiter is not None:
            self._take_out(waiter.key)
            waiter.key = self.key(app)
            bisect.insort(self.order, waiter.key)

    def in_order(self, held_part: Callable[[Application], float]) -> Iterator[Waiter]:
        """As its queue orders them; what is removed meanwhile is left out. ``held_part``: how much
        an application holds, for a fair order: the one that holds least goes first."""
        keys: list[_Key] = self.order
        if self.account.spec.order == "fair":
            parts = {x.app.application_id: held_part(x.app) for x in self.waiters.values()}
            keys = sorted(keys, key=lambda x: (x[0], parts[x[-1]], x))
        else:
            keys = list(keys)
        for key in keys:
            waiter = self.waiters.get(key[-1])
            if waiter is not None:
                yield waiter

    def key(self, app: Application) -> _Key:
        """Where an application stands in the order, but for a fair one."""
        record, order = app.record, self.account.spec.order
        is_batch = record.workload_class is WorkloadClass.BATCH
        rank, priority, since_s = 0, 0, record.submitted_at_s
        if order == "priority":
            priority = -record.priority
        elif order == "classes":
            rank, priority, since_s = record.stands.rank(record.submitted_at_s)
        return is_batch, rank, priority, since_s, record.application_id

    def violations(self) -> list[str]:
        """For tests and simulators: who waits at another place than its queue's order gives it?"""
        name, waiters = self.account.name, self.waiters.values()
        found = [f"{x.app.application_id} waits in {name} as it stood" for x in waiters
                 if x.key != self.key(x.app)]  # fmt: skip
        if self.order != sorted(x.key for x in waiters):
            found.append(f"{name} has lost the order of what waits in it")
        return found

    def _take_out(self, key: _Key) -> None:
        del self.order[bisect.bisect_left(self.order, key)]


def dominant_part(amount: Governed, whole: Governed) -> float:
    """The largest part that ``amount`` is of ``whole``, over the resources that there are."""
    return max((x / y for x, y in zip(amount, whole, strict=True) if y), default=0.0)
