"""The master's disk operations, in a few threads: the event loop never waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

__all__ = ["Disk", "open_file", "size_of"]

THREADS = 4
T = TypeVar("T")


class Disk:
    """Threads for one kind of files; ``name``: of the threads."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=name)

    async def do(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call ``work`` in a thread; raises what it raises. Work that has begun runs to completion,
        even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)


def size_of(path: Path) -> int:
    """Bytes; 0 where there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def open_file(path: Path) -> BinaryIO:
    """Open for reading.

    Raises:
        OSError: there is no such file.
    """
    return path.open("rb")
