"""May the next container of an application pass its queue? By share, maximum, user and drivers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_line import QueueLine, Waiter
from hrm.core.master.queue_usage import QueueUsage, amount_of
from hrm.core.master.state import MasterState
from hrm.core.tenancy.accounts import (
    NOTHING,
    AccountTree,
    QueueAccount,
    fits_into,
    less,
    more,
    times_into,
)
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_status import WaitReason
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.model import Resources

__all__ = ["DIVISION_PERIOD_S", "PassingRules", "sum_of"]

DIVISION_PERIOD_S = 0.05
"""How often a queue's share beyond its guarantee is divided for it."""


class PassingRules:
    """``now``: the time of the event that is being handled."""

    def __init__(self, master_state: MasterState, lines: Mapping[QueueName, QueueLine]) -> None:
        self._master_state = master_state
        self._usage: QueueUsage = master_state.queues
        self._lines = lines
        self.now = -math.inf

    def lack(
        self,
        account: QueueAccount,
        app: Application,
        some: Sequence[Container],
        *,
        on_loan: bool = False,
    ) -> tuple[WaitReason, str] | None:
        """Why these may not pass; None: they may. ``on_loan``: whatever the share is."""
        amount, usage = sum_of(some), self._usage
        full = account.above_maximum(
            amount, is_promised=all(x.container_id in usage.promised for x in some)
        )
        if full is not None:
            return WaitReason.QUEUE_MAXIMUM, f"{full.name} holds as much as it may (maximum)"
        accounts = usage.accounts
        assert accounts is not None, "what waits in a queue is governed"
        spec = account.spec
        if app.is_driver and (lack := self._lacks_driver_share(account, amount)):
            return WaitReason.DRIVER_SHARE, lack
        limits = spec.user_limit_factor is not None or spec.minimum_user_limit < 1
        if limits and (lack := self._lacks_user_limit(accounts, account, app, amount)):
            return WaitReason.USER_LIMIT, lack
        if on_loan or self.passes_alone(account):
            return None
        share = accounts.last_share(account)
        if account.fits_share(amount, share):
            return None
        if self._may_have_gained(account, amount, share):
            account.divided_s = self.now
            if account.fits_share(amount, accounts.share(account)):
                return None
        return WaitReason.QUEUE_SHARE, (
            f"{account.name} holds its share of the cluster, and other queues wait for theirs"
        )

    def alike(self, account: QueueAccount, waiter: Waiter) -> list[Container]:
        """The first, which may pass, and as many that are like it as pass with it."""
        containers = iter(waiter.containers.values())
        found = [next(containers)]
        resources = found[0].request.resources
        if len(waiter.containers) == 1:
            return found
        most = self.times(account, waiter.app, resources)
        for container in containers:
            if len(found) >= most or container.request.resources is not resources:
                break
            found.append(container)
        return found

    def times(self, account: QueueAccount, app: Application, resources: Resources) -> float:
        """How many containers of this size pass together, if one does."""
        spec = account.spec
        is_limited = spec.user_limit_factor is not None or spec.minimum_user_limit < 1
        if is_limited or app.is_driver:
            return 1
        amount, accounts = amount_of(resources), self._usage.accounts
        assert accounts is not None, "what waits in a queue is governed"
        limits = [(more(x.held, x.promised), x.limits.maximum) for x in account.path]
        if not self.passes_alone(account):
            share, held = accounts.last_share(account), less(account.held, account.waits_last)
            if not fits_into(amount, held, share):
                share = accounts.share(account)
            limits.append((held, share))
        return min(times_into(amount, held, limit) for held, limit in limits)

    def next_of(self, waiter: Waiter) -> list[Container]:
        """What passes next of an application, whole: its gang, or one container."""
        many = max(1, gangs.missing(waiter.app))
        found: list[Container] = []
        for container in waiter.containers.values():
            found.append(container)
            if len(found) == many:
                break
        return found

    def holds_up(self, account: QueueAccount, some: Sequence[Container], lack: WaitReason) -> bool:
        """Do those behind wait for it, too? Not for what its queue is not promised at all."""
        if lack in (WaitReason.USER_LIMIT, WaitReason.DRIVER_SHARE):
            return False
        return fits_into(sum_of(some), NOTHING, account.limits.guaranteed)

    def passes_alone(self, account: QueueAccount) -> bool:
        """May all of it be with schedulers, which serve first what came first?"""
        return account.spec.order == "fifo" and self._usage.is_alone(account)

    def _may_have_gained(self, account: QueueAccount, amount: Governed, share: Governed) -> bool:
        """Is it worth dividing again? What others want changes with every container, so beyond its
        guarantee a queue's share is divided for it from time to time; free capacity is lent
        meanwhile."""
        due = self.now >= account.divided_s + DIVISION_PERIOD_S
        return due or any(
            x and y < min(z, wanted)
            for x, y, z, wanted in zip(
                amount, share, account.limits.guaranteed, account.wanted, strict=True
            )
        )

    def _lacks_driver_share(self, account: QueueAccount, amount: Governed) -> str:
        """Why one more driver may not start; the first always may. Where a queue states no share of
        drivers, and others want theirs, it is that of the cluster: drivers that hold all that their
        queue may have would wait for executors for ever."""
        accounts, default = self._usage.accounts, self._master_state.bounds.driver_share
        assert accounts is not None, "what waits in a queue is governed"
        for each in account.path:
            part = each.spec.driver_share
            if part is None and each is account and not self._usage.is_alone(account):
                part = default
            if part is None or each.drivers == NOTHING:
                continue
            whole = each.limits.guaranteed
            if each is account:
                share = accounts.last_share(account)
                whole = (max(whole[0], share[0]), max(whole[1], share[1]), max(whole[2], share[2]))
            limit = (whole[0] * part, whole[1] * part, whole[2] * part)
            if not fits_into(amount, each.drivers, limit):
                return (
                    f"drivers hold as much of {each.name} as they may (driver_share = {part:g} of "
                    f"its share)"
                )
        return ""

    def _lacks_user_limit(
        self, accounts: AccountTree, account: QueueAccount, app: Application, amount: Governed
    ) -> str:
        """Why the user may not have more."""
        usage, spec, user = self._usage, account.spec, app.record.user
        held = usage.of_user[account.name, user]
        if spec.user_limit_factor is not None:
            factor = spec.user_limit_factor
            guaranteed = account.limits.guaranteed
            most = (guaranteed[0] * factor, guaranteed[1] * factor, guaranteed[2] * factor)
            if not fits_into(amount, held, most):
                return f"{user} holds as much of {account.name} as one user may (user_limit_factor)"
        line = self._lines.get(account.name)
        waiting = {} if line is None else line.users
        many = len(usage.users[account.name].keys() | waiting.keys() | {user})
        if many > 1 and spec.minimum_user_limit < 1:
            part = max(1 / many, spec.minimum_user_limit)
            share = accounts.share(account)
            most = (share[0] * part, share[1] * part, share[2] * part)
            # The first of a user may be larger, or users would wait for each other without end.
            if held != NOTHING and not fits_into(amount, held, most):
                return (
                    f"{user} holds a user's part of {account.name}, of which {many} have some "
                    f"(minimum_user_limit = {spec.minimum_user_limit:g})"
                )
        return ""


def sum_of(some: Sequence[Container]) -> Governed:
    """What these count as together."""
    total = NOTHING
    for container in some:
        total = more(total, amount_of(container.request.resources))
    return total
