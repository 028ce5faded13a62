"""What queues keep passes on loan: beyond the share of its queue, where there is free capacity.

Nothing is lent while something is left to try for what is with schedulers already: that has a right
to what is free. What is lent is what could start now, by the free capacity of units: of the queue
that holds least of its share, in its order, one size of an application after the other, for a
large one may wait while a small one fits. What others yield (``hrm.core.queue.yielding``) is free
for what does not yield itself. A gang is lent whole. A driver is lent only if it is its
turn among drivers, too; it would wait otherwise for what others make free, and may be why these are
lent nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeAlias

import numpy as np

from hrm.core.master import gangs
from hrm.core.master.entities import Application, Container
from hrm.core.master.queue_line import QueueLine, Waiter
from hrm.core.master.queue_passing import DIVISION_PERIOD_S, PassingRules
from hrm.core.master.queue_usage import QueueUsage
from hrm.core.master.state import MasterState
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.tenancy.accounts import fits_into
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.feasibility import Vector, demand_vector
from hrm.core.vocabulary.model import ContainerState, Resources
from hrm.core.vocabulary.node_requirement import NodeRequirement

__all__ = ["LENDERS_MAX", "QueueLoans"]

LENDERS_MAX = 64
"""Applications that are looked at in one turn for one that could use what is free."""
_LEND_PERIOD_S = DIVISION_PERIOD_S
"""How soon after a look in vain for what could be lent the next one may be."""
_LAST = 1e9
_Tried: TypeAlias = tuple[Vector, NodeRequirement | None, bool]


class _Gate(Protocol):
    """``hrm.core.master.queue_gate.QueueGate``."""

    lines: dict[QueueName, QueueLine]
    passed: int

    def let_pass(self, line: QueueLine, now: float) -> None: ...
    def let_go(
        self, app: Application, some: list[Container], now: float, *, on_loan: bool = False
    ) -> None: ...
    def come_back(self, container: Container) -> None: ...
    def held_part(self, app: Application) -> float: ...


class QueueLoans:
    """``_handed_s``: when each scheduler was last given something; ``_lent_s``: when it was last
    looked in vain for something to lend."""

    def __init__(
        self,
        master_state: MasterState,
        schedulers: Mapping[str, Scheduler],
        gate: _Gate,
        rules: PassingRules,
    ) -> None:
        self._master_state = master_state
        self._usage: QueueUsage = master_state.queues
        self._schedulers = schedulers
        self._gate = gate
        self._rules = rules
        self._handed_s: dict[str, float] = {}
        self._lent_s = -math.inf

    def handed_over(self, scheduler: str, now: float) -> None:
        """Something has passed to this scheduler."""
        self._handed_s[scheduler] = now

    def look_again(self) -> None:
        """Something else may have changed."""
        self._lent_s = -math.inf

    def could_lend(self, least: Governed, now: float) -> bool:
        """Does some unit have as much free as the smallest of what queues keep requests, and is
        nothing left to try before?"""
        accounts = self._usage.accounts
        if accounts is None or now < self._lent_s + _LEND_PERIOD_S:
            return False
        state = self._master_state.state
        # By sums first: a look at every unit costs more than all that follows from an end.
        is_full = not fits_into(least, accounts.root.placed, accounts.capacity)
        if is_full and not state.any_yields:
            return False
        if not self._is_settled(now):
            return False
        available = state.available()
        return bool((available[state.open, :3] >= np.asarray(least)).all(axis=1).any())

    def _is_settled(self, now: float) -> bool:
        """Is nothing left to try for what is with schedulers?"""
        if self._master_state.recovering:
            return False
        patience_s = self._master_state.bounds.retry_delay_max_s
        for name, scheduler in self._schedulers.items():
            if not scheduler.jobs:
                continue
            if isinstance(scheduler, RemoteScheduler):
                if now < self._handed_s.get(name, -patience_s) + patience_s:
                    return False
                continue
            next_s = scheduler.next_time_s()
            if scheduler.in_flight is not None or (next_s is not None and next_s <= now):
                return False
        return True

    def lend(self, now: float) -> bool:
        """Let pass what has come to be within a share, else on loan what could start now: of the
        queue that holds least of its share. Returns whether to look again."""
        gate, apps = self._gate, self._master_state.applications
        tried: set[_Tried] = {
            (
                demand_vector(x.request.resources),
                apps[x.application_id].requires,
                x.request.yields,
            )
            for x in self._usage.on_loan.values()
        }
        for line in sorted(gate.lines.values(), key=self._line_rank):
            passed, looked = gate.passed, 0
            gate.let_pass(line, now)
            if gate.passed > passed:
                return True
            for waiter in line.in_order(gate.held_part):
                if waiter.app.application_id not in self._usage.active:
                    continue
                looked += 1
                if looked > LENDERS_MAX:
                    break
                if any(self._lend_some(line, waiter, x, tried, now) for x in self._sizes(waiter)):
                    return True
        self._lent_s = now
        return False

    def _lend_some(
        self,
        line: QueueLine,
        waiter: Waiter,
        some: list[Container],
        tried: set[_Tried],
        now: float,
    ) -> bool:
        """Let these pass on loan if they could start now. ``tried``: what need not be tried
        again."""
        app, demand = waiter.app, demand_vector(some[0].request.resources)
        yields = some[0].request.yields
        key = (demand, app.requires, yields)
        if key in tried or self._rules.lack(line.account, app, some, on_loan=True) is not None:
            return False
        if app.is_driver:
            return self._lend_to_driver(app, some[0], now)
        state = self._master_state.state
        startable = state.startable(demand, app.requires, yields=yields)
        if not startable:
            tried.add(key)
        if startable < len(some):
            return False
        self._gate.let_go(app, some, now, on_loan=True)
        if len(some) == 1:
            many = startable // max(1, len(self._gate.lines))
            self._lend_more(line, waiter, demand, many, now)
        return True

    def _lend_to_driver(self, app: Application, container: Container, now: float) -> bool:
        """Let a driver pass on loan if it is its turn."""
        self._gate.let_go(app, [container], now, on_loan=True)
        if container.state is ContainerState.PENDING and container.waits_for is not None:
            self._gate.come_back(container)
        return not container.withheld

    def _lend_more(
        self, line: QueueLine, waiter: Waiter, demand: Vector, many: int, now: float
    ) -> None:
        """The same application may have more of the same: its part of all that could start."""
        while many > 1 and waiter.containers:
            some = self._rules.next_of(waiter)
            is_like = demand_vector(some[0].request.resources) == demand
            lack = self._rules.lack(line.account, waiter.app, some, on_loan=True)
            if len(some) > 1 or not is_like or lack is not None:
                return
            self._gate.let_go(waiter.app, some, now, on_loan=True)
            many -= 1

    def _line_rank(self, line: QueueLine) -> tuple[float, QueueName]:
        """How much of its share a queue holds; of those without one, how much of all."""
        accounts, account = self._usage.accounts, line.account
        assert accounts is not None, "what has a line is governed"
        share = accounts.last_share(account)
        held = max(
            (x / y if y else _LAST * x for x, y in zip(account.held, share, strict=True) if x),
            default=0.0,
        )
        return held / account.spec.weight if not any(share) else held, account.name

    def _sizes(self, waiter: Waiter) -> Iterator[list[Container]]:
        """What could pass next of an application where some of it cannot: its gang, or the first of
        each size."""
        if gangs.missing(waiter.app):
            yield self._rules.next_of(waiter)
            return
        sizes = set[Resources]()
        for container in list(itertools.islice(waiter.containers.values(), LENDERS_MAX)):
            if container.request.resources not in sizes:
                sizes.add(container.request.resources)
                yield [container]
