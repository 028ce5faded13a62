"""How many files and connections a daemon may have open: as many as the system lets it.

The usual limit of 1,024 is for programs that use ``select``, which knows no larger descriptor. A
daemon has a connection for each that talks to it, so it takes what it may have, and what it starts
gets the old limit back: a container may be such a program, or a Java that makes tables of this
size.
"""

from __future__ import annotations

import contextlib
import resource

__all__ = ["connections_max", "for_children", "give_back", "raise_limit"]

DESCRIPTORS_MAX = 262_144
"""More than this a daemon does not take, however much it may have."""
RESERVED = 256
"""Descriptors that connections leave to everything else: stores, logs, pipes, samples of usage."""
CONNECTIONS_MIN = 16

_before: tuple[int, int] | None = None


def raise_limit() -> int:
    """Take what this process may have; answers what that is."""
    global _before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _before is None:
        _before = (soft, hard)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def for_children() -> int:
    """The limit (soft) of a process that a daemon starts: what its own was at its start."""
    return (_before or resource.getrlimit(resource.RLIMIT_NOFILE))[0]


def give_back(pid: int) -> None:
    """Give a process that was started just now the limit of ``for_children``."""
    with contextlib.suppress(OSError):  # it has ended
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (for_children(), hard))


def connections_max(wanted: int) -> int:
    """How many connections a server may take: ``wanted``, or what the limit leaves for them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(CONNECTIONS_MIN, soft - RESERVED))
