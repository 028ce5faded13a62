"""Measures the disk use of containers in the background, and finds those over a limit.

A container's directory is walked periodically, its logs included: allocated blocks, links not
followed, a file with several names counted once. The walk pauses after every few hundred entries,
to leave the disk to the containers. An ended container is measured again only if it has changed.

One limit is on by default: a floor of free space (``disk_free_min_mib``, ``hrm.agent.disk_floor``)
on the file system of the work directory and, where scratch space has disks of its own
(``work_dirs``), on one of those.

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
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from hrm.agent.containers.scratch import names_in
from hrm.agent.containers.shim import EXIT_FILE
from hrm.agent.disk_floor import ADVICE, DiskFloor, Measured

__all__ = ["DiskUse", "DiskWatch", "Measured", "blind", "measure"]

ENTRIES_MAX = 2_000_000
_MIB = 1024 * 1024
_BLOCK_BYTES = 512
_ENTRIES_A_TURN = 500
_PAUSE_S = 0.005
_STOP_LIMIT_S = 10.0
_SAMPLE_PERIOD_S = 1.0
_log = structlog.get_logger("hrm.agent.disk_watch")


_NOTHING = Measured(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """One sweep: each container's use, and the free space on the file system of the work directory.

    ``scratch``: the part of the use that is on disks of its own.
    """

    containers: dict[str, Measured] = field(default_factory=dict)
    scratch: dict[str, Measured] = field(default_factory=dict)
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

    Limits are MiB; 0: none. ``low``: why no container may start, empty: they may.
    """

    def __init__(
        self,
        containers_dir: Path,
        *,
        interval_s: float,
        limit_mib: int = 0,
        node_limit_mib: int = 0,
        free_min_mib: int = 0,
        shuffle_dirs: Sequence[Path] = (),
        scratch_dirs: Sequence[Path] = (),
        leaving: Callable[[], Collection[str]] = tuple,
        usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
    ) -> None:
        """``shuffle_dirs``: in which ``<application>/<container>`` holds what outlives a container;
        it counts while the container runs. ``scratch_dirs``: in which ``<container>`` is its
        scratch space, on disks other than that of ``containers_dir``. ``leaving()``: containers
        that have ended and whose files are being removed; what they hold is about to be free.
        ``usage``: bytes of a path's file system: all, used, free."""
        self._dir = containers_dir
        self._shuffle_dirs = shuffle_dirs
        self._scratch_dirs = scratch_dirs
        self._leaving = leaving
        self._interval_s = interval_s
        self._limit_mib = limit_mib
        self._node_limit_mib = node_limit_mib
        self._floor = DiskFloor((containers_dir,), free_min_mib, usage, "the work directory")
        self._scratch_floor: DiskFloor | None = None
        if scratch_dirs:
            place = "each scratch directory (work_dirs)"
            self._scratch_floor = DiskFloor(scratch_dirs, free_min_mib, usage, place)
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
        """Take a sample of the free space; returns that of the work directory, in MiB."""
        free_mib, low = self._floor.sample(), self._floor.low
        if self._scratch_floor is not None:
            self._scratch_floor.sample()
            low = low or self._scratch_floor.low
        self.low = low
        return free_mib

    def sweep(self) -> DiskUse:
        """Measure all containers once, now."""
        ended: dict[str, tuple[int, Measured]] = {}
        use: dict[str, Measured] = {}
        scratch: dict[str, Measured] = {}
        kept = self._kept_by_shuffle_service()
        leaving = frozenset(self._leaving())
        # Some of these may have ended just now, and not be in ``leaving`` yet.
        on_scratch = names_in(self._scratch_dirs)
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
            at_rest = over and name not in leaving and name not in on_scratch
            if not at_rest or known_ns != changed_ns:
                measured = measure(directory, self._ending)
            if at_rest:
                ended[name] = (changed_ns, measured)
            else:
                elsewhere = [place / name for place in self._scratch_dirs]
                if not over:  # the shuffle service keeps it beyond the end
                    elsewhere += kept.get(name, ())
                more = _sum(measure(path, self._ending) for path in elsewhere)
                if self._scratch_dirs:
                    scratch[name] = more
                measured = _sum((measured, more))
            use[name] = measured
        self._ended = ended
        free_mib = self.sample_free() if self._dir.is_dir() else 0
        if not self._ending.is_set():
            self.use = DiskUse(containers=use, scratch=scratch, free_mib=free_mib)
            self._floor.swept()
            if self._scratch_floor is not None:
                self._scratch_floor.swept()
        return self.use

    def _kept_by_shuffle_service(self) -> dict[str, list[Path]]:
        """By container."""
        kept: dict[str, list[Path]] = {}
        for directory in self._shuffle_dirs:
            for path in directory.glob("*/*"):
                kept.setdefault(path.name, []).append(path)
        return kept

    def too_much(self, live: Iterable[str]) -> dict[str, str]:
        """Which of these containers must end, each with a line for its user."""
        found = self.use.containers
        use = {name: found[name] for name in live if name in found}
        breaches: dict[str, str] = {}
        for name, measured in use.items():
            if self._limit_mib and measured.mib > self._limit_mib:
                breaches[name] = (
                    f"used {measured.mib} MiB of disk, and a container may use {self._limit_mib} "
                    f"(disk_limit_mib of the agent); {ADVICE}"
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
                f"agent); {ADVICE}"
            )
        if breaches:
            return breaches
        return self._under_a_floor(use, {x: found[x] for x in self._leaving() if x in found})

    def _under_a_floor(
        self, use: dict[str, Measured], leaving: dict[str, Measured]
    ) -> dict[str, str]:
        """The container to end because too little is free; one at a time. ``use``: of live ones;
        ``leaving``: of those whose files are being removed."""
        scratch = self.use.scratch
        if self._scratch_floor is not None:
            ends = self._scratch_floor.to_end(
                {name: scratch[name] for name in use if name in scratch},
                scratch,
                {name: scratch[name] for name in leaving if name in scratch},
            )
            if ends:
                return ends
            use, leaving = (
                {name: _less(used, scratch.get(name, _NOTHING)) for name, used in each.items()}
                for each in (use, leaving)
            )
        return self._floor.to_end(use, self.use.containers, leaving)


def _sum(parts: Iterable[Measured]) -> Measured:
    mib, whole = 0, True
    for part in parts:
        mib, whole = mib + part.mib, whole and part.whole
    return Measured(mib, whole)


def _less(all_of_it: Measured, part: Measured) -> Measured:
    return Measured(all_of_it.mib - part.mib, all_of_it.whole)
