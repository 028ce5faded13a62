"""The table of clients: what a row is, when two answers are equal, and what the report says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import common

__all__ = ["FAILED", "MISSING", "PASSED", "WITHOUT", "Row", "equal", "merged", "report", "verdict"]

PASSED = "equal"
FAILED = "fails on HRM"
WITHOUT = "fails without HRM"
MISSING = "not installed"
_DIGITS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check. ``local``, ``hrm``: its answers, in short; None where there is none.

    ``seconds_local``, ``seconds_hrm``: from the start of the client to its end.
    """

    check: str
    version: str
    result: str
    local: str | None = None
    hrm: str | None = None
    seconds_local: float | None = None
    seconds_hrm: float | None = None
    needed: str = ""
    note: str = ""
    commit: str = ""
    date: str = ""


def equal(one: Any, other: Any) -> bool:
    """Whether two answers are: JSON values, floats to six digits, as sums depend on their order."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=_DIGITS, abs_tol=_DIGITS)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)


def verdict(without: Any | None, with_hrm: Any | None) -> str:
    """The result of a check of which None is the answer of a run that failed."""
    if without is None:
        return WITHOUT
    return PASSED if with_hrm is not None and equal(without, with_hrm) else FAILED


def merged(before: Sequence[Row], now: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """Rows of earlier runs with those of this one in their places; checks that are gone go."""
    known = {row.check: row for row in (*before, *now)}
    return [known[name] for name in order if name in known]


def report(rows: Sequence[Row], checks: Sequence[str]) -> str:
    """The Markdown below the head of the results file; ``checks``: the names of all."""
    kinds = (PASSED, FAILED, WITHOUT, MISSING)
    counts = ", ".join(f"{sum(row.result == kind for row in rows)} {kind}" for kind in kinds)
    cells = [
        [
            row.check, row.version, _cell(row.local), _cell(row.hrm), row.result,
            _seconds(row.seconds_local), _seconds(row.seconds_hrm),
            row.needed or None, _cell(row.note or None), row.commit or None,
        ]
        for row in rows
    ]  # fmt: skip
    header = [
        "client", "version", "on local[2]", "on HRM", "result", "s local", "s HRM",
        "what HRM needed", "note", "commit",
    ]  # fmt: skip
    about = (
        f"{len(rows)} of {len(checks)} checks run: {counts}. Each client is in an environment "
        "of its own, unchanged, and is pointed at `local[2]` and at a cluster of two nodes on "
        "loopback in turn. *Equal* means: it ended well on both with the same answer, and on HRM "
        "the master has an application of it with an executor. Seconds are of one run, with other "
        "work on the machine: they show that it runs, not how fast."
    )
    left = [name for name in checks if name not in {row.check for row in rows}]
    rest = [f"Not run: {'; '.join(left)}."] if left else []
    return "\n\n".join([about, common.table(header, cells), *rest])


def _cell(text: str | None) -> str | None:
    return None if text is None else text.replace("|", "/").replace("\n", " ")[:160]


def _seconds(value: float | None) -> int | None:
    return None if value is None else round(value)
