"""gRPC as HRM uses it: the token on every call, errors as statuses, channels with bounded waits.

Every method of every server, health and reflection included, asks for
``authorization: Bearer <token>``. The token is a secret of the whole cluster, kept in a file of
mode 0600; whoever can read it is an administrator. Where the cluster has an authority
(``hrm.tls``), channels are encrypted.
"""

from __future__ import annotations

import hmac
import inspect
import os
import secrets
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hrm import errors, tls

__all__ = [
    "MESSAGE_BYTES_MAX",
    "TokenInterceptor",
    "abort",
    "channel",
    "create_token",
    "error_from",
    "read_token",
    "status_of",
    "sync_channel",
]

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
]
SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]

_EOF: Any = vars(grpc.aio)["EOF"]  # which its stubs do not know

_STATUS: list[tuple[type[errors.HrmError], grpc.StatusCode]] = [
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.PermissionDenied, grpc.StatusCode.UNAUTHENTICATED),
    (errors.Unsatisfiable, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.LimitReached, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.StaleEpoch, grpc.StatusCode.ABORTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
]


def status_of(error: errors.HrmError) -> grpc.StatusCode:
    """The gRPC status that carries ``error``; INTERNAL where none fits."""
    return next((s for kind, s in _STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def error_from(error: grpc.RpcError, target: str) -> errors.HrmError:
    """The HRM error behind a failed call to ``target`` (host:port)."""
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else None) or str(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Unavailable(
            f"{target} has not answered in time; try again, or allow more with --timeout"
        )
    if code is grpc.StatusCode.UNAVAILABLE and "the master is too busy" in details:
        return errors.Unavailable(details)
    if code is grpc.StatusCode.UNAVAILABLE and (failure := tls.failure(target, details)):
        return failure
    if code is grpc.StatusCode.UNAVAILABLE:
        return errors.Unavailable(
            f"no HRM master answers at {target} ({details}); check host and port, "
            f"or start one: hrm up"
        )
    kind = next((kind for kind, status in _STATUS if status is code), errors.HrmError)
    return kind(details)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.HrmError) -> NoReturn:
    """End the call with the status of ``error``."""
    await context.abort(status_of(error), error.message)
    raise AssertionError("abort returned")


def create_token(path: Path) -> str:
    """The token in ``path``; made, mode 0600, if there is none.

    Raises:
        InvalidConfig: the file is readable by others, empty, or cannot be written.
    """
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            token = secrets.token_urlsafe(32)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(token + "\n")
            return token
        except FileExistsError:
            pass  # somebody was faster: theirs is the token
        except OSError as error:
            raise errors.InvalidConfig(f"cannot write the token file {path}: {error}") from error
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in ``path``.

    Raises:
        PermissionDenied: there is no such file, or it is not readable.
        InvalidConfig: it is empty, or others than its owner can read it.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_text().strip()
    except FileNotFoundError as error:
        raise errors.PermissionDenied(
            f"no token file at {path}; copy it from the master's machine or name it in "
            f"HRM_TOKEN_FILE"
        ) from error
    except OSError as error:
        raise errors.PermissionDenied(f"cannot read the token file {path}: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise errors.InvalidConfig(
            f"the token file {path} is open to others (mode {stat.S_IMODE(mode):04o}); "
            f"chmod 600 {path}"
        )
    if not token:
        raise errors.InvalidConfig(f"the token file {path} is empty; remove it and start again")
    return token


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses every call that does not carry the token, and every message that is none.

    The refusal waits for no message: it is the same for unary and streaming calls.
    """

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)

    @staticmethod
    async def _refuse(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            "missing or wrong token; HRM_TOKEN_FILE must name a copy of the master's token file",
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        for key, value in handler_call_details.invocation_metadata or ():
            if key == "authorization":
                given = value if isinstance(value, bytes) else value.encode()
                if hmac.compare_digest(given, self._expected):
                    return _decoding(await continuation(handler_call_details))
        return self._refusal


def _decoding(handler: Any) -> Any:
    """The same handler, which answers INVALID_ARGUMENT to bytes that are no message."""
    if handler is None or handler.request_deserializer is None:
        return handler
    decode = handler.request_deserializer

    def parsed(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError as error:
            raise errors.InvalidRequest(f"malformed message: {error}") from None

    async def unary_unary(data: bytes, context: Any) -> Any:
        try:
            request = parsed(data)
        except errors.InvalidRequest as error:
            await abort(context, error)
        return await handler.unary_unary(request, context)

    async def unary_stream(data: bytes, context: Any) -> AsyncIterator[Any]:
        try:
            request = parsed(data)
        except errors.InvalidRequest as error:
            await abort(context, error)
        async for response in handler.unary_stream(request, context):
            yield response

    async def stream_stream(_requests: Any, context: Any) -> None:
        await handler.stream_stream(_Messages(context, parsed), context)

    encode = handler.response_serializer
    if handler.unary_unary is not None and inspect.iscoroutinefunction(handler.unary_unary):
        return grpc.unary_unary_rpc_method_handler(unary_unary, None, encode)
    if handler.unary_stream is not None and inspect.isasyncgenfunction(handler.unary_stream):
        return grpc.unary_stream_rpc_method_handler(unary_stream, None, encode)
    if handler.stream_stream is not None and inspect.iscoroutinefunction(handler.stream_stream):
        return grpc.stream_stream_rpc_method_handler(stream_stream, None, encode)
    return handler


class _Messages:
    """The messages of a stream. Read from the call itself: what gRPC offers instead is a generator,
    and one more to parse would cost as much as the parsing."""

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


_Add: TypeAlias = Callable[[grpc.aio.ClientCallDetails], grpc.aio.ClientCallDetails]


class _BearerUnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, add: _Add) -> None:
        self._add = add

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(self._add(details), request)


class _BearerUnaryStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, add: _Add) -> None:
        self._add = add

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(self._add(details), request)


class _BearerStreamStream(grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, add: _Add) -> None:
        self._add = add

    async def intercept_stream_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(self._add(details), request)


def channel(target: str, token: str, ca: bytes | None = None) -> grpc.aio.Channel:
    """An asyncio channel to ``target`` (host:port) that sends ``token`` with every call. ``ca``:
    certificates (PEM) of who may answer, encrypted; None: clear text."""

    def add(details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        metadata.add("authorization", f"Bearer {token}")
        return grpc.aio.ClientCallDetails(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
        )

    interceptors: list[Any] = [
        _BearerUnaryUnary(add),
        _BearerUnaryStream(add),
        _BearerStreamStream(add),
    ]
    if ca is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS, interceptors=interceptors)
    trusted = grpc.ssl_channel_credentials(ca)
    return grpc.aio.secure_channel(target, trusted, options=_OPTIONS, interceptors=interceptors)


class _CallDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: list[tuple[str, str | bytes]]
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: Any


class _BearerSync(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
):
    def __init__(self, token: str) -> None:
        self._pair = ("authorization", f"Bearer {token}")

    def _add(self, details: Any) -> _CallDetails:
        return _CallDetails(
            details.method,
            details.timeout,
            [*(details.metadata or ()), self._pair],
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._add(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._add(details), request)


def sync_channel(target: str, token: str, ca: bytes | None = None) -> grpc.Channel:
    """A blocking channel, for command-line clients; otherwise as ``channel``."""
    made = (
        grpc.insecure_channel(target, options=_OPTIONS)
        if ca is None
        else grpc.secure_channel(target, grpc.ssl_channel_credentials(ca), options=_OPTIONS)
    )
    return grpc.intercept_channel(made, _BearerSync(token))
