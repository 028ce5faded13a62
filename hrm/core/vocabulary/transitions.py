"""The legal transitions of applications, containers and nodes: one table each, and nothing else.

A container is PENDING in a scheduler's queue until a claim for it is committed; ASSIGNED until its
node answers; WAITING in the queue of a resource unit; RUNNING; STOPPING between the order to stop
and the end; ENDED for good. Commit and node may disagree for a moment about WAITING and RUNNING,
because the node decides who starts: both directions are legal. After a restart of the master a
PENDING container may turn out to be WAITING, RUNNING or STOPPING at a node that reports it.

An application is DETACHED while its AppMaster is away; it comes back to what it was, or fails when
its grace period ends.

A table that also names events gives for each state and each event where it may lead, or why it
leads nowhere; such a machine keeps an ``EventLifecycle``.

Whatever a table does not hold raises ``InvalidTransition`` with the entity's latest history.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from hrm.core.vocabulary.model import ApplicationState as A
from hrm.core.vocabulary.model import ContainerState as C
from hrm.core.vocabulary.model import NodeState as N
from hrm.errors import InvalidTransition

__all__ = [
    "APPLICATION",
    "CONTAINER",
    "NODE",
    "EventLifecycle",
    "EventTable",
    "Ignored",
    "Lifecycle",
    "Move",
    "Watch",
    "event_name",
    "moves",
]

APPLICATION: dict[A, frozenset[A]] = {
    A.SUBMITTED: frozenset({A.RUNNING, A.DETACHED, A.SUCCEEDED, A.FAILED, A.KILLED}),
    A.RUNNING: frozenset({A.DETACHED, A.SUCCEEDED, A.FAILED, A.KILLED}),
    A.DETACHED: frozenset({A.SUBMITTED, A.RUNNING, A.SUCCEEDED, A.FAILED, A.KILLED}),
    A.SUCCEEDED: frozenset(),
    A.FAILED: frozenset(),
    A.KILLED: frozenset(),
}

CONTAINER: dict[C, frozenset[C]] = {
    C.PENDING: frozenset({C.ASSIGNED, C.WAITING, C.RUNNING, C.STOPPING, C.ENDED}),
    C.ASSIGNED: frozenset({C.WAITING, C.RUNNING, C.STOPPING, C.ENDED}),
    C.WAITING: frozenset({C.RUNNING, C.STOPPING, C.ENDED}),
    C.RUNNING: frozenset({C.WAITING, C.STOPPING, C.ENDED}),
    C.STOPPING: frozenset({C.ENDED}),
    C.ENDED: frozenset(),
}

NODE: dict[N, frozenset[N]] = {
    N.ALIVE: frozenset({N.DRAINING, N.LOST}),
    N.DRAINING: frozenset({N.ALIVE, N.LOST}),
    N.LOST: frozenset({N.ALIVE, N.DRAINING}),
}

S = TypeVar("S", bound=enum.Enum)
K = TypeVar("K")

HISTORY_LENGTH = 16

Move: TypeAlias = tuple[str, str, Any, enum.Enum | None, enum.Enum, float, str]
"""One move of one entity: its kind, its name, the life's ``owner``, from where (None: the entity is
new), to where, when, why. Of a node that is excluded or admitted the third is the application for
which alone that is so, empty: for all."""

Watch: TypeAlias = Callable[[Move], object]
"""Called with each move as it is made. It only observes: it must not act on the core."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """In place of states: the event changes no state here, and why that is right."""

    reason: str


EventTable: TypeAlias = Mapping[S, Mapping[K, frozenset[S] | Ignored]]
"""Of each state and each event the states that it may lead to; the same state: it may stay."""


def moves(table: EventTable[S, K]) -> dict[S, frozenset[S]]:
    """What may follow what, by whichever event."""
    found: dict[S, frozenset[S]] = {}
    for state, row in table.items():
        led = [to for to in row.values() if not isinstance(to, Ignored)]
        found[state] = frozenset[S]().union(*led) - {state}
    return found


class Lifecycle(Generic[S]):
    """The state of one entity, moved only along its table.

    Invariant: ``history`` holds the latest moves, oldest first, and its last entry led to
    ``state``.

    Kept flat, when, where to and why by turns, in one tuple: there is one of these for every
    container.

    ``owner``: the entity, where ``watch`` is to get it. Setting it makes a cycle of the two, so it
    must be reset when the life ends.
    """

    __slots__ = ("_history", "_kind", "_name", "_table", "_watch", "owner", "state")

    def __init__(
        self,
        kind: str,
        name: str,
        table: dict[S, frozenset[S]],
        state: S,
        watch: Watch | None = None,
    ) -> None:
        self._kind = kind
        self._name = name
        self._table = table
        self._history: tuple[Any, ...] = ()
        self._watch = watch
        self.owner: object = None
        self.state = state

    def move(self, to: S, now: float, why: str) -> bool:
        """Move to ``to``; False if it is there already.

        Raises:
            InvalidTransition: the table does not hold the move.
        """
        if to is self.state:
            return False
        if to not in self._table[self.state]:
            what, was = f"{self._kind} {self._name}", self.state.value
            raise InvalidTransition(
                f"{what} cannot go from {was} to {to.value} ({why})", self.history
            )
        if len(self._history) == 3 * HISTORY_LENGTH:
            self._history = self._history[3:]
        self._history = (*self._history, now, to, why)
        if self._watch is not None:
            self._watch((self._kind, self._name, self.owner, self.state, to, now, why))
        self.state = to
        return True

    def begin(self, now: float, why: str) -> None:
        """Notify the watch that the entity is new."""
        if self._watch is not None:
            self._watch((self._kind, self._name, self.owner, None, self.state, now, why))

    @property
    def history(self) -> tuple[str, ...]:
        kept = self._history
        moves = zip(kept[::3], kept[1::3], kept[2::3], strict=True)
        return tuple(f"{at:.3f} {state.value}: {why}" for at, state, why in moves)


class EventLifecycle(Lifecycle[S], Generic[S, K]):
    """The state of one entity, moved only by the events of its table."""

    __slots__ = ("_events",)

    def __init__(self, kind: str, name: str, table: EventTable[S, K], state: S) -> None:
        super().__init__(kind, name, moves(table), state)
        self._events = table

    def takes(self, event: K) -> bool:
        """False: the table ignores it in this state."""
        return not isinstance(self._events[self.state][event], Ignored)

    def follow(self, event: K, to: S, now: float) -> bool:
        """Move to ``to`` because of ``event``; False if it stays where it is, which the table must
        hold as well.

        Raises:
            InvalidTransition: the table does not hold this move for this event.
        """
        row, name = self._events[self.state][event], event_name(event)
        if isinstance(row, Ignored) or to not in row:
            what, was = f"{self._kind} {self._name}", self.state.value
            raise InvalidTransition(
                f"{what} cannot go from {was} to {to.value} by {name}", self.history
            )
        return self.move(to, now, name)


def event_name(event: object) -> str:
    """How a table's event is called: a class by its name, a member of an enum by its value."""
    return str(getattr(event, "__name__", None) or getattr(event, "value", event))
