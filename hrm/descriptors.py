"""Raises a daemon's limit of open files and connections to the system's maximum.

The usual limit of 1,024 is for programs that use ``select``, which supports no larger descriptor. A
daemon has a connection per peer, so it raises its limit, and restores the old one for its child
processes: a container may be such a program, or a Java that allocates tables of this size.
"""

from __future__ import annotations

import contextlib
import resource

__all__ = ["connections_max", "for_children", "give_back", "raise_limit"]

DESCRIPTORS_MAX = 262_144
"""A daemon uses no more than this, whatever the limit."""
RESERVED = 256
"""Descriptors that connections leave to everything else: stores, logs, pipes, samples of usage."""
CONNECTIONS_MIN = 16

_before: tuple[int, int] | None = None


def raise_limit() -> int:
    """Raise the limit as far as allowed; returns the limit in force."""
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
    """The (soft) limit for a child process: the daemon's own at its start."""
    return (_before or resource.getrlimit(resource.RLIMIT_NOFILE))[0]


def give_back(pid: int) -> None:
    """Give a process that has just been started the limit of ``for_children``."""
    with contextlib.suppress(OSError):  # it has ended
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (for_children(), hard))


def connections_max(wanted: int) -> int:
    """How many connections a server may accept: ``wanted``, or what the limit leaves for them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(CONNECTIONS_MIN, soft - RESERVED))
