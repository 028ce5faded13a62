"""The journal: every state change of an application, a container or a node, on disk; also node
exclusions.

It observes the core without delaying it: changes enter a bounded queue, and a thread writes them in
groups to an SQLite file of the journal's own. It works a twentieth of the time, and up to a quarter
as the queue fills. When the queue is full, changes are dropped, and an event in their place, which
every reader receives, states how many. A crash can lose only what was queued, which no reader has
seen.

An event's number is the master's epoch times 2**32, plus a count. It rises across restarts, so it
serves as the token from which a reader resumes. The oldest events are removed beyond ``kept``
events or an age of ``keep_s``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import structlog

from hrm.core.master.entities import Container
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.vocabulary.event_table import Move, Watch
from hrm.core.vocabulary.history import PolicyRecord, RequestRecord, Service, StateEvent
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerState,
    container_id_of,
    is_driver,
)
from hrm.errors import Unavailable
from hrm.master.journal_file import JournalFile

__all__ = ["EPOCH_BITS", "EventFilter", "Journal", "rest_share"]

QUEUED_MAX = 100_000
EPOCH_BITS = 32
GROUP_MAX = 500
FLUSH_INTERVAL_S = 0.2
REST_SHARE = 19.0
REST_SHARE_MIN = 3.0
"""Ratio of the writer's rests to its work: lower as the queue fills, down to ``REST_SHARE_MIN``,
since a writer that never rests delays the core; and no rest while a reader waits."""
STORY_MAX = 1_000
FLUSH_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 10.0
TRIM_INTERVAL_S = 10.0
TRIM_GROUP_MAX = 5_000

log = structlog.get_logger("master.events")

_COLUMNS = 11
_VALUES = ", ".join(f"json_extract(value, '$[{index}]')" for index in range(_COLUMNS))
_INSERT = f"INSERT INTO events SELECT ? + key, {_VALUES} FROM json_each(?)"  # noqa: S608

_TYPES = (int, int, *(str,) * 9, int)
T = TypeVar("T")

_Row: TypeAlias = tuple[int, str, str, str, str, str, str, str, str, str, int]
"""A row of the table, without its id."""

_APPLICATION = (
    e.ApplicationRegistered,
    e.ApplicationAttached,
    e.ApplicationDetached,
    e.ContainersRequested,
    e.ContainersReleased,
    e.ApplicationFinished,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """A reader's filter. Empty: all events; ``since_s``: none before that second; ``kinds``: of
    ``StateEvent``, others are left out."""

    application_id: str = ""
    node: str = ""
    since_s: float = 0.0
    kinds: tuple[str, ...] = ()

    def where(self) -> tuple[str, list[str | int]]:
        """A condition of SQL, and its values."""
        tests = ["at_ms >= ?"]
        values: list[str | int] = [int(self.since_s * 1000)]
        chosen = []
        for column, wanted in (("application", self.application_id), ("node", self.node)):
            if wanted:
                chosen.append(f"{column} = ?")
                values.append(wanted)
        if self.kinds:
            chosen.append(f"kind IN ({', '.join('?' * len(self.kinds))})")
            values += self.kinds
        if chosen:
            # Events that were dropped may have matched any filter.
            gap = "(application = '' AND kind = 'journal')"
            tests.append(f"({' AND '.join(chosen)} OR {gap})")
        return " AND ".join(tests), values


class Journal:
    """A journal in ``path``. One master at a time writes it.

    A damaged file is set aside whenever the damage is met: only history is lost, which is no reason
    not to serve.

    Raises:
        InvalidConfig: it cannot be opened, or another process holds it.
        DiskFull: there is no space to open it.

    Invariants: events are numbered in ``_file.write`` alone. ``_put`` counts the moves queued,
    ``_taken`` those the writer has dequeued, ``_written`` those it has written or dropped.
    ``_dropped_full`` counts those that met a full queue; each entry of the queue carries that count
    as of its enqueueing, and ``_dropped_reported`` is how many of them the journal has recorded.
    ``_unwritten`` counts those that the disk refused, ``_dropped_unreported`` those of them not yet
    recorded.
    """

    def __init__(self, path: Path, epoch: int, *, kept: int, keep_s: float) -> None:
        self._kept = kept
        self._keep_s = keep_s
        self._file = JournalFile(path)
        sql = "SELECT max(id), count(*) FROM events"
        newest, self._count = self._file.read(lambda db: db.execute(sql).fetchone())
        self._last_id = newest or 0
        self._next_id = max((epoch << EPOCH_BITS) + 1, self._last_id + 1)
        self._file.replaced = self._replaced
        if self._file.at_start is not None:
            aside, why = self._file.at_start
            self._file.write(lambda db: self._replaced(db, aside, why))
        self._moves: list[Move] = []
        self._queue: deque[tuple[str, list[Move], int]] = deque()
        self._begun: tuple[str, Iterator[Move]] = ("", iter(()))
        self._put = 0
        self._taken = 0
        self._written = 0
        self._dropped_full = 0
        self._dropped_reported = 0
        self._unwritten = 0
        self._dropped_unreported = 0
        self._flush_requested = threading.Event()
        self._closing = False
        self._failing = False
        self._failure = ""
        self._trim_at_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._thread = threading.Thread(target=self._write_all, name="events", daemon=True)
        self._thread.start()

    @property
    def newest_epoch(self) -> int:
        """The epoch of the master that wrote the newest event; 0 where there is none."""
        return self._last_id >> EPOCH_BITS

    @property
    def dropped(self) -> int:
        """How many changes the journal lacks, because the queue was full or the disk failed."""
        return self._dropped_full + self._unwritten

    # --- from the core, in the loop -----------------------------------------------------------

    @property
    def watch(self) -> Watch:
        """The observer that the core calls on every move."""
        return self._moves.append

    def took(self, event: e.MasterEvent | None, commands: Sequence[c.MasterCommand] = ()) -> None:
        """The core has handled ``event`` (None: the store's contents), with these notices."""
        if type(event) is e.ContainersRequested:
            for command in commands:
                if type(command) is c.NotifyApplication:
                    self._refused(command.application_id, command.notice, event.now)
        moves = self._moves
        if not moves:
            return
        if self._put - self._taken + len(moves) > QUEUED_MAX:
            self._dropped_full += len(moves)
        else:
            self._put += len(moves)
            self._queue.append((_actor(event), moves[:], self._dropped_full))
        moves.clear()

    def _refused(self, application_id: str, notice: c.Notice, now: float) -> None:
        """Record a refusal, though no state has changed."""
        if type(notice) is c.RequestRefused:
            many = len(notice.executor_ids)
            subject = f"{many} executor{'s' if many > 1 else ''}"
            if is_driver(ApplicationId(application_id)):
                subject = "its driver"
            why = f"{subject}: {notice.message}"
            self._moves.append(
                ("application", application_id, None, None, RequestRecord.REFUSED, now, why)
            )

    def record_service(self, state: Service | PolicyRecord, now: float, why: str) -> None:
        """Record a change of the master's own state. Not to be called while the core handles an
        event: what that has changed so far would be recorded as the master's doing."""
        self._moves.append(("master", "", None, None, state, now, why))
        self.took(None)

    # --- for readers --------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until what has happened so far is on disk, at most ``FLUSH_TIMEOUT_S``."""
        target = self._put
        await self._wait_until(lambda: self._written >= target, FLUSH_TIMEOUT_S, flush_now=True)

    async def grown(self, event_id: int, timeout_s: float) -> bool:
        """Wait for events after ``event_id``, at most ``timeout_s``: are there any?"""
        return await self._wait_until(lambda: self._last_id > event_id, timeout_s)

    async def _wait_until(
        self, done: Callable[[], bool], timeout_s: float, *, flush_now: bool = False
    ) -> bool:
        self._loop = asyncio.get_running_loop()
        waiting = asyncio.Event()
        self._waiting.add(waiting)
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    if flush_now:
                        self._flush_requested.set()
                    await waiting.wait()
                    waiting.clear()
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiting)
        return True

    async def latest(self, event_filter: EventFilter, limit: int) -> list[StateEvent]:
        """The latest ``limit`` events that match ``event_filter``, oldest first."""
        return await self._select(*event_filter.where(), limit, latest=True)

    async def page(
        self, event_id: int, event_filter: EventFilter, limit: int
    ) -> tuple[list[StateEvent], int]:
        """The first ``limit`` events that match ``event_filter`` and follow ``event_id``; and the
        number up to which such events have been removed for their age or number; 0: none has."""
        where, values = event_filter.where()
        sql = f"SELECT * FROM events WHERE id > ? AND {where} ORDER BY id LIMIT ?"  # noqa: S608

        def read(db: sqlite3.Connection) -> tuple[list[StateEvent], int]:
            found = [_event(row) for row in db.execute(sql, [event_id, *values, limit])]
            (trimmed,) = db.execute("SELECT id FROM trimmed").fetchone()
            return found, int(trimmed) if 0 < event_id < trimmed else 0

        return await asyncio.to_thread(self._read, read)

    async def story(self, application_id: str) -> list[StateEvent]:
        """The events that explain an application's end and failures: its own changes, and the
        unwanted ends of its containers; the latest ``STORY_MAX``, oldest first."""
        where = (
            "application = ? AND (kind = 'application' OR cause NOT IN ('', 'released', 'killed') "
            "AND (cause != 'exited' OR exit_code != 0))"
        )
        return await self._select(where, [application_id], STORY_MAX, latest=True)

    async def registration(self, application_id: str) -> StateEvent | None:
        """The event of an application's registration, unless it has been removed."""
        where = "application = ? AND kind = 'application' AND was = '' AND became = ?"
        began = ApplicationState.SUBMITTED.value
        found = await self._select(where, [application_id, began], 1)
        return found[0] if found else None

    async def ran(
        self, application_id: str, executor_id: str = "", *, latest: bool = False
    ) -> StateEvent | None:
        """The start of an executor; without ``executor_id``, the application's first start of one,
        or its latest."""
        where = "application = ? AND became = 'running' AND container != ''"
        values: list[str | int] = [application_id]
        if executor_id:
            where += " AND container = ?"
            values.append(container_id_of(ApplicationId(application_id), executor_id))
        found = await self._select(where, values, 1, latest=latest)
        return found[0] if found else None

    def newest(self) -> int:
        """The number of the newest event on disk; 0: there has been none."""
        return self._last_id

    async def _select(
        self, where: str, values: list[str | int], limit: int, *, latest: bool = False
    ) -> list[StateEvent]:
        """The first or the latest events that match, oldest first."""
        order = "DESC" if latest else "ASC"
        sql = f"SELECT * FROM events WHERE {where} ORDER BY id {order} LIMIT ?"  # noqa: S608

        def read(db: sqlite3.Connection) -> list[StateEvent]:
            return [_event(row) for row in db.execute(sql, [*values, limit])]

        found = await asyncio.to_thread(self._read, read)
        return found[::-1] if latest else found

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._file.read(work)
        except sqlite3.Error as error:
            raise Unavailable(f"the journal of events cannot be read: {error}") from error

    def close(self) -> None:
        """Write what is queued, then close."""
        self._closing = True
        self._flush_requested.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._file.close()

    # --- the writer thread --------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            if self._put == self._written:
                if self._closing:
                    return
                self._flush_requested.wait(FLUSH_INTERVAL_S)
                self._flush_requested.clear()
                self._trim()
            begun_s = time.monotonic()
            if self._write_group():
                self._wake_readers()
                worked_s = time.monotonic() - begun_s
                self._flush_requested.wait(rest_share(self._put - self._taken) * worked_s)

    def _write_group(self) -> bool:
        """Write some of what is queued; False: there was nothing."""
        reported_before = self._dropped_reported
        rows, taken = self._rows()
        if not rows:
            return False
        self._taken += taken
        if self._dropped_unreported:
            rows.insert(0, _dropped(self._dropped_unreported, self._failure))
        try:
            self._file.write(lambda db: self._insert(db, rows))
            self._failing = False
            lost = self._dropped_reported - reported_before + self._dropped_unreported
            self._dropped_unreported, self._failure = 0, ""
            if lost:
                log.warning("events were dropped", count=lost)
        except sqlite3.Error as error:
            self._dropped_reported = reported_before
            self._unwritten += taken
            self._dropped_unreported += taken
            self._failure = str(error)
            if not self._failing:
                log.error("events cannot be written; they are dropped", error=str(error))
            self._failing = True
        self._written += taken
        if self._count > self._kept + TRIM_GROUP_MAX:
            self._trim(at_once=True)
        return True

    def _insert(self, db: sqlite3.Connection, rows: list[_Row]) -> None:
        """Write to the current file. Numbers are consumed only by a successful commit, the step at
        which a full disk is noticed."""
        db.execute(_INSERT, (self._next_id, json.dumps(rows)))
        db.commit()
        self._next_id += len(rows)
        self._last_id = self._next_id - 1
        self._count += len(rows)

    def _replaced(self, db: sqlite3.Connection, aside: str, why: str) -> None:
        """A damaged file was set aside: readers of its events learn of the gap from ``trimmed``."""
        db.execute("UPDATE trimmed SET id = ?", (self._last_id,))
        self._count = 0
        reason = f"the journal was damaged ({why}); its former contents are in {aside}"
        self._insert(db, [_of_journal("set_aside", reason)])

    def _rows(self) -> tuple[list[_Row], int]:
        """The next moves, at most ``GROUP_MAX``, as rows, plus one row for those that met a full
        queue; and how many moves they are."""
        rows: list[_Row] = []
        taken = 0
        while len(rows) < GROUP_MAX:
            actor, moves = self._begun
            found = list(itertools.islice(moves, GROUP_MAX - len(rows)))
            rows += [_row(actor, move) for move in found]
            taken += len(found)
            if found:
                continue
            dropped_full = self._dropped_full  # before the queue: later entries have counts
            is_last = not self._queue
            if not is_last:
                actor, new, dropped_full = self._queue.popleft()
                self._begun = (actor, iter(new))
            if dropped_full > self._dropped_reported:
                rows.append(_dropped(dropped_full - self._dropped_reported, ""))
                self._dropped_reported = dropped_full
            if is_last:
                break
        return rows, taken

    def _trim(self, *, at_once: bool = False) -> None:
        """Drop the oldest events beyond what is to be kept."""
        if not at_once and time.monotonic() < self._trim_at_s:
            return
        self._trim_at_s = time.monotonic() + TRIM_INTERVAL_S
        oldest_ms = int((time.time() - self._keep_s) * 1000)
        try:
            while True:
                many = min(TRIM_GROUP_MAX, max(0, self._count - self._kept))
                many = max(many, self._file.write(partial(_older_than, oldest_ms)))
                if not many:
                    return
                self._count -= self._file.write(partial(_drop_first, many))
        except sqlite3.Error as error:
            log.error("old events cannot be removed", error=str(error))

    def _wake_readers(self) -> None:
        loop = self._loop
        if self._waiting and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: there are no readers
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for waiting in self._waiting:
            waiting.set()


def rest_share(queued: int) -> float:
    """Ratio of the writer's next rest to the work before it, with so many changes queued."""
    return max(REST_SHARE_MIN, REST_SHARE * (1.0 - queued / QUEUED_MAX))


def _drop_first(many: int, db: sqlite3.Connection) -> int:
    """Returns how many were removed: fewer if the file has been replaced meanwhile."""
    last_of = "SELECT max(id) FROM (SELECT id FROM events ORDER BY id LIMIT ?)"
    (last,) = db.execute(last_of, (many,)).fetchone()
    if last is None:
        return 0
    db.execute("UPDATE trimmed SET id = ?", (last,))
    return db.execute("DELETE FROM events WHERE id <= ?", (last,)).rowcount


def _older_than(oldest_ms: int, db: sqlite3.Connection) -> int:
    """How many of the next group are too old, before the first that is not."""
    sql = "SELECT at_ms FROM events ORDER BY id LIMIT ?"
    times = (at_ms for (at_ms,) in db.execute(sql, (TRIM_GROUP_MAX,)))
    return sum(1 for _ in itertools.takewhile(lambda at_ms: at_ms < oldest_ms, times))


def _actor(event: e.MasterEvent | None) -> str:
    """The actor behind the consequences of an event. For an application that a driver on a node
    has registered, it is that driver's container."""
    match event:
        case e.ApplicationRegistered() if event.submission_id:
            attempt = str(event.submission_attempt)
            return container_id_of(ApplicationId(event.submission_id), attempt)
        case e.ContainerReported() | e.NodeReported() | e.NodeRegistered():
            return f"node {event.node}"
        case e.ClaimsProposed():
            return event.proposal.scheduler
        case e.PriorityRequested():
            return event.by
        case e.KillRequested() if event.by:
            return event.by
        case e.KillRequested() | e.DrainRequested() | e.RebindRequested() | e.QueuesChanged():
            return "administrator"
    return "application" if isinstance(event, _APPLICATION) else "master"


def _row(actor: str, move: Move) -> _Row:
    kind, name, owner, was, to, now, why = move
    application_id = container_id = node = cause = ""
    exit_code = -1
    if kind == "application":
        application_id = name
    elif kind == "node":
        node, application_id = name, owner or ""
    elif kind != "master":
        container_id = name
        container: Container = owner
        application_id = container.application_id
        if was is not None:
            node = container.node or ""
        if to is ContainerState.ENDED and container.end is not None:
            cause, exit_code = container.end.cause._value_, container.end.exit_code
    return (
        int(now * 1000), kind, application_id, container_id, node,
        "" if was is None else was._value_, to._value_, why, actor, cause, exit_code,
    )  # fmt: skip


def _dropped(many: int, failure: str) -> _Row:
    """``failure``: the disk's error; empty: the queue overflowed."""
    why = f"they could not be written ({failure})" if failure else ""
    why = why or f"more than {QUEUED_MAX} waited to be written"
    return _of_journal("dropped", f"{many} events were dropped: {why}")


def _of_journal(became: str, reason: str) -> _Row:
    return (int(time.time() * 1000), "journal", "", "", "", "", became, reason, "master", "", -1)


def _event(row: Sequence[Any]) -> StateEvent:
    """Raises ValueError if the row is not an event."""
    if tuple(map(type, row)) != _TYPES:
        raise ValueError(f"event {row[0]} cannot be read")
    return StateEvent(
        event_id=row[0],
        at_s=row[1] / 1000,
        kind=row[2],
        application_id=row[3],
        container_id=row[4],
        node=row[5],
        from_state=row[6],
        to_state=row[7],
        reason=row[8],
        actor=row[9],
        cause=row[10],
        exit_code=row[11],
    )
