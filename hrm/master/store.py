"""The master's durable memory: intent, never observation.

One SQLite file in WAL mode (``hrm.master.store_file``), written by one thread
(``hrm.master.write_queue``). Kept: the epoch, application records, nodes with their owners, drains,
mean run times, what classes applications turned out to be, queues of applications, tokens' records,
submissions with their configuration and the secrets in it, tasks of pipelines with the keys that
prove their results. Not kept: containers, resource state and
secrets of running applications, which agents and AppMasters report again. Of tokens and ownership
keys only digests are kept, except the keys of submissions, which the next driver's node needs.

Nothing is discarded without a request: if a page, a record or the epoch is damaged, the master does
not start, and its error names the command to run (``hrm.master.store_repair``).
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from google.protobuf import json_format

from hrm.core.messages.submissions import SubmissionRecord
from hrm.core.tenancy.queue_spec import QueueSpec
from hrm.core.vocabulary.learned_classes import LearnedClass, LearnedClassKey
from hrm.core.vocabulary.model import ApplicationId, NodeName
from hrm.core.vocabulary.records import ApplicationRecord
from hrm.core.vocabulary.run_times import RunTime, RunTimeKey
from hrm.errors import HrmError, InvalidConfig
from hrm.identity.tokens import TokenRecord
from hrm.master.disk_space import full, is_full
from hrm.master.record_json import encode
from hrm.master.store_file import (
    TABLES,
    damaged,
    epoch_in,
    is_damage,
    open_store,
    queue_row,
    run_time_row,
)
from hrm.master.write_queue import WriteQueue
from hrm.v1.pipeline_pb2 import StoredPipelineTask

__all__ = ["Store"]

_PROGRESS_S = 5.0
"""From one line of the log to the next, while a long table is read."""
log = structlog.get_logger("master.store")

_ROWS = (
    "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?) WHERE true"
)


def _put(table: str) -> str:
    key, value = TABLES[table].columns
    return (
        f"INSERT INTO {table} VALUES (?, ?) "  # noqa: S608
        f"ON CONFLICT ({key}) DO UPDATE SET {value} = excluded.{value}"
    )


_PUT = {
    table: _put(table)
    for table in ("applications", "nodes", "submissions", "tokens", "pipeline_tasks")
}
_MANY = {sql: sql.replace("VALUES (?, ?)", _ROWS) for sql in _PUT.values()}
"""A statement for bulk writes: the same for a JSON list of rows."""


class Store:
    """A store in ``path``, which only one process at a time may have open. What is written is on
    disk when the future that the call returned is done.

    Raises:
        InvalidConfig: the file cannot be opened, is damaged, or belongs to a newer HRM.
        DiskFull: there is no space to open it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._db = open_store(path)
        except (sqlite3.Error, OSError) as error:
            raise self._cannot("open", error) from error
        self._writes = WriteQueue(self._db, path.parent, _MANY, partial(self._cannot, "write"))

    def next_epoch(self) -> int:
        """The epoch of the master that starts now, on disk before it is returned."""
        try:
            epoch = epoch_in(self._db) + 1
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (str(epoch),))
            self._db.commit()
        except ValueError as error:
            raise damaged(self._path, error) from error
        except sqlite3.Error as error:
            raise self._cannot("write", error) from error
        return epoch

    def put_epoch(self, epoch: int) -> asyncio.Future[None]:
        """Replace the epoch that ``next_epoch`` returned by a later one."""
        sql = "INSERT OR REPLACE INTO meta VALUES ('epoch', ?)"
        return self._writes.put("meta", ("epoch",), sql, (str(epoch),))

    def watch_disk(self, on_disk: Callable[[Exception | None], None]) -> None:
        """``on_disk`` is called on the loop with DiskFull when the disk is full, and with None when
        it has space again; until then all writes wait. Any other error means that writes have
        failed permanently."""
        self._writes.on_disk = on_disk

    def applications(self) -> list[ApplicationRecord]:
        return self._read("applications")

    def nodes(self) -> dict[NodeName, str]:
        """With the digest of each one's ownership key."""
        return dict(self._read("nodes"))

    def put_application(self, record: ApplicationRecord) -> asyncio.Future[None]:
        return self._put("applications", record.application_id, encode(record))

    def forget_application(self, application_id: ApplicationId) -> asyncio.Future[None]:
        return self._forget("applications", application_id)

    def put_node(self, name: NodeName, owner: str = "") -> asyncio.Future[None]:
        return self._put("nodes", name, owner)

    def forget_node(self, name: NodeName) -> asyncio.Future[None]:
        return self._forget("nodes", name)

    def drains(self) -> list[NodeName]:
        """In the order in which they were ordered."""
        return self._read("drains")

    def put_drain(self, name: NodeName) -> asyncio.Future[None]:
        sql = "INSERT OR IGNORE INTO drains VALUES (?)"
        return self._writes.put("drains", (name,), sql, (name,))

    def forget_drain(self, name: NodeName) -> asyncio.Future[None]:
        return self._forget("drains", name)

    def run_times(self) -> list[RunTime]:
        """The latest written last."""
        return self._read("run_times")

    def put_run_time(self, row: RunTime) -> asyncio.Future[None]:
        sql = "INSERT OR REPLACE INTO run_times VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        return self._writes.put("run_times", row.key, sql, run_time_row(row))

    def forget_run_time(self, key: RunTimeKey) -> asyncio.Future[None]:
        return self._forget("run_times", *key)

    def learned_classes(self) -> list[LearnedClass]:
        """The latest written last."""
        return self._read("learned_classes")

    def put_learned_class(self, row: LearnedClass) -> asyncio.Future[None]:
        sql = "INSERT OR REPLACE INTO learned_classes VALUES (?, ?, ?, ?)"
        values = (*row.key, row.workload_class.value, row.application_id)
        return self._writes.put("learned_classes", row.key, sql, values)

    def forget_learned_class(self, key: LearnedClassKey) -> asyncio.Future[None]:
        return self._forget("learned_classes", *key)

    def submissions(self) -> list[SubmissionRecord]:
        return self._read("submissions")

    def put_submission(self, record: SubmissionRecord) -> asyncio.Future[None]:
        return self._put("submissions", record.submission_id, encode(record))

    def forget_submission(self, submission_id: str) -> asyncio.Future[None]:
        return self._forget("submissions", submission_id)

    def tokens(self) -> list[TokenRecord]:
        return self._read("tokens")

    def put_tokens(self, records: Iterable[TokenRecord]) -> asyncio.Future[None]:
        """All of them, or none, are on disk."""
        rows = [(record.token_id, encode(record)) for record in records]
        return self._writes.put_rows("tokens", _PUT["tokens"], rows)

    def forget_token(self, token_id: str) -> asyncio.Future[None]:
        return self._forget("tokens", token_id)

    def queues(self) -> list[QueueSpec]:
        """Those that are stated."""
        return self._read("queues")

    def put_queues(self, stated: Iterable[QueueSpec]) -> asyncio.Future[None]:
        """In place of all that were there; all of it, or nothing, is on disk."""
        rows = json.dumps([queue_row(spec) for spec in stated])
        sql = f"INSERT INTO queues {_ROWS}"
        return self._writes.put("queues", (), sql, (rows,), after="DELETE FROM queues")

    def pipeline_tasks(self) -> list[StoredPipelineTask]:
        """In the order of submission."""
        return self._read("pipeline_tasks")

    def put_pipeline_task(self, task: StoredPipelineTask) -> asyncio.Future[None]:
        record = json_format.MessageToJson(task, indent=None)
        return self._put("pipeline_tasks", task.request.task_id, record)

    def forget_pipeline_task(self, task_id: str) -> asyncio.Future[None]:
        return self._forget("pipeline_tasks", task_id)

    def close(self) -> None:
        """Write what is queued, then close."""
        self._writes.close()
        self._db.close()

    def _put(self, table: str, key: str, value: str) -> asyncio.Future[None]:
        return self._writes.put(table, (key,), _PUT[table], (key, value))

    def _forget(self, table: str, *key: str | int) -> asyncio.Future[None]:
        tests = " AND ".join(f"{name} = ?" for name in TABLES[table].columns[: len(key)])
        sql = f"DELETE FROM {table} WHERE {tests}"  # noqa: S608
        return self._writes.put(table, key, sql, key)

    def _read(self, name: str) -> list[Any]:
        table = TABLES[name]
        sql = f"SELECT {', '.join(table.columns)} FROM {name} ORDER BY {table.order}"  # noqa: S608
        try:
            rows = self._db.execute(sql).fetchall()
        except sqlite3.Error as error:
            raise self._cannot("read", error) from error
        found = []
        logged_s = time.monotonic()
        for number, row in enumerate(rows):
            if time.monotonic() - logged_s >= _PROGRESS_S:
                logged_s = time.monotonic()
                log.info("reading the store", table=name, read=number, rows=len(rows))
            try:
                found.append(table.read(row))
            except ValueError as error:
                key = ", ".join(str(each)[:80] for each in row[: table.key])
                raise damaged(self._path, f"{name}, {key}: {error}") from error
        return found

    def _cannot(self, what: str, error: Exception) -> HrmError:
        if is_full(error, self._path.parent):
            return full(self._path.parent, error)
        if is_damage(error):
            return damaged(self._path, error)
        return InvalidConfig(
            f"cannot {what} the store {self._path}: {error}; free it, or name another directory "
            f"with --state-dir"
        )
