"""The groups of a user on the master's machine, for rules that place applications by them.

The directory that knows them may be remote (LDAP, AD), so a thread asks it, within a limit of time,
and what it said counts for a while. A user whom it does not know has no groups.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import structlog

__all__ = ["UserGroups"]

KEEP_S = 60.0
USERS_MAX = 10_000
GROUPS_MAX = 1_000
LOOKUP_LIMIT_S = 3.0

log = structlog.get_logger("master")


class UserGroups:
    """``is_asked`` False: no rule is about groups, and none is looked up."""

    def __init__(self, *, is_asked: bool) -> None:
        self._is_asked = is_asked
        self._known: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        self._threads = ThreadPoolExecutor(2, "hrm-groups")

    async def of(self, user: str) -> tuple[str, ...]:
        """The names of the user's groups, the main one first; none where they are not known."""
        if not self._is_asked or not user:
            return ()
        now = time.monotonic()
        if user in self._known and now - self._known[user][0] < KEEP_S:
            return self._known[user][1]
        looked_up = asyncio.get_running_loop().run_in_executor(self._threads, groups_of, user)
        try:
            groups = await asyncio.wait_for(looked_up, LOOKUP_LIMIT_S)
        except TimeoutError:
            log.warning("the groups of a user cannot be looked up in time", user=user)
            return self._known.get(user, (now, ()))[1]
        self._known[user] = (now, groups)
        self._known.move_to_end(user)
        while len(self._known) > USERS_MAX:
            self._known.popitem(last=False)
        return groups


def groups_of(user: str) -> tuple[str, ...]:
    """The groups of a user, the main one first; those without a name are left out."""
    try:
        numbers = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except (KeyError, ValueError, OSError):  # unknown; a NUL in the name; the directory is away
        return ()
    names = []
    for number in dict.fromkeys(numbers[:GROUPS_MAX]):
        try:
            names.append(grp.getgrgid(number).gr_name)
        except (KeyError, OSError):
            continue
    return tuple(names)
