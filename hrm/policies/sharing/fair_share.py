"""Max-min fairness in whole units of one resource."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fair_share"]

_LEAST = 1e-300
"""Of the heaviest weight: less would be 0, by which nothing can be divided."""


def fair_share(
    wanted: Sequence[int], total: int, weights: Sequence[float] | None = None
) -> list[int]:
    """How much of ``total`` each gets: an equal part, or what it wants where that is less.

    What some do not want is divided among the others in the same way. With ``weights``, parts are
    in proportion to them. Of those that want more than their part, its *quota*, each gets the quota
    rounded down, and what is left goes in single units to those whose quotas lost most by that, the
    earlier of those that are alike: so nothing exceeds the quota by a whole unit, at any weight.

    Source: max-min fairness; in whole cores as in the two-level fairness paper, section 4.1.
    """
    given = [0] * len(wanted)
    active = [index for index, want in enumerate(wanted) if want > 0]
    parts = _relative(active, weights)
    active.sort(key=lambda index: (wanted[index] / parts[index], index))
    sums = [0.0]  # of the parts from each on: added from the end, so that nothing cancels
    for index in reversed(active):
        sums.append(sums[-1] + parts[index])
    for at, index in enumerate(active):
        if wanted[index] > total * parts[index] / sums[-1 - at]:
            _round(given, {i: total * parts[i] / sums[-1 - at] for i in sorted(active[at:])}, total)
            break
        given[index] = min(wanted[index], total)
        total -= given[index]
    return given


def _relative(active: Sequence[int], weights: Sequence[float] | None) -> dict[int, float]:
    """Of the heaviest: sums of very large weights would be infinite."""
    if weights is None:
        return dict.fromkeys(active, 1.0)
    heaviest = max((weights[index] for index in active), default=1.0)
    return {index: max(weights[index] / heaviest, _LEAST) for index in active}


def _round(given: list[int], quotas: dict[int, float], total: int) -> None:
    """Largest remainders: whole parts, then one unit each in the order of what they lost."""
    for index, quota in quotas.items():
        given[index] = int(quota)
    rest = total - sum(given[index] for index in quotas)
    for index in sorted(quotas, key=lambda i: (given[i] - quotas[i], i))[:rest]:
        given[index] += 1
