"""Priority in the master's loop: the work of schedulers first, then the reports of nodes.

A burst of grants is followed by a burst of reports, which would queue ahead of the next commits. So
reports wait while wakes and proposals of schedulers are due, but no longer than
``REPORT_DELAY_MAX_S``; only some are admitted together, to keep each turn of the loop short. The
stream behind a waiting report is not read, so no queue grows here and reports keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["REPORTS_AT_ONCE", "REPORT_DELAY_MAX_S", "ReportThrottle"]

REPORT_DELAY_MAX_S = 0.1
REPORTS_AT_ONCE = 64


class ReportThrottle:
    """Invariant: ``_next`` is set iff reports wait, and comes in time for the first of them."""

    def __init__(self) -> None:
        self._steps = 0
        self._reports: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._next: asyncio.Handle | None = None

    def step_due(self) -> None:
        """A scheduler has a step to do in one of the next turns of the loop."""
        self._steps += 1

    def step_done(self) -> None:
        """One such step is done."""
        self._steps -= 1
        if not self._steps and self._next is not None:
            self._next.cancel()
            self._come_back()

    async def of_report(self) -> None:
        """Wait until a node's report may be taken in."""
        if not self._steps and not self._reports:
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._reports.append((loop.time() + REPORT_DELAY_MAX_S, turn))
        if self._next is None:
            self._come_back()
        await turn

    def _come_back(self) -> None:
        loop = asyncio.get_running_loop()
        if self._steps:
            self._next = loop.call_at(self._reports[0][0], self._let_in)
        else:
            self._next = loop.call_soon(self._let_in)

    def _let_in(self) -> None:
        now = asyncio.get_running_loop().time()
        for _ in range(REPORTS_AT_ONCE):
            if not self._reports or (self._steps and now < self._reports[0][0]):
                break
            _, turn = self._reports.popleft()
            if not turn.done():
                turn.set_result(None)
        self._next = None
        if self._reports:
            self._come_back()
