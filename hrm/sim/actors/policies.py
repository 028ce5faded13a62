"""The built-in placement policies by name: independent of what else is installed, so that a seed
means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable

from hrm.core.scheduling.scheduler import PlacementPolicy
from hrm.policies.best_fit import BestFit
from hrm.policies.centralized_drf import CentralizedDrf
from hrm.policies.fifo import Fifo
from hrm.policies.fragmentation import Fragmentation
from hrm.policies.min_wait import MinWait
from hrm.policies.random import Random
from hrm.policies.round_robin import RoundRobin
from hrm.policies.worst_fit import WorstFit

__all__ = ["POLICIES", "load"]

POLICIES: dict[str, Callable[[int], PlacementPolicy]] = {
    "best-fit": BestFit,
    "centralized-drf": CentralizedDrf,
    "fifo": Fifo,
    "fragmentation": Fragmentation,
    "min-wait": MinWait,
    "random": Random,
    "round-robin": RoundRobin,
    "worst-fit": WorstFit,
}


def load(name: str, index: int) -> PlacementPolicy:
    """The policy for scheduler number ``index``."""
    return POLICIES[name](index)
