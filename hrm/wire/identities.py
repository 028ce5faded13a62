"""Identities, tokens and the audit log: dataclasses to protobuf, and requests checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from hrm.errors import InvalidRequest
from hrm.identity.audit import AuditRecord
from hrm.identity.roles import AccessRole, Identity, IdentityKind
from hrm.identity.tokens import TokenRecord
from hrm.v1 import identity_pb2 as pb
from hrm.wire import codec

__all__ = [
    "LIFETIME_MAX_S",
    "created",
    "from_identity",
    "from_records",
    "from_token",
    "to_draft",
    "to_since",
]

LIFETIME_MAX_S = 10 * 366 * 86_400.0
E = TypeVar("E", bound=Enum)


def to_draft(request: pb.CreateTokenRequest) -> tuple[str, IdentityKind, AccessRole, float]:
    """Name, kind, role and lifetime in seconds, 0 for one without an end.

    Raises:
        InvalidRequest: a field is malformed or out of range.
    """
    kind = _member(IdentityKind, request.kind, "kind")
    role = _member(AccessRole, request.role, "role")
    name = codec.to_name(request.name, "name") if request.name else ""
    lifetime_s = request.lifetime_s
    if not (math.isfinite(lifetime_s) and 0 <= lifetime_s <= LIFETIME_MAX_S):
        raise InvalidRequest(f"lifetime_s is {lifetime_s}; at most ten years, 0: without an end")
    return name, kind, role, lifetime_s


def _member(enum: type[E], value: str, field: str) -> E:
    for member in enum:
        if member.value == value:
            return member
    known = ", ".join(str(x.value) for x in enum)
    raise InvalidRequest(f"{field} is {value[:80]!r}; there are: {known}")


def to_since(since_s: float) -> float:
    """Raises InvalidRequest: it is no time."""
    if not 0 <= since_s < 1e12:
        raise InvalidRequest(f"since_s is {since_s}; it is in seconds since the epoch")
    return since_s


def from_identity(identity: Identity) -> pb.CallerIdentity:
    return pb.CallerIdentity(
        name=identity.name,
        kind=identity.kind.value,
        role=identity.role.value,
        token_id=identity.token_id,
        expires_at_s=identity.expires_at_s,
    )


def from_token(record: TokenRecord, now: float) -> pb.TokenInfo:
    """Without its digest."""
    return pb.TokenInfo(
        token_id=record.token_id,
        name=record.name,
        kind=record.kind.value,
        role=record.role.value,
        created_at_s=record.created_at_s,
        created_by=record.created_by,
        expires_at_s=record.expires_at_s,
        revoked_at_s=record.revoked_at_s,
        used_at_s=record.used_at_s,
        used_by=record.used_by,
        state=record.state(now),
    )


def created(record: TokenRecord, token: str, now: float) -> pb.CreatedToken:
    """The one message with a secret in it."""
    return pb.CreatedToken(info=from_token(record, now), token=token)


def from_records(records: Iterable[AuditRecord], dropped: int) -> pb.ReadAuditResponse:
    return pb.ReadAuditResponse(entries=[_from_audit(x) for x in records], dropped=dropped)


def _from_audit(record: AuditRecord) -> pb.AuditEntry:
    return pb.AuditEntry(
        at_s=record.at_s,
        name=record.name,
        kind=record.kind,
        role=record.role,
        token_id=record.token_id,
        peer=record.peer,
        method=record.method,
        what=record.what,
        result=record.result,
    )
