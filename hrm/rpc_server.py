"""gRPC servers of HRM: the token is required on every call, and all resources are bounded.

Every server of HRM is created by ``server``, with bounds on what a client can use without a token:
calls open on one connection, connections, the size of headers and messages, the time for a
handshake. Each of them was chosen by attacks (``tests/hostile``).
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hrm import descriptors, errors, request_bounds, rpc, text
from hrm.connections import ConnectionWatch
from hrm.peer_limits import PeerLimits

__all__ = ["SERVER_OPTIONS", "TokenInterceptor", "abort", "both_ways", "first_message", "server"]

SERVER_OPTIONS = [
    *rpc.OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
    # 0: none. gRPC sends an error for each excess ping, whether or not the client ever reads it:
    # this fills the memory, unlike the replies, of which it queues a bounded number.
    ("grpc.http2.max_ping_strikes", 0),
    # Until the client has completed the handshakes of TLS and of HTTP/2.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A connection without a call; a client opens another when it has one.
    ("grpc.max_connection_idle_ms", 300_000),
]

_REFUSAL = "missing or wrong token; HRM_TOKEN_FILE must name a copy of the master's token file"
Error = TypeVar("Error", bound=Exception)

FIRST_MESSAGE_TIMEOUT_S = 10.0
_IDLE_WITHOUT_TOKEN_MS = 10_000

_EOF: Any = vars(grpc.aio)["EOF"]  # missing in its stubs


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.HrmError) -> NoReturn:
    """End the call with the status of ``error``, and its message in one line of bounded length: an
    id in it is as long, and as odd, as the client sent it. Methods just raise the error."""
    _untied(error)
    await context.abort(rpc.status_of(error), text.detail(error.message))
    raise AssertionError("abort returned")


async def first_message(requests: Any, what: str) -> Any:
    """The first message of a stream, which must be ``what``.

    Raises:
        InvalidRequest: the stream ended before.
        Unavailable: it did not come in time, or this process was suspended and has not read it yet.
    """
    try:
        return await asyncio.wait_for(anext(aiter(requests)), FIRST_MESSAGE_TIMEOUT_S)
    except StopAsyncIteration:
        raise errors.InvalidRequest(f"the stream ended before {what}") from None
    except TimeoutError:
        raise errors.Unavailable(
            f"{what} has not come within {FIRST_MESSAGE_TIMEOUT_S:.0f} s; register again"
        ) from None


async def both_ways(
    reading: Coroutine[Any, Any, None],
    writing: Coroutine[Any, Any, None],
    *ends: Coroutine[Any, Any, object],
) -> None:
    """Serve both directions of a stream until the first of them ends, or one of ``ends``; the
    others are cancelled.

    Raises:
        HrmError: what ended ``reading``. Any other error of a direction just ends the stream.
    """
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(x) for x in (reading, writing, *ends)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        problem = tasks[0].exception() if tasks[0].done() else None
        if isinstance(problem, errors.HrmError):
            raise problem
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses every call that does not carry the token, and every malformed message.

    The refusal waits for no message: it is the same for unary and streaming calls. ``watch`` is
    notified of connections that carry calls with the token.
    """

    def __init__(
        self,
        token: str | None,
        watch: ConnectionWatch | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        """``token`` None: none is required. ``limits``: per calling address; None: none."""
        self._watch = watch
        self._limits = limits
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)

    @staticmethod
    async def _refuse(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)
        except grpc.aio.AbortError as aborted:
            del _request, context
            raise _untied(aborted)  # noqa: B904 - it is the same exception

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        if not self._accepts(handler_call_details.invocation_metadata or ()):
            return self._refusal
        handler = await continuation(handler_call_details)
        known = _ignore if self._watch is None else self._watch.known
        return _decoding(handler, handler_call_details.method, known, self._limits)

    def _accepts(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        if self._expected is None:
            return True
        for key, value in metadata:
            given = value if isinstance(value, bytes) else value.encode()
            if key == "authorization" and hmac.compare_digest(given, self._expected):
                return True
        return False


def _ignore(_peer: str) -> None:
    """Used without a watch."""


def _decoding(
    handler: Any, name: str, known: Callable[[str], None], limits: PeerLimits | None
) -> Any:
    """The same handler, but it replies INVALID_ARGUMENT to bytes that are not a message, and to a
    message beyond its bounds, whether it returns responses, yields them or writes them. ``known``
    is notified of each call's peer before the first message of the call has arrived, because a
    large one takes time.

    gRPC gets all of them as methods with a stream of messages: one with a unary request would be
    called only on its arrival, and so notice the caller late. On the wire they are the same.
    """
    if handler is None or handler.request_deserializer is None:
        return handler
    checked = _Checked(handler, name, known, limits)
    if inspect.isasyncgenfunction(checked.method):
        serve: Any = checked.yielded
    elif inspect.iscoroutinefunction(checked.method):
        serve = checked.respond
    else:
        return handler  # an unknown method: gRPC's own handler reports that
    made = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    return made(serve, None, handler.response_serializer)


class _Checked:
    """One method of a service, and the checks of its messages. ``yielded`` serves instead of
    ``respond`` if it yields its responses."""

    def __init__(
        self, handler: Any, name: str, known: Callable[[str], None], limits: PeerLimits | None
    ) -> None:
        from_stream, to_stream = handler.request_streaming, handler.response_streaming
        self.method: Any = (
            (handler.stream_stream if to_stream else handler.stream_unary)
            if from_stream
            else (handler.unary_stream if to_stream else handler.unary_unary)
        )
        self._name = name
        self._known = known
        self._limits = limits
        self._from_stream = from_stream
        self._is_stream = from_stream or to_stream
        self._decode = request_bounds.checked(name, handler.request_deserializer)

    async def respond(self, _requests: Any, context: Any) -> Any:
        request = None
        try:
            try:
                request = await self._given(context)
                with self._share(context):
                    return await self.method(request, context)
            except errors.HrmError as error:
                await abort(context, error)
        except grpc.aio.AbortError as aborted:
            del _requests, context, request
            raise _untied(aborted)  # noqa: B904 - it is the same exception

    async def yielded(self, _requests: Any, context: Any) -> AsyncIterator[Any]:
        request = None
        try:
            try:
                request = await self._given(context)
                with self._share(context):
                    async for response in self.method(request, context):
                        yield response
            except errors.HrmError as error:
                await abort(context, error)
        except grpc.aio.AbortError as aborted:
            del _requests, context, request
            raise _untied(aborted)  # noqa: B904 - it is the same exception

    async def _given(self, context: Any) -> Any:
        """The argument for the method: its messages, or its only one."""
        self._known(context.peer())
        messages = _Messages(context, self._parsed)
        return messages if self._from_stream else await messages.first()

    def _share(self, context: Any) -> AbstractContextManager[None]:
        """The caller's share of the server, held for the length of the call."""
        if self._limits is None:
            return nullcontext()
        return self._limits.held(context.peer(), self._name, is_stream=self._is_stream)

    def _parsed(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except DecodeError as error:
            raise errors.InvalidRequest(f"malformed message: {error}") from None


def _untied(error: Error) -> Error:
    """The same, without the frames that refer to its call. gRPC keeps an exception that ends a call
    in the call, and a future the one it was completed with; so each refused call would otherwise
    live on, as an open stream of its connection, until Python collects garbage; after
    ``streams_max`` of them the connection would accept no more."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class _Messages:
    """The messages of a stream, read from the call itself: gRPC offers a generator instead, and
    another one to parse would cost as much as the parsing."""

    def __init__(self, context: Any, parsed: Callable[[bytes], Any]) -> None:
        self._read = context.read
        self._parsed = parsed

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Any:
        data = await self._read()
        if data is _EOF:
            raise StopAsyncIteration
        return self._parsed(data)

    async def first(self) -> Any:
        """The message of a call that has one.

        Raises:
            InvalidRequest: there is none.
        """
        data = await self._read()
        if data is _EOF:
            raise errors.InvalidRequest("a call without a message")
        return self._parsed(data)


def server(
    token: str | None,
    *,
    streams_max: int,
    connections_max: int,
    watch: ConnectionWatch | None = None,
    limits: PeerLimits | None = None,
) -> grpc.aio.Server:
    """A server with HRM's bounds. ``token`` None: none is required. ``streams_max``: calls that a
    connection may have open; without a bound, calls that are started and cancelled immediately fill
    the memory faster than Python frees them. ``connections_max``: connections, as far as this
    process may have descriptors. ``watch``, ``limits``: as of ``TokenInterceptor``."""
    options = [
        *SERVER_OPTIONS,
        ("grpc.max_concurrent_streams", streams_max),
        ("grpc.max_allowed_incoming_connections", descriptors.connections_max(connections_max)),
    ]
    if token is None:  # where no watch distinguishes callers from idle connections
        options.append(("grpc.max_connection_idle_ms", _IDLE_WITHOUT_TOKEN_MS))
    first = TokenInterceptor(token, watch, limits)
    return grpc.aio.server(interceptors=[first], options=options)
