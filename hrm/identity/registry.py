"""Resolves credentials to identities, and knows which tokens there are and which have ended.

An ``Authenticator`` is all that a server needs: ``ClusterOnly`` knows the cluster's token alone,
``TokenRegistry`` those that were made with ``hrm token`` as well. The registry is memory; who
changes it writes the record to the store first, but for a revocation, which holds at once.

A call that lasts, such as a stream, ends with its token: ``until_ended``.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from hrm.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound, PermissionDenied
from hrm.identity.roles import CLUSTER, CLUSTER_NAME, AccessRole, Identity, IdentityKind
from hrm.identity.tokens import (
    ApplicationTokens,
    TokenRecord,
    digest_of,
    id_in,
    is_token_of,
    master_credential,
    new_token,
)

__all__ = [
    "REFUSAL",
    "TOKENS_MAX",
    "Authenticator",
    "ClusterOnly",
    "NodeAuthority",
    "TokenRegistry",
]

REFUSAL = (
    "missing or wrong token; HRM_TOKEN_FILE must name a copy of the master's token file, or a file "
    "with a token that hrm token create has made"
)
TOKENS_MAX = 10_000
"""Records that are kept, those of ended tokens among them."""
ENDED_KEPT_S = 30 * 86_400.0
"""How long an ended token is listed, and refused with the reason."""

KINDS = {
    AccessRole.AGENT: (IdentityKind.NODE,),
    AccessRole.JOINING: (IdentityKind.NODE,),
    AccessRole.SCHEDULER: (IdentityKind.SCHEDULER,),
}
_PEOPLE = (IdentityKind.USER, IdentityKind.SERVICE)


class Authenticator(Protocol):
    """What a server requires of whoever knows the credentials."""

    def identify(self, credential: str) -> Identity:
        """The identity of a credential.

        Raises:
            PermissionDenied: it is none, or has ended; with the reason.
            NotFound: it is an application's, which is over.
        """

    async def until_ended(self, identity: Identity) -> PermissionDenied:
        """The reason, once the token of an identity has ended."""


class ClusterOnly:
    """The cluster's token identifies its administrator; nothing else is accepted."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def identify(self, credential: str) -> Identity:
        if hmac.compare_digest(credential.encode(), self._token):
            return CLUSTER
        raise PermissionDenied(REFUSAL)

    async def until_ended(self, identity: Identity) -> PermissionDenied:
        await asyncio.Event().wait()
        raise AssertionError(f"the token of {identity} has no end")


class NodeAuthority:
    """Of an agent, which serves its master alone. The master shows the cluster's token, or, to an
    agent that has a token of its own, that it knows the digest of that."""

    def __init__(self, token: str) -> None:
        self.token = token
        """The agent's, which it may renew."""

    def identify(self, credential: str) -> Identity:
        """As of ``Authenticator``."""
        own = self.token
        return ClusterOnly(master_credential(digest_of(own)) if id_in(own) else own).identify(
            credential
        )

    async def until_ended(self, identity: Identity) -> PermissionDenied:
        """As of ``Authenticator``."""
        return await ClusterOnly(self.token).until_ended(identity)


class TokenRegistry:
    """The tokens of a master.

    Invariant: ids are unique, and at most ``TOKENS_MAX`` records are held.
    """

    def __init__(
        self,
        cluster_token: str,
        records: Iterable[TokenRecord] = (),
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.applications = ApplicationTokens(cluster_token)
        self._cluster = ClusterOnly(cluster_token)
        self._cluster_token = cluster_token
        self._nodes: dict[str, str] = {}
        """Of connected nodes with a token of their own: its id."""
        self._records = {record.token_id: record for record in records}
        self.user_of: Callable[[str], str | None] = _nobody
        """The user of an application or submission; None: there is none. Raises NotFound: it is
        over."""
        self._now = now
        self._changed: dict[str, set[asyncio.Event]] = defaultdict(set)

    # --- calls ---------------------------------------------------------------------------------

    def identify(self, credential: str) -> Identity:
        """As of ``Authenticator``."""
        record = self._records.get(id_in(credential))
        if record is not None and is_token_of(record, credential):
            if reason := self._end_of(record):
                raise PermissionDenied(reason)
            return record.identity
        scope, user = self.applications.proven(credential)
        if scope:
            known = self.user_of(scope)
            if known not in (None, user):
                raise PermissionDenied(REFUSAL)
            return Identity(
                name=user, kind=IdentityKind.APPLICATION, role=AccessRole.APPLICATION, scope=scope,
                forgotten=known is None,
            )  # fmt: skip
        return self._cluster.identify(credential)

    async def until_ended(self, identity: Identity) -> PermissionDenied:
        """The reason, once the token of an identity has ended. Never for one without a record."""
        changed = asyncio.Event()
        waiting = self._changed[identity.token_id]
        waiting.add(changed)
        try:
            while True:
                record = self._records.get(identity.token_id)
                if identity.token_id and record is None:
                    return PermissionDenied(REFUSAL)
                if record is not None and (reason := self._end_of(record)):
                    return PermissionDenied(reason)
                left_s = None
                if record is not None and record.expires_at_s:
                    left_s = max(0.01, record.expires_at_s - self._now())
                try:
                    await asyncio.wait_for(changed.wait(), left_s)
                except TimeoutError:
                    continue
                changed.clear()
        finally:
            waiting.discard(changed)
            if not waiting:
                self._changed.pop(identity.token_id, None)

    def _end_of(self, record: TokenRecord) -> str:
        """Why a token is worthless; empty: it is not."""
        if not record.has_ended(self._now()):
            return ""
        whose = f"the token {record.token_id} of {record.identity}"
        again = "an administrator makes another: hrm token create"
        if record.revoked_at_s:
            return f"{whose} was revoked at {_date(record.revoked_at_s)}; {again}"
        if record.used_at_s:
            return (
                f"the join token {record.token_id} works once, and node {record.used_by} has used "
                f"it at {_date(record.used_at_s)}; {again} --role agent --join"
            )
        return f"{whose} expired at {_date(record.expires_at_s)}; {again}"

    # --- changes -------------------------------------------------------------------------------

    def draft(
        self, *, name: str, kind: IdentityKind, role: AccessRole, lifetime_s: float, by: Identity
    ) -> tuple[TokenRecord, str]:
        """A new token and its record, which is not in force before ``put``.

        Raises:
            InvalidRequest: an identity of this kind cannot have this role, or lacks a name.
            AlreadyExists: the name is that of an identity of another kind.
            LimitReached: there are too many tokens.
        """
        if role is AccessRole.APPLICATION:
            raise InvalidRequest(
                "applications have tokens of their own making; give a user's role: submitter"
            )
        if kind not in KINDS.get(role, _PEOPLE):
            raise InvalidRequest(
                f"a {kind.value} cannot have the role {role.value}; that is for a "
                f"{' or a '.join(x.value for x in KINDS.get(role, _PEOPLE))}"
            )
        self._check_name(name, kind, role)
        now = self._now()
        if len(self._records) >= TOKENS_MAX:
            raise LimitReached(
                f"there are {TOKENS_MAX} tokens; revoke those that nobody uses: hrm token revoke"
            )
        token_id, token = new_token(role)
        record = TokenRecord(
            token_id=token_id, digest=digest_of(token), name=name, kind=kind, role=role,
            created_at_s=now, created_by=by.name,
            expires_at_s=now + lifetime_s if lifetime_s else 0.0,
        )  # fmt: skip
        return record, token

    def _check_name(self, name: str, kind: IdentityKind, role: AccessRole) -> None:
        if not name and role is not AccessRole.JOINING:
            raise InvalidRequest("name: whom the token identifies")
        if name == CLUSTER_NAME:
            raise InvalidRequest(f"{CLUSTER_NAME!r} is the holder of the cluster's own token")
        if kind not in _PEOPLE:
            return
        now = self._now()
        for record in self._records.values():
            of_another = record.name == name and record.kind in _PEOPLE and record.kind is not kind
            if of_another and not record.has_ended(now):
                raise AlreadyExists(
                    f"{record.identity} has a token, and users and services share their names; "
                    f"choose another name"
                )

    def put(self, record: TokenRecord) -> None:
        """From now on, this is the token's record. Calls of a token that has ended end."""
        self._records[record.token_id] = record
        for changed in self._changed.get(record.token_id, ()):
            changed.set()

    def revoked(self, token_id: str) -> TokenRecord:
        """The record of a token, as revoked now; an ended one as it is.

        Raises:
            NotFound: there is no such token.
            InvalidRequest: it is the cluster's own.
        """
        if token_id == CLUSTER_NAME:
            raise InvalidRequest(
                "the cluster's own token is the last administrator's, and cannot be revoked; to "
                "replace it: end the master, remove its token file, and start it again"
            )
        record = self._records.get(token_id)
        if record is None:
            raise NotFound(f"no such token: {token_id!r}; hrm token list shows them")
        now = self._now()
        return record if record.has_ended(now) else replace(record, revoked_at_s=now)

    def used(self, identity: Identity, node: str) -> TokenRecord:
        """The record of a join token, as used now by ``node``.

        Raises:
            PermissionDenied: it has been used meanwhile, or has ended.
        """
        record = self._records[identity.token_id]
        if reason := self._end_of(record):
            raise PermissionDenied(reason)
        return replace(record, used_at_s=self._now(), used_by=node)

    def record(self, token_id: str) -> TokenRecord:
        """Raises KeyError: there is no such token."""
        return self._records[token_id]

    def tokens(self) -> list[TokenRecord]:
        """All of them, in the order in which they were made."""
        return sorted(self._records.values(), key=lambda x: (x.created_at_s, x.token_id))

    def of_node(self, name: str) -> TokenRecord | None:
        """The valid token that node ``name`` has of its own, the latest."""
        now = self._now()
        found = [
            record
            for record in self._records.values()
            if record.role is AccessRole.AGENT and record.name == name and not record.has_ended(now)
        ]
        return max(found, key=lambda x: x.created_at_s, default=None)

    def node_connected(self, name: str, identity: Identity) -> None:
        """A node has registered with this token."""
        self._nodes.pop(name, None)
        if identity.token_id:
            self._nodes[name] = identity.token_id

    def toward_node(self, name: str) -> str:
        """What the master presents to the agent of this node: ``NodeAuthority``."""
        record = self._records.get(self._nodes.get(name, ""))
        return self._cluster_token if record is None else master_credential(record.digest)

    def forgettable(self) -> list[str]:
        """Ids of tokens that ended long ago; where there are too many, of the first that ended."""
        now = self._now()
        ended = [x for x in self.tokens() if x.has_ended(now)]
        ended.sort(key=lambda x: x.ended_at_s(now))
        excess = max(0, len(self._records) - TOKENS_MAX + 1)
        old = [x for x in ended[excess:] if x.has_ended(now - ENDED_KEPT_S)]
        return [x.token_id for x in (*ended[:excess], *old)]

    def forget(self, token_id: str) -> None:
        self._records.pop(token_id, None)


def _nobody(_scope: str) -> None:
    raise PermissionDenied(REFUSAL)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
