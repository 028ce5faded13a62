"""Recovers what is readable of a damaged store or journal, from a copy: the original is unchanged.

A table is read from its beginning and from its end, and between them by ever smaller ranges of row
numbers, each of which needs only its own pages. Rows that carry their own key are also searched for
on pages that the table no longer reaches: each page of rows that is not free replaces the table's
root, and is read. A damaged first page is replaced by that of a new store: HRM creates its tables
in one order, so they begin at the same pages.

Not detected: a changed byte within a text whose record is still readable. SQLite keeps no checksums
of its pages.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hrm.errors import InvalidConfig
from hrm.master.store_file import SCHEMA_VERSION, TABLES, Row, create, epoch_in, upgrade, what_is
from hrm.master.wal_file import wal_damage

__all__ = ["Salvaged", "examined", "journal_damage", "journal_epoch"]

LISTED_MAX = 100
RANGES_MAX = 100_000
"""Tries to find rows between damaged pages of one table."""
_SUFFIXES = ("", "-wal")
_ROWS = 0x0D
"""The type of a page that holds rows of a table."""
_NAME_THEMSELVES = ("applications", "submissions", "queues")


@dataclass(slots=True)
class Salvaged:
    """The readable rows of a store by table, and the damage to the rest: to its pages (``damage``)
    and to its rows (``lost``). ``epoch``: None where it cannot be read."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    epoch: int | None = None

    @property
    def problems(self) -> list[str]:
        return self.damage + self.lost


@contextlib.contextmanager
def _copied(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hrm-store-") as place:
        copy = Path(place) / path.name
        for suffix in _SUFFIXES:
            sidecar = path.with_name(path.name + suffix)
            if sidecar.exists():
                shutil.copyfile(sidecar, copy.with_name(copy.name + suffix))
        yield copy


def examined(path: Path) -> Salvaged:
    """What can be read of a store; of a copy, so that nothing changes.

    Raises:
        InvalidConfig: it is a database of something else, or of a newer HRM.
    """
    if not os.path.lexists(path):
        return Salvaged(damage=[f"{path.name}: it is missing"])
    what = what_is(path)
    if what:
        return Salvaged(damage=[f"{path.name}: it is {what}"])
    hidden = wal_damage(path)
    with _copied(path) as copy:
        found = _read(copy, path)
        if found is None:
            # Its first page is unreadable, so the write-ahead log may belong to another file.
            copy.with_name(copy.name + "-wal").unlink(missing_ok=True)
            _give_first_page(copy)
            found = _read(copy, path) or Salvaged()
            found.damage.insert(0, f"{path.name}: its first page is damaged")
            found.epoch = None
        if hidden:
            found.damage.insert(0, f"{path.name}: {hidden}; what was written after that is lost")
        return found


def _read(copy: Path, path: Path) -> Salvaged | None:
    """None: not even the names of its tables can be read."""
    found = Salvaged()
    with contextlib.closing(sqlite3.connect(copy)) as db:
        db.text_factory = bytes
        with contextlib.suppress(sqlite3.DatabaseError):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the file has all pages
        try:
            names = [
                bytes(name).decode("utf-8", "replace")
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
        except sqlite3.DatabaseError:
            return None
        if names and "meta" not in names:
            raise InvalidConfig(f"{path} is not a store of HRM but another program's database")
        version = _version(db, path, found)
        if version > SCHEMA_VERSION:
            raise InvalidConfig(
                f"{path} was written by a newer HRM (schema {version}); upgrade HRM"
            )
        _check_pages(db, path, found)
        if version < SCHEMA_VERSION:
            with contextlib.suppress(sqlite3.DatabaseError):
                db.text_factory = str
                upgrade(db)  # of the copy
            db.text_factory = bytes
        for name in TABLES:
            if name in names:
                found.rows[name] = _readable(db, name, found)
            elif version == SCHEMA_VERSION:
                found.damage.append(f"{path.name}: it lacks the table {name}")
        try:
            db.text_factory = str
            found.epoch = epoch_in(db)
        except (ValueError, sqlite3.DatabaseError) as error:
            found.damage.append(f"{path.name}: {error}")
    return found


def _version(db: sqlite3.Connection, path: Path, found: Salvaged) -> int:
    try:
        row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        return int(row[0])
    except (TypeError, ValueError, sqlite3.DatabaseError):
        found.damage.append(f"{path.name}: its schema's number cannot be read")
        return SCHEMA_VERSION


def _check_pages(db: sqlite3.Connection, path: Path, found: Salvaged) -> None:
    try:
        for (line,) in db.execute(f"PRAGMA integrity_check({LISTED_MAX})"):
            for each in bytes(line).decode("utf-8", "replace").splitlines():
                if each != "ok" and not each.startswith("***"):
                    found.damage.append(f"{path.name}: {each}")
    except sqlite3.DatabaseError as error:
        found.damage.append(f"{path.name}: {error}")


def _readable(db: sqlite3.Connection, name: str, found: Salvaged) -> list[Row]:
    """The valid rows of a table, in their order."""
    good, table = [], TABLES[name]
    for row in _salvaged(db, name, found):
        plain = tuple(_plain(value) for value in row)
        try:
            table.read(plain)
        except ValueError as error:
            key = ", ".join(str(each)[:80] for each in plain[: table.key])
            found.lost.append(f"{name}, {key}: {error}")
            continue
        good.append(plain)
    return good


def _plain(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _salvaged(db: sqlite3.Connection, name: str, found: Salvaged) -> list[Row]:
    """All rows that SQLite can still reach, once each."""
    table = TABLES[name]
    by = "rowid" if table.order == "rowid" else table.columns[0]
    select = f"SELECT {by}, {', '.join(table.columns)} FROM {name} NOT INDEXED"  # noqa: S608
    rows: dict[Any, Row] = {}

    def take(rest: str, *values: Any) -> bool:
        """Did it reach the end?"""
        try:
            for number, *row in db.execute(select + rest, values):
                rows[number] = tuple(row)
        except sqlite3.DatabaseError:
            return False
        return True

    if take(f" ORDER BY {by}"):
        return [rows[number] for number in sorted(rows)]
    first = set(rows)
    take(f" ORDER BY {by} DESC")
    if by == "rowid":
        low = max(first, default=0) + 1
        high = min(set(rows) - first, default=low) - 1
        ranges = [(low, high)] if low <= high else []
        for _ in range(RANGES_MAX):
            if not ranges:
                break
            begin, end = ranges.pop()
            if not take(" WHERE rowid BETWEEN ? AND ?", begin, end) and begin < end:
                middle = (begin + end) // 2
                ranges += [(begin, middle), (middle + 1, end)]
    if name in _NAME_THEMSELVES:
        for number, row in _rows_of_leaf_pages(db, name):
            rows.setdefault(number, row)
    found.lost.append(f"{name}: what was in damaged pages; {len(rows)} rows can be read")
    return [rows[number] for number in sorted(rows)]


def _rows_of_leaf_pages(db: sqlite3.Connection, name: str) -> Iterator[tuple[int, Row]]:
    """Numbers and rows of all pages of rows that are not free."""
    (_, _, copy) = db.execute("PRAGMA database_list").fetchone()
    path = Path(bytes(copy).decode())
    sql = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    (root,) = db.execute(sql, (name,)).fetchone()
    size, content = _page_bytes(path), path.read_bytes()
    free = _free_pages(content, size)
    trial = path.with_name("trial.sqlite")
    columns = ", ".join(TABLES[name].columns)
    for page in range(2, len(content) // size + 1):
        leaf = content[(page - 1) * size : page * size]
        if leaf[0] != _ROWS or page in free:
            continue
        trial.write_bytes(content[: (root - 1) * size] + leaf + content[root * size :])
        with (
            contextlib.closing(sqlite3.connect(trial)) as db_of_one,
            contextlib.suppress(sqlite3.DatabaseError),
        ):
            db_of_one.text_factory = bytes
            sql = f"SELECT rowid, {columns} FROM {name} NOT INDEXED"  # noqa: S608
            for number, *row in db_of_one.execute(sql):
                plain = tuple(_plain(value) for value in row)
                with contextlib.suppress(ValueError):
                    TABLES[name].read(plain)
                    yield number, tuple(row)


def _free_pages(content: bytes, size: int) -> set[int]:
    """Pages of deleted rows, as far as the list of free pages can be read."""
    free: set[int] = set()
    trunk = int.from_bytes(content[32:36], "big")
    while 0 < trunk <= len(content) // size and trunk not in free:
        free.add(trunk)
        at = (trunk - 1) * size
        count = min(int.from_bytes(content[at + 4 : at + 8], "big"), size // 4 - 2)
        places = range(at + 8, at + 8 + 4 * count, 4)
        free |= {int.from_bytes(content[place : place + 4], "big") for place in places}
        trunk = int.from_bytes(content[at : at + 4], "big")
    return free


def _give_first_page(copy: Path) -> None:
    """Take the first page from a new store, whose tables begin at the same pages."""
    model = copy.with_name("model.sqlite")
    create(model)
    page = bytearray(model.read_bytes()[: _page_bytes(model)])
    size = copy.stat().st_size
    pages = max(1, -(-size // len(page)))
    page[28:32] = pages.to_bytes(4, "big")
    page[32:40] = bytes(8)  # no free pages are known
    page[18:20] = b"\x01\x01"  # no write-ahead log
    with copy.open("r+b") as file:
        file.write(page)
        file.truncate(pages * len(page))


def _page_bytes(path: Path) -> int:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(18)[16:], "big")
    return 65_536 if size == 1 else size


def journal_damage(path: Path) -> str:
    """What is wrong with a journal; empty: nothing."""
    if what := what_is(path):
        return f"it is {what}"
    with _copied(path) as copy, contextlib.closing(sqlite3.connect(copy)) as db:
        try:
            (first,) = db.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            return str(error)
    return "" if first == "ok" else " ".join(str(first).split())


def journal_epoch(path: Path) -> int:
    """The epoch of the master that wrote the newest event of a journal, which is the beginning of
    the event's number; 0 where none can be read."""
    if not path.is_file():
        return 0
    with _copied(path) as copy, contextlib.closing(sqlite3.connect(copy)) as db:
        try:
            (newest,) = db.execute("SELECT max(id) FROM events").fetchone()
            return int(newest or 0) >> 32
        except (sqlite3.DatabaseError, TypeError, ValueError):
            return 0
