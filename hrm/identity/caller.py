"""The identity behind the call that is being served, and checks of what it may act on.

The table of access says which methods a role may call at all. Whether *this* application is the
caller's depends on the request, so services check it here. Operators and administrators act on what
belongs to anybody; users on what has their name; an application on itself.
"""

from __future__ import annotations

from contextvars import ContextVar

from hrm.errors import NotAllowed
from hrm.identity.roles import AccessRole, Identity, IdentityKind

__all__ = [
    "caller",
    "changed_nothing",
    "check_name",
    "check_scope",
    "check_user",
    "has_changed",
    "is_own",
    "set_caller",
    "speaks_for",
    "user_of",
]

_CALLER: ContextVar[Identity] = ContextVar("caller")
_CHANGED: ContextVar[bool] = ContextVar("changed", default=True)


def set_caller(identity: Identity) -> None:
    """For the rest of the call, and tasks that it starts."""
    _CALLER.set(identity)
    _CHANGED.set(True)


def changed_nothing() -> None:
    """This call found all as it wants it, or only asked: it is no line of the audit log. For unary
    methods, which are served in one task."""
    _CHANGED.set(False)


def has_changed() -> bool:
    """Has this call not said ``changed_nothing``?"""
    return _CHANGED.get()


def caller() -> Identity:
    """Who made this call.

    Raises:
        LookupError: no call is being served; a bug.
    """
    return _CALLER.get()


def is_own(user: str, *scopes: str) -> bool:
    """May the caller read the details of what belongs to ``user``? ``scopes``: the application and
    the submission that it belongs to, for an application's own token."""
    identity = caller()
    if identity.role.rules:
        return True
    if identity.role is AccessRole.APPLICATION:
        return bool(identity.scope) and identity.scope in scopes
    return identity.role in (AccessRole.VIEWER, AccessRole.SUBMITTER) and identity.name == user


def check_user(what: str, user: str, *scopes: str) -> None:
    """``what`` belongs to ``user``, and to ``scopes``, as in ``is_own``.

    Raises:
        NotAllowed: the caller may not act on it.
    """
    if not is_own(user, *scopes):
        raise NotAllowed(
            f"{what} belongs to {user or 'nobody'}, and the token is that of {caller()} with the "
            f"role {caller().role.value}; its user or an operator may do this"
        )


def check_scope(*scopes: str) -> None:
    """An application's token speaks for itself alone.

    Raises:
        NotAllowed: it is another's.
    """
    identity = caller()
    if identity.role is AccessRole.APPLICATION and identity.scope not in scopes:
        raise NotAllowed(f"the token is that of {identity.scope}, and speaks for that alone")


def speaks_for(application_id: str) -> bool:
    """Has the caller proven, by its token alone, that it may speak for an application of which
    there is no record? A user's token does not say which applications it had."""
    identity = caller()
    if identity.role is AccessRole.APPLICATION:
        return bool(identity.scope) and identity.scope == application_id
    return identity.kind is IdentityKind.CLUSTER


def check_name(name: str, what: str) -> None:
    """A token of a node or a scheduler is bound to its name.

    Raises:
        NotAllowed: the caller claims another one.
    """
    identity = caller()
    if identity.role in (AccessRole.AGENT, AccessRole.SCHEDULER) and identity.name != name:
        raise NotAllowed(
            f"the token is that of {identity}, and {what} {name!r} is not its name; make one for "
            f"that: hrm token create --{identity.kind.value} {name}"
        )


def user_of(claimed: str) -> str:
    """The user of what the caller submits: its own name, whatever the client says. Only the
    cluster's token may name any user. An application's client says who its process runs as.

    Raises:
        NotAllowed: a user claims to be another one.
    """
    identity = caller()
    if identity.kind is IdentityKind.CLUSTER:
        return claimed
    if identity.role is not AccessRole.APPLICATION and claimed and claimed != identity.name:
        raise NotAllowed(
            f"the token is that of {identity}, and the application names the user {claimed!r}; "
            f"submit as {identity.name} (SPARK_USER={identity.name}), or with a token of {claimed}"
        )
    return identity.name
