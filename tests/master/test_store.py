"""The store: what is written is there after a crash, and many writes share a flush."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from hrm.core.model import ApplicationId, ApplicationState, NodeName, WorkloadClass
from hrm.core.records import ApplicationRecord
from hrm.core.run_times import RunTime
from hrm.errors import InvalidConfig
from hrm.master.store import SqliteStore, decode, encode

RECORD = ApplicationRecord(
    application_id=ApplicationId("app-1"),
    submission_key="key",
    name="a name with 'quotes' and ünïcode",
    user="somebody",
    workload_class=WorkloadClass.STREAM,
    declared_class=WorkloadClass.STREAM,
    submitted_at_s=1.5,
)


def test_a_record_survives_the_round_trip() -> None:
    assert decode(encode(RECORD)) == RECORD


def test_a_record_of_a_newer_version_is_read() -> None:
    text = encode(RECORD).replace('"name"', '"of_the_future": 1, "name"')
    assert decode(text) == RECORD


async def test_what_was_acknowledged_is_there_after_the_process_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    store = SqliteStore(path)
    assert store.next_epoch() == 1
    await store.put_application(RECORD)
    await store.put_node(NodeName("n1"))
    await store.put_node(NodeName("n2"))
    await store.forget_node(NodeName("n1"))
    # No close: a second connection sees only what is on disk, as after a crash.
    again = SqliteStore(path)
    assert again.next_epoch() == 2
    assert again.applications() == [RECORD]
    assert again.nodes() == ["n2"]
    again.close()
    store.close()


async def test_a_drain_is_kept_until_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    store = SqliteStore(path)
    for name in ("n2", "n1", "n2", "n3"):
        await store.put_drain(NodeName(name))
    await store.forget_drain(NodeName("n3"))
    await store.forget_node(NodeName("n2"))
    again = SqliteStore(path)
    assert again.drains() == ["n2", "n1"], "also of a node that is lost"
    again.close()
    store.close()


async def test_the_latest_write_of_a_record_wins(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "hrm.sqlite")
    writes = [store.put_application(replace(RECORD, message=str(number))) for number in range(100)]
    ended = replace(RECORD, state=ApplicationState.FAILED)
    await asyncio.gather(*writes, store.put_application(ended))
    assert store.applications() == [ended]
    await store.forget_application(RECORD.application_id)
    assert store.applications() == []
    store.close()


def _run_time(name: str, mean_s: float) -> RunTime:
    return RunTime(name=name, user="ada", resource_profile_id=0, mean_s=mean_s, containers=3)


async def test_run_times_are_kept_the_latest_last(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    store = SqliteStore(path)
    first, second, third = (_run_time(name, 1.5) for name in ("it's", "b", "c"))
    later = replace(first, mean_s=2.5)
    await asyncio.gather(*(store.put_run_time(row) for row in (first, second, third, later)))
    await store.forget_run_time(third.key)
    again = SqliteStore(path)
    assert again.run_times() == [second, later]
    again.close()
    store.close()


async def test_a_store_of_schema_1_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    with sqlite3.connect(path) as old:
        old.executescript(
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
            "CREATE TABLE applications (id TEXT PRIMARY KEY, record TEXT NOT NULL);"
            "CREATE TABLE nodes (name TEXT PRIMARY KEY) WITHOUT ROWID;"
            "INSERT INTO meta VALUES ('schema', '1'), ('epoch', '7');"
            "INSERT INTO nodes VALUES ('n1');"
        )
        old.execute("INSERT INTO applications VALUES ('app-1', ?)", (encode(RECORD),))
    store = SqliteStore(path)
    assert store.next_epoch() == 8
    assert store.applications() == [RECORD]
    assert store.nodes() == ["n1"]
    assert store.run_times() == []
    assert store.drains() == []
    await store.put_run_time(_run_time("a", 1.0))
    store.close()
    with sqlite3.connect(path) as new:
        assert new.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall() == [("3",)]


async def test_a_failed_write_is_told(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    store = SqliteStore(path)
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE nodes")
    with pytest.raises(sqlite3.Error, match="nodes"):
        await store.put_node(NodeName("n1"))
    store.close()


def test_a_damaged_or_newer_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"this is no database, however long one looks at it" * 100)
    with pytest.raises(InvalidConfig, match="--state-dir"):
        SqliteStore(damaged)
    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as db:
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)")
        db.execute("INSERT INTO meta VALUES ('schema', '99')")
    with pytest.raises(InvalidConfig, match="newer HRM"):
        SqliteStore(newer)
