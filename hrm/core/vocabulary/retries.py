"""Which failure ends a client of the master, and after which it opens another session.

A master that cannot be reached, is slow, restarts, or has reached a limit will be back: whatever
runs must not end for it. What only a change of settings can resolve ends the client where somebody
looks for the reason: at its start.

A refused token or field counts as such only where it is certain. In clear text any process may have
taken the port of a master that is down. And a client that a master has accepted before is right as
it is: a new master may have a new token, which is read for every attempt.

How long they pause between attempts: ``core.vocabulary.backoff``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm.errors import (
    AlreadyExists,
    HrmError,
    InvalidRequest,
    InvalidTransition,
    NotFound,
    PermissionDenied,
    Unsatisfiable,
)

__all__ = ["AGENT", "APP_MASTER", "SCHEDULER", "RetryRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """One kind of client: the errors that end it.

    Attributes:
        ends: at any time.
        ends_at_first: before a master has accepted it.
        ends_where_certain: before a master has accepted it, provided that the refusal is one of a
            master, or the error was found by the client itself.
    """

    ends: tuple[type[HrmError], ...] = ()
    ends_at_first: tuple[type[HrmError], ...] = ()
    ends_where_certain: tuple[type[HrmError], ...] = ()

    def allows(self, error: HrmError, *, known: bool, certain: bool = True) -> bool:
        """May the client try again after this error? ``known``: a master has accepted it before."""
        if isinstance(error, self.ends):
            return False
        if known:
            return True
        at_first = self.ends_at_first + (self.ends_where_certain if certain else ())
        return not isinstance(error, at_first)


_MISCONFIGURED = (PermissionDenied, InvalidRequest)

AGENT = RetryRule(ends=(AlreadyExists,), ends_where_certain=_MISCONFIGURED)
"""Another live agent has its name: two that take turns would be worse than one."""

APP_MASTER = RetryRule(
    ends=(InvalidRequest, NotFound, AlreadyExists, Unsatisfiable, InvalidTransition),
    ends_at_first=(HrmError,),
)
"""At first its user waits for it and reads the reason. Later its application may have ended without
it (``NotFound``), and what it sends is all the same: refused once, it is refused again."""

SCHEDULER = RetryRule(ends_at_first=(AlreadyExists,), ends_where_certain=_MISCONFIGURED)
"""The master may still count its last session as live, so only at first is its name another's."""
