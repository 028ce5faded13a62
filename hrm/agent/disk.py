"""How much disk containers use, measured in the background, and who uses too much.

A container's directory is walked now and then, its logs included: blocks that are allocated, links
not followed, a file with several names counted once. Shuffle files come by the hundred thousand, so
the walk pauses after every few hundred entries: on a large directory it takes long, but it never
takes the disk from those who work. A container that has ended is measured again only when its
directory has changed.

Two bounds, both off by default: ``disk_limit_mib`` for each container, ``disk_node_limit_mib`` for
all that run on the node together; over the latter, whoever uses most is ended, one after the other.
It is observation, not a quota: a fast writer can pass a bound for the length of a sweep, and what a
container writes outside of its directory is not seen.

What cannot be counted (too many files, directories too deep for a path) counts as too much where a
bound is set: otherwise that is where one would hide.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from hrm.agent.shim import EXIT_FILE

__all__ = ["DiskUse", "DiskWatch", "Measured", "measure"]

ENTRIES_MAX = 2_000_000
_MIB = 1024 * 1024
_BLOCK_BYTES = 512
_ENTRIES_A_TURN = 500
_PAUSE_S = 0.005
_STOP_LIMIT_S = 10.0
_log = structlog.get_logger("hrm.agent.disk")


@dataclass(frozen=True, slots=True)
class Measured:
    """``whole``: all was counted."""

    mib: int
    whole: bool = True


_NOTHING = Measured(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """One sweep: each container's use, and what is free where they are."""

    containers: dict[str, Measured] = field(default_factory=dict)
    free_mib: int = 0

    @property
    def total_mib(self) -> int:
        return sum(measured.mib for measured in self.containers.values())


def measure(directory: Path, ending: threading.Event, entries_max: int = ENTRIES_MAX) -> Measured:
    """The disk that a directory uses. ``ending`` cuts it short."""
    waiting = [str(directory)]
    several_names: set[tuple[int, int]] = set()
    blocks, entries, whole = 0, 0, True
    while waiting:
        try:
            found = os.scandir(waiting.pop())
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError:
            whole = False
            continue
        with found:
            for entry in found:
                entries += 1
                if entries % _ENTRIES_A_TURN == 0 and ending.wait(_PAUSE_S):
                    return Measured(blocks * _BLOCK_BYTES // _MIB, whole=True)
                if entries > entries_max:
                    return Measured(blocks * _BLOCK_BYTES // _MIB, whole=False)
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except OSError:
                    whole = False
                    continue
                if stat.S_ISDIR(about.st_mode):
                    waiting.append(entry.path)
                elif about.st_nlink > 1:
                    identity = (about.st_dev, about.st_ino)
                    if identity in several_names:
                        continue
                    several_names.add(identity)
                blocks += about.st_blocks
    return Measured(blocks * _BLOCK_BYTES // _MIB, whole)


class DiskWatch:
    """Sweeps ``containers_dir`` every ``interval_s`` in a thread of its own; ``use`` is the latest.

    Limits are MiB; 0: none.
    """

    def __init__(
        self,
        containers_dir: Path,
        *,
        interval_s: float,
        limit_mib: int = 0,
        node_limit_mib: int = 0,
        beside: Path | None = None,
    ) -> None:
        """``beside``: where ``<application>/<container>`` holds what outlives a container; it
        counts while that runs."""
        self._dir = containers_dir
        self._beside = beside
        self._interval_s = interval_s
        self._limit_mib = limit_mib
        self._node_limit_mib = node_limit_mib
        self._ended: dict[str, tuple[int, Measured]] = {}
        """Of ended containers: when the directory changed last, and what was measured then."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hrm-disk", daemon=True)
        self.use = DiskUse()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_LIMIT_S)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            try:
                self.sweep()
            except Exception:
                # One bad sweep (a disk that fails) must not end the watch.
                _log.exception("measuring disk use failed")

    def sweep(self) -> DiskUse:
        """Look once, now."""
        ended: dict[str, tuple[int, Measured]] = {}
        use: dict[str, Measured] = {}
        beside = {path.name: path for path in self._beside.glob("*/*")} if self._beside else {}
        for directory in sorted(self._dir.iterdir()) if self._dir.is_dir() else ():
            name = directory.name
            # Both asked before it is measured: what it wrote before its end is there by then.
            over = (directory / EXIT_FILE).exists()
            try:
                changed_ns = directory.stat().st_mtime_ns
            except OSError:
                continue
            known_ns, measured = self._ended.get(name, (0, _NOTHING))
            if not over or known_ns != changed_ns:
                measured = measure(directory, self._ending)
            if not over and name in beside:
                more = measure(beside[name], self._ending)
                measured = Measured(measured.mib + more.mib, measured.whole and more.whole)
            use[name] = measured
            if over:
                ended[name] = (changed_ns, measured)
        self._ended = ended
        free_mib = shutil.disk_usage(self._dir).free // _MIB if self._dir.is_dir() else 0
        if not self._ending.is_set():
            self.use = DiskUse(containers=use, free_mib=free_mib)
        return self.use

    def too_much(self, live: Iterable[str]) -> dict[str, str]:
        """Which of these containers must end, each with a line for its user."""
        found = self.use.containers
        use = {name: found[name] for name in live if name in found}
        told: dict[str, str] = {}
        for name, measured in use.items():
            if self._limit_mib and measured.mib > self._limit_mib:
                told[name] = (
                    f"used {measured.mib} MiB of disk, and a container may use {self._limit_mib} "
                    f"(disk_limit_mib of the agent); {_ADVICE}"
                )
            elif (self._limit_mib or self._node_limit_mib) and not measured.whole:
                told[name] = (
                    f"its disk use cannot be measured (more than {ENTRIES_MAX} files, or "
                    f"directories nested too deep), and the node bounds it (disk_limit_mib)"
                )
        total_mib = sum(measured.mib for measured in use.values())
        if self._node_limit_mib and total_mib > self._node_limit_mib and not told:
            most = max(use, key=lambda name: (use[name].mib, name))
            told[most] = (
                f"used {use[most].mib} MiB of disk, the most on a node whose containers together "
                f"used {total_mib} of {self._node_limit_mib} MiB (disk_node_limit_mib of the "
                f"agent); {_ADVICE}"
            )
        return told


_ADVICE = (
    "spill less (more memory for each task, or more partitions), remove what you cached on disk, "
    "or raise the limit"
)
