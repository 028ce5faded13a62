"""EventService: the journal, read by users and tools, as it is or as it grows.

A page carries the token to resume from. A reader that follows and loses the master presents it to
the next one, and misses nothing that is still kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from hrm.core.vocabulary.history import EVENT_KINDS
from hrm.errors import InvalidRequest, LimitReached
from hrm.identity.caller import caller
from hrm.identity.roles import IdentityKind
from hrm.master.journal import EventFilter, Journal
from hrm.master.owners import hide_event
from hrm.peer_limits import address_of
from hrm.v1 import events_pb2 as pb
from hrm.v1 import events_pb2_grpc
from hrm.wire import codec
from hrm.wire import events as event_wire

__all__ = ["EventService"]

PAGE_EVENTS = 500
LISTED_DEFAULT = 100
LISTED_MAX = 100_000
IDLE_S = 10.0
"""A following reader without events gets an empty page at this interval: the token advances, and a
reader that has disconnected is noticed."""


class EventService(events_pb2_grpc.EventServiceServicer):
    """``EventService`` of ``events.proto``."""

    def __init__(
        self,
        journal: Journal,
        followers: int = 256,
        followers_per_peer: int = 64,
        followers_per_identity: int = 64,
        is_own: Callable[[str], bool] = lambda _application_id: True,
    ) -> None:
        """``is_own``: may the caller see where and why this application's state has
        changed?"""
        self._journal = journal
        self._is_own = is_own
        self._followers_max = followers
        self._followers_per_peer = followers_per_peer
        self._followers_per_identity = followers_per_identity
        self._of_identities: Counter[str] = Counter()
        self._followers: Counter[str] = Counter()

    async def WatchEvents(  # noqa: N802 - the contract's name
        self, request: pb.WatchEventsRequest, context: Any
    ) -> AsyncIterator[pb.EventPage]:
        event_filter, at = _event_filter(request), _token(request.resume)
        limit = request.limit or LISTED_DEFAULT
        if not 1 <= limit <= LISTED_MAX:
            raise InvalidRequest(f"limit is {limit}; it must be from 1 to {LISTED_MAX}")
        address, identity = address_of(context.peer()), caller()
        name = "" if identity.kind is IdentityKind.CLUSTER else str(identity)
        if request.follow:
            self._check_followers(address, name)
        self._followers[address] += request.follow
        self._of_identities[name] += request.follow
        try:
            async for page in self._pages(event_filter, at, limit, follow=request.follow):
                self._hide(page, at_node=bool(request.node))
                yield page
        finally:
            self._followers[address] -= request.follow
            self._of_identities[name] -= request.follow
            if not self._followers[address]:
                del self._followers[address]
            if not self._of_identities[name]:
                del self._of_identities[name]

    def _hide(self, page: pb.EventPage, *, at_node: bool) -> None:
        """Leave of others' applications what all may see. Where events of one node were asked for
        (``at_node``), that is nothing: it would say where they are."""
        others = [x for x in page.events if x.application_id and not self._is_own(x.application_id)]
        if at_node and others:
            own = [x for x in page.events if x not in others]
            del page.events[:]
            page.events.extend(own)
            return
        for event in others:
            hide_event(event)

    def _check_followers(self, address: str, name: str) -> None:
        """Raises LimitReached if one more would be too many. ``name``: of the identity; empty: that
        of the cluster's token, which all may share."""
        every, of_one = self._followers.total(), self._followers[address]
        bounds = [
            (every, self._followers_max, "", "event_followers"),
            (of_one, self._followers_per_peer, f" from {address}", "event_followers_per_peer"),
        ]
        if name:
            own, most = self._of_identities[name], self._followers_per_identity
            bounds.append((own, most, f" of {name}", "event_followers_per_identity"))
        for count, limit, of, setting in bounds:
            if count >= limit:
                raise LimitReached(
                    f"{limit} readers{of} follow already ({setting}); end one of them, or raise it "
                    f"in hrm.toml [master]"
                )

    async def _pages(
        self, event_filter: EventFilter, at: int | None, limit: int, *, follow: bool
    ) -> AsyncIterator[pb.EventPage]:
        journal = self._journal
        await journal.flush()
        if at is None:
            newest = journal.newest()
            found = await journal.latest(event_filter, limit)
            for first in range(0, len(found), PAGE_EVENTS):
                yield event_wire.from_events(found[first : first + PAGE_EVENTS])
            at = max(newest, found[-1].event_id if found else 0)
            yield event_wire.reached(at)
        while True:
            newest = journal.newest()
            found, gone = await journal.page(at, event_filter, PAGE_EVENTS)
            if gone:  # the reader began late, or is slower than events are removed
                at = gone
                yield event_wire.reached(at, gap=True)
            if found:
                at = found[-1].event_id
                yield event_wire.from_events(found)
                continue
            if newest > at:
                at = newest  # the filter matched none of those
                yield event_wire.reached(at)
            if not follow:
                return
            if not await journal.grown(at, IDLE_S):
                yield event_wire.reached(at)


def _event_filter(request: pb.WatchEventsRequest) -> EventFilter:
    since_s = request.since_s
    if not 0 <= since_s < 1e12:
        raise InvalidRequest(f"since_s is {since_s}; it is in seconds since the epoch")
    unknown = sorted(set(request.kinds) - set(EVENT_KINDS))
    if unknown:
        kinds = ", ".join(EVENT_KINDS)
        raise InvalidRequest(f"{unknown[0]!r} is no kind of event; there are: {kinds}")
    return EventFilter(
        application_id=codec.to_text(request.application_id, "application_id"),
        node=codec.to_text(request.node, "node"),
        since_s=since_s,
        kinds=tuple(request.kinds),
    )


def _token(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidRequest("resume is no token; take it from a page, or leave it empty")
    return int(text)
