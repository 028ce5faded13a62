"""What has passed its queue and has no place yet comes back, where its queue holds too much.

The gate (``hrm.core.master.queue_gate``) says when: others want their share, a maximum is lower, or
there is less than there was. What is with schedulers comes back at once, what waits at a unit is
returned by its node. A gang comes back whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_line import QueueLine
from hrm.core.master.queue_passing import sum_of
from hrm.core.master.queue_usage import QueueUsage, amount_of
from hrm.core.master.returns import may_return, return_waiting, starts_where_it_waits
from hrm.core.master.state import MasterState
from hrm.core.tenancy.accounts import NOTHING, QueueAccount, fits_into, less
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.model import ContainerState

__all__ = ["RETURNED_MAX", "QueueRecall"]

RETURNED_MAX = 256
"""Containers that are returned from units in one tick because their queue holds too much."""


class QueueRecall:
    """``come_back``: takes a container from its scheduler to the line of its queue."""

    def __init__(
        self,
        master_state: MasterState,
        lines: Mapping[QueueName, QueueLine],
        come_back: Callable[[Container], None],
    ) -> None:
        self._master_state = master_state
        self._usage: QueueUsage = master_state.queues
        self._lines = lines
        self._come_back = come_back

    def take_back(self, account: QueueAccount, now: float, most: int = RETURNED_MAX) -> int:
        """Take back what the queue holds beyond its share and has no place yet, the latest first;
        returns how many nodes are asked to return. What is on loan, or yields, is in no
        other's way: it would be lent the same place again."""
        usage, returned = self._usage, 0
        assert usage.accounts is not None, "what has an account is governed"
        share = usage.accounts.share(account)
        unplaced = usage.unplaced.get(account.name)
        if unplaced is None or not _is_beyond(account.held, share):
            return 0
        held = account.held
        kept = {x for x, each in unplaced.items() if x in usage.on_loan or each.request.yields}
        for container_id in kept:
            held = less(held, amount_of(unplaced[container_id].request.resources))
        for container in reversed(list(unplaced.values())):
            if not _is_beyond(held, share):
                break
            if container.container_id in kept:
                continue
            amount = amount_of(container.request.resources)
            if not _relieves(amount, held, share):
                continue
            app = self._master_state.applications[container.application_id]
            if container.request.place:
                continue
            if gangs.missing(app):
                held = less(held, self._gang_comes_back(app))
                continue
            if container.state is ContainerState.PENDING:
                self._come_back(container)
            elif returned < most and self._may_return(container, now):
                why = f"{account.name} holds more than its share, and other queues wait for theirs"
                return_waiting(self._master_state, container, why, now)
                returned += 1
            else:
                continue
            held = less(held, amount)
        return returned

    def _may_return(self, container: Container, now: float) -> bool:
        """May it be returned from its unit? Not where it starts soon, because others yield, nor
        while something may run that is not counted: it would be placed there again."""
        if not self._master_state.sees_all(now):
            return False
        if starts_where_it_waits(self._master_state, container):
            return False
        return may_return(self._master_state, container, now, just_queued=True)

    def _gang_comes_back(self, app: Application) -> Governed:
        """A gang that has passed, and none of which has a place, comes back whole; returns what it
        held."""
        containers = list(app.containers.values())
        if any(x.node is not None or x.withheld for x in containers):
            return NOTHING
        for container in containers:
            self._come_back(container)
        return sum_of(containers)

    def rejoin_gangs(self) -> None:
        """What passed alone while its gang had its places, and waits for the whole of it again, as
        these are lost, comes back to the rest that its queue keeps."""
        for line in list(self._lines.values()):
            for waiter in list(line.waiters.values()):
                many = gangs.missing(waiter.app)
                pending = waiter.app.in_state(ContainerState.PENDING) if many else []
                passed = [x for x in pending if not (x.withheld or x.held or x.waits_for)]
                if len(passed) < many:
                    for container in passed:
                        self._come_back(container)

    def keep_below_maxima(self, now: float) -> None:
        """There is less than there was, a maximum is lower, or nodes have reported what an earlier
        master granted: what has passed since, or before, and has no place yet may be too much."""
        usage = self._usage
        assert usage.accounts is not None, "what has grown is governed"
        grown, usage.grown = usage.grown, set()
        if not any(_is_above(x) for name in grown for x in usage.accounts.of[name].path[:-1]):
            return
        for name, some in list(usage.unplaced.items()):
            for container in reversed(list(some.values())):
                if container.withheld or not self._is_too_much(container, usage.accounts.of[name]):
                    continue
                app = self._master_state.applications[container.application_id]
                if container.state is not ContainerState.PENDING:
                    if may_return(self._master_state, container, now, just_queued=True):
                        why = f"{name} holds more than it may (maximum)"
                        return_waiting(self._master_state, container, why, now)
                    continue
                pending = app.in_state(ContainerState.PENDING)
                for each in pending if gangs.missing(app) else [container]:
                    if not (each.withheld or each.held):
                        self._come_back(each)

    def _is_too_much(self, container: Container, account: QueueAccount) -> bool:
        amount = amount_of(container.request.resources)
        return any(_relieves(amount, x.held, x.limits.maximum) for x in account.path[:-1])


def _is_above(account: QueueAccount) -> bool:
    return _is_beyond(account.held, account.limits.maximum)


def _is_beyond(held: Governed, share: Governed) -> bool:
    return not fits_into(held, NOTHING, share)


def _relieves(amount: Governed, held: Governed, share: Governed) -> bool:
    """Is some of it of what is held beyond the share?"""
    return any(x and y > z for x, y, z in zip(amount, held, share, strict=True))
