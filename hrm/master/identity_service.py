"""IdentityService: tokens are made, listed and revoked, nodes enrol, and the audit log is read."""

from __future__ import annotations

from typing import Any

from hrm.core.vocabulary.model import NodeName
from hrm.errors import AlreadyExists, InvalidRequest, NotAllowed, NotFound
from hrm.identity.caller import caller, changed_nothing
from hrm.identity.registry import TokenRegistry
from hrm.identity.roles import AccessRole, Identity, IdentityKind
from hrm.identity.tokens import TokenRecord
from hrm.master.audit_log import AuditLog
from hrm.master.interpreter import Interpreter
from hrm.master.paging import page
from hrm.master.token_writes import TokenWrites
from hrm.v1 import identity_pb2 as pb
from hrm.v1 import identity_pb2_grpc
from hrm.wire import codec
from hrm.wire import identities as identity_wire

__all__ = ["IdentityService"]

AUDIT_DEFAULT, AUDIT_MAX = 100, 10_000


class IdentityService(identity_pb2_grpc.IdentityServiceServicer):
    """``registry``: of the server itself, so that changes hold at once."""

    def __init__(self, master: Interpreter, registry: TokenRegistry, audit: AuditLog) -> None:
        self._master = master
        self._registry = registry
        self._writes = TokenWrites(registry, master.store)
        self._audit = audit

    async def WhoAmI(self, request: Any, context: Any) -> pb.CallerIdentity:  # noqa: N802
        return identity_wire.from_identity(caller())

    async def CreateToken(  # noqa: N802
        self, request: pb.CreateTokenRequest, context: Any
    ) -> pb.CreatedToken:
        name, kind, role, lifetime_s = identity_wire.to_draft(request)
        self._check_disk()
        self._forget_ended()
        record, token = self._registry.draft(
            name=name, kind=kind, role=role, lifetime_s=lifetime_s, by=caller()
        )
        await self._writes.keep(record)
        return identity_wire.created(record, token, self._master.now())

    async def ListTokens(  # noqa: N802
        self, request: pb.ListTokensRequest, context: Any
    ) -> pb.ListTokensResponse:
        identity, now = caller(), self._master.now()
        name = codec.to_text(request.name, "name")
        records = [
            record
            for record in self._registry.tokens()
            if (request.include_ended or not record.has_ended(now))
            and (not name or record.name == name)
            and _is_of(record, identity)
        ]
        tokens, next_page = page(
            records, lambda x: (x.created_at_s, x.token_id), self._message, request
        )
        return pb.ListTokensResponse(tokens=tokens, next_page_token=next_page)

    async def RevokeToken(  # noqa: N802
        self, request: pb.RevokeTokenRequest, context: Any
    ) -> pb.TokenInfo:
        identity = caller()
        record = self._registry.revoked(request.token_id)
        if not _is_of(record, identity):
            raise NotFound(f"you have no token {request.token_id!r}; hrm token list shows yours")
        if record is self._registry.record(record.token_id):
            changed_nothing()
            await self._writes.written(record.token_id)
        else:
            await self._writes.keep(record)
        return self._message(record)

    async def EnrolNode(  # noqa: N802
        self, request: pb.EnrolNodeRequest, context: Any
    ) -> pb.CreatedToken:
        node = NodeName(codec.to_name(request.node, "node"))
        identity, registry = caller(), self._registry
        if identity.role is AccessRole.JOINING and identity.name not in ("", node):
            raise NotAllowed(
                f"this join token is for node {identity.name}, and not for {node!r}; make one for "
                f"that: hrm token create --role agent --join --node {node}"
            )
        known = registry.of_node(node)
        if known is not None:
            raise AlreadyExists(
                f"node {node!r} has enrolled, with token {known.token_id}; give this one another "
                f"name, or revoke that first: hrm token revoke {known.token_id}"
            )
        self._check_disk()
        self._forget_ended()
        record, token = registry.draft(
            name=node, kind=IdentityKind.NODE, role=AccessRole.AGENT, lifetime_s=0.0, by=identity
        )
        used = [registry.used(identity, node)] if identity.role is AccessRole.JOINING else []
        await self._writes.keep(*used, record)
        return identity_wire.created(record, token, self._master.now())

    async def ReadAudit(  # noqa: N802
        self, request: pb.ReadAuditRequest, context: Any
    ) -> pb.ReadAuditResponse:
        limit = request.limit or AUDIT_DEFAULT
        if not 1 <= limit <= AUDIT_MAX:
            raise InvalidRequest(f"limit is {limit}; it must be from 1 to {AUDIT_MAX}")
        found = await self._audit.latest(
            name=codec.to_text(request.name, "name"),
            since_s=identity_wire.to_since(request.since_s),
            limit=limit,
        )
        return identity_wire.from_records(found, self._audit.dropped)

    def _forget_ended(self) -> None:
        """Of what has ended, what need not be known any more: one more token can be kept,
        unless too many are valid."""
        self._writes.forget(self._registry.forgettable())

    def _check_disk(self) -> None:
        if self._master.full is not None:
            raise self._master.full

    def _message(self, record: TokenRecord) -> pb.TokenInfo:
        return identity_wire.from_token(record, self._master.now())


def _is_of(record: TokenRecord, identity: Identity) -> bool:
    """May this identity see and revoke it?"""
    own = (record.name, record.kind) == (identity.name, identity.kind)
    return own or identity.role is AccessRole.ADMIN
