"""The common part of an agent's streams to the master: one at a time, reopened when it ends.

Both ends send a registration first, then any messages. A master that does not keep up with the
bounded queue is disconnected, and receives the whole state again after the next registration. After
a failure the next try waits for a time that doubles up to a bound, with jitter.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from hrm import rpc
from hrm.core.vocabulary.backoff import Backoff
from hrm.errors import Unavailable

__all__ = ["MasterStream"]

_DELAY_S = 0.2
_REGISTER_LIMIT_S = 10.0
_QUEUE_MAX = 10_000

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class MasterStream(abc.ABC, Generic[Sent, Received]):
    """One stream, and the next. All of it belongs to the event loop."""

    def __init__(
        self,
        *,
        target: str,
        open_channel: Callable[[], grpc.aio.Channel],
        delay_max_s: float,
        log: Any,
    ) -> None:
        self._target = target
        self._open_channel = open_channel
        self._backoff = Backoff(_DELAY_S, delay_max_s, random.random)
        self._log = log
        self._queue: asyncio.Queue[Iterable[Sent] | None] | None = None
        self._closing = asyncio.Event()

    @abc.abstractmethod
    def _connect(self, channel: grpc.aio.Channel, outgoing: AsyncIterator[Sent]) -> Any:
        """The call that sends all of ``outgoing``; an async iterable of the master's messages."""

    @abc.abstractmethod
    def _registration(self) -> Sent:
        """The first message."""

    @abc.abstractmethod
    def _registered(self, message: Received) -> float:
        """Take in the master's first message; returns the seconds between heartbeats."""

    @abc.abstractmethod
    def _take(self, message: Received) -> None:
        """Take in every other message."""

    @abc.abstractmethod
    def _beat(self) -> None:
        """Send a heartbeat."""

    def _ended(self) -> None:
        """A stream has ended, registered or not."""

    def _takes_more(self) -> bool:
        """Is there a stream that accepts messages? One that falls behind is closed and reopened."""
        if self._queue is None:
            return False
        if self._queue.qsize() >= _QUEUE_MAX:
            self._log.warning("the master does not keep up; reconnecting", messages=_QUEUE_MAX)
            self._end_stream()
            return False
        return True

    def _enqueue(self, messages: Iterable[Sent]) -> None:
        """Queue a message that ``_takes_more`` has admitted."""
        assert self._queue is not None
        self._queue.put_nowait(messages)

    def _end_stream(self) -> None:
        """End the stream once all is sent."""
        if self._queue is not None:
            self._queue.put_nowait(None)
            self._queue = None

    async def _pause(self) -> None:
        """Wait until the next attempt is due, or until ``close``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.pause_s()):
                await self._closing.wait()

    async def _session(self) -> None:
        """One stream from registration to its end. Raises the HrmError that ended it."""
        queue: asyncio.Queue[Iterable[Sent] | None] = asyncio.Queue()
        self._queue = queue
        self._enqueue((self._registration(),))
        async with self._open_channel() as channel:
            call = self._connect(channel, _drained(queue))
            tasks: list[asyncio.Task[None]] = []
            try:
                messages = aiter(call)
                interval_s = self._registered(await self._first(messages))
                tasks = [
                    asyncio.create_task(self._read(messages)),
                    asyncio.create_task(self._keep_alive(interval_s)),
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
                self._end_stream()
                self._ended()

    async def _first(self, messages: AsyncIterator[Received]) -> Received:
        try:
            async with asyncio.timeout(_REGISTER_LIMIT_S):
                return await anext(messages)
        except TimeoutError as error:
            raise Unavailable(
                f"the master at {self._target} did not reply to the registration within "
                f"{_REGISTER_LIMIT_S:.0f} s"
            ) from error
        except StopAsyncIteration as error:
            raise Unavailable(f"the master at {self._target} ended the stream") from error

    async def _read(self, messages: AsyncIterator[Received]) -> None:
        async for message in messages:
            self._take(message)

    async def _keep_alive(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(max(0.05, interval_s))
            self._beat()

    async def close(self, limit_s: float) -> None:
        """Send what is queued, then end the stream."""
        self._closing.set()
        queue = self._queue
        self._end_stream()
        if queue is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await queue.join()


async def _drained(queue: asyncio.Queue[Iterable[Sent] | None]) -> AsyncIterator[Sent]:
    while True:
        item = await queue.get()
        # An item counts as done when the next is requested: by then it has left this process.
        if item is None:
            queue.task_done()
            return
        for message in item:
            yield message
        queue.task_done()
