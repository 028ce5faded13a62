"""Files of applications on the master's disk, each named by the hash of its contents.

    <sha256>        a whole file
    <sha256>.part   what has been received of one so far

A file that is present is not sent again, a repeated piece changes nothing, and an interrupted
transfer resumes where it ended. There are no reference counts that could drift: a file or a part
stays while a live submission or application names it, or until ``keep_s`` after it was last named
or sent. A whole file's hash is computed once, on receipt of its last piece.

A few threads do all file operations, at most one at a time per file, and one that has begun runs to
completion, even if the sender disconnects. Each cleaning reads the directory again, which corrects
the count of bytes after files were removed by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hrm.errors import InvalidRequest, LimitReached, NotFound, StaleEpoch
from hrm.master.disk_thread import Disk, open_file, size_of

__all__ = ["PIECE_BYTES", "FileStore"]

PIECE_BYTES = 1024 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PART = ".part"
_MIB = 1024 * 1024
T = TypeVar("T")


class FileStore:
    """Files in ``directory``. ``file_mib_max`` bounds each, ``held_mib_max`` all together.

    Invariant: ``held_bytes`` is the sum of the sizes of all files, and of what is being written.
    """

    def __init__(self, directory: Path, *, file_mib_max: int, held_mib_max: int) -> None:
        self._directory = directory
        self._file_mib_max = file_mib_max
        self._held_mib_max = held_mib_max
        self._busy: dict[str, asyncio.Task[Any]] = {}
        """Files that a thread works on, by their hashes."""
        self._disk = Disk("hrm-files")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sizes = {name: size for name, (size, _) in _listed(directory).items()}
        self.held_bytes = sum(self._sizes.values())
        self._changes = 0

    def check(self, digest: str, size: int, name: str) -> None:
        """Check that the store would accept such a file.

        Raises:
            InvalidRequest: it is too large, or the hash is malformed.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidRequest(f"{digest[:80]!r} is no SHA-256 in hexadecimal")
        self.check_size(size, name or digest)

    def check_size(self, size: int, name: str) -> None:
        """Raises InvalidRequest where the file is too large."""
        if not 0 <= size <= self._file_mib_max * _MIB:
            raise InvalidRequest(
                f"{name} has {size / _MIB:.1f} MiB, more than the "
                f"{self._file_mib_max} MiB that the master accepts (file_mib_max); put it where "
                f"the nodes can read it and name its URI, or raise file_mib_max in hrm.toml "
                f"[master]"
            )

    async def find(self, files: Iterable[tuple[str, int, str]]) -> list[int]:
        """For each file (hash, size, name) how many bytes are present; the rest of each must fit.

        Raises:
            InvalidRequest: one is too large.
            LimitReached: there is no space for what is missing.
        """
        asked = list(files)
        for digest, size, name in asked:
            self.check(digest, size, name)
        offsets = await self._disk.do(self._sizes_of, [(digest, size) for digest, size, _ in asked])
        self._check_limit(
            sum(max(0, x[1] - offset) for x, offset in zip(asked, offsets, strict=True))
        )
        return offsets

    async def put(self, digest: str, size: int, name: str, offset: int, data: bytes) -> int:
        """Add a piece; returns the offset of the next one, which is ``size`` for a whole file.

        Raises:
            StaleEpoch: the part that is present ends at another offset.
            InvalidRequest: more than ``size``, too large, or the contents do not match the hash.
            LimitReached: the disk is full, or the store's limit is reached.
        """
        self.check(digest, size, name)
        return await self._alone(digest, lambda: self._put(digest, size, name, offset, data))

    async def _put(self, digest: str, size: int, name: str, offset: int, data: bytes) -> int:
        here = await self._disk.do(self._offset, digest)
        if here is None:
            return size
        if here != offset:
            raise StaleEpoch(f"{name}: the next piece begins at {here}, not at {offset}")
        if offset + len(data) > size or (not data and size):
            raise InvalidRequest(f"{name}: a piece that does not fit into {size} bytes")
        self._check_limit(len(data))
        part = self._part(digest)
        self._count(part.name, here + len(data))
        try:
            await self._disk.do(_append, part, data)
        except OSError as error:
            self._count(part.name, await self._disk.do(size_of, part))
            raise LimitReached(f"the master cannot write {part}: {error.strerror}") from error
        if offset + len(data) == size:
            await self._finish(digest, size, name)
        return offset + len(data)

    async def _finish(self, digest: str, size: int, name: str) -> None:
        part = self._part(digest)
        try:
            right = await self._disk.do(_settled_sha256, part) == digest
            if right:
                await self._disk.do(part.replace, self._whole(digest))
            else:
                await self._disk.do(part.unlink)
        except OSError as error:
            self._count(part.name, await self._disk.do(size_of, part))
            raise LimitReached(f"the master cannot keep {part}: {error.strerror}") from error
        self._count(part.name, 0)
        if not right:
            raise InvalidRequest(
                f"{name} is not what it was when it was read first: it has changed while it was "
                f"sent; submit again when nothing writes to it"
            )
        self._count(digest, size)

    async def pieces(self, digest: str, offset: int) -> AsyncIterator[bytes]:
        """A whole file from ``offset`` on.

        Raises:
            NotFound: it is not here.
        """
        missing = NotFound(f"the master has no file {digest[:80]!r}; submit again")
        if offset < 0 or not _DIGEST.fullmatch(digest):
            raise missing
        try:
            file = await self._disk.do(open_file, self._whole(digest))
        except FileNotFoundError:
            raise missing from None
        with file:
            # Not beyond its end: an offset larger than any file can be is an error.
            file.seek(min(offset, os.fstat(file.fileno()).st_size))
            while data := await self._disk.do(file.read, PIECE_BYTES):
                yield data

    async def require(self, digests: Iterable[str]) -> None:
        """Check that all of these are here, whole.

        Raises:
            NotFound: one is not.
        """
        asked = list(digests)
        named = [digest for digest in asked if _DIGEST.fullmatch(digest)]
        whole = await self._disk.do(self._whole_ones, named)
        for digest in asked:
            if digest not in whole:
                raise NotFound(f"the master has no file {digest[:80]!r}; send it first")

    async def clean(self, needed: set[str], keep_s: float) -> int:
        """Remove files that are not ``needed`` and that were not sent or named lately; returns how
        many."""
        changes = self._changes
        found = await self._disk.do(_listed, self._directory, needed)
        if changes == self._changes and not self._busy:
            self._sizes = {name: size for name, (size, _) in found.items()}
            self.held_bytes = sum(self._sizes.values())
        oldest_s = time.time() - keep_s
        removed = 0
        for name, (_, used_s) in found.items():
            digest = name.removesuffix(_PART)
            if name not in needed and used_s < oldest_s and digest not in self._busy:
                removed += await self._alone(digest, partial(self._drop, name, oldest_s))
        return removed

    async def _drop(self, name: str, oldest_s: float) -> bool:
        if not await self._disk.do(_remove_old, self._directory / name, oldest_s):
            return False
        self._count(name, 0)
        return True

    async def _alone(self, digest: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Hold the file exclusively. The work survives the cancellation of its caller."""
        while (busy := self._busy.get(digest)) is not None:
            await asyncio.wait((busy,))
        task = self._busy[digest] = asyncio.create_task(work())
        task.add_done_callback(lambda _: self._busy.pop(digest))
        return await asyncio.shield(task)

    def _count(self, name: str, size: int) -> None:
        self._changes += 1
        self.held_bytes += size - self._sizes.pop(name, 0)
        if size:
            self._sizes[name] = size

    def _check_limit(self, size: int) -> None:
        held, limit = self.held_bytes, self._held_mib_max * _MIB
        if held + size > limit:
            raise LimitReached(
                f"files of applications hold {held / _MIB:.1f} of the {self._held_mib_max} MiB "
                f"that the master keeps (files_held_mib), and {size / _MIB:.1f} more do not fit; "
                f"raise it in hrm.toml [master], or wait: files that nothing needs any more go "
                f"after files_keep_s"
            )

    def _whole(self, digest: str) -> Path:
        return self._directory / digest

    def _part(self, digest: str) -> Path:
        return self._directory / f"{digest}{_PART}"

    # --- what touches the disk; in threads ----------------------------------------------------

    def _offset(self, digest: str) -> int | None:
        """Bytes that are present; None: all of them."""
        return None if self._whole(digest).exists() else size_of(self._part(digest))

    def _sizes_of(self, files: list[tuple[str, int]]) -> list[int]:
        """How much of each is here; from now on they count as named lately."""
        whole = self._whole_ones([digest for digest, _ in files])
        return [size if digest in whole else size_of(self._part(digest)) for digest, size in files]

    def _whole_ones(self, digests: list[str]) -> set[str]:
        """Those that are here, whole; they now count as named lately."""
        found = set()
        for digest in digests:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._whole(digest))
                found.add(digest)
        return found


def _listed(directory: Path, needed: Iterable[str] = ()) -> dict[str, tuple[int, float]]:
    """Size and time of last use of each file; for those that are ``needed``, the present."""
    found = {}
    for path in sorted(directory.iterdir()):
        with contextlib.suppress(OSError):
            if path.name in needed:
                os.utime(path)
            about = path.stat()
            found[path.name] = (about.st_size, about.st_mtime)
    return found


def _append(part: Path, data: bytes) -> None:
    with part.open("ab") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)


def _settled_sha256(path: Path) -> str:
    """The hash, computed once all is on disk: a whole file is not verified again."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_old(path: Path, oldest_s: float) -> bool:
    """Remove it, unless it has been used since the check."""
    with contextlib.suppress(OSError):
        if path.stat().st_mtime < oldest_s:
            path.unlink()
            return True
    return False
