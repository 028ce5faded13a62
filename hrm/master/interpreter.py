"""Carries out what the master's core commands, and feeds it what happens.

Everything runs on one asyncio loop, so events reach the core one at a time. Nobody is ever told
what a crash could forget: a batch of commands that writes to the store is held back until the write
is on disk, and so is every later one that answers a caller, speaks of what is being written, or
goes to somebody for whom something is held: each hears of things in the order in which the core
gave them. The rest passes, so that a stream's containers do not wait for the disk because some
batch application registers. Waking schedulers and proposing claims stay inside and wait for
nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from hrm.core import commands as c
from hrm.core import events as e
from hrm.core.master import MasterCore
from hrm.core.model import ApplicationId, NodeName
from hrm.core.negotiator import Proposal
from hrm.core.remote import StateChanged
from hrm.errors import HrmError, Unavailable
from hrm.master.store import Store

__all__ = ["Interpreter", "Outbox"]

OUTBOX_MAX = 100_000
CALL_TIMEOUT_S = 10.0

log = structlog.get_logger("master")

_LEAVING = frozenset(
    {
        c.SendToNode,
        c.NotifyApplication,
        c.Reply,
        c.Refuse,
        c.SendToScheduler,
        c.DropScheduler,
    }
)

_Message: TypeAlias = c.NodeMessage | c.Notice | StateChanged


class Outbox:
    """Messages for one stream, bounded. One that overflows is closed: its reader was too slow, and
    will get the whole state when it comes back."""

    __slots__ = ("_messages", "_waiting", "closed")

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._waiting: asyncio.Future[None] | None = None
        self.closed = False

    def put(self, message: _Message) -> None:
        if self.closed:
            return
        if len(self._messages) >= OUTBOX_MAX:
            self.close()
            return
        self._messages.append(message)
        self._wake()

    def close(self) -> None:
        """No more messages; the reader gets those that are queued, then none."""
        self.closed = True
        self._wake()

    async def take(self) -> list[_Message]:
        """All messages that are there, at least one; none at all once it is closed and empty.

        One reader at a time.
        """
        while not self._messages and not self.closed:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        taken, self._messages = self._messages, []
        return taken

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Interpreter:
    """The live master.

    ``stopped`` is set once: with None on request, with an error when going on would do harm.

    Invariants: ``_held`` is non-empty iff a write is on its way to the disk. ``_held_for`` counts
    for each application, node and scheduler the held batches that write of it or go to it; while
    that is not zero nothing leaves for it.
    """

    def __init__(self, core: MasterCore, store: Store) -> None:
        self.core = core
        self.store = store
        self.node_outboxes: dict[tuple[NodeName, str], Outbox] = {}
        self.scheduler_outboxes: dict[tuple[str, int], Outbox] = {}
        self.application_outboxes: dict[ApplicationId, Outbox] = {}
        self.stopped: asyncio.Future[HrmError | None]
        self.stopped = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[c.Answer]] = {}
        self._call_ids = itertools.count(1)
        self._turns: deque[str] = deque()
        self._proposals: deque[Proposal] = deque()
        self._held: deque[_Held] = deque()
        self._held_for: Counter[str] = Counter()
        self._flushing: asyncio.Task[None] | None = None

    def now(self) -> float:
        return time.time()

    def submit(self, event: e.MasterEvent) -> None:
        """Let the core take in one event and carry out what it says."""
        if self.stopped.done():
            return
        try:
            self._take(self.core.handle(event))
        except Exception as error:
            # A bug, or a store that takes no more. Going on would serve from books that may be
            # half changed; a restart rebuilds them from the store and the nodes.
            name = type(event).__name__
            log.critical("core failed", input=name, error=repr(error), exc_info=True)
            self.stopped.set_result(HrmError(f"{name} could not be taken in: {error!r}"))

    async def call(self, make: Callable[[int], e.MasterEvent]) -> c.Answer:
        """Submit the event that ``make`` builds around a call id, and wait for its answer.

        Raises:
            HrmError: the core refused.
            Unavailable: no answer within ``CALL_TIMEOUT_S``.
        """
        call_id = next(self._call_ids)
        future: asyncio.Future[c.Answer]
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self.submit(make(call_id))
            return await asyncio.wait_for(future, CALL_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the master is too busy to answer; try again") from None
        finally:
            self._calls.pop(call_id, None)

    async def tick_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self.submit(e.Ticked(now=self.now()))

    def _take(self, commands: list[c.MasterCommand]) -> None:
        writes: list[asyncio.Future[None]] = []
        leaving: list[c.MasterCommand] = []
        for command in commands:
            if type(command) in _LEAVING:
                leaving.append(command)
            elif (write := self._carry_out(command)) is not None:
                writes.append(write)
        if not writes and (not self._held or self._may_pass(leaving)):
            self._send_all(leaving)
            return
        concerned = {name for command in commands for name in _concerned(command)}
        self._held_for.update(concerned)
        self._held.append(_Held(writes, leaving, concerned))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())

    def _carry_out(self, command: c.MasterCommand) -> asyncio.Future[None] | None:
        """Do what stays in this process; answers the write to wait for, if it is one."""
        match command:
            case c.PersistApplication():
                return self.store.put_application(command.record)
            case c.ForgetApplication():
                return self.store.forget_application(command.application_id)
            case c.RememberNode():
                return self.store.put_node(command.node)
            case c.ForgetNode():
                return self.store.forget_node(command.node)
            case c.RememberDrain():
                return self.store.put_drain(command.node)
            case c.ForgetDrain():
                return self.store.forget_drain(command.node)
            case c.PersistRunTime():
                return self.store.put_run_time(command.row)
            case c.ForgetRunTime():
                return self.store.forget_run_time(command.key)
            case c.WakeScheduler():
                self._wake(command)
            case c.ProposeClaims():
                self._proposals.append(command.proposal)
            case _:
                raise AssertionError(f"{type(command).__name__} is for others")
        return None

    async def _flush(self) -> None:
        """Send held batches, each once its writes are durable."""
        while self._held:
            held = self._held[0]
            try:
                for write in held.writes:
                    await write
            except Exception as error:
                log.critical("store failed", error=str(error))
                if not self.stopped.done():
                    self.stopped.set_result(HrmError(f"cannot write the store: {error}"))
                return
            self._held.popleft()
            self._let_go(held.concerned)
            self._send_all(held.leaving)
        self._flushing = None

    def _let_go(self, concerned: set[str]) -> None:
        held_for = self._held_for
        for name in concerned:
            if held_for[name] > 1:
                held_for[name] -= 1
            else:
                del held_for[name]

    def _may_pass(self, commands: list[c.MasterCommand]) -> bool:
        """May these leave although others wait for the disk?"""
        held_for = self._held_for
        return not any(
            isinstance(command, c.Reply | c.Refuse)
            or any(name in held_for for name in _concerned(command))
            for command in commands
        )

    def _wake(self, command: c.WakeScheduler) -> None:
        delay_s = max(0.0, command.at_s - self.now())
        asyncio.get_running_loop().call_later(delay_s, self._woken, command.scheduler)

    def _woken(self, scheduler: str) -> None:
        self._turns.append(scheduler)
        if len(self._turns) == 1:
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """One round of one scheduler, from its look at the state to its commit.

        On one thread rounds cannot overlap. Begun together they would only choose on a state that
        the others are about to change, and let every job wait for the places of the others'.
        """
        self.submit(e.SchedulerWoken(now=self.now(), scheduler=self._turns[0]))
        while self._proposals:
            proposal = self._proposals.popleft()
            self.submit(e.ClaimsProposed(now=self.now(), proposal=proposal))
        self._turns.popleft()
        if self._turns:
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _send_all(self, commands: list[c.MasterCommand]) -> None:
        for command in commands:
            match command:
                case c.SendToNode():
                    outbox = self.node_outboxes.get((command.node, command.incarnation))
                    if outbox is not None:
                        outbox.put(command.message)
                case c.NotifyApplication():
                    outbox = self.application_outboxes.get(command.application_id)
                    if outbox is not None:
                        outbox.put(command.notice)
                        if isinstance(command.notice, c.EndApplication):
                            outbox.close()
                case c.Reply() | c.Refuse():
                    self._answer(command)
                case c.SendToScheduler():
                    key = (command.scheduler, command.session)
                    if key in self.scheduler_outboxes:
                        self.scheduler_outboxes[key].put(command.message)
                case c.DropScheduler():
                    key = (command.scheduler, command.session)
                    log.warning("scheduler does not answer", scheduler=command.scheduler)
                    if key in self.scheduler_outboxes:
                        self.scheduler_outboxes[key].close()

    def _answer(self, command: c.Reply | c.Refuse) -> None:
        future = self._calls.get(command.call_id)
        if future is None or future.done():
            return
        if isinstance(command, c.Reply):
            future.set_result(command.answer)
        else:
            future.set_exception(command.error)


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch of commands that wait for writes."""

    writes: list[asyncio.Future[None]]
    leaving: list[c.MasterCommand]
    concerned: set[str]


def _concerned(command: c.MasterCommand) -> tuple[str, ...]:
    """Names of the applications, nodes and schedulers that a command writes of or goes to. One
    name for two of them would hold back more than it must, never less."""
    match command:
        case c.SendToNode(message=c.AssignContainer(spec=spec)):
            return command.node, spec.application_id
        case c.SendToNode():
            return (command.node,)
        case c.NotifyApplication():
            return (command.application_id,)
        case c.PersistApplication():
            return (command.record.application_id,)
        case c.ForgetApplication():
            return (command.application_id,)
        case c.RememberNode() | c.ForgetNode() | c.RememberDrain() | c.ForgetDrain():
            return (command.node,)
        case c.SendToScheduler() | c.DropScheduler():
            return (command.scheduler,)
    return ()


async def drain(outbox: Outbox, send: Callable[[_Message], Awaitable[None]]) -> None:
    """Send an outbox's messages until it is closed."""
    while messages := await outbox.take():
        for message in messages:
            await send(message)
