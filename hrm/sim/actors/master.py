"""The master's process in virtual time: interpreter, services and store around ``MasterCore``.

As the daemon does, it feeds the core one event at a time, holds what waits for the disk behind the
same gate (``hrm.core.master.write_gate``), and keeps one outbox a stream. A crash loses whatever
was not durable, with everything that would have left after it; the next master begins with the
store, a higher epoch, and nothing else. While the disk is full its writes wait, and callers of what
would have to be written are refused, by the same rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hrm.core.master.core import MasterCore
from hrm.core.master.write_gate import WRITES, Held, Write, WriteGate, needs_room
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.submissions import ForgetSubmission, PersistSubmission, SubmissionRecord
from hrm.core.vocabulary.model import ApplicationId, NodeName
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime, RunTimeKey
from hrm.errors import DiskFull
from hrm.sim import event_format
from hrm.sim.actors.policies import load
from hrm.sim.actors.remote_schedulers import SchedulerEnd
from hrm.sim.actors.sleepers import MASTER
from hrm.sim.actors.submissions import Submissions
from hrm.sim.faults.network import Stream

if TYPE_CHECKING:
    from hrm.sim.world import World

__all__ = ["Disk", "MasterProcess"]

TICK_S = 0.5
_WRITE_S = 0.002
_RETRY_S = 0.5


class Disk:
    """What survives. Writes are done in order; ``slow_until_s``: until when each takes long;
    ``full_until_s``: until when none is done."""

    def __init__(self) -> None:
        self.epoch = 0
        self.applications: dict[ApplicationId, ApplicationRecord] = {}
        self.nodes: dict[NodeName, str] = {}
        self.drains: dict[NodeName, None] = {}
        self.run_times: dict[RunTimeKey, RunTime] = {}
        self.submissions: dict[str, SubmissionRecord] = {}
        self.slow_until_s = 0.0
        self.slow_write_s = 0.0
        self.full_until_s = 0.0

    def copy(self) -> Disk:
        """What a back-up has of it."""
        copy = Disk()
        copy.epoch = self.epoch
        copy.applications, copy.nodes = dict(self.applications), dict(self.nodes)
        copy.drains, copy.run_times = dict(self.drains), dict(self.run_times)
        copy.submissions = dict(self.submissions)
        return copy

    def write_time_s(self, now: float) -> float:
        return self.slow_write_s if self.slow_until_s > now else _WRITE_S

    def write_submission(self, command: PersistSubmission | ForgetSubmission) -> None:
        match command:
            case PersistSubmission():
                self.submissions[command.record.submission_id] = command.record
            case ForgetSubmission():
                self.submissions.pop(command.submission_id, None)

    def apply(self, command: c.MasterCommand) -> None:
        match command:
            case c.PersistApplication():
                self.applications[command.record.application_id] = command.record
            case c.ForgetApplication():
                self.applications.pop(command.application_id, None)
            case c.RememberNode():
                self.nodes[command.node] = command.owner
            case c.ForgetNode():
                self.nodes.pop(command.node, None)
            case c.RememberDrain():
                self.drains[command.node] = None
            case c.ForgetDrain():
                self.drains.pop(command.node, None)
            case c.PersistRunTime():
                self.run_times.pop(command.row.key, None)
                self.run_times[command.row.key] = command.row
            case c.ForgetRunTime():
                self.run_times.pop(command.key, None)
            case c.RaiseEpoch():
                self.epoch = command.epoch


class MasterProcess:
    """The master over all its lives. ``core`` is None while it is down.

    ``submissions``: None also in a run without any; ``ears``: who hears what holders are told.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = world.clock_of(MASTER)
        self.disk = Disk()
        self.core: MasterCore | None = None
        self.node_ends: dict[tuple[str, str], _NodeEnd] = {}
        self.application_ends: dict[ApplicationId, _ApplicationEnd] = {}
        self.scheduler_ends: dict[tuple[str, int], SchedulerEnd] = {}
        self.ears: dict[ApplicationId, Submissions] = {}
        self.submissions: Submissions | None = None
        self._life = 0
        self._sessions = 0
        self._subscriptions = 0
        self._call_ids = 0
        self._calls: dict[int, Callable[[c.Reply | c.Refuse], None]] = {}
        self._gate = WriteGate()
        self._writing: deque[tuple[list[Write], bool]] = deque()
        """Writes of batches in turn, and whether the gate holds what comes after them."""
        self.full: DiskFull | None = None
        self._leaving: deque[c.MasterCommand] = deque()
        self._streams: list[Stream] = []

    def now(self) -> float:
        return self.clock.now

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        world = self.world
        self._life += 1
        self.disk.epoch += 1
        self.core = MasterCore(
            self.disk.epoch,
            [load(world.plan.policy, index) for index in range(world.plan.schedulers)],
            world.plan.bounds,
            records=list(self.disk.applications.values()),
            known_nodes=self.disk.nodes,
            drained_nodes=list(self.disk.drains),
            run_times=list(self.disk.run_times.values()),
            now=self.now(),
            epoch_id=f"reign-{self._life}",
        )
        self.core.master_state.out.clear()
        self._gate = WriteGate(self.core.master_state.applications)
        world.log.say("master", f"starts with epoch {self.disk.epoch}")
        world.oracle.master_began(self.core)
        self.clock.after(TICK_S, self._tick, self._life)
        if world.plan.submissions:
            self.submissions = Submissions(self)
            self.submissions.begin()

    def crash(self) -> None:
        """Lose everything but the disk. What was being written may have got there."""
        if self.core is None:
            return
        written = 0
        if self._writing and self.full is None and self.world.chance.random() < 0.5:
            writes = self._writing[0][0]
            written = self.world.chance.randint(0, len(writes))
            for command in writes[:written]:
                self.disk.apply(command)
        self.world.log.say(
            "master", f"crashes with {len(self._writing)} batches held, {written} kept"
        )
        self.world.sleepers.died(MASTER)
        self.core = None
        if self.submissions is not None:
            self.submissions.crash()
            self.submissions = None
        self.ears.clear()
        self._life += 1
        self._calls.clear()
        self._writing.clear()
        self.full = None
        self.node_ends.clear()
        self.application_ends.clear()
        self.scheduler_ends.clear()
        self._subscriptions = 0
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.kill_server()

    # --- events in, commands out ----------------------------------------------------------------

    def submit(self, event: e.MasterEvent) -> None:
        core = self.core
        if core is None:
            return
        if self.full is not None and type(event) is e.NodeReported and needs_room(core, event):
            return  # the next heartbeat says it again
        world = self.world
        try:
            commands = core.handle(event)
        except Exception as error:
            world.log.say("master", event_format.of_event(event))
            world.oracle.violated(f"the master's core raised {type(error).__name__}: {error}")
            return
        world.log.say("master", event_format.of_event(event) + event_format.of_commands(commands))
        world.oracle.after_master(core, event, commands)
        for command in commands:
            if isinstance(command, c.NotifyApplication):
                world.noticed(core, command)
        self._take(event, commands)

    def call(self, make: Callable[[int], e.MasterEvent],
             answered: Callable[[c.Reply | c.Refuse], None]) -> None:  # fmt: skip
        self.world.sleepers.tell(MASTER, self._call, make, answered)

    def _call(
        self,
        make: Callable[[int], e.MasterEvent],
        answered: Callable[[c.Reply | c.Refuse], None],
    ) -> None:
        if self.core is not None:
            self._call_ids += 1
            event = make(self._call_ids)
            if self.full is not None and needs_room(self.core, event):
                answered(c.Refuse(call_id=self._call_ids, error=self.full))
                return
            self._calls[self._call_ids] = answered
            self.submit(event)

    def _tick(self, life: int) -> None:
        if life == self._life:
            self.submit(e.Ticked(now=self.now()))
            self.clock.after(TICK_S, self._tick, life)

    def _take(self, event: e.MasterEvent, commands: list[c.MasterCommand]) -> None:
        writes: list[Write] = []
        leaving: list[c.MasterCommand] = []
        for command in commands:
            match command:
                case c.WakeScheduler():
                    self.clock.at(command.at_s, self._woken, self._life, command.scheduler)
                case c.ProposeClaims():
                    self._bring(command)
                case _ if type(command) in WRITES:
                    writes.append(command)  # type: ignore[arg-type]
                case _:
                    leaving.append(command)
        passing, held = self._gate.take(event, writes, leaving)
        if writes or held is not None:
            self._writing.append((writes, held is not None))
            if len(self._writing) == 1:
                self._write_next()
        if held is not None and self.full is not None:
            self._refuse(held, self.full)
        self._send_all(passing)

    def _write_next(self) -> None:
        writes = self._writing[0][0]
        took_s = self.disk.write_time_s(self.now()) if writes else _WRITE_S
        self.clock.after(took_s, self._written, self._life)

    def _written(self, life: int) -> None:
        if life != self._life:
            return
        writes, holds = self._writing[0]
        if writes and self.disk.full_until_s > self.now():
            self._pause()
            self.clock.after(_RETRY_S, self._written, life)
            return
        if writes and self.full is not None:
            self.full = None
            self.world.log.say("master", "resumes: its disk has room again")
        self._writing.popleft()
        for command in writes:
            self.disk.apply(command)
            if isinstance(command, c.RaiseEpoch):
                self.submit(e.EpochRaised(now=self.now(), epoch=command.epoch))
        if holds:
            self._send_all(self._gate.release())
        if self._writing:
            self._write_next()

    def _pause(self) -> None:
        if self.full is not None:
            return
        self.full = DiskFull("the master is paused: its disk is full")
        self.world.log.say("master", self.full.message)
        for held in list(self._gate.held):
            self._refuse(held, self.full)

    def _refuse(self, held: Held, error: DiskFull) -> None:
        for command in held.leaving:
            if isinstance(command, c.Reply | c.Refuse):
                answered = self._calls.pop(command.call_id, None)
                if answered is not None:
                    answered(c.Refuse(call_id=command.call_id, error=error))

    def _woken(self, life: int, scheduler: str) -> None:
        if life == self._life:
            self.submit(e.SchedulerWoken(now=self.now(), scheduler=scheduler))

    def _bring(self, command: c.ProposeClaims) -> None:
        """A scheduler's proposal, if the scheduler lives, as late as it stalls."""
        network, clock = self.world.network, self.clock
        if network.happens("proposal-death"):
            return
        delay_s = 0.0
        if network.happens("proposal-stall"):
            delay_s = network.chance.uniform(0.02, 2.0)
        clock.after(delay_s, self._propose, self._life, command)
        if network.happens("proposal-duplicate"):
            clock.after(network.chance.uniform(0.0, 1.5), self._propose, self._life, command)

    def _propose(self, life: int, command: c.ProposeClaims) -> None:
        if life == self._life:
            self.submit(e.ClaimsProposed(now=self.now(), proposal=command.proposal))

    def _send_all(self, commands: Sequence[c.MasterCommand]) -> None:
        """In order. Who is answered may say something at once; what comes of that leaves last."""
        sending = bool(self._leaving)
        self._leaving.extend(commands)
        while self._leaving and not sending:
            command = self._leaving[0]
            durable: dict[ApplicationId, object] = dict(self.disk.applications)
            self.world.oracle.left_master(command, durable)
            match command:
                case c.Reply() | c.Refuse():
                    answered = self._calls.pop(command.call_id, None)
                    if answered is not None:
                        answered(command)
                case c.SendToNode():
                    node_end = self.node_ends.get((command.node, command.incarnation))
                    if node_end is not None:
                        node_end.put(command.message)
                case c.NotifyApplication():
                    application_end = self.application_ends.get(command.application_id)
                    if application_end is not None:
                        application_end.put(command.notice)
                    elif command.application_id in self.ears:
                        self.ears[command.application_id].put(
                            command.application_id, command.notice
                        )
                case c.SendToScheduler():
                    scheduler_end = self.scheduler_ends.get((command.scheduler, command.session))
                    if scheduler_end is not None:
                        scheduler_end.put(command.message)
                case c.DropNode():
                    node_end = self.node_ends.get((command.node, command.incarnation))
                    if node_end is not None:
                        node_end.drop()
                case c.DropScheduler():
                    scheduler_end = self.scheduler_ends.get((command.scheduler, command.session))
                    if scheduler_end is not None:
                        scheduler_end.drop()
            self._leaving.popleft()

    # --- services -------------------------------------------------------------------------------

    def accept_node(self, stream: Stream) -> None:
        """An agent opens a stream; without a master it breaks at once."""
        self._accept_later(stream, _NodeEnd(self, stream))

    def accept_session(self, stream: Stream) -> None:
        self._sessions += 1
        self._accept_later(stream, _ApplicationEnd(self, stream, self._sessions))

    def accept_scheduler(self, stream: Stream) -> None:
        """A scheduler subscribes; its sessions are numbered anew by each master."""
        self._subscriptions += 1
        self._accept_later(stream, SchedulerEnd(self, stream, self._subscriptions))

    def register(self, event: e.ApplicationRegistered, reply: Callable[[Any], None]) -> None:
        """The unary call of AppMasters."""
        submissions, submission_id = self.submissions, event.submission_id
        attempt = event.submission_attempt

        def registered(answer: c.Reply | c.Refuse) -> None:
            if submissions is not None and submission_id and isinstance(answer, c.Reply):
                assert isinstance(answer.answer, c.ApplicationAdmitted)
                submissions.registered(submission_id, attempt, answer.answer.application_id)
            reply(answer)

        if submissions is not None and submission_id:
            error = submissions.refusal(submission_id, attempt)
            if error is not None:
                reply(c.Refuse(call_id=0, error=error))
                return
        self.call(lambda call_id: replace(event, now=self.now(), call_id=call_id), registered)

    def _accept_later(self, stream: Stream, end: _NodeEnd | _ApplicationEnd | SchedulerEnd) -> None:
        self.world.sleepers.tell(MASTER, self._accept, self._life, stream, end)

    def _accept(
        self, life: int, stream: Stream, end: _NodeEnd | _ApplicationEnd | SchedulerEnd
    ) -> None:
        cut = self.world.network.cut_until(stream.name) > self.now()
        if self.core is None or cut or life != self._life:
            stream.close_server()
            return
        stream.server = end
        self._streams.append(stream)
        if len(self._streams) > 200:
            del self._streams[:100]


class _NodeEnd:
    """The master's end of an agent's stream."""

    def __init__(self, master: MasterProcess, stream: Stream) -> None:
        self._master = master
        self._stream = stream
        self._key: tuple[str, str] | None = None
        self._previous: _NodeEnd | None = None
        self._ready = False
        self._early: list[Any] = []
        self._outbox: list[c.NodeMessage] = []

    def put(self, message: c.NodeMessage) -> None:
        if self._ready:
            self._stream.send_to_client((self._epoch(), message))
        else:
            self._outbox.append(message)

    def drop(self) -> None:
        """The master ends the stream."""
        self._stream.close_server()
        self.closed()

    def _epoch(self) -> int:
        """It may rise while the stream stays."""
        assert self._master.core is not None
        return self._master.core.epoch

    def received(self, message: Any) -> None:
        if isinstance(message, e.NodeRegistered):
            if self._key is None:
                self._register(message)
        elif self._ready:
            self._master.submit(replace(message, now=self._master.now()))
        elif self._key is not None:
            self._early.append(message)

    def closed(self) -> None:
        master = self._master
        if self._key is not None and master.node_ends.get(self._key) is self:
            del master.node_ends[self._key]
            name, incarnation = self._key
            master.submit(
                e.NodeDisconnected(now=master.now(), node=NodeName(name), incarnation=incarnation)
            )

    def ghost(self, message: Any) -> None:
        """The master's old lives are over: nothing reaches them."""

    def _register(self, event: e.NodeRegistered) -> None:
        master = self._master
        assert master.core is not None
        if master.core.nodes.refusal(replace(event, now=master.now())) is not None:
            self._stream.close_server()
            return
        self._key = (event.node, event.incarnation)
        self._previous = master.node_ends.get(self._key)
        master.node_ends[self._key] = self
        master.call(
            lambda call_id: replace(event, now=master.now(), call_id=call_id), self._registered
        )

    def _registered(self, answer: c.Reply | c.Refuse) -> None:
        assert self._key is not None
        if isinstance(answer, c.Refuse):
            if self._previous is None:
                self._master.node_ends.pop(self._key, None)
            else:
                self._master.node_ends[self._key] = self._previous
            self._key = None
            self._stream.close_server()
            return
        if self._previous is not None:
            self._previous._stream.close_server()
        self._ready = True
        assert self._master.core is not None
        self._stream.send_to_client((self._epoch(), self._master.core.master_state.epoch_id))
        for message in self._outbox:
            self._stream.send_to_client((self._epoch(), message))
        early, self._early = self._early, []
        for message in early:
            self._master.submit(replace(message, now=self._master.now()))


class _ApplicationEnd:
    """The master's end of an AppMaster's session."""

    def __init__(self, master: MasterProcess, stream: Stream, session: int) -> None:
        self._master = master
        self._stream = stream
        self._session = session
        self._application_id: ApplicationId | None = None
        self._previous: _ApplicationEnd | None = None
        self._ready = False
        self._outbox: list[c.Notice] = []
        self._early: list[Any] = []

    def put(self, notice: c.Notice) -> None:
        if not self._ready:
            self._outbox.append(notice)
            return
        self._stream.send_to_client(notice)
        if isinstance(notice, c.EndApplication):
            self._over(close=True)

    def received(self, message: Any) -> None:
        if isinstance(message, e.ApplicationAttached):
            self._attach(message)
        elif self._ready:
            self._master.submit(replace(message, now=self._master.now()))
        else:
            self._early.append(message)

    def closed(self) -> None:
        self._over(close=False)

    def ghost(self, message: Any) -> None:
        """The master's old lives are over: nothing reaches them."""

    def _attach(self, event: e.ApplicationAttached) -> None:
        master = self._master
        assert master.core is not None
        refusal = master.core.applications.attach_refusal(event)
        if refusal is not None:
            self._stream.send_to_client(c.Refuse(call_id=0, error=refusal))
            self._stream.close_server()
            return
        self._application_id = event.application_id
        self._previous = master.application_ends.get(event.application_id)
        master.application_ends[event.application_id] = self
        session = self._session
        master.call(
            lambda call_id: replace(event, now=master.now(), call_id=call_id, session=session),
            self._attached,
        )

    def _attached(self, answer: c.Reply | c.Refuse) -> None:
        if self._application_id is None:
            return  # the session broke while the master was writing
        ends = self._master.application_ends
        if isinstance(answer, c.Refuse):
            if self._previous is None:
                ends.pop(self._application_id, None)
            else:
                ends[self._application_id] = self._previous
            self._application_id = None
            self._stream.send_to_client(answer)
            self._stream.close_server()
            return
        if self._previous is not None:
            self._previous._stream.close_server()
        self._ready = True
        self._stream.send_to_client(answer.answer)
        for notice in self._outbox:
            self.put(notice)
        early, self._early = self._early, []
        for message in early:
            self._master.submit(replace(message, now=self._master.now()))

    def _over(self, *, close: bool) -> None:
        """The session ends: the application is detached, unless it has another or has ended."""
        master, application_id = self._master, self._application_id
        self._ready = False
        if close:
            self._stream.close_server()
        if application_id is None:
            return
        self._application_id = None
        if master.application_ends.get(application_id) is self:
            del master.application_ends[application_id]
        master.submit(
            e.ApplicationDetached(
                now=master.now(), application_id=application_id, session=self._session
            )
        )
