"""The agent's stream to the master for pipelines: kept up for ever, with pauses up to a bound.

While it is down the node works on; what was not acknowledged is said again after the next
registration. A result is read from its file piece by piece, as fast as the stream takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable

import grpc
import structlog

from hrm import rpc
from hrm.errors import HrmError, Unavailable
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc

__all__ = ["PipelineLink"]

_REGISTER_LIMIT_S = 10.0
_DELAY_S = 0.2
_QUEUE_MAX = 10_000
_log = structlog.get_logger("hrm.agent.pipelines")

_Item = Iterable[pb.NodePipelineMessage] | None


class PipelineLink:
    """One agent's connection. All of it belongs to the event loop."""

    def __init__(
        self,
        *,
        target: str,
        read_token: Callable[[], str],
        register: Callable[[], pb.RegisterPipelineNode],
        on_up: Callable[[], None],
        on_message: Callable[[pb.MasterPipelineMessage], None],
        load: Callable[[], pb.PipelineLoad],
        delay_max_s: float,
    ) -> None:
        self._target = target
        self._read_token = read_token
        self._register = register
        self._on_up = on_up
        self._on_message = on_message
        self._load = load
        self._delay_max_s = delay_max_s
        self._queue: asyncio.Queue[_Item] | None = None
        self._up = False
        self._closing = asyncio.Event()
        self._jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing

    def send(self, *messages: pb.NodePipelineMessage) -> None:
        self.send_each(messages)

    def send_each(self, messages: Iterable[pb.NodePipelineMessage]) -> None:
        """Send when the stream takes them; dropped while it is down."""
        if self._queue is None or not self._up:
            return
        if self._queue.qsize() >= _QUEUE_MAX:
            _log.warning("the master does not keep up; connecting again", messages=_QUEUE_MAX)
            self._end_stream()
            return
        self._queue.put_nowait(messages)

    def _end_stream(self) -> None:
        if self._queue is not None:
            self._queue.put_nowait(None)
            self._queue = None

    async def run(self) -> None:
        """Stay connected until ``close``."""
        delay_s = _DELAY_S
        while not self._closing.is_set():
            try:
                await self._session()
                problem: HrmError = Unavailable(f"the master at {self._target} ended the stream")
            except HrmError as error:
                problem = error
            except asyncio.CancelledError:
                # gRPC says so, too, of a call that it gave up: what was to be sent had failed.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                problem = HrmError("this side failed to say something and gave the stream up")
            except Exception as error:
                # A bug on this side. A node that falls silent would be given up; one that comes
                # back is told everything anew.
                _log.exception("the stream for pipelines failed")
                problem = HrmError(f"this side failed: {error!r}")
            if self._closing.is_set():
                return
            if self._up:
                delay_s = _DELAY_S
            self._up = False
            _log.warning("no stream for pipelines; trying on", why=problem.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s * self._jitter.uniform(0.5, 1.0)):
                    await self._closing.wait()
            delay_s = min(self._delay_max_s, delay_s * 2)

    async def _session(self) -> None:
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        self._queue = queue
        queue.put_nowait([pb.NodePipelineMessage(register=self._register())])
        async with rpc.channel(self._target, self._read_token()) as channel:
            call = pipeline_pb2_grpc.PipelineServiceStub(channel).Connect(_drained(queue))
            tasks: list[asyncio.Task[None]] = []
            try:
                messages = aiter(call)
                async with asyncio.timeout(_REGISTER_LIMIT_S):
                    first = await anext(messages)
                self._up = True
                self._on_up()
                tasks = [
                    asyncio.create_task(self._read(messages)),
                    asyncio.create_task(self._beat(first.registered.heartbeat_interval_s)),
                ]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            except TimeoutError:
                raise Unavailable(
                    f"the master at {self._target} did not answer the registration"
                ) from None
            except StopAsyncIteration:
                raise Unavailable(f"the master at {self._target} ended the stream") from None
            except grpc.RpcError as error:
                raise rpc.error_from(error, self._target) from error
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                call.cancel()
                self._end_stream()

    async def _read(self, messages: AsyncIterator[pb.MasterPipelineMessage]) -> None:
        async for message in messages:
            try:
                self._on_message(message)
            except HrmError as error:
                _log.warning("refused a message of the master", why=error.message)

    async def _beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(max(0.05, interval_s))
            self.send(pb.NodePipelineMessage(load=self._load()))

    async def close(self, limit_s: float) -> None:
        """Send what is queued, then end the stream."""
        self._closing.set()
        queue = self._queue
        self._end_stream()
        if queue is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await queue.join()


async def _drained(queue: asyncio.Queue[_Item]) -> AsyncIterator[pb.NodePipelineMessage]:
    while True:
        item = await queue.get()
        # An item counts as done when the next is asked for: by then it has left this process.
        if item is None:
            queue.task_done()
            return
        for message in item:
            yield message
        queue.task_done()
