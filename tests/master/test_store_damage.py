"""A damaged store stops the master with one line, and a repair keeps what can be read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hrm.core.tenancy.queue_spec import spec_from
from hrm.core.vocabulary.history import Service
from hrm.core.vocabulary.model import ApplicationId, NodeName
from hrm.core.vocabulary.run_times import RunTime
from hrm.errors import HrmError, InvalidConfig
from hrm.master import store_repair
from hrm.master.daemon import known_to
from hrm.master.journal import Journal
from hrm.master.store import Store
from hrm.master.store_repair import EPOCH_MARGIN, EPOCH_UNKNOWN
from hrm.master.wal_file import wal_damage
from tests.conftest import small_disk
from tests.master.test_store import RECORD

APPLICATIONS = 300
NODES = 120
EPOCH = 7
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of some pages, as a master leaves it."""
    path = tmp_path / "master" / "hrm.sqlite"

    async def write(store: Store) -> None:
        for number in range(1, APPLICATIONS + 1):
            name = ApplicationId(f"app-20261122093015-3-{number:04d}")
            store.put_application(replace(RECORD, application_id=name, message="x" * 100))
        for number in range(NODES):
            store.put_node(NodeName(f"node-{number:04d}"))
        row = RunTime(name="etl", user="ada", resource_profile_id=0, mean_s=1.5, containers=2)
        store.put_queues([spec_from("root.etl", {"guaranteed": "25%"})])
        await asyncio.gather(store.put_drain(NodeName("node-0007")), store.put_run_time(row))

    store = Store(path)
    for _ in range(EPOCH):
        store.next_epoch()
    asyncio.run(write(store))
    store.close()
    return path


def spoil(path: Path, *pages: int) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * PAGE)
            file.write(b"\x7fnoise" * (PAGE // 6))


def become(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def change(path: Path, sql: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(sql, values)
        db.commit()


def leaves_of(path: Path, mark: bytes) -> list[int]:
    """Pages of a table, not of its index, that hold ``mark``."""
    content = path.read_bytes()
    pages = range(len(content) // PAGE)
    return [
        n + 1 for n in pages if content[n * PAGE] == 0x0D and mark in content[n * PAGE :][:PAGE]
    ]


def indices_of(path: Path) -> list[int]:
    """A page used to find records, without any: reading all of them does not touch it."""
    content = path.read_bytes()
    pages = range(len(content) // PAGE)
    mark = b"app-2026"
    found = [n for n in pages if content[n * PAGE] == 0x0A and mark in content[n * PAGE :][:PAGE]]
    return [found[1] + 1]


def rooted(path: Path, table: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        sql = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        return int(db.execute(sql, (table,)).fetchone()[0])


def started(path: Path) -> int:
    """The first actions of a master; returns its epoch."""
    store = Store(path)
    try:
        known_to(store)
        return store.next_epoch()
    finally:
        store.close()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a page of records": (
        lambda path: spoil(path, leaves_of(path, b'"submission_key"')[3]), "malformed|btreeInit",
    ),
    "two pages of records": (
        lambda path: spoil(path, *leaves_of(path, b'"submission_key"')[3:9:5]),
        "malformed|btreeInit",
    ),
    "the first page": (lambda path: spoil(path, 1), "file is not a database"),
    "the root of records": (
        lambda path: spoil(path, rooted(path, "applications")), "malformed|btreeInit",
    ),
    "the root of meta": (lambda path: spoil(path, rooted(path, "meta")), "malformed"),
    "a page of an index": (lambda path: spoil(path, *indices_of(path)), "malformed|btreeInit"),
    "a record": (
        lambda path: change(path, "UPDATE applications SET record = substr(record, 1, 60) "
                            "WHERE id LIKE '%-0042'"),
        "applications, app-20261122093015-3-0042: ",
    ),
    "a record of another kind": (
        lambda path: change(path, "UPDATE applications SET record = replace(record, "
                            "'\"gang_min\": 0', '\"gang_min\": \"many\"') WHERE id LIKE '%-0042'"),
        "applications, app-20261122093015-3-0042: gang_min: Input should be a valid integer",
    ),
    "a record that speaks of another": (
        lambda path: change(path, "UPDATE applications SET record = (SELECT record FROM "
                            "applications WHERE id LIKE '%-0043') WHERE id LIKE '%-0042'"),
        "it names 'app-20261122093015-3-0043'",
    ),
    "text that is none": (
        lambda path: change(path, "UPDATE applications SET record = CAST(x'fffe00' AS TEXT) "
                            "WHERE id LIKE '%-0042'"),
        "damaged: .*UTF-8",
    ),
    "no epoch": (
        lambda path: change(path, "DELETE FROM meta WHERE key = 'epoch'"), "its epoch is missing",
    ),
    "an epoch that is none": (
        lambda path: change(path, "UPDATE meta SET value = '-3' WHERE key = 'epoch'"),
        "its epoch is '-3'",
    ),
    "an epoch beyond all": (
        lambda path: change(path, "UPDATE meta SET value = ? WHERE key = 'epoch'", str(1 << 60)),
        "its epoch is '1152921504606846976'",
    ),
    "a table that is gone": (
        lambda path: change(path, "DROP TABLE drains"), "it lacks the table drains",
    ),
    "zero bytes": (lambda path: path.write_bytes(b""), "it is empty"),
    "text": (lambda path: path.write_text("not a store\n" * 500), "file is not a database"),
    "half of it": (
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "damaged",
    ),
    "a directory": (lambda path: become(path, Path.mkdir), "it is a directory"),
    "a pipe": (lambda path: become(path, os.mkfifo), "it is no regular file"),
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_one_line_and_a_repair_ends_it(path: Path, how: str) -> None:
    spoiled, expected = DAMAGE[how]
    spoiled(path)
    was = path.read_bytes() if path.is_file() else b""
    with pytest.raises(InvalidConfig, match=expected) as caught:
        started(path)
    assert "\n" not in caught.value.message
    for command in ("--check", "--repair", "--restore FILE"):
        assert f"hrm master {command} --state-dir {path.parent}" in caught.value.message

    checked = store_repair.check(path.parent)
    assert checked.damage, "the check finds what the start finds"
    assert path.is_dir() or not path.is_file() or path.read_bytes() == was, "and changes nothing"

    repaired = store_repair.repair(path.parent)
    assert repaired.done == "repaired"
    assert Path(repaired.copy).name.startswith("hrm.sqlite.damaged-")
    if was:
        assert Path(repaired.copy).read_bytes() == was
        assert Path(repaired.copy).stat().st_mode & 0o777 == 0o600
    assert not store_repair.check(path.parent).damage
    epoch = started(path)
    assert epoch > EPOCH + EPOCH_MARGIN if repaired.kept["applications"] else EPOCH_UNKNOWN
    assert epoch == (repaired.epoch or 0) + 1


KEPT = {
    "a page of records": (APPLICATIONS - 12, NODES),
    "two pages of records": (APPLICATIONS - 24, NODES),
    "the first page": (APPLICATIONS, NODES),
    "the root of records": (APPLICATIONS, NODES),
    "the root of meta": (APPLICATIONS, NODES),
    "a record": (APPLICATIONS - 1, NODES),
    "a record of another kind": (APPLICATIONS - 1, NODES),
    "text that is none": (APPLICATIONS - 1, NODES),
    "no epoch": (APPLICATIONS, NODES),
    "a table that is gone": (APPLICATIONS, NODES),
    "zero bytes": (0, 0),
}
"""At least so many applications and nodes."""


@pytest.mark.parametrize("how", KEPT)
def test_every_readable_row_is_kept_and_what_is_lost_is_reported(path: Path, how: str) -> None:
    DAMAGE[how][0](path)
    report = store_repair.repair(path.parent)
    applications, nodes = KEPT[how]
    assert (report.kept["applications"] >= applications, report.kept["nodes"]) == (True, nodes)
    if report.kept["applications"] < APPLICATIONS and "bytes" not in how:
        assert any(line.startswith("applications") for line in report.lost), report
    store = Store(path)
    names = [record.application_id for record in store.applications()]
    assert names == sorted(names), "in the order in which they came"
    assert len(names) == report.kept["applications"]
    store.close()


@pytest.mark.parametrize("how", ["a page of records", "the first page", "no epoch"])
def test_queues_outlive_a_repair(path: Path, how: str) -> None:
    DAMAGE[how][0](path)
    assert store_repair.repair(path.parent).kept["queues"] == 1
    with contextlib.closing(Store(path)) as store:
        assert store.queues() == [spec_from("root.etl", {"guaranteed": "25%"})]


def test_an_unreadable_epoch_is_replaced_by_one_beyond_all_evidence(path: Path) -> None:
    change(path, "DELETE FROM meta WHERE key = 'epoch'")
    with contextlib.closing(sqlite3.connect(path.parent / "events.sqlite")) as db:
        db.execute("CREATE TABLE events (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO events VALUES (?)", ((12 << 32) + 5,))
        db.commit()
    assert store_repair.repair(path.parent).epoch == 12 + EPOCH_UNKNOWN


def test_a_good_store_is_left_alone(path: Path) -> None:
    was = path.read_bytes()
    assert store_repair.check(path.parent).document()["good"]
    report = store_repair.repair(path.parent)
    assert (report.done, report.damage, report.epoch) == ("", [], EPOCH)
    assert report.kept == {
        "applications": APPLICATIONS, "nodes": NODES, "drains": 1, "run_times": 1,
        "learned_classes": 0, "submissions": 0, "queues": 1, "tokens": 0,
        "pipeline_tasks": 0,
    }  # fmt: skip
    assert path.read_bytes() == was
    assert {each.name for each in path.parent.iterdir()} == {"hrm.sqlite", "lock"}


def test_a_database_of_something_else_is_not_touched(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE customers (name TEXT)")
    was = path.read_bytes()
    for attempt in (started, lambda path: store_repair.repair(path.parent)):
        with pytest.raises(
            InvalidConfig, match="is not a store of HRM but another program's database"
        ):
            attempt(path)
    assert path.read_bytes() == was


async def killed(path: Path, number: int = 40) -> Path:
    """A copy of the store of a master that was killed: its last changes are only in the WAL."""
    store = Store(path)
    for n in range(number):
        name = ApplicationId(f"app-20261122093015-9-{n:04d}")
        await store.put_application(replace(RECORD, application_id=name, message="x" * 100))
    copy = path.parent / "killed" / path.name
    copy.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(path.with_name(path.name + suffix), copy.with_name(path.name + suffix))
    store.close()
    return copy


def frames(log: Path) -> int:
    return (log.stat().st_size - 32) // (24 + PAGE)


async def test_a_log_that_a_crash_truncated_is_whole(path: Path) -> None:
    log = (copy := await killed(path)).with_name(f"{path.name}-wal")
    many = frames(log)
    assert many > 40
    for size in (log.stat().st_size - 1, log.stat().st_size - PAGE, 32 + 24 + PAGE, 32, 7, 0):
        os.truncate(log, size)
        assert wal_damage(copy) == ""
    assert wal_damage(copy.with_name("none")) == ""
    with contextlib.closing(Store(copy)) as store:
        assert len(store.applications()) == APPLICATIONS


@pytest.mark.parametrize("spoiled", ["header", "frame", "page", "salt"])
async def test_a_log_with_damage_amid_acknowledged_changes_is_no_crash(
    path: Path, spoiled: str
) -> None:
    log = (copy := await killed(path)).with_name(f"{path.name}-wal")
    tenth = 32 + 9 * (24 + PAGE)
    where = {"header": 20, "frame": tenth + 17, "page": tenth + 24 + 1_000, "salt": tenth + 9}
    with log.open("r+b") as file:
        file.seek(where[spoiled])
        file.write(b"\xa5\x5a\xa5")
    before = {each.name: each.read_bytes() for each in copy.parent.iterdir()}
    with pytest.raises(InvalidConfig, match="--repair") as refused:
        Store(copy)
    named = "header" if spoiled == "header" else "frame 10"
    assert f"{named} of its log of changes (-wal)" in refused.value.message
    assert before == {each.name: each.read_bytes() for each in copy.parent.iterdir()}
    found = store_repair.check(copy.parent)
    assert "what was written after that is lost" in found.damage[0]
    store_repair.repair(copy.parent)
    assert store_repair.check(copy.parent).damage == []
    with contextlib.closing(Store(copy)) as store:
        assert APPLICATIONS <= len(store.applications()) < APPLICATIONS + 40


async def test_damage_of_the_last_change_alone_is_taken_for_a_crash(path: Path) -> None:
    log = (copy := await killed(path)).with_name(f"{path.name}-wal")
    with log.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\xa5\x5a\xa5")
    assert wal_damage(copy) == ""


def test_a_store_without_its_log_is_older_than_its_journal(path: Path) -> None:
    with contextlib.closing(
        Journal(path.with_name("events.sqlite"), EPOCH + 2, kept=9, keep_s=9)
    ) as journal:
        assert journal.newest_epoch == 0
        journal.record_service(Service.PAUSED, 1.0, "for the test")
    (output,) = store_repair.check(path.parent).damage
    assert f"epoch {EPOCH}" in output
    assert f"epoch {EPOCH + 2}" in output
    store_repair.repair(path.parent)
    assert store_repair.check(path.parent).damage == []


def test_a_log_of_changes_without_its_store_begins_no_new_one(path: Path) -> None:
    wal = path.with_name("hrm.sqlite-wal")
    path.rename(wal)
    with pytest.raises(InvalidConfig, match=r"hrm.sqlite-wal is there, and the store itself is"):
        started(path)
    assert store_repair.check(path.parent).damage == ["hrm.sqlite: it is missing"]
    store_repair.repair(path.parent)
    assert not wal.exists()
    assert started(path) > EPOCH_UNKNOWN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_of_another_user_is_named_with_the_cure(path: Path) -> None:
    place = Path(tempfile.mkdtemp())  # which others can traverse, unlike pytest's
    try:
        place.chmod(0o755)
        moved = place / "hrm.sqlite"
        moved.write_bytes(path.read_bytes())
        moved.chmod(0o600)
        os.seteuid(65_534)
        try:
            with pytest.raises(InvalidConfig, match=r"may not write it \(chown nobody it\)"):
                Store(moved)
        finally:
            os.seteuid(0)
    finally:
        shutil.rmtree(place)


async def test_damage_that_is_met_while_it_writes_names_the_way_out(path: Path) -> None:
    store = Store(path)
    store._db.execute("PRAGMA shrink_memory")
    for page in leaves_of(path, b'"submission_key"'):
        spoil(path, page)
    with pytest.raises(InvalidConfig, match=r"is damaged: .*--repair"):
        for number in range(1, APPLICATIONS, 10):
            name = ApplicationId(f"app-20261122093015-3-{number:04d}")
            await store.put_application(replace(RECORD, application_id=name))
    store.close()


def test_nothing_is_changed_where_the_disk_takes_no_repair(path: Path, tmp_path: Path) -> None:
    DAMAGE["a record"][0](path)
    with small_disk(tmp_path / "disk", mib=2) as disk:
        moved = disk / "hrm.sqlite"
        moved.write_bytes(path.read_bytes())
        was = moved.read_bytes()
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(bytes(4 * 1024 * 1024))
        with pytest.raises(
            HrmError, match=r"nothing was changed: the disk of .* is full.*free some space"
        ):
            store_repair.repair(disk)
        assert moved.read_bytes() == was
        (disk / "filler").unlink()
        assert store_repair.repair(disk).done == "repaired"


def test_a_backup_is_whole_private_and_restored_under_a_higher_epoch(
    path: Path, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    store = Store(path)  # as a master has it open
    made = store_repair.backup(path.parent, target)
    assert (made.copy, made.kept["applications"]) == (str(target), APPLICATIONS)
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir() if "backup" in each.name) == ["backup"]
    store.next_epoch()
    asyncio.run(_forget_all(store))
    store.close()
    restored = store_repair.restore(path.parent, target)
    assert Path(restored.copy).exists(), "what was there is kept"
    assert started(path) > EPOCH + 1 + EPOCH_MARGIN
    again = Store(path)
    assert len(again.applications()) == APPLICATIONS
    again.close()


async def _forget_all(store: Store) -> None:
    records = store.applications()
    await asyncio.gather(*(store.forget_application(x.application_id) for x in records))


def test_a_damaged_backup_replaces_nothing(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    store_repair.backup(path.parent, target)
    spoil(target, leaves_of(target, b'"submission_key"')[2])
    was = path.read_bytes()
    with pytest.raises(InvalidConfig, match=r"the backup .* is damaged: .*nothing was changed"):
        store_repair.restore(path.parent, target)
    assert path.read_bytes() == was
    for wrong, expected in (
        (tmp_path / "none", "there is no backup"),
        (tmp_path, "is a directory"),
    ):
        with pytest.raises(HrmError, match=expected):
            store_repair.restore(path.parent, wrong)


def test_a_damaged_store_is_not_backed_up(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    target.write_text("the one of yesterday")
    DAMAGE["a record"][0](path)
    with pytest.raises(InvalidConfig, match="was not copied"):
        store_repair.backup(path.parent, target)
    assert target.read_text() == "the one of yesterday"


@pytest.mark.parametrize("command", ["check", "repair", "restore"])
def test_they_keep_off_a_master_that_runs(path: Path, command: str, tmp_path: Path) -> None:
    store_repair.backup(path.parent, tmp_path / "backup")
    arguments = [tmp_path / "backup"] if command == "restore" else []
    with (
        store_repair.locked(path.parent / "lock"),
        pytest.raises(InvalidConfig, match="another master uses"),
    ):
        getattr(store_repair, command)(path.parent, *arguments)


def test_what_lies_next_to_the_store_is_checked_and_put_aside(path: Path) -> None:
    modes, journal = path.parent / "policy-modes.json", path.parent / "events.sqlite"
    modes.write_text("{")
    journal.write_bytes(b"no database" * 1_000)
    (path.parent / "files").write_text("no directory")
    damage = store_repair.check(path.parent).damage
    assert [line.partition(":")[0] for line in damage] == [
        "policy-modes.json",
        "events.sqlite",
        "files",
    ]
    assert store_repair.repair(path.parent).done == "repaired"
    assert not modes.exists()
    assert not journal.exists()
    assert store_repair.check(path.parent).damage == ["files: it is no directory; remove it"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_repairs_stays_the_masters(path: Path, tmp_path: Path) -> None:
    for each in (path.parent, path):
        os.chown(each, 65_534, 65_534)
    store_repair.backup(path.parent, tmp_path / "backup")
    DAMAGE["a record"][0](path)
    store_repair.repair(path.parent)
    assert {each.stat().st_uid for each in path.parent.iterdir()} == {65_534}
