"""Limits per address: open streams, calls, and registrations per second.

Identities have limits of their own (``hrm.identity_limits``), but that of the cluster's token has
none: it may be that of a whole cluster. So there are limits by address as well; a whole cluster may
be behind one, and the defaults admit 10,000 nodes with as many applications. A limit keeps one
faulty program from exhausting a server; the refusal is RESOURCE_EXHAUSTED, and names the setting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hrm.errors import LimitReached
from hrm.identity.access import REGISTRATIONS
from hrm.rate_credit import Credit, Rate

__all__ = ["PeerLimits", "address_of"]

_IDLE_MAX = 10_000


@dataclass(slots=True)
class _Peer:
    registrations: Credit
    streams: int = 0
    calls: int = 0


class PeerLimits:
    """Invariant: an address with an open stream or call is in ``_peers``; others are dropped."""

    def __init__(
        self,
        *,
        streams: int,
        calls: int,
        registrations_per_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams, self._calls = streams, calls
        self._registrations = Rate(registrations_per_s)
        self._now = now
        self._peers: dict[str, _Peer] = {}

    @contextmanager
    def held(self, peer: str, method: str, *, is_stream: bool) -> Iterator[None]:
        """A call or stream of ``peer``, as gRPC names it, for the length of a ``with``.

        Raises:
            LimitReached: it has too many, or registers too fast.
        """
        address = address_of(peer)
        known = self._known(address)
        if is_stream and known.streams >= self._streams:
            raise _full(address, self._streams, "streams open", "streams_per_peer")
        if not is_stream and known.calls >= self._calls:
            raise _full(address, self._calls, "calls under way", "calls_per_peer")
        if method in REGISTRATIONS:
            self._take_credit(known, address)
        known.streams += is_stream
        known.calls += not is_stream
        try:
            yield
        finally:
            known.streams -= is_stream
            known.calls -= not is_stream

    def _known(self, address: str) -> _Peer:
        known = self._peers.get(address)
        if known is None:
            if len(self._peers) >= _IDLE_MAX:
                busy = {k: x for k, x in self._peers.items() if x.streams or x.calls}
                self._peers = busy
            credit = Credit(self._registrations.burst, self._now())
            known = self._peers[address] = _Peer(credit)
        return known

    def _take_credit(self, known: _Peer, address: str) -> None:
        if known.registrations.take(self._registrations, self._now()) is None:
            raise LimitReached(
                f"{address} registers more than {self._registrations.per_s:g} applications and "
                f"drivers a second (registrations_per_s); try again, or raise it in hrm.toml "
                f"[master]"
            )


def address_of(peer: str) -> str:
    """The address of ``ipv4:10.0.0.1:4711``, without the port."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] or rest if kind in ("ipv4", "ipv6") else kind


def _full(address: str, limit: int, what: str, setting: str) -> LimitReached:
    return LimitReached(
        f"{address} has {limit} {what} already ({setting}); end some, or raise it in hrm.toml "
        f"[master]"
    )
