"""A damaged journal is set aside, at the start and while it serves; what is left continues."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hrm.core.vocabulary.event_table import Lifecycle
from hrm.core.vocabulary.model import NodeState
from hrm.core.vocabulary.transitions import NODE, NodeHappening
from hrm.master.journal import EPOCH_BITS, EventFilter, Journal
from hrm.master.journal_file import ASIDE_KEPT

EVERYTHING = EventFilter()
EVENTS = 4_000
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.sqlite"


@pytest.fixture
def open_journal(path: Path) -> Iterator[Callable[..., Journal]]:
    made: list[Journal] = []

    def make(epoch: int = 1) -> Journal:
        for journal in made:
            journal.close()
        made[:] = [Journal(path, epoch, kept=100_000, keep_s=3600.0)]
        return made[0]

    yield make
    for journal in made:
        journal.close()


def append(journal: Journal, count: int = 1) -> None:
    life = Lifecycle("node", "n1", NODE, NodeState.ALIVE, journal.watch)
    for number in range(count):
        by, state = NodeHappening.FALLEN_SILENT, NodeState.LOST
        if number % 2:
            by, state = NodeHappening.REGISTERED, NodeState.ALIVE
        life.follow(by, state, time.time(), f"said number {number}")
        journal.took(None)


def filled(open_journal: Callable[..., Journal], path: Path) -> int:
    """A journal of some pages, closed; the number of its newest event."""
    journal = open_journal()
    append(journal, EVENTS)
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        (newest,) = db.execute("SELECT max(id) FROM events").fetchone()
    return int(newest)


def spoil(path: Path, page: int) -> None:
    """Overwrite one page with noise; the first is 1."""
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(bytes(range(1, 256)) * (PAGE // 255) + b"!" * (PAGE % 255))


def set_aside(directory: Path) -> list[Path]:
    found = directory.glob("events.sqlite.damaged-*")
    return sorted(each for each in found if not each.name.endswith(("-wal", "-shm")))


def a_leaf_in_the_middle(path: Path) -> int:
    """A page that holds events, but neither the first nor the last of them."""
    pages = path.stat().st_size // PAGE
    content = path.read_bytes()
    leaves = [n for n in range(2, pages) if content[n * PAGE] == 0x0D]
    return leaves[len(leaves) // 2] + 1


WRONG: dict[str, Callable[[Path], object]] = {
    "no database": lambda path: path.write_bytes(b"no database at all" * 1_000),
    "the first page": lambda path: spoil(path, 1),
    "the root of the events": lambda path: spoil(path, 2),
    "a directory": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a foreign table": lambda path: _foreign(path),
}


def _foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE events (something TEXT, application TEXT, id INTEGER)")
        db.commit()


@pytest.mark.parametrize("how", WRONG)
async def test_what_is_no_journal_is_set_aside_at_the_start(
    open_journal: Callable[..., Journal], path: Path, how: str
) -> None:
    if "page" in how or "root" in how:
        filled(open_journal, path)
    WRONG[how](path)
    journal = open_journal(epoch=2)
    append(journal)
    await journal.flush()
    known = await journal.latest(EVERYTHING, 10)
    assert [(x.kind, x.to_state) for x in known] == [("journal", "set_aside"), ("node", "lost")]
    (aside,) = set_aside(path.parent)
    assert aside.name in known[0].reason
    assert "was damaged (" in known[0].reason


def test_an_empty_file_is_a_new_journal(open_journal: Callable[..., Journal], path: Path) -> None:
    path.touch()
    open_journal()
    assert not set_aside(path.parent)


async def test_a_page_that_is_met_while_it_serves_costs_history_alone(
    open_journal: Callable[..., Journal], path: Path
) -> None:
    newest = filled(open_journal, path)
    spoil(path, a_leaf_in_the_middle(path))
    journal = open_journal(epoch=2)
    assert not set_aside(path.parent), "it has not been met yet"
    found, gone = await journal.page(newest - EVENTS + 1, EVERYTHING, 10 * EVENTS)
    assert gone == newest, "the reader hears of the gap"
    assert [(x.kind, x.to_state) for x in found] == [("journal", "set_aside")]
    (aside,) = set_aside(path.parent)
    assert aside.stat().st_size >= 20 * PAGE, "and it is kept"
    append(journal, 3)
    await journal.flush()
    known = await journal.latest(EVERYTHING, 10)
    assert [x.kind for x in known] == ["journal", "node", "node", "node"]
    assert all(x.event_id > 2 << EPOCH_BITS for x in known)


async def test_the_writer_that_meets_it_loses_nothing_new(
    open_journal: Callable[..., Journal], path: Path
) -> None:
    journal = open_journal()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE events")
    append(journal, 2)
    await journal.flush()
    known = await journal.latest(EVERYTHING, 10)
    assert [x.kind for x in known] == ["journal", "node", "node"]
    assert journal.dropped == 0
    assert len(set_aside(path.parent)) == 1


async def test_a_row_that_states_nothing_is_damage(
    open_journal: Callable[..., Journal], path: Path
) -> None:
    newest = filled(open_journal, path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE events SET reason = x'ff00' WHERE id = ?", (newest,))
        db.commit()
    journal = open_journal(epoch=2)
    (only,) = await journal.latest(EVERYTHING, 10)
    assert (only.kind, only.to_state) == ("journal", "set_aside")


def test_so_many_are_kept_and_no_more(open_journal: Callable[..., Journal], path: Path) -> None:
    for epoch in range(1, ASIDE_KEPT + 4):
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(b"no database at all" * 1_000)
        open_journal(epoch).close()
    assert len(set_aside(path.parent)) == ASIDE_KEPT
