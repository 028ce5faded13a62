"""When a container that runs is due, once it has outlived its estimate.

That it is still there is evidence: the estimate was too small. So it gets more time, a quarter of
the estimate at first, doubled whenever that is over, too. The longer a container is overdue, the
longer it is expected to go on, as for run times with a long tail. Were it taken to end at any
moment instead, its unit would look as good as free, and the reservation of the first waiter would
let none pass.

One rule in two forms, for one container and for arrays, which give the same bits.

Source: the correction of predictions that a job has outlived (Tsafrir, Etsion, Feitelson,
Backfilling Using System-Generated Predictions Rather than User Runtime Estimates, IEEE TPDS 2007),
here by doubling instead of by a list of steps.
"""

from __future__ import annotations

import math

import numpy as np

from hrm.core.vocabulary.columns import Floats

__all__ = ["corrected_end_s", "corrected_ends_s"]

_FIRST_PART = 0.25
_LEAST_S = 0.001


def corrected_end_s(started_at_s: float, run_s: float, now: float) -> float:
    """When a container is due that has run since ``started_at_s`` and was to take ``run_s``
    seconds, finite: after ``now``, or at ``now`` where that is the very moment."""
    end_s = started_at_s + run_s
    if end_s >= now:
        return end_s
    more_s = max(run_s * _FIRST_PART, _LEAST_S)
    _, doublings = math.frexp((now - end_s) / more_s)
    more_s = math.ldexp(more_s, max(doublings, 0))
    # Rounding may make it ``now``.
    return end_s + (more_s if end_s + more_s > now else 2 * more_s)


def corrected_ends_s(started_at_s: Floats, run_s: Floats, now: float) -> Floats:
    """The same for each cell of arrays of one shape, all of which are overdue at ``now``."""
    end_s = started_at_s + run_s
    more_s = np.maximum(run_s * _FIRST_PART, _LEAST_S)
    _, doublings = np.frexp((now - end_s) / more_s)
    more_s = np.ldexp(more_s, np.maximum(doublings, 0))
    ends_s: Floats = end_s + np.where(end_s + more_s > now, more_s, 2 * more_s)
    return ends_s
