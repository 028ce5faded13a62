"""The store: what is written is there after a crash, and many writes share a flush."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm.core.tenancy.queue_spec import QueueSpec, spec_from
from hrm.core.vocabulary.learned_classes import LearnedClass
from hrm.core.vocabulary.model import ApplicationId, ApplicationState, NodeName, WorkloadClass
from hrm.core.vocabulary.priority_class import Standing
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime
from hrm.errors import InvalidConfig
from hrm.master.record_json import decode, encode
from hrm.master.store import Store

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
    assert decode(ApplicationRecord, encode(RECORD)) == RECORD


def test_where_an_application_stands_survives_and_may_be_missing() -> None:
    standing = Standing.as_declared(3).begun(5.0, 60.0).after_request(1, "user ana")
    raised = replace(RECORD, standing=standing.after_interruption(7.5))
    assert decode(ApplicationRecord, encode(raised)) == raised
    older = encode(RECORD).replace('"standing": null, ', "")
    assert "standing" not in older
    assert decode(ApplicationRecord, older).stands == Standing.as_declared(RECORD.priority)


def test_a_record_of_a_newer_version_is_read() -> None:
    text = encode(RECORD).replace('"name"', '"of_the_future": 1, "name"')
    assert decode(ApplicationRecord, text) == RECORD


async def test_what_was_acknowledged_is_there_after_the_process_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    store = Store(path)
    assert store.next_epoch() == 1
    await store.put_application(RECORD)
    await store.put_node(NodeName("n1"))
    await store.put_node(NodeName("n2"))
    await store.forget_node(NodeName("n1"))
    # No close: a second connection sees only what is on disk, as after a crash.
    again = Store(path)
    assert again.next_epoch() == 2
    assert again.applications() == [RECORD]
    assert list(again.nodes()) == ["n2"]
    again.close()
    store.close()


async def test_others_cannot_read_it_whatever_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    Store(path).close()
    path.chmod(0o644)
    store = Store(path)
    await store.put_application(RECORD)
    modes = {found.name: found.stat().st_mode & 0o777 for found in tmp_path.iterdir()}  # noqa: ASYNC240
    store.close()
    assert "hrm.sqlite-wal" in modes
    assert set(modes.values()) == {0o600}, modes


async def test_a_drain_is_kept_until_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    store = Store(path)
    for name in ("n2", "n1", "n2", "n3"):
        await store.put_drain(NodeName(name))
    await store.forget_drain(NodeName("n3"))
    await store.forget_node(NodeName("n2"))
    again = Store(path)
    assert again.drains() == ["n2", "n1"], "also of a node that is lost"
    again.close()
    store.close()


NAMES = st.sampled_from([NodeName("n1"), NodeName("n2"), NodeName("n3")])
TEXTS = st.text(max_size=8)
RECORDS = st.builds(
    replace,
    st.just(RECORD),
    application_id=st.sampled_from([ApplicationId("app-1"), ApplicationId("app-2")]),
    message=TEXTS,
    state=st.sampled_from(list(ApplicationState)),
    declared_class=st.sampled_from([None, *WorkloadClass]),
    submitted_at_s=st.floats(0, 1e12),
    gang_min=st.integers(0, 100_000),
)
RUN_TIMES = st.builds(
    RunTime,
    name=TEXTS,
    user=st.sampled_from(["ada", "bob"]),
    resource_profile_id=st.integers(0, 2),
    mean_s=st.floats(0, 1e9),
    containers=st.integers(1, 100),
    input_bytes=st.floats(0, 1e18),
    input_variance=st.floats(0, 100),
    input_covariance=st.floats(-100, 100),
)
LEARNED_CLASSES = st.builds(
    LearnedClass,
    name=TEXTS,
    user=st.sampled_from(["ada", "bob"]),
    workload_class=st.sampled_from(list(WorkloadClass)),
    application_id=st.sampled_from([ApplicationId("app-1"), ApplicationId("app-2")]),
)
KINDS = ("node", "drain", "application", "run_time", "learned_class")
WRITES = st.one_of(
    st.tuples(st.sampled_from(["node", "drain"]), st.booleans(), NAMES),
    st.tuples(st.just("application"), st.booleans(), RECORDS),
    st.tuples(st.just("run_time"), st.booleans(), RUN_TIMES),
    st.tuples(st.just("learned_class"), st.booleans(), LEARNED_CLASSES),
)


def _write(store: Store, model: dict[str, Any], write: Any) -> asyncio.Future[None]:
    """One write to the store, and to a dictionary for each kind."""
    kind, is_put, value = write
    keys = {"application": "application_id", "run_time": "key", "learned_class": "key"}
    key = getattr(value, keys[kind]) if kind in keys else value
    if is_put:
        if kind in ("run_time", "learned_class"):
            model[kind].pop(key, None)
        model[kind].setdefault(key, None)
        model[kind][key] = value
    else:
        model[kind].pop(key, None)
    call = getattr(store, f"{'put' if is_put else 'forget'}_{kind}")
    done: asyncio.Future[None] = call(value if is_put else key)
    return done


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(WRITES, max_size=8), max_size=4))
def test_replayed_it_is_what_was_written(batches: list[list[Any]]) -> None:
    """Any writes, in any batches; each batch is followed by the end of the process."""
    model: dict[str, Any] = {kind: {} for kind in KINDS}

    async def write(path: Path, batch: list[Any]) -> None:
        store = Store(path)
        await asyncio.gather(*(_write(store, model, each) for each in batch))
        store.close()

    with TemporaryDirectory() as directory:
        path = Path(directory) / "hrm.sqlite"
        for batch in batches:
            asyncio.run(write(path, batch))
            store = Store(path)
            assert list(store.nodes()) == sorted(model["node"])
            assert store.drains() == list(model["drain"])
            assert store.applications() == list(model["application"].values())
            assert store.run_times() == list(model["run_time"].values())
            assert store.learned_classes() == list(model["learned_class"].values())
            store.close()


async def test_the_latest_write_of_a_record_wins(tmp_path: Path) -> None:
    store = Store(tmp_path / "hrm.sqlite")
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
    store = Store(path)
    first, second, third = (_run_time(name, 1.5) for name in ("it's", "b", "c"))
    later = replace(first, mean_s=2.5)
    await asyncio.gather(*(store.put_run_time(row) for row in (first, second, third, later)))
    await store.forget_run_time(third.key)
    again = Store(path)
    assert again.run_times() == [second, later]
    again.close()
    store.close()


QUEUES = (
    spec_from("root.a", {"guaranteed": "33.333333%", "submitters": ["ünï", "b"]}),
    spec_from("root.a.b", {"maximum": {"cores": 3, "memory": "10g"}, "weight": 0.1}),
    spec_from("root.default", {}),
)


async def test_queues_replace_those_that_were_there(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    store = Store(path)
    assert store.queues() == []
    await store.put_queues(QUEUES)
    again = Store(path)
    assert again.queues() == list(QUEUES)
    again.close()
    for stated in (QUEUES[1:], QUEUES[:1]):
        last = store.put_queues(stated)
    await last
    assert store.queues() == [QUEUES[0]]
    await store.put_queues(())
    assert store.queues() == []
    store.close()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.sampled_from(QUEUES), unique=True), min_size=1, max_size=6))
def test_of_changes_of_queues_the_last_is_kept_whole(changes: list[list[QueueSpec]]) -> None:
    async def write(path: Path) -> None:
        store = Store(path)
        await asyncio.gather(*(store.put_queues(stated) for stated in changes))
        assert store.queues() == changes[-1]
        store.close()

    with TemporaryDirectory() as directory:
        asyncio.run(write(Path(directory) / "hrm.sqlite"))


async def test_a_store_of_schema_6_gets_its_queues(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as old:
        old.executescript(
            "DROP TABLE queues; DROP TABLE tokens; "
            "UPDATE meta SET value = '6' WHERE key = 'schema';"
        )
    store = Store(path)
    await store.put_queues(QUEUES)
    assert store.queues() == list(QUEUES)
    store.close()


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ("[]", "list in place of what is stated of a queue"),
        ("{", "Expecting"),
        ('{"weight": -1}', "queue root.a: weight = '-1'"),
    ],
)
async def test_a_queue_that_cannot_be_read_is_damage(tmp_path: Path, stated: str, why: str) -> None:
    store = Store(tmp_path / "hrm.sqlite")
    with sqlite3.connect(tmp_path / "hrm.sqlite") as other:
        other.execute("INSERT INTO queues VALUES ('root.a', ?)", (stated,))
    with pytest.raises(InvalidConfig, match=f"is damaged: queues, root.a: {why}"):
        store.queues()
    store.close()


def test_an_application_of_an_hrm_with_tenants_is_read() -> None:
    text = encode(RECORD).replace('"queue": ""', '"tenant": "t"').replace('"priority": 0, ', "")
    assert "queue" not in text
    assert decode(ApplicationRecord, text) == RECORD


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
    store = Store(path)
    assert store.next_epoch() == 8
    assert store.applications() == [RECORD]
    assert list(store.nodes()) == ["n1"]
    assert store.run_times() == []
    assert store.learned_classes() == []
    assert store.drains() == []
    assert store.tokens() == []
    await store.put_run_time(_run_time("a", 1.0))
    store.close()
    with sqlite3.connect(path) as new:
        assert new.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall() == [("9",)]


async def test_run_times_of_schema_5_are_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as old:
        old.executescript(
            "DROP TABLE run_times; DROP TABLE learned_classes;"
            "CREATE TABLE run_times (name TEXT, user TEXT, profile INTEGER, mean_s REAL NOT NULL, "
            "containers INTEGER NOT NULL, PRIMARY KEY (name, user, profile));"
            "INSERT INTO run_times VALUES ('a', 'ada', 0, 1.5, 3);"
            "UPDATE meta SET value = '5' WHERE key = 'schema';"
        )
    store = Store(path)
    assert store.run_times() == [_run_time("a", 1.5)]
    await store.put_run_time(replace(_run_time("b", 2.0), input_bytes=7.0))
    assert [row.input_bytes for row in store.run_times()] == [0.0, 7.0]
    store.close()


async def test_a_failed_write_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "hrm.sqlite"
    store = Store(path)
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE nodes")
    with pytest.raises(InvalidConfig, match="is damaged: no such table: nodes"):
        await store.put_node(NodeName("n1"))
    store.close()


def test_a_damaged_or_newer_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"this is no database, however long one looks at it" * 100)
    with pytest.raises(InvalidConfig, match=r"is damaged: file is not a database.*--repair"):
        Store(damaged)
    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as db:
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)")
        db.execute("INSERT INTO meta VALUES ('schema', '99')")
    with pytest.raises(InvalidConfig, match="newer HRM"):
        Store(newer)
