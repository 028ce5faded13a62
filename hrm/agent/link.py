"""The agent's stream to the master: kept up permanently, with pauses that grow to a bound.

Messages are dropped while the stream is down: a registration carries the full list of containers
and a heartbeat repeats it, so nothing important exists in one message alone.

Which failures are retried, see ``hrm.core.vocabulary.retries``. A refusal certainly is a master's
where the channel proves that one is at its other end; an error found on this side is certain.

A heartbeat that cannot be built is a bug on this side: the session ends, and the next registration
repeats the full list, or the silent node would be declared lost with all its containers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import structlog

from hrm.agent.stream import MasterStream
from hrm.core.vocabulary import retries
from hrm.core.vocabulary.model import Followed
from hrm.errors import HrmError, Unavailable
from hrm.v1 import node_pb2, node_pb2_grpc

__all__ = ["Link"]

_LOG_PERIOD_S = 30.0
_log = structlog.get_logger("hrm.agent.link")


class _HeartbeatFailed(HrmError):
    """This side cannot build its report."""


class Link(MasterStream[node_pb2.NodeMessage, node_pb2.MasterMessage]):
    """One agent's connection. ``send`` and all callbacks belong to the event loop."""

    def __init__(
        self,
        *,
        target: str,
        open_channel: Callable[[], grpc.aio.Channel],
        register: Callable[[], node_pb2.NodeMessage],
        on_message: Callable[[node_pb2.MasterMessage], None],
        on_up: Callable[[Followed, bool], None],
        on_down: Callable[[], None],
        heartbeat: Callable[[], None],
        delay_max_s: float,
        proven: bool = False,
    ) -> None:
        """``on_up(master, first)`` follows every accepted registration; it raises StaleEpoch for a
        master that has been replaced. ``proven``: the channel proves that a master is at its other
        end."""
        super().__init__(
            target=target, open_channel=open_channel, delay_max_s=delay_max_s, log=_log
        )
        self._register = register
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._heartbeat = heartbeat
        self._proven = proven
        self._sequence = 0
        self._is_up = False
        self._was_up = False
        self._was_up_this_time = False
        self._reconnect_now = False
        self._logged_at_s = 0.0
        self._logged: type[HrmError] | None = None

    def send(self, message: node_pb2.NodeMessage) -> None:
        """Send if a stream is up. One that cannot keep up is closed and reopened."""
        if self._takes_more():
            self._enqueue((self._numbered(message),))

    def reconnect(self) -> None:
        """End the stream once all is sent, and register again immediately."""
        self._reconnect_now = True
        self._end_stream()

    async def run(self) -> None:
        """Stay connected until ``close``. Raises the HrmError that no retry can resolve."""
        while not self._closing.is_set():
            self._was_up_this_time = False
            try:
                await self._session()
                problem: HrmError = Unavailable(f"the master at {self._target} ended the stream")
            except HrmError as error:
                certain = self._proven or not isinstance(error.__cause__, grpc.RpcError)
                if not retries.AGENT.allows(error, known=self._was_up, certain=certain):
                    raise
                problem = error
            if self._closing.is_set():
                return
            if self._was_up_this_time and not isinstance(problem, _HeartbeatFailed):
                self._backoff.succeeded()
            if self._reconnect_now:
                self._reconnect_now = False
                continue
            self._log_problem(problem)
            await self._pause()

    def _log_problem(self, problem: HrmError) -> None:
        now = asyncio.get_running_loop().time()
        another = type(problem) is not self._logged
        if self._logged_at_s == 0.0 or another or now - self._logged_at_s >= _LOG_PERIOD_S:
            self._logged_at_s, self._logged = now, type(problem)
            _log.warning("no master; retrying, containers continue to run", why=problem.message)

    def _numbered(self, message: node_pb2.NodeMessage) -> node_pb2.NodeMessage:
        self._sequence += 1
        message.sequence = self._sequence
        return message

    def _connect(
        self, channel: grpc.aio.Channel, outgoing: AsyncIterator[node_pb2.NodeMessage]
    ) -> Any:
        return node_pb2_grpc.NodeServiceStub(channel).Connect(outgoing)

    def _registration(self) -> node_pb2.NodeMessage:
        return self._numbered(self._register())

    def _registered(self, message: node_pb2.MasterMessage) -> float:
        if message.WhichOneof("message") != "registered":
            raise Unavailable(f"{self._target} does not respond as an HRM master")
        self._on_up(Followed(message.epoch, message.registered.epoch_id), not self._was_up)
        self._was_up = self._was_up_this_time = self._is_up = True
        self._logged_at_s = 0.0
        return message.registered.heartbeat_interval_s

    def _ended(self) -> None:
        if self._is_up:
            self._is_up = False
            self._on_down()

    def _take(self, message: node_pb2.MasterMessage) -> None:
        try:
            self._on_message(message)
        except HrmError as error:
            _log.warning("refused a message of the master", why=error.message)

    def _beat(self) -> None:
        try:
            self._heartbeat()
        except Exception as error:
            _log.exception("cannot make a heartbeat; registering again")
            raise _HeartbeatFailed(f"a heartbeat failed: {error!r}") from error
