"""Writes ``docs/states.md``: the state diagrams, drawn from the transition tables themselves.

``python -m docs.generate.states docs/states.md`` (or ``make docs``) writes the file; without an
argument the text goes to stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from hrm.core.appmaster.lifecycle import APPMASTER, APPMASTER_CONTAINER
from hrm.core.messages.submissions import SUBMISSION
from hrm.core.vocabulary.ends import END_RULES, EXITED_WELL
from hrm.core.vocabulary.model import EndCause
from hrm.core.vocabulary.transitions import (
    APPLICATION,
    CONTAINER,
    NODE,
    EventTable,
    Ignored,
    event_name,
    moves,
)
from hrm.pipelines.core.subtasks import SUBTASK

__all__ = ["diagram", "document", "ends", "event_diagram", "ignored"]

_HEAD = """\
# States

Drawn from `hrm/core/vocabulary/transitions.py`, `hrm/core/messages/submissions.py`,
`hrm/core/appmaster/lifecycle.py` and `hrm/pipelines/core/subtasks.py` by `make docs`. What a
diagram does not show cannot happen: a core that is asked for it raises `InvalidTransition` with the
entity's latest history.
"""

_PARTS_WITH_EVENTS: list[tuple[str, str, EventTable[Any, Any]]] = [
    (
        "AppMaster",
        "Finishing: the application has ended, and there is no session to say so. Each event of "
        "`hrm/core/messages/appmaster.py` stands in the table of each state; those that are not "
        "drawn leave it as it is.",
        APPMASTER,
    ),
    (
        "Container, as its AppMaster sees it",
        "Requested: it has no process yet. One that is adopted begins as it is.",
        APPMASTER_CONTAINER,
    ),
]

_ENDS = """\
## Ends of containers

What follows from each cause (`hrm/core/vocabulary/ends.py`), where the container had not been asked
to stop: one that had counts against neither, and is replaced at once if it is still wanted.
"""

_PARTS: list[tuple[str, str, Mapping[Any, frozenset[Any]]]] = [
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
]


def diagram(table: Mapping[Any, frozenset[Any]]) -> str:
    """One table as a Mermaid state diagram, in the order of the table."""
    states: list[Enum] = list(table)
    lines = ["stateDiagram-v2", f"    [*] --> {states[0].value}"]
    for state in states:
        targets = [other for other in states if other in table[state]]
        lines += [f"    {state.value} --> {other.value}" for other in targets]
        if not targets:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join(lines)


def event_diagram(table: EventTable[Any, Any]) -> str:
    """A table that names events: which of them lead where, and which are ignored."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table)).value}"]
    for state, row in table.items():
        for other in table:
            led = [x for x, to in row.items() if not isinstance(to, Ignored) and other in to]
            if led and other is not state:
                names = ", ".join(map(event_name, led))
                lines.append(f"    {state.value} --> {other.value}: {names}")
        if not moves(table)[state]:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join(lines)


def ignored(table: EventTable[Any, Any]) -> str:
    """What the table ignores where, and why; of a final state, that it ignores everything."""
    found: dict[tuple[str, str], list[str]] = {}
    for state, row in table.items():
        for event, to in row.items():
            if isinstance(to, Ignored):
                found.setdefault((state.value, to.reason), []).append(event_name(event))
    lines = ["| where | ignored | why |", "|---|---|---|"]
    for (state, reason), events in found.items():
        every = len(events) == len(next(iter(table.values())))
        names = "everything" if every else ", ".join(events)
        lines.append(f"| {state} | {names} | {reason} |")
    return "\n".join(lines)


def ends() -> str:
    """What follows from each cause of an end, as a table."""
    lines = [
        "| cause | against the application (Spark: `causedByApp`) | replaced | against the node "
        "| ordinary | run time counts | seen to end |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [(f"{EndCause.EXITED.value}, code 0", EXITED_WELL)]
    rows += [(cause.value, rule) for cause, rule in END_RULES.items()]
    for name, rule in rows:
        replaced = "at once" if rule.blame.replaced_at_once else "after a pause"
        columns = (
            rule.blame.caused_by_app,
            replaced,
            rule.against_node,
            rule.ordinary,
            rule.complete,
            not rule.unseen,
        )
        said = (x if isinstance(x, str) else "yes" if x else "no" for x in columns)
        lines.append(f"| {name} | {' | '.join(said)} |")
    return "\n".join(lines)


def document() -> str:
    """The whole file."""
    parts = [
        f"## {name}\n\n{text}\n\n```mermaid\n{diagram(table)}\n```\n"
        for name, text, table in _PARTS
    ]
    parts += [
        f"## {name}\n\n{text}\n\n```mermaid\n{event_diagram(table)}\n```\n\n{ignored(table)}\n"
        for name, text, table in _PARTS_WITH_EVENTS
    ]
    return _HEAD + "\n" + "\n".join(parts) + f"\n{_ENDS}\n{ends()}\n"


def main() -> None:
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(document())
    else:
        sys.stdout.write(document())


if __name__ == "__main__":
    main()
