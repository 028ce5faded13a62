"""Dominant-resource fairness as far as a placement can give it, with first fit and no waiting.

Of two jobs, the one whose largest share of any resource is smaller goes first, and so their
dominant shares rise together. A placement policy does not choose the job, but can make the *steps*
equal: in one round a batch job gets containers worth at most ``TURN_SHARE`` of the cluster in their
dominant resource (always one), and the rest of it goes back behind the jobs that are ready.

What it does not do: make up for what a job got before the others came, take anything back, weigh
users, or take other schedulers' jobs into account: run it with ``schedulers = 1``. A stream or a
gang is all or nothing in HRM and is placed whole.

Source: progressive filling by dominant share (Ghodsi et al., "Dominant Resource Fairness", NSDI
2011, section 4.1), here in equal steps instead of by an account.
"""

from __future__ import annotations

import numpy as np

from hrm.core.scheduling.cluster_view import ClusterView
from hrm.core.scheduling.scheduler import Placement
from hrm.core.vocabulary.feasibility import Column, Vector
from hrm.core.vocabulary.model import WorkloadClass
from hrm.policies.placement_helpers import immediately_feasible, in_order, with_nones

__all__ = ["CentralizedDrf"]

TURN_SHARE = 1 / 16


class CentralizedDrf:
    """Keeps nothing between rounds."""

    name = "centralized-drf"

    def __init__(self, index: int = 0) -> None:
        del index

    def place(self, view: ClusterView, placement: Placement, now: float) -> list[int | None]:
        """See ``PlacementPolicy.place``."""
        entries = placement.entries
        batch = placement.workload_class is WorkloadClass.BATCH
        if batch and not placement.together:
            entries = entries[: _turn(view, placement.demand)]
        rows = immediately_feasible(view, placement)
        chosen = in_order(view, placement.demand, entries, rows, now)
        return with_nones(chosen, placement.entries)


def _turn(view: ClusterView, demand: Vector) -> int:
    """How many containers are worth ``TURN_SHARE`` of the open units, at least one.

    Slots are left out: they bound how many run, but no request states them.
    """
    total = view.total[view.open, : Column.SLOTS].sum(axis=0)
    wanted = np.asarray(demand[: Column.SLOTS], np.int64)
    counts = (wanted > 0) & (total > 0)
    if not counts.any():
        return 1
    dominant_share = float((wanted[counts] / total[counts]).max())
    return max(1, int(TURN_SHARE / dominant_share))
