"""Of which class an application is, and why: declared, reported, or guessed for a short time.

A record of its own says what each application reported and what each name turned out to be. An
application that declares its class has it for good. Another has what its driver reported last.
Before it has reported anything it has the class of the last run of its name, and if that makes it a
stream it is batch after ``class_guess_s``: not before, and no later than reports need to arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.model import ApplicationId, ApplicationState, WorkloadClass

__all__ = ["ClassSettling"]

_STREAM, _BATCH = WorkloadClass.STREAM, WorkloadClass.BATCH
_HEARD_S = 5.0
"""How long reports may need where they could not arrive before."""
_LATE_S = 1.5
"""A tick, and one that is late."""


@dataclass(slots=True)
class _Guess:
    """A stream by a guess: ``asked_s`` its first request, ``quiet_since_s`` since when nothing has
    kept reports from arriving."""

    asked_s: float
    quiet_since_s: float


class ClassSettling:
    """``seen``: how often what happened."""

    def __init__(
        self, violated: Callable[[str], None], awake_s: Callable[[float, float], float]
    ) -> None:
        self._violated = violated
        self._awake_s = awake_s
        self._known: set[ApplicationId] = set()
        self._class: dict[ApplicationId, WorkloadClass] = {}
        self._reported: dict[ApplicationId, WorkloadClass] = {}
        self._streamed: set[ApplicationId] = set()
        self._guesses: dict[ApplicationId, _Guess] = {}
        self._learned: dict[tuple[str, str], WorkloadClass] = {}
        self.seen: Counter[str] = Counter()

    def master_began(self, core: MasterCore) -> None:
        """It goes on with what its store has."""
        state = core.master_state
        self._reported.clear()
        self._guesses.clear()
        self._known = set(state.applications)
        rows = state.learned_classes.rows.values()
        self._learned = {row.key: row.workload_class for row in rows}
        self._streamed = {x.application_id for x in rows if x.workload_class is _STREAM}
        self._class = {x: app.record.workload_class for x, app in state.live.items()}
        for application_id, app in state.live.items():
            if app.record.class_guessed:
                self._guesses[application_id] = _Guess(0.0, 0.0)
            elif app.record.workload_class is _STREAM:
                self._streamed.add(application_id)

    def after(
        self, core: MasterCore, event: e.MasterEvent, commands: Iterable[c.MasterCommand]
    ) -> None:
        live, now = core.master_state.live, event.now
        for application_id, app in live.items():
            if application_id not in self._known:
                self._known.add(application_id)
                self._began(app, now)
        match event:
            case e.WorkloadClassObserved(application_id=x, workload_class=observed) if x in live:
                self._observed(live[x], observed)
            case e.ContainersRequested(application_id=x) if x in self._guesses:
                guess = self._guesses[x]
                guess.asked_s = guess.asked_s or now
        for application_id in [x for x in self._guesses if x not in live]:
            del self._guesses[application_id]
        for application_id, guess in self._guesses.items():
            if live[application_id].session is None or not guess.quiet_since_s:
                guess.quiet_since_s = now
                guess.asked_s = guess.asked_s or (now if live[application_id].recovered else 0.0)
        for app in live.values():
            self._check(core, app, event)
        for command in commands:
            match command:
                case c.NotifyApplication(notice=c.EndApplication(state=state)):
                    self._ended(core, command.application_id, state)

    def _began(self, app: Application, now: float) -> None:
        record = app.record
        known = self._learned.get((record.name, record.user), _BATCH)
        expected = record.declared_class or known
        if record.workload_class is not expected:
            self._violated(
                f"{app.application_id}, {record.name}, begins as {record.workload_class.value}; "
                f"{expected.value} is declared, or what the last run of that name was"
            )
        if record.declared_class is None and record.workload_class is _STREAM:
            self.seen["guessed"] += 1
            self._guesses[app.application_id] = _Guess(0.0, now)
        self._class[app.application_id] = record.workload_class

    def _observed(self, app: Application, observed: WorkloadClass) -> None:
        if app.record.declared_class is not None:
            return
        self.seen["confirmed"] += app.application_id in self._guesses and observed is _STREAM
        self._guesses.pop(app.application_id, None)
        self._reported[app.application_id] = self._class[app.application_id] = observed
        if observed is _STREAM:
            self._streamed.add(app.application_id)
            self._learned[app.record.name, app.record.user] = _STREAM

    def _check(self, core: MasterCore, app: Application, event: e.MasterEvent) -> None:
        name, record, guess = app.application_id, app.record, self._guesses.get(app.application_id)
        if record.declared_class is not None and record.workload_class is not record.declared_class:
            self._violated(f"{name} declares {record.declared_class.value}, and is another class")
        if guess is None:
            if record.workload_class is not self._class.setdefault(name, record.workload_class):
                self._violated(
                    f"{name} is {record.workload_class.value}; its driver, or else the guess, "
                    f"says {self._class[name].value}"
                )
            return
        limit_s = core.master_state.bounds.class_guess_s
        since_s = record.first_running_at_s or guess.asked_s
        if record.workload_class is _BATCH:
            self.seen["corrected"] += 1
            if not since_s or event.now < since_s + limit_s:
                self._violated(f"{name} is no stream any more after less than {limit_s:.1f} s")
            del self._guesses[name]
            self._class[name] = _BATCH
            self._learned[record.name, record.user] = _BATCH
        elif since_s and isinstance(event, e.Ticked):
            due_s = max(since_s + limit_s, guess.quiet_since_s + _HEARD_S)
            late_s = self._awake_s(due_s, event.now) if event.now > due_s else 0.0
            slept = self._awake_s(since_s, event.now) < event.now - since_s
            if late_s > _LATE_S + (2 * _HEARD_S if slept else 0.0):
                self._violated(f"{name} is a stream by a guess that was due {late_s:.1f} s ago")

    def _ended(
        self, core: MasterCore, application_id: ApplicationId, state: ApplicationState
    ) -> None:
        app = core.master_state.applications.get(application_id)
        if app is None or app.record.declared_class is not None:
            return
        if state is ApplicationState.SUCCEEDED and application_id not in self._streamed:
            self._learned[app.record.name, app.record.user] = _BATCH
