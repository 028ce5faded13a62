"""Small files that must outlive the machine's next crash: written whole or not at all. And locks
on the directories in which they are, which a process holds for as long as it lives.

The content is written to a temporary file in the same directory, flushed to the disk, and then
renamed over the old one; the directory is flushed, too, or a crash could restore the old name. A
reader sees the old content or all of the new.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["lock", "sync", "write_durably"]


def lock(path: Path) -> int:
    """Hold the file ``path``, which is made where there is none, for this process alone: until the
    descriptor that is returned is closed. Programs that it starts do not inherit it.

    Raises:
        BlockingIOError: another holds it.
        OSError: there can be no such file.
    """
    # Neither a FIFO nor a device in its place may make this wait.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_durably(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace ``path`` by a file with ``content``; ``mode``: as far as the umask permits.

    Raises:
        OSError: it could not be written; the old file is unchanged, and no temporary file is left.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)
        made = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(made, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
