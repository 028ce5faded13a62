"""A node's cache of application files, so that the next driver starts without the network.

    files/<uid>/<sha256>               a whole file, as a driver of that user has fetched it
    files/<uid>/<sha256>.<pid>.part    what has been received of one so far

Drivers fetch files themselves (``hrm.agent.drivers.driver_files``), as the user they run as, into
that user's directory: knowing a hash does not permit reading what another user has sent. The agent
only creates these directories and clears them. It may be root there, where users control the
contents, so it never follows a link, and removes what it does not recognise: links, directories,
files with several names. A user can still fill the cache, and so make others fetch again; only what
running drivers need is always kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from hrm.agent.containers.container_dir import remove_tree
from hrm.agent.run_as import Account

__all__ = ["ENTRIES_MAX", "SweptFiles", "own_place", "sweep"]

ENTRIES_MAX = 100_000
"""Names in one user's directory that are examined; any more are removed."""
_BLOCK_BYTES = 512
_NAME = re.compile(r"([0-9a-f]{64})(\.\d+\.part)?")
_HERE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptFiles:
    """Files removed by a sweep: for age, for size, for not being files of the cache; bytes left."""

    old: int = 0
    too_much: int = 0
    foreign: int = 0
    bytes_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    owner: str
    name: str
    used_at_ns: int
    size: int


def own_place(directory: Path, account: Account | None) -> Path:
    """Where drivers of ``account`` (None: the agent's user) keep files; created if missing.

    If that fails, they do without: the path is returned regardless.
    """
    place = directory / str(os.geteuid() if account is None else account.uid)
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o711)
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
        here = os.open(place, _HERE)
        try:
            if account is not None:
                os.fchown(here, account.uid, account.gid)
            os.fchmod(here, 0o700)
        finally:
            os.close(here)
    return place


def sweep(
    directory: Path, *, used: Set[str], keep_s: float, bytes_max: int, now: float
) -> SweptFiles:
    """Remove files unused for ``keep_s``, then the least recently used, until all have no more than
    ``bytes_max``. ``used``: hashes of files that always stay."""
    kept: list[_Kept] = []
    foreign = 0
    for owner in _owners(directory):
        with _opened(directory / owner) as here:
            found, unknown = _scan(here, owner)
            kept += found
            foreign += sum(_remove_unknown(directory / owner / name, here) for name in unknown)
    total = sum(each.size for each in kept)
    old = too_much = 0
    for each in sorted(kept, key=lambda each: each.used_at_ns):
        is_old = each.used_at_ns < (now - keep_s) * 1e9
        if not is_old and total <= bytes_max:
            break
        if each.name[:64] in used or not _remove(directory, each):
            continue
        total -= each.size
        old += is_old
        too_much += not is_old
    return SweptFiles(old=old, too_much=too_much, foreign=foreign, bytes_left=total)


def _owners(directory: Path) -> list[str]:
    """Users' directories, and "": the cache of an earlier version had all in one."""
    with contextlib.suppress(OSError):
        names = sorted(path.name for path in directory.iterdir() if path.name.isdigit())
        return ["", *(name for name in names if len(name) < 64)]
    return []


@contextlib.contextmanager
def _opened(place: Path) -> Iterator[int]:
    """The directory itself, never the target of a link in its place; -1: there is none."""
    try:
        here = os.open(place, _HERE)
    except OSError:
        yield -1
        return
    try:
        yield here
    finally:
        os.close(here)


def _scan(here: int, owner: str) -> tuple[list[_Kept], list[str]]:
    """The files of one owner, and names of what does not belong there."""
    kept: list[_Kept] = []
    unknown: list[str] = []
    if here < 0:
        return kept, unknown
    with contextlib.suppress(OSError), os.scandir(here) as entries:
        for number, entry in enumerate(entries):
            if not owner and entry.name.isdigit() and len(entry.name) < 64:
                continue  # a user's directory
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            plain = stat.S_ISREG(about.st_mode) and about.st_nlink == 1
            if number >= ENTRIES_MAX or not plain or not _NAME.fullmatch(entry.name):
                unknown.append(entry.name)
                continue
            kept.append(
                _Kept(
                    owner=owner,
                    name=entry.name,
                    used_at_ns=about.st_mtime_ns,
                    size=about.st_blocks * _BLOCK_BYTES,
                )
            )
    return kept, unknown


def _remove(directory: Path, kept: _Kept) -> bool:
    """Remove it, unless it has been used since it was examined."""
    with _opened(directory / kept.owner) as here, contextlib.suppress(OSError):
        about = os.stat(kept.name, dir_fd=here, follow_symlinks=False)
        if about.st_mtime_ns == kept.used_at_ns:
            os.unlink(kept.name, dir_fd=here)
            return True
    return False


def _remove_unknown(path: Path, here: int) -> bool:
    try:
        os.unlink(path.name, dir_fd=here)
    except IsADirectoryError:
        remove_tree(path)  # stays below: the agent owns all directories above it
    except OSError:
        return False
    return True
