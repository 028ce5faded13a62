"""Whose processes containers are: with ``run_as = submitter``, those of the user who submitted.

What an application says of its user is a claim. The token lets a program into the cluster; it does
not say which person holds it. So the claim is bounded on every node, whatever the master says:

* the user must exist on the node; one who does not becomes ``run_as_fallback``, or is refused;
* ids below ``run_as_uid_min`` are the system's, and refused like the names in ``run_as_banned``.
  Neither is ever mapped to another user: who claims to be root shall hear that he is not;
* root is refused whatever the settings say.

What this protects: the node from containers, one user's files and secrets from the containers of
another, and the agent and its token from all of them, because no executor is given the token. What
it does not: somebody who holds the token, as every driver does, may claim to be any user that these
rules let through.

Only root may become another user. An agent of anybody else runs containers as itself, and says so.

Modelled on what Hadoop's container executor checks (``min.user.id``, ``banned.users``).
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hrm.config import AgentSettings
from hrm.errors import InvalidConfig, LaunchFailed

__all__ = ["Account", "RunAs", "may_switch"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._@\\-]{0,63}\$?")
_CAPABILITIES = (1 << 0) | (1 << 6) | (1 << 7)
"""CAP_CHOWN, CAP_SETGID, CAP_SETUID: what it takes to hand a directory and a process over."""
_TRAVERSE = 0o001


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user of this machine. ``groups``: all, the main one among them, never that of root."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def for_shim(self) -> dict[str, Any]:
        return {"uid": self.uid, "gid": self.gid, "groups": list(self.groups)}

    def environment(self, work_dir: Path) -> dict[str, str]:
        """What tells programs who they are. ``work_dir`` stands in for a home that is not there."""
        home = self.home if os.path.isdir(self.home) else str(work_dir)  # noqa: PTH112
        return {"HOME": home, "USER": self.name, "LOGNAME": self.name}


def may_switch() -> bool:
    """Whether this process can start others as another user."""
    if os.geteuid() != 0:
        return False
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) & _CAPABILITIES == _CAPABILITIES
    return False


class RunAs:
    """The rules of one agent. ``account_of`` answers None where containers run as the agent."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raises InvalidConfig: the settings cannot work on this machine."""
        self._uid_min = settings.run_as_uid_min
        self._banned = frozenset(settings.run_as_banned.replace(",", " ").split()) | {"root"}
        self._fallback = settings.run_as_fallback
        self._wanted = settings.run_as == "submitter"
        self.active = self._wanted and may_switch()
        if not self.active:
            return
        if self._fallback:
            try:
                found = self._existing(self._fallback)
            except LaunchFailed as error:
                raise InvalidConfig(f"run_as_fallback: {error}") from error
            if found is None:
                raise InvalidConfig(f"run_as_fallback: no user {self._fallback} on this node")
        _check_reachable(settings.work_dir)

    @property
    def remark(self) -> str:
        """For people who look at the node."""
        if self.active:
            others = f"unknown ones as {self._fallback}" if self._fallback else "others are refused"
            return f"containers run as their submitter, uid {self._uid_min} and up; {others}"
        me = _name_of(os.geteuid())
        if self._wanted:
            return f"containers run as {me}: only an agent of root can start them as others"
        return f"containers run as {me} (run_as = off)"

    def account_of(self, user: str) -> Account | None:
        """The account for a container of ``user``.

        Raises:
            LaunchFailed: this user's containers may not run here.
        """
        if not self.active:
            return None
        if not user:
            raise LaunchFailed(
                "the application names no user, and this node runs containers as their submitter; "
                "submit with the hrm of this cluster, or set run_as = off for the agent"
            )
        self._check_name(user)
        account = self._existing(user)
        if account is None and self._fallback:
            account = self._existing(self._fallback)
        if account is None:
            raise LaunchFailed(
                f"user {user} does not exist on this node, where containers run as their "
                f"submitter: add the user, or set run_as_fallback (a user for such containers) "
                f"or run_as = off for the agent"
            )
        return account

    def _check_name(self, user: str) -> None:
        if not _NAME.fullmatch(user):
            raise LaunchFailed(f"{user[:80]!r} cannot name a user; submit as a user of the node")
        if user in self._banned:
            raise LaunchFailed(
                f"user {user} may not own containers (run_as_banned, root among them): submit as "
                f"another user; for a cluster of one user, set run_as = off for the agent"
            )

    def _existing(self, user: str) -> Account | None:
        self._check_name(user)
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            return None
        if entry.pw_name in self._banned:  # a directory may know one user by several names
            self._check_name(entry.pw_name)
        if entry.pw_uid < self._uid_min or entry.pw_gid == 0:
            what = "main group root" if entry.pw_gid == 0 else f"uid {entry.pw_uid}"
            raise LaunchFailed(
                f"user {user} has {what}, and containers run with uid {self._uid_min} and up and "
                f"without that group: submit as another user, or lower run_as_uid_min"
            )
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return Account(
            name=entry.pw_name,
            uid=entry.pw_uid,
            gid=entry.pw_gid,
            groups=tuple(sorted({gid for gid in groups if gid != 0})),
            home=entry.pw_dir,
        )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _check_reachable(work_dir: Path) -> None:
    """Every user must be able to walk down to the work directories, if not to look around."""
    work_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    path = work_dir.absolute()
    path.chmod(path.stat().st_mode & 0o7777 | 0o111)
    for parent in path.parents:
        if not parent.stat().st_mode & _TRAVERSE:
            raise InvalidConfig(
                f"containers run as their submitter, and other users cannot reach {work_dir}: "
                f"{parent} is closed to them; choose another place with "
                f"--work-dir, such as /var/lib/hrm, or --run-as off"
            )
