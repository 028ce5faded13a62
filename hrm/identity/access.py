"""Which role may call what: one table of every RPC, which one interceptor reads.

A method that is not here is an administrator's alone; a test finds the ones that are missing. What
a role may call still depends on what it names: users act on what is their own (``caller``).

``change``: calls of it go into the audit log; where one flag of the request decides whether
something is changed, those calls that change something. Of all others, such as what schedulers,
drivers and AppMasters repeat all the time (claims, leases, pieces of files), only those do which
the caller may not make. Both with the values of the fields ``names``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hrm.identity.roles import AccessRole

__all__ = ["ACCESS", "REGISTRATIONS", "AccessRule", "rule_of"]

_ANYONE = frozenset(AccessRole) - {AccessRole.JOINING}
_PEOPLE = frozenset(
    {AccessRole.VIEWER, AccessRole.SUBMITTER, AccessRole.OPERATOR, AccessRole.ADMIN}
)
_SUBMITS = _PEOPLE - {AccessRole.VIEWER}
_OPERATES = frozenset({AccessRole.OPERATOR, AccessRole.ADMIN})
_ADMIN = frozenset({AccessRole.ADMIN})
_AGENT = frozenset({AccessRole.AGENT, AccessRole.ADMIN})
_SCHEDULER = frozenset({AccessRole.SCHEDULER, AccessRole.ADMIN})
_DRIVER = frozenset({AccessRole.APPLICATION, AccessRole.ADMIN})
_JOINS = frozenset({AccessRole.JOINING, AccessRole.ADMIN})
_RUNS = _SUBMITS | _DRIVER


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """One row. ``names``: the fields of the request, or of the first message of a stream, that say
    what is changed or read; with ``=`` where the field is to be named, too. ``forgotten``: an
    application whose record the master has lost may call it, too, to come back."""

    roles: frozenset[AccessRole]
    change: bool = False
    names: str = ""
    forgotten: bool = False
    only_if: str = ""
    """Calls change something if this flag of the request is set."""
    unless: str = ""
    """Calls change nothing if this flag of the request is set."""

    def is_change(self, request: object) -> bool:
        """Does a call with this request, if it is not refused, change something?"""
        is_asked = not self.only_if or bool(getattr(request, self.only_if, False))
        return (
            self.change and is_asked and not (self.unless and getattr(request, self.unless, False))
        )


def _read(roles: frozenset[AccessRole], names: str = "", *, forgotten: bool = False) -> AccessRule:
    return AccessRule(roles=roles, names=names, forgotten=forgotten)


def _change(roles: frozenset[AccessRole], names: str, *, forgotten: bool = False) -> AccessRule:
    return AccessRule(roles=roles, change=True, names=names, forgotten=forgotten)


_BY_SERVICE: dict[str, dict[str, AccessRule]] = {
    "hrm.v1.AdminService": {
        "GetCluster": _read(_PEOPLE),
        "ListNodes": _read(_PEOPLE, "name"),
        "ListApplications": _read(_PEOPLE, "queue"),
        "GetApplication": _read(_PEOPLE, "application_id"),
        "ExplainApplication": _read(_PEOPLE | _DRIVER, "application_id"),
        "KillApplication": _change(_SUBMITS, "application_id"),
        "ChangePriority": _change(_SUBMITS, "application_id steps="),
        "DrainNodes": _change(_OPERATES, "names"),
        "BindNode": _change(_OPERATES, "name"),
        "ReadLogs": _read(_PEOPLE, "application_id"),
        "LinkLog": _change(_PEOPLE, "application_id"),
    },
    "hrm.v1.ApplicationService": {
        "Register": _change(_RUNS, "name", forgotten=True),
        "Session": _read(_RUNS, "attach.application_id", forgotten=True),
    },
    "hrm.v1.EventService": {"WatchEvents": _read(_PEOPLE, "application_id node")},
    "hrm.v1.NodeService": {"Connect": _change(_AGENT, "register.name")},
    "hrm.v1.AgentService": {
        "ReadLog": _read(_ADMIN, "container_id"),
        "LinkLog": _read(_ADMIN, "container_id"),
    },
    "hrm.v1.PipelineService": {
        "Submit": _change(_RUNS, "pipeline.name"),
        "Watch": _read(_RUNS, "task_ids"),
        "GetResult": AccessRule(roles=_RUNS, change=True, names="task_id", only_if="forget"),
        "Cancel": _change(_RUNS, "task_id"),
        "List": _read(_PEOPLE | _DRIVER),
        "GetProfiles": _read(_PEOPLE, "name"),
        "Connect": _read(_DRIVER, "register.capacity.node"),
    },
    "hrm.v1.PolicyService": {
        "ShowPolicies": _read(_PEOPLE, "policy"),
        "SetPolicyMode": _change(_OPERATES, "policy"),
    },
    "hrm.v1.QueueService": {
        "ListQueues": _read(_PEOPLE, "name"),
        "ChangeQueues": AccessRule(
            roles=_SUBMITS, change=True, names="queues unset= removed=", unless="dry_run"
        ),
        "WhatIf": _read(_PEOPLE, "queue"),
        "ListAffinities": _read(_PEOPLE, "queue"),
    },
    "hrm.v1.SharedStateService": {
        "Subscribe": _change(_SCHEDULER, "name"),
        "Propose": _read(_SCHEDULER, "scheduler application_id"),
        "AcquireLease": _read(_SCHEDULER, "scheduler application_id"),
        "ReleaseLease": _read(_SCHEDULER, "scheduler"),
    },
    "hrm.v1.SubmissionService": {
        "FindFiles": _read(_RUNS, forgotten=True),
        "PutPiece": _read(_RUNS, "file.sha256", forgotten=True),
        "GetFile": _read(_RUNS | _AGENT, "sha256"),
        "Submit": _change(_SUBMITS, "driver.name"),
        "Get": _read(_PEOPLE | _DRIVER, "submission_id"),
        "List": _read(_PEOPLE),
        "Kill": _change(_SUBMITS, "submission_id"),
        "Watch": _read(_PEOPLE | _DRIVER, "submission_id"),
        "Tie": _read(_SUBMITS, "submission_id"),
        "Lease": _read(_DRIVER, "submission_id"),
        "GetTokens": _change(_DRIVER, "submission_id"),
    },
    "hrm.v1.IdentityService": {
        "WhoAmI": _read(_ANYONE | {AccessRole.JOINING}),
        "CreateToken": _change(_ADMIN, "name kind= role="),
        "ListTokens": _read(_PEOPLE, "name"),
        "RevokeToken": _change(_PEOPLE, "token_id"),
        "EnrolNode": _change(_JOINS, "node"),
        "ReadAudit": _read(_OPERATES, "name"),
    },
    "grpc.health.v1.Health": {"Check": _read(_ANYONE), "List": _read(_ANYONE),
                              "Watch": _read(_ANYONE)},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _read(_ANYONE)},
}  # fmt: skip

ACCESS: dict[str, AccessRule] = {
    f"/{service}/{method}": rule
    for service, rules in _BY_SERVICE.items()
    for method, rule in rules.items()
}
"""By method, as gRPC names it."""

REGISTRATIONS = frozenset(
    {"/hrm.v1.ApplicationService/Register", "/hrm.v1.SubmissionService/Submit"}
)
"""Methods that register an application or a driver, which have a limit of their own."""

_UNKNOWN = AccessRule(roles=_ADMIN)


def rule_of(method: str) -> AccessRule:
    return ACCESS.get(method, _UNKNOWN)
