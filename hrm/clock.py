"""The time of day by which a master decides: taken once, and moved by nothing but time.

Limits such as a node's silence or a lease are lengths of time, told as differences of ``now()``.
Were that the machine's time of day, a clock set forward would look like a cluster that has been
silent for as long. So a correction of the clock is taken over with the next start of the process.
"""

from __future__ import annotations

import time

__all__ = ["now"]

_BEGAN_S = time.time() - time.monotonic()


def now() -> float:
    """Seconds since the epoch, as this machine's clock had them when the process began, and on."""
    return _BEGAN_S + time.monotonic()
