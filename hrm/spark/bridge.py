"""The AppMaster's channel to the driver: calls into its JVM through py4j.

py4j blocks, so one thread polls for events and another makes the calls, in their order, from a
bounded queue. Both are daemon threads: a driver that hangs cannot keep the AppMaster alive. The
driver never calls Python, so an AppMaster that hangs cannot block Spark.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError

from hrm import text

__all__ = ["CALLS_MAX", "DriverBridge"]

POLL_MS = 10_000
READ_TIMEOUT_S = 60.0
CALLS_MAX = 100_000
TEXT_MAX = 4_000


class DriverBridge:
    """The driver, as seen by the AppMaster.

    Events are passed to ``on_event`` on the loop's thread; ``on_lost`` is called there once when
    the driver can no longer be reached.
    """

    def __init__(
        self,
        port: int,
        auth_token: str,
        on_event: Callable[[dict[str, Any]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._on_lost = on_lost
        self._lost = False
        self._calls: queue.Queue[tuple[str, tuple[Any, ...], asyncio.Future[None]]] = queue.Queue(
            CALLS_MAX
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                address="127.0.0.1",
                port=port,
                auth_token=auth_token,
                auto_convert=False,
                auto_field=False,
                read_timeout=READ_TIMEOUT_S,
            )
        )

    def start(self) -> None:
        for target in (self._poll, self._call):
            threading.Thread(target=target, name=f"bridge{target.__name__}", daemon=True).start()

    def call(self, method: str, *arguments: Any) -> asyncio.Future[None]:
        """Queues a call; the future is done when the driver has received it, or is lost.

        Its text ends in Spark's log and in the user's exceptions, and much of it comes from other
        parties: nodes, the master, a process that failed.
        """
        arguments = tuple(text.shown(x, TEXT_MAX) if isinstance(x, str) else x for x in arguments)
        done: asyncio.Future[None] = self._loop.create_future()
        try:
            self._calls.put_nowait((method, arguments, done))
        except queue.Full:
            self._declare_lost(f"it has left {CALLS_MAX} calls unanswered")
            done.set_result(None)
        return done

    def _poll(self) -> None:
        try:
            while not self._lost:
                for event in json.loads(self._gateway.entry_point.nextEvents(POLL_MS)):
                    self._loop.call_soon_threadsafe(self._on_event, event)
        except Exception as error:  # whatever py4j raises, the driver no longer responds
            self._thread_lost(error)

    def _call(self) -> None:
        while not self._lost:
            method, arguments, done = self._calls.get()
            try:
                getattr(self._gateway.entry_point, method)(*arguments)
            except Exception as error:  # as above
                self._thread_lost(error)
            self._on_loop(self._finish, done)

    @staticmethod
    def _finish(done: asyncio.Future[None]) -> None:
        if not done.done():
            done.set_result(None)

    def _thread_lost(self, error: Exception) -> None:
        self._on_loop(self._declare_lost, _why_lost(error))

    def _on_loop(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *arguments)
        except RuntimeError:
            self._lost = True  # the loop is closed: the AppMaster is ending

    def _declare_lost(self, why: str) -> None:
        if not self._lost:
            self._lost = True
            self._on_lost(why)


def _why_lost(error: BaseException) -> str:
    """What an exception of py4j means to people who did not choose it."""
    if isinstance(error, Py4JJavaError):
        return str(error)  # the driver responds, and says what is wrong
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TimeoutError):
            return f"it has not responded for {READ_TIMEOUT_S:.0f} s"
        cause = cause.__cause__ or cause.__context__
    return "the connection to it broke: it was killed or crashed"
