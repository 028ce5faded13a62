"""Writes ``docs/queues-compared.md`` from the cases of ``tests/queues/cases``.

``python -m docs.generate.queues_compared docs/queues-compared.md`` (or ``make docs``) writes the
file; without an argument the text goes to stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.queues.field_cases import Case, Outcome, cases

__all__ = ["document"]

_HEAD = """# Queues, compared with YARN, YuniKorn and Kueue

This file is generated from `tests/queues/cases` by `make docs`; change it there.

What other resource managers guarantee of queues is written down in their tests: those of Hadoop
YARN's capacity scheduler, of Apache YuniKorn's core and of Kueue. Here are {all} of these
situations, with what the project does in each, and what HRM does.
`tests/queues/test_field_cases.py` runs each of them on HRM's own master, where past use, which the
others do not count, is switched off (`queue_use_half_life_s = 0`). In {same} the outcome is
the same, in {other} it is not, for the reason in the last column. The situations are retold as
facts: numbers of containers are often divided by ten, and what a project has and HRM has not (dead
zones, fences, lending limits) is named.

Most of the differences have one of these reasons:

- HRM preempts for a guarantee only, never so that another may borrow. So a queue that borrows keeps
  what it has until it is needed for a guarantee, and no two queues can take from each other in
  turn.
- No container ends without which its queue, or a queue above it, would have less than its
  guarantee. What is too large to end is never ended in part.
- Victims are the newest of all that is borrowed, batch before streams. The others choose by how far
  a queue is over its guarantee, or by priority; what is lost is more work.
- Within a queue, nothing is preempted for a priority or a user, unless the queue `interrupts`.
  No driver is ever preempted.
- A guarantee holds to the last container: there is no dead zone, and nothing is rounded.
"""

_COLUMNS = "| Case | Test | What it shows | What {project} does | What HRM does | Why it differs |"


def document() -> str:
    """The whole text of ``docs/queues-compared.md``."""
    every = cases()
    other = sum(bool(case.why) for case in every)
    lines = [_HEAD.format(all=len(every), same=len(every) - other, other=other)]
    for project in sorted({case.project for case in every}):
        of_project = [case for case in every if case.project == project]
        differs = sum(bool(case.why) for case in of_project)
        lines += [f"## {project}", "", f"{len(of_project)} cases, {differs} with a difference.", ""]
        lines += [_COLUMNS.format(project=project), "|---|---|---|---|---|---|"]
        lines += [_row(case) for case in of_project]
        lines.append("")
    return "\n".join(lines)


def _row(case: Case) -> str:
    shows = f"{case.shows} Adapted: {case.adapted}." if case.adapted else case.shows
    hrm = _outcome(case.hrm) if case.why else "the same"
    if not case.why and case.original.started is None:
        hrm = f"the same; {_starts(case.hrm)}" if _starts(case.hrm) else hrm
    cells = [
        f"`{case.name}`", f"{case.suite}: {case.test}", shows, _outcome(case.original), hrm,
        case.why,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _outcome(outcome: Outcome) -> str:
    losses = [_loss(name, which) for name, which in outcome.lost.items()]
    parts = [", ".join(losses) or "nothing is preempted", _starts(outcome), outcome.note]
    return "; ".join(part for part in parts if part)


def _loss(name: str, which: int | tuple[int, ...]) -> str:
    if isinstance(which, int):
        return f"{name} loses {which}"
    numbers = [str(number) for number in which]
    if len(numbers) > 2:
        return f"{name} loses numbers {numbers[0]} to {numbers[-1]}"
    return f"{name} loses number{'s' * (len(numbers) > 1)} {' and '.join(numbers)}"


def _starts(outcome: Outcome) -> str:
    starts = [f"{name} starts {count}" for name, count in (outcome.started or {}).items()]
    return ", ".join(starts)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(document())
    else:
        sys.stdout.write(document())
