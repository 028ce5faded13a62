"""gRPC in HRM: the token on every call, errors as statuses, channels with bounded waits.

Every method of every server, health and reflection included, requires
``authorization: Bearer <token>`` from a private file (``hrm.token_file``): the secret of the whole
cluster, of which every reader is an administrator, or an identity's own (``hrm.identity``). Where
the cluster has an authority (``hrm.tls``), channels are encrypted. Servers: ``hrm.rpc_server``,
which clients do not load.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import grpc.aio

from hrm import clear_text, errors, text, tls
from hrm.token_file import create_token, read_token

__all__ = [
    "MESSAGE_BYTES_MAX",
    "OPTIONS",
    "channel",
    "create_token",
    "error_from",
    "is_refused",
    "read_token",
    "status_of",
    "sync_channel",
]

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
    # A channel is a connection: many calls on one do not delay those on another.
    ("grpc.use_local_subchannel_pool", 1),
]

_STATUS: list[tuple[type[errors.HrmError], grpc.StatusCode]] = [
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.NotAllowed, grpc.StatusCode.PERMISSION_DENIED),
    (errors.PermissionDenied, grpc.StatusCode.UNAUTHENTICATED),
    (errors.Unsatisfiable, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.LimitReached, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.StaleEpoch, grpc.StatusCode.ABORTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
]


def status_of(error: errors.HrmError) -> grpc.StatusCode:
    """The gRPC status that carries ``error``; INTERNAL where none fits."""
    return next((s for kind, s in _STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


_REFUSED = re.compile(r"RST_STREAM\b.*\berror code (?:7|11)\b")
"""REFUSED_STREAM and ENHANCE_YOUR_CALM (RFC 9113, section 7)."""


def is_refused(error: grpc.RpcError) -> bool:
    """Was the call refused before it began, as one of too many? It may be made again."""
    details = error.details() if hasattr(error, "details") else None
    return _REFUSED.search(details or "") is not None


def error_from(error: grpc.RpcError, target: str) -> errors.HrmError:
    """The HRM error for a failed call to ``target`` (host:port). Its details are untrusted text,
    which is passed on to logs, terminals and drivers' exceptions."""
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    message_text = (error.details() if hasattr(error, "details") else None) or str(error)
    details = text.detail(message_text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Unavailable(
            f"{target} did not respond in time; try again, or allow more with --timeout"
        )
    if is_refused(error):
        return errors.Unavailable(
            f"{target} is up and refuses more calls: it is overloaded, or has too many of this "
            f"client ({details}); try again, and make fewer at a time"
        )
    if code is grpc.StatusCode.UNAVAILABLE and "the master is paused" in details:
        return errors.DiskFull(details)
    from_master = details.startswith("the master ") or "register again" in details
    if code is grpc.StatusCode.UNAVAILABLE and from_master:
        return errors.Unavailable(details)
    if code is grpc.StatusCode.UNAVAILABLE and (failure := tls.failure(target, message_text)):
        return failure
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("DNS resolution failed"):
        host = target.rpartition(":")[0]
        return errors.Unavailable(
            f"the host {host} of {target} does not resolve; correct its name, or write its IP "
            f"address; to see what the name resolves to: getent hosts {host}"
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return errors.Unavailable(
            f"no HRM master answers at {target} ({details}); check host and port, "
            f"or start one: hrm up"
        )
    kind = next((kind for kind, status in _STATUS if status is code), errors.HrmError)
    return kind(details)


class _Bearer:
    """Adds the token to calls; gRPC requires a class for each kind of them."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._token = token

    async def _call(self, continuation: Any, details: Any, request: Any) -> Any:
        token = self._token if isinstance(self._token, str) else self._token()
        pair = ("authorization", f"Bearer {token}")
        metadata = grpc.aio.Metadata(*(details.metadata or ()), pair)
        return await continuation(details._replace(metadata=metadata), request)


class _BearerUnaryUnary(_Bearer, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self._call(continuation, details, request)


class _BearerUnaryStream(_Bearer, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self._call(continuation, details, request)


class _BearerStreamStream(_Bearer, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    async def intercept_stream_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await self._call(continuation, details, request)


def channel(
    target: str,
    token: str | Callable[[], str],
    ca: bytes | None = None,
    *,
    allow_clear_text: bool | None = None,
) -> grpc.aio.Channel:
    """An asyncio channel to ``target`` (host:port) that sends ``token``, or what it returns, with
    every call. ``ca``: certificates (PEM) that authenticate the server, encrypted; None: clear
    text, which must be allowed for addresses other than loopback (``hrm.clear_text``; None: by the
    environment).

    Raises:
        InvalidConfig: clear text to ``target`` is not allowed.
    """
    if ca is None:
        clear_text.check_client(target, allow=allow_clear_text)

    kinds = (_BearerUnaryUnary, _BearerUnaryStream, _BearerStreamStream)
    interceptors: list[Any] = [kind(token) for kind in kinds]
    if ca is None:
        return grpc.aio.insecure_channel(target, options=OPTIONS, interceptors=interceptors)
    trusted = grpc.ssl_channel_credentials(ca)
    return grpc.aio.secure_channel(target, trusted, options=OPTIONS, interceptors=interceptors)


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


def sync_channel(
    target: str, token: str, ca: bytes | None = None, *, allow_clear_text: bool | None = None
) -> grpc.Channel:
    """A blocking channel, for command-line clients; otherwise like ``channel``.

    It has no thread of its own: a broken connection is made again while a call waits for it, and
    else every 5 s or so, whatever ``grpc.max_reconnect_backoff_ms`` is. A call that must arrive
    soon after the server is back needs ``wait_for_ready=True`` and a time limit.
    """
    if ca is None:
        clear_text.check_client(target, allow=allow_clear_text)
    made = (
        grpc.insecure_channel(target, options=OPTIONS)
        if ca is None
        else grpc.secure_channel(target, grpc.ssl_channel_credentials(ca), options=OPTIONS)
    )
    return grpc.intercept_channel(made, _BearerSync(token))
