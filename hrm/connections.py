"""Bounds connections that have not presented the token: few per address, and not for long.

gRPC bounds a server's connections, but not per client: one without the token could keep all of
them. So they are checked several times a second. One on which a call with the token has arrived is
*known*, and stays. All others are closed after ``limit_s``, or, oldest first, if an address has
more than ``unauthenticated_max`` (none in its first second), or immediately after
``UNAUTHENTICATED_BYTES_MAX``: the token comes with the first headers, so that much is a flood.

The kernel lists this process's sockets, and a connection is ended by shutting its socket down
through a duplicate descriptor, so that no other connection can have replaced the checked one.

Limits: between two checks an address can open as many connections as the server's bound allows. A
known connection is identified by address and port, until it is seen to be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from hrm.allocator import GiveBack

__all__ = ["LIMIT_S", "UNAUTHENTICATED_MAX", "ConnectionWatch"]

LIMIT_S = 10.0
"""Time in which a new connection must carry a call with the token."""
UNAUTHENTICATED_MAX = 32
"""Connections of one address on which that has not happened yet. Each may have as many refused
calls at a time as a connection may have calls, and others wait for those."""
UNAUTHENTICATED_BYTES_MAX = 4 * 1024 * 1024
"""Of one connection on which that has not happened yet."""
_GRACE_S = 1.0
_PERIOD_S = 0.25
_ALERT_PERIOD_S = 0.05
"""The interval while there are unauthenticated connections: a flood grows in between."""
_SHARE = 20
"""A check takes at most this part of the time."""
_MEMORY_PERIOD_S = 0.05
_MEMORY_SHARE = 3
"""Returning memory that floods have taken uses at most this part of the time."""
_LOG_PERIOD_S = 30.0
_DESCRIPTORS = "/proc/self/fd"
_BYTES_RECEIVED = slice(128, 136)
"""``tcpi_bytes_received`` of Linux' ``struct tcp_info``; older kernels have less of it."""
_log = structlog.get_logger("connections")


@dataclass(slots=True)
class _Seen:
    """One socket. ``name``: its other end, as gRPC writes it; empty: not a connection to watch."""

    name: str = ""
    address: str = ""
    since_s: float = 0.0
    known: bool = False


class ConnectionWatch:
    """Watches the connections of the servers at ``ports``, which may grow.

    ``known`` belongs to the event loop; a check runs in a thread.
    """

    def __init__(
        self, limit_s: float = LIMIT_S, unauthenticated_max: int = UNAUTHENTICATED_MAX
    ) -> None:
        self.ports: set[int] = set()
        self._limit_s = limit_s
        self._unauthenticated_max = unauthenticated_max
        self._known: dict[str, float] = {}
        """The connections that have presented the token, and when first."""
        self._seen: dict[int, _Seen] = {}
        """All sockets of this process, by inode, as of the last check."""
        self._closed: Counter[str] = Counter()
        self._logged_at_s = -_LOG_PERIOD_S
        self._any_unauthenticated = False
        """As of the last check."""

    def known(self, peer: str) -> None:
        """A call with the token has come from ``peer``, as gRPC writes it."""
        if peer not in self._known:
            self._known[peer] = time.monotonic()

    async def run(self) -> None:
        """Check repeatedly until cancelled, and return memory that floods have taken."""
        await asyncio.gather(self._check_forever(), _give_back_forever())

    async def _check_forever(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await asyncio.to_thread(self.check)
            except OSError as error:
                # No free descriptor, for example; the next check may have one.
                _log.warning("cannot inspect connections", why=error.strerror)
            took_s = time.monotonic() - began_s
            period_s = _ALERT_PERIOD_S if self._any_unauthenticated else _PERIOD_S
            await asyncio.sleep(max(period_s, _SHARE * took_s))

    def check(self) -> int:
        """Check once, now; returns how many were closed."""
        now = time.monotonic()
        present = _sockets()
        for inode in [x for x in self._seen if x not in present]:
            del self._seen[inode]
        for inode, descriptor in present.items():
            if inode not in self._seen:
                with _own(descriptor, inode) as connection:
                    if connection is not None:
                        self._seen[inode] = _about(connection, self.ports, now)
        unauthenticated: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        for inode, seen in self._seen.items():
            if not seen.known and seen.name:
                seen.known = seen.name in self._known
                if not seen.known:
                    unauthenticated[seen.address].append((seen.since_s, inode))
        self._any_unauthenticated = bool(unauthenticated)
        self._forget(now)
        closed = 0
        for address, found in unauthenticated.items():
            loud = {inode for _, inode in found if _exceeds_bytes(present[inode], inode)}
            for inode in loud.union(self._unwelcome(found, now)):
                self._close(present[inode], inode)
                self._seen[inode] = _Seen()
                self._closed[address] += 1
                closed += 1
        self._log_closed(now)
        return closed

    def _unwelcome(self, found: list[tuple[float, int]], now: float) -> Iterator[int]:
        """Of one address's unauthenticated connections (since when, inode), those to close."""
        too_many = len(found) - self._unauthenticated_max
        for number, (since_s, inode) in enumerate(sorted(found)):
            if now - since_s >= (_GRACE_S if number < too_many else self._limit_s):
                yield inode

    def _forget(self, now: float) -> None:
        """Forget connections that are gone; one made since the check has not been seen yet."""
        names = {seen.name for seen in self._seen.values()}
        for name, since_s in list(self._known.items()):
            if name not in names and since_s < now - 1.0:
                self._known.pop(name, None)

    def _close(self, descriptor: int, inode: int) -> None:
        with _own(descriptor, inode) as connection:
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _log_closed(self, now: float) -> None:
        if self._closed and now - self._logged_at_s >= _LOG_PERIOD_S:
            self._logged_at_s = now
            address, most = self._closed.most_common(1)[0]
            _log.warning(
                "closed connections that showed no token", connections=self._closed.total(),
                most_from=address, of_them=most,
            )  # fmt: skip
            self._closed.clear()


def _exceeds_bytes(descriptor: int, inode: int) -> bool:
    with _own(descriptor, inode) as connection:
        if connection is None:
            return False
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.stop)
        except OSError:
            return False
        return int.from_bytes(info[_BYTES_RECEIVED], sys.byteorder) > UNAUTHENTICATED_BYTES_MAX


async def _give_back_forever() -> None:
    memory = GiveBack()
    while True:
        began_s = time.monotonic()
        with contextlib.suppress(OSError):  # no free descriptor; the next check may have one
            await asyncio.to_thread(memory.check)
        took_s = time.monotonic() - began_s
        await asyncio.sleep(max(_MEMORY_PERIOD_S, _MEMORY_SHARE * took_s))


def _sockets() -> dict[int, int]:
    """The sockets of this process: a descriptor of each, by inode."""
    found: dict[int, int] = {}
    with os.scandir(_DESCRIPTORS) as entries:
        for entry in entries:
            try:
                what = os.readlink(entry.path)  # noqa: PTH115 - thousands, four times a second
            except OSError:
                continue  # closed meanwhile
            if what.startswith("socket:["):
                found[int(what[8:-1])] = int(entry.name)
    return found


@contextlib.contextmanager
def _own(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """The socket ``inode`` behind a duplicate descriptor; None: it is gone."""
    try:
        copy = os.dup(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        yield None
        return
    if os.fstat(copy).st_ino != inode:
        os.close(copy)  # another file has taken its place
        yield None
        return
    with socket.socket(fileno=copy) as connection:
        yield connection


def _about(connection: socket.socket, ports: set[int], now: float) -> _Seen:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return _Seen()
    try:
        if connection.getsockname()[1] not in ports:
            return _Seen()
        address, port = connection.getpeername()[:2]
    except OSError:
        return _Seen()  # a listener, or its other end has left
    if connection.family == socket.AF_INET6 and not address.startswith("::ffff:"):
        return _Seen(f"ipv6:%5B{address.replace('%', '%25')}%5D:{port}", address, now)
    address = address.removeprefix("::ffff:")
    return _Seen(f"ipv4:{address}:{port}", address, now)
