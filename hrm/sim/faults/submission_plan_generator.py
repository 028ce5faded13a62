"""What a seed means for cluster mode: which clients submit which drivers, and the bounds."""

from __future__ import annotations

from random import Random

from hrm.core.messages.submissions import SubmissionBounds
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.model import Resources
from hrm.sim.faults.plan import SubmissionPlan, source

__all__ = ["draw_submission_bounds", "draw_submissions"]

_RENEWALS = 6
"""In the time of one lease, as many as by default."""


def draw_submissions(seed: int, horizon_s: float) -> tuple[SubmissionPlan, ...]:
    count = source(seed, "submissions").randint(1, 4)
    return tuple(_submission(seed, n + 1, horizon_s) for n in range(count))


def draw_submission_bounds(seed: int, bounds: Bounds) -> SubmissionBounds:
    """Leases that are longer than it takes to lose a node, which makes one wait, or shorter."""
    chance = source(seed, "submission-bounds")
    lease_s = chance.uniform(4.0, 14.0)
    return SubmissionBounds(
        driver_lease_s=lease_s,
        lease_margin_s=chance.uniform(0.3, 1.0),
        renew_s=lease_s / _RENEWALS,
        driver_restart_delay_s=chance.uniform(0.1, 0.6),
        driver_restart_delay_max_s=chance.uniform(1.0, 3.0),
        driver_restarts_max=chance.randint(1, 4),
        driver_restart_window_s=chance.uniform(10.0, 60.0),
        driver_launches_max=chance.randint(2, 4),
        recovery_s=bounds.recovery_window_s + chance.uniform(0.5, 2.0),
    )


def _submission(seed: int, number: int, horizon_s: float) -> SubmissionPlan:
    chance = source(seed, f"submission-{number}")
    resources = Resources(1, 512 * chance.randint(1, 2))
    lives = tuple(_life(chance, horizon_s) for _ in range(chance.randint(1, 4)))
    return SubmissionPlan(
        name=f"client-{number}",
        start_s=chance.uniform(0.5, 0.5 * horizon_s),
        resources=resources,
        supervise=chance.random() < 0.75,
        stream=chance.random() < 0.4,
        lives=lives,
        executors=chance.choice((0, 0, 1, 2)),
    )


def _life(chance: Random, horizon_s: float) -> tuple[float, int]:
    """Some fail at once, some run as long as there are faults."""
    long_s = chance.uniform(6.0, horizon_s + 4.0)
    run_s = chance.choice((0.05, chance.uniform(0.5, 6.0), long_s, long_s, long_s))
    return run_s, chance.choice((0, 0, 1, 3, 137))
