"""The lease of one attempt, as its runner on the node holds it.

    ASKING ──► HELD ──► OVER        the driver is started when HELD begins, killed when it ends
       └────────────────► OVER      refused, or no master has replied for too long

A lease is good from the moment at which it was requested, not from that of the reply: so it is over
here before the master gives the next attempt one (``hrm.core.submission.submissions`` explains
why). A first reply that comes later than that begins nothing: the lease is requested again. A
refusal ends it at once; any other failure only once its time has run out.

The runner (``hrm.agent.drivers.driver_runner``) and the simulator carry out what ``step`` returns.
Times are of a clock that goes on while the machine sleeps.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hrm.core.vocabulary.wakefulness import Patience
from hrm.errors import HrmError, NotFound, StaleEpoch, Unavailable

__all__ = ["DriverLease", "LeaseLimits", "LeaseState", "Renewal"]


class LeaseState(enum.Enum):
    """``OVER``: the driver must not run, and no further lease is requested."""

    ASKING = "asking"
    HELD = "held"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLimits:
    """``start_limit_s``: how long a master may be silent before the first lease, as far as the
    runner was awake; ``late_s``: the longest between two attempts while it is."""

    call_timeout_s: float = 5.0
    call_timeout_min_s: float = 0.05
    retry_s: float = 0.5
    start_limit_s: float = 120.0
    late_s: float = 7.5


@dataclass(frozen=True, slots=True)
class Renewal:
    """Request the lease from the master, and wait ``timeout_s``; the outcome is passed with
    ``number``."""

    number: int
    timeout_s: float


class DriverLease:
    """One attempt's. ``error``: why it is over.

    Invariant: at most one request is outstanding; an answer to another one is ignored.
    """

    def __init__(self, now: float, limits: LeaseLimits) -> None:
        self.state = LeaseState.ASKING
        self.error: HrmError | None = None
        self._limits = limits
        self._patience = Patience(now, limit_s=limits.start_limit_s, late_s=limits.late_s)
        self._ends_at_s = float("-inf")
        self._next_s = now
        self._number = 0
        self._asked_at_s: float | None = None
        self._problem = ""

    def step(self, now: float) -> Renewal | None:
        """The request to make now; None: nothing before ``due_s``, or it is over."""
        if self.state is LeaseState.OVER or self._asked_at_s is not None:
            return None
        if self.has_run_out(now):
            problem = f" ({self._problem})" if self._problem else ""
            self._end(Unavailable(f"no master has renewed the driver's lease in time{problem}"))
            return None
        if now < self._next_s:
            return None
        timeout_s = self._limits.call_timeout_s
        if self.state is LeaseState.HELD:
            left_s = self._ends_at_s - now
            timeout_s = max(self._limits.call_timeout_min_s, min(timeout_s, left_s))
        self._asked_at_s = now
        self._number += 1
        return Renewal(self._number, timeout_s)

    def has_run_out(self, now: float) -> bool:
        """Has it been held, and is its time over?"""
        return self.state is LeaseState.HELD and now >= self._ends_at_s

    def due_s(self) -> float | None:
        """When ``step`` has something to do; None: not before an answer, or never again."""
        if self.state is LeaseState.OVER or self._asked_at_s is not None:
            return None
        if self.state is LeaseState.HELD:
            return min(self._next_s, self._ends_at_s)
        return self._next_s

    def awaits(self, number: int) -> bool:
        """Is the request of this number outstanding?"""
        return number == self._number and self._asked_at_s is not None

    def granted(self, number: int, *, lease_s: float, renew_s: float, now: float) -> None:
        """The master grants it for ``lease_s``, 0 without a limit, and expects the next request
        after ``renew_s``. A first one that arrives when its time is over does not begin."""
        asked_at_s = self._take(number)
        if asked_at_s is None:
            return
        self._ends_at_s = asked_at_s + (lease_s or float("inf"))
        if self.state is LeaseState.ASKING and now >= self._ends_at_s:
            self._next_s = now  # the runner slept, and the next attempt may run by now
            return
        self._next_s = now + renew_s
        self.state = LeaseState.HELD

    def failed(self, number: int, error: HrmError, now: float) -> None:
        """The call was refused, or got no reply in time."""
        if self._take(number) is None:
            return
        first = self.state is LeaseState.ASKING
        if isinstance(error, StaleEpoch | NotFound) or (first and self._patience.is_over(now)):
            self._end(error)
            return
        self._problem = error.message
        self._next_s = now + self._limits.retry_s

    def end(self) -> None:
        """The driver has ended by itself."""
        self.state = LeaseState.OVER
        self._asked_at_s = None

    def _take(self, number: int) -> float | None:
        """When this request was made; None: it is not the outstanding one."""
        if not self.awaits(number):
            return None
        asked_at_s, self._asked_at_s = self._asked_at_s, None
        return asked_at_s

    def _end(self, error: HrmError) -> None:
        self.state = LeaseState.OVER
        self.error = error
