"""The division of what a queue may have among its children, each resource by itself.

Guarantees come first: each child gets what it wants of its own. What is left goes to those that
want more, by weight, until none does ("water-filling").

Three properties, of every resource, which tests hold: no child gets more than it wants; nothing is
left while one wants more; none gets less than its guarantee, or all that it wants.
"""

from __future__ import annotations

import numpy as np

from hrm.core.vocabulary.columns import Floats

__all__ = ["divide", "water_fill"]


def divide(total: Floats, guaranteed: Floats, wanted: Floats, weights: Floats) -> Floats:
    """What each child gets, shape (children, resources).

    Args:
        total: what there is, shape (resources,).
        guaranteed: shape (children, resources); in sum no more than ``total``, or all are reduced
            by one factor.
        wanted: what each would use, with what it has; same shape.
        weights: shape (children,), all above 0.
    """
    first = np.minimum(guaranteed, wanted)
    sums = first.sum(axis=0)
    over = sums > total
    if over.any():
        first = first * np.where(over, total / np.where(sums > 0, sums, 1.0), 1.0)
        sums = np.minimum(sums, total)
    left, more = total - sums, wanted - first
    shares = first + np.minimum(more, 0.0)
    for resource in range(len(total)):
        shares[:, resource] += water_fill(
            float(left[resource]), np.maximum(more[:, resource], 0.0), weights
        )
    return shares


def water_fill(total: float, wanted: Floats, weights: Floats) -> Floats:
    """Parts of ``total`` in proportion to ``weights``, none more than ``wanted``; shape (n,)."""
    if wanted.sum() <= total:
        return wanted.copy()
    if total <= 0:
        return np.zeros_like(wanted)
    levels = wanted / weights
    order = np.argsort(levels, kind="stable")
    filled = np.concatenate(([0.0], np.cumsum(wanted[order])[:-1]))
    rest = np.cumsum(weights[order][::-1])[::-1]
    level = (total - filled) / rest
    # The first child, in order, that the water does not cover: from it on all get by weight.
    first = int(np.argmax(level < levels[order]))
    filled_to: Floats = np.minimum(wanted, weights * level[first])
    return filled_to
