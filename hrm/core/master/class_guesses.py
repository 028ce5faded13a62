"""The class of an application before anything is known of it: what its last run turned out to be.

An undeclared application begins as batch until it is seen streaming. With static allocation that is
after it has requested its executors, which then wait and are preempted as batch. So an application
whose name and user are known begins with the class of its last run, and its evidence says so.

A guess is settled by evidence: by what the driver's detector reports, whichever it is, or by none.
A guessed stream that shows no stream within ``class_guess_s`` of its first executor's start is
batch from then on; so is one of which no executor has started for that long after its first
request, for as batch it might. While the AppMaster is away, or the master sleeps, reports cannot
arrive: then the guess stands until they had ``_HEARD_S`` to do so. A guess is never a reason to
refuse: see ``hrm.core.master.gangs``.

What a run turns out to be is a stream once it has been seen streaming, also if it no longer is when
it ends, as drivers stop their queries before they end. It is batch if it succeeds without, or if
its guess was wrong. Other ends say nothing: it may have failed before its first query. Nor does a
run whose class was declared, as those of the drivers of submissions are.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm.core.master.entities import Application
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.learned_classes import LearnedClass
from hrm.core.vocabulary.model import ApplicationId, WorkloadClass, is_driver
from hrm.core.vocabulary.ownership import MASTER

__all__ = ["ClassGuesses"]

_HEARD_S = 5.0
"""How long reports have to arrive where they could not before."""
_SHOWN = 80
"""Characters of a name that are shown."""


@dataclass(slots=True)
class _Guess:
    """``asked_at_s``: its first request to this master; None: there was none."""

    asked_at_s: float | None = None
    not_before_s: float = 0.0


class ClassGuesses:
    """Invariant: ``unsettled`` has all and only the live applications whose record says that they
    are guessed to be streams. ``_streamed``: live applications that this master has heard to be
    streams, whatever they are now; what an earlier one heard is in its table.
    """

    def __init__(self, master_state: MasterState) -> None:
        self._master_state = master_state
        self.unsettled: dict[ApplicationId, _Guess] = {}
        self._streamed: set[ApplicationId] = set()

    def first_class(self, event: e.ApplicationRegistered) -> tuple[WorkloadClass, str, bool]:
        """The class with which a new application begins, the evidence for it, and whether it has
        yet to be settled."""
        if event.declared_class is not None:
            driver = is_driver(event.new_id or event.application_id)
            evidence = "that of its submission" if driver else "declared by spark.hrm.class"
            if event.owner == MASTER and not driver:
                evidence = "that of its tasks"
            return event.declared_class, evidence, False
        known = None
        if self._master_state.bounds.class_guess_s:
            known = self._master_state.learned_classes.find((event.name, event.user))
        if known is None:
            return WorkloadClass.BATCH, "", False
        is_stream = known.workload_class is WorkloadClass.STREAM
        what = "a stream" if is_stream else "batch"
        name, user = event.name[:_SHOWN], event.user[:_SHOWN]
        evidence = f"the last run of {name} by {user}, {known.application_id}, was {what}"
        return known.workload_class, evidence, is_stream

    def began(self, app: Application, now: float) -> None:
        """A new application, or one that another master left."""
        if app.record.class_guessed and not app.record.state.ended:
            asked_at_s = now if app.recovered else None
            self.unsettled[app.application_id] = _Guess(asked_at_s, now + _HEARD_S)

    def requested(self, app: Application, now: float) -> None:
        guess = self.unsettled.get(app.application_id)
        if guess is not None and guess.asked_at_s is None:
            guess.asked_at_s = now

    def observed(self, app: Application, workload_class: WorkloadClass) -> None:
        """Its driver reports a class: it is no guess any more."""
        self.unsettled.pop(app.application_id, None)
        if workload_class is WorkloadClass.STREAM:
            self._streamed.add(app.application_id)
            self.learn(app, workload_class)

    def settled(self, app: Application) -> None:
        """It was guessed wrong."""
        self.unsettled.pop(app.application_id, None)
        self.learn(app, WorkloadClass.BATCH)

    def ended(self, app: Application, *, succeeded: bool) -> None:
        record, stream = app.record, WorkloadClass.STREAM
        streamed = app.application_id in self._streamed or (
            record.workload_class is stream and not record.class_guessed
        )
        known = self._master_state.learned_classes.rows.get((record.name, record.user))
        if known is not None and known.application_id == app.application_id:
            streamed = streamed or known.workload_class is stream
        self.unsettled.pop(app.application_id, None)
        self._streamed.discard(app.application_id)
        if succeeded and not streamed and record.declared_class is None:
            self.learn(app, WorkloadClass.BATCH)

    def woke(self, now: float) -> None:
        """The master slept: reports have not been read yet."""
        for guess in self.unsettled.values():
            guess.not_before_s = now + _HEARD_S

    def due(self, now: float) -> list[tuple[Application, str]]:
        """The guesses that were wrong, and why."""
        limit_s = self._master_state.bounds.class_guess_s
        found = []
        for application_id, guess in self.unsettled.items():
            app = self._master_state.live[application_id]
            if app.session is None:
                guess.not_before_s = now + _HEARD_S
            began_s, what = app.record.first_running_at_s, "of the start of its first executor"
            if not began_s and guess.asked_at_s is not None:
                began_s, what = guess.asked_at_s, "of its first request"
            if began_s and now >= max(began_s + limit_s, guess.not_before_s):
                found.append((app, f"no stream was seen within {limit_s:g} s {what}"))
        return found

    def learn(self, app: Application, workload_class: WorkloadClass) -> None:
        """Remember what this run turned out to be."""
        table, record = self._master_state.learned_classes, app.record
        row = LearnedClass(
            name=record.name,
            user=record.user,
            workload_class=workload_class,
            application_id=app.application_id,
        )
        if not table.limit or table.rows.get(row.key) == row:
            return
        self._master_state.out.append(c.PersistLearnedClass(row=row))
        for key in table.put(row):
            self._master_state.out.append(c.ForgetLearnedClass(key=key))
