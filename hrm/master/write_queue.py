"""Writes to the store: in groups, in order, and retried while the disk is full.

One thread takes everything that has queued up since its last commit into the next one. Callers get
a future that is done once their write is on disk. When the disk is full, nothing is dropped: writes
are retried every ``RETRY_S``, and a later write of a row replaces an earlier one, so a pause of
days holds no more than one or two per row.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from hrm.errors import HrmError, LimitReached
from hrm.master.disk_space import full, is_full

__all__ = ["Values", "WriteQueue"]

WRITES_QUEUED_MAX = 100_000
RETRY_S = 1.0
CLOSE_TIMEOUT_S = 10.0

Values: TypeAlias = tuple[str | int | float, ...]


@dataclass(slots=True)
class _Row:
    """Pending writes of one row: at most its removal, and then its new value. ``done`` has one
    future, and one more for each failed try during which the row was written again."""

    writes: list[tuple[str, Values]] = field(default_factory=list)
    done: list[asyncio.Future[None]] = field(default_factory=list)

    def add(self, sql: str, values: Values) -> bool:
        """Add a write; returns whether the row must move behind those that are queued."""
        if _removes(sql):
            self.writes = [(sql, values)]
            return True
        if self.writes and not _removes(self.writes[-1][0]):
            self.writes[-1] = (sql, values)
            return sql.startswith("INSERT OR REPLACE")
        self.writes.append((sql, values))
        return True


class WriteQueue:
    """Writes for ``db``, a file in ``directory``. ``many``: for statements that come in bulk, the
    same for a JSON list of rows: the thread gives up Python's global lock with every statement, and
    may wait 5 ms to get it back from a busy loop.

    ``explain`` converts an error into the one that callers get. ``on_disk`` is called on the loop
    with DiskFull when the disk is full, with None when it has space again, and with any other error
    when writes have failed permanently.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        directory: Path,
        many: dict[str, str],
        explain: Callable[[Exception], Exception],
    ) -> None:
        self._db = db
        self._directory = directory
        self._many = many
        self._explain = explain
        self._pending: dict[tuple[str, Values], _Row] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._paused = False
        self.on_disk: Callable[[Exception | None], None] = lambda _: None
        self._thread = threading.Thread(target=self._write_all, name="store", daemon=True)
        self._thread.start()

    def put(
        self, table: str, key: Values, sql: str, values: Values, *, after: str = ""
    ) -> asyncio.Future[None]:
        """Queue a write of the row ``key``. The future of a row is shared by its writes. ``after``:
        what removes what was there, in the same commit.

        Raises:
            LimitReached: too many wait.
        """
        with self._changed:
            if (table, key) not in self._pending:
                self._check_room(1)
            return self._queued((table, key), sql, values, after)

    def put_rows(self, table: str, sql: str, rows: Sequence[Values]) -> asyncio.Future[None]:
        """Queue writes of rows with keys of one column, the first: one commit has all of them, as
        they are then. At least one.

        Raises:
            LimitReached: too many wait.
        """
        with self._changed:
            self._check_room(len(rows))
            return [self._queued((table, row[:1]), sql, row, "") for row in rows][-1]

    def _check_room(self, count: int) -> None:
        if len(self._pending) + count > WRITES_QUEUED_MAX:
            raise LimitReached(f"{WRITES_QUEUED_MAX} writes wait for the disk")

    def _queued(
        self, name: tuple[str, Values], sql: str, values: Values, after: str
    ) -> asyncio.Future[None]:
        row = self._pending.get(name)
        if row is None:
            row = _Row(done=[asyncio.get_running_loop().create_future()])
        moves = bool(after) and row.add(after, ())
        if row.add(sql, values) or moves:
            self._pending.pop(name, None)
        self._pending[name] = row
        self._changed.notify()
        return row.done[-1]

    def close(self) -> None:
        """Write what is queued, unless the disk is full."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT_S)

    # --- the thread -----------------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                batch, self._pending = self._pending, {}
            error: Exception | None = None
            try:
                self._commit(batch)
            except (sqlite3.Error, OSError) as problem:
                error = self._explain(problem)
                if is_full(problem, self._directory):
                    reason = full(self._directory, problem)
                    if self._wait_for_space(batch, reason):
                        continue
            if error is None and self._paused:
                self._paused = False
                self._call(batch, self.on_disk, None)
            if error is not None:
                self._call(batch, self.on_disk, error)
            self._call(batch, _resolve, batch, error)

    def _commit(self, batch: dict[tuple[str, Values], _Row]) -> None:
        writes = (write for row in batch.values() for write in row.writes)
        with self._db:
            for sql, like in itertools.groupby(writes, key=lambda write: write[0]):
                rows = [values for _, values in like]
                many = self._many.get(sql)
                if many is not None and len(rows) > 1:
                    self._db.execute(many, (json.dumps(rows),))
                else:
                    for values in rows:
                        self._db.execute(sql, values)

    def _wait_for_space(self, batch: dict[tuple[str, Values], _Row], error: HrmError) -> bool:
        """Put ``batch`` back before newer writes, and wait. False: the queue is closing, and all
        that is left is ``batch``."""
        if not self._paused:
            self._paused = True
            self._call(batch, self.on_disk, error)
        with self._changed:
            later, self._pending = self._pending, batch
            for name, new in later.items():
                row = batch.setdefault(name, _Row())
                row.done += new.done
                moves = [row.add(*write) for write in new.writes]
                if any(moves):
                    batch[name] = batch.pop(name)
            if self._changed.wait_for(lambda: self._closing, RETRY_S):
                self._pending = {}
                return False
            return True

    def _call(
        self, batch: dict[tuple[str, Values], _Row], what: Callable[..., None], *arguments: object
    ) -> None:
        loop = next(iter(batch.values())).done[0].get_loop()
        with contextlib.suppress(RuntimeError):  # the loop has closed: no caller is waiting
            loop.call_soon_threadsafe(what, *arguments)


def _removes(sql: str) -> bool:
    return sql.startswith("DELETE")


def _resolve(batch: dict[tuple[str, Values], _Row], error: Exception | None) -> None:
    for future in itertools.chain.from_iterable(row.done for row in batch.values()):
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # retrieved, because not every future is awaited
