"""Unpacks archives of an application in a container's working directory, then becomes its command.

    unpack.py {"archives": [[archive, directory], ...], "bytes_max": N} -- COMMAND...

It runs in the container: as its user, in its group, below its shim. What an archive costs and what
it may reach are therefore the container's, and an agent that is root opens no user's archive.

What holds for every archive: nothing is written outside of the directory, which is new. A name that
is absolute or contains ``..`` is refused, and so are devices, pipes, and relative links that leave
the directory. Links are made last, so that nothing is written through one. An absolute link is
made: environments of venv-pack link to the Python of the machine, and to make it opens nothing that
the container's user could not open anyway. Bytes and entries are counted while they are written,
whatever the archive claims.

What an archive is follows from its name, as in Spark: ``.zip`` and ``.jar``; ``.tar``, ``.tar.gz``,
``.tgz``, and what Python knows besides. Spark takes over anything else as it is, and so does this.

This file runs by itself (``python -I -S unpack.py``): standard library only.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import IO, NoReturn

__all__ = ["ENTRIES_MAX", "BadArchive", "main", "unpack"]

ENTRIES_MAX = 1_000_000
_CHUNK_BYTES = 1024 * 1024
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_ZIPS = (".zip", ".jar")
FAILED = 1


class BadArchive(Exception):
    """It cannot be unpacked, or must not be; the message is for its user."""


def unpack(archive: Path, directory: Path, bytes_max: int, name: str = "") -> int:
    """Unpack ``archive`` to the new ``directory``; returns the number of bytes written.

    ``name``: by which its kind is known; empty: its own.

    Raises:
        BadArchive: it is none, is too large, or would leave the directory.
        OSError: the disk does not take it.
    """
    kind = (name or archive.name).lower()
    try:
        if not kind.endswith((*_TARS, *_ZIPS)):
            return _take_over(archive, directory, bytes_max)
        directory.mkdir(mode=0o700)
    except FileExistsError:
        raise BadArchive(f"{directory.name} exists already; name another place after '#'") from None
    target = _Target(directory, bytes_max)
    try:
        if kind.endswith(_ZIPS):
            _unpack_zip(archive, target)
        else:
            _unpack_tar(archive, target)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError) as error:
        raise BadArchive(f"it is damaged, or no archive of its name's kind: {error}") from error
    target.make_links()
    return target.written


def _take_over(archive: Path, place: Path, bytes_max: int) -> int:
    size = archive.stat().st_size
    if size > bytes_max:
        raise BadArchive(_too_large(bytes_max))
    os.link(archive, place, follow_symlinks=False)
    return size


def _too_large(bytes_max: int) -> str:
    return (
        f"it has more than the {bytes_max >> 20} MiB that a container's archives may unpack to "
        f"(unpacked_mib_max of the agent)"
    )


class _Target:
    """The directory that an archive is unpacked to. ``written``: bytes of all files, so far."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._entries = 0
        self._links: dict[str, str] = {}
        self.written = 0

    def directory(self, name: str) -> None:
        path = self._place(name)
        if path != self._directory:
            path.mkdir(mode=0o755, exist_ok=True)

    def file(self, name: str, source: IO[bytes], mode: int) -> None:
        path = self._place(name)
        path.unlink(missing_ok=True)  # an archive may hold a file twice: the later one counts
        self._links.pop(self._inner(name), None)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            while data := source.read(_CHUNK_BYTES):
                self.written += len(data)
                if self.written > self._bytes_max:
                    raise BadArchive(_too_large(self._bytes_max))
                file.write(data)
            os.fchmod(file.fileno(), mode & 0o755 | 0o600)

    def symbolic_link(self, name: str, leads_to: str) -> None:
        self._place(name)
        inner = self._inner(name)
        if not leads_to.startswith("/"):
            self._inner(posixpath.join(posixpath.dirname(inner), leads_to), link=name)
        self._links[inner] = leads_to

    def hard_link(self, name: str, other: str) -> None:
        path, source = self._place(name), self._inner(other)
        if source in self._links:
            self.symbolic_link(name, self._links[source])
            return
        found = self._directory / source
        if not found.is_file():
            raise BadArchive(f"{name!r} is a link to {other!r}, which is no file of it")
        path.unlink(missing_ok=True)
        os.link(found, path, follow_symlinks=False)

    def make_links(self) -> None:
        for name, leads_to in self._links.items():
            path = self._directory / name
            if path.is_symlink() or path.exists():
                raise BadArchive(f"{name!r} is a link and something else as well")
            path.symlink_to(leads_to)

    def _place(self, name: str) -> Path:
        """The path of an entry. All above it are directories: no link has been made yet."""
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise BadArchive(f"it has more than {ENTRIES_MAX} entries")
        path = self._directory / self._inner(name)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return path

    def _inner(self, name: str, link: str = "") -> str:
        """``name``, relative to the directory and without detours."""
        inner = posixpath.normpath(name)
        if "\0" in name or inner.startswith(("/", "../")) or inner == "..":
            what = f"the link {link!r}" if link else repr(name)
            raise BadArchive(f"{what} in it leads out of the directory that it is unpacked to")
        return inner


def _unpack_tar(archive: Path, target: _Target) -> None:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            if member.isdir():
                target.directory(member.name)
            elif member.issym():
                target.symbolic_link(member.name, member.linkname)
            elif member.islnk():
                target.hard_link(member.name, member.linkname)
            elif member.isfile():
                source = tar.extractfile(member)
                assert source is not None
                with source:
                    target.file(member.name, source, member.mode)
            else:
                raise BadArchive(f"{member.name!r} in it is a device or a pipe")
            tar.members = []  # type: ignore[attr-defined] # or all of them stay in memory


def _unpack_zip(archive: Path, target: _Target) -> None:
    with zipfile.ZipFile(archive) as found:
        for info in found.infolist():
            mode = info.external_attr >> 16
            if info.is_dir():
                target.directory(info.filename)
            elif stat.S_ISLNK(mode):
                with found.open(info) as source:
                    target.symbolic_link(info.filename, os.fsdecode(source.read(4096)))
            else:
                with found.open(info) as source:
                    target.file(info.filename, source, mode)


def main(arguments: list[str]) -> NoReturn:
    """Unpack, then become the command after ``--``; an error becomes the container's end."""
    order = json.loads(arguments[0])
    command = arguments[arguments.index("--") + 1 :]
    bytes_left = int(order["bytes_max"])
    for archive, place in order["archives"]:
        try:
            bytes_left -= unpack(Path(archive), Path(place), bytes_left)
            Path(archive).unlink(missing_ok=True)
        except (BadArchive, OSError, ValueError, RuntimeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            sys.stderr.write(f"HRM: cannot unpack {Path(archive).name} to {place}: {why}\n")
            sys.exit(FAILED)
    os.execv(command[0], command)  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    main(sys.argv[1:])
