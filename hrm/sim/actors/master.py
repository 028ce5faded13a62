"""The master's process in virtual time: services and the ends of streams around its lives.

A life is a ``MasterRuntime``. A crash ends it and loses whatever was not durable, with everything
that would have left after it; the next life begins with the store, a higher epoch, and nothing
else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.vocabulary.model import ApplicationId, NodeName
from hrm.core.vocabulary.takeover import Takeover
from hrm.errors import DiskFull
from hrm.policies.sharing import divider
from hrm.runtime.master import End, MasterRuntime, OnReply
from hrm.runtime.virtual_disk import VirtualDisk
from hrm.sim import event_format
from hrm.sim.actors.pipelines_actor import PipelinesActor, WorkerEnd
from hrm.sim.actors.policies import load
from hrm.sim.actors.scheduler_process import SchedulerEnd
from hrm.sim.actors.sleepers import MASTER
from hrm.sim.actors.submission_actor import SubmissionsActor
from hrm.sim.faults.network import Stream
from hrm.sim.faults.plan import source
from hrm.sim.faults.platforms import DrawnRunTimes

if TYPE_CHECKING:
    from hrm.sim.world import World

__all__ = ["MasterProcess"]

TICK_S = 0.5
_WRITE_S = 0.002
_TURN_MAX_S = 0.005


class _Life(MasterRuntime):
    """One life: proposals that stall or die, and an oracle that checks all that happens."""

    def __init__(self, process: MasterProcess, core: MasterCore) -> None:
        super().__init__(core, process.clock, process.disk, process.world.plan.at_once_max)
        self.call_ids = process.call_ids
        self._process = process
        self._world = process.world

    def decide(self, event: e.MasterEvent) -> list[c.MasterCommand]:
        world = self._world
        try:
            commands = super().decide(event)
        except Exception as error:
            world.log.emit("master", event_format.of_event(event))
            world.oracle.violated(f"the master's core raised {type(error).__name__}: {error}")
            return []
        world.log.emit("master", event_format.of_event(event) + event_format.of_commands(commands))
        world.oracle.after_master(self.core, event, commands)
        if self.full is not None:
            world.oracle.pauses.after(event, commands, self.gate.held, self._calls)
        for command in commands:
            if isinstance(command, c.NotifyApplication):
                world.noticed(self.core, command)
        return commands

    def wake(self, scheduler: str) -> None:
        if not self.over:
            self._world.oracle.rounds.woken(self.core, scheduler, self.clock.now)
        super().wake(scheduler)

    def propose(self, proposal: Proposal) -> None:
        """If the scheduler lives, as late as it stalls. What comes late, or twice, belongs to no
        round any more: it is committed in its turn all the same."""
        network, clock = self._world.network, self.clock
        if network.happens("proposal-death"):
            self._world.oracle.rounds.astray(proposal)
            return
        if network.happens("proposal-stall"):
            self._world.oracle.rounds.astray(proposal)
            clock.after(network.chance.uniform(0.02, 2.0), super().propose, proposal)
        else:
            super().propose(proposal)
        if network.happens("proposal-duplicate"):
            clock.after(network.chance.uniform(0.0, 1.5), super().propose, proposal)

    def turn_s(self) -> float:
        """Messages arrive between a snapshot and its commit."""
        return self._process.turns.uniform(0.0, _TURN_MAX_S)

    def turn_begins(self) -> None:
        if not self.over:
            self._world.oracle.rounds.turn_begins()

    def send(self, command: c.MasterCommand) -> None:
        durable: dict[ApplicationId, object] = dict(self.disk.applications)
        self._world.oracle.left_master(command, durable)
        super().send(command)

    def notify(self, command: c.NotifyApplication) -> None:
        process, application_id = self._process, command.application_id
        if (end := process.application_ends.get(application_id)) is not None:
            end.put(command.notice)
        elif application_id in process.listeners:
            process.listeners[application_id].put(application_id, command.notice)

    def node(self, name: NodeName, incarnation: str) -> End | None:
        return self._process.node_ends.get((name, incarnation))

    def scheduler(self, name: str, session: int) -> End | None:
        return self._process.scheduler_ends.get((name, session))

    def paused(self, why: DiskFull) -> None:
        self._world.log.emit("master", why.message)

    def resumed(self) -> None:
        self._world.log.emit("master", "resumes: its disk has space again")

    def tick(self) -> None:
        if not self.over:
            self.submit(e.Ticked(now=self.clock.now))
            self.clock.after(TICK_S, self.tick)


class MasterProcess:
    """The master over all its lives. ``life`` and ``core`` are None while it is down.

    ``submissions``, ``pipelines``: None also in a run without any; ``listeners``: get the
    notices to applications of the master itself. ``turns``: where it is drawn how long each turn of
    its loop takes.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = world.clock_of(MASTER)
        self.disk = VirtualDisk(_WRITE_S)
        self.disk.queues, self.disk.queue_rules = world.plan.queues, world.plan.queue_rules
        self.life: _Life | None = None
        self.node_ends: dict[tuple[str, str], _NodeEnd] = {}
        self.application_ends: dict[ApplicationId, _ApplicationEnd] = {}
        self.scheduler_ends: dict[tuple[str, int], SchedulerEnd] = {}
        self.listeners: dict[ApplicationId, SubmissionsActor | PipelinesActor] = {}
        self.submissions: SubmissionsActor | None = None
        self.pipelines: PipelinesActor | None = None
        self.call_ids = itertools.count(1)
        self.turns = source(world.plan.seed, "turns")
        self._reigns = 0
        self._sessions = 0
        self._subscriptions = 0
        self._streams: list[Stream] = []

    @property
    def core(self) -> MasterCore | None:
        return None if self.life is None else self.life.core

    def now(self) -> float:
        return self.clock.now

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        world = self.world
        self._reigns += 1
        policies = [load(world.plan.policy, index) for index in range(world.plan.schedulers)]
        core = self.disk.next_master(
            policies,
            world.plan.bounds,
            self.now(),
            epoch_id=f"reign-{self._reigns}",
            division=divider(),
        )
        if "platforms" in world.plan.traits:
            core.placement.platforms.learn_from(DrawnRunTimes(world.plan.seed, self._reigns))
        core.master_state.out.clear()
        self.life = _Life(self, core)
        world.log.emit("master", f"starts with epoch {self.disk.epoch}")
        world.oracle.master_began(core)
        self.clock.after(TICK_S, self.life.tick)
        if world.plan.submissions:
            self.submissions = SubmissionsActor(self, self.life)
            self.submissions.begin()
        if world.plan.pipelines:
            self.pipelines = PipelinesActor(self, self.life)
            self.pipelines.begin()

    def crash(self) -> None:
        """Lose everything but the disk. What was being written may have got there."""
        life, chance = self.life, self.world.chance
        if life is None:
            return
        written = 0
        if life.writing and life.full is None and chance.random() < 0.5:
            writes = life.writing[0][0]
            written = chance.randint(0, len(writes))
            for command in writes[:written]:
                self.disk.apply(command)
        held = len(life.writing)
        self.world.log.emit("master", f"crashes with {held} batches held, {written} kept")
        self.world.sleepers.died(MASTER)
        life.over, self.life = True, None
        if self.submissions is not None:
            self.submissions.crash()
            self.submissions = None
        if self.pipelines is not None:
            self.pipelines.crash()
            self.pipelines = None
        self.listeners.clear()
        self.node_ends.clear()
        self.application_ends.clear()
        self.scheduler_ends.clear()
        self._subscriptions = 0
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.kill_server()

    def submit(self, event: e.MasterEvent) -> None:
        if self.life is not None:
            self.life.submit(event)

    def call(self, make: Callable[[int], e.MasterEvent], on_reply: OnReply) -> None:
        self.world.sleepers.deliver(MASTER, self._call, make, on_reply)

    def _call(self, make: Callable[[int], e.MasterEvent], on_reply: OnReply) -> None:
        if self.life is not None:
            self.life.call(make, on_reply)

    # --- services -------------------------------------------------------------------------------

    def accept_node(self, stream: Stream) -> None:
        """An agent opens a stream; without a master it breaks at once."""
        self._accept_later(stream, _NodeEnd(self, stream))

    def accept_session(self, stream: Stream) -> None:
        self._sessions += 1
        self._accept_later(stream, _ApplicationEnd(self, stream, self._sessions))

    def accept_scheduler(self, stream: Stream) -> None:
        """A scheduler subscribes; each master numbers its sessions from the start."""
        self._subscriptions += 1
        self._accept_later(stream, SchedulerEnd(self, stream, self._subscriptions))

    def accept_worker(self, stream: Stream) -> None:
        """A worker of pipelines connects."""
        if self.pipelines is None:
            self.world.sleepers.deliver(MASTER, stream.close_server)
        else:
            self._accept_later(stream, WorkerEnd(self.pipelines, stream))

    def register(self, event: e.ApplicationRegistered, reply: Callable[[Any], None]) -> None:
        """The unary call of AppMasters."""
        submissions, submission_id = self.submissions, event.submission_id
        attempt = event.submission_attempt

        def registered(result: c.Reply | c.Refuse) -> None:
            if submissions is not None and submission_id and isinstance(result, c.Reply):
                assert isinstance(result.result, c.ApplicationAdmitted)
                submissions.registered(submission_id, attempt, result.result.application_id)
            reply(result)

        if submissions is not None and submission_id:
            error = submissions.refusal(submission_id, attempt)
            if error is not None:
                reply(c.Refuse(call_id=0, error=error))
                return
        self.call(lambda call_id: replace(event, now=self.now(), call_id=call_id), registered)

    def _accept_later(self, stream: Stream, end: _ServerEnd) -> None:
        self.world.sleepers.deliver(MASTER, self._accept, self.life, stream, end)

    def _accept(self, life: _Life | None, stream: Stream, end: _ServerEnd) -> None:
        is_partitioned = self.world.network.partition_end_s(stream.name) > self.now()
        if life is None or is_partitioned or life is not self.life:
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
        self._takeover: Takeover[tuple[str, str], _NodeEnd] | None = None
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
        self._takeover = Takeover(master.node_ends, self._key, self)
        master.call(
            lambda call_id: replace(event, now=master.now(), call_id=call_id), self._registered
        )

    def _registered(self, result: c.Reply | c.Refuse) -> None:
        assert self._takeover is not None
        if isinstance(result, c.Refuse):
            self._takeover.undo()
            self._key = None
            self._stream.close_server()
            return
        if self._takeover.previous is not None:
            self._takeover.previous._stream.close_server()
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
        previous = master.application_ends.get(event.application_id)
        master.application_ends[event.application_id] = self
        if previous is not None:
            previous._stream.close_server()
        session = self._session
        master.call(
            lambda call_id: replace(event, now=master.now(), call_id=call_id, session=session),
            self._attached,
        )

    def _attached(self, result: c.Reply | c.Refuse) -> None:
        if self._application_id is None:
            return  # the session broke while the master was writing
        if isinstance(result, c.Refuse):
            # The core may have attached it: then it is the reply that waits for the disk.
            self._stream.send_to_client(result)
            self._over(close=True)
            return
        self._ready = True
        self._stream.send_to_client(result.result)
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


_ServerEnd: TypeAlias = _NodeEnd | _ApplicationEnd | SchedulerEnd | WorkerEnd
