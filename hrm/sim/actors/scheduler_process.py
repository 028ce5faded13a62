"""A scheduler of another process in virtual time, and the master's end of its subscription.

It executes the actions of ``SchedulerSession``, as ``hrm scheduler`` does: calls and stream go
through the network; the session ends with its stream, and with it all that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import StateChanged, Subscribed
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.scheduling.session import SchedulerCall, SchedulerSession
from hrm.core.vocabulary.backoff import Backoff
from hrm.core.vocabulary.model import Followed
from hrm.errors import Unavailable
from hrm.sim import event_format
from hrm.sim.actors.policies import load
from hrm.sim.faults.network import CALL_TIMEOUT_S, Peer, Stream
from hrm.sim.faults.plan import RemotePlan

if TYPE_CHECKING:
    from hrm.sim.actors.master import MasterProcess
    from hrm.sim.world import World

__all__ = ["RemoteSchedulerProcess", "SchedulerEnd"]

_SUBSCRIBE_TIMEOUT_S = 3.0
_RECONNECT_S = 0.2
_RECONNECT_MAX_S = 2.0


@dataclass(frozen=True, slots=True)
class _Subscribe:
    name: str
    followed: Followed | None


class RemoteSchedulerProcess:
    """One remote scheduler over all its lives.

    ``up``: its process lives. ``at_lease``: what happens to it when it next gets the lease.
    """

    def __init__(self, world: World, plan: RemotePlan) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.clock = world.clock_of(plan.name)
        self.up = False
        self.at_lease: Callable[[], None] | None = None
        self.followed: Followed | None = None
        self.backoff = Backoff(_RECONNECT_S, _RECONNECT_MAX_S, world.chance.random)
        self._session: _Session | None = None

    def start(self) -> None:
        self.at_lease = None
        if self._session is not None and self._session.hangs:
            self.crash(0.1)
        elif not self.up:
            self.up = True
            self.backoff.succeeded()
            self._connect()

    def crash(self, back_s: float) -> None:
        """Its process ends, and another is started ``back_s`` later."""
        self.at_lease = None
        if not self.up:
            return
        self.world.log.emit(self.name, "scheduler crashes")
        self.world.sleepers.died(self.name)
        self.up = False
        self.followed = None
        if self._session is not None:
            self._session.leave()
            self._session = None
        self.world.clock.after(back_s, self.start)

    def hang(self) -> None:
        """Its connection stays, and it sends nothing."""
        if self._session is not None:
            self.world.log.emit(self.name, "scheduler hangs")
            self._session.hangs = True

    def session_over(self, session: _Session) -> None:
        """Subscribe again after a pause that grows."""
        if self._session is session:
            self._session = None
            self.clock.after(self.backoff.pause_s(), self._connect)

    def behind(self) -> str:
        """Why it is not yet where the master is; empty when it is."""
        core, session = self.world.master.core, self._session
        mirrored = None if core is None else core.placement.schedulers.get(self.name)
        if session is None or session.core is None or not isinstance(mirrored, RemoteScheduler):
            return f"{self.name} is not subscribed"
        sequence = session.core.replica.sequence
        if session.core.number != mirrored.session or sequence != mirrored.sequence:
            return f"{self.name} has message {sequence}, not {mirrored.sequence}"
        return ""

    def _connect(self) -> None:
        if self.up and self._session is None:
            self._session = _Session(self)
            self._session.begin()


class _Session(Peer):
    """One subscription, from its beginning to its end: executes the actions of
    ``SchedulerSession`` over the simulated network."""

    def __init__(self, process: RemoteSchedulerProcess) -> None:
        self.process = process
        self.world = process.world
        self.clock = process.clock
        self.hangs = False
        self.core: SchedulerSession | None = None
        self._over = False
        self._alarm = 0
        self._stream = Stream(self.world.network, process.name, self, strict=True)

    def begin(self) -> None:
        self.world.master.accept_scheduler(self._stream)
        self._stream.send_to_server(_Subscribe(self.process.name, self.process.followed))
        self.clock.after(_SUBSCRIBE_TIMEOUT_S, self._check)

    def leave(self) -> None:
        if not self._over:
            self._over = True
            self._stream.close_client()

    def received(self, message: Any) -> None:
        if self._over:
            return
        if isinstance(message, Subscribed):
            self.process.followed = message.followed
            policy = load(self.process.plan.policy, message.session)
            scheduler = Scheduler(self.process.name, policy, message.bounds)
            self.core = SchedulerSession(scheduler, message.session, changes_limit_s=CALL_TIMEOUT_S)
            self.process.backoff.succeeded()
            self.world.log.emit(self.process.name, f"subscribed as {message.session}")
        elif isinstance(message, StateChanged) and self.core is not None:
            self.world.log.emit(self.process.name, f"takes in {event_format.of_change(message)}")
            self.core.changed(message, self.clock.now)
            followed = self.process.followed
            assert followed is not None
            self.world.oracle.copies.taken(
                self.process.name, followed.epoch, self.core.number, self.core.replica
            )
            if not self.core.idle:
                self._step()
            self._soon()

    def closed(self) -> None:
        if not self._over:
            self._over = True
            self.process.session_over(self)

    def _check(self) -> None:
        """A subscription without a reply is given up."""
        if not self._over and self.core is None:
            self._give_up()

    def _give_up(self) -> None:
        if not self._over:
            self.leave()
            self.process.session_over(self)

    def _soon(self) -> None:
        self.clock.after(0.0, self._step)

    def _step(self) -> None:
        if self._over or self.hangs or self.core is None:
            return
        try:
            call = self.core.step(self.clock.now)
        except Unavailable:
            self._give_up()
            return
        if call is not None:
            self._call(call)
            return
        due_s = self.core.due_s()
        if due_s is not None:
            self._alarm += 1
            self.clock.after(max(0.001, due_s - self.clock.now), self._rung, self._alarm)

    def _rung(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._step()

    def _replied(self, reply: Any) -> None:
        assert self.core is not None
        result = reply.result if isinstance(reply, c.Reply) else None
        if isinstance(result, c.LeaseGranted) and self.process.at_lease is not None:
            strike, self.process.at_lease = self.process.at_lease, None
            strike()
            return
        taken = result if isinstance(result, c.LeaseGranted | c.ClaimsSettled) else None
        self.core.reply_received(taken, self.clock.now)
        if not self.core.idle:
            self._step()
        if self.core.idle:
            self._soon()

    def _call(self, call: SchedulerCall) -> None:
        master = self.world.master
        if isinstance(call, e.ClaimsProposed):
            proposed = c.ProposeClaims(proposal=call.proposal)
            self.world.log.emit(self.process.name, event_format.of_command(proposed))

        def serve(reply: Callable[[Any], None]) -> None:
            master.call(lambda number: replace(call, now=master.now(), call_id=number), reply)

        def finish(result: Any) -> None:
            if not self._over and not self.hangs:
                self._replied(result)

        self.world.network.call(self.process.name, serve, finish)


class SchedulerEnd(Peer):
    """The master's end of a subscription."""

    def __init__(self, master: MasterProcess, stream: Stream, session: int) -> None:
        self._master = master
        self._stream = stream
        self._session = session
        self._name = ""
        self._ready = False
        self._outbox: list[StateChanged] = []

    def put(self, message: StateChanged) -> None:
        if self._ready:
            self._stream.send_to_client(message)
        else:
            self._outbox.append(message)

    def drop(self) -> None:
        """The master ends the subscription."""
        self._stream.close_server()
        self.closed()

    def received(self, message: Any) -> None:
        if isinstance(message, _Subscribe) and not self._name:
            master, self._name = self._master, message.name
            master.scheduler_ends[self._name, self._session] = self
            event = e.SchedulerConnected(
                now=0.0,
                call_id=0,
                scheduler=self._name,
                session=self._session,
                followed=message.followed,
            )
            master.call(
                lambda number: replace(event, now=master.now(), call_id=number), self._replied
            )

    def closed(self) -> None:
        master, key = self._master, (self._name, self._session)
        if master.scheduler_ends.get(key) is self:
            del master.scheduler_ends[key]
            now, name = master.now(), self._name
            master.submit(e.SchedulerDisconnected(now=now, scheduler=name, session=self._session))

    def _replied(self, result: c.Reply | c.Refuse) -> None:
        key = (self._name, self._session)
        if self._master.scheduler_ends.get(key) is not self:
            return
        if isinstance(result, c.Refuse):
            del self._master.scheduler_ends[key]
            self._stream.close_server()
            return
        assert isinstance(result.result, Subscribed)
        self._ready = True
        self._stream.send_to_client(result.result)
        for message in self._outbox:
            self._stream.send_to_client(message)
