"""What a placement policy is asked, and what of its answers is taken.

A policy may be third-party code: what it returns is checked, and what it raises is caught. It knows
nothing of containers that yield (``hrm.core.queue.yielding``). So it is asked in up to three steps
where some run, or are to be placed: for what could start at once; for what could start once others
have yielded, on a view where these are gone, or, if it yields itself, beside what waits for more
than is free, on a view where this does not wait; and for what may wait. What fits where others
yield waits behind no container whose end is only estimated, and what yields at no unit while
another has a core that is of no use to anything there.
"""

from __future__ import annotations

import math
import operator
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hrm.core.messages.claims import Entry
from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.vocabulary.feasibility import Vector
from hrm.core.vocabulary.model import WorkloadClass
from hrm.core.vocabulary.quick import quick
from hrm.errors import PolicyFault

__all__ = ["Placement", "PlacementPolicy", "ask", "ask_in_steps"]

_ROWS = frozenset({int, type(None)})


@quick
@dataclass(frozen=True, slots=True)
class Placement:
    """Like containers of one job to be placed: as many as ``entries``, all of one demand.

    ``together``: a place for some of them is worth nothing; ``waiting_limit`` is 0 where they must
    start at once. ``run_s``: how long the longest of them is expected to run.
    """

    workload_class: WorkloadClass
    demand: Vector
    entries: tuple[Entry, ...]
    waiting_limit: int
    wait_max_s: float
    together: bool = False
    run_s: float = math.inf


class PlacementPolicy(Protocol):
    """Chooses units; commits nothing. One instance serves one scheduler.

    A policy may be third-party code: what it returns is checked, and what it raises is caught. One
    that has the attribute ``strict_order = True`` is called for the oldest job only, streams
    before batch, and within it in order of request, until one container is not placed.
    """

    name: str

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """A row of ``view`` for each entry, None where none admits it; reserves in ``view``."""
        ...


def ask_in_steps(
    policy: PlacementPolicy, view: ClusterView, placement: Placement, now: float
) -> list[int | None]:
    """``ask`` where some of what runs yields, or is to be placed. All entries yield, or none."""
    entries = placement.entries
    at_once = replace(placement, waiting_limit=0)
    rows = ask(policy, view, at_once, now)
    left = _left(rows)
    if left and _suppose(view, placement, now):
        found = ask(policy, view, _of(at_once, left), now)
        _put(rows, left, found)
        placed = zip(found, left, strict=True)
        view.resume([(row, entries[index]) for row, index in placed if row is not None], now)
    left = _left(rows) if placement.waiting_limit else []
    if left:
        _put(rows, left, ask(policy, view, _of(placement, left), now))
    return rows


def _suppose(view: ClusterView, placement: Placement, now: float) -> bool:
    """Prepare the view for the second step; False: it would find nothing."""
    if placement.entries[0].yields_now:
        return view.suppose_last(placement.demand, now)
    view.suppose_yielded()
    return True


def _left(rows: Sequence[int | None]) -> list[int]:
    return [index for index, row in enumerate(rows) if row is None]


def _of(placement: Placement, left: Sequence[int]) -> Placement:
    """The same for those that are left."""
    return replace(placement, entries=tuple(placement.entries[index] for index in left))


def _put(rows: list[int | None], left: Sequence[int], found: Sequence[int | None]) -> None:
    for index, row in zip(left, found, strict=True):
        rows[index] = row


def ask(
    policy: PlacementPolicy, view: ClusterView, placement: Placement, now: float
) -> list[int | None]:
    """The policy's result, if it is valid.

    Raises:
        PolicyFault: it raised, or returned something else than an open row for each container.
    """
    name = f"placement policy {getattr(policy, 'name', type(policy).__name__)!r}"
    try:
        chosen_rows = list(policy.place(view, placement, now))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}"
        raise PolicyFault(f"{name} failed: {what} ({where.filename}:{where.lineno})") from error
    wanted = len(placement.entries)
    if len(chosen_rows) != wanted:
        raise PolicyFault(f"{name} returned {len(chosen_rows)} rows for {wanted} containers")
    if set(map(type, chosen_rows)) <= _ROWS:
        taken = [each for each in chosen_rows if each is not None]
        if view.may_propose(taken, placement.demand):
            return chosen_rows
    rows: list[int | None] = []
    for each in chosen_rows:
        if each is None:
            rows.append(None)
            continue
        try:
            row = operator.index(each)
        except TypeError:
            raise PolicyFault(f"{name} returned {each!r}, which is no row") from None
        refusal = view.refusal(row, placement.demand)
        if refusal:
            raise PolicyFault(f"{name} returned row {row}: {refusal}")
        rows.append(row)
    return rows
