"""Pauses between attempts: each twice as long as the one before, up to a bound, and varied.

Whatever lost its master tries again by this rule: agents, AppMasters, schedulers. The variation
keeps those that lost a master at the same moment from coming back at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """The pauses of one client.

    Args:
        first_s: the longest that the first pause takes.
        max_s: the longest that any pause takes.
        draw: uniform in [0, 1); a pause takes from half of its bound, at 0, to all of it.
    """

    def __init__(self, first_s: float, max_s: float, draw: Callable[[], float]) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._draw = draw
        self._bound_s = first_s

    def pause_s(self) -> float:
        """Seconds until the next attempt; the pause after that one is up to twice as long."""
        pause_s = self._bound_s * (0.5 + 0.5 * self._draw())
        self._bound_s = min(self._max_s, 2 * self._bound_s)
        return pause_s

    def succeeded(self) -> None:
        """An attempt has come through: the next pause is a first one."""
        self._bound_s = self._first_s
