"""The file of the master's store: its tables, how it is created, and the checks on opening it.

A store is created under another name and then renamed, so that no start ever meets a partial one: a
file that is empty, or that lacks its epoch, was damaged later. Damage is reported in one line that
names the remedy, and the file is never replaced: it is the cluster's intent.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import pwd
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import structlog
from google.protobuf import json_format

from hrm import durable
from hrm.core.messages.submissions import SubmissionRecord
from hrm.core.tenancy.queue_spec import QueueSpec, spec_fields, spec_from
from hrm.core.vocabulary.learned_classes import LearnedClass
from hrm.core.vocabulary.model import ApplicationId, NodeName, WorkloadClass
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime
from hrm.errors import InvalidConfig
from hrm.identity.tokens import TokenRecord
from hrm.master.record_json import decode
from hrm.master.wal_file import wal_damage
from hrm.request_bounds import FIELDS
from hrm.v1.pipeline_pb2 import StoredPipelineTask

__all__ = [
    "EPOCH_MAX", "SCHEMA_VERSION", "SUFFIXES", "TABLES", "Row", "create", "damaged", "epoch_in",
    "is_damage", "open_store", "queue_row", "run_time_row", "set_aside", "upgrade", "what_is",
]  # fmt: skip

SCHEMA_VERSION = 9
EPOCH_MAX = 1 << 27
"""So that an event's number, of which an epoch is a part, has at most 18 digits."""
OPEN_TIMEOUT_S = 5.0
_RECORD_LONG = 1 << 20
"""Characters of a task's record: one of a hundred steps with all their runs has fewer."""
_RUNS_MAX = FIELDS["PipelineTaskEnd.timings"].count
SUFFIXES = ("", "-wal", "-shm")
"""Of the names of a database's files."""
Row: TypeAlias = tuple[Any, ...]
_NO_DAMAGE = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL,
)  # fmt: skip

_META = "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"

log = structlog.get_logger("master.store")


@dataclass(frozen=True, slots=True)
class Table:
    """``sql`` creates it; the first ``key`` of ``columns`` identify a row. ``read`` converts a row
    into its record, and raises ValueError for an invalid one."""

    sql: str
    columns: tuple[str, ...]
    key: int
    read: Callable[[Row], Any]
    order: str = "rowid"


def _record(kind: type[Any], attribute: str) -> Callable[[Row], Any]:
    def read(row: Row) -> Any:
        record = decode(kind, _text(row[1]))
        if getattr(record, attribute) != row[0]:
            raise ValueError(f"it names {getattr(record, attribute)!r}")
        return record

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} in place of text")
    return value


def _name(row: Row) -> NodeName:
    if not (name := _text(row[0])):
        raise ValueError("an empty name")
    return NodeName(name)


def _node(row: Row) -> tuple[NodeName, str]:
    return _name(row), _text(row[1])


def _run_time(row: Row) -> RunTime:
    name, user, profile, mean_s, containers, *inputs = row
    whole = type(profile) is int and type(containers) is int and containers > 0
    if not whole or type(mean_s) is not float or not mean_s >= 0:
        raise ValueError(f"{row!r} in place of a run time")
    if any(type(each) is not float or not math.isfinite(each) for each in inputs):
        raise ValueError(f"{row!r} in place of a run time and what its runs read")
    input_bytes, input_variance, input_covariance = inputs
    if input_bytes < 0 or input_variance < 0:
        raise ValueError(f"{row!r} in place of a run time and what its runs read")
    return RunTime(
        name=_text(name), user=_text(user), resource_profile_id=profile, mean_s=mean_s,
        containers=containers, input_bytes=input_bytes, input_variance=input_variance,
        input_covariance=input_covariance,
    )  # fmt: skip


def run_time_row(run_time: RunTime) -> Row:
    """As ``TABLES`` has it."""
    inputs = (run_time.input_bytes, run_time.input_variance, run_time.input_covariance)
    return (*run_time.key, run_time.mean_s, run_time.containers, *inputs)


def _learned_class(row: Row) -> LearnedClass:
    name, user, workload_class, application_id = map(_text, row)
    return LearnedClass(
        name=name, user=user, workload_class=WorkloadClass(workload_class),
        application_id=ApplicationId(application_id),
    )  # fmt: skip


def _queue(row: Row) -> QueueSpec:
    name, stated = map(_text, row)
    fields = json.loads(stated)
    if not isinstance(fields, dict):
        raise ValueError(f"{type(fields).__name__} in place of what is stated of a queue")
    return spec_from(name, fields)


def queue_row(spec: QueueSpec) -> Row:
    """As ``TABLES`` has it."""
    return spec.name, json.dumps(spec_fields(spec), sort_keys=True)


def _pipeline_task(row: Row) -> StoredPipelineTask:
    task_id, record = map(_text, row)
    try:
        if '"coRunners"' in record or len(record) > _RECORD_LONG:
            held = _without_measurements(json.loads(record))
            task: StoredPipelineTask = json_format.ParseDict(held, StoredPipelineTask())
        else:
            task = json_format.Parse(record, StoredPipelineTask())
    except (json_format.ParseError, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error
    if len(record) > _RECORD_LONG:
        log.warning(
            "the record of a pipeline task is long; it is taken without its runs' co-runners",
            task=task_id, kib=len(record) >> 10, runs=len(task.end.timings),
        )  # fmt: skip
    if task.request.task_id != task_id:
        raise ValueError(f"it names {task.request.task_id!r}")
    return task


def _without_measurements(held: dict[str, Any]) -> dict[str, Any]:
    """``held`` without what an older HRM kept of an end that nothing reads, of any size; parsed as
    messages, it would take a master minutes."""
    if "end" in held:
        timings = held["end"].get("timings", [])[-_RUNS_MAX:]
        held["end"]["timings"] = [
            {name: value for name, value in one.items() if name not in ("coRunners", "cells")}
            for one in timings
        ]
    return held


TABLES: dict[str, Table] = {
    "applications": Table(
        "CREATE TABLE IF NOT EXISTS applications (id TEXT PRIMARY KEY, record TEXT NOT NULL);",
        ("id", "record"), 1, _record(ApplicationRecord, "application_id"),
    ),
    "nodes": Table(
        "CREATE TABLE IF NOT EXISTS nodes (name TEXT PRIMARY KEY, owner TEXT NOT NULL DEFAULT '') "
        "WITHOUT ROWID;",
        ("name", "owner"), 1, _node, "name",
    ),
    "drains": Table(
        "CREATE TABLE IF NOT EXISTS drains (name TEXT PRIMARY KEY);", ("name",), 1, _name
    ),
    "run_times": Table(
        "CREATE TABLE IF NOT EXISTS run_times (name TEXT, user TEXT, profile INTEGER, "
        "mean_s REAL NOT NULL, containers INTEGER NOT NULL, input_bytes REAL NOT NULL DEFAULT 0, "
        "input_variance REAL NOT NULL DEFAULT 0, input_covariance REAL NOT NULL DEFAULT 0, "
        "PRIMARY KEY (name, user, profile));",
        (
            "name", "user", "profile", "mean_s", "containers", "input_bytes", "input_variance",
            "input_covariance",
        ), 3, _run_time,
    ),
    "learned_classes": Table(
        "CREATE TABLE IF NOT EXISTS learned_classes (name TEXT, user TEXT, class TEXT NOT NULL, "
        "application TEXT NOT NULL, PRIMARY KEY (name, user));",
        ("name", "user", "class", "application"), 2, _learned_class,
    ),
    "submissions": Table(
        "CREATE TABLE IF NOT EXISTS submissions (id TEXT PRIMARY KEY, record TEXT NOT NULL);",
        ("id", "record"), 1, _record(SubmissionRecord, "submission_id"),
    ),
    "tokens": Table(
        "CREATE TABLE IF NOT EXISTS tokens (id TEXT PRIMARY KEY, record TEXT NOT NULL);",
        ("id", "record"), 1, _record(TokenRecord, "token_id"),
    ),
    "queues": Table(
        "CREATE TABLE IF NOT EXISTS queues (name TEXT PRIMARY KEY, stated TEXT NOT NULL);",
        ("name", "stated"), 1, _queue,
    ),
    "pipeline_tasks": Table(
        "CREATE TABLE IF NOT EXISTS pipeline_tasks (id TEXT PRIMARY KEY, record TEXT NOT NULL);",
        ("id", "record"), 1, _pipeline_task,
    ),
}  # fmt: skip
_COLUMNS_BEFORE = {
    ("nodes", 5): ("name",),
    ("run_times", 6): ("name", "user", "profile", "mean_s", "containers"),
}
"""Of tables that had fewer: the version that added to them, and what they had."""
_SCHEMA = _META + "".join(table.sql for table in TABLES.values())


def damaged(path: Path, why: object) -> InvalidConfig:
    """For the operator: what is damaged, and what to type next."""
    where = f"--state-dir {path.parent}"
    what = " ".join(str(why).removeprefix("*** in database main ***").split())
    return InvalidConfig(
        f"the store {path} is damaged: {what}; it is left as it is; hrm master --check {where} "
        f"shows the damage, hrm master --repair {where} keeps what can be read, and "
        f"hrm master --restore FILE {where} takes a backup"
    )


def create(path: Path, epoch: int = 0, rows: dict[str, Iterable[Row]] | None = None) -> None:
    """Create a store in ``path``, atomically replacing what is there. ``epoch``: the last master's;
    the next one's is higher.

    Raises:
        OSError, sqlite3.Error: it cannot be written, and nothing has changed.
    """
    partial = path.with_name(f".{path.name}.new")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(partial)
        try:
            db.executescript(_SCHEMA)
            about = {"schema": str(SCHEMA_VERSION), "epoch": str(epoch)}
            db.executemany("INSERT INTO meta VALUES (?, ?)", about.items())
            for name, held in (rows or {}).items():
                marks = ", ".join("?" * len(TABLES[name].columns))
                db.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({marks})", held)  # noqa: S608
            db.commit()
        finally:
            db.close()
        durable.sync(partial)
        partial.replace(path)
        durable.sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def open_store(path: Path) -> sqlite3.Connection:
    """The store in ``path``, created if there is none.

    Raises:
        InvalidConfig: it is damaged, or something else, or of a newer HRM.
        OSError, sqlite3.Error: it cannot be opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not os.path.lexists(path):
        if path.with_name(path.name + "-wal").exists():
            raise damaged(path, f"{path.name}-wal is there, and the store itself is missing")
        create(path)
    if what := what_is(path):
        raise damaged(path, f"it is {what}")
    if what := wal_damage(path):
        raise damaged(path, what)
    # Whatever the directory's mode: submissions hold secrets. SQLite's other files follow.
    path.chmod(0o600)
    db = sqlite3.connect(path, timeout=OPEN_TIMEOUT_S, check_same_thread=False)
    try:
        _check(db, path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.executescript(_SCHEMA)
        upgrade(db)
    except sqlite3.DatabaseError as error:
        db.close()
        if is_damage(error):
            raise damaged(path, error) from error
        raise
    except BaseException:
        db.close()
        raise
    return db


def what_is(path: Path) -> str:
    """A description of a file that cannot be a store; empty: it can be one.

    Raises:
        OSError: it may not be opened.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return "a directory"
    if not stat.S_ISREG(mode):
        return "no regular file"
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        user = pwd.getpwuid(os.geteuid()).pw_name
        raise PermissionError(13, f"{user} may not write it (chown {user} it)", str(path))
    return "empty" if path.stat().st_size == 0 else ""


def epoch_in(db: sqlite3.Connection) -> int:
    """The epoch of the last master.

    Raises:
        ValueError: it is missing or malformed.
    """
    row = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    if row is None:
        raise ValueError("its epoch is missing")
    if not str(row[0]).isdecimal() or int(row[0]) >= EPOCH_MAX:
        raise ValueError(f"its epoch is {str(row[0])[:40]!r}")
    return int(row[0])


def _check(db: sqlite3.Connection, path: Path) -> None:
    """Raises InvalidConfig where this is no store, and sqlite3.Error."""
    db.execute("PRAGMA trusted_schema=OFF")
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    row = None
    if "meta" in names:
        row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if row is None:
        raise InvalidConfig(
            f"{path} is not a store of HRM but another program's database; move it away, or name "
            f"another directory with --state-dir"
        )
    if not str(row[0]).isdecimal():
        raise damaged(path, f"its schema is {str(row[0])[:40]!r}")
    version = int(row[0])
    if version > SCHEMA_VERSION:
        raise InvalidConfig(
            f"the store {path} was written by a newer HRM (schema {version}); upgrade HRM, or name "
            f"another directory with --state-dir"
        )
    if version == SCHEMA_VERSION and (missing := sorted(TABLES.keys() - names)):
        raise damaged(path, f"it lacks the table {missing[0]}")
    for name in sorted(TABLES.keys() & names):
        found = tuple(each[1] for each in db.execute(f"PRAGMA table_info({name})"))
        earlier = [columns for (table, since), columns in _COLUMNS_BEFORE.items()
                   if table == name and version < since]  # fmt: skip
        if found not in (TABLES[name].columns, *earlier):
            raise damaged(path, f"its table {name} has the columns {', '.join(found)}")
    (first, *_) = db.execute("PRAGMA quick_check(1)").fetchone()
    if first != "ok":
        raise damaged(path, first)
    try:
        epoch_in(db)
    except ValueError as error:
        raise damaged(path, error) from None


def upgrade(db: sqlite3.Connection) -> None:
    """Versions 2 to 4 added the tables of run times, drains and submissions, which exist by now.
    So do those of learned classes, queues, tokens and tasks of pipelines, of versions 6 to 9.
    Version 5 added the owners of nodes, version 6 what runs have read."""
    if "owner" not in [column[1] for column in db.execute("PRAGMA table_info(nodes)")]:
        db.execute("ALTER TABLE nodes ADD COLUMN owner TEXT NOT NULL DEFAULT ''")
    found = [column[1] for column in db.execute("PRAGMA table_info(run_times)")]
    for column in TABLES["run_times"].columns[len(_COLUMNS_BEFORE["run_times", 6]) :]:
        if found and column not in found:
            db.execute(f"ALTER TABLE run_times ADD COLUMN {column} REAL NOT NULL DEFAULT 0")
    sql = "UPDATE meta SET value = ? WHERE key = 'schema' AND value != ?"
    db.execute(sql, (str(SCHEMA_VERSION), str(SCHEMA_VERSION)))
    db.commit()


def is_damage(error: Exception) -> bool:
    """Is the file itself damaged? A passing error (a full disk, a lock) does not mean that, nor one
    of the installation (no permission)."""
    if isinstance(error, ValueError):
        return True  # an invalid row
    if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, sqlite3.ProgrammingError):
        return False
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF not in _NO_DAMAGE


def set_aside(path: Path, why: str, *, copy: bool = False) -> Path:
    """A timestamped name for a database's files; ``copy``: they also stay under their own names."""
    stamp = f"{path.name}.{why}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    names = itertools.chain((stamp,), (f"{stamp}-{number}" for number in itertools.count(2)))
    aside = next(x for x in map(path.with_name, names) if not os.path.lexists(x))
    for suffix in SUFFIXES:
        here, there = (each.with_name(each.name + suffix) for each in (path, aside))
        if not os.path.lexists(here):
            continue
        if copy and here.is_file():
            shutil.copyfile(here, there)
            there.chmod(0o600)
            durable.sync(there)
        else:
            here.rename(there)
    return aside
