"""The time of day for a master's decisions: read once, then advanced by elapsed time only.

Limits such as a node's silence or a lease are durations, computed as differences of ``now()``. With
the machine's time of day, a clock set forward would look like a cluster that has been silent for as
long. So a correction of the clock takes effect with the next start of the process.
"""

from __future__ import annotations

import time

__all__ = ["now"]

_BEGAN_S = time.time() - time.monotonic()


def now() -> float:
    """Seconds since the epoch: the machine's clock at the process's start plus elapsed time."""
    return _BEGAN_S + time.monotonic()
