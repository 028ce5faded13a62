"""Bugs of queues in the order of classes: who goes first, what requests change, who is stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.master import priorities
from hrm.core.master.entities import Application
from hrm.core.master.queue_gate import QueueGate
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.priority_class import PriorityClass, Standing, requested

__all__ = ["BUGS"]


def order_as_submitted(patch: pytest.MonkeyPatch) -> None:
    """What waits keeps its place in the queue, whatever is requested for it."""
    patch.setattr(QueueGate, "reordered", lambda *_: None)


def each_request_by_itself(patch: pytest.MonkeyPatch) -> None:
    """Every request begins a period: none are summed, and there is no end of them."""

    def begun(self: Standing, now: float, period_s: float) -> Standing:
        return replace(self, base=self.tenths, net=0, steps=0, period_began_s=now)

    patch.setattr(Standing, "begun", begun)


def raised_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Where an application stands is known to the master that was asked, and to no later one."""

    def stand(
        _state: MasterState, app: Application, standing: Standing, *_: object
    ) -> None:  # fmt: skip
        app.record = replace(app.record, standing=standing)

    patch.setattr(priorities, "stand", stand)


def patience_makes_urgent(patch: pytest.MonkeyPatch) -> None:
    """Waiting raises an application across classes, as requests do."""

    def after_waiting(self: Standing) -> Standing:
        tenths = requested(self.tenths, 1)
        if tenths == self.tenths:
            return self
        return replace(self, tenths=tenths, base=tenths, net=0, aged=self.aged + 1)

    patch.setattr(Standing, "after_waiting", after_waiting)


def interrupted_without_end(patch: pytest.MonkeyPatch) -> None:
    """An application is interrupted as often as one of the highest class comes."""

    def may(self: Standing) -> bool:
        return self.priority_class is not PriorityClass.HIGHEST

    patch.setattr(Standing, "may_be_interrupted", property(may))


def the_highest_interrupt_each_other(patch: pytest.MonkeyPatch) -> None:
    """One of the highest class takes what another of that class has."""
    patch.setattr(Standing, "may_be_interrupted", property(lambda self: self.interruptions < 2))


def interrupted_and_last(patch: pytest.MonkeyPatch) -> None:
    """What was interrupted waits as if it had not been: behind urgent ones."""
    rank: Callable[..., Any] = Standing.rank

    def of_class(self: Standing, submitted_at_s: float) -> Any:
        return rank(replace(self, owed=0), submitted_at_s)

    patch.setattr(Standing, "rank", of_class)


BUGS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    order_as_submitted,
    each_request_by_itself,
    raised_and_forgotten,
    patience_makes_urgent,
    interrupted_without_end,
    the_highest_interrupt_each_other,
    interrupted_and_last,
)
