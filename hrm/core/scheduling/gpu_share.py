"""GPUs among several jobs: equal shares, and what one job does not need goes to those that do.

Max-min fairness in rounds: each job that still wants some gets the mean of what is left, or as many
as it wants; what was too much for some is shared out again.

Source: HRM paper, section 4.3.3 (fair share of GPUs), whose printed mean is rounded down to nothing
where there are fewer GPUs than jobs; here it is at least one, so the first jobs get one each.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["gpu_share"]


def gpu_share(free: int, wanted: Sequence[int]) -> list[int]:
    """How many of ``free`` GPUs each job gets that wants so many, in order of submission.

    None gets more than it wants, all is given while one of them wants it, and a job that gets less
    than it wants gets at most one less than any other.
    """
    given = [0] * len(wanted)
    short = [index for index, want in enumerate(wanted) if want > 0]
    while free > 0 and short:
        mean = max(free // len(short), 1)
        for index in short:
            part = min(mean, wanted[index] - given[index], free)
            given[index] += part
            free -= part
        short = [index for index in short if given[index] < wanted[index]]
    return given
