"""The master's durable memory: intent, never observation.

One SQLite file in WAL mode, written by one thread that takes everything that has queued up since
its last commit into the next one (group commit), so durability costs one disk flush a batch, not
one a write. Callers get a future that is done once their write is on disk. Like writes of a batch
are one statement over a JSON list: the thread gives up Python's global lock with every statement,
and may wait 5 ms to get it back from a busy loop.

Kept: the epoch, application records, names of nodes, drains, mean run times, submissions with their
configuration and the secrets in it. Not kept: containers, resource state and secrets of running
applications; agents and AppMasters tell those again after a restart.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import queue
import sqlite3
import threading
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from hrm.core.model import ApplicationId, ApplicationState, NodeName, Resources, WorkloadClass
from hrm.core.records import ApplicationRecord
from hrm.core.run_times import RunTime, RunTimeKey
from hrm.core.submission_messages import SubmissionRecord, SubmissionState
from hrm.errors import InvalidConfig, LimitReached

__all__ = ["SqliteStore", "Store", "decode", "encode"]

SCHEMA_VERSION = 4
WRITES_QUEUED_MAX = 100_000
OPEN_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 10.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS applications (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS nodes (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS drains (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS run_times (
  name TEXT, user TEXT, profile INTEGER, mean_s REAL NOT NULL, containers INTEGER NOT NULL,
  PRIMARY KEY (name, user, profile)
);
CREATE TABLE IF NOT EXISTS submissions (id TEXT PRIMARY KEY, record TEXT NOT NULL);
"""

_Write: TypeAlias = tuple[str, tuple[str | int | float, ...]]

_PUT_APPLICATION = (
    "INSERT INTO applications VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record"
)
_PUT_NODE = "INSERT OR IGNORE INTO nodes VALUES (?)"
_MANY = {
    _PUT_APPLICATION: "INSERT INTO applications "
    "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?) "
    "WHERE true ON CONFLICT (id) DO UPDATE SET record = excluded.record",
    _PUT_NODE: "INSERT OR IGNORE INTO nodes SELECT json_extract(value, '$[0]') FROM json_each(?)",
}
"""What is written in bulk: the same for a JSON list of rows."""


class Store(Protocol):
    """What a master needs of its store. ``write`` answers a future: done when durable."""

    def next_epoch(self) -> int: ...

    def applications(self) -> list[ApplicationRecord]: ...

    def nodes(self) -> list[NodeName]: ...

    def put_application(self, record: ApplicationRecord) -> asyncio.Future[None]: ...

    def forget_application(self, application_id: ApplicationId) -> asyncio.Future[None]: ...

    def put_node(self, name: NodeName) -> asyncio.Future[None]: ...

    def forget_node(self, name: NodeName) -> asyncio.Future[None]: ...

    def drains(self) -> list[NodeName]: ...

    def put_drain(self, name: NodeName) -> asyncio.Future[None]: ...

    def forget_drain(self, name: NodeName) -> asyncio.Future[None]: ...

    def run_times(self) -> list[RunTime]: ...

    def put_run_time(self, row: RunTime) -> asyncio.Future[None]: ...

    def forget_run_time(self, key: RunTimeKey) -> asyncio.Future[None]: ...

    def submissions(self) -> list[SubmissionRecord]: ...

    def put_submission(self, record: SubmissionRecord) -> asyncio.Future[None]: ...

    def forget_submission(self, submission_id: str) -> asyncio.Future[None]: ...

    def close(self) -> None: ...


_FIELDS = tuple(ApplicationRecord.__dataclass_fields__)


def encode(record: ApplicationRecord) -> str:
    """A record as JSON."""
    fields = ((name, getattr(record, name)) for name in _FIELDS)
    values = {name: x.value if isinstance(x, Enum) else x for name, x in fields}
    return json.dumps(values, sort_keys=True)


def decode(text: str) -> ApplicationRecord:
    """A record from JSON; fields that this version does not know are ignored."""
    values: dict[str, Any] = json.loads(text)
    known = {k: v for k, v in values.items() if k in ApplicationRecord.__dataclass_fields__}
    known["state"] = ApplicationState(known["state"])
    known["workload_class"] = WorkloadClass(known["workload_class"])
    if known.get("declared_class") is not None:
        known["declared_class"] = WorkloadClass(known["declared_class"])
    return ApplicationRecord(**known)


def _encode_submission(record: SubmissionRecord) -> str:
    values = asdict(record)
    values["state"] = record.state.value
    return json.dumps(values, sort_keys=True)


def _decode_submission(text: str) -> SubmissionRecord:
    """From JSON; fields that this version does not know are ignored."""
    values: dict[str, Any] = json.loads(text)
    known = {k: v for k, v in values.items() if k in SubmissionRecord.__dataclass_fields__}
    known["state"] = SubmissionState(known["state"])
    known["resources"] = Resources(**known["resources"])
    known |= {k: tuple(known[k]) for k in ("files", "application_ids", "restarts")}
    return SubmissionRecord(**known)


class SqliteStore:
    """A store in ``path``. One at a time may have it open.

    Raises:
        InvalidConfig: the file cannot be opened, is damaged, or belongs to a newer HRM.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Whatever the directory's mode: submissions hold secrets. SQLite's other files follow.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            self._db = sqlite3.connect(path, timeout=OPEN_TIMEOUT_S, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self._check_version()
        except (sqlite3.Error, OSError) as error:
            raise InvalidConfig(
                f"cannot open the store {path}: {error}; free or repair it, or name another "
                f"directory with --state-dir"
            ) from error
        self._queue: queue.Queue[tuple[_Write, asyncio.Future[None]] | None] = queue.Queue(
            WRITES_QUEUED_MAX
        )
        self._thread = threading.Thread(target=self._write_all, name="store", daemon=True)
        self._thread.start()

    def next_epoch(self) -> int:
        """The epoch of the master that starts now, written down before it is answered."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
        epoch = 1 if row is None else int(row[0]) + 1
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (str(epoch),))
        self._db.commit()
        return epoch

    def applications(self) -> list[ApplicationRecord]:
        rows = self._db.execute("SELECT record FROM applications ORDER BY rowid").fetchall()
        return [decode(text) for (text,) in rows]

    def nodes(self) -> list[NodeName]:
        rows = self._db.execute("SELECT name FROM nodes ORDER BY name").fetchall()
        return [NodeName(name) for (name,) in rows]

    def put_application(self, record: ApplicationRecord) -> asyncio.Future[None]:
        return self._put(_PUT_APPLICATION, record.application_id, encode(record))

    def forget_application(self, application_id: ApplicationId) -> asyncio.Future[None]:
        return self._put("DELETE FROM applications WHERE id = ?", application_id)

    def put_node(self, name: NodeName) -> asyncio.Future[None]:
        return self._put(_PUT_NODE, name)

    def forget_node(self, name: NodeName) -> asyncio.Future[None]:
        return self._put("DELETE FROM nodes WHERE name = ?", name)

    def drains(self) -> list[NodeName]:
        """In the order of the orders."""
        rows = self._db.execute("SELECT name FROM drains ORDER BY rowid").fetchall()
        return [NodeName(name) for (name,) in rows]

    def put_drain(self, name: NodeName) -> asyncio.Future[None]:
        return self._put("INSERT OR IGNORE INTO drains VALUES (?)", name)

    def forget_drain(self, name: NodeName) -> asyncio.Future[None]:
        return self._put("DELETE FROM drains WHERE name = ?", name)

    def run_times(self) -> list[RunTime]:
        """The latest written last."""
        sql = "SELECT name, user, profile, mean_s, containers FROM run_times ORDER BY rowid"
        return [
            RunTime(
                name=name,
                user=user,
                resource_profile_id=profile,
                mean_s=mean_s,
                containers=containers,
            )
            for name, user, profile, mean_s, containers in self._db.execute(sql).fetchall()
        ]

    def put_run_time(self, row: RunTime) -> asyncio.Future[None]:
        sql = "INSERT OR REPLACE INTO run_times VALUES (?, ?, ?, ?, ?)"
        return self._put(sql, *row.key, row.mean_s, row.containers)

    def forget_run_time(self, key: RunTimeKey) -> asyncio.Future[None]:
        sql = "DELETE FROM run_times WHERE name = ? AND user = ? AND profile = ?"
        return self._put(sql, *key)

    def submissions(self) -> list[SubmissionRecord]:
        rows = self._db.execute("SELECT record FROM submissions ORDER BY rowid").fetchall()
        return [_decode_submission(text) for (text,) in rows]

    def put_submission(self, record: SubmissionRecord) -> asyncio.Future[None]:
        sql = (
            "INSERT INTO submissions VALUES (?, ?) "
            "ON CONFLICT (id) DO UPDATE SET record = excluded.record"
        )
        return self._put(sql, record.submission_id, _encode_submission(record))

    def forget_submission(self, submission_id: str) -> asyncio.Future[None]:
        return self._put("DELETE FROM submissions WHERE id = ?", submission_id)

    def close(self) -> None:
        """Write what is queued, then close."""
        self._queue.put(None, timeout=CLOSE_TIMEOUT_S)
        self._thread.join(CLOSE_TIMEOUT_S)
        self._db.close()

    def _put(self, sql: str, *values: str | int | float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(((sql, values), future))
        except queue.Full:
            raise LimitReached(f"{WRITES_QUEUED_MAX} writes wait for the disk") from None
        return future

    def _check_version(self) -> None:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if row is not None and int(row[0]) < SCHEMA_VERSION:
            # Version 2 added the table of run times, 3 that of drains, 4 that of submissions:
            # all stand by now.
            sql = "UPDATE meta SET value = ? WHERE key = 'schema'"
            self._db.execute(sql, (str(SCHEMA_VERSION),))
            self._db.commit()
        elif row is None:
            self._db.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
            self._db.commit()
        elif int(row[0]) > SCHEMA_VERSION:
            raise InvalidConfig(
                f"the store {self._path} was written by a newer HRM (schema {row[0]}); "
                f"upgrade HRM, or name another directory with --state-dir"
            )

    def _write_all(self) -> None:
        """The writer thread: one transaction for everything that is waiting."""
        closing = False
        while not closing:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            closing = None in batch
            items = [item for item in batch if item is not None]
            if not items:
                continue
            error: Exception | None = None
            try:
                with self._db:
                    for sql, like in itertools.groupby(items, key=_statement):
                        self._execute(sql, [values for (_, values), _ in like])
            except sqlite3.Error as problem:
                error = problem
            futures = [future for _, future in items]
            loop = futures[0].get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, futures, error)

    def _execute(self, sql: str, rows: list[tuple[str | int | float, ...]]) -> None:
        many = _MANY.get(sql)
        if many is not None and len(rows) > 1:
            self._db.execute(many, (json.dumps(rows),))
            return
        for values in rows:
            self._db.execute(sql, values)


def _statement(item: tuple[_Write, asyncio.Future[None]]) -> str:
    return item[0][0]


def _resolve(futures: list[asyncio.Future[None]], error: Exception | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
