"""Files of submitted applications on the master's disk, each under the hash of what is in it.

Content addresses make most questions go away: a file that is there need not be sent again, whoever
sent it first; a piece that comes twice changes nothing; what was cut off goes on where it ended,
after a restart of the master as well; and who reads a file can tell by himself that it is right.

    <sha256>        a whole file
    <sha256>.part   what has come of one so far

Nothing is counted that could be miscounted: a file is kept while a live submission names it, or
until ``keep_s`` after it was last named or sent. Parts go by the same clock. The hash of a whole
file is computed once, when its last piece has come, outside of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from hrm.errors import InvalidRequest, LimitReached, NotFound, StaleEpoch

__all__ = ["PIECE_BYTES", "FileStore"]

PIECE_BYTES = 1024 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PART = ".part"
_MIB = 1024 * 1024


class FileStore:
    """Files in ``directory``. ``file_mib_max`` bounds each, ``held_mib_max`` all together."""

    def __init__(self, directory: Path, *, file_mib_max: int, held_mib_max: int) -> None:
        self._directory = directory
        self._file_mib_max = file_mib_max
        self._held_mib_max = held_mib_max
        self._finishing: dict[str, asyncio.Task[None]] = {}
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def check(self, digest: str, size: int, name: str) -> None:
        """Would the store take such a file?

        Raises:
            InvalidRequest: it is too large, or the hash is none.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidRequest(f"{digest[:80]!r} is no SHA-256 in hexadecimal")
        self.check_size(size, name or digest)

    def check_size(self, size: int, name: str) -> None:
        """Raises InvalidRequest where the file is too large."""
        if not 0 <= size <= self._file_mib_max * _MIB:
            raise InvalidRequest(
                f"{name} has {size / _MIB:.1f} MiB, more than the "
                f"{self._file_mib_max} MiB that the master takes (file_mib_max); put it where the "
                f"nodes can read it and name its URI, or raise file_mib_max in hrm.toml [master]"
            )

    def offset(self, digest: str) -> int | None:
        """Bytes that are here; None: all of them."""
        if self._whole(digest).exists():
            return None
        return self._held(self._part(digest))

    def find(self, files: Iterable[tuple[str, int, str]]) -> list[int]:
        """For each file (hash, size, name) how much of it is here; what is not has room to come.

        Raises:
            InvalidRequest: one is too large.
            LimitReached: there is no room for what is missing.
        """
        asked = list(files)
        offsets = []
        missing = 0
        for digest, size, name in asked:
            self.check(digest, size, name)
            offset = self.offset(digest)
            if offset is None:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(self._whole(digest))  # from now on it counts as named lately
                offset = size if self._whole(digest).exists() else 0
            offsets.append(offset)
            missing += max(0, size - offset)
        self._room_for(missing)
        return offsets

    async def put(self, digest: str, size: int, name: str, offset: int, data: bytes) -> int:
        """Add a piece; answers where the next one begins. ``size`` then: the file is whole.

        Raises:
            StaleEpoch: the part of it that is here ends at another place.
            InvalidRequest: more than ``size``, too large, or not what its hash says.
            LimitReached: the disk is full, or the bound.
        """
        self.check(digest, size, name)
        here = self.offset(digest)
        if here is None:
            return size
        if digest in self._finishing:
            await asyncio.shield(self._finishing[digest])
            return size
        if here != offset:
            raise StaleEpoch(f"{name}: the next piece begins at {here}, not at {offset}")
        if offset + len(data) > size or (not data and size):
            raise InvalidRequest(f"{name}: a piece that does not fit into {size} bytes")
        self._room_for(len(data))
        part = self._part(digest)
        try:
            with part.open("ab") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
        except OSError as error:
            raise LimitReached(f"the master cannot write {part}: {error.strerror}") from error
        if offset + len(data) < size:
            return offset + len(data)
        task = asyncio.create_task(self._finish(digest, name))
        self._finishing[digest] = task
        task.add_done_callback(lambda _: self._finishing.pop(digest, None))
        await asyncio.shield(task)
        return size

    async def _finish(self, digest: str, name: str) -> None:
        part = self._part(digest)
        if await asyncio.to_thread(_settled_sha256, part) != digest:
            part.unlink(missing_ok=True)
            raise InvalidRequest(
                f"{name} is not what it was when it was read first: it has changed while it was "
                f"sent; submit again when nothing writes to it"
            )
        part.replace(self._whole(digest))

    def pieces(self, digest: str, offset: int) -> Iterator[bytes]:
        """A whole file from ``offset`` on.

        Raises:
            NotFound: it is not here.
        """
        path = self._whole(digest) if _DIGEST.fullmatch(digest) else self._directory / "?"
        if offset < 0 or not path.exists():
            raise NotFound(f"the master has no file {digest[:80]!r}; submit again")
        return _pieces(path, offset)

    def require(self, digests: Iterable[str]) -> None:
        """All of these are here, whole.

        Raises:
            NotFound: one is not.
        """
        for digest in digests:
            if not _DIGEST.fullmatch(digest) or not self._whole(digest).exists():
                raise NotFound(f"the master has no file {digest[:80]!r}; send it first")

    def clean(self, needed: set[str], keep_s: float) -> int:
        """Remove what no live submission needs and nobody sent or named lately; how many."""
        removed = 0
        now = time.time()
        for path in sorted(self._directory.iterdir()):
            with contextlib.suppress(OSError):
                if path.name in needed:
                    os.utime(path)
                    continue
                finishing = path.name.removesuffix(_PART) in self._finishing
                if not finishing and path.stat().st_mtime < now - keep_s:
                    path.unlink()
                    removed += 1
        return removed

    @property
    def held_bytes(self) -> int:
        return sum(self._held(path) for path in self._directory.iterdir())

    def _room_for(self, size: int) -> None:
        held, limit = self.held_bytes, self._held_mib_max * _MIB
        if held + size > limit:
            raise LimitReached(
                f"files of submissions hold {held / _MIB:.1f} of the {self._held_mib_max} MiB that "
                f"the master keeps (files_held_mib), and {size / _MIB:.1f} more do not fit; raise "
                f"it in hrm.toml [master], or wait: files that no submission needs any more go "
                f"after files_keep_s"
            )

    def _whole(self, digest: str) -> Path:
        return self._directory / digest

    def _part(self, digest: str) -> Path:
        return self._directory / f"{digest}{_PART}"

    @staticmethod
    def _held(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:
            return 0


def _pieces(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(PIECE_BYTES):
            yield data


def _settled_sha256(path: Path) -> str:
    """The hash, once all is on the disk: who has the name of a whole file is never asked again."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
