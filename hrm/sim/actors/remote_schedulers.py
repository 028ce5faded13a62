"""A scheduler of another process in virtual time, and the master's end of its subscription.

It does what ``hrm scheduler`` does: subscribes, takes changes in, in order, chooses on its replica,
asks for the lease, proposes, and takes an answer in only after the changes sent before it. Calls
and stream go through the network; the session ends with its stream, and with it all that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.messages.state_changes import StateChanged
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import ApplicationId, Followed, WorkloadClass
from hrm.sim import event_format
from hrm.sim.actors.policies import load
from hrm.sim.faults.network import CALL_TIMEOUT_S, Stream
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


@dataclass(frozen=True, slots=True)
class _Subscribed:
    """The master's first message."""

    epoch: int
    epoch_id: str
    session: int
    bounds: Bounds


class RemoteSchedulerProcess:
    """One remote scheduler over all its lives.

    ``up``: its process lives. ``at_lease``: what happens to it when it is next given the lease.
    """

    def __init__(self, world: World, plan: RemotePlan) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.clock = world.clock_of(plan.name)
        self.up = False
        self.at_lease: Callable[[], None] | None = None
        self.followed: Followed | None = None
        self.delay_s = _RECONNECT_S
        self._session: _Session | None = None

    def start(self) -> None:
        self.at_lease = None
        if self._session is not None and self._session.hangs:
            self.crash(0.1)
        elif not self.up:
            self.up = True
            self.delay_s = _RECONNECT_S
            self._connect()

    def crash(self, back_s: float) -> None:
        """Its process dies, and another is started ``back_s`` later."""
        self.at_lease = None
        if not self.up:
            return
        self.world.log.say(self.name, "scheduler crashes")
        self.world.sleepers.died(self.name)
        self.up = False
        self.followed = None
        if self._session is not None:
            self._session.leave()
            self._session = None
        self.world.clock.after(back_s, self.start)

    def hang(self) -> None:
        """Its connection stays, and nothing comes of it."""
        if self._session is not None:
            self.world.log.say(self.name, "scheduler hangs")
            self._session.hangs = True

    def session_over(self, session: _Session) -> None:
        """Subscribe anew after a pause that grows."""
        if self._session is session:
            self._session = None
            delay_s, self.delay_s = self.delay_s, min(_RECONNECT_MAX_S, 2 * self.delay_s)
            self.clock.after(delay_s * self.world.chance.uniform(0.5, 1.0), self._connect)

    def behind(self) -> str:
        """Why it is not yet where the master is; empty when it is."""
        core, session = self.world.master.core, self._session
        book = None if core is None else core.placement.schedulers.get(self.name)
        if session is None or session.replica is None or not isinstance(book, RemoteScheduler):
            return f"{self.name} is not subscribed"
        if session.number != book.session or session.replica.sequence != book.sequence:
            return f"{self.name} has message {session.replica.sequence}, not {book.sequence}"
        return ""

    def _connect(self) -> None:
        if self.up and self._session is None:
            self._session = _Session(self)
            self._session.begin()


class _Session:
    """One subscription, from its beginning to its end."""

    def __init__(self, outside: RemoteSchedulerProcess) -> None:
        self.outside = outside
        self.world = outside.world
        self.clock = outside.clock
        self.hangs = False
        self.number = 0
        self.replica: Replica | None = None
        self._over = False
        self._busy = False
        self._epoch = 0
        self._offset_s = 0.0
        self._alarm = 0
        self._until: tuple[int, Callable[[], None]] | None = None
        self._stream = Stream(self.world.network, outside.name, self, strict=True)

    def begin(self) -> None:
        self.world.master.accept_scheduler(self._stream)
        self._stream.send_to_server(_Subscribe(self.outside.name, self.outside.followed))
        self.clock.after(_SUBSCRIBE_TIMEOUT_S, self._check)

    def leave(self) -> None:
        if not self._over:
            self._over = True
            self._stream.close_client()

    # --- what arrives ---------------------------------------------------------------------------

    def received(self, message: Any) -> None:
        if self._over:
            return
        if isinstance(message, _Subscribed):
            self.number, self._epoch = message.session, message.epoch
            self.outside.followed = Followed(message.epoch, message.epoch_id)
            policy = load(self.outside.plan.policy, message.session)
            self.replica = Replica(Scheduler(self.outside.name, policy, message.bounds))
            self.outside.delay_s = _RECONNECT_S
            self.world.log.say(self.outside.name, f"subscribed as {self.number}")
        elif isinstance(message, StateChanged) and self.replica is not None:
            self._offset_s = message.now - self.clock.now
            self.world.log.say(self.outside.name, f"takes in {event_format.of_change(message)}")
            self.replica.apply(message)
            self.world.oracle.copies.taken(
                self.outside.name, self._epoch, self.number, self.replica
            )
            if self._until is not None and self.replica.sequence >= self._until[0]:
                (_, then), self._until = self._until, None
                then()
            self._soon()

    def closed(self) -> None:
        if not self._over:
            self._over = True
            self.outside.session_over(self)

    def ghost(self, message: Any) -> None:
        """Subscriptions keep order: what comes after their end is dropped."""

    def _check(self) -> None:
        """A subscription that nobody answers is given up."""
        if not self._over and self.replica is None:
            self._give_up()

    def _give_up(self) -> None:
        if not self._over:
            self.leave()
            self.outside.session_over(self)

    # --- rounds ---------------------------------------------------------------------------------

    def _now(self) -> float:
        """The master's clock, as late as the latest message was."""
        return self.clock.now + self._offset_s

    def _soon(self) -> None:
        self.clock.after(0.0, self._round)

    def _round(self) -> None:
        if self._over or self.hangs or self._busy or self.replica is None:
            return
        scheduler = self.replica.scheduler
        job = scheduler.next_job(self._now())
        if job is None:
            at_s = scheduler.next_time_s()
            if at_s is not None:
                self._alarm += 1
                delay_s = max(0.001, at_s - self._now())
                self.clock.after(delay_s, self._rung, self._alarm)
            return
        self._busy = True
        if job.workload_class is WorkloadClass.BATCH:
            self._propose(job, None)
            return
        application_id = job.application_id
        event = e.LeaseRequested(
            now=0.0,
            call_id=0,
            scheduler=self.outside.name,
            session=self.number,
            application_id=application_id,
        )
        self._call(event, lambda answer: self._leased(application_id, answer))

    def _rung(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._round()

    def _leased(self, application_id: ApplicationId, answer: Any) -> None:
        granted = answer.answer if isinstance(answer, c.Reply) else None
        if not isinstance(granted, c.LeaseGranted):
            self._later(application_id)
            return
        if self.outside.at_lease is not None:
            strike, self.outside.at_lease = self.outside.at_lease, None
            strike()
            return
        self._reached(granted.sequence, lambda: self._go_on(application_id, granted))

    def _go_on(self, application_id: ApplicationId, lease: c.LeaseGranted) -> None:
        assert self.replica is not None
        job = self.replica.scheduler.jobs.get(application_id)
        if job is not None:
            self._propose(job, lease)
            return
        event = e.LeaseReturned(
            now=0.0,
            call_id=0,
            scheduler=self.outside.name,
            session=self.number,
            token=lease.token,
        )
        self._call(event, lambda _: self._idle())

    def _propose(self, job: Job, lease: c.LeaseGranted | None) -> None:
        assert self.replica is not None
        view = self.replica.state.view()
        view.keep_open(lease.units if lease else None)
        token = lease.token if lease else 0
        proposal = self.replica.scheduler.choose(job, view, token, self._now())
        self.world.log.say(
            self.outside.name, event_format.of_command(c.ProposeClaims(proposal=proposal))
        )
        event = e.ClaimsProposed(
            now=0.0,
            proposal=proposal,
            call_id=0,
            session=self.number,
            problem=job.policy_fault,
        )
        self._call(event, lambda answer: self._settled(proposal, answer))

    def _settled(self, proposal: Proposal, answer: Any) -> None:
        settled = answer.answer if isinstance(answer, c.Reply) else None
        if not isinstance(settled, c.ClaimsSettled):
            self._later(proposal.application_id)
            return

        def settle() -> None:
            assert self.replica is not None
            left = self.replica.scheduler.jobs.get(proposal.application_id)
            if left is not None:
                self.replica.scheduler.settle(left, list(settled.outcomes), self._now())
            self._idle()

        self._reached(settled.sequence, settle)

    def _later(self, application_id: ApplicationId) -> None:
        """The call failed: the job backs off."""
        assert self.replica is not None
        job = self.replica.scheduler.jobs.get(application_id)
        if job is not None:
            self.replica.scheduler.settle(job, [], self._now())
        self._idle()

    def _idle(self) -> None:
        self._busy = False
        self._soon()

    def _call(
        self,
        event: e.LeaseRequested | e.LeaseReturned | e.ClaimsProposed,
        answered: Callable[[Any], None],
    ) -> None:
        master = self.world.master

        def serve(reply: Callable[[Any], None]) -> None:
            master.call(lambda number: replace(event, now=master.now(), call_id=number), reply)

        def finish(answer: Any) -> None:
            if not self._over and not self.hangs:
                answered(answer)

        self.world.network.call(self.outside.name, serve, finish)

    def _reached(self, sequence: int, then: Callable[[], None]) -> None:
        """Go on once the changes up to this one are taken in; the session ends if they are not."""
        assert self.replica is not None
        if self.replica.sequence >= sequence:
            then()
            return
        waiting = self._until = (sequence, then)

        def overdue() -> None:
            if self._until is waiting:
                self._give_up()

        self.clock.after(CALL_TIMEOUT_S, overdue)


class SchedulerEnd:
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
            master.call(
                lambda call_id: e.SchedulerConnected(
                    now=master.now(),
                    call_id=call_id,
                    scheduler=self._name,
                    session=self._session,
                    followed=message.followed,
                ),
                self._answered,
            )

    def closed(self) -> None:
        master, key = self._master, (self._name, self._session)
        if master.scheduler_ends.get(key) is self:
            del master.scheduler_ends[key]
            master.submit(
                e.SchedulerDisconnected(
                    now=master.now(), scheduler=self._name, session=self._session
                )
            )

    def ghost(self, message: Any) -> None:
        """The master's old lives are over: nothing reaches them."""

    def _answered(self, answer: c.Reply | c.Refuse) -> None:
        key = (self._name, self._session)
        if self._master.scheduler_ends.get(key) is not self:
            return
        if isinstance(answer, c.Refuse):
            del self._master.scheduler_ends[key]
            self._stream.close_server()
            return
        core = self._master.core
        assert core is not None
        bounds = core.master_state.bounds
        hello = Bounds(
            waiting_limit=bounds.waiting_limit,
            wait_max_s=bounds.wait_max_s,
            default_duration_s=bounds.default_duration_s,
            retry_delay_s=bounds.retry_delay_s,
            retry_delay_max_s=bounds.retry_delay_max_s,
        )
        self._ready = True
        self._stream.send_to_client(
            _Subscribed(core.epoch, core.master_state.epoch_id, self._session, hello)
        )
        for message in self._outbox:
            self._stream.send_to_client(message)
