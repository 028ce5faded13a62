"""Do the schedulers inside the master take turns, and does every round that is due happen?

Counted from what reaches the core and what it commands: a wake that the core requests leads to one
round, not before its time and not much later; no batch scheduler chooses between another's choice
and its commit; and while a stream waits nothing else happens until its containers have been
placed and committed. Where streams fill whole turns, batch that is due has the first step of the
next one. Proposals that a fault delays or loses are out of turn, and checked no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hrm.core.master.core import MasterCore
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Proposal
from hrm.core.scheduling.remote_scheduler import RemoteScheduler
from hrm.core.scheduling.scheduler import Scheduler
from hrm.core.vocabulary.model import WorkloadClass

__all__ = ["Rounds"]

_LATE_S = 0.5
"""More turns of the loop than a few schedulers take between them."""


class Rounds:
    """``_asked_s``: for when the core has requested the wake of a scheduler, until it wakes.

    ``_open``: proposals that are to be committed in turn. ``_owed``: schedulers that are to choose
    in this turn of the loop, because a stream waits. ``_due``: those whose
    round is due, and whether for a stream.
    """

    def __init__(
        self,
        violated: Callable[[str], None],
        awake_s: Callable[[float, float], float],
        at_once_max: int,
    ) -> None:
        """``awake_s``: how much of a time the master was awake. ``at_once_max``: steps for streams
        that fill a turn."""
        self._violated = violated
        self._awake_s = awake_s
        self._asked_s: dict[str, float] = {}
        self._open: list[Proposal] = []
        self._owed: set[str] = set()
        self._at_once_max = at_once_max
        self._due: dict[str, bool] = {}
        self._at_once = 0
        self._is_step = False

    def master_began(self) -> None:
        self._asked_s.clear()
        self._open.clear()
        self._owed.clear()
        self._due.clear()
        self._at_once = 0
        self._is_step = False

    def woken(self, core: MasterCore, scheduler: str, now: float) -> None:
        """The wake of a scheduler has come: its round is due."""
        for_stream = self._stream_waits(core.placement.schedulers.get(scheduler), now)
        self._due.setdefault(scheduler, for_stream)

    def turn_begins(self) -> None:
        """What comes next is the one step of a turn of the loop, or none is due."""
        self._is_step = True

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        proposals = [x.proposal for x in commands if isinstance(x, c.ProposeClaims)]
        self._in_turn(event, proposals)
        self._fairly(event, proposals)
        if isinstance(event, e.SchedulerWoken):
            self._looked(event, proposals)
        elif isinstance(event, e.ClaimsProposed):
            self._open = [x for x in self._open if x is not event.proposal]
        self._open += proposals
        wakes = [x for x in commands if isinstance(x, c.WakeScheduler)]
        asked = {x.scheduler: max(x.at_s, event.now) for x in wakes}
        self._asked_s |= asked
        waits = self._stream_waits
        self._owed = {x for x in self._owed if waits(core.placement.schedulers.get(x), event.now)}
        self._owe(core, event, asked)
        self._due |= dict.fromkeys(self._owed & self._due.keys(), True)
        if isinstance(event, e.Ticked):
            for scheduler, at_s in self._asked_s.items():
                self._in_time(scheduler, at_s, event.now)

    def astray(self, proposal: Proposal) -> None:
        """A fault keeps it from being committed in turn."""
        self._open = [x for x in self._open if x is not proposal]

    def _in_turn(self, event: e.MasterEvent, proposals: list[Proposal]) -> None:
        """A stream's choice, and its commit, wait for nothing but those of other streams, unless
        these have filled the turn."""
        waiting = [f"{x.scheduler} has claims of a stream" for x in self._open if _is_stream(x)]
        if self._at_once < self._at_once_max:
            waiting += [f"{x} is to look for a stream" for x in sorted(self._owed)]
        if waiting and not _serves_stream(event, proposals):
            self._violated(f"{waiting[0]}, and {type(event).__name__} is taken in before")

    def _fairly(self, event: e.MasterEvent, proposals: list[Proposal]) -> None:
        """Counts the steps for streams in a turn. After one that they have filled, batch is next.

        A round for which nothing is proposed may have been either's.
        """
        is_step, self._is_step = self._is_step, False
        is_round = isinstance(event, e.SchedulerWoken) or _in_process(event)
        if is_round and not is_step:
            self._at_once += 1
            return
        due = [x.scheduler for x in self._open if not _is_stream(x)]
        due += [name for name, for_stream in self._due.items() if not for_stream]
        if isinstance(event, e.SchedulerWoken) and event.scheduler in due:
            due = []  # its turn has come; that its own streams go first is no other's concern
        streams = isinstance(event, e.ClaimsProposed) or bool(proposals)
        streams = streams and _serves_stream(event, proposals)
        if is_round and streams and due and self._at_once >= self._at_once_max:
            self._violated(f"batch of {due[0]} is due, and streams fill one turn after another")
        self._at_once = 0

    def _looked(self, event: e.SchedulerWoken, proposals: list[Proposal]) -> None:
        scheduler = event.scheduler
        self._owed.discard(scheduler)
        self._due.pop(scheduler, None)
        asked_s = self._asked_s.pop(scheduler, None)
        if asked_s is None or asked_s > event.now:
            self._violated(f"{scheduler} is woken, and has not been asked for, or not yet")
        else:
            self._in_time(scheduler, asked_s, event.now)
        for before in self._open:
            if proposals and not _is_stream(proposals[0]):
                self._violated(f"{scheduler} chooses before {before.scheduler} has committed")

    def _in_time(self, scheduler: str, asked_s: float, now: float) -> None:
        if self._awake_s(asked_s, now) > _LATE_S:
            self._violated(f"{scheduler} was to be woken {now - asked_s:.2f} s ago")

    def _owe(self, core: MasterCore, event: e.MasterEvent, asked: dict[str, float]) -> None:
        for name in asked:
            if self._stream_waits(core.placement.schedulers.get(name), event.now):
                self._owed.add(name)
        if isinstance(event, e.ContainersRequested | e.WorkloadClassObserved):
            app = core.master_state.applications.get(event.application_id)
            scheduler = None if app is None else core.placement.schedulers.get(app.scheduler)
            if scheduler is not None and self._stream_waits(scheduler, event.now):
                self._owed.add(scheduler.name)

    def _stream_waits(self, scheduler: Scheduler | None, now: float) -> bool:
        """Is its round due, and would it be for a stream?"""
        if scheduler is None or isinstance(scheduler, RemoteScheduler):
            return False
        if self._asked_s.get(scheduler.name, now + 1.0) > now:
            return False
        streams = [x for x in scheduler.jobs.values() if x.workload_class is WorkloadClass.STREAM]
        if scheduler.strict_order:  # what waits for others to end is tried, and so is the next one
            waits = scheduler.backlog.waits_for_others
            first = [x for x in streams if not waits(x)][:1]
            streams = [*first, *(x for x in streams if waits(x))]
        return any(job.not_before_s <= now for job in streams)


def _in_process(event: e.MasterEvent) -> bool:
    return isinstance(event, e.ClaimsProposed) and not event.call_id


def _serves_stream(event: e.MasterEvent, proposals: list[Proposal]) -> bool:
    if isinstance(event, e.SchedulerWoken):
        return all(map(_is_stream, proposals))
    return isinstance(event, e.ClaimsProposed) and _in_process(event) and _is_stream(event.proposal)


def _is_stream(proposal: Proposal) -> bool:
    return proposal.workload_class is WorkloadClass.STREAM
