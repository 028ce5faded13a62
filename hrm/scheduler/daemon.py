"""``hrm scheduler``: subscribes to a master, chooses on its copy of the state, proposes claims.

Several may run, on any machine that reaches the master, each under its own name: a slow policy,
such as a learned one, delays only its own jobs. The master gives the jobs of a lost one to another.

What a session does is in ``hrm.core.scheduling.session``; here one task reads its stream, and
another makes the calls that it requests. The next session begins with a snapshot.
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
from hrm.core.messages.events import ClaimsProposed, LeaseRequested, LeaseReturned
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.scheduling.session import (
    CALL_TIMEOUT_S,
    SchedulerCall,
    SchedulerReply,
    SchedulerSession,
)
from hrm.core.vocabulary import retries
from hrm.core.vocabulary.backoff import Backoff
from hrm.core.vocabulary.model import Followed
from hrm.errors import HrmError, Unavailable
from hrm.v1 import scheduler_pb2 as pb
from hrm.v1 import scheduler_pb2_grpc
from hrm.wire import shared_state as state_wire

__all__ = ["Session", "run"]

SUBSCRIBE_TIMEOUT_S = 10.0
RECONNECT_DELAY_S = 0.2
INDICES = 10_000

log = structlog.get_logger("scheduler")


async def run(settings: SchedulerSettings) -> int:
    """Schedule until SIGTERM or SIGINT; returns the exit status.

    Raises:
        InvalidConfig: the policy, the token file or the certificate authority's file is missing.
        HrmError: the master permanently refuses this scheduler, its name or its token, or cannot
            be trusted.
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
    """The files are read again for every try: a new master may have a new token."""
    token = rpc.read_token(settings.token_file)
    ca = tls.ca_file(settings.token_file, settings.tls_ca)
    allow = settings.allow_clear_text
    return rpc.channel(settings.master, token, tls.read_ca(ca), allow_clear_text=allow)


async def _keep_up(settings: SchedulerSettings) -> None:
    """One session after another, with pauses that grow to a bound while no master responds."""
    backoff = Backoff(RECONNECT_DELAY_S, settings.reconnect_delay_max_s, random.random)
    been_up, followed = False, Followed(0)
    proven = tls.ca_file(settings.token_file, settings.tls_ca) is not None
    while True:
        try:
            async with _open_channel(settings) as channel:
                session = await Session.open(channel, settings, followed)
                been_up, followed = True, session.followed
                backoff.succeeded()
                await session.serve()
        except grpc.aio.AioRpcError as broken:
            error = rpc.error_from(broken, settings.master)
            if not retries.SCHEDULER.allows(error, known=been_up, certain=proven):
                raise error from broken
            log.warning("no session with the master", error=error.message)
        except Unavailable as error:
            log.warning("session ended", error=error.message)
        await asyncio.sleep(backoff.pause_s())


class Session:
    """One subscription, from its snapshot to its end."""

    def __init__(
        self,
        stub: scheduler_pb2_grpc.SharedStateServiceStub,
        stream: grpc.aio.UnaryStreamCall[pb.SubscribeRequest, pb.SchedulerMessage],
        core: SchedulerSession,
        followed: Followed,
    ) -> None:
        self.core = core
        self.followed = followed
        self._stub = stub
        self._stream = stream
        self._changed = asyncio.Event()

    @classmethod
    async def open(
        cls,
        channel: grpc.aio.Channel,
        settings: SchedulerSettings,
        followed: Followed = Followed(0),  # noqa: B008 - it is frozen
    ) -> Session:
        """Subscribe, and wait for the master's first message.

        Raises:
            Unavailable: no message within ``SUBSCRIBE_TIMEOUT_S``, or the stream ended at once.
            InvalidConfig: the placement policy cannot be loaded.
            grpc.aio.AioRpcError: the master refuses the call, or the connection breaks.
        """
        stub = scheduler_pb2_grpc.SharedStateServiceStub(channel)
        stream = stub.Subscribe(state_wire.subscription(settings.name, followed))
        try:
            first = await asyncio.wait_for(stream.read(), SUBSCRIBE_TIMEOUT_S)
        except TimeoutError:
            stream.cancel()
            raise Unavailable(f"the master at {settings.master} does not answer") from None
        if not isinstance(first, pb.SchedulerMessage) or not first.HasField("subscribed"):
            raise Unavailable(f"the master at {settings.master} ended the subscription")
        hello = state_wire.to_subscribed(first.subscribed)
        # These processes have no numbers; their names distinguish them.
        index = zlib.crc32(settings.name.encode()) % INDICES
        policy = policies.load(settings.placement_policy, index)
        log.info(
            "subscribed", master=settings.master, epoch=hello.followed.epoch, policy=policy.name
        )
        print(f"scheduler {settings.name} ready, master {settings.master}", flush=True)
        scheduler = Scheduler(settings.name, policy, hello.bounds)
        return cls(stub, stream, SchedulerSession(scheduler, hello.session), hello.followed)

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
            self.core.changed(state_wire.to_change(message.change), time.time())
            self._changed.set()
        raise Unavailable("the master ended the subscription")

    async def _work(self) -> None:
        while True:
            self._changed.clear()
            call = self.core.step(time.time())
            if call is not None:
                reply = await self._make(call)
                self.core.reply_received(reply, time.time())
                continue
            due_s = self.core.due_s()
            timeout_s = None if due_s is None else max(0.0, due_s - time.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()

    async def _make(self, call: SchedulerCall) -> SchedulerReply | None:
        """The master's reply; None: it refuses, or gives none in time. If the session is over, its
        stream reports that."""
        stub, limit_s = self._stub, CALL_TIMEOUT_S
        try:
            match call:
                case LeaseRequested():
                    lease = state_wire.from_lease_request(call)
                    return state_wire.to_lease(await stub.AcquireLease(lease, timeout=limit_s))
                case ClaimsProposed():
                    claims = state_wire.from_proposal(call)
                    outcomes = await stub.Propose(claims, timeout=limit_s)
                    return state_wire.to_settled(outcomes, call.proposal.claims)
                case LeaseReturned():
                    returned = state_wire.from_lease_return(call)
                    await stub.ReleaseLease(returned, timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            log.warning("call failed", call=type(call).__name__, error=error.details())
        return None
