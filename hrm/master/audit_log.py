"""The audit log: every change that an identity made or was refused, on the master's disk.

Lines of JSON are appended to ``audit/changes.jsonl`` and ``audit/refusals.jsonl`` in the state
directory, so that a flood of refused calls displaces no change. A file that has its share of
``audit_mib`` is renamed. What becomes too old is merged into the last file, in which each identity
has the same share, and what one does not need is for the others: who makes many lines displaces
older ones of its own, and none of others.

The event loop only queues lines; a thread writes them, some milliseconds later, so what the master
has acknowledged just before it is killed may be missing. Where the disk is slower than calls, or
full, entries are dropped, and counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import structlog

from hrm import clock, rpc
from hrm.identity.audit import BEGUN, DONE, AuditRecord
from hrm.master.disk_thread import Disk
from hrm.rpc_server import CallOutcome

__all__ = ["PARTS", "AuditLog"]

PARTS = 4
"""Files of each kind, the current one and the shared one included."""
QUEUED_MAX = 10_000
CHANGES, REFUSALS = "changes", "refusals"

log = structlog.get_logger("master.audit")


class AuditLog:
    """In ``directory``, which is made; ``bytes_max``: of all its files."""

    def __init__(
        self, directory: Path, bytes_max: int, now: Callable[[], float] = clock.now
    ) -> None:
        self._directory = directory
        self._part_bytes = max(1, bytes_max // (2 * PARTS))
        self._now = now
        self._queue: deque[tuple[str, str]] = deque()
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._disk = Disk("hrm-audit")
        self.dropped = 0
        directory.mkdir(mode=0o700, exist_ok=True)

    def take(self, outcome: CallOutcome) -> None:
        """Keep a call. Never blocks, never fails."""
        error, identity = outcome.error, outcome.identity
        if error is None:
            result = BEGUN if outcome.lasts else DONE
        else:
            result = f"{rpc.status_of(error).name}: {error.message}"[:1_000]
        record = AuditRecord(
            at_s=self._now(), name=identity.name, kind=identity.kind.value,
            role=identity.role.value, token_id=identity.token_id, peer=outcome.peer,
            method=outcome.method.removeprefix("/hrm.v1."), what=outcome.what, result=result,
        )  # fmt: skip
        if len(self._queue) >= QUEUED_MAX:
            self._drop(1)
            return
        self._queue.append((CHANGES if error is None else REFUSALS, record.line()))
        self._wake.set()

    async def run(self) -> None:
        """Write what is queued, until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self.flush()
        finally:
            self._write(list(self._queue))

    async def flush(self) -> None:
        """Write what is queued."""
        async with self._writing:
            lines = list(self._queue)
            self._queue.clear()
            if lines:
                await self._disk.do(self._write, lines)

    async def latest(self, *, name: str, since_s: float, limit: int) -> list[AuditRecord]:
        """At most ``limit`` records of ``name`` (empty: of all), oldest first."""
        await self.flush()
        return await self._disk.do(self._latest, name, since_s, limit)

    def _drop(self, count: int) -> None:
        if not self.dropped:
            log.error("the audit log is incomplete: its disk is too slow, or full")
        self.dropped += count

    def _write(self, lines: list[tuple[str, str]]) -> None:
        for kind, found in itertools.groupby(lines, key=lambda x: x[0]):
            texts = [text for _, text in found]
            try:
                self._append(kind, "".join(f"{text}\n" for text in texts).encode())
            except OSError as error:
                log.warning("cannot write the audit log", why=str(error))
                self._drop(len(texts))

    def _path(self, kind: str, part: int = 0) -> Path:
        """Part 0 is written now; the others are older the higher they are."""
        return self._directory / f"{kind}{f'.{part}' if part else ''}.jsonl"

    def _append(self, kind: str, data: bytes) -> None:
        path = self._path(kind)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
            file.write(data)
            size = file.tell()
        if size >= self._part_bytes:
            self._merge(self._path(kind, PARTS - 2), self._path(kind, PARTS - 1))
            for part in range(PARTS - 2, 0, -1):
                older = self._path(kind, part - 1)
                if older.exists():
                    older.replace(self._path(kind, part))

    def _merge(self, leaving: Path, last: Path) -> None:
        """Add ``leaving`` to ``last``, within the share of each identity; where there is no space
        for that, in place of it."""
        if not leaving.exists():
            return
        both = [path for path in (last, leaving) if path.exists()]
        merged = last.with_suffix(".new")
        try:
            sizes: Counter[str] = Counter()
            for whose, line in _lines(both):
                sizes[whose] += len(line)
            share = _share(sizes.values(), self._part_bytes)
            excess = {whose: size - share for whose, size in sizes.items() if size > share}
            with open(merged, "wb", opener=_opened) as file:
                for whose, line in _lines(both):
                    if excess.get(whose, 0) > 0:
                        excess[whose] -= len(line)
                    else:
                        file.write(line)
            merged.replace(last)
        except OSError as error:
            log.warning("cannot merge the audit log's oldest files", why=str(error))
            merged.unlink(missing_ok=True)
            leaving.replace(last)

    def _latest(self, name: str, since_s: float, limit: int) -> list[AuditRecord]:
        found = [
            record
            for kind in (CHANGES, REFUSALS)
            for record in itertools.islice(self._matching(kind, name, since_s), limit)
        ]
        found.sort(key=lambda x: x.at_s)
        return found[-limit:]

    def _matching(self, kind: str, name: str, since_s: float) -> Iterator[AuditRecord]:
        """The newest first."""
        for record in self._newest_first(kind):
            if record.at_s < since_s:
                return
            if not name or record.name == name:
                yield record

    def _newest_first(self, kind: str) -> Iterator[AuditRecord]:
        for part in range(PARTS):
            try:
                lines = self._path(kind, part).read_text(errors="replace").splitlines()
            except OSError:
                continue
            yield from _readable(reversed(lines))


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _lines(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Whose each line is, and the line, oldest first; without damaged ones."""
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                try:
                    record = AuditRecord.of_line(line.decode())
                except ValueError:
                    continue
                yield f"{record.kind} {record.name}", line


def _share(sizes: Iterable[int], limit: int) -> int:
    """What each may have of ``limit``, so that all have it or as much as they need."""
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        share = limit // (len(ordered) - index)
        if size > share:
            return share
        limit -= size
    return max(ordered, default=0)


def _readable(lines: Iterable[str]) -> Iterator[AuditRecord]:
    for line in lines:
        try:
            yield AuditRecord.of_line(line)
        except ValueError:
            continue  # the write of one was cut off, by a crash or a full disk
