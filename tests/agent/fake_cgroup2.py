"""A cgroup v2 hierarchy of plain files: a declared fake, for machines that have none.

It imitates what the driver relies on: files appear with a directory, only those of controllers that
the parent delegates; ``cgroup.subtree_control`` reads as the names that are on; no group can be
left without CPUs; ``cgroup.kill`` kills; a directory with a living process cannot be removed. It
limits no process: it shows which values are written, and in which order the driver proceeds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from hrm.agent.containers import shim

__all__ = ["FakeCgroup2"]

_CPUS, _EFFECTIVE = "cpuset.cpus", "cpuset.cpus.effective"
_ALWAYS = ("cgroup.procs", "cgroup.kill", "cgroup.freeze", "cgroup.subtree_control")
_OF = {
    "memory": ("memory.max", "memory.oom.group", "memory.swap.max", "memory.stat", "memory.events"),
    "cpu": ("cpu.weight", "cpu.max"),
    "cpuset": (_CPUS, _EFFECTIVE),
    "pids": ("pids.max",),
}


class FakeCgroup2:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._lock = threading.RLock()
        self._mkdir, self._rmdir, self._write_text = Path.mkdir, Path.rmdir, Path.write_text
        root.mkdir()
        (root / "cgroup.controllers").write_text("cpuset cpu io memory pids")
        (root / "cgroup.subtree_control").touch()

        def mkdir(path: Path, *args: Any, **more: Any) -> None:
            with self._lock:
                if root not in path.parents or path.is_dir():
                    self._mkdir(path, *args, **more)
                    return
                if more.get("parents"):
                    mkdir(path.parent, parents=True, exist_ok=True)
                made = root.with_name("being-made")
                self._mkdir(made)
                self._fill(made, path.parent)
                made.rename(path)  # all at once, as the kernel does

        def rmdir(path: Path) -> None:
            with self._lock:
                if root in path.parents:
                    self._empty(path)
                self._rmdir(path)

        def write_text(path: Path, data: str, *args: Any, **more: Any) -> int:
            if root in path.parents and path.name == _CPUS and not data.strip():
                raise OSError(errno.ENOSPC, "its processes need CPUs", str(path))
            if root not in path.parents or path.name != "cgroup.subtree_control":
                return self._write_text(path, data, *args, **more)
            with self._lock:
                self._switch_on(path, data.split())
            return len(data)

        monkeypatch.setattr(Path, "write_text", write_text)
        monkeypatch.setattr(Path, "mkdir", mkdir)
        monkeypatch.setattr(Path, "rmdir", rmdir)

    def _fill(self, path: Path, parent: Path) -> None:
        on = (parent / "cgroup.subtree_control").read_text().split()
        (path / "cgroup.controllers").write_text(" ".join(on))
        for name in (*_ALWAYS, *(name for each in on for name in _OF.get(each, ()))):
            (path / name).touch()
        if "cpuset" in on:
            self._write_text(path / _EFFECTIVE, ",".join(map(str, os.sched_getaffinity(0))))

    def _switch_on(self, switch: Path, words: list[str]) -> None:
        """Add to what is on; a controller that the directory does not have is refused."""
        names = [word.removeprefix("+") for word in words]
        if not set(names) <= set((switch.parent / "cgroup.controllers").read_text().split()):
            raise OSError(errno.ENOENT, "no such controller here", str(switch))
        on = dict.fromkeys([*switch.read_text().split(), *names])
        made = self.root.with_name("being-switched")
        self._write_text(made, " ".join(on))
        made.rename(switch)

    def _empty(self, path: Path) -> None:
        """The kernel's check before it removes a directory."""
        procs = path / "cgroup.procs"
        if not procs.exists():
            return
        pids = [int(line) for line in procs.read_text().split()]
        kill = path / "cgroup.kill"
        if kill.exists() and kill.read_text() == "1":
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if any(shim.start_ticks(pid) is not None for pid in pids):
            raise OSError(errno.EBUSY, "a process lives here", str(path))
        if any(below.is_dir() for below in path.iterdir()):
            return
        for file in path.iterdir():
            file.unlink()
