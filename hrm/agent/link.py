"""The agent's stream to the master: kept up for ever, with pauses that grow to a bound.

Messages are sent while a stream is up and dropped while it is down: a registration carries the full
list of containers, a heartbeat repeats it, so nothing that matters exists in one message alone.

Whether a failure is worth another try: an unreachable, slow or restarting master is. A name that
belongs to another live agent never is. A wrong token or a refused field is not at the first
contact, when it is a mistake in the set-up; later it is, because a new master may have a new token,
which is read from its file for every try, and executors must not die of that.

A heartbeat that cannot be made is a bug on this side. A node that falls silent on an open stream
would be given up with all that runs there, so the session ends with the reason in the log, and the
next registration repeats the full list.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import grpc
import structlog

from hrm import rpc
from hrm.errors import (
    AlreadyExists,
    HrmError,
    InvalidRequest,
    PermissionDenied,
    StaleEpoch,
    Unavailable,
)
from hrm.v1 import node_pb2, node_pb2_grpc

__all__ = ["Link"]

_REGISTER_LIMIT_S = 10.0
_DELAY_S = 0.2
_QUEUE_MAX = 10_000
_LOG_PERIOD_S = 30.0
_log = structlog.get_logger("hrm.agent.link")


class _HeartbeatFailed(HrmError):
    """This side cannot say how it is."""


class Link:
    """One agent's connection. ``send`` and all callbacks belong to the event loop."""

    def __init__(
        self,
        *,
        target: str,
        read_token: Callable[[], str],
        register: Callable[[], node_pb2.RegisterNode],
        on_message: Callable[[node_pb2.MasterMessage], None],
        on_up: Callable[[int, bool], None],
        on_down: Callable[[], None],
        heartbeat: Callable[[], None],
        delay_max_s: float,
    ) -> None:
        """``on_up(epoch, first)`` follows every accepted registration."""
        self._target = target
        self._read_token = read_token
        self._register = register
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._heartbeat = heartbeat
        self._delay_max_s = delay_max_s
        self._queue: asyncio.Queue[node_pb2.NodeMessage | None] | None = None
        self._sequence = 0
        self._epoch = 0
        self._was_up = False
        self._was_up_this_time = False
        self._hurried = False
        self._ended = asyncio.Event()
        self._logged_at_s = 0.0
        self._jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing

    def send(self, message: node_pb2.NodeMessage) -> None:
        """Send if a stream is up. One that cannot keep up is cut, and starts afresh."""
        if self._queue is None:
            return
        if self._queue.qsize() >= _QUEUE_MAX:
            _log.warning("the master does not keep up; connecting again", messages=_QUEUE_MAX)
            self._close_queue()
            return
        self._sequence += 1
        message.sequence = self._sequence
        self._queue.put_nowait(message)

    def reconnect(self) -> None:
        """End the stream once all is said, and register again at once."""
        self._hurried = True
        self._close_queue()

    def _close_queue(self) -> None:
        if self._queue is not None:
            self._queue.put_nowait(None)
            self._queue = None

    async def run(self) -> None:
        """Stay connected until ``close``. Raises the HrmError that no retry can heal."""
        delay_s = _DELAY_S
        while not self._ended.is_set():
            self._was_up_this_time = False
            try:
                await self._session()
                problem: HrmError = Unavailable(f"the master at {self._target} ended the stream")
            except HrmError as error:
                if self._is_fatal(error):
                    raise
                problem = error
            if self._ended.is_set():
                return
            if self._was_up_this_time and not isinstance(problem, _HeartbeatFailed):
                delay_s = _DELAY_S
            if self._hurried:
                self._hurried = False
                continue
            self._say(problem)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s * self._jitter.uniform(0.5, 1.0)):
                    await self._ended.wait()
            delay_s = min(self._delay_max_s, delay_s * 2)

    def _is_fatal(self, error: HrmError) -> bool:
        if isinstance(error, PermissionDenied | InvalidRequest):
            return not self._was_up
        return isinstance(error, AlreadyExists)

    def _say(self, problem: HrmError) -> None:
        now = asyncio.get_running_loop().time()
        if self._logged_at_s == 0.0 or now - self._logged_at_s >= _LOG_PERIOD_S:
            self._logged_at_s = now
            _log.warning("no master; trying on, containers run on", why=problem.message)

    async def _session(self) -> None:
        """One stream from registration to its end."""
        queue: asyncio.Queue[node_pb2.NodeMessage | None] = asyncio.Queue()
        self._queue = queue
        self.send(node_pb2.NodeMessage(register=self._register()))
        async with rpc.channel(self._target, self._read_token()) as channel:
            stub = node_pb2_grpc.NodeServiceStub(channel)
            call = stub.Connect(_drained(queue))
            tasks: list[asyncio.Task[None]] = []
            up = False
            try:
                messages = aiter(call)
                registered = await self._registered(messages)
                up = self._was_up_now(registered)
                interval_s = registered.registered.heartbeat_interval_s
                tasks = [
                    asyncio.create_task(self._read(messages)),
                    asyncio.create_task(self._beat(interval_s)),
                ]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            except grpc.RpcError as error:
                raise rpc.error_from(error, self._target) from error
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                call.cancel()
                self._close_queue()
                if up:
                    self._on_down()

    async def _registered(
        self, messages: AsyncIterator[node_pb2.MasterMessage]
    ) -> node_pb2.MasterMessage:
        try:
            async with asyncio.timeout(_REGISTER_LIMIT_S):
                message = await anext(messages)
        except TimeoutError as error:
            raise Unavailable(
                f"the master at {self._target} did not answer the registration within "
                f"{_REGISTER_LIMIT_S:.0f} s"
            ) from error
        except StopAsyncIteration as error:
            raise Unavailable(f"the master at {self._target} ended the stream") from error
        if message.WhichOneof("message") != "registered":
            raise Unavailable(f"{self._target} does not speak as an HRM master")
        if message.epoch < self._epoch:
            raise StaleEpoch(
                f"the master at {self._target} has epoch {message.epoch}, this node has followed "
                f"{self._epoch}; waiting for the newer one"
            )
        return message

    def _was_up_now(self, registered: node_pb2.MasterMessage) -> bool:
        first = not self._was_up
        self._was_up = self._was_up_this_time = True
        self._logged_at_s = 0.0
        self._epoch = registered.epoch
        self._on_up(registered.epoch, first)
        return True

    def _take(self, message: node_pb2.MasterMessage) -> None:
        self._epoch = max(self._epoch, message.epoch)
        try:
            self._on_message(message)
        except HrmError as error:
            _log.warning("refused a message of the master", why=error.message)

    async def _read(self, messages: AsyncIterator[node_pb2.MasterMessage]) -> None:
        async for message in messages:
            self._take(message)

    async def _beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(max(0.05, interval_s))
            try:
                self._heartbeat()
            except Exception as error:
                _log.exception("cannot make a heartbeat; registering again")
                raise _HeartbeatFailed(f"a heartbeat failed: {error!r}") from error

    async def close(self, limit_s: float) -> None:
        """Send what is queued, then end the stream."""
        self._ended.set()
        queue = self._queue
        self._close_queue()
        if queue is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await queue.join()


async def _drained(
    queue: asyncio.Queue[node_pb2.NodeMessage | None],
) -> AsyncIterator[node_pb2.NodeMessage]:
    while True:
        message = await queue.get()
        # A message counts as done when the next is asked for: by then it has left this process.
        if message is None:
            queue.task_done()
            return
        yield message
        queue.task_done()
