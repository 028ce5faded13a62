"""How clients call their master: in one loop for all, and again while it is away or full."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from hrm import errors, rpc, tls

__all__ = ["RepeatedCalls", "shared_loop"]

RETRY_S = 0.5
WORKED_S = 5.0
"""Seconds after which a call that breaks counts as having reached its master."""
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)

T = TypeVar("T")


@functools.cache
def _loop_of(_pid: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="hrm-pipelines").start()
    return loop


def shared_loop() -> asyncio.AbstractEventLoop:
    """The loop of all clients of this process. It is never closed: gRPC passes the events of all
    loops to any of them, and loses some when one is closed."""
    return _loop_of(os.getpid())


class RepeatedCalls:
    """Those of one client, in the loop of all."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._served_s = 0.0
        """When the master last replied to one of them."""

    async def again(
        self,
        call: Callable[[], Awaitable[T]],
        patience_s: float,
        gate: asyncio.Semaphore | None = None,
    ) -> T:
        """``call``, repeated while the master is unreachable or full, for at most ``patience_s``.
        It is made when ``gate`` lets it through, which does not count.

        Raises:
            HrmError: the master refuses it, or did not respond for so long.
        """
        loop = asyncio.get_running_loop()
        deadline = None
        while True:
            async with gate or contextlib.nullcontext():
                begun = loop.time()
                try:
                    result = await call()
                except (errors.Unavailable, grpc.RpcError) as error:
                    now = loop.time()
                    if deadline is None or now - begun > WORKED_S:
                        deadline = now + patience_s
                    if isinstance(error, grpc.RpcError) and rpc.is_refused(error):
                        # A master that serves this client's other calls is there.
                        deadline = max(deadline, self._served_s + patience_s)
                    if now >= deadline or not self._may_pass(error):
                        if isinstance(error, grpc.RpcError):
                            raise rpc.error_from(error, self._target) from error
                        raise
                else:
                    self._served_s = loop.time()
                    return result
            await asyncio.sleep(RETRY_S)

    def _may_pass(self, error: Exception) -> bool:
        """Is it worth another try?"""
        if not isinstance(error, grpc.aio.AioRpcError):
            return isinstance(error, errors.Unavailable)
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return tls.failure(self._target, error.details() or "") is None
        return error.code() in _AGAIN
