"""Applications that ask to go sooner or later, grow old while they wait, or are interrupted.

In a leaf whose order is ``classes`` an application's place follows from its priority
(``hrm.core.vocabulary.priority_class``). Its owner, or an administrator of its queue, requests
steps up or down; what waits is in the new order at once, and nothing becomes of what runs. Where it
stands is in its record, so it survives the master.

Requests are free, so they are bounded: so many steps of one application in a period, and so many of
all applications of one user. A queue may also state up to which class they go
(``hrm.core.tenancy.class_bounds``). What they let pass others is bounded by that; and one that
nobody raises rises while it waits, until it is at the top of its class, where the first submitted
goes first. What is of a class above is never reached by waiting: applications that are urgent as
they come may keep normal ones waiting for as long as they come.

One that was interrupted for another of the highest class (``hrm.core.master.queue_reclaim``) goes
before urgent ones, for as many containers as it lost.

Limits: the counts of users begin again with a new master, and so does the half-hour of waiting that
was under way. What was requested while a driver waited holds for its application, too.

Source: RLPTO (Lu et al., TPDS 2023), sections 2.3 and 3.1; it charges points for a priority, which
is not done here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hrm.core.master.entities import Application
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.tenancy.class_bounds import step_refusal
from hrm.core.tenancy.queue_spec import QueueName
from hrm.core.vocabulary.history import PriorityRecord
from hrm.core.vocabulary.model import ApplicationId, WorkloadClass
from hrm.core.vocabulary.priority_class import (
    PriorityClass,
    Standing,
    priority_text,
)
from hrm.errors import HrmError, InvalidRequest, LimitReached, NotAllowed, NotFound

__all__ = [
    "Priorities",
    "give_back",
    "has_classes",
    "inherited",
    "is_highest",
    "order_lines",
    "priority_lines",
    "stand",
]


def has_classes(master_state: MasterState, app: Application) -> bool:
    """Is it in a leaf whose order is ``classes``?"""
    spec = master_state.queues.tree.specs.get(QueueName(app.record.queue))
    return spec is not None and spec.has_classes


def is_highest(app: Application) -> bool:
    return app.record.stands.priority_class is PriorityClass.HIGHEST


def stand(
    master_state: MasterState,
    app: Application,
    standing: Standing,
    became: PriorityRecord,
    why: str,
    now: float,
) -> None:
    """From now on it stands there: in its record, and in its history with the reason. Whoever calls
    this lets its queue order it again."""
    master_state.update_record(app, standing=standing)
    if master_state.watch is not None:
        master_state.watch(("application", app.application_id, None, None, became, now, why))


def give_back(
    master_state: MasterState, app: Application, reorder: Callable[[Application], None]
) -> None:
    """A container has started of one that was interrupted: in place of one that it lost."""
    standing = app.record.stands
    if standing.owed:
        master_state.update_record(app, standing=standing.after_start())
        reorder(app)


class Priorities:
    """``reorder``: lets a queue order an application again. ``_users``: of each user, when the
    period began in which steps were last requested, and how many were since. ``_waits_since_s``: of
    each application that waits in an order of classes, since when, or since its last step up."""

    def __init__(self, master_state: MasterState, reorder: Callable[[Application], None]) -> None:
        self._master_state = master_state
        self._reorder = reorder
        self._users: dict[str, tuple[float, int]] = {}
        self._waits_since_s: dict[ApplicationId, float] = {}

    def requested(self, event: e.PriorityRequested) -> None:
        """Steps up or down for one application: counted, and in force at once, or refused."""
        master_state, now = self._master_state, event.now
        app = master_state.live.get(event.application_id)
        if app is None:
            known = master_state.applications.get(event.application_id)
            master_state.refuse(event.call_id, _gone(event.application_id, known))
            return
        before = app.record.stands
        period = before.begun(now, master_state.bounds.priority_period_s)
        after = period.after_request(event.steps, event.by)
        refusal = self._refusal(app, period, event.steps, now)
        if refusal is None and event.user:
            refusal = self._bound(app, after, event.user)
        if refusal is not None:
            master_state.refuse(event.call_id, refusal)
            return
        self._count(app.record.user, event.steps, now)
        many = abs(event.steps)
        why = (
            f"{priority_text(before.tenths)} becomes {priority_text(after.tenths)}: {event.by} "
            f"requested {many} step{'s' if many > 1 else ''} {'up' if event.steps > 0 else 'down'}"
        )
        stand(master_state, app, after, PriorityRecord.CHANGED, why, now)
        self._reorder(app)
        master_state.reply(event.call_id, c.Done())

    def _refusal(
        self, app: Application, period: Standing, steps: int, now: float
    ) -> HrmError | None:
        """Why these steps are not taken; ``period``: as it stands in the period under way."""
        bounds, name = self._master_state.bounds, app.application_id
        if not has_classes(self._master_state, app):
            return InvalidRequest(
                f"{name} is in {app.record.queue}, whose order is not classes, so its priority "
                f"stays as submitted; hrm queue set {app.record.queue} --order classes changes that"
            )
        if is_highest(app):
            return InvalidRequest(
                f"{name} is of the highest class, which it was submitted with and keeps; submit it "
                f"again with a lower spark.hrm.priority"
            )
        left_s = period.period_began_s + bounds.priority_period_s - now
        if period.steps + abs(steps) > bounds.priority_steps:
            return LimitReached(
                f"{period.steps} steps of {name} were taken in this period, and it may take "
                f"{bounds.priority_steps} (priority_steps); fewer may pass, or try again in "
                f"{left_s:.0f} s"
            )
        began_s, taken = self._taken(app.record.user, now)
        if taken + abs(steps) > bounds.priority_steps_per_user:
            left_s = began_s + bounds.priority_period_s - now
            return LimitReached(
                f"{taken} steps of applications of {app.record.user} were taken in this period, "
                f"and {bounds.priority_steps_per_user} may be (priority_steps_per_user); try again "
                f"in {left_s:.0f} s"
            )
        return None

    def _bound(self, app: Application, after: Standing, user: str) -> HrmError | None:
        """Why this user may not have it stand there."""
        tree, queue = self._master_state.queues.tree, QueueName(app.record.queue)
        why = step_refusal(tree, queue, user, app.record.stands, after)
        return NotAllowed(f"{app.application_id}: {why}") if why else None

    def _taken(self, user: str, now: float) -> tuple[float, int]:
        """When the user's period began, and the steps since."""
        began_s, taken = self._users.get(user, (now, 0))
        if 0 <= now - began_s < self._master_state.bounds.priority_period_s:
            return began_s, taken
        return now, 0

    def _count(self, user: str, steps: int, now: float) -> None:
        began_s, taken = self._taken(user, now)
        self._users[user] = began_s, taken + abs(steps)

    def tick(self, now: float) -> None:
        """What has waited for long enough rises."""
        self._users = {x: y for x in self._users if (y := self._taken(x, now))[1]}
        ageing_s = self._master_state.bounds.priority_ageing_s
        if self._master_state.queues.accounts is None or not ageing_s:
            self._waits_since_s.clear()
            return
        before, self._waits_since_s = self._waits_since_s, {}
        for app in self._master_state.live.values():
            if app.kept is None or not has_classes(self._master_state, app):
                continue
            name = app.application_id
            since_s = before.get(name, now)
            if now - since_s >= ageing_s:
                since_s = now
                self._age(app, ageing_s, now)
            self._waits_since_s[name] = since_s

    def _age(self, app: Application, ageing_s: float, now: float) -> None:
        before = app.record.stands
        after = before.after_waiting()
        if after is not before:
            why = (
                f"{priority_text(before.tenths)} becomes {priority_text(after.tenths)}: it has "
                f"waited for {ageing_s:g} s (priority_ageing_s)"
            )
            stand(self._master_state, app, after, PriorityRecord.CHANGED, why, now)
            self._reorder(app)

    def woke(self, now: float, slept_s: float) -> None:
        """This master slept: nothing was in a queue's way meanwhile but that."""
        self._waits_since_s = {
            x: min(now, since_s + slept_s) for x, since_s in self._waits_since_s.items()
        }


def inherited(driver: Application | None, priority: int) -> Standing | None:
    """Where an application stands whose driver waited in the queue before it."""
    if driver is None or driver.record.standing is None or driver.record.priority != priority:
        return None
    tenths = driver.record.standing.tenths
    return replace(
        Standing.as_declared(priority),
        tenths=tenths,
        base=tenths,
        requested=driver.record.standing.requested,
        aged=driver.record.standing.aged,
        by=driver.record.standing.by,
    )


def priority_lines(master_state: MasterState, app: Application) -> list[str]:
    """Where it stands in its queue, and what brought it there, for people; empty where its queue
    has no classes."""
    if not has_classes(master_state, app) or app.life.state.ended:
        return []
    record, standing = app.record, app.record.stands
    declared = Standing.as_declared(record.priority).tenths
    parts = [f"declared as {priority_text(declared)}"]
    if standing.requested or standing.by:
        parts.append(f"requests of {standing.requested:+d} steps, the last by {standing.by}")
    if standing.aged:
        many = f"{standing.aged} step{'s' if standing.aged > 1 else ''}"
        parts.append(f"{many} up for waiting")
    lines = [f"its priority is {priority_text(standing.tenths)}: {', '.join(parts)}"]
    if standing.owed:
        lines.append(
            f"it was interrupted for one of the highest class, and goes before urgent ones until "
            f"{standing.owed} of its containers have been replaced"
        )
    return lines + order_lines(app)


def order_lines(app: Application) -> list[str]:
    """At which position it waits in its queue, if it does."""
    if app.kept is None:
        return []
    position, many = app.kept.position
    stream = "; streams go first" if app.record.workload_class is WorkloadClass.BATCH else ""
    return [f"it waits at position {position} of {many} in {app.record.queue}{stream}"]


def _gone(application_id: ApplicationId, known: Application | None) -> NotFound:
    if known is None:
        return NotFound(f"no such application: {application_id}; hrm apps lists those that live")
    state = known.life.state.value
    return NotFound(f"{application_id} has ended ({state}); its priority is of no use any more")
