"""The schedulers of one master, and when each is to be woken for its next round.

Those inside of the master are woken by it. One of another process has rounds of its own
(``core.scheduling.remote_scheduler``): it is sent what has changed instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.vocabulary.model import ApplicationId, is_driver

__all__ = ["SchedulerPool"]


class SchedulerPool:
    """Invariant: of ``by_name``, all and only those with a live session are remote."""

    def __init__(self, master_state: MasterState, schedulers: Iterable[Scheduler]) -> None:
        self.by_name = {scheduler.name: scheduler for scheduler in schedulers}
        self._master_state = master_state
        self._next = 0

    def choose_scheduler(self, application_id: str = "") -> str:
        """The next scheduler in turn: applications stay with theirs. Those of drivers get one of
        this process: where a driver may go depends on all others, which it alone knows."""
        names = list(self.by_name)
        if is_driver(ApplicationId(application_id)):
            here = [x for x, it in self.by_name.items() if not isinstance(it, RemoteScheduler)]
            names = here or names
        name = names[self._next % len(names)]
        self._next += 1
        return name

    def wake(self, scheduler: Scheduler, at_s: float) -> None:
        """Ensure that the scheduler is woken for a round at ``at_s`` or before; remote ones have
        rounds of their own."""
        if scheduler.wake_at_s is not None and scheduler.wake_at_s <= at_s:
            return
        if scheduler.in_flight is None and not isinstance(scheduler, RemoteScheduler):
            self._set_wake(scheduler, at_s)

    def wake_for_next(self, scheduler: Scheduler) -> None:
        """Ensure that it is woken when its next job may be tried."""
        at_s = scheduler.next_time_s()
        if at_s is not None:
            self.wake(scheduler, at_s)

    def wake_inside(self) -> None:
        """What has waited for a remote scheduler's head start goes on."""
        for scheduler in self.by_name.values():
            if scheduler.jobs and not isinstance(scheduler, RemoteScheduler):
                self.wake_for_next(scheduler)

    def wake_to_send(self, scheduler: RemoteScheduler, at_s: float) -> None:
        """Ensure that there is an event at ``at_s`` or before, after which it is sent what has been
        collected for it."""
        if scheduler.wake_at_s is None or scheduler.wake_at_s > at_s:
            self._set_wake(scheduler, at_s)

    def _set_wake(self, scheduler: Scheduler, at_s: float) -> None:
        scheduler.wake_at_s = at_s
        self._master_state.out.append(c.WakeScheduler(scheduler=scheduler.name, at_s=at_s))
