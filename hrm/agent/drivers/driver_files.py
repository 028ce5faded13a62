"""Fetches files of an application from the master to the directory of its driver, or executor.

A node keeps fetched files, by content (``hrm.agent.containers.file_cache``). Each container gets a
copy of its own, because it may write to it; the hash is checked while it is copied, so that a file
corrupted on this disk is fetched again, not run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hrm.errors import HrmError, LaunchFailed, NotFound, PermissionDenied, Unavailable

__all__ = ["Fetch", "bring"]

FETCH_LIMIT_S = 600.0
RETRY_S = 1.0
_CHUNK_BYTES = 1024 * 1024

Fetch = Callable[[str, int], Iterator[bytes]]
"""The pieces of the file with this hash, from an offset on; raises HrmError."""


def bring(fetch: Fetch, digest: str, target: Path, cache: Path | None) -> None:
    """Fetch the file with the hash ``digest`` to ``target``, through ``cache`` where that works;
    None: it may hold secrets, and must not stay on the node.

    Raises:
        LaunchFailed: the master does not have it, or does not respond within ``FETCH_LIMIT_S``.
    """
    if cache is None:
        _download(fetch, digest, target)
        return
    kept = cache / digest
    with contextlib.suppress(OSError):
        if _copy(kept, target) == digest:
            os.utime(kept)
            return
        kept.unlink(missing_ok=True)
    partial = cache / f"{digest}.{os.getpid()}.part"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.touch(mode=0o600)
    except OSError:  # the cache is not usable: fetch without it
        _download(fetch, digest, target)
        return
    try:
        _download(fetch, digest, partial)
        if _copy(partial, target) != digest:
            raise LaunchFailed(f"{partial} changes by itself; is the disk of this node in order?")
        partial.replace(kept)  # last: the agent may remove known names at any time
    finally:
        partial.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> str:
    """Copies; returns the hash of what was copied."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        os.fchmod(writer.fileno(), 0o600)
        while data := reader.read(_CHUNK_BYTES):
            digest.update(data)
            writer.write(data)
    return digest.hexdigest()


def _download(fetch: Fetch, digest: str, target: Path) -> None:
    """Resume where it was interrupted, until the file is whole."""
    deadline_s = time.monotonic() + FETCH_LIMIT_S
    found = hashlib.sha256()
    with target.open("wb") as file:
        while True:
            try:
                for data in fetch(digest, file.tell()):
                    found.update(data)
                    file.write(data)
                    if time.monotonic() > deadline_s:
                        raise Unavailable(f"only {file.tell()} bytes have come")
                break
            except (NotFound, PermissionDenied, LaunchFailed) as error:
                raise LaunchFailed(f"{target.name} cannot be fetched: {error.message}") from error
            except HrmError as error:
                if time.monotonic() > deadline_s:
                    raise LaunchFailed(
                        f"{target.name} could not be fetched within {FETCH_LIMIT_S:.0f} s: "
                        f"{error.message}"
                    ) from error
            time.sleep(RETRY_S)
    if found.hexdigest() != digest:
        raise LaunchFailed(f"{target.name} is not what the master has under {digest}")
