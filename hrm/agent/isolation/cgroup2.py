"""cgroup v2: one directory per container, all controllers in it.

``shares`` is ``cpu.weight`` (100 per vcore), ``quota`` is ``cpu.max``. ``memory.oom.group`` makes
the kernel kill the container as a whole. Controllers are delegated by ``cgroup.subtree_control`` of
every parent, which the kernel allows only where the parent holds no process itself: true of the
real root, not of the root a container engine shows. Devices are not restricted: v2 takes an eBPF
program for that. A remark on the node says so.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from hrm.agent.isolation.base import (
    ContainerLimits,
    CpuLimit,
    GroupIsolation,
    IsolationError,
    mounts,
)

__all__ = ["Cgroup2"]

_REQUIRED = ("memory", "cpu")
_OPTIONAL = ("cpuset", "pids")
_CPUS = "cpuset.cpus"
_MIB = 1024 * 1024
_WEIGHT_A_VCORE = 100
_WEIGHT_MAX = 10_000
_PERIOD_US = 100_000


class Cgroup2(GroupIsolation):
    name = "cgroup2"

    def __init__(
        self, identity: str, vcores: int, cpu_limit: CpuLimit = "shares", root: Path | None = None
    ) -> None:
        super().__init__(identity, vcores, cpu_limit)
        found = (point for point, kind, _ in mounts() if kind == "cgroup2")
        self._root = root or next(found, None)

    def _controllers(self, group: Path) -> frozenset[str]:
        return frozenset((group / "cgroup.controllers").read_text().split())

    @property
    def pins_cpus(self) -> bool:
        return self._root is not None and "cpuset" in self._controllers(self._root)

    def _check_available(self) -> None:
        if self._root is None:
            raise IsolationError("no v2 hierarchy is mounted")
        offered = self._controllers(self._root)
        missing = [name for name in _REQUIRED if name not in offered]
        if missing:
            raise IsolationError(
                f"the v2 hierarchy at {self._root} has no controller {', '.join(missing)} "
                f"(it has: {', '.join(sorted(offered)) or 'none'})"
            )

    def _roots(self) -> tuple[Path, ...]:
        return () if self._root is None else (self._root,)

    def _prepare(self, parent: Path) -> None:
        above = parent.parent
        offered = self._controllers(above)
        enabled = frozenset((above / "cgroup.subtree_control").read_text().split())
        wanted = [c for c in (*_REQUIRED, *_OPTIONAL) if c in offered and c not in enabled]
        if wanted:
            _write(above / "cgroup.subtree_control", " ".join(f"+{name}" for name in wanted))
        if not parent.is_dir():
            parent.mkdir(exist_ok=True)
            self._set_cpu_weight(parent)
        _hand_down(parent)

    def _set_cpu_weight(self, parent: Path) -> None:
        weight = min(_WEIGHT_MAX, self._vcores * _WEIGHT_A_VCORE)
        _write(parent / "cpu.weight", str(weight))

    def _limit(self, root: Path, group: Path, limits: ContainerLimits) -> None:
        _write(group / "memory.max", str(limits.memory_mib * _MIB))
        _write(group / "memory.oom.group", "1")
        # Absent without swap, and then there is nothing to limit.
        with contextlib.suppress(OSError):
            _write(group / "memory.swap.max", "0")
        weight = min(_WEIGHT_MAX, max(1, limits.vcores * _WEIGHT_A_VCORE))
        _write(group / "cpu.weight", str(weight))
        if self._cpu_limit == "quota":
            _write(group / "cpu.max", f"{limits.vcores * _PERIOD_US} {_PERIOD_US}")
        if limits.cpus:
            _write(group / _CPUS, ",".join(map(str, limits.cpus)))

    def pin(self, container_id: str, cpus: tuple[int, ...]) -> None:
        for root in self._roots():
            group = self._group(root, container_id)
            if (group / _CPUS).exists():
                # The kernel refuses an empty list for a group that has processes.
                every = (group.parent / f"{_CPUS}.effective").read_text().strip()
                (group / _CPUS).write_text(",".join(map(str, cpus)) or every)

    def _kill(self, container_id: str) -> None:
        """``cgroup.kill`` (Linux 5.14) is atomic: no fork escapes it. On older kernels freezing is
        equivalent: a frozen process does not fork, and the signal still kills it."""
        for root in self._roots():
            group = self._group(root, container_id)
            with contextlib.suppress(OSError):
                _write(group / "cgroup.kill", "1")
                return
            with contextlib.suppress(OSError):
                _write(group / "cgroup.freeze", "1")
        super()._kill(container_id)

    def memory_used_mib(self, container_id: str) -> int | None:
        values = self._read(container_id, "memory.stat")
        if not values:
            return None
        return sum(values.get(name, 0) for name in ("anon", "shmem")) // _MIB

    def memory_kills(self, container_id: str) -> int:
        return self._read(container_id, "memory.events").get("oom_kill", 0)

    def _read(self, container_id: str, name: str) -> dict[str, int]:
        for root in self._roots():
            with contextlib.suppress(OSError, ValueError):
                lines = (self._group(root, container_id) / name).read_text().splitlines()
                return {key: int(value) for key, value in (line.split(" ") for line in lines)}
        return {}


def _hand_down(parent: Path) -> None:
    available = (parent / "cgroup.controllers").read_text().split()
    wanted = [f"+{name}" for name in (*_REQUIRED, *_OPTIONAL) if name in available]
    _write(parent / "cgroup.subtree_control", " ".join(wanted))


def _write(path: Path, text: str) -> None:
    """Write to a kernel file that must exist: opening for writing would make a plain one."""
    if not path.exists():
        raise OSError(errno.ENOENT, "no such control file", str(path))
    path.write_text(text)
