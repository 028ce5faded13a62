"""How long the logs of ended containers stay on a node, for ``hrm app logs``.

A container's directory is removed ``work_keep_s`` after the end, or, earliest ended first, while
all together have more than ``logs_mib_max``. A running container is never touched, though its logs
count. Of one whose end the master has not acknowledged yet, only the logs are removed; such
records, some KiB each, have a bound of their own, ``UNACKNOWLEDGED_MAX``. One sweep removes a
bounded number, so that it never occupies the disk for long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hrm.agent.containers import shim

__all__ = ["ACKNOWLEDGED_FILE", "REMOVED_MAX", "UNACKNOWLEDGED_MAX", "Swept", "sweep"]

ACKNOWLEDGED_FILE = "acknowledged"
REMOVED_MAX = 1_000
"""Directories that one sweep removes, at most."""
UNACKNOWLEDGED_MAX = 10_000
"""Ended containers kept for the master, which has not acknowledged their ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Removed by a sweep: for age, for size, for too many unacknowledged; bytes that it left."""

    old: int = 0
    too_much: int = 0
    unacknowledged: int = 0
    bytes_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    directory: Path
    ended_at_s: float
    size: int
    acknowledged: bool


def sweep(
    containers_dir: Path,
    runs: Callable[[str], bool],
    *,
    keep_s: float,
    bytes_max: int,
    now: float,
    remove: Callable[[Path], object],
    acknowledged: Callable[[str], bool] = lambda _container_id: False,
) -> Swept:
    """Remove what is too old, then the oldest while there is too much.

    ``runs(container_id)``: it must not be touched. ``remove``: removes a directory with all in it.
    ``acknowledged(container_id)``: the master knows of the end, though there is no record of that.
    """
    total, ended = _scan(containers_dir, runs, acknowledged)
    excess = sum(not kept.acknowledged for kept in ended) - UNACKNOWLEDGED_MAX
    old = too_much = unacknowledged = 0
    for kept in ended:
        if old + too_much + unacknowledged >= REMOVED_MAX:
            break
        is_old = kept.ended_at_s < now - keep_s
        given_up = excess > 0 and not kept.acknowledged
        if not (is_old or given_up or total > bytes_max):
            continue
        if runs(kept.directory.name):
            continue  # since the scan
        freed = _remove(kept, remove, whole=kept.acknowledged or given_up)
        total -= freed
        if given_up:
            excess -= 1
            unacknowledged += 1
        elif freed or not kept.directory.exists():
            old += is_old
            too_much += not is_old
    return Swept(old=old, too_much=too_much, unacknowledged=unacknowledged, bytes_left=total)


def _scan(
    containers_dir: Path, runs: Callable[[str], bool], acknowledged: Callable[[str], bool]
) -> tuple[int, list[_Kept]]:
    """The bytes of all containers, and the ended ones, earliest end first."""
    total, ended = 0, []
    for directory in sorted(containers_dir.iterdir()):
        size = _size(directory)
        total += size
        with contextlib.suppress(OSError):
            ended_at_s = _ended_at_s(directory)
            if not runs(directory.name):
                is_recorded = (directory / ACKNOWLEDGED_FILE).exists()
                ended.append(
                    _Kept(
                        directory=directory,
                        ended_at_s=ended_at_s,
                        size=size,
                        acknowledged=is_recorded or acknowledged(directory.name),
                    )
                )
    ended.sort(key=lambda kept: kept.ended_at_s)
    return total, ended


def _ended_at_s(directory: Path) -> float:
    """Of one that left no record of its end: when it was acknowledged.

    Raises:
        OSError: it has not ended, or its disk does not say.
    """
    with contextlib.suppress(FileNotFoundError):
        return (directory / shim.EXIT_FILE).stat().st_mtime
    return (directory / ACKNOWLEDGED_FILE).stat().st_mtime


def _remove(kept: _Kept, remove: Callable[[Path], object], *, whole: bool) -> int:
    """Remove a directory, or only the logs in it; returns the number of bytes freed."""
    if whole:
        remove(kept.directory)
    else:
        for file in (*kept.directory.glob("stdout*"), *kept.directory.glob("stderr*")):
            with contextlib.suppress(OSError):  # not the agent's: all but logs was removed before
                file.unlink()
    return kept.size - _size(kept.directory)


def _size(directory: Path) -> int:
    """Bytes of the files directly in ``directory``: logs and records. Spark's scratch space is not
    counted: it is removed at the end."""
    size = 0
    with contextlib.suppress(OSError):
        for file in directory.iterdir():
            with contextlib.suppress(OSError):
                if file.is_file() and not file.is_symlink():
                    size += file.stat().st_size
    return size
