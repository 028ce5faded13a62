"""The words in which trust in a learned policy is expressed: its modes, doubts and limits.

``hrm.policies.guard`` acts by them, and offers them to its callers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Doubt", "GuardBounds", "GuardMode", "Reason"]


class GuardMode(enum.Enum):
    """How much a learned policy decides, from nothing to everything."""

    OFF = "off"
    SHADOW = "shadow"
    CANARY_1 = "canary-1"
    CANARY_10 = "canary-10"
    CANARY_50 = "canary-50"
    ON = "on"

    @property
    def share(self) -> float:
        """Share of the questions that the learned policy decides, 0..1; of ``on`` less
        ``GuardBounds.reference_share``."""
        return _SHARES.get(self, 0.0)


_SHARES = {
    GuardMode.CANARY_1: 0.01,
    GuardMode.CANARY_10: 0.1,
    GuardMode.CANARY_50: 0.5,
    GuardMode.ON: 1.0,
}


class Reason(enum.Enum):
    """Why the heuristic decided in place of the learned policy."""

    __hash__ = object.__hash__

    NOT_FINITE = "not-finite"
    VALUE = "value-out-of-range"
    BUDGET = "over-budget"
    BREAKER = "breaker-open"
    DISTRIBUTION = "out-of-distribution"
    DISAGREEMENT = "disagreement"
    UNKNOWN_TYPE = "unknown-type"
    UNMEASURED = "unmeasured"
    NODES = "node-count"
    SCHEMA = "schema"
    STALE = "stale-snapshot"
    INFEASIBLE = "infeasible"
    SHAPE = "wrong-shape"
    UNPLACED = "unplaced"
    NOT_LOADED = "not-loaded"
    FAULT = "fault"
    WATCHDOG = "watchdog"


class Doubt(Exception):
    """The learned policy's decision must not count. Raised by it, or by its checks."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardBounds:
    """The limits of trust, by name."""

    budget_s: float = 0.001
    """Most that one answer of the learned policy may take, on the guard's clock."""
    strikes: int = 3
    """Decisions over the time budget in a row that open the breaker."""
    breaker_s: float = 60.0
    reference_share: float = 0.05
    """Share of the questions that stays with the heuristic when the mode is ``on``, so that there
    is always something of the same time to compare with."""
    watch_factor: float = 1.1
    """How many times worse than the heuristic the learned policy may be."""
    watch_span: int = 4_000
    """Ends that are compared, the latest of both. Ends and not seconds: ten minutes may be a task
    or ten thousand."""
    watch_every: int = 50
    """Ends from one comparison to the next."""
    watch_false_alarms: float = 0.01
    """Probability of a roll back of a policy that is no worse, from one setting of the mode to the
    next, however long that is."""
    samples_min: int = 20
    """With fewer on either side there is no comparison."""
    samples_max: int = 512
    """Times of the learned policy's latest decisions that are kept."""
    failed_ratio: float = 10.0
    """What a failure counts as, in expected times."""
    pending_max: int = 100_000
    """Decisions of which the end is awaited; the oldest is forgotten first."""
    records_max: int = 100
    """Shadow records kept."""
