"""The file of the journal: one connection to write, one to read, and another file if it is damaged.

A damaged journal costs only history, which is no reason not to serve. So the operation that meets
the damage, at the start or on the first read of a page after days, sets the file aside under a
timestamped name, creates a new one, and continues there. ``ASIDE_KEPT`` such files are kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from hrm.errors import InvalidConfig
from hrm.master.disk_space import full, is_full
from hrm.master.store_file import SUFFIXES, is_damage, set_aside, what_is

__all__ = ["JournalFile"]

OPEN_TIMEOUT_S = 5.0
ASIDE_KEPT = 3
T = TypeVar("T")

log = structlog.get_logger("master.events")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, application TEXT NOT NULL,
  container TEXT NOT NULL, node TEXT NOT NULL, was TEXT NOT NULL, became TEXT NOT NULL,
  reason TEXT NOT NULL, actor TEXT NOT NULL, cause TEXT NOT NULL, exit_code INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS events_of_applications ON events (application, id);
CREATE TABLE IF NOT EXISTS trimmed (one INTEGER PRIMARY KEY CHECK (one = 1), id INTEGER NOT NULL);
INSERT OR IGNORE INTO trimmed VALUES (1, 0);
"""
_COLUMNS = (
    "id", "at_ms", "kind", "application", "container", "node", "was", "became", "reason", "actor",
    "cause", "exit_code",
)  # fmt: skip


class JournalFile:
    """The file ``path``. ``replaced`` is called with the new connection, the old file's new name
    and the reason, before the new file is used otherwise.

    Raises:
        InvalidConfig: it cannot be opened, or another process holds it.
        DiskFull: there is no space to open it.

    Invariant: the file changes only under ``_writing``, and is replaced only under that and
    ``_reading``; ``_generation`` counts the files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        self._generation = 0
        self.replaced: Callable[[sqlite3.Connection, str, str], None] = lambda *_: None
        self.at_start: tuple[str, str] | None = None
        """Of a file that was set aside at the start: its new name, and the reason."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            try:
                self._open()
            except (sqlite3.DatabaseError, ValueError) as error:
                if not is_damage(error):
                    raise
                self.at_start = (self._rename(str(error)), str(error))
                self._open()
        except (sqlite3.Error, OSError) as error:
            if is_full(error, path.parent):
                raise full(path.parent, error) from error
            raise InvalidConfig(
                f"cannot open the journal {path}: {error}; free it, or name another directory with "
                f"--state-dir"
            ) from error

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What ``work`` returns; again on a new file, if this one is damaged.

        Raises:
            sqlite3.Error: the write failed.
        """
        with self._writing:
            generation = self._generation
            try:
                with self._db:
                    return work(self._db)
            except (sqlite3.DatabaseError, ValueError) as error:
                if not is_damage(error):
                    raise
                self._replace(generation, error)
                with self._db:
                    return work(self._db)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The same, with the connection that reads; ``work`` sees the file of one moment."""
        try:
            with self._reading:
                generation = self._generation
                return self._of_one_moment(work)
        except (sqlite3.DatabaseError, ValueError) as error:
            if not is_damage(error):
                raise
            self._replace(generation, error)
        with self._reading:
            return self._of_one_moment(work)

    def close(self) -> None:
        with self._writing, self._reading:
            self._reader.close()
            self._db.close()

    def _of_one_moment(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._reader.execute("BEGIN")
        try:
            return work(self._reader)
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._reader.execute("ROLLBACK")

    def _replace(self, generation: int, error: Exception) -> None:
        with self._writing, self._reading:
            if generation != self._generation:
                return  # another thread has met the damage, too
            self.close()
            aside = self._rename(str(error))
            self._generation += 1
            self._open()
            with self._db:
                self.replaced(self._db, aside, str(error))

    def _open(self) -> None:
        """Raises ValueError where it is no journal."""
        if os.path.lexists(self._path):
            what = what_is(self._path)
            if what not in ("", "empty"):
                raise ValueError(f"it is {what}")
        db = _connect(self._path)
        try:
            db.executescript(_SCHEMA)
            found = tuple(each[1] for each in db.execute("PRAGMA table_info(events)"))
            if found != _COLUMNS:
                raise ValueError(f"its table of events has the columns {', '.join(found)}")
            db.execute("SELECT max(id), count(*) FROM events").fetchone()
            if db.execute("SELECT id FROM trimmed").fetchone() is None:
                raise ValueError("it does not record what it has dropped")
            reader = _connect(self._path)
        except BaseException:
            db.close()
            raise
        self._db, self._reader = db, reader

    def _rename(self, why: str) -> str:
        """Set the file aside; returns its new name."""
        aside = set_aside(self._path, "damaged")
        log.error("the journal is damaged; beginning a new one", why=why, old=str(aside))
        self._drop_oldest()
        return aside.name

    def _drop_oldest(self) -> None:
        named = self._path.parent.glob(f"{self._path.name}.damaged-*")
        found = [each for each in named if not each.name.endswith(SUFFIXES[1:])]
        for old in sorted(found)[:-ASIDE_KEPT]:
            for suffix in SUFFIXES:
                path = old.with_name(old.name + suffix)
                with contextlib.suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=OPEN_TIMEOUT_S, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        db.close()
        raise
    return db
