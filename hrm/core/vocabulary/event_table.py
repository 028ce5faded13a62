"""Tables of what each event does in each state, and the ``Lifecycle`` of an entity by its table.

A table holds for each state and each event either the states that the event may lead to (the same
state: it may stay), or why it leads nowhere: it is ``Ignored``, ``Refused``, or ``Impossible``. No
pair is left out, and a test holds each table against the product of its states and events.

The machine that keeps an entity checks with its ``Lifecycle`` whether the event ``takes`` effect,
and moves by ``take`` where the table alone decides, by ``follow`` where it leaves a choice. There
is no other way to move, so whatever a table does not hold raises ``InvalidTransition`` with the
entity's latest history.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from hrm.errors import InvalidTransition

__all__ = [
    "EventTable",
    "Ignored",
    "Impossible",
    "Lifecycle",
    "Move",
    "Refused",
    "Watch",
    "event_name",
    "moves",
    "to",
]

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


@dataclass(frozen=True, slots=True)
class Refused(Ignored):
    """The event changes no state here, and its sender gets an error."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """In place of states: what keeps the event from an entity in this state; taking it raises."""

    reason: str


EventTable: TypeAlias = Mapping[S, Mapping[K, frozenset[S] | Ignored | Impossible]]
"""Of each state and each event the states that it may lead to; the same state: it may stay."""


def to(*states: S) -> frozenset[S]:
    """The states that an event may lead to, as a table holds them."""
    return frozenset(states)


def moves(table: EventTable[S, K]) -> dict[S, frozenset[S]]:
    """What may follow what, by whichever event."""
    found: dict[S, frozenset[S]] = {}
    for state, row in table.items():
        led = [states for states in row.values() if isinstance(states, frozenset)]
        found[state] = frozenset[S]().union(*led) - {state}
    return found


class Lifecycle(Generic[S, K]):
    """The state of one entity, moved only by the events of its table.

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
        table: EventTable[S, K],
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

    def takes(self, event: K) -> bool:
        """False: the table ignores or refuses it in this state.

        Raises:
            InvalidTransition: the table holds it for impossible.
        """
        row = self._table[self.state][event]
        if isinstance(row, Impossible):
            self._raise(f"be {self.state.value} and take {event_name(event)}: {row.reason}")
        return not isinstance(row, Ignored)

    def take(self, event: K, now: float, why: str = "") -> bool:
        """Move to the one state that ``event`` leads to; False if it leads nowhere, or stays.

        Raises:
            InvalidTransition: the table holds it for impossible, or leaves a choice.
        """
        led = self._table[self.state][event]
        if not isinstance(led, frozenset):
            return self.takes(event)
        if len(led) > 1:
            self._raise(f"go from {self.state.value} by {event_name(event)} without a choice")
        (only,) = led
        return self._move(only, now, why or event_name(event))

    def follow(self, event: K, to: S, now: float, why: str = "") -> bool:
        """Move to ``to`` because of ``event``; False if it stays where it is, which the table must
        hold as well.

        Raises:
            InvalidTransition: the table does not hold this move for this event.
        """
        led = self._table[self.state][event]
        if not isinstance(led, frozenset) or to not in led:
            self._raise(f"go from {self.state.value} to {to.value} by {event_name(event)} ({why})")
        return self._move(to, now, why or event_name(event))

    def begin(self, now: float, why: str) -> None:
        """Notify the watch that the entity is new."""
        if self._watch is not None:
            self._watch((self._kind, self._name, self.owner, None, self.state, now, why))

    @property
    def history(self) -> tuple[str, ...]:
        kept = self._history
        moves = zip(kept[::3], kept[1::3], kept[2::3], strict=True)
        return tuple(f"{at:.3f} {state.value}: {why}" for at, state, why in moves)

    def _move(self, to: S, now: float, why: str) -> bool:
        if to is self.state:
            return False
        if len(self._history) == 3 * HISTORY_LENGTH:
            self._history = self._history[3:]
        self._history = (*self._history, now, to, why)
        if self._watch is not None:
            self._watch((self._kind, self._name, self.owner, self.state, to, now, why))
        self.state = to
        return True

    def _raise(self, what: str) -> NoReturn:
        raise InvalidTransition(f"{self._kind} {self._name} cannot {what}", self.history)


def event_name(event: object) -> str:
    """How a table's event is called: a class by its name, a member of an enum by its value."""
    return str(getattr(event, "__name__", None) or getattr(event, "value", event))
