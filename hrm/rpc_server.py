"""gRPC servers of HRM: every call has an identity that may make it, and resources are bounded.

Every server of HRM is created by ``server``, with bounds on what a client can use without a token:
calls open on one connection, connections, the size of headers and messages, the time for a
handshake. Each of them was chosen by attacks (``tests/hostile``).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hrm import descriptors, errors, request_bounds, rpc, text
from hrm.call_messages import CallMessages, named
from hrm.connections import ConnectionWatch
from hrm.identity.access import rule_of
from hrm.identity.caller import has_changed, set_caller
from hrm.identity.registry import REFUSAL, Authenticator, ClusterOnly
from hrm.identity.roles import LOCAL, Identity
from hrm.identity_limits import UNBOUND, IdentityLimits, OverLimit
from hrm.peer_limits import PeerLimits

__all__ = [
    "SERVER_OPTIONS",
    "AccessInterceptor",
    "CallOutcome",
    "abort",
    "both_ways",
    "first_message",
    "server",
]

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

Error = TypeVar("Error", bound=Exception)

FIRST_MESSAGE_TIMEOUT_S = 10.0
OBJECT_TIMEOUT_S = 1.0
"""In which the first message of a call that is to be refused may say what it names."""
_BEARER = "Bearer "
_IDS = ("application_id", "submission_id", "task_id", "info.token_id")
_IDLE_WITHOUT_TOKEN_MS = 10_000
_OVER_CHECKED_S = 0.9
"""How often a stream looks whether the application whose token opened it has ended."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """A call, for the audit log: who made it, from where, to which method, and what came of it.

    Attributes:
        what: what the request names, and the id of what it made.
        lasts: it is a stream, which has begun.
        error: why it was refused; None: it was not.
    """

    identity: Identity
    method: str
    peer: str
    what: str
    lasts: bool = False
    error: errors.HrmError | None = None


Audit: TypeAlias = Callable[[CallOutcome], None]


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses every call without a token whose identity may make it, and every malformed message.

    The refusal waits for no message: it is the same for unary and streaming calls. ``watch`` is
    notified of connections that carry calls with a token.
    """

    def __init__(
        self,
        authority: str | Authenticator | None,
        watch: ConnectionWatch | None = None,
        limits: PeerLimits | None = None,
        audit: Audit | None = None,
        own_limits: IdentityLimits | None = None,
    ) -> None:
        """``authority``: what knows the tokens, or the only one that there is; None: none is
        required. ``limits``: per calling address; None: none. ``audit`` is called with refusals,
        and with calls of methods that change something. ``own_limits``: per identity; None:
        none."""
        self._watch = watch
        self._limits = limits
        self._own_limits = own_limits
        self._audit = audit or _ignore
        self._authority = ClusterOnly(authority) if isinstance(authority, str) else authority

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        name = handler_call_details.method
        identity, credential = LOCAL, ""
        if self._authority is not None:
            try:
                identity, credential = self._identity(
                    handler_call_details.invocation_metadata or ()
                )
            except (errors.PermissionDenied, errors.NotFound) as error:
                return self._refusal(error, None, name)
            rule = rule_of(name)
            if identity.forgotten and not rule.forgotten:
                lost = errors.PermissionDenied(
                    f"the token is that of {identity.scope}, which this master does not know"
                )
                return self._refusal(lost, None, name)
            if identity.role not in rule.roles:
                roles = ", ".join(sorted(x.value for x in rule.roles))
                refused = errors.NotAllowed(
                    f"the token is that of {identity}, which has the role {identity.role.value}; "
                    f"{name.rpartition('/')[2]} takes one of: {roles}"
                )
                handler = await continuation(handler_call_details)
                if handler is None or handler.request_deserializer is None:
                    return self._refusal(refused, identity, name)
                checked = self._checked(name, identity, credential, handler, refused)
                return _refusing(handler, checked)
        handler = await continuation(handler_call_details)
        return _decoding(handler, partial(self._checked, name, identity, credential))

    def _identity(self, metadata: Iterable[tuple[str, str | bytes]]) -> tuple[Identity, str]:
        """The caller, and the credential that says so. Raises PermissionDenied, NotFound."""
        assert self._authority is not None
        refused = errors.PermissionDenied(REFUSAL)
        for key, value in metadata:
            if key == "authorization" and isinstance(value, str) and value.startswith(_BEARER):
                credential = value.removeprefix(_BEARER)
                try:
                    return self._authority.identify(credential), credential
                except errors.PermissionDenied as error:
                    refused = error
        raise refused

    def _checked(
        self,
        name: str,
        identity: Identity,
        credential: str,
        handler: Any,
        refused: errors.NotAllowed | None = None,
    ) -> _Checked:
        until_ended: Callable[[], Coroutine[Any, Any, errors.HrmError]] | None = None
        if self._authority is not None and identity.token_id:
            until_ended = partial(self._authority.until_ended, identity)
        elif self._authority is not None and identity.scope:
            until_ended = partial(_until_over, self._authority, credential)
        return _Checked(
            handler, name, identity, until_ended, self._known, self._limits, self._audit,
            self._own_limits, refused,
        )  # fmt: skip

    def _known(self, peer: str) -> None:
        if self._watch is not None:
            self._watch.known(peer)

    def _refusal(self, error: errors.HrmError, identity: Identity | None, name: str) -> Any:
        return grpc.stream_stream_rpc_method_handler(partial(self._refuse, error, identity, name))

    async def _refuse(
        self,
        error: errors.HrmError,
        identity: Identity | None,
        name: str,
        _requests: Any,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        try:
            if identity is not None:
                self._known(context.peer())
                self._audit(
                    CallOutcome(
                        identity=identity, method=name, peer=context.peer(), what="", error=error
                    )
                )
            await abort(context, error)
        except grpc.aio.AbortError as aborted:
            del _requests, context
            raise _untied(aborted)  # noqa: B904 - it is the same exception


async def _until_over(authority: Authenticator, credential: str) -> errors.HrmError:
    """The reason, once the application whose token this is has ended, at most a second later."""
    while True:
        await asyncio.sleep(_OVER_CHECKED_S)
        try:
            authority.identify(credential)
        except (errors.NotFound, errors.PermissionDenied) as error:
            return _untied(error)


def _ignore(_what: Any) -> None:
    """Used without an audit log."""


def _decoding(handler: Any, checks: Callable[[Any], _Checked]) -> Any:
    """The same handler, but it replies INVALID_ARGUMENT to bytes that are not a message, and to a
    message beyond its bounds, whether it returns responses, yields them or writes them.

    gRPC gets all of them as methods with a stream of messages: one with a unary request would be
    called only on its arrival, and so notice the caller late. On the wire they are the same.
    """
    if handler is None or handler.request_deserializer is None:
        return handler
    checked = checks(handler)
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


def _refusing(handler: Any, checked: _Checked) -> Any:
    """A handler of the same kind that refuses the call, once it knows what the call names."""
    made = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    return made(checked.refuse, None, handler.response_serializer)


class _Checked:
    """One call of a method of a service, and the checks of its messages. ``yielded`` serves instead
    of ``respond`` if it yields its responses. ``known`` is notified of the call's peer before the
    first message has arrived, because a large one takes time. ``until_ended`` returns why the
    caller's token has ended, once it has; None: it has no end."""

    def __init__(
        self,
        handler: Any,
        name: str,
        identity: Identity,
        until_ended: Callable[[], Coroutine[Any, Any, errors.HrmError]] | None,
        known: Callable[[str], None],
        limits: PeerLimits | None,
        audit: Audit,
        own_limits: IdentityLimits | None,
        refused: errors.NotAllowed | None,
    ) -> None:
        from_stream, to_stream = handler.request_streaming, handler.response_streaming
        self.method: Any = (
            (handler.stream_stream if to_stream else handler.stream_unary)
            if from_stream
            else (handler.unary_stream if to_stream else handler.unary_unary)
        )
        self._name = name
        self._identity = identity
        self._until_ended = until_ended
        self._ended: asyncio.Future[errors.HrmError] | None = None
        self._known = known
        self._limits = limits
        self._audit = audit
        self._rule = rule_of(name)
        self._is_change = self._rule.change
        """Until the first message says more."""
        self._from_stream = from_stream
        self._is_stream = from_stream or to_stream
        self._bytes_max = request_bounds.method_bytes(name)
        self._decode = request_bounds.checked(name, handler.request_deserializer)
        self._what = ""
        self._refused = refused
        self._own = UNBOUND
        if own_limits is not None:
            self._own = own_limits.share(identity, name, is_stream=self._is_stream)

    async def respond(self, _requests: Any, context: Any) -> Any:
        request = None
        set_caller(self._identity)
        try:
            try:
                self._known(context.peer())
                with self._own as wait_s:
                    if wait_s:
                        await asyncio.sleep(wait_s)
                        self._own.check()
                    request = await self._given(context)
                    with self._share(context):
                        response = await self._lasting(self.method(request, context))
                self._done(context, response)
                return response
            except errors.HrmError as error:
                self._failed(context, error)
                await abort(context, error)
        except grpc.aio.AbortError as aborted:
            del _requests, context, request
            raise _untied(aborted)  # noqa: B904 - it is the same exception
        finally:
            self._over()

    async def yielded(self, _requests: Any, context: Any) -> AsyncIterator[Any]:
        request = None
        set_caller(self._identity)
        try:
            try:
                self._known(context.peer())
                with self._own as wait_s:
                    if wait_s:
                        await asyncio.sleep(wait_s)
                        self._own.check()
                    request = await self._given(context)
                    with self._share(context):
                        responses = self.method(request, context)
                        async with aclosing(responses):
                            while True:
                                try:
                                    response = await self._lasting(_next(responses))
                                except StopAsyncIteration:
                                    break
                                yield response
            except errors.HrmError as error:
                self._failed(context, error)
                await abort(context, error)
        except grpc.aio.AbortError as aborted:
            del _requests, context, request
            raise _untied(aborted)  # noqa: B904 - it is the same exception
        finally:
            self._over()

    async def refuse(self, _requests: Any, context: Any) -> None:
        """What the caller's role may not call ends so, in place of a method."""
        assert self._refused is not None
        error: errors.HrmError = self._refused
        try:
            try:
                self._known(context.peer())
                with self._own as wait_s:
                    if wait_s:
                        await asyncio.sleep(wait_s)
                        self._own.check()
                    with suppress(TimeoutError, errors.InvalidRequest):  # as far as it says that
                        await asyncio.wait_for(self._messages(context).first(), OBJECT_TIMEOUT_S)
            except OverLimit as full:
                error = full
            self._failed(context, error)
            await abort(context, error)
        except grpc.aio.AbortError as aborted:
            del _requests, context
            raise _untied(aborted)  # noqa: B904 - it is the same exception

    async def _lasting(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of ``work``, which is part of a stream, unless the caller's token ends before.

        Raises:
            PermissionDenied, NotFound: it has ended.
        """
        if not self._is_stream or self._until_ended is None:
            return await work
        if self._ended is None:
            self._ended = asyncio.ensure_future(self._until_ended())
        working, ended = asyncio.ensure_future(work), self._ended
        try:
            await asyncio.wait((working, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ended.result()
            return working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def _over(self) -> None:
        """The call has ended."""
        if self._ended is not None:
            self._ended.cancel()
            self._ended = None

    async def _given(self, context: Any) -> Any:
        """The argument for the method: its messages, or its only one."""
        messages = self._messages(context)
        return messages if self._from_stream else await messages.first()

    def _messages(self, context: Any) -> CallMessages:
        pace = self._own.message_wait_s if self._own is not UNBOUND else None
        return CallMessages(context, self._parsed, partial(self._began, context), pace)

    def _began(self, context: Any, request: Any) -> None:
        """The first message has arrived."""
        self._what = named(request, self._rule.names)
        self._is_change = self._rule.is_change(request)
        if self._is_stream and self._is_change and self._refused is None:
            self._report(context, None)

    def _done(self, context: Any, response: Any) -> None:
        if self._is_change and not self._is_stream and has_changed():
            made = next((x for x in map(partial(named, response), _IDS) if x), "")
            if made and made not in self._what:
                self._what = f"{made} {self._what}".strip()
            self._report(context, None)

    def _failed(self, context: Any, error: errors.HrmError) -> None:
        if isinstance(error, OverLimit):
            if error.is_noted:
                self._report(context, error)
        elif self._is_change or isinstance(error, errors.NotAllowed):
            self._report(context, error)

    def _report(self, context: Any, error: errors.HrmError | None) -> None:
        self._audit(
            CallOutcome(
                identity=self._identity,
                method=self._name,
                peer=context.peer(),
                what=self._what,
                lasts=self._is_stream,
                error=error,
            )
        )

    def _share(self, context: Any) -> AbstractContextManager[None]:
        """The caller's share of the server, held for the length of the call."""
        if self._limits is None:
            return nullcontext()
        return self._limits.held(context.peer(), self._name, is_stream=self._is_stream)

    def _parsed(self, data: bytes) -> Any:
        if self._refused is None:
            self._own.check_bytes(len(data), self._bytes_max)
        elif len(data) > request_bounds.METHOD_BYTES:
            raise errors.InvalidRequest("what is refused is not worth parsing so much")
        try:
            return self._decode(data)
        except DecodeError as error:
            raise errors.InvalidRequest(f"malformed message: {error}") from None


async def _next(responses: Any) -> Any:
    return await anext(responses)


def _untied(error: Error) -> Error:
    """The same, without the frames that refer to its call. gRPC keeps an exception that ends a call
    in the call, and a future the one it was completed with; so each refused call would otherwise
    live on, as an open stream of its connection, until Python collects garbage; after
    ``streams_max`` of them the connection would accept no more."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def server(
    authority: str | Authenticator | None,
    *,
    streams_max: int,
    connections_max: int,
    watch: ConnectionWatch | None = None,
    limits: PeerLimits | None = None,
    audit: Audit | None = None,
    own_limits: IdentityLimits | None = None,
) -> grpc.aio.Server:
    """A server with HRM's bounds. ``streams_max``: calls that a connection may have open; without a
    bound, calls that are started and cancelled immediately fill the memory faster than Python frees
    them. ``connections_max``: connections, as far as this process may have descriptors. The others:
    as of ``AccessInterceptor``."""
    options = [
        *SERVER_OPTIONS,
        ("grpc.max_concurrent_streams", streams_max),
        ("grpc.max_allowed_incoming_connections", descriptors.connections_max(connections_max)),
    ]
    if authority is None:  # where no watch distinguishes callers from idle connections
        options.append(("grpc.max_connection_idle_ms", _IDLE_WITHOUT_TOKEN_MS))
    first = AccessInterceptor(authority, watch, limits, audit, own_limits)
    return grpc.aio.server(interceptors=[first], options=options)
