"""The two lifecycles that an AppMaster tracks: its own, and that of each container.

Its own answers two questions, hence four states: is a session with the master open, and has the
application ended? One that ends while no session is open is FINISHING until the master is notified.

A container begins REQUESTED, or as another AppMaster or Spark left it: an adopted one may run or be
stopping. It is kept until it is ENDED, for whatever cause.

Each table names every event in every state. One that is ``Ignored`` changes no state; the table
gives the reason.
"""

from __future__ import annotations

from enum import Enum

from hrm.core.messages.appmaster import (
    AppMasterTicked,
    ClassObserved,
    ContainerListed,
    DriverFinished,
    EndOrdered,
    Event,
    ExclusionsChanged,
    ExecutorLimitSet,
    ExecutorsKilled,
    ExecutorsRefused,
    Phase,
    SessionLost,
    SessionOpened,
    TargetsChanged,
)
from hrm.core.vocabulary.event_table import EventTable, Ignored, to

__all__ = ["APPMASTER", "APPMASTER_CONTAINER", "AppMasterState", "ExecutorHappening"]


class AppMasterState(Enum):
    """Where the AppMaster stands with the master and with its driver."""

    DETACHED = "detached"
    ATTACHED = "attached"
    FINISHING = "finishing"
    """The application has ended, and there is no session to report it on."""
    FINISHED = "finished"
    """The application has ended, and the master has been notified in this session."""

    @property
    def attached(self) -> bool:
        return self in (AppMasterState.ATTACHED, AppMasterState.FINISHED)

    @property
    def ended(self) -> bool:
        return self in (AppMasterState.FINISHING, AppMasterState.FINISHED)


class ExecutorHappening(Enum):
    """What moves a container from one phase to the next, or does not."""

    SEEN_REQUESTED = "seen-requested"
    """The master reports that it waits."""
    SEEN_RUNNING = "seen-running"
    SEEN_STOPPING = "seen-stopping"
    SEEN_ENDED = "seen-ended"
    RELEASED = "released"
    """Spark, or its smaller target, no longer needs it."""
    REFUSED = "refused"
    """No node could ever hold it."""
    UNLISTED = "unlisted"
    """The master opens a session and does not list it."""
    UNCONFIRMED = "unconfirmed"
    """A new master had its time to find it at a node, and has not."""


_A, _H = AppMasterState, ExecutorHappening
_NO_SESSION = Ignored("no session is open")
_OVER = Ignored("the first end of the application is the one that counts")

APPMASTER: EventTable[AppMasterState, type[Event]] = {
    _A.DETACHED: {
        TargetsChanged: to(_A.DETACHED, _A.FINISHING),
        ExecutorsKilled: to(_A.DETACHED),
        ClassObserved: to(_A.DETACHED),
        ExclusionsChanged: to(_A.DETACHED),
        DriverFinished: to(_A.FINISHING),
        SessionOpened: to(_A.ATTACHED),
        SessionLost: _NO_SESSION,
        ContainerListed: to(_A.DETACHED, _A.FINISHING),
        ExecutorsRefused: to(_A.DETACHED, _A.FINISHING),
        ExecutorLimitSet: to(_A.DETACHED),
        EndOrdered: to(_A.FINISHING),
        AppMasterTicked: to(_A.DETACHED),
    },
    _A.ATTACHED: {
        TargetsChanged: to(_A.ATTACHED, _A.FINISHED),
        ExecutorsKilled: to(_A.ATTACHED),
        ClassObserved: to(_A.ATTACHED),
        ExclusionsChanged: to(_A.ATTACHED),
        DriverFinished: to(_A.FINISHED),
        SessionOpened: to(_A.ATTACHED, _A.FINISHED),
        SessionLost: to(_A.DETACHED),
        ContainerListed: to(_A.ATTACHED, _A.FINISHED),
        ExecutorsRefused: to(_A.ATTACHED, _A.FINISHED),
        ExecutorLimitSet: to(_A.ATTACHED),
        EndOrdered: to(_A.FINISHED),
        AppMasterTicked: to(_A.ATTACHED),
    },
    _A.FINISHING: {
        TargetsChanged: to(_A.FINISHING),
        ExecutorsKilled: to(_A.FINISHING),
        ClassObserved: to(_A.FINISHING),
        ExclusionsChanged: to(_A.FINISHING),
        DriverFinished: _OVER,
        SessionOpened: to(_A.FINISHED),
        SessionLost: _NO_SESSION,
        ContainerListed: to(_A.FINISHING),
        ExecutorsRefused: to(_A.FINISHING),
        ExecutorLimitSet: to(_A.FINISHING),
        EndOrdered: _OVER,
        AppMasterTicked: to(_A.FINISHING),
    },
    _A.FINISHED: {
        TargetsChanged: to(_A.FINISHED),
        ExecutorsKilled: to(_A.FINISHED),
        ClassObserved: to(_A.FINISHED),
        ExclusionsChanged: to(_A.FINISHED),
        DriverFinished: _OVER,
        SessionOpened: to(_A.FINISHED),
        SessionLost: to(_A.FINISHING),
        ContainerListed: to(_A.FINISHED),
        ExecutorsRefused: to(_A.FINISHED),
        ExecutorLimitSet: to(_A.FINISHED),
        EndOrdered: _OVER,
        AppMasterTicked: to(_A.FINISHED),
    },
}

_OVERTAKEN = Ignored("what runs waits no more: a later report has overtaken this one")
_NOT_TAKEN_BACK = Ignored("an order to stop is not revoked")
_GONE = Ignored("it is not kept any more; what the master lists again is adopted as another")

APPMASTER_CONTAINER: EventTable[Phase, ExecutorHappening] = {
    Phase.REQUESTED: {
        _H.SEEN_REQUESTED: to(Phase.REQUESTED),
        _H.SEEN_RUNNING: to(Phase.RUNNING),
        _H.SEEN_STOPPING: to(Phase.STOPPING),
        _H.SEEN_ENDED: to(Phase.ENDED),
        _H.RELEASED: to(Phase.STOPPING),
        _H.REFUSED: to(Phase.ENDED),
        _H.UNLISTED: to(Phase.REQUESTED, Phase.ENDED),
        _H.UNCONFIRMED: Ignored("only what ran has to be found again"),
    },
    Phase.RUNNING: {
        _H.SEEN_REQUESTED: _OVERTAKEN,
        _H.SEEN_RUNNING: to(Phase.RUNNING),
        _H.SEEN_STOPPING: to(Phase.STOPPING),
        _H.SEEN_ENDED: to(Phase.ENDED),
        _H.RELEASED: to(Phase.STOPPING),
        _H.REFUSED: Ignored("it runs, so a node could hold it"),
        _H.UNLISTED: to(Phase.RUNNING, Phase.ENDED),
        _H.UNCONFIRMED: to(Phase.ENDED),
    },
    Phase.STOPPING: {
        _H.SEEN_REQUESTED: _NOT_TAKEN_BACK,
        _H.SEEN_RUNNING: _NOT_TAKEN_BACK,
        _H.SEEN_STOPPING: to(Phase.STOPPING),
        _H.SEEN_ENDED: to(Phase.ENDED),
        _H.RELEASED: to(Phase.STOPPING),
        _H.REFUSED: to(Phase.ENDED),
        _H.UNLISTED: to(Phase.ENDED),
        _H.UNCONFIRMED: to(Phase.ENDED),
    },
    Phase.ENDED: dict.fromkeys(ExecutorHappening, _GONE),
}
