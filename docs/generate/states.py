"""Writes ``docs/states.md``: the state diagrams, drawn from the transition tables themselves.

``python -m docs.generate.states docs/states.md`` (or ``make docs``) writes the file; without an
argument the text goes to stdout.
"""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Any

from hrm.core.appmaster.lifecycle import APPMASTER, APPMASTER_CONTAINER
from hrm.core.messages.submissions import SUBMISSION
from hrm.core.node.container_life import CONTAINER_AT_NODE
from hrm.core.vocabulary.ends import END_RULES, EXIT_CODE_RULES
from hrm.core.vocabulary.event_table import (
    EventTable,
    Ignored,
    Impossible,
    Refused,
    event_name,
    moves,
)
from hrm.core.vocabulary.model import EndCause
from hrm.core.vocabulary.transitions import APPLICATION, CONTAINER, NODE
from hrm.pipelines.core.subtasks import SUBTASK

__all__ = ["diagram", "document", "ends", "reasons", "table"]

_HEAD = """\
# States

Drawn from `hrm/core/vocabulary/transitions.py`, `hrm/core/node/container_life.py`,
`hrm/core/messages/submissions.py`, `hrm/core/appmaster/lifecycle.py` and
`hrm/pipelines/core/subtasks.py` by `make docs`. These are the tables that the cores decide by: what
a table does not hold cannot happen, and a core that is asked for it raises `InvalidTransition` with
the entity's latest history.

Each table has all events in all states, and where an event may lead. Why it is ignored, refused or
impossible stands below.
"""

_ENDS = """\
## Ends of containers

What follows from each cause (`hrm/core/vocabulary/ends.py`), where the container had not been asked
to stop: one that had counts against neither, and is replaced at once if it is still wanted.
"""

_PARTS: list[tuple[str, str, EventTable[Any, Any]]] = [
    (
        "Application",
        "Detached: its AppMaster is away, and its containers go on until the grace period ends.",
        APPLICATION,
    ),
    (
        "Container",
        "Pending in a scheduler's queue; assigned to a node that has not answered; waiting in the "
        "queue of a resource unit. A master that has restarted may find a pending container at a "
        "node; a node may run what its master thought would wait, and the other way round.",
        CONTAINER,
    ),
    (
        "Container, at its node",
        "Assigned: only while the order is handled that brings it.",
        CONTAINER_AT_NODE,
    ),
    ("Node", "A lost node that registers again is alive.", NODE),
    (
        "Submission",
        "An application in cluster deploy mode. Submitted: its driver waits for a place. "
        "Launching: its node fetches files. One that is supervised, or never ran, waits to restart "
        "after it has failed or is lost: until no former driver can live.",
        SUBMISSION,
    ),
    (
        "Subtask of a pipeline",
        "Ready: what it comes after is done, and it waits for a core or a GPU. A run that fails "
        "makes it ready again while attempts are left. Dropped: its task ended before it did.",
        SUBTASK,
    ),
    (
        "AppMaster",
        "Finishing: the application has ended, and there is no session to say so. The events are "
        "those of `hrm/core/messages/appmaster.py`.",
        APPMASTER,
    ),
    (
        "Container, as its AppMaster sees it",
        "Requested: it has no process yet. One that is adopted begins as it is.",
        APPMASTER_CONTAINER,
    ),
]


def _reached(of: EventTable[Any, Any]) -> list[Any]:
    """The states that an entity may be in; it begins in the first."""
    states = list(of)
    led = set().union(*moves(of).values())
    return [state for state in states if state is states[0] or state in led]


def diagram(of: EventTable[Any, Any]) -> str:
    """A Mermaid state diagram: which events lead where."""
    states: list[Enum] = _reached(of)
    lines = ["stateDiagram-v2", f"    [*] --> {states[0].value}"]
    for state in states:
        for other in states:
            led = [x for x, to in of[state].items() if isinstance(to, frozenset) and other in to]
            if led and other is not state:
                names = ", ".join(map(event_name, led))
                lines.append(f"    {state.value} --> {other.value}: {names}")
        if not moves(of)[state]:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join(lines)


def table(of: EventTable[Any, Any]) -> str:
    """Each event in each state, and what it leads to."""
    states: list[Enum] = _reached(of)
    lines = [f"| event | {' | '.join(x.value for x in states)} |", "|---" * (len(states) + 1) + "|"]
    for event in of[states[0]]:
        cells = (_cell(of[state][event], state, states) for state in states)
        lines.append(f"| {event_name(event)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(to: frozenset[Enum] | Ignored | Impossible, state: Enum, states: list[Enum]) -> str:
    if not isinstance(to, frozenset):
        return _kind(to)
    return ", ".join("stays" if x is state else x.value for x in states if x in to)


def _kind(to: Ignored | Impossible) -> str:
    if isinstance(to, Impossible):
        return "impossible"
    return "refused" if isinstance(to, Refused) else "ignored"


def reasons(of: EventTable[Any, Any]) -> str:
    """Why events are ignored, refused or impossible, and where."""
    states = _reached(of)
    found: dict[tuple[str, str, str], list[str]] = {}
    for state in states:
        of_state: dict[Ignored | Impossible, list[str]] = {}
        for event, to in of[state].items():
            if not isinstance(to, frozenset):
                of_state.setdefault(to, []).append(event_name(event))
        for to, events in of_state.items():
            names = "everything" if len(events) == len(of[state]) else ", ".join(events)
            found.setdefault((names, _kind(to), to.reason), []).append(state.value)
    lines = ["| event | where | | why |", "|---|---|---|---|"]
    for (names, kind, why), where in found.items():
        lines.append(f"| {names} | {', '.join(where)} | {kind} | {why} |")
    return "\n".join(lines)


def ends() -> str:
    """What follows from each cause of an end, as a table."""
    lines = [
        "| cause | against the application (Spark: `causedByApp`) | replaced | avoids the node "
        "| against the node for all | ordinary | run time counts | seen to end |",
        "|---|---|---|---|---|---|---|---|",
    ]
    exited = EndCause.EXITED.value
    rows = [(f"{exited}, code {code}", rule) for code, rule in EXIT_CODE_RULES.items()]
    rows += [(cause.value, rule) for cause, rule in END_RULES.items()]
    for name, rule in rows:
        replaced = "at once" if rule.blame.replaced_at_once else "after a pause"
        columns = (
            rule.blame.caused_by_app,
            replaced,
            rule.avoids_node,
            rule.against_node,
            rule.ordinary,
            rule.complete,
            not rule.unseen,
        )
        cells = (x if isinstance(x, str) else "yes" if x else "no" for x in columns)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def document() -> str:
    """The whole file."""
    parts = [
        f"## {name}\n\n{text}\n\n```mermaid\n{diagram(of)}\n```\n\n{table(of)}\n\n{reasons(of)}\n"
        for name, text, of in _PARTS
    ]
    return _HEAD + "\n" + "\n".join(parts) + f"\n{_ENDS}\n{ends()}\n"


def main() -> None:
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(document())
    else:
        sys.stdout.write(document())


if __name__ == "__main__":
    main()
