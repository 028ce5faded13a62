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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hrm.core.vocabulary.columns import Ints

__all__ = ["Contender", "Lot", "contenders", "fair_lots", "fair_parts"]


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
    users: list[Contender] = []
    for held, own in zip(held_mib, lots, strict=True):
        users += contenders(held, own)
    parts = iter(fair_parts(free_mib, users))
    return [[next(parts) for _ in own] for own in lots]


def contenders(held_mib: int, lots: Iterable[Lot]) -> Iterator[Contender]:
    """An application's lots in order, each after what those before it take."""
    for lot in lots:
        yield Contender(held_mib, *lot)
        held_mib += lot.size_mib * lot.most


def fair_parts(free_mib: int, users: Sequence[Contender]) -> list[int]:
    """How many containers of each user start, in order of submission.

    Of users with equal holdings the earlier one is first. The result takes at most ``free_mib``
    together, and what is left is less than any unserved user's container.
    """
    if not users or free_mib <= 0:
        return [0] * len(users)
    alike = Counter(users)
    held, size, most = np.array(list(alike), np.int64).T
    all_mib = size * np.array(list(alike.values()), np.int64)

    def taken_below(level: int) -> Ints:
        """How many each takes if all take one more while they hold less than ``level``."""
        taken: Ints = np.minimum(np.maximum(-((held - level) // size), 0), most)
        return taken

    low, high = int(held.min()), int(held.max()) + free_mib + int(size.max())
    while low + 1 < high:
        level = (low + high) // 2
        if int(taken_below(level) @ all_mib) <= free_mib:
            low = level
        else:
            high = level
    taken = taken_below(low)
    part_of = dict(zip(alike, taken.tolist(), strict=True))
    parts: list[int] = [part_of[user] for user in users]
    _share_rest(free_mib - int(taken @ all_mib), users, parts)
    return parts


def _share_rest(left_mib: int, users: Sequence[Contender], parts: list[int]) -> None:
    """What is less than one more for each goes to those that hold least, as far as it suffices."""
    if not left_mib:
        return
    least = [
        (x.held_mib + part * x.size_mib, index)
        for index, (part, x) in enumerate(zip(parts, users, strict=True))
        if part < x.most and x.size_mib <= left_mib
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
