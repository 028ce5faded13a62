"""The order in which the master's schedulers choose and commit: streams at once, batch in turns.

A scheduler's round (``SchedulerWoken``: snapshot, choice, proposal) is followed by the commit of
what it proposed (``ClaimsProposed``). What happens between the two makes a snapshot stale.
Schedulers of other processes have to live with that; those of one process share a thread and cannot
overlap. Begun together they would only choose on a state that the others are about to change, and
let every job wait for the places of the others' jobs. So one round of batch is begun at a time, and
the next scheduler takes its snapshot when the proposal of the one before it has been committed.

A stream waits for none of this: its scheduler chooses, and its claims are committed, in the same
turn of the loop that made it wait, ahead of all batch that is due. Batch advances one step per
turn, so that turns are short and a stream that arrives in between waits for the rest of one. Where
streams fill whole turns (``AT_ONCE_MAX``), batch still gets the first step of the next one:
thousands of streams that wait for one scheduler do not stop the batch of the others.

A round that is due is begun once. Until then ``PlacementCoordinator`` counts on it and
requests no other, so a lost round would stop its scheduler.
"""

from __future__ import annotations

from collections import deque

from hrm.core.master.core import MasterCore
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.vocabulary.model import WorkloadClass

__all__ = ["AT_ONCE_MAX", "RoundSequencer"]

AT_ONCE_MAX = 64
"""Steps for streams that may follow one event in the same turn of the loop; the rest comes next."""


class RoundSequencer:
    """The order of one master's rounds. It is fed wakes that are due (``wake``) and what schedulers
    propose (``propose``), and returns events to submit: all of ``at_once`` in the turn that took in
    an event, and one ``step`` in each turn of the loop while ``is_due``.

    ``at_once_max``: ``AT_ONCE_MAX``, but where few schedulers are to fill a turn.

    Invariant: a scheduler is at most once in ``_due`` and ``_streams`` together: those whose round
    is due and has not begun, in order.
    """

    def __init__(self, core: MasterCore, at_once_max: int = AT_ONCE_MAX) -> None:
        self._core = core
        self._at_once_max = at_once_max
        self._due: deque[str] = deque()
        self._streams: deque[str] = deque()
        self._proposals: deque[Proposal] = deque()
        self._stream_proposals: deque[Proposal] = deque()
        self._left_at_once = at_once_max

    def wake(self, scheduler: str, now: float) -> None:
        """A round of ``scheduler`` is due: at once if a stream waits for it, else after those that
        are due already. One that was due for batch may have a stream since: its queue has let that
        pass, or the time is over that it left to others."""
        if scheduler in self._streams:
            return
        streams_wait = self._core.placement.has_stream(scheduler, now)
        if scheduler in self._due:
            if not streams_wait:
                return
            self._due.remove(scheduler)
        (self._streams if streams_wait else self._due).append(scheduler)

    def propose(self, proposal: Proposal) -> None:
        """A scheduler has chosen."""
        stream = proposal.workload_class is WorkloadClass.STREAM
        (self._stream_proposals if stream else self._proposals).append(proposal)

    def taken(self, event: e.MasterEvent, now: float) -> None:
        """The core has handled what begins a turn of the loop, and all wakes that are due by now
        are known. A scheduler whose batch round is due goes first if a stream waits for it."""
        self._left_at_once = self._at_once_max
        if isinstance(event, e.ContainersRequested | e.WorkloadClassObserved) and self._due:
            app = self._core.master_state.applications.get(event.application_id)
            scheduler = "" if app is None else app.scheduler
            if scheduler in self._due and self._core.placement.has_stream(scheduler, now):
                self._due.remove(scheduler)
                self._streams.append(scheduler)

    def at_once(self, now: float) -> e.MasterEvent | None:
        """What else belongs to this turn of the loop; None: nothing, or it has been long enough. A
        round that has begun ends with it: batch must not choose between a choice and its commit."""
        if not self._left_at_once and not self._stream_proposals:
            return None
        event = self._next_for_streams(now)
        if event is not None and self._left_at_once:
            self._left_at_once -= 1
        return event

    @property
    def is_due(self) -> bool:
        """Is there a step to take in another turn of the loop?"""
        return bool(self._stream_proposals or self._streams or self._proposals or self._due)

    def step(self, now: float) -> e.MasterEvent | None:
        """The one step of a turn: what streams still wait for, then a commit, then a choice. After
        a turn that streams have filled, batch goes first."""
        if self._left_at_once and (event := self._next_for_streams(now)) is not None:
            return event
        if self._proposals:
            return e.ClaimsProposed(now=now, proposal=self._proposals.popleft())
        if self._due:
            return e.SchedulerWoken(now=now, scheduler=self._due.popleft())
        return self._next_for_streams(now)

    def _next_for_streams(self, now: float) -> e.MasterEvent | None:
        if self._stream_proposals:
            return e.ClaimsProposed(now=now, proposal=self._stream_proposals.popleft())
        while self._streams:
            scheduler = self._streams.popleft()
            if self._core.placement.has_stream(scheduler, now):
                return e.SchedulerWoken(now=now, scheduler=scheduler)
            self._due.append(scheduler)  # its stream is gone meanwhile
        return None
