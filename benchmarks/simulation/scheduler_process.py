"""A scheduler of another process on the virtual clock: a server that runs ``SchedulerSession``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

from benchmarks.simulation.costs import Kind
from benchmarks.simulation.encoding import change_received, reply_received, send_call
from benchmarks.simulation.server import Server
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.scheduling.scheduler import PlacementPolicy, Scheduler
from hrm.core.scheduling.session import SchedulerCall, SchedulerReply, SchedulerSession
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ResourceUnitId
from hrm.runtime.clock import Clock
from hrm.runtime.master import OnReply
from hrm.wire.shared_state import ChangeEncoder

__all__ = ["ProcessHost", "SchedulerProcess", "change_size"]

T = TypeVar("T")


class ProcessHost(Protocol):
    """The cluster around a process.

    ``changes``: the master's encoder. ``claimed``: units of all claims that have been committed, in
    order. ``charges_work``: the CPU time of messages counts.
    """

    clock: Clock
    changes: ChangeEncoder
    claimed: list[ResourceUnitId]

    @property
    def charges_work(self) -> bool: ...

    @property
    def hop_s(self) -> float:
        """Between a process and the master, one way."""
        ...

    def call_master(self, containers: int, call: SchedulerCall, on_reply: OnReply) -> None:
        """Send a call that concerns ``containers``; the master's reply goes to ``on_reply``."""
        ...

    def timed(self, work: Callable[[], T]) -> tuple[float, T]:
        """CPU seconds of ``work``, and what it returns."""
        ...

    def charge(self, kind: Kind, containers: int, used_s: float) -> float:
        """What work costs on the virtual clock."""
        ...


class SchedulerProcess:
    """``looked_at``: how many units had been claimed when what its copy shows was sent."""

    def __init__(
        self, host: ProcessHost, name: str, number: int, policy: PlacementPolicy, bounds: Bounds
    ) -> None:
        self.host = host
        self.name = name
        self.number = number
        self.server = Server(host.clock)
        self.session = SchedulerSession(Scheduler(name, policy, bounds), number)
        self.connected = False
        self.looked_at = 0
        self._steps = 0
        self._alarm = 0

    def put(self, change: StateChanged) -> None:
        """The master sends a change; before the clock starts it arrives at once, without cost."""
        if not self.connected:
            self.session.changed(change, self.host.clock.now)
            return
        looked_at = len(self.host.claimed)
        read: Callable[[], StateChanged] = lambda: change  # noqa: E731
        if self.host.charges_work:
            read = change_received(self.host.changes.encode(change))

        def take_in() -> tuple[float, Callable[[], None]]:
            now = self.host.clock.now
            used_s, _ = self.host.timed(lambda: self.session.changed(read(), now))
            self.looked_at = looked_at
            return self.host.charge(Kind.COPY_TAKEN, change_size(change), used_s), self._step_soon

        self.host.clock.after(self.host.hop_s, self.server.arrive, Kind.COPY_TAKEN, take_in)

    def drop(self) -> None:
        raise AssertionError(f"the master drops {self.name}, which sends what it should")

    def _step_soon(self) -> None:
        if not self._steps:
            self._steps += 1
            self.server.arrive(Kind.ROUND, self._step)

    def _step(self) -> tuple[float, Callable[[], None]]:
        self._steps -= 1
        now = self.host.clock.now

        used_s, call = self.host.timed(lambda: self.session.step(now))
        if call is None:
            return 0.0, self._set_alarm
        written_s = self.host.timed(lambda: send_call(call))[0] if self.host.charges_work else 0.0
        count = len(call.proposal.claims) if isinstance(call, e.ClaimsProposed) else 0
        cost_s = self.host.charge(Kind.CALL, count, written_s)
        if isinstance(call, e.ClaimsProposed):
            cost_s += self.host.charge(Kind.ROUND, count, used_s)
        return cost_s, lambda: self._call(count, call)

    def _set_alarm(self) -> None:
        due_s = self.session.due_s()
        if due_s is not None:
            self._alarm += 1
            self.host.clock.at(max(due_s, self.host.clock.now), self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._step_soon()

    def _call(self, containers: int, call: SchedulerCall) -> None:
        def replied(reply: c.Reply | c.Refuse) -> None:
            clock, hop_s = self.host.clock, self.host.hop_s
            work = functools.partial(self._reply, call, reply)
            clock.after(hop_s, self.server.arrive, Kind.CALL, work)

        self.host.call_master(containers, call, replied)

    def _reply(
        self, call: SchedulerCall, reply: c.Reply | c.Refuse
    ) -> tuple[float, Callable[[], None]]:
        result = reply.result if isinstance(reply, c.Reply) else None
        taken = result if isinstance(result, SchedulerReply) else None
        read = reply_received(call, taken) if self.host.charges_work else lambda: None

        def take_in() -> None:
            read()
            self.session.reply_received(taken, self.host.clock.now)

        used_s, _ = self.host.timed(take_in)
        count = len(taken.outcomes) if isinstance(taken, c.ClaimsSettled) else 0
        return self.host.charge(Kind.CALL, count, used_s), self._step_soon


def change_size(change: StateChanged) -> int:
    """Units, jobs and pending containers in it."""
    return len(change.units) + sum(1 + len(job.pending) for job in change.jobs)
