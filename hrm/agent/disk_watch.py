"""Measures the disk use of containers in the background, and finds those over a limit.

A container's directory is walked periodically, its logs included: allocated blocks, links not
followed, a file with several names counted once. The walk pauses after every few hundred entries,
to leave the disk to the containers. An ended container is measured again only if it has changed.

One limit is on by default: a floor of free space on the file system (``disk_free_min_mib``). Below
it no container starts, and the largest user is ended: one, then another only if a sweep after that
one's end still finds too little; none if the containers together use less than what is lacking.

``disk_limit_mib`` for each container and ``disk_node_limit_mib`` for all that run on the node (the
largest user is ended, one at a time) are off by default. This is observation, not a quota: a fast
writer can exceed a limit for the length of a sweep, and what a container writes outside of its
directory shows only in the free space. What cannot be counted (too many files, directories too deep
for a path) counts as over the limit where one is set.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from hrm.agent.containers.shim import EXIT_FILE

__all__ = ["DiskUse", "DiskWatch", "Measured", "blind", "measure"]

ENTRIES_MAX = 2_000_000
_MIB = 1024 * 1024
_BLOCK_BYTES = 512
_ENTRIES_A_TURN = 500
_PAUSE_S = 0.005
_STOP_LIMIT_S = 10.0
_SAMPLE_PERIOD_S = 1.0
_PATIENCE_S = 60.0
"""How long a container ended for the floor may take to free its disk, before the next is ended."""
_FLOOR_PARTS = 4
"""The floor is at most this part of the file system, so that a small one can be used at all."""
_log = structlog.get_logger("hrm.agent.disk_watch")


@dataclass(frozen=True, slots=True)
class Measured:
    """``whole``: all was counted."""

    mib: int
    whole: bool = True


_NOTHING = Measured(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """One sweep: each container's use, and the free space on their file system."""

    containers: dict[str, Measured] = field(default_factory=dict)
    free_mib: int = 0

    @property
    def total_mib(self) -> int:
        return sum(measured.mib for measured in self.containers.values())


def blind(what: str, error: Exception) -> str:
    """Why a node that cannot measure ``what`` accepts no containers."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    advice = ""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "; raise its limit of open files (LimitNOFILE of its unit)"
    return f"the agent cannot measure {what}: {why}{advice}"


def measure(directory: Path, ending: threading.Event, entries_max: int = ENTRIES_MAX) -> Measured:
    """The disk that a directory uses. ``ending`` interrupts it."""
    waiting = [str(directory)]
    several_names: set[tuple[int, int]] = set()
    blocks, entries, whole = 0, 0, True
    while waiting:
        try:
            found = os.scandir(waiting.pop())
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # not caused by this container
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
    It checks the free space every second; while that is too little, it sweeps without a pause.

    Limits are MiB; 0: none. ``low``: why no container may start, empty: they may; it clears when a
    quarter more than the floor is free, to avoid oscillation.
    """

    def __init__(
        self,
        containers_dir: Path,
        *,
        interval_s: float,
        limit_mib: int = 0,
        node_limit_mib: int = 0,
        free_min_mib: int = 0,
        shuffle_dir: Path | None = None,
        usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
    ) -> None:
        """``shuffle_dir``: where ``<application>/<container>`` holds what outlives a container; it
        counts while the container runs. ``usage``: bytes of a path's file system: all, used,
        free."""
        self._dir = containers_dir
        self._shuffle_dir = shuffle_dir
        self._interval_s = interval_s
        self._limit_mib = limit_mib
        self._node_limit_mib = node_limit_mib
        self._free_min_mib = free_min_mib
        self._usage = usage
        self._free_mib = self._floor_mib = 0
        self._last_measured: DiskUse | None = None
        self._victim = ""
        """The last container ended for the floor, until it has ended; ``_last_measured``: its
        sweep."""
        self._patient_until_s = 0.0
        self._ended: dict[str, tuple[int, Measured]] = {}
        """Per ended container: the directory's last change, and what was measured then."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hrm-disk", daemon=True)
        self.use = DiskUse()
        self.low = ""
        self.blind = ""
        """Why disk use cannot be measured; empty: it can."""

    def start(self) -> None:
        self.sample_free()
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_LIMIT_S)

    def _run(self) -> None:
        swept_s, took_s = time.monotonic(), 0.0
        while not self._ending.wait(min(_SAMPLE_PERIOD_S, self._interval_s)):
            began_s = time.monotonic()
            try:
                self.sample_free()
                if began_s - swept_s < (took_s if self.low else self._interval_s):
                    continue
                self.sweep()
                self.blind = ""
            except Exception as error:
                # One bad sweep (a disk that fails) must not end the watch.
                _log.exception("measuring disk use failed")
                self.blind = blind("disk use", error)
            swept_s = time.monotonic()
            took_s = swept_s - began_s

    def sample_free(self) -> int:
        """Take a sample of the free space; returns it in MiB."""
        directory = self._dir if self._dir.is_dir() else self._dir.parent
        total, _, free = self._usage(directory)
        self._free_mib = free_mib = free // _MIB
        self._floor_mib = floor = min(self._free_min_mib, total // _FLOOR_PARTS // _MIB)
        if free_mib < floor:
            self.low = (
                f"less than {floor} MiB are free on the file system of the work directory "
                f"(disk_free_min_mib of the agent)"
            )
        elif free_mib >= floor + floor // 4:
            self.low = ""
        return free_mib

    def sweep(self) -> DiskUse:
        """Measure all containers once, now."""
        ended: dict[str, tuple[int, Measured]] = {}
        use: dict[str, Measured] = {}
        shuffle_dir = (
            {path.name: path for path in self._shuffle_dir.glob("*/*")} if self._shuffle_dir else {}
        )
        for directory in sorted(self._dir.iterdir()) if self._dir.is_dir() else ():
            name = directory.name
            self.sample_free()
            # Both read before measuring: what it wrote before its end is then included.
            over = (directory / EXIT_FILE).exists()
            try:
                changed_ns = directory.stat().st_mtime_ns
            except OSError:
                continue
            known_ns, measured = self._ended.get(name, (0, _NOTHING))
            if not over or known_ns != changed_ns:
                measured = measure(directory, self._ending)
            if not over and name in shuffle_dir:
                more = measure(shuffle_dir[name], self._ending)
                measured = Measured(measured.mib + more.mib, measured.whole and more.whole)
            use[name] = measured
            if over:
                ended[name] = (changed_ns, measured)
        self._ended = ended
        free_mib = self.sample_free() if self._dir.is_dir() else 0
        if not self._ending.is_set():
            self.use = DiskUse(containers=use, free_mib=free_mib)
        return self.use

    def too_much(self, live: Iterable[str]) -> dict[str, str]:
        """Which of these containers must end, each with a line for its user."""
        found = self.use.containers
        use = {name: found[name] for name in live if name in found}
        breaches: dict[str, str] = {}
        for name, measured in use.items():
            if self._limit_mib and measured.mib > self._limit_mib:
                breaches[name] = (
                    f"used {measured.mib} MiB of disk, and a container may use {self._limit_mib} "
                    f"(disk_limit_mib of the agent); {_ADVICE}"
                )
            elif (self._limit_mib or self._node_limit_mib) and not measured.whole:
                breaches[name] = (
                    f"its disk use cannot be measured (more than {ENTRIES_MAX} files, or "
                    f"directories nested too deep), and the node bounds it (disk_limit_mib)"
                )
        total_mib = sum(measured.mib for measured in use.values())
        if self._node_limit_mib and total_mib > self._node_limit_mib and not breaches:
            most = max(use, key=lambda name: (use[name].mib, name))
            breaches[most] = (
                f"used {use[most].mib} MiB of disk, the most on a node whose containers together "
                f"used {total_mib} of {self._node_limit_mib} MiB (disk_node_limit_mib of the "
                f"agent); {_ADVICE}"
            )
        return breaches or self._under_the_floor(use)

    def _under_the_floor(self, use: dict[str, Measured]) -> dict[str, str]:
        """The container to end because too little is free; one at a time. ``use``: of live ones."""
        if self._victim in use and time.monotonic() < self._patient_until_s:
            return {}
        if self._victim:
            # What it held is free by now; earlier sweeps no longer count.
            self._victim, self._last_measured = "", self.use
        lacking_mib = self._floor_mib - max(self._free_mib, self.use.free_mib)
        if not self.low or lacking_mib <= 0 or self.use is self._last_measured or not use:
            return {}
        total_mib = sum(measured.mib for measured in use.values())
        most = max(use, key=lambda name: (not use[name].whole, use[name].mib, name))
        if total_mib < lacking_mib and use[most].whole:
            return {}  # others have filled the disk
        self._victim, self._last_measured = most, self.use
        self._patient_until_s = time.monotonic() + _PATIENCE_S
        share_mib = max(0, total_mib - lacking_mib) // len(use)
        among = f"the most of {len(use)} containers, " if len(use) > 1 else ""
        return {
            most: (
                f"used {use[most].mib} MiB of disk, {among}and its fair share was {share_mib} MiB, "
                f"on a node with {self.use.free_mib} MiB free where {self._floor_mib} must stay "
                f"(disk_free_min_mib of the agent); {_ADVICE}"
            )
        }


_ADVICE = (
    "spill less (more memory for each task, or more partitions), remove what you cached on disk, "
    "or raise the limit, or give the node more disk"
)
