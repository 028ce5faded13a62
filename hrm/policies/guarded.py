"""A container placement policy under ``hrm.policies.guard``, next to the one that is in force.

The one in force, the heuristic, chooses for every question, on the scheduler's own view. Where its
mode lets the other one, the candidate, be asked, that chooses on a view of its own, which it may
spoil. If its choice is to count, and passes the checks, the scheduler's view is put back to what it
was and gets the candidate's choice instead.

A question is one call of ``place``: containers of one application, of one demand. Its key is the
application: of a canary, all containers of one application are placed by the same policy.

The checks, in order: the candidate is loaded; it was in time; it returned one whole number, or
None, for each container; each number is an open row of the table, large enough; something is placed
where the heuristic places something, and as much where all are to start together; nothing waits
where the negotiator would refuse that.

What the watchdog compares is the wait of each container, from its first proposal by the policy that
placed it until its node reports that it runs, over the wait that the heuristic had expected of its
own choice; both with ``START_S`` added. Containers of one application count as one, by their mean.
One that ends before it runs counts with what it has waited if that is more than was expected, else
not at all: that it would have waited less is not known.

Limits: one that never returns cannot be interrupted. A candidate sees choices that were not carried
out (in shadow, all its own), and so does the heuristic. A waiting stream, and a container that the
heuristic leaves with the scheduler, have no expected wait and count for neither.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.co_running import CoRunning
from hrm.core.scheduling.scheduler import Placement, PlacementPolicy
from hrm.core.vocabulary.event_table import Move, Watch
from hrm.core.vocabulary.feasibility import fits
from hrm.core.vocabulary.model import ContainerState, WorkloadClass, application_of
from hrm.errors import HrmError, InvalidConfig
from hrm.policies.guard import Doubt, GuardBounds, GuardMode, PolicyGuard, Reason, Recommendation
from hrm.policies.placement_helpers import may_still_wait

__all__ = ["BUDGET_EACH_S", "BUDGET_S", "START_S", "GuardedPlacement", "PlacementGuard"]

BUDGET_S = 0.010
BUDGET_EACH_S = 0.0001
"""What the candidate may take besides, for each container."""
START_S = 1.0
"""About what a start takes at its node: without it the ratios of those that start at once, which
are most, would be noise."""
_ROWS_MAX = 2**31
_TEXT_MAX = 200
_UNITS_SHOWN = 3

_Rows = list[int | None]


@dataclass(frozen=True, slots=True)
class _Choice:
    """A row for each container. Alike containers on the same units are the same choice, whichever
    is where."""

    rows: tuple[Any, ...] = field(compare=False)
    what: frozenset[tuple[int | None, int]]


@dataclass(slots=True)
class _Question:
    """``begin``: the scheduler's view as it was, None where the candidate is off; ``waits_s``: what
    the heuristic expects of its choice, for each container, NaN where that is unknown; ``placed``:
    how many it places."""

    pair: GuardedPlacement
    view: ClusterView
    begin: ClusterView | None
    placement: Placement
    now: float
    waits_s: list[float] = field(default_factory=list)
    placed: int = 0


class PlacementGuard:
    """The guard of one candidate for all schedulers of a master; each has a ``GuardedPlacement``.

    Args:
        candidate, heuristic: their names; ``origin``: where the candidate comes from, for people.
        clock_s: see ``PolicyGuard``.
    """

    def __init__(
        self,
        candidate: str,
        *,
        heuristic: str,
        origin: str,
        clock_s: Callable[[], float],
        mode: GuardMode = GuardMode.SHADOW,
        bounds: GuardBounds | None = None,
    ) -> None:
        self._pairs: list[GuardedPlacement] = []
        self._missing = "it is being loaded"
        self._awaited: dict[str, tuple[float, bool, float]] = {}
        """Of containers that were placed: when first by this side, whether the candidate's, and
        the expected response."""
        self.guard: PolicyGuard[_Question, _Choice] = PolicyGuard(
            policy=candidate,
            kind="placement",
            heuristic=heuristic,
            model=origin,
            schema="",
            learned=self._ask,
            fallback=_fall_back,
            clock_s=clock_s,
            mode=mode,
            bounds=GuardBounds(budget_s=BUDGET_S) if bounds is None else bounds,
            check=_check,
            budget_s=self._budget_of_s,
        )

    def around(
        self, heuristic: PlacementPolicy, candidate: PlacementPolicy | None = None
    ) -> GuardedPlacement:
        """The policy of the next scheduler: ``heuristic`` alone, until its candidate is there."""
        pair = GuardedPlacement(self, heuristic)
        self._pairs.append(pair)
        if candidate is not None:
            self.loaded_for(pair, candidate)
        return pair

    def loaded(self, candidates: Iterable[PlacementPolicy]) -> str:
        """Here are the candidates, one for each policy that this is ``around``. Returns why they
        cannot be used; empty if they can."""
        for pair, candidate in zip(self._pairs, candidates, strict=True):
            if why := self.loaded_for(pair, candidate):
                return why
        return ""

    def loaded_for(self, pair: GuardedPlacement, candidate: PlacementPolicy) -> str:
        """The same for one of them; where it cannot be used, none is."""
        try:
            pair.take(candidate)
        except BaseException as error:  # also of one that would end the process, as sys.exit does
            self.missed(_text(error))
            return self._missing
        return ""

    def missed(self, why: str) -> None:
        """There are none, and why."""
        self._missing = why
        for pair in self._pairs:
            pair.candidate = None

    def watching(self, watch: Watch | None = None) -> Watch:
        """A watch of the master's core from which this guard knows how containers fare, and which
        calls ``watch``."""

        def each(move: Move) -> None:
            if watch is not None:
                watch(move)
            if move[0] == "container" and self._awaited:
                self._moved(move[1], move[4], move[5])

        return each

    def expect(
        self,
        entries: Sequence[Entry],
        rows: Sequence[int | None],
        waits_s: Sequence[float],
        now: float,
        *,
        drawn: bool,
    ) -> None:
        """Await the start of those of ``entries`` that have a row, ``drawn`` if the candidate was
        to choose it; ``waits_s``: what the heuristic expected."""
        awaited = self._awaited
        for entry, row, wait_s in zip(entries, rows, waits_s, strict=True):
            container_id = entry.container_id
            known = awaited.get(container_id)
            if row is None or (known is not None and known[1] == drawn):
                continue
            awaited.pop(container_id, None)
            awaited[container_id] = (now, drawn, START_S + wait_s)
            unit = application_of(container_id)
            self.guard.expect(container_id, START_S + wait_s, drawn=drawn, unit=unit)
            if len(awaited) > self.guard.bounds.pending_max:
                del awaited[next(iter(awaited))]

    def _moved(self, container_id: str, state: object, now: float) -> None:
        ended = state is ContainerState.ENDED
        if not ended and state is not ContainerState.RUNNING:
            return
        since_s, _, expected_s = self._awaited.pop(container_id, (now, False, math.nan))
        response_s = START_S + max(0.0, now - since_s)
        if ended and not response_s > expected_s:
            self.guard.forget(container_id)
        else:
            self.guard.ended(container_id, now=now, response_s=response_s, ok=True)

    def _budget_of_s(self, question: _Question) -> float:
        return self.guard.bounds.budget_s + BUDGET_EACH_S * len(question.placement.entries)

    def _ask(self, question: _Question) -> Recommendation[_Choice]:
        candidate, begin, placement = question.pair.candidate, question.begin, question.placement
        if candidate is None or begin is None:
            raise Doubt(Reason.NOT_LOADED, self._missing)
        own = question.pair.own_view(begin)
        try:
            returned = candidate.place(own, placement, question.now)
            rows = _whole(returned, len(placement.entries))
        except Doubt as doubt:
            is_sound = isinstance(doubt.reason, Reason)
            raise Doubt(doubt.reason if is_sound else Reason.FAULT, _text(doubt.detail)) from doubt
        except BaseException as error:  # as ``loaded_for``
            raise Doubt(Reason.FAULT, _text(error)) from error
        return Recommendation(_choice(rows), _described(begin, placement, rows))


class GuardedPlacement:
    """A ``PlacementPolicy``: ``heuristic``, and its ``candidate`` as far as ``guard`` lets it.

    Its name is the heuristic's, which is in force. ``candidate``: None while it is not loaded.
    """

    def __init__(self, trust: PlacementGuard, heuristic: PlacementPolicy) -> None:
        self.name = heuristic.name
        self.strict_order = bool(getattr(heuristic, "strict_order", False))
        self.heuristic = heuristic
        self.candidate: PlacementPolicy | None = None
        self._trust = trust
        self._co_running: CoRunning | None = None
        self._begin: ClusterView | None = None
        self._own: ClusterView | None = None
        self._tried: ClusterView | None = None

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries, guard = placement.entries, self._trust.guard
        if not entries:
            return self.heuristic.place(view, placement, now)
        begin = None
        if guard.mode is not GuardMode.OFF:
            begin = self._begin = _as(self._begin, view)
        question = _Question(self, view, begin, placement, now)
        key = application_of(entries[0].container_id)
        decided, _ = guard.recommendation(key, question, now)
        rows = list(decided.decision.rows)
        if begin is None:
            return rows
        if decided.learned:
            view.follow(begin)
            for row, entry in zip(rows, entries, strict=True):
                if row is not None:
                    view.apply(row, entry, now)
        if question.waits_s:
            self._trust.expect(entries, rows, question.waits_s, now, drawn=decided.drawn)
        return rows

    def learns_from(self, co_running: CoRunning) -> None:
        """Passed on to each of the two that asks for it."""
        self._co_running = co_running
        if callable(learns_from := getattr(self.heuristic, "learns_from", None)):
            learns_from(co_running)
        if self.candidate is not None:
            self._trust.loaded_for(self, self.candidate)

    def take(self, candidate: PlacementPolicy) -> None:
        """From now on this is the candidate.

        Raises:
            InvalidConfig: it needs a scheduler of another kind.
            Exception: whatever it raises itself.
        """
        if bool(getattr(candidate, "strict_order", False)) != self.strict_order:
            has, lacks = ("has not", "has") if self.strict_order else ("has", "has not")
            raise InvalidConfig(
                f"{candidate.name} {has} strict_order = True, which {self.name} {lacks}: a "
                f"scheduler takes its jobs in one order for both"
            )
        learns_from = getattr(candidate, "learns_from", None)
        if callable(learns_from) and self._co_running is not None:
            learns_from(self._co_running)
        self.candidate = candidate

    def own_view(self, begin: ClusterView) -> ClusterView:
        """What the candidate may do as it likes with."""
        self._own = _as(self._own, begin)
        return self._own

    def trial_view(self, begin: ClusterView) -> ClusterView:
        """One in which a choice can be made again, step by step."""
        self._tried = _as(self._tried, begin)
        return self._tried


def _as(kept: ClusterView | None, view: ClusterView) -> ClusterView:
    """``kept``, made to be as ``view`` is now; another one where there is none of its state."""
    if kept is None or not kept.is_of(view):
        return view.fork()
    kept.follow(view)
    return kept


def _fall_back(question: _Question) -> Recommendation[_Choice]:
    pair, placement, begin = question.pair, question.placement, question.begin
    rows: list[Any] = list(pair.heuristic.place(question.view, placement, question.now))
    if begin is None:
        return Recommendation(_Choice(tuple(rows), frozenset()), "")
    try:
        sound = _whole(rows, len(placement.entries))
        taken = [row for row in sound if row is not None]
        is_sound = begin.may_propose(taken, placement.demand)
    except Doubt:
        is_sound = False
    if not is_sound:  # the scheduler says so
        return Recommendation(_Choice(tuple(rows), frozenset()), "no valid choice")
    question.placed = len(taken)
    question.waits_s = _expected_s(pair, begin, placement, sound, question.now)
    return Recommendation(_choice(sound), _described(begin, placement, sound))


def _expected_s(
    pair: GuardedPlacement, begin: ClusterView, placement: Placement, rows: _Rows, now: float
) -> list[float]:
    """The estimated wait of each container on its row of ``rows``, NaN without one."""
    if _all_start(begin, placement, rows):
        return [math.nan if row is None else 0.0 for row in rows]
    view, waits_s = pair.trial_view(begin), list[float]()
    stream = placement.workload_class is WorkloadClass.STREAM
    for row, entry in zip(rows, placement.entries, strict=True):
        wait_s = math.nan
        if row is not None:
            if _starts(view, placement, row):
                wait_s = 0.0
            elif not stream:
                wait_s = view.wait_s(placement.demand, row, now, placement.run_s)
            view.apply(row, entry, now)
        waits_s.append(wait_s)
    return waits_s


def _check(question: _Question, choice: _Choice) -> None:
    """See the module's docstring.

    Raises:
        Doubt: the candidate's choice must not count.
    """
    begin, placement = question.begin, question.placement
    assert begin is not None, "a candidate that is off is not asked"
    rows: _Rows = list(choice.rows)
    taken = [row for row in rows if row is not None]
    beyond = next((row for row in taken if not 0 <= row < len(begin.open)), None)
    if beyond is not None:
        raise Doubt(Reason.VALUE, f"there is no row {beyond}; rows are 0 to {len(begin.open) - 1}")
    if not (begin.open[taken].all() and begin.may_propose(taken, placement.demand)):
        whys = (begin.refusal(row, placement.demand) for row in taken)
        closed = (f"row {row} is closed in this round" for row in taken if not begin.open[row])
        raise Doubt(Reason.INFEASIBLE, next(filter(None, whys), "") or next(closed))
    # What a round leaves without any place stands for all that want the same, see ``Exhaustion``.
    least = question.placed if placement.together else min(1, question.placed)
    if len(taken) < least:
        name = question.pair.name
        raise Doubt(
            Reason.UNPLACED,
            f"{len(taken)} of {len(rows)} got a place, {name} has one for {question.placed}",
        )
    if question.pair.strict_order and None in rows[: len(taken)]:
        raise Doubt(Reason.INFEASIBLE, "it lets a later container overtake an earlier one")
    if _all_start(begin, placement, rows):
        return
    view = question.pair.trial_view(begin)
    for row, entry in zip(rows, placement.entries, strict=True):
        if row is None:
            continue
        if not _starts(view, placement, row):
            may_wait, _ = may_still_wait(view, placement, row, question.now)
            if not may_wait:
                raise Doubt(Reason.INFEASIBLE, f"none may wait any more at {view.unit_id(row)}")
        view.apply(row, entry, question.now)


def _starts(view: ClusterView, placement: Placement, row: int) -> bool:
    """Would one start at once at this row?"""
    waits = view.waiting_stream[row]
    if placement.workload_class is WorkloadClass.BATCH:
        waits = waits + view.waiting_batch[row]
    cores, memory_mib, device_mib, slots = view.free[row].tolist()
    return not waits and fits(placement.demand, (cores, memory_mib, device_mib, slots))


def _all_start(view: ClusterView, placement: Placement, rows: _Rows) -> bool:
    """Would all start at once, each on its row? False also where that is to be tried one by one, as
    units share cores."""
    if view.shares_cores:
        return False
    taken, counts = np.unique([row for row in rows if row is not None], return_counts=True)
    taken = taken.astype(np.int64)
    if view.waiting_stream[taken].any():
        return False
    if placement.workload_class is WorkloadClass.BATCH and view.waiting_batch[taken].any():
        return False
    wanted = counts[:, np.newaxis] * np.asarray(placement.demand, np.int64)
    return bool((view.free[taken] >= wanted).all())


def _whole(returned: Any, wanted: int) -> _Rows:
    """What ``place`` returned, as numbers.

    Raises:
        Doubt: it is no list of as many as ``wanted``, each of them a whole number or None.
    """
    try:
        values = list(itertools.islice(iter(returned), wanted + 1))
    except TypeError as error:
        raise Doubt(Reason.SHAPE, f"it returned a {type(returned).__name__}") from error
    rows: _Rows = []
    numbers = (x for x in values if isinstance(x, float | np.floating))
    if (odd := next((x for x in numbers if not np.isfinite(x)), None)) is not None:
        raise Doubt(Reason.NOT_FINITE, f"it returned {odd} for a row")
    for value in values:
        try:
            rows.append(None if value is None else operator.index(value))
        except TypeError as error:
            what = type(value).__name__
            raise Doubt(Reason.SHAPE, f"it returned a {what} for a row") from error
        if abs(rows[-1] or 0) > _ROWS_MAX:
            raise Doubt(Reason.VALUE, f"it returned a row beyond {_ROWS_MAX}")
    if len(rows) != wanted:
        many = f"more than {wanted}" if len(rows) > wanted else str(len(rows))
        raise Doubt(Reason.SHAPE, f"it returned {many} rows for {wanted} containers")
    return rows


def _choice(rows: _Rows) -> _Choice:
    return _Choice(tuple(rows), frozenset(Counter(rows).items()))


def _described(view: ClusterView, placement: Placement, rows: _Rows) -> str:
    """In words, whatever the rows are: they have not been checked."""
    counts = Counter(rows)
    left = counts.pop(None, 0)
    shown = []
    for row, many in counts.most_common(_UNITS_SHOWN):
        is_unit = row is not None and not view.refusal(row, placement.demand)
        shown.append(f"{many} at {view.unit_id(row) if is_unit and row is not None else row}")
    if len(counts) > _UNITS_SHOWN:
        shown.append(f"others at {len(counts) - _UNITS_SHOWN} more")
    if left:
        shown.append(f"{left} nowhere yet")
    return ", ".join(shown)


def _text(error: object) -> str:
    """An error in words, not too many, whatever it is."""
    try:
        text = error.message if isinstance(error, HrmError) else str(error)
    except BaseException:  # its own method may fail as well
        text = "no text"
    if isinstance(error, BaseException) and not isinstance(error, HrmError):
        text = f"{type(error).__name__}: {text}"
    return text[:_TEXT_MAX]
