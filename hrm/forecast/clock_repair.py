"""Times of events whose clock has jumped.

Events are numbered in the order in which they happened, so their times must not fall. Where they
do, some clock was wrong: the longest run of times that never falls is taken for right, for a clock
is right more often than not, and what stands between two right events is moved between them,
keeping its distances. That covers a clock that goes ahead for a while and comes back, and one that
falls behind and is set right. A clock that jumps ahead and stays there looks like silence, unless
it has passed the present: no time after that is right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["repaired_times"]


def repaired_times(
    times_s: Sequence[float], earliest_s: float, latest_s: float
) -> tuple[list[float], int]:
    """The times, in the order of the events, such that none is below the one before it.

    Args:
        times_s: as stated, in seconds.
        earliest_s: the time of the event before them.
        latest_s: the present.

    Returns:
        Times from ``earliest_s`` to ``latest_s``, and how many of the given ones were wrong.
    """
    right = _longest_rising(times_s, earliest_s, latest_s)
    found: list[float] = []
    before_s, offset_s = earliest_s, 0.0
    following = iter([*right, len(times_s)])
    next_right = next(following)
    for index, time_s in enumerate(times_s):
        if index == next_right:
            before_s = time_s
            next_right = next(following)
        else:
            if not found or index - 1 in right or index == 0:
                offset_s = time_s - before_s  # the first wrong one follows at once
            after_s = times_s[next_right] if next_right < len(times_s) else latest_s
            before_s = min(max(time_s - offset_s, before_s), max(after_s, before_s))
        found.append(before_s)
    return found, len(times_s) - len(right)


def _longest_rising(
    times_s: Sequence[float], earliest_s: float, latest_s: float
) -> dict[int, None]:
    """Indices of the longest subsequence that never falls and stays within the bounds."""
    tails: list[float] = []
    tail_indices: list[int] = []
    previous: list[int] = []
    for index, time_s in enumerate(times_s):
        if not earliest_s <= time_s <= latest_s:
            previous.append(-1)
            continue
        place = bisect_right(tails, time_s)
        previous.append(tail_indices[place - 1] if place else -1)
        tails[place:] = [time_s, *tails[place + 1 :]]
        tail_indices[place:] = [index, *tail_indices[place + 1 :]]
    chosen: list[int] = []
    index = tail_indices[-1] if tail_indices else -1
    while index >= 0:
        chosen.append(index)
        index = previous[index]
    return dict.fromkeys(reversed(chosen))
