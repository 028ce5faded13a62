"""Limits per identity: calls and messages a second, open streams, calls under way, sizes by role.

Addresses have limits of their own (``hrm.peer_limits``), but many users may be behind one, and one
user behind many. These count for the identity, whatever its addresses and however many tokens it
has: a user or service, a node, a scheduler; an application for itself. Only registrations of
applications count for their user, so that a thousand applications cannot register a thousand times
as often. The cluster's own token is not bound: all nodes of a cluster may share it.

A call beyond the rate waits for at most ``PATIENCE_S``: a client that makes one after the other is
slowed, and only one that sends many at once is refused, after that time. A refusal costs the master
as much as a small call, so one that repeats at once what was refused would keep it busy.
Messages of streams wait however long it takes: nothing more is read of the stream, so its sender
waits, too.

10,000 refusals must not fill logs: one of an identity is noted in a minute, with the number of
those before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import structlog

from hrm.errors import LimitReached
from hrm.identity.access import REGISTRATIONS
from hrm.identity.roles import AccessRole, Identity, IdentityKind
from hrm.rate_credit import Credit, Rate

__all__ = ["UNBOUND", "IdentityLimits", "OverLimit", "Share"]

PATIENCE_S = 1.0
"""Longest that a call beyond the rate waits, and time after which another is refused."""
NOTED_EACH_S = 60.0
IDLE_MAX = 10_000
"""Identities that are held without having anything open, as long as some are to be forgotten."""
_REQUESTS = "requests_per_s_per_identity"
LOG_STREAMS = "/hrm.v1.AdminService/ReadLogs"
_PEOPLE = (IdentityKind.USER, IdentityKind.SERVICE)
_CARRIES_DATA = (AccessRole.AGENT, AccessRole.SCHEDULER)
"""Roles whose messages are bounded by the method alone: results of tasks, claims of all
containers."""
KIB = 1 << 10
_BYTES_OF = {AccessRole.VIEWER: 16 * KIB, AccessRole.JOINING: 16 * KIB}
"""Of a message, for roles that send names and numbers."""

log = structlog.get_logger("master.limits")


class OverLimit(LimitReached):
    """A limit of the caller's identity. ``is_noted``: it is the one of this minute that the audit
    log gets. ``is_late``: the caller gets it after ``PATIENCE_S``."""

    def __init__(self, message: str, *, is_noted: bool = False) -> None:
        super().__init__(message)
        self.is_noted = is_noted
        self.is_late = False


@dataclass(slots=True)
class _Known:
    """One identity. ``refused``: its refusals since the one that was noted at ``noted_at_s``."""

    requests: Credit
    messages: Credit
    registrations: Credit
    streams: int = 0
    calls: int = 0
    log_streams: int = 0
    refused: int = 0
    noted_at_s: float = field(default=float("-inf"))
    slowed_at_s: float = field(default=float("-inf"))

    @property
    def has_open(self) -> bool:
        return self.streams > 0 or self.calls > 0


class IdentityLimits:
    """Of one server.

    Invariant: an identity with an open stream or call, or with less than all of its credit, is in
    ``_known``, unless ``IDLE_MAX`` others that have nothing open are, too.

    Attributes:
        refused: calls since the start.
    """

    def __init__(
        self,
        *,
        requests_per_s: float,
        streams: int,
        calls: int,
        registrations_per_s: float,
        messages_per_s: float,
        log_streams: int,
        message_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``message_bytes``: of a message of a user, a service or an application."""
        self._requests = Rate(requests_per_s)
        self._registrations = Rate(registrations_per_s)
        self._messages = Rate(messages_per_s)
        self._streams, self._calls, self._log_streams = streams, calls, log_streams
        self._message_bytes = message_bytes
        self._now = now
        self._known: dict[str, _Known] = {}
        self._forget_at = IDLE_MAX
        self.refused = 0

    def share(self, identity: Identity, method: str, *, is_stream: bool) -> Share:
        """A call of this identity, to be held for its length."""
        if identity.kind is IdentityKind.CLUSTER:
            return UNBOUND
        return _Counted(self, identity, method, is_stream=is_stream)

    def check_bytes(self, known: _Known, identity: Identity, method: str, size: int) -> None:
        """Raises OverLimit: a message has more bytes than the identity's role may send."""
        role = identity.role
        most = _BYTES_OF.get(role, self._message_bytes)
        if size <= most or role in _CARRIES_DATA:
            return
        name = method.rpartition("/")[2]
        what = f"a message to {name} has {size} bytes; of the role {role.value} at most {most} are"
        if role in _BYTES_OF:
            raise self._refusal(known, f"{what} taken")
        raise self._refusal(
            known,
            f"{what} taken (message_mib_per_identity); put large values into a file, and pass its "
            f"path, or raise it in hrm.toml [master]",
        )

    def known(self, key: str) -> _Known:
        found = self._known.get(key)
        if found is None:
            now = self._now()
            if len(self._known) >= self._forget_at:
                self._forget(now)
            found = self._known[key] = _Known(
                Credit(self._requests.burst, now),
                Credit(self._messages.burst, now),
                Credit(self._registrations.burst, now),
            )
        return found

    def _forget(self, now: float) -> None:
        """Drop those of which nothing is to be known; where these are too few, all that have
        nothing open. The next time comes after as many more again, so it costs a step a call."""
        self._known = {k: x for k, x in self._known.items() if not self._is_idle(x, now)}
        if len(self._known) >= IDLE_MAX:
            self._known = {k: x for k, x in self._known.items() if x.has_open}
        self._forget_at = max(IDLE_MAX, 2 * len(self._known))

    def _is_idle(self, known: _Known, now: float) -> bool:
        return (
            not known.has_open
            and now - known.noted_at_s > NOTED_EACH_S
            and known.requests.is_whole(self._requests, now)
            and known.messages.is_whole(self._messages, now)
            and known.registrations.is_whole(self._registrations, now)
        )

    def enter(
        self, known: _Known, of_user: _Known, identity: Identity, method: str, *, is_stream: bool
    ) -> float:
        """Count one more; returns the seconds that it has to wait. ``of_user``: for which it counts
        if it registers something.

        Raises:
            OverLimit: it has too many, or calls too fast.
        """
        if is_stream and known.streams >= self._streams:
            raise self._full(known, identity, self._streams, "streams open", "streams")
        if not is_stream and known.calls >= self._calls:
            raise self._full(known, identity, self._calls, "calls under way", "calls")
        logs = method == LOG_STREAMS
        if logs and known.log_streams >= self._log_streams:
            raise self._full(known, identity, self._log_streams, "logs open", "log_streams")
        now = self._now()
        wait_s = known.requests.take(self._requests, now, PATIENCE_S)
        if wait_s is None:
            raise self._too_fast(known, identity, self._requests, "calls", _REQUESTS)
        if method in REGISTRATIONS:
            of_user_s = of_user.registrations.take(self._registrations, now, PATIENCE_S)
            if of_user_s is None:
                what = "applications and drivers registered for its user"
                raise self._too_fast(
                    known, identity, self._registrations, what, "registrations_per_s_per_user"
                )
            wait_s = max(wait_s, of_user_s)
        known.streams += is_stream
        known.calls += not is_stream
        known.log_streams += logs
        return wait_s

    def hold(self, known: _Known) -> bool:
        """Count a call that is to be refused later, unless there are too many to wait for that."""
        if known.calls >= self._calls:
            return False
        known.calls += 1
        return True

    @staticmethod
    def release(known: _Known | None) -> None:
        """It has been refused."""
        if known is not None:
            known.calls -= 1

    @staticmethod
    def leave(known: _Known, method: str, *, is_stream: bool) -> None:
        known.streams -= is_stream
        known.calls -= not is_stream
        known.log_streams -= method == LOG_STREAMS

    def message_wait_s(self, known: _Known, identity: Identity) -> float:
        """Seconds until one more message of its streams is due, for which it counts."""
        if identity.role is AccessRole.ADMIN:
            return 0.0  # which may be many nodes, like the cluster's token
        now = self._now()
        wait_s = known.messages.take(self._messages, now, float("inf")) or 0.0
        if wait_s and now - known.slowed_at_s > NOTED_EACH_S:
            known.slowed_at_s = now
            log.warning(
                "an identity sends more messages than it may, and is slowed",
                identity=str(identity), scope=identity.scope,
                messages_per_s_per_identity=self._messages.per_s,
            )  # fmt: skip
        return wait_s

    def _full(
        self, known: _Known, identity: Identity, limit: int, what: str, setting: str
    ) -> OverLimit:
        return self._refusal(
            known,
            f"{_named(identity)} has {limit} {what} already ({setting}_per_identity); end some, or "
            f"raise it in hrm.toml [master]",
        )

    def _too_fast(
        self, known: _Known, identity: Identity, rate: Rate, what: str, setting: str
    ) -> OverLimit:
        error = self._refusal(
            known,
            f"{_named(identity)} has more than {rate.per_s:g} {what} a second "
            f"({setting}); try again, or raise it in hrm.toml [master]",
        )
        error.is_late = True
        return error

    def _refusal(self, known: _Known, why: str) -> OverLimit:
        self.refused += 1
        now = self._now()
        if now - known.noted_at_s <= NOTED_EACH_S:
            known.refused += 1
            return OverLimit(why)
        before, known.refused, known.noted_at_s = known.refused, 0, now
        more = f"; {before} more calls were refused since the last such line" if before else ""
        return OverLimit(f"{why}{more}", is_noted=True)


class Share:
    """What a call has of a server's limits; entered, it is the seconds that the call has to wait
    before ``check``. This one has no limit."""

    __slots__ = ()

    def __enter__(self) -> float:
        """Raises OverLimit: the identity has too many."""
        return 0.0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The call has ended."""

    def check(self) -> None:
        """To be called after the wait. Raises OverLimit: the identity calls too fast."""

    def message_wait_s(self) -> float:
        """Seconds until one more message of the call's stream may be used."""
        return 0.0

    def check_bytes(self, size: int, of_method: int) -> None:
        """Raises OverLimit: the identity may send no message of so many bytes, although the method
        takes ``of_method``."""


UNBOUND = Share()


class _Counted(Share):
    __slots__ = ("_identity", "_is_stream", "_known", "_limits", "_method", "_refusal")

    def __init__(
        self, limits: IdentityLimits, identity: Identity, method: str, *, is_stream: bool
    ) -> None:
        self._limits = limits
        self._identity = identity
        self._method = method
        self._is_stream = is_stream
        self._known: _Known | None = None
        self._refusal: OverLimit | None = None

    def __enter__(self) -> float:
        identity, method, limits = self._identity, self._method, self._limits
        of_user = None
        if identity.kind is IdentityKind.APPLICATION and method in REGISTRATIONS:
            of_user = limits.known(_key_of_user(identity))
        # After that of its user, so that it is not forgotten before it has anything open.
        known = limits.known(_key(identity))
        try:
            wait_s = limits.enter(
                known, of_user or known, identity, method, is_stream=self._is_stream
            )
        except OverLimit as error:
            if not error.is_late or not limits.hold(known):
                raise
            # Without its frames, which would keep the call alive where it ends before it is raised.
            self._refusal, wait_s = error.with_traceback(None), PATIENCE_S
        self._known = known
        return wait_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._refusal is not None:
            self._limits.release(self._known)
        elif self._known is not None:
            self._limits.leave(self._known, self._method, is_stream=self._is_stream)

    def check(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def message_wait_s(self) -> float:
        assert self._known is not None
        return self._limits.message_wait_s(self._known, self._identity)

    def check_bytes(self, size: int, of_method: int) -> None:
        if size > of_method:
            return  # the method refuses it, and has advice
        assert self._known is not None
        self._limits.check_bytes(self._known, self._identity, self._method, size)


def _key(identity: Identity) -> str:
    """Users and services share their names. A join token may be for any node, and has no name."""
    if identity.kind is IdentityKind.APPLICATION:
        return f"application {identity.scope}"
    if identity.role is AccessRole.JOINING:
        return f"joining {identity.token_id}"
    if identity.kind in _PEOPLE:
        return _key_of_user(identity)
    return f"{identity.kind.value} {identity.name}"


def _key_of_user(identity: Identity) -> str:
    return f"user {identity.name}"


def _named(identity: Identity) -> str:
    if identity.kind is IdentityKind.APPLICATION:
        return f"application {identity.scope}"
    return str(identity)
