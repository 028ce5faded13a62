"""Why nothing of an application runs: when its user hears of it.

The master knows the reason (``hrm app why``); the user sees a prompt that does not move, and Spark
itself says after a while that there are no resources, without saying why. So an AppMaster whose
application has requested executors, and has had none for ``FIRST_S``, asks the master and prints
one line; another follows where the reason is another one, after ``PAUSE_S`` at the earliest. That
also bounds what a full cluster costs the master.

``WaitReporter`` decides and reads no clock: ``now`` is in seconds, monotonic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["FIRST_S", "PAUSE_S", "WaitReporter"]

FIRST_S = 5.0
PAUSE_S = 30.0
_QUEUED = re.compile(r"executor \d+ waits at ")
_DURATION = re.compile(r"\d+(?:\.\d+)? s\b")


class WaitReporter:
    """What has been asked and printed of one application."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._asked_at_s = float("-inf")
        self._printed = ""

    def asks(self, now: float, *, waits: bool) -> bool:
        """Whether to ask the master now; ``waits``: executors are requested, and none runs."""
        if not waits:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now
        if now - self._since_s < FIRST_S or now - self._asked_at_s < PAUSE_S:
            return False
        self._asked_at_s = now
        return True

    def line(self, application_id: str, summary: str, details: Iterable[str] = ()) -> str:
        """What to print of the master's explanation; empty where the reason is the same but for
        the time that has passed."""
        queued = next((x for x in details if _QUEUED.match(x)), "")  # of several the first
        reason = f"{summary}: {queued}" if queued else summary
        lasting = _DURATION.sub("", reason)
        if lasting == self._printed:
            return ""
        self._printed = lasting
        return f"HRM: {application_id} waits: {reason}; see hrm app why {application_id}"
