"""Max-min fair parts of GPUs, counted in device memory.

Free GPUs go, one container at a time, to the application that holds the least device memory and
wants more, until none is left or none wants any. So shares continue to
be fair as containers end: an application that came late gets every GPU that becomes free until it
holds as much as the others.

Source: HRM paper, section 4.3.3 (fair share of GPUs), which shares out what is free among the jobs
of one round by its mean; counted here from what each holds already, as dominant resource fairness
does, and over the jobs of all schedulers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hrm.core.vocabulary.columns import Ints

__all__ = ["Contender", "Lot", "fair_lots", "fair_parts"]


class Contender(NamedTuple):
    """One application that wants GPUs. ``held_mib``: device memory that it holds already;
    ``size_mib``: of one container more, at least 1; ``most``: how many more it could get."""

    held_mib: int
    size_mib: int
    most: int


class Lot(NamedTuple):
    """Like containers of one application: ``size_mib`` of device memory for each, and how many of
    them it wants."""

    size_mib: int
    most: int


def fair_lots(
    free_mib: int, held_mib: Sequence[int], lots: Sequence[Sequence[Lot]]
) -> list[list[int]]:
    """How many of each lot start, for applications that hold ``held_mib`` and take their ``lots``
    in order: a lot counts what those before it take as held. The last of what is free may go to a
    later lot, where the containers of an earlier one are larger."""
    users = []
    for held, own in zip(held_mib, lots, strict=True):
        for lot in own:
            users.append(Contender(held, *lot))
            held += lot.size_mib * lot.most
    parts = iter(fair_parts(free_mib, users))
    return [[next(parts) for _ in own] for own in lots]


def fair_parts(free_mib: int, users: Sequence[Contender]) -> list[int]:
    """How many containers of each user start, in order of submission.

    Of users with equal holdings the earlier one is first. The result takes at most ``free_mib``
    together, and what is left is less than any unserved user's container.
    """
    if not users or free_mib <= 0:
        return [0] * len(users)
    held, size, most = np.array(users, np.int64).T

    def taken_below(level: int) -> Ints:
        """How many each takes if all take one more while they hold less than ``level``."""
        taken: Ints = np.clip(-((held - level) // size), 0, most)
        return taken

    low, high = int(held.min()), int(held.max()) + free_mib + int(size.max())
    while low + 1 < high:
        level = (low + high) // 2
        if int((taken_below(level) * size).sum()) <= free_mib:
            low = level
        else:
            high = level
    parts: list[int] = taken_below(low).tolist()
    left_mib = free_mib - sum(part * x.size_mib for part, x in zip(parts, users, strict=True))
    least = [
        (x.held_mib + part * x.size_mib, index)
        for index, (part, x) in enumerate(zip(parts, users, strict=True))
        if part < x.most
    ]
    heapq.heapify(least)
    while least and left_mib:
        holding_mib, index = heapq.heappop(least)
        user = users[index]
        if user.size_mib > left_mib:
            continue
        parts[index] += 1
        left_mib -= user.size_mib
        if parts[index] < user.most:
            heapq.heappush(least, (holding_mib + user.size_mib, index))
    return parts
