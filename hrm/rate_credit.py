"""Rates with bursts: a token bucket, of which the word *token* would mean two things in HRM.

What has used less than its rate lately has credit, of at most ``BURST_S`` seconds' worth. Where
credit is used up, the next use may still be granted a little later: a caller that makes one call
after the other is slowed by that, and never refused.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Credit", "Rate"]

BURST_S = 10.0
"""Seconds' worth of uses that may come in one burst."""


class Rate:
    """``per_s``: uses a second, for long."""

    __slots__ = ("burst", "per_s")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.burst = max(1.0, BURST_S * per_s)
        """Uses that may come at once."""


@dataclass(slots=True)
class Credit:
    """``amount``: uses that may come now, as of ``at_s``; below 0: as many have been granted for
    later. All times are seconds of one monotonic clock."""

    amount: float
    at_s: float

    def take(self, rate: Rate, now: float, patience_s: float = 0.0) -> float | None:
        """Seconds until one more use is due, for which it is taken; None: they would be more than
        ``patience_s``, and nothing is taken."""
        self.amount = min(rate.burst, self.amount + (now - self.at_s) * rate.per_s)
        self.at_s = now
        if self.amount >= 1.0:
            self.amount -= 1.0
            return 0.0
        wait_s = (1.0 - self.amount) / rate.per_s
        if wait_s > patience_s:
            return None
        self.amount -= 1.0
        return wait_s

    def is_whole(self, rate: Rate, now: float) -> bool:
        """Is it what it would be without any use?"""
        return self.amount + (now - self.at_s) * rate.per_s >= rate.burst
