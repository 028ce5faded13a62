"""The interface of isolation drivers, and what the two cgroup drivers share.

All groups of one agent lie below its identity (``<controller>/hrm-<identity>/<container id>``), so
that two agents on one machine never touch each other's, and a restarted agent finds its own. A
container's first process joins its group itself, between fork and exec, by writing to the files
that ``create`` names, so that none of its children can start outside.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hrm.errors import HrmError, LaunchFailed

__all__ = [
    "ContainerLimits",
    "CpuLimit",
    "DeviceNumbers",
    "GroupIsolation",
    "Isolation",
    "IsolationError",
    "mounts",
]

CpuLimit = Literal["shares", "quota"]

REMOVE_LIMIT_S = 5.0
_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
_MAKE_ATTEMPTS = 5
_REMOVE_PERIOD_S = 0.02
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


class IsolationError(HrmError):
    """This driver cannot work on this machine; the message explains why."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceNumbers:
    """A character device by its numbers; ``minor`` None: all of that major number."""

    major: int
    minor: int | None = None

    def __str__(self) -> str:
        return f"{self.major}:{'*' if self.minor is None else self.minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """What one container may use. ``cpus`` are CPU numbers; empty: not pinned. ``closed``: devices
    that it may not open, where the driver can ensure that (``restricts_devices``)."""

    vcores: int
    memory_mib: int
    cpus: tuple[int, ...] = ()
    closed: tuple[DeviceNumbers, ...] = ()


class Isolation:
    """How containers are limited. Methods block for file-system time, ``remove`` for seconds.

    As it stands it is the driver ``none``, for machines on which the agent may not make cgroups:
    plain processes, whose memory the tracker observes once per sampling interval.
    """

    name = "none"
    enforces_memory = False
    """Whether the kernel enforces the memory limit; if not, the tracker has to."""

    @property
    def pins_cpus(self) -> bool:
        """Whether containers can be pinned to CPUs."""
        return False

    @property
    def restricts_devices(self) -> bool:
        """Whether containers can be kept from opening a device."""
        return False

    def check(self) -> None:
        """Try everything that a container needs, and leave no trace.

        Raises:
            IsolationError: with the reason.
        """

    def create(self, container_id: str, limits: ContainerLimits) -> tuple[Path, ...]:
        """Make the container's group; returns the files into which its first process writes ``0``.

        Raises:
            LaunchFailed: the kernel refused; nothing is left behind.
        """
        return ()

    def pin(self, container_id: str, cpus: tuple[int, ...]) -> None:
        """Hold all processes of a container on these CPUs from now on; empty: on any.

        Raises:
            OSError: the kernel refused; the container may be on more CPUs than these.
        """

    def memory_used_mib(self, container_id: str) -> int | None:
        """Memory that the kernel cannot reclaim; None: this driver cannot measure it."""
        return None

    def memory_kills(self, container_id: str) -> int:
        """How many processes the kernel has killed for the memory limit."""
        return 0

    def remove(self, container_id: str) -> bool:
        """Kill the remaining processes and remove the group; False: not done in time."""
        return True

    def existing(self) -> tuple[str, ...]:
        """Containers of this identity that have a group."""
        return ()

    def close(self) -> None:
        """Remove the driver's own groups, where no container needs them."""


def mounts(table: Path = _MOUNTS) -> Iterator[tuple[Path, str, frozenset[str]]]:
    """Mount point, file-system type and super options of every cgroup mount.

    The kernel writes a path's bytes as they are, in whatever encoding, but for the white space and
    backslashes in it, which come as octal numbers.
    """
    for line in table.read_bytes().split(b"\n"):
        left, _, right = line.partition(b" - ")
        kind, _, options = [*os.fsdecode(right).split(" "), "", "", ""][:3]
        if kind in ("cgroup", "cgroup2"):
            point = _OCTAL.sub(lambda byte: bytes([int(byte[1], 8)]), left.split(b" ")[4])
            yield Path(os.fsdecode(point)), kind, frozenset(options.split(","))


class GroupIsolation(Isolation, abc.ABC):
    """Directories in one or more cgroup hierarchies."""

    enforces_memory = True

    def __init__(self, identity: str, vcores: int, cpu_limit: CpuLimit) -> None:
        """``vcores`` is the node's offer: it weighs HRM's groups against the machine's others. An
        offer of more than the machine has weighs no more: what else runs there, the agent and
        drivers of clients among it, would get next to nothing."""
        self._identity = _valid(identity)
        self._vcores = max(1, min(vcores, len(os.sched_getaffinity(0))))
        self._cpu_limit = cpu_limit

    @abc.abstractmethod
    def _roots(self) -> tuple[Path, ...]:
        """The hierarchies' mount points, the one whose processes count first."""

    @abc.abstractmethod
    def _prepare(self, parent: Path) -> None:
        """Make ``parent``, a directory for children, and delegate its controllers to them."""

    @abc.abstractmethod
    def _limit(self, root: Path, group: Path, limits: ContainerLimits) -> None:
        """Write the limits of ``group``, which lies below ``root``."""

    def _group(self, root: Path, container_id: str) -> Path:
        return self._parent(root) / _valid(container_id)

    def _parent(self, root: Path) -> Path:
        """The agent's own group, directly below the root: its weight is that of its vcores.

        A common parent of all agents of a machine would hold them to the weight of one.
        """
        return root / f"hrm-{self._identity}"

    def create(self, container_id: str, limits: ContainerLimits) -> tuple[Path, ...]:
        try:
            for root in self._roots():
                self._make(root, self._group(root, container_id))
                self._limit(root, self._group(root, container_id), limits)
        except OSError as error:
            self.remove(container_id)
            raise LaunchFailed(
                f"{self.name} cannot hold {limits.vcores} vcores and {limits.memory_mib} MiB for "
                f"{container_id}: {error.strerror} ({error.filename}); free the machine's "
                f"memory or start the agent with --isolation none"
            ) from error
        return self.join_files(container_id)

    def _make(self, root: Path, group: Path) -> None:
        for _ in range(_MAKE_ATTEMPTS):
            # A sweep may remove the parent between two steps.
            with contextlib.suppress(FileNotFoundError):
                self._prepare(self._parent(root))
                group.mkdir(exist_ok=True)
                return
        raise FileNotFoundError(errno.ENOENT, "the parent group keeps disappearing", str(group))

    def join_files(self, container_id: str) -> tuple[Path, ...]:
        """The result of ``create``, for a container that exists."""
        groups = (self._group(root, container_id) for root in self._roots())
        return tuple(group / "cgroup.procs" for group in groups if group.is_dir())

    def members(self, container_id: str) -> frozenset[int]:
        """Processes in the group now."""
        pids: set[int] = set()
        for joined in self.join_files(container_id):
            # A container may have created groups below its own.
            for path in joined.parent.rglob(joined.name):
                with contextlib.suppress(OSError):
                    pids |= {int(line) for line in path.read_text().split()}
        return frozenset(pids - {0})

    def _kill(self, container_id: str) -> None:
        for pid in self.members(container_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self, container_id: str) -> bool:
        deadline = time.monotonic() + REMOVE_LIMIT_S
        while True:
            self._kill(container_id)
            gone = [_gone(self._group(root, container_id)) for root in self._roots()]
            if all(gone):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_REMOVE_PERIOD_S)

    def close(self) -> None:
        # rmdir refuses where a container, or another agent, still has a group below.
        for root in self._roots():
            with contextlib.suppress(OSError):
                self._parent(root).rmdir()

    def existing(self) -> tuple[str, ...]:
        names: set[str] = set()
        for root in self._roots():
            with contextlib.suppress(OSError):
                names |= {path.name for path in self._parent(root).iterdir() if path.is_dir()}
        return tuple(sorted(names))

    def check(self) -> None:
        self._check_available()
        name = f"probe-{os.getpid()}"
        try:
            self.create(name, ContainerLimits(vcores=1, memory_mib=64))
        except LaunchFailed as error:
            cause = error.__cause__
            reason = cause.strerror if isinstance(cause, OSError) else str(error)
            where = cause.filename if isinstance(cause, OSError) else ""
            raise IsolationError(f"cannot make a group ({reason}: {where})") from error
        if not self.remove(name):
            raise IsolationError(f"cannot remove a group of its own ({name})")
        self.close()

    @abc.abstractmethod
    def _check_available(self) -> None:
        """Raise IsolationError when mounts or controllers are missing."""


def _valid(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise LaunchFailed(f"{name!r} cannot name a group: letters, digits, '.', '_' and '-' only")
    return name


def _gone(group: Path) -> bool:
    """Remove a group and the groups below it (a container may make its own)."""
    if not group.is_dir():
        return True
    below = sorted((p for p in group.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts))
    for directory in (*below, group):
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not group.is_dir()
