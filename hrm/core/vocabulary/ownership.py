"""Ownership: which registration may speak for an application, a node or a submission.

Ids and names are public. So a component that has one makes a secret before its first registration,
its *ownership key* of 256 random bits, and sends it with every registration and attachment. It is
hashed at the wire (``hrm.ownership_keys.owner_of``): the master keeps the digest alone. A plain
hash is enough, because there is no dictionary of such keys. Of a submission the key itself is kept:
the node of its next driver must get it.

What has no owner on record was registered by an older HRM: the first registration with a key
becomes its owner.
"""

from __future__ import annotations

from hmac import compare_digest

from hrm.errors import NotOwner

__all__ = ["MASTER", "denied", "is_owner", "taken"]

MASTER = "master"
"""The owner of the applications that hold drivers. No digest equals it, so no key opens them."""


def is_owner(kept: str, given: str) -> bool:
    """Does ``given`` speak for what has ``kept`` on record? Compared in constant time."""
    return not kept or compare_digest(kept.encode(), given.encode())


def denied(what: str, instead: str) -> NotOwner:
    """For a registration as ``what`` that does not prove it; ``instead``: what to do."""
    return NotOwner(f"{what} is another's: its ownership key is not this one; {instead}")


def taken(submission_key: str, instead: str) -> NotOwner:
    """For a registration under the submission key of another user, or of another driver."""
    return NotOwner(f"{submission_key} is that of another's application; {instead}")
