"""``hrm scheduler``: subscribes to a master, chooses on its copy of the state, proposes.

Several may run, on any machine that reaches the master, each under its own name. They take work off
the master's process: a policy that thinks long, a learned one say, holds up nobody but its own
jobs. The master works without any, and gives a lost one's jobs to another.

One task reads the stream and applies it in order; the other runs rounds. An answer is taken in only
after the messages that were sent before it (``core.scheduling.remote_scheduler``). The session ends
with its stream: everything is forgotten then, and the next one begins with a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
import zlib

import grpc
import grpc.aio
import structlog

from hrm import policies, rpc, tls
from hrm.config import SchedulerSettings
from hrm.core.messages.claims import Proposal
from hrm.core.messages.commands import LeaseGranted
from hrm.core.scheduling.replica import Replica
from hrm.core.scheduling.scheduler import Job, Scheduler
from hrm.core.vocabulary.model import Followed, WorkloadClass
from hrm.errors import (
    AlreadyExists,
    HrmError,
    InvalidRequest,
    PermissionDenied,
    Unavailable,
)
from hrm.v1 import scheduler_pb2 as pb
from hrm.v1 import scheduler_pb2_grpc
from hrm.wire import shared_state as state_wire

__all__ = ["Session", "run"]

SUBSCRIBE_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 15.0
"""Longer than the master's own limit, which answers with the reason."""
RECONNECT_DELAY_S = 0.2
INDICES = 10_000

log = structlog.get_logger("scheduler")


async def run(settings: SchedulerSettings) -> int:
    """Schedule until SIGTERM or SIGINT; answers the exit status.

    Raises:
        InvalidConfig: the policy, the token file or the authority's is not there.
        HrmError: the master refuses this scheduler for good: its name or its token,
            or cannot be trusted.
    """
    policies.load(settings.placement_policy)
    _open_channel(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    working = asyncio.create_task(_keep_up(settings))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
    log.info("stopped")
    return 0


def _open_channel(settings: SchedulerSettings) -> grpc.aio.Channel:
    """Its files are read anew for every try: a new master may have a new token."""
    token = rpc.read_token(settings.token_file)
    ca = tls.ca_file(settings.token_file, settings.tls_ca)
    allow = settings.allow_clear_text
    return rpc.channel(settings.master, token, tls.read_ca(ca), allow_clear_text=allow)


async def _keep_up(settings: SchedulerSettings) -> None:
    """One session after the other, with pauses that grow to a bound while no master answers."""
    delay_s = RECONNECT_DELAY_S
    jitter = random.Random()  # nosec B311 # noqa: S311 - spreads retries, guards nothing
    been_up, followed = False, Followed(0)
    proven = tls.ca_file(settings.token_file, settings.tls_ca) is not None
    while True:
        try:
            async with _open_channel(settings) as channel:
                session = await Session.open(channel, settings, followed)
                been_up, followed = True, session.followed
                delay_s = RECONNECT_DELAY_S
                await session.serve()
        except grpc.aio.AioRpcError as broken:
            error = rpc.error_from(broken, settings.master)
            # In clear text anything may answer in the place of a master that is down.
            certain = (PermissionDenied, InvalidRequest) if proven else ()
            if isinstance(error, (AlreadyExists, *certain)) and not been_up:
                raise error from broken
            log.warning("no session with the master", error=error.message)
        except Unavailable as error:
            log.warning("session ended", error=error.message)
        await asyncio.sleep(delay_s * jitter.uniform(0.5, 1.0))
        delay_s = min(2 * delay_s, settings.reconnect_delay_max_s)


class Session:
    """One subscription, from its snapshot to its end."""

    def __init__(
        self,
        stub: scheduler_pb2_grpc.SharedStateServiceStub,
        stream: grpc.aio.UnaryStreamCall[pb.SubscribeRequest, pb.SchedulerMessage],
        number: int,
        scheduler: Scheduler,
        followed: Followed,
    ) -> None:
        self.scheduler = scheduler
        self.followed = followed
        self.replica = Replica(scheduler)
        self._view = self.replica.state.view()
        self._stub = stub
        self._stream = stream
        self._number = number
        self._clock_offset_s = 0.0
        self._changed = asyncio.Condition()

    @classmethod
    async def open(
        cls,
        channel: grpc.aio.Channel,
        settings: SchedulerSettings,
        followed: Followed = Followed(0),  # noqa: B008 - it is frozen
    ) -> Session:
        stub = scheduler_pb2_grpc.SharedStateServiceStub(channel)
        stream = stub.Subscribe(state_wire.subscription(settings.name, followed))
        try:
            first = await asyncio.wait_for(stream.read(), SUBSCRIBE_TIMEOUT_S)
        except TimeoutError:
            stream.cancel()
            raise Unavailable(f"the master at {settings.master} does not answer") from None
        if not isinstance(first, pb.SchedulerMessage) or not first.HasField("subscribed"):
            raise Unavailable(f"the master at {settings.master} ended the subscription")
        hello = first.subscribed
        bounds = state_wire.to_bounds(hello)
        # Nobody numbers these processes; their names tell them apart.
        index = zlib.crc32(settings.name.encode()) % INDICES
        policy = policies.load(settings.placement_policy, index)
        log.info("subscribed", master=settings.master, epoch=hello.epoch, policy=policy.name)
        print(f"scheduler {settings.name} ready, master {settings.master}", flush=True)
        followed = Followed(hello.epoch, hello.epoch_id)
        return cls(stub, stream, hello.session, Scheduler(settings.name, policy, bounds), followed)

    async def serve(self) -> None:
        """Schedule until the session ends.

        Raises:
            Unavailable, grpc.aio.AioRpcError: how it ended.
        """
        reading = asyncio.create_task(self._read())
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait({reading, working}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, working):
                if task.done():
                    task.result()
        finally:
            for task in (reading, working):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, HrmError):
                    await task
            self._stream.cancel()

    async def _read(self) -> None:
        async for message in self._stream:
            change = state_wire.to_change(message.change)
            self._clock_offset_s = change.now - time.time()
            async with self._changed:
                self.replica.apply(change)
                self._changed.notify_all()
        raise Unavailable("the master ended the subscription")

    async def _work(self) -> None:
        while True:
            job = self.scheduler.next_job(self._now())
            if job is not None:
                await self._round(job)
                continue
            at_s = self.scheduler.next_time_s()
            timeout_s = None if at_s is None else max(0.0, at_s - self._now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s), self._changed:
                    await self._changed.wait()

    async def _round(self, job: Job) -> None:
        """Place one job, as far as it goes."""
        self._view.renew()
        view = self._view
        token = 0
        if job.workload_class is WorkloadClass.STREAM:
            lease = await self._acquire(job)
            current = self.scheduler.jobs.get(job.application_id)
            if lease is None or current is None:
                if lease is not None:
                    await self._give_back(lease.token)
                return
            job, token = current, lease.token
            view.renew()  # it came with the lease
            view.keep_open(lease.units)
        proposal = self.scheduler.choose(job, view, token, self._now())
        await self._propose(job, proposal)

    async def _acquire(self, job: Job) -> LeaseGranted | None:
        """The lease, once the state is as new as it; None where it is not to be had now."""
        request = state_wire.lease_request(self.scheduler.name, self._number, job.application_id)
        try:
            granted = await self._stub.AcquireLease(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._later(job, error)
            return None
        await self._reached(granted.sequence)
        return state_wire.to_lease(granted)

    async def _give_back(self, token: int) -> None:
        request = state_wire.lease_return(self.scheduler.name, self._number, token)
        # Refused: its time was over. Lost: its time ends.
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._stub.ReleaseLease(request, timeout=CALL_TIMEOUT_S)

    async def _propose(self, job: Job, proposal: Proposal) -> None:
        request = state_wire.from_proposal(proposal, self._number, job.policy_fault)
        try:
            answer = await self._stub.Propose(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._later(job, error)
            return
        await self._reached(answer.sequence)
        left = self.scheduler.jobs.get(job.application_id)
        if left is not None:
            outcomes = state_wire.to_outcomes(answer, proposal.claims)
            self.scheduler.settle(left, outcomes, self._now())

    def _later(self, job: Job, error: grpc.aio.AioRpcError) -> None:
        """The call failed: if the session is over its stream says so; else the job backs off."""
        log.warning("call failed", application=job.application_id, error=error.details())
        current = self.scheduler.jobs.get(job.application_id)
        if current is not None:
            self.scheduler.settle(current, [], self._now())

    async def _reached(self, sequence: int) -> None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S), self._changed:
                await self._changed.wait_for(lambda: self.replica.sequence >= sequence)
        except TimeoutError:
            raise Unavailable("the master's changes do not arrive") from None

    def _now(self) -> float:
        """The master's clock."""
        return time.time() + self._clock_offset_s
