"""Identities and roles: the words that tokens, the table of access and the services share."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["CLUSTER", "CLUSTER_NAME", "LOCAL", "AccessRole", "Identity", "IdentityKind"]


class AccessRole(enum.Enum):
    """What an identity may call: ``hrm.identity.access``."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"
    SCHEDULER = "scheduler"
    APPLICATION = "application"
    JOINING = "joining"
    """Of a token that works once: it enrols a node, and is good for nothing else."""

    @property
    def rules(self) -> bool:
        """May it act on what belongs to others?"""
        return self in (AccessRole.OPERATOR, AccessRole.ADMIN)


class IdentityKind(enum.Enum):
    """What an identity is."""

    USER = "user"
    SERVICE = "service"
    NODE = "node"
    SCHEDULER = "scheduler"
    APPLICATION = "application"
    CLUSTER = "cluster"
    """The holder of the cluster's own token file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who made a call.

    Attributes:
        name: of the user, service, node or scheduler; of an application, its user.
        token_id: of the token that was presented; empty: the cluster's own, or an application's.
        expires_at_s: when that token ends, in seconds since the epoch; 0: never.
        scope: of an application's token: the application, or the submission of its driver.
        forgotten: the master knows no such application: it may come back, and nothing else.
    """

    name: str
    kind: IdentityKind
    role: AccessRole
    token_id: str = ""
    expires_at_s: float = 0.0
    scope: str = ""
    forgotten: bool = False

    def __str__(self) -> str:
        if self.kind is IdentityKind.CLUSTER:
            return "the cluster's administrator"
        return f"{self.kind.value} {self.name}" if self.name else self.kind.value


CLUSTER_NAME = "cluster"
"""No token that is created has this name."""

CLUSTER = Identity(name=CLUSTER_NAME, kind=IdentityKind.CLUSTER, role=AccessRole.ADMIN)
"""The built-in administrator: it cannot be revoked, so there always is one."""

LOCAL = Identity(name="", kind=IdentityKind.APPLICATION, role=AccessRole.APPLICATION)
"""A caller on a socket that only one user of the machine can open; no token is required there."""
