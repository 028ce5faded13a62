"""Carries out the commands of the master's core, and feeds it events.

Everything runs on one asyncio loop, so events reach the core one at a time. Messages that a crash
could contradict wait for the disk (``hrm.core.master.write_gate``); others pass, so that a stream's
containers do not wait for the registration of a batch application. Waking schedulers and proposing
claims are internal and wait for nothing.

When the disk is full the master is paused: what needs no write continues, calls that need one are
refused immediately, and everything resumes without intervention when there is space.

The order in which schedulers choose and commit is decided in ``hrm.core.master.rounds``: streams in
the turn of the loop that took in their request, batch one step per turn. Messages that the disk
releases are sent in slices. So turns are short, and a stream that arrives in between waits for the
rest of one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import structlog

from hrm import clock
from hrm.core.master.core import MasterCore
from hrm.core.master.rounds import RoundSequencer
from hrm.core.master.wake_timers import WakeTimers
from hrm.core.master.write_gate import LEAVING, Write, WriteGate
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged
from hrm.core.vocabulary.history import Service
from hrm.core.vocabulary.model import ApplicationId, ContainerId, NodeName
from hrm.errors import DiskFull, HrmError, Unavailable
from hrm.master.journal import Journal
from hrm.master.report_throttle import ReportThrottle
from hrm.master.store import Store
from hrm.v1.policy_pb2 import PolicyOrder

__all__ = ["Interpreter", "NoticeForwarder", "Outbox"]

OUTBOX_MAX = 100_000
CALL_TIMEOUT_S = 10.0
ACKNOWLEDGE_DELAY_S = 0.5
"""How long acknowledged ends are collected for one message, for which no component waits."""
SLICE_S = 0.001
"""How long released messages are sent before the loop serves others."""

log = structlog.get_logger("master")

_Message: TypeAlias = c.NodeMessage | c.Notice | StateChanged | PolicyOrder


class Outbox:
    """Messages for one stream, bounded. One that overflows is closed: its reader was too slow, and
    gets the whole state when it reconnects.

    A node's ends are acknowledged in batches, because most of the cost of a message is per message,
    whatever its contents. Until then the node repeats them, which does no harm.
    """

    __slots__ = ("_ends", "_messages", "_waiting", "closed")

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._ends: list[ContainerId] = []
        self._waiting: asyncio.Future[None] | None = None
        self.closed = False

    def put(self, message: _Message) -> None:
        if self.closed:
            return
        if len(self._messages) >= OUTBOX_MAX:
            self.close()
            return
        if type(message) is c.AcknowledgeEnded:
            self._collect(message)
            return
        self._messages.append(message)
        self._wake()

    def _collect(self, message: c.AcknowledgeEnded) -> None:
        if not self._ends:
            asyncio.get_running_loop().call_later(ACKNOWLEDGE_DELAY_S, self._acknowledge)
        self._ends += message.container_ids

    def _acknowledge(self) -> None:
        self._messages.append(c.AcknowledgeEnded(container_ids=tuple(self._ends)))
        self._ends.clear()
        self._wake()

    def close(self) -> None:
        """Accept no more messages; the reader gets those that are queued, then none."""
        self.closed = True
        self._wake()

    async def take(self) -> list[_Message]:
        """All messages present, at least one; none at all once it is closed and empty.

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


class NoticeForwarder(Outbox):
    """Passes the notices for an application of the master's own on, each after the core's present
    commands."""

    def __init__(self, take: Callable[[c.Notice], None]) -> None:
        super().__init__()
        self._take_notice = take

    def put(self, message: _Message) -> None:
        assert isinstance(message, c.Notice)
        asyncio.get_running_loop().call_soon(self._take_notice, message)


class Interpreter:
    """The live master.

    ``stopped`` is set once: with None on request, with an error when continuing would do harm.

    Invariants: ``_writes`` are those of the batches that ``gate`` holds. ``_timer`` fires for the
    next of ``_wakes``. While a step of ``_rounds`` is due, and only then, a turn is planned for it.
    """

    def __init__(self, core: MasterCore, store: Store, journal: Journal | None = None) -> None:
        self.core = core
        self.store = store
        self.journal = journal
        self.node_outboxes: dict[tuple[NodeName, str], Outbox] = {}
        self.scheduler_outboxes: dict[tuple[str, int], Outbox] = {}
        self.application_outboxes: dict[ApplicationId, Outbox] = {}
        self.stopped: asyncio.Future[HrmError | None]
        self.stopped = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[c.CallResult]] = {}
        self._call_ids = itertools.count(1)
        self.gate = WriteGate(core)
        self._writes: deque[list[asyncio.Future[None]]] = deque()
        self._full_since_s = 0.0
        store.watch_disk(self._disk_changed)
        self._flushing: asyncio.Task[None] | None = None
        self._wakes = WakeTimers()
        self._timer: asyncio.TimerHandle | None = None
        self._rounds = RoundSequencer(core)
        self._turn_is_planned = False
        self.throttle = ReportThrottle()

    @property
    def full(self) -> DiskFull | None:
        """Why the master is paused; None: it is not."""
        return self.gate.full

    def now(self) -> float:
        return clock.now()

    def submit(self, event: e.MasterEvent) -> None:
        """Let the core handle one event, then run the rounds that may not wait for a later turn."""
        if self.stopped.done() or self.gate.ignores(event):
            return
        self._feed(event)
        self._wake_due()
        self._rounds.taken(event, self.now())
        while not self.stopped.done():
            following = self._rounds.at_once(self.now())
            if following is None:
                break
            self._feed(following)
        self._plan_turn()

    def _plan_turn(self) -> None:
        if not self._turn_is_planned and self._rounds.is_due and not self.stopped.done():
            self._turn_is_planned = True
            self.throttle.step_due()
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """One step of the schedulers in this process."""
        event = self._rounds.step(self.now())
        if event is not None:
            self.submit(event)
        if self._rounds.is_due and not self.stopped.done():
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._turn_is_planned = False
            self.throttle.step_done()

    def _log_sleep(self) -> None:
        slept_s, self.core.slept_s = self.core.slept_s, 0.0
        log.warning(
            "this process was stopped, or busy, for a while; that time counts as no component's "
            "silence",
            slept_s=round(slept_s, 1),
        )

    def _feed(self, event: e.MasterEvent) -> None:
        try:
            commands = self.core.handle(event)
            if self.core.slept_s:
                self._log_sleep()
            if self.journal is not None:
                self.journal.took(event, commands)
            self._take(event, commands)
        except Exception as error:
            # A bug, or a store that accepts no more writes. Continuing would serve from state that
            # may be half changed; a restart rebuilds it from the store and the nodes.
            name = type(event).__name__
            log.critical("core failed", input=name, error=repr(error), exc_info=True)
            self.stopped.set_result(HrmError(f"{name} could not be processed: {error!r}"))

    async def call(self, make: Callable[[int], e.MasterEvent]) -> c.CallResult:
        """Submit the event that ``make`` builds around a call id, and wait for its result.

        Raises:
            HrmError: the core refused.
            DiskFull: it requires a write, and the disk is full.
            Unavailable: no reply within ``CALL_TIMEOUT_S``.
        """
        call_id = next(self._call_ids)
        future: asyncio.Future[c.CallResult]
        future = asyncio.get_running_loop().create_future()
        event = make(call_id)
        if (error := self.gate.refusal(event)) is not None:
            raise error
        self._calls[call_id] = future
        try:
            self.submit(event)
            if future.done():
                return future.result()
            return await asyncio.wait_for(future, CALL_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("the master is overloaded; try again") from None
        finally:
            self._calls.pop(call_id, None)

    async def tick_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self.submit(e.Ticked(now=self.now()))

    def _take(self, event: e.MasterEvent, commands: list[c.MasterCommand]) -> None:
        writes: list[Write] = []
        leaving: list[c.MasterCommand] = []
        futures: dict[int, asyncio.Future[None]] = {}
        for command in commands:
            if type(command) in LEAVING:
                leaving.append(command)
            elif (write := self._carry_out(command)) is not None:
                futures[id(command)] = write
                writes.append(command)  # type: ignore[arg-type]
        passing, held = self.gate.take(event, writes, leaving)
        self._send_all(passing)
        if held is None:
            return
        self._writes.append([futures[id(write)] for write in held.writes])
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())

    def _disk_changed(self, error: Exception | None) -> None:
        """The disk is full, has space again (None), or has failed, in which case no later write can
        be trusted."""
        now = self.now()
        if error is not None and not isinstance(error, DiskFull):
            log.critical("store failed", error=str(error))
            if not self.stopped.done():
                if not isinstance(error, HrmError):
                    error = HrmError(f"cannot write the store: {error}")
                self.stopped.set_result(error)
            return
        if error is not None:
            self._full_since_s = now
            log.critical("paused", why=error.message)
            self._send_all(self.gate.pause(error))
            return
        was = self.gate.full
        assert was is not None
        self.gate.resume()
        log.warning(
            "resumed: the disk has space again", paused_s=round(now - self._full_since_s, 1)
        )
        if self.journal is not None:  # which could not be written meanwhile either
            self.journal.record_service(Service.PAUSED, self._full_since_s, was.message)
            self.journal.record_service(Service.RESUMED, now, "the disk has space again")

    def _carry_out(self, command: c.MasterCommand) -> asyncio.Future[None] | None:
        """Do what stays in this process; returns the write to wait for, if it is one."""
        match command:
            case c.PersistApplication():
                return self.store.put_application(command.record)
            case c.PersistQueues():
                return self.store.put_queues(command.stated)
            case c.ForgetApplication():
                return self.store.forget_application(command.application_id)
            case c.RememberNode():
                return self.store.put_node(command.node, command.owner)
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
            case c.PersistLearnedClass():
                return self.store.put_learned_class(command.row)
            case c.ForgetLearnedClass():
                return self.store.forget_learned_class(command.key)
            case c.RaiseEpoch():
                return self._raise_epoch(command.epoch)
            case c.WakeScheduler():
                self._wake(command)
            case c.ProposeClaims():
                self._rounds.propose(command.proposal)
            case _:
                raise AssertionError(f"{type(command).__name__} is for others")
        return None

    def _raise_epoch(self, epoch: int) -> asyncio.Future[None]:
        """The core adopts it once it is on the disk; a write that fails ends the master."""

        def written(write: asyncio.Future[None]) -> None:
            if not write.cancelled() and write.exception() is None:
                self.submit(e.EpochRaised(now=self.now(), epoch=epoch))
                log.warning(
                    "the epoch is raised: nodes have followed a later one than the store had; "
                    "was the state directory emptied, or restored from an older copy?",
                    epoch=epoch,
                )

        write = self.store.put_epoch(epoch)
        write.add_done_callback(written)
        return write

    async def _flush(self) -> None:
        """Send held batches, each once its writes are durable."""
        begun_s = time.monotonic()
        while self._writes:
            try:
                for write in self._writes[0]:
                    await write
            except Exception:
                return  # reported to ``_disk_changed``
            self._writes.popleft()
            self._send_all(self.gate.release())
            if time.monotonic() - begun_s > SLICE_S:
                await asyncio.sleep(0)
                begun_s = time.monotonic()
        self._flushing = None

    def _wake(self, command: c.WakeScheduler) -> None:
        self._wakes.set(command.scheduler, command.at_s)
        if not self._wake_due():
            self._set_timer()

    def _wake_due(self) -> bool:
        """Pass due wakes on to the rounds; returns whether there were any."""
        now = self.now()
        due = self._wakes.take_due(now)
        for scheduler in due:
            self._rounds.wake(scheduler, now)
        if due:
            self._set_timer()
        return bool(due)

    def _set_timer(self) -> None:
        """For the next wake of any scheduler."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_s = self._wakes.next_time_s
        if at_s is not None:
            self._timer = asyncio.get_running_loop().call_later(at_s - self.now(), self._ring)

    def _ring(self) -> None:
        if not self._wake_due():
            self._set_timer()
        self._plan_turn()

    def _send_all(self, commands: Sequence[c.MasterCommand]) -> None:
        for command in commands:
            if type(command) is c.SendToNode:  # most of them
                outbox = self.node_outboxes.get((command.node, command.incarnation))
                if outbox is not None:
                    outbox.put(command.message)
                continue
            match command:
                case c.NotifyApplication():
                    outbox = self.application_outboxes.get(command.application_id)
                    if outbox is not None:
                        outbox.put(command.notice)
                        if isinstance(command.notice, c.EndApplication):
                            outbox.close()
                case c.Reply() | c.Refuse():
                    self._complete_call(command)
                case c.SendToScheduler():
                    key = (command.scheduler, command.session)
                    if key in self.scheduler_outboxes:
                        self.scheduler_outboxes[key].put(command.message)
                case c.DropNode():
                    outbox = self.node_outboxes.get((command.node, command.incarnation))
                    if outbox is not None:
                        log.info("node is to register again", node=command.node)
                        outbox.close()
                case c.DropScheduler():
                    key = (command.scheduler, command.session)
                    log.warning("scheduler does not respond", scheduler=command.scheduler)
                    if key in self.scheduler_outboxes:
                        self.scheduler_outboxes[key].close()

    def _complete_call(self, command: c.Reply | c.Refuse) -> None:
        future = self._calls.get(command.call_id)
        if future is None or future.done():
            return
        if isinstance(command, c.Reply):
            future.set_result(command.result)
        else:
            future.set_exception(command.error)


async def drain(outbox: Outbox, send: Callable[[_Message], Awaitable[None]]) -> None:
    """Send an outbox's messages until it is closed."""
    while messages := await outbox.take():
        for message in messages:
            await send(message)
