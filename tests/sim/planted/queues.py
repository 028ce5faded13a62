"""Bugs of queues of applications: what passes them, and what is taken back for whom."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hrm.core.master import reclaim_plan
from hrm.core.master.driver_queue import DriverQueue
from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_gate import QueueGate
from hrm.core.master.queue_loans import QueueLoans
from hrm.core.master.queue_passing import PassingRules
from hrm.core.master.queue_recall import QueueRecall
from hrm.core.master.queue_reclaim import QueueReclaim
from hrm.core.master.reclaim_plan import ReclaimPlanner
from hrm.core.master.state import MasterState
from hrm.core.tenancy import accounts
from hrm.core.tenancy.accounts import QueueAccount, fits_into
from hrm.core.tenancy.division import divide
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.columns import Floats
from hrm.core.vocabulary.model import ContainerId, ContainerState

__all__ = ["BUGS"]


def guarantees_ignored(patch: pytest.MonkeyPatch) -> None:
    """A queue's share is its part by weight, whatever it is guaranteed."""

    def by_weight(total: Floats, guaranteed: Floats, wanted: Floats, weights: Floats) -> Floats:
        return divide(total, np.zeros_like(guaranteed), wanted, weights)

    patch.setattr(accounts, "divide", by_weight)


def victims_below_guarantees(patch: pytest.MonkeyPatch) -> None:
    """What a queue is guaranteed is preempted as well as what it has borrowed."""
    patch.setattr(reclaim_plan._Round, "may_lose", lambda *_: True)


def freed_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """What victims leave is anyone's: what they are preempted for gets no place there."""
    init: Callable[..., None] = QueueReclaim.__init__

    def without_places(self: QueueReclaim, *args: Any) -> None:
        init(self, *args)
        self._reserve = lambda *_: True

    patch.setattr(QueueReclaim, "__init__", without_places)


def borrowed_for_good(patch: pytest.MonkeyPatch) -> None:
    """Nothing that was borrowed is taken back."""
    patch.setattr(QueueReclaim, "tick", lambda *_: None)


def loans_that_do_not_end(patch: pytest.MonkeyPatch) -> None:
    """What has passed on loan stays with its scheduler whoever has a right to the capacity, and is
    on loan when it has a place."""
    patch.setattr(QueueGate, "_end_loans", lambda *_: None)
    move = QueueGate.let_go

    def for_good(
        self: QueueGate, app: Application, some: list[Container], now: float, *,
        on_loan: bool = False, at_once: bool = False,
    ) -> None:  # fmt: skip
        move(self, app, some, now, on_loan=on_loan, at_once=at_once)
        if on_loan:
            self._usage.on_loan = _Forever(self._usage.on_loan)

    patch.setattr(QueueGate, "let_go", for_good)


class _Forever(dict[ContainerId, Container]):
    def pop(self, *_: Any) -> Any:
        return None


def risen_share_overlooked(patch: pytest.MonkeyPatch) -> None:
    """A queue that has found its share too small is not looked at again because that has risen,
    nor because there is something free."""
    patch.setattr(QueueGate, "_all_due", lambda *_: None)
    patch.setattr(QueueLoans, "lend", lambda *_: False)


def nothing_is_lent(patch: pytest.MonkeyPatch) -> None:
    """What is free stays free beyond the shares of queues."""
    patch.setattr(QueueLoans, "lend", lambda *_: False)


def maxima_of_parents_ignored(patch: pytest.MonkeyPatch) -> None:
    """The maximum of a leaf is checked, and none of a queue above it."""

    def of_leaf(self: QueueAccount, amount: Governed, **_: bool) -> QueueAccount | None:
        return None if fits_into(amount, self.held, self.limits.maximum) else self

    patch.setattr(QueueAccount, "above_maximum", of_leaf)


def maximum_of_what_runs(patch: pytest.MonkeyPatch) -> None:
    """What has passed and has no place yet does not count against a maximum."""

    def placed(self: QueueAccount, amount: Governed, **_: bool) -> QueueAccount | None:
        lines = (x for x in self.path if not fits_into(amount, x.placed, x.limits.maximum))
        return next(lines, None)

    patch.setattr(QueueAccount, "above_maximum", placed)
    patch.setattr(QueueRecall, "keep_below_maxima", lambda *_: None)


def too_many_at_once(patch: pytest.MonkeyPatch) -> None:
    """One application more than may is let in."""

    def full(self: QueueAccount) -> QueueAccount | None:
        limits = ((x, math.inf if x.spec.max_running is None else x.spec.max_running)
                  for x in self.path)  # fmt: skip
        return next((x for x, limit in limits if len(x.slots) > limit), None)

    patch.setattr(QueueAccount, "full", full)


def gangs_reclaimed_in_parts(patch: pytest.MonkeyPatch) -> None:
    """Of a gang that has started, containers that it needs are preempted for queues as well."""
    patch.setattr(reclaim_plan, "_needed", lambda *_: set())


def kept_is_reclaimed(patch: pytest.MonkeyPatch) -> None:
    """What a queue that is not preemptible has borrowed is preempted."""

    def running(self: ReclaimPlanner) -> list[tuple[Container, QueueAccount]]:
        found = [
            (x, self._accounts.of[QueueName(app.record.queue)])
            for app in self._master_state.live.values()
            for x in app.in_state(ContainerState.RUNNING)
            if not app.is_driver and not app.record.gang_min and not self._is_going(x)
        ]
        return sorted(found, key=lambda x: (-x[0].started_at_s, x[0].container_id))

    patch.setattr(ReclaimPlanner, "_running", running)


def kept_drivers_hold_up_others(patch: pytest.MonkeyPatch) -> None:
    """A driver that its queue keeps counts among those that are about to start, and what it would
    hold is kept for it."""
    heads = DriverQueue._heads

    def with_kept(self: DriverQueue) -> list[Any]:
        drivers = self._master_state.unqueued_drivers.values()
        kept = [(x.number, x, None) for x in drivers if x.withheld]
        return sorted([*heads(self), *kept], key=lambda x: x[0])

    patch.setattr(DriverQueue, "_heads", with_kept)


def ended_applications_hold_nothing(patch: pytest.MonkeyPatch) -> None:
    """When an administrator changes queues, what has ended does not count, though its containers
    still end."""
    patch.setattr(MasterState, "holding_applications", MasterState.live_applications)


def users_wait_for_each_other(patch: pytest.MonkeyPatch) -> None:
    """A user's part of a queue holds for the first container, too, however large that is."""
    lacks = PassingRules._lacks_user_limit

    def strictly(
        self: PassingRules, tree: accounts.AccountTree, account: QueueAccount, app: Application,
        amount: Governed,
    ) -> str:  # fmt: skip
        line = self._lines.get(account.name)
        waiting = {app.record.user} | (line.users.keys() if line is not None else set())
        many = len(self._usage.users[account.name].keys() | waiting)
        part = max(1 / many, account.spec.minimum_user_limit)
        share = tree.share(account)
        most = (share[0] * part, share[1] * part, share[2] * part)
        if many > 1 and not fits_into(amount, accounts.NOTHING, most):
            return "it is too much for one of them"
        return lacks(self, tree, account, app, amount)

    patch.setattr(PassingRules, "_lacks_user_limit", strictly)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    guarantees_ignored,
    victims_below_guarantees,
    freed_for_nobody,
    borrowed_for_good,
    loans_that_do_not_end,
    risen_share_overlooked,
    nothing_is_lent,
    maxima_of_parents_ignored,
    maximum_of_what_runs,
    too_many_at_once,
    gangs_reclaimed_in_parts,
    kept_is_reclaimed,
    kept_drivers_hold_up_others,
    ended_applications_hold_nothing,
    users_wait_for_each_other,
]
"""Bugs to plant, each by patching code; ``tests/sim/test_planted_bugs.py`` plants them."""
