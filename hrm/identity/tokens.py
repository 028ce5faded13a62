"""Tokens: how they look, and the record that is kept of each.

``hrm_ID_SECRET``: the id finds the record and may be shown; of the secret, 256 random bits, only a
SHA-256 is kept, which is enough because there is no dictionary of such secrets. The token of an
application or a submission, ``hrmapp_SCOPE_USER_PROOF``, has no record at all: its proof is an HMAC
of both under a key that is derived from the cluster's token, so it outlives the master's records;
it ends with what it is for.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from hrm.identity.roles import AccessRole, Identity, IdentityKind

__all__ = [
    "ApplicationTokens",
    "TokenRecord",
    "digest_of",
    "id_in",
    "is_join_token",
    "is_token_of",
    "master_credential",
    "new_token",
]

_SECRET_BYTES = 32
_ID_BYTES = 5
_TOKEN = re.compile(r"hrm(?:join)?_([0-9a-f]{10})_[A-Za-z0-9_-]{43}")
_APPLICATION = re.compile(
    r"hrmapp_([A-Za-z0-9][A-Za-z0-9.-]{0,252})_((?:[0-9a-f]{2})*)_([0-9a-f]{64})"
)
_PURPOSE = b"hrm: tokens of applications"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """One token, as the store keeps it.

    Attributes:
        digest: the SHA-256 of the whole token, in hexadecimal digits.
        name: whom it identifies; of a join token, the only node that may use it, empty: any.
        expires_at_s, revoked_at_s, used_at_s: seconds since the epoch; 0: never, not yet.
        used_by: the node that a join token has enrolled.
    """

    token_id: str
    digest: str
    name: str
    kind: IdentityKind
    role: AccessRole
    created_at_s: float
    created_by: str
    expires_at_s: float = 0.0
    revoked_at_s: float = 0.0
    used_at_s: float = 0.0
    used_by: str = ""

    @property
    def identity(self) -> Identity:
        return Identity(
            name=self.name,
            kind=self.kind,
            role=self.role,
            token_id=self.token_id,
            expires_at_s=self.expires_at_s,
        )

    def state(self, now: float) -> str:
        """valid, revoked, used or expired."""
        if not self.has_ended(now):
            return "valid"
        if self.revoked_at_s:
            return "revoked"
        return "used" if self.used_at_s else "expired"

    def has_ended(self, now: float) -> bool:
        return self.ended_at_s(now) > 0

    def ended_at_s(self, now: float) -> float:
        """When it has become worthless; 0: it is valid."""
        ends = [x for x in (self.revoked_at_s, self.used_at_s, self.expires_at_s) if 0 < x <= now]
        return min(ends, default=0.0)


def new_token(role: AccessRole) -> tuple[str, str]:
    """The id of a new token, and the token."""
    token_id = secrets.token_hex(_ID_BYTES)
    prefix = "hrmjoin" if role is AccessRole.JOINING else "hrm"
    return token_id, f"{prefix}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def id_in(token: str) -> str:
    """The id in a token; empty where it is none of this kind."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else ""


def is_join_token(token: str) -> bool:
    return token.startswith("hrmjoin_") and bool(id_in(token))


def is_token_of(record: TokenRecord, token: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(record.digest, digest_of(token))


def master_credential(digest: str) -> str:
    """What the master presents to the agent of the node that holds the token with this digest: an
    agent that has a token of its own does not know the cluster's, and can compute this."""
    return "hrmmaster_" + hashlib.sha256(f"hrm: to the agent {digest}".encode()).hexdigest()


class ApplicationTokens:
    """Makes and proves the tokens of applications, and of submissions for their drivers: each by an
    id, its scope, and its user. ``cluster_token``: who has that is an administrator, and needs no
    other."""

    def __init__(self, cluster_token: str) -> None:
        self._key = hmac.digest(cluster_token.encode(), _PURPOSE, "sha256")

    def token_of(self, scope: str, user: str) -> str:
        encoded = user.encode().hex()
        return f"hrmapp_{scope}_{encoded}_{self._proof(scope, encoded)}"

    def proven(self, token: str) -> tuple[str, str]:
        """The scope and the user of this token; no scope: it is none."""
        found = _APPLICATION.fullmatch(token)
        if found is None or not hmac.compare_digest(found[3], self._proof(found[1], found[2])):
            return "", ""
        return found[1], bytes.fromhex(found[2]).decode()

    def _proof(self, scope: str, encoded: str) -> str:
        # Neither part has the separator.
        return hmac.new(self._key, f"{scope}_{encoded}".encode(), "sha256").hexdigest()
