"""cgroup v1: a directory in each of the hierarchies ``memory`` and ``cpu``, and, where they are
mounted, ``cpuset``, ``devices`` and ``freezer``.

``shares`` (``cpu.shares``, 1024 per vcore) limits a container only while others want the cores;
``quota`` (CFS bandwidth) always. The memory limit is hard: the kernel kills one process of the
group and counts it in ``memory.oom_control``; the tracker sees the count and ends the rest.

Devices that a container must not open are denied one by one: a group starts with all of them. To
kill, the group is frozen first: a frozen process does not fork.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from hrm.agent.isolation.base import (
    ContainerLimits,
    CpuLimit,
    GroupIsolation,
    IsolationError,
    mounts,
)

__all__ = ["Cgroup1"]

_REQUIRED = ("memory", "cpu")
_OPTIONAL = ("cpuset", "devices", "freezer")
_MIB = 1024 * 1024
_SHARES_A_VCORE = 1024
_SHARES_MAX = 262_144
_PERIOD_US = 100_000
_CPUS = "cpuset.cpus"


class Cgroup1(GroupIsolation):
    name = "cgroup1"

    def __init__(self, identity: str, vcores: int, cpu_limit: CpuLimit = "shares") -> None:
        super().__init__(identity, vcores, cpu_limit)
        self._mounts = {
            controller: point
            for point, kind, options in mounts()
            if kind == "cgroup"
            for controller in (*_REQUIRED, *_OPTIONAL)
            if controller in options
            and (controller in (*_REQUIRED, "cpuset") or os.access(point, os.W_OK))
        }

    @property
    def pins_cpus(self) -> bool:
        return "cpuset" in self._mounts

    @property
    def restricts_devices(self) -> bool:
        return "devices" in self._mounts

    def _check_available(self) -> None:
        missing = [name for name in _REQUIRED if name not in self._mounts]
        if missing:
            raise IsolationError(f"the v1 controllers {', '.join(missing)} are not mounted")

    def _roots(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self._mounts.values()))

    def _prepare(self, parent: Path) -> None:
        if not parent.is_dir():
            parent.mkdir(exist_ok=True)
            if (shares := parent / "cpu.shares").exists():
                shares.write_text(str(min(_SHARES_MAX, self._vcores * _SHARES_A_VCORE)))
        # Every time: the creator of the directory may not have reached this line yet.
        if (parent / "cpuset.cpus").exists():
            _inherit_cpuset(parent)

    def _limit(self, root: Path, group: Path, limits: ContainerLimits) -> None:
        if limits.cpus and "cpuset" not in self._mounts:
            raise OSError(errno.ENOTSUP, "the v1 controller cpuset is not mounted", str(group))
        if root == self._mounts["memory"]:
            (group / "memory.limit_in_bytes").write_text(str(limits.memory_mib * _MIB))
            # Absent without swap accounting, and then there is nothing to limit.
            with contextlib.suppress(OSError):
                (group / "memory.memsw.limit_in_bytes").write_text(str(limits.memory_mib * _MIB))
        if root == self._mounts["cpu"]:
            shares = min(_SHARES_MAX, max(2, limits.vcores * _SHARES_A_VCORE))
            (group / "cpu.shares").write_text(str(shares))
            if self._cpu_limit == "quota":
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(limits.vcores * _PERIOD_US))
        if root == self._mounts.get("cpuset"):
            _inherit_cpuset(group)
            if limits.cpus:
                (group / _CPUS).write_text(_listed(limits.cpus))
        if root == self._mounts.get("devices"):
            for device in limits.closed:
                (group / "devices.deny").write_text(f"c {device} rwm")

    def pin(self, container_id: str, cpus: tuple[int, ...]) -> None:
        if "cpuset" not in self._mounts:
            return
        group = self._group(self._mounts["cpuset"], container_id)
        if not group.is_dir():
            return
        wanted = _listed(cpus) if cpus else (group.parent / _CPUS).read_text().strip()
        # None of the groups that the container has made may have CPUs that the one above it lacks,
        # so all get the new ones from above, and lose the others from below.
        controls = sorted(group.rglob(_CPUS), key=lambda path: len(path.parts))
        held = {each: text for each in controls if (text := each.read_text().strip())}
        for each, text in held.items():
            each.write_text(f"{text},{wanted}")
        for each in reversed(held):
            each.write_text(wanted)

    def _kill(self, container_id: str) -> None:
        freezer = self._mounts.get("freezer")
        state = self._group(freezer, container_id) / "freezer.state" if freezer else None
        if state is None or not state.exists():
            super()._kill(container_id)
            return
        with contextlib.suppress(OSError):
            state.write_text("FROZEN")
        try:
            super()._kill(container_id)
        finally:
            with contextlib.suppress(OSError):
                state.write_text("THAWED")

    def _memory_group(self, container_id: str) -> Path:
        return self._group(self._mounts["memory"], container_id)

    def memory_used_mib(self, container_id: str) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            lines = (self._memory_group(container_id) / "memory.stat").read_text().splitlines()
            values = dict(line.split(" ") for line in lines)
            used = sum(int(values.get(name, 0)) for name in ("total_rss", "total_shmem"))
            return used // _MIB
        return None

    def memory_kills(self, container_id: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            text = (self._memory_group(container_id) / "memory.oom_control").read_text()
            return int(dict(line.split(" ") for line in text.splitlines()).get("oom_kill", 0))
        return 0


def _listed(cpus: tuple[int, ...]) -> str:
    return ",".join(map(str, cpus))


def _inherit_cpuset(group: Path) -> None:
    """A v1 cpuset starts empty, and no process can enter an empty one."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())
