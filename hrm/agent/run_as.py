"""The user of a container's processes: with ``run_as = submitter``, the submitter.

The user that an application states is a claim: the token admits a program to the cluster and
identifies no person. So the claim is bounded on every node, whatever the master sends:

* the user must exist on the node, or else becomes ``run_as_fallback``, or is refused;
* ids below ``run_as_uid_min`` (the system's) or above ``run_as_uid_max`` (of directories,
  subordinate ids, services with temporary ids) are refused, like the names in ``run_as_banned``;
* members of a group in ``run_as_banned_groups`` are refused: they can become root, or read what
  only root should, and leaving the group out of the container would not help;
* root, ``nobody`` and the ids that systemd lends to services are refused whatever the settings.

No refused user is ever mapped to another. Of its groups on the node a user's container gets those
that ``run_as_groups`` names, so that shared directories and GPU devices work as in a login.

This protects the node from containers, and one user's files and secrets from the containers of
another: no executor gets the token. A holder of the token, which every driver is, may claim to be
any user that these rules admit. Only root may become another user; an agent of any other user runs
containers as itself, and logs that.

Modelled on what Hadoop's container executor checks (``min.user.id``, ``banned.users``).
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hrm.config import AgentSettings
from hrm.errors import InvalidConfig, Unsuitable

__all__ = ["Account", "RunAs", "closed_parent", "may_switch"]

_ALWAYS_BANNED = frozenset({"root", "nobody"})
_NOBODY = range(65534, 65536)
"""The last one is -1 for system calls of 16 bits."""
_LENT_BY_SYSTEMD = range(61184, 65520)
"""DynamicUser: the next service with this id would own what a container left."""
_NOBODYS_GROUPS = frozenset({"nobody", "nogroup"})

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
        """Identity variables for programs. ``work_dir`` replaces a home that does not exist."""
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
    """The rules of one agent. ``account_of`` returns None where containers run as the agent."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raises InvalidConfig: the settings cannot work on this machine."""
        self._uid_min = settings.run_as_uid_min
        self._uid_max = settings.run_as_uid_max
        self._banned = _names(settings.run_as_banned) | _ALWAYS_BANNED
        self._banned_groups = _names(settings.run_as_banned_groups)
        self._groups = settings.run_as_groups.strip()
        self._fallback = settings.run_as_fallback
        self._wanted = settings.run_as == "submitter"
        self.active = self._wanted and may_switch()
        if not self.active:
            return
        if self._uid_max < self._uid_min:
            raise InvalidConfig(
                f"run_as_uid_max is {self._uid_max}, below run_as_uid_min ({self._uid_min}): no "
                f"user is left; raise the one or lower the other"
            )
        if self._fallback:
            try:
                found = self._existing(self._fallback)
            except Unsuitable as error:
                raise InvalidConfig(f"run_as_fallback: {error}") from error
            if found is None:
                raise InvalidConfig(f"run_as_fallback: no user {self._fallback} on this node")
        _check_reachable(settings.work_dir)

    @property
    def name(self) -> str:
        """The user that containers run as: "submitter", or the name of the agent's user."""
        return "submitter" if self.active else _name_of(os.geteuid())

    @property
    def remark(self) -> str:
        """The remark for operators of the node."""
        if self.active:
            others = f"unknown ones as {self._fallback}" if self._fallback else "others are refused"
            groups = self._groups if self._groups in ("all", "none") else f"of {self._groups}"
            return (
                f"containers run as their submitter, uid {self._uid_min} to {self._uid_max}, "
                f"none of them in any of {len(self._banned_groups)} groups that could rule the "
                f"node (run_as_banned_groups); with groups: {groups}; {others}"
            )
        if self._wanted:
            return (
                f"containers run as {self.name}: only an agent that is root can start them as "
                f"other users"
            )
        return f"containers run as {self.name} (run_as = off)"

    def account_of(self, user: str) -> Account | None:
        """The account for a container of ``user``.

        Raises:
            Unsuitable: this user's containers may not run here.
        """
        if not self.active:
            return None
        if not user:
            raise Unsuitable(
                "the application names no user, and this node runs containers as their submitter; "
                "submit with the hrm of this cluster, or set run_as = off for the agent"
            )
        self._check_name(user)
        account = self._existing(user)
        if account is None and self._fallback:
            account = self._existing(self._fallback)
        if account is None:
            raise Unsuitable(
                f"user {user} does not exist on this node, where containers run as their "
                f"submitter: add the user, or set run_as_fallback (a user for such containers) "
                f"or run_as = off for the agent"
            )
        return account

    def _check_name(self, user: str) -> None:
        if not _NAME.fullmatch(user):
            raise Unsuitable(f"{user[:80]!r} cannot name a user; submit as a user of the node")
        if user in self._banned:
            raise Unsuitable(
                f"user {user} may not own containers (run_as_banned, with root and nobody): submit "
                f"as another user; for a cluster of one user, set run_as = off for the agent"
            )

    def _existing(self, user: str) -> Account | None:
        self._check_name(user)
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            return None
        if entry.pw_name in self._banned:  # a directory may know one user by several names
            self._check_name(entry.pw_name)
        self._check_ids(user, entry)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        self._check_groups(user, groups)
        return Account(
            name=entry.pw_name,
            uid=entry.pw_uid,
            gid=entry.pw_gid,
            groups=tuple(sorted({entry.pw_gid, *self._given(groups)} - {0})),
            home=entry.pw_dir,
        )

    def _check_ids(self, user: str, entry: pwd.struct_passwd) -> None:
        if entry.pw_uid in _NOBODY:
            raise Unsuitable(
                f"user {user} has uid {entry.pw_uid}, that of nobody, which many share: submit as "
                f"a user of the node's own"
            )
        if entry.pw_uid in _LENT_BY_SYSTEMD:
            raise Unsuitable(
                f"user {user} has uid {entry.pw_uid}, one that systemd lends to services "
                f"({_LENT_BY_SYSTEMD[0]} to {_LENT_BY_SYSTEMD[-1]}): submit as another user"
            )
        if entry.pw_uid < self._uid_min or entry.pw_gid == 0:
            what = "main group root" if entry.pw_gid == 0 else f"uid {entry.pw_uid}"
            raise Unsuitable(
                f"user {user} has {what}, and containers run with uid {self._uid_min} and up and "
                f"without that group: submit as another user, or lower run_as_uid_min"
            )
        if entry.pw_uid > self._uid_max:
            raise Unsuitable(
                f"user {user} has uid {entry.pw_uid}, and containers run with uid {self._uid_max} "
                f"at most: submit as another user, or raise run_as_uid_max, where users of a "
                f"directory have such ids and no container's subordinate ids (/etc/subuid) do"
            )

    def _check_groups(self, user: str, groups: list[int]) -> None:
        if groups_of_nobody := _ids(_NOBODYS_GROUPS).intersection(groups):
            raise Unsuitable(
                f"user {user} is in the group of nobody (gid {min(groups_of_nobody)}), which many "
                f"share: give the user a group of its own, or submit as another user"
            )
        for name in sorted(self._banned_groups):
            if _ids({name}).intersection(groups):
                raise Unsuitable(
                    f"user {user} is in group {name}, by which a container could rule the node "
                    f"(run_as_banned_groups): submit as another user, take {user} out of {name}, "
                    f"or {name} out of that setting"
                )

    def _given(self, groups: list[int]) -> set[int]:
        if self._groups == "all":
            return set(groups)
        return set() if self._groups == "none" else _ids(_names(self._groups)) & set(groups)


def _names(setting: str) -> frozenset[str]:
    return frozenset(setting.replace(",", " ").split())


def _ids(names: frozenset[str] | set[str]) -> set[int]:
    """Of those groups that exist on this node, now."""
    found = set()
    for name in names:
        with contextlib.suppress(KeyError):
            found.add(grp.getgrnam(name).gr_gid)
    return found


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
    if (closed := closed_parent(path)) is not None:
        raise InvalidConfig(
            f"containers run as their submitter, and other users cannot reach {work_dir}: "
            f"{closed} is closed to them; choose another place with "
            f"--work-dir, such as /var/lib/hrm, or --run-as off"
        )


def closed_parent(path: Path) -> Path | None:
    """The lowest directory above ``path`` that other users cannot pass through; None: they can."""
    for parent in path.absolute().parents:
        with contextlib.suppress(FileNotFoundError):
            if not parent.stat().st_mode & _TRAVERSE:
                return parent
    return None
