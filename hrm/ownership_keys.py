"""Ownership keys: how they are generated, and the digest that is kept of them.

Their purpose: ``hrm.core.vocabulary.ownership``.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from hrm.errors import InvalidRequest

__all__ = ["is_key", "new_key", "owner_of"]

_BYTES = 32
_KEY = re.compile(r"[A-Za-z0-9_-]{32,128}")


def new_key() -> str:
    """64 hexadecimal digits."""
    return secrets.token_hex(_BYTES)


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def owner_of(key: str) -> str:
    """The digest of ``key`` that the master keeps; empty where an older HRM sent none.

    Raises:
        InvalidRequest: the key is malformed. The message does not repeat it.
    """
    if not key:
        return ""
    if not is_key(key):
        raise InvalidRequest(
            "ownership_key: give 32 to 128 of A-Z, a-z, 0-9, - and _, drawn at random"
        )
    return hashlib.sha256(key.encode()).hexdigest()
