"""One life of a master in virtual time, around ``MasterCore``.

Like the live interpreter, it feeds the core one event at a time, wakes schedulers and orders their
rounds by the same rules (``WakeTimers``, ``RoundSequencer``), and holds what waits for the disk
behind the same gate (``WriteGate``). What the loop does in one turn happens at one moment. While
the disk is full its writes wait, and calls that require a write are refused. What leaves goes to
the end of a stream or to its caller; the network behind an end, with faults or without, is not part
of this module.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from hrm.core.master.core import MasterCore
from hrm.core.master.rounds import AT_ONCE_MAX, RoundSequencer
from hrm.core.master.wake_timers import WakeTimers
from hrm.core.master.write_gate import LEAVING, WRITES, Write, WriteGate
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.vocabulary.model import NodeName
from hrm.errors import DiskFull
from hrm.runtime.clock import Timeline
from hrm.runtime.virtual_disk import VirtualDisk

__all__ = ["End", "MasterRuntime", "OnReply"]

RETRY_S = 0.5

OnReply: TypeAlias = Callable[[c.Reply | c.Refuse], None]


class End(Protocol):
    """The master's end of a stream."""

    def put(self, message: Any, /) -> None: ...

    def drop(self) -> None:
        """The master ends the stream."""


class MasterRuntime:
    """``over``: this life has ended.

    A disk whose writes take no time has written before ``submit`` returns, and is never full.
    """

    def __init__(
        self, core: MasterCore, clock: Timeline, disk: VirtualDisk, at_once_max: int = AT_ONCE_MAX
    ) -> None:
        self.core = core
        self.clock = clock
        self.disk = disk
        self.over = False
        self.writing: deque[tuple[list[Write], bool]] = deque()
        """Writes of batches in order, and whether the gate holds what follows them."""
        self._wakes = WakeTimers()
        self._rounds = RoundSequencer(core, at_once_max)
        self._turn_is_planned = False
        self._arriving: deque[e.MasterEvent] = deque()
        self.gate = WriteGate(core)
        self._calls: dict[int, OnReply] = {}
        self.call_ids = itertools.count(1)
        self._leaving: deque[c.MasterCommand] = deque()

    @property
    def full(self) -> DiskFull | None:
        """Why it is paused; None: it is not."""
        return self.gate.full

    # --- to be overridden -----------------------------------------------------------------------

    def decide(self, event: e.MasterEvent) -> list[c.MasterCommand]:
        return self.core.handle(event)

    def wake(self, scheduler: str) -> None:
        """A round of a scheduler is due."""
        self._rounds.wake(scheduler, self.clock.now)

    def propose(self, proposal: Proposal) -> None:
        """A scheduler has chosen: its claims return in their turn."""
        self._rounds.propose(proposal)
        self._plan_turn()

    def turn_s(self) -> float:
        """How long it takes until the next turn of the loop."""
        return 0.0

    def turn_begins(self) -> None:
        """The loop takes a step of the schedulers, if one is due."""

    def notify(self, command: c.NotifyApplication) -> None:
        """Deliver a notice to its application."""

    def node(self, name: NodeName, incarnation: str) -> End | None:
        """The end of a node's stream; None: it is over."""
        return None

    def scheduler(self, name: str, session: int) -> End | None:
        """The end of a stream to a scheduler in another process; None: it is over."""
        return None

    def complete_call(self, command: c.Reply | c.Refuse) -> None:
        on_reply = self._calls.pop(command.call_id, None)
        if on_reply is not None:
            on_reply(command)

    def paused(self, why: DiskFull) -> None:
        """The disk is full."""

    def resumed(self) -> None:
        """The disk has space again."""

    # --- events in, commands out ----------------------------------------------------------------

    def submit(self, event: e.MasterEvent) -> None:
        """Let the core handle one event, then run the rounds that may not wait for a later turn.
        What a reply leads to follows after that, as another turn of the loop."""
        self._arriving.append(event)
        if len(self._arriving) > 1:
            return
        while self._arriving:
            try:
                self._take_in(self._arriving[0])
            finally:
                self._arriving.popleft()

    def _take_in(self, event: e.MasterEvent) -> None:
        if self.over or self.gate.ignores(event):
            return
        self.carry_out(event, self.decide(event))
        self._wake_due()
        self._rounds.taken(event, self.clock.now)
        while not self.over:
            following = self._rounds.at_once(self.clock.now)
            if following is None:
                break
            self.carry_out(following, self.decide(following))
        self._plan_turn()

    def call(self, make: Callable[[int], e.MasterEvent], on_reply: OnReply) -> None:
        """Submit the event that ``make`` builds around a call id."""
        call_id = next(self.call_ids)
        event = make(call_id)
        if (error := self.gate.refusal(event)) is not None:
            on_reply(c.Refuse(call_id=call_id, error=error))
            return
        self._calls[call_id] = on_reply
        self.submit(event)

    def carry_out(self, event: e.MasterEvent, commands: Sequence[c.MasterCommand]) -> None:
        """Divide what ``event`` led to: what stays inside, what is written, what leaves."""
        writes: list[Write] = []
        leaving: list[c.MasterCommand] = []
        for command in commands:
            match command:
                case c.WakeScheduler():
                    self._set_wake(command)
                case c.ProposeClaims():
                    self.propose(command.proposal)
                case _ if type(command) in WRITES:
                    writes.append(command)  # type: ignore[arg-type]
                case _:
                    assert type(command) in LEAVING, f"nothing carries out {command}"
                    leaving.append(command)
        passing, held = self.gate.take(event, writes, leaving)
        if writes or held is not None:
            self.writing.append((writes, held is not None))
            if len(self.writing) == 1:
                self._write_next()
        self._send_all(passing)
        while self.writing and not self.disk.write_s:
            self._written()

    # --- schedulers -----------------------------------------------------------------------------

    def _set_wake(self, command: c.WakeScheduler) -> None:
        self._wakes.set(command.scheduler, command.at_s)
        if command.at_s > self.clock.now:
            self.clock.at(command.at_s, self._ring)
        self._wake_due()

    def _wake_due(self) -> None:
        for scheduler in self._wakes.take_due(self.clock.now):
            self.wake(scheduler)

    def _ring(self) -> None:
        self._wake_due()
        self._plan_turn()

    def _plan_turn(self) -> None:
        if not self._turn_is_planned and self._rounds.is_due:
            self._turn_is_planned = True
            self.clock.after(self.turn_s(), self._turn)

    def _turn(self) -> None:
        """One step of the schedulers in this process."""
        self._turn_is_planned = False
        self.turn_begins()
        event = self._rounds.step(self.clock.now)
        if event is not None:
            self.submit(event)

    # --- the disk -------------------------------------------------------------------------------

    def _write_next(self) -> None:
        disk = self.disk
        if disk.write_s:
            took_s = disk.write_time_s(self.clock.now) if self.writing[0][0] else disk.write_s
            self.clock.after(took_s, self._written)

    def _written(self) -> None:
        if self.over:
            return
        writes, holds = self.writing[0]
        if writes and self.disk.full_until_s > self.clock.now:
            self._pause()
            self.clock.after(RETRY_S, self._written)
            return
        if writes and self.full is not None:
            self.gate.resume()
            self.resumed()
        self.writing.popleft()
        for command in writes:
            self.disk.apply(command)
            if isinstance(command, c.RaiseEpoch):
                self.submit(e.EpochRaised(now=self.clock.now, epoch=command.epoch))
        if holds:
            self._send_all(self.gate.release())
        if self.writing:
            self._write_next()

    def _pause(self) -> None:
        if self.full is None:
            full = DiskFull("the master is paused: its disk is full")
            refusals = self.gate.pause(full)
            self.paused(full)
            self._send_all(refusals)

    # --- what leaves ----------------------------------------------------------------------------

    def _send_all(self, commands: Sequence[c.MasterCommand]) -> None:
        """In order. A reply may cause a new event immediately; what follows from it leaves last."""
        sending = bool(self._leaving)
        self._leaving.extend(commands)
        while self._leaving and not sending:
            self.send(self._leaving[0])
            self._leaving.popleft()

    def send(self, command: c.MasterCommand) -> None:
        """Send one command; it is dropped if its stream is over."""
        match command:
            case c.Reply() | c.Refuse():
                self.complete_call(command)
            case c.NotifyApplication():
                self.notify(command)
            case c.SendToNode():
                if end := self.node(command.node, command.incarnation):
                    end.put(command.message)
            case c.SendToScheduler():
                if end := self.scheduler(command.scheduler, command.session):
                    end.put(command.message)
            case c.DropNode():
                if end := self.node(command.node, command.incarnation):
                    end.drop()
            case c.DropScheduler():
                if end := self.scheduler(command.scheduler, command.session):
                    end.drop()
