"""A worker's stream to the master: kept up permanently, with pauses up to a bound.

While it is down the worker continues; what was not acknowledged is sent again after the next
registration. All failures are retried: whoever wants the worker to end has its container ended, and
one whose master does not come back ends itself (``runtime``). A result is read from its file piece
by piece, as fast as the stream accepts it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc.aio
import structlog

from hrm.agent.stream import MasterStream
from hrm.errors import HrmError, Unavailable
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc
from hrm.wire import pipeline_stream

__all__ = ["WorkerLink"]

_log = structlog.get_logger("hrm.pipelines.worker")


class WorkerLink(MasterStream[pb.NodePipelineMessage, pb.MasterPipelineMessage]):
    """All of it belongs to the event loop."""

    def __init__(
        self,
        *,
        target: str,
        open_channel: Callable[[], grpc.aio.Channel],
        register: Callable[[], pb.RegisterPipelineNode],
        on_up: Callable[[bytes], None],
        on_message: Callable[[pb.MasterPipelineMessage], None],
        load: Callable[[], pb.PipelineLoad],
        delay_max_s: float,
    ) -> None:
        super().__init__(
            target=target, open_channel=open_channel, delay_max_s=delay_max_s, log=_log
        )
        self._register = register
        self._on_up = on_up
        self._on_message = on_message
        self._load = load
        self._up = False
        self._down_since_s = time.monotonic()

    @property
    def down_s(self) -> float:
        """Since when there is no stream; 0 while there is one."""
        return 0.0 if self._up else time.monotonic() - self._down_since_s

    def send(self, *messages: pb.NodePipelineMessage) -> None:
        self.send_each(messages)

    def send_each(self, messages: Iterable[pb.NodePipelineMessage]) -> None:
        """Send as the stream accepts them; dropped while it is down."""
        if self._up and self._takes_more():
            self._enqueue(messages)

    async def run(self) -> None:
        """Stay connected until ``close``."""
        while not self._closing.is_set():
            try:
                await self._session()
                problem: HrmError = Unavailable(f"the master at {self._target} ended the stream")
            except HrmError as error:
                problem = error
            except asyncio.CancelledError:
                # gRPC raises this, too, for a call that it cancelled because sending failed.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                problem = HrmError("sending failed on this side, and the stream was closed")
            except Exception as error:
                # A bug on this side. The master would declare a silent worker lost; one that
                # reconnects gets the full state again.
                _log.exception("the stream to the master failed")
                problem = HrmError(f"this side failed: {error!r}")
            if self._closing.is_set():
                return
            if self._up:
                self._backoff.succeeded()
                self._down_since_s = time.monotonic()
            self._up = False
            _log.warning("no stream to the master; retrying", why=problem.message)
            await self._pause()

    def _connect(
        self, channel: grpc.aio.Channel, outgoing: AsyncIterator[pb.NodePipelineMessage]
    ) -> Any:
        return pipeline_pb2_grpc.PipelineServiceStub(channel).Connect(outgoing)

    def _registration(self) -> pb.NodePipelineMessage:
        return pipeline_stream.registering(self._register())

    def _registered(self, message: pb.MasterPipelineMessage) -> float:
        self._up = True
        self._on_up(message.registered.estimates)
        return message.registered.heartbeat_interval_s

    def _take(self, message: pb.MasterPipelineMessage) -> None:
        try:
            self._on_message(message)
        except HrmError as error:
            _log.warning("refused a message of the master", why=error.message)

    def _beat(self) -> None:
        self.send(pipeline_stream.beat(self._load()))
