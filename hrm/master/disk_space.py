"""Detects a full disk from an error, which SQLite reports under several names.

Unlike a broken disk, a full file system is a passing state: the component that meets it reports it,
waits, and resumes without intervention.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from pathlib import Path

from hrm.errors import DiskFull

__all__ = ["full", "is_full"]

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_MAY_MEAN_IT = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
PROBE_BYTES = 64 * 1024
"""SQLite's own files grow by 32 KiB at a time."""


def is_full(error: BaseException, directory: Path) -> bool:
    """Does this error mean that the file system of ``directory`` is full?

    SQLite reports a full disk when a write fails for lack of space, but an IO error when its shared
    memory or a new file does. In that case a test write of some size decides.
    """
    if isinstance(error, OSError):
        return error.errno in _FULL_ERRNOS
    if not isinstance(error, sqlite3.Error):
        return False
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    return code == sqlite3.SQLITE_FULL or (code in _MAY_MEAN_IT and not _has_space(directory))


def full(directory: Path, error: BaseException) -> DiskFull:
    """For the operator: which disk, and that nothing else has to be done."""
    return DiskFull(
        f"the master is paused: the disk of {directory} is full ({error}); free some space "
        f"there, and it resumes by itself"
    )


def _has_space(directory: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in _FULL_ERRNOS
    return True
