"""Max-min fairness in whole units of one resource."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fair_share"]


def fair_share(
    wanted: Sequence[int], total: int, weights: Sequence[float] | None = None
) -> list[int]:
    """How much of ``total`` each gets: an equal part, or what it wants where that is less.

    What some do not want is divided among the others in the same way. With ``weights``, parts are
    in proportion to them. A remainder of a unit or two goes to the first that still want one.

    Source: max-min fairness; in whole cores as in the two-level fairness paper, section 4.1.
    """
    given = [0] * len(wanted)
    active = [index for index, want in enumerate(wanted) if want > 0]
    while total > 0 and active:
        parts = _parts(active, total, weights)
        for index, part in zip(active, parts, strict=True):
            more = min(part, wanted[index] - given[index], total)
            given[index] += more
            total -= more
        active = [index for index in active if given[index] < wanted[index]]
    return given


def _parts(active: Sequence[int], total: int, weights: Sequence[float] | None) -> list[int]:
    """Whole parts of ``total``, rounded down; one each where that would be nothing for all."""
    if weights is None:
        return [max(total // len(active), 1)] * len(active)
    of_all = sum(weights[index] for index in active)
    parts = [int(total * weights[index] / of_all) for index in active]
    if any(parts):
        return parts
    # Less than one each: the heaviest first, the earlier of those that are alike.
    order = sorted(range(len(active)), key=lambda at: -weights[active[at]])
    for at in order[:total]:
        parts[at] = 1
    return parts
