"""Reads trace files row by row, and counts what cannot be read.

A trace of a real cluster is dirty. A loader that stops at the first bad row is useless, and one
that skips bad rows silently is misleading. So every row is counted in a ``LoadReport``: taken,
*bad* (ill-formed; with file, line and reason) or *left out* (well-formed, but not a job that ran).
A file that is not such a trace, by its columns or because no row could be taken, is an error.

A loader is a function of one ``Row`` that reads its fields by name and type; an invalid field
raises ``BadRow`` there and is counted here.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from hrm.errors import InvalidRequest, NotFound

__all__ = [
    "BadRow",
    "LeftOut",
    "LoadReport",
    "Row",
    "check_taken",
    "find",
    "find_all",
    "in_order",
    "read_csv",
    "read_json",
    "rows",
]

MESSAGES_MAX = 20
_SHOWN_CHARACTERS = 60
_READ_ERRORS = (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError)

R = TypeVar("R")


class BadRow(Exception):
    """This row is ill-formed: counted under ``reason``; ``detail`` is the offending text. Caught
    and counted here, never shown to users."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class LeftOut(BadRow):
    """This row is well-formed and contains nothing that could be replayed."""


@dataclass(slots=True)
class LoadReport:
    """The outcome of the rows of a trace.

    Invariant: ``rows_read`` is ``rows_taken`` plus the counts of ``bad`` and ``left_out``.
    ``messages`` are the first of the bad ones, each with file and line.
    """

    rows_read: int = 0
    rows_taken: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    messages_max: int = MESSAGES_MAX

    @property
    def rows_bad(self) -> int:
        return self.bad.total()

    @property
    def rows_left_out(self) -> int:
        return self.left_out.total()

    def __add__(self, other: LoadReport) -> LoadReport:
        """The outcome of the rows of both."""
        return LoadReport(
            rows_read=self.rows_read + other.rows_read,
            rows_taken=self.rows_taken + other.rows_taken,
            bad=self.bad + other.bad,
            left_out=self.left_out + other.left_out,
            messages=(self.messages + other.messages)[: self.messages_max],
            messages_max=self.messages_max,
        )

    def adopt_bad(self, other: LoadReport) -> None:
        """The bad rows of a second file, without which the first could not be read."""
        self.rows_read += other.rows_bad
        self.bad.update(other.bad)
        self.messages += other.messages[: self.messages_max - len(self.messages)]

    def as_json(self) -> dict[str, Any]:
        return {
            "rows_read": self.rows_read,
            "rows_taken": self.rows_taken,
            "rows_bad": self.rows_bad,
            "bad": dict(sorted(self.bad.items())),
            "rows_left_out": self.rows_left_out,
            "left_out": dict(sorted(self.left_out.items())),
            "messages": list(self.messages),
        }

    def taken(self, count: int = 1) -> None:
        """``count`` rows were read and taken."""
        self.rows_read += count
        self.rows_taken += count

    def refused(self, where: str, why: BadRow, count: int = 1) -> None:
        """``count`` rows at ``where`` (file:line) were read and not taken."""
        self.rows_read += count
        kind = self.left_out if isinstance(why, LeftOut) else self.bad
        kind[why.reason] += count
        if kind is self.bad and len(self.messages) < self.messages_max:
            detail = f": {why.detail[:_SHOWN_CHARACTERS]}" if why.detail else ""
            self.messages.append(f"{where}: {why.reason}{detail}")


class Row:
    """One row, or one object, whose fields are read by name and type."""

    __slots__ = ("_values", "where")

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = values

    def text(self, name: str, default: str | None = None) -> str:
        """A field that is not empty, unless there is a default."""
        value = self._values.get(name)
        text = "" if value is None else str(value).strip()
        if text:
            return text
        if default is None:
            raise BadRow(f"{name} is empty")
        return default

    def number(self, name: str, low: float = -math.inf, default: float | None = None) -> float:
        """A finite number from ``low`` up."""
        text = self.text(name, None if default is None else "")
        if not text:
            assert default is not None
            return default
        try:
            value = float(text)
        except ValueError:
            raise BadRow(f"{name} is no number", text) from None
        if not math.isfinite(value):
            raise BadRow(f"{name} is no finite number", text)
        if value < low:
            raise BadRow(f"{name} is less than {low:g}", text)
        return value

    def whole(self, name: str, low: int | None = None, default: int | None = None) -> int:
        """A whole number from ``low`` up; ``5.0`` is one."""
        value = self.number(name, -math.inf if low is None else low, default)
        if value != int(value):
            raise BadRow(f"{name} is no whole number", self.text(name))
        return int(value)

    def time_s(self, name: str) -> float:
        """An ISO date, with or without a time, as seconds as if it were UTC."""
        text = self.text(name)
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise BadRow(f"{name} is no date", text) from None


def find(path: Path, *patterns: str) -> Path:
    """``path`` if it is a file; in a directory the first file that fits the first of ``patterns``.

    Raises:
        NotFound: there is none; the message has the patterns.
    """
    return find_all(path, *patterns)[0]


def find_all(path: Path, *patterns: str) -> list[Path]:
    """``path`` if it is a file; in a directory all files, in order of their names, that fit the
    first of ``patterns`` that any fits. Never empty.

    Raises:
        NotFound: there is none; the message has the patterns.
    """
    if path.is_file():
        return [path]
    if not path.exists():
        raise NotFound(f"there is no {path}; name a trace file, or the directory that holds it")
    for pattern in patterns:
        found = [each for each in sorted(path.glob(pattern)) if each.is_file()]
        if found:
            return found
    raise NotFound(f"no {' or '.join(patterns)} below {path}; name the trace file itself")


def read_csv(
    path: Path,
    report: LoadReport,
    parse: Callable[[Row], R],
    columns: Sequence[str],
    *,
    header: bool = True,
) -> Iterator[R]:
    """Every row of a CSV file, plain or gzipped, that ``parse`` takes.

    ``columns``: the required ones; without a header, those that are there, in order.

    Raises:
        InvalidRequest: it is not such a file: a column is missing, or no row could be taken.
        NotFound: it is not there.
    """
    for row in rows(path, report, columns, header=header):
        try:
            record = parse(row)
        except BadRow as why:
            report.refused(row.where, why)
        else:
            report.taken()
            yield record
    check_taken(path, report)


def rows(
    path: Path, report: LoadReport, columns: Sequence[str], *, header: bool = True
) -> Iterator[Row]:
    """The rows of a CSV file. Those with too few or too many fields are counted as bad here; the
    others are the caller's to count, and ``check_taken`` at the end."""
    with _text(path) as file:
        reader = csv.reader(file)
        names = list(columns)
        if header:
            names = [name.strip() for name in next(_cells(path, reader, report), [])]
            missing = [column for column in columns if column not in names]
            if missing:
                raise InvalidRequest(
                    f"{path} is no such trace: its first line has no column {missing[0]!r} (of "
                    f"{', '.join(columns)}); python -m benchmarks.traces.show lists the formats"
                )
        for values in _cells(path, reader, report):
            where = f"{path}:{reader.line_num}"
            if not values:
                continue
            if len(values) != len(names):
                problem = BadRow(f"{len(names)} fields expected", ",".join(values))
                report.refused(where, problem)
                continue
            yield Row(where, dict(zip(names, values, strict=True)))


def check_taken(path: Path, report: LoadReport) -> None:
    """Refuse a file of which rows were read and not one was well-formed, or that has no rows."""
    if report.rows_taken or report.rows_left_out:
        return
    why = f"; {report.messages[0]}" if report.messages else ""
    raise InvalidRequest(
        f"{path} is no such trace: none of its {report.rows_read} rows could be read{why}; "
        f"python -m benchmarks.traces.show lists the formats"
    )


def read_json(path: Path, *, lines: bool = False) -> Any:
    """A JSON document, plain or gzipped; with ``lines``, an iterator of (where, value) of a file
    with one on each line, whose bad lines come as ``BadRow``.

    Raises:
        InvalidRequest: it is not such a document.
    """
    if lines:
        return _json_lines(path)
    with _text(path) as file:
        try:
            return json.load(file)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidRequest(f"{path} is no JSON file: {error}") from None


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    with _text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield f"{path}:{number}", json.loads(line)
            except json.JSONDecodeError as error:
                yield f"{path}:{number}", BadRow("no JSON", str(error))


def _cells(path: Path, reader: Any, report: LoadReport) -> Iterator[list[str]]:
    """The reader's rows; rows that csv itself refuses are counted."""
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            report.refused(f"{path}:{reader.line_num}", BadRow("no CSV", str(error)))


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    """The file's text, unpacked if its first bytes are those of gzip."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}; name a trace file")
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        opened: Any = gzip.open if packed else open
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            yield file
    except _READ_ERRORS as error:
        raise InvalidRequest(
            f"{path} cannot be read as text: {type(error).__name__}: {error}; is it damaged, or "
            f"packed in another way than gzip?"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}") from None


def in_order(names: Iterable[str], parents: Mapping[str, Sequence[str]]) -> list[str]:
    """``names`` with every parent before its children, otherwise as given.

    Raises:
        BadRow: a parent is missing, or the tasks wait for each other in a cycle.
    """
    left = dict.fromkeys(names)
    for name in left:
        for parent in parents[name]:
            if parent not in left:
                raise BadRow("a task waits for one that the job has not", f"{name} for {parent}")
    done: dict[str, None] = {}
    while left:
        ready = [name for name in left if all(parent in done for parent in parents[name])]
        if not ready:
            raise BadRow("tasks wait for each other in a circle", ", ".join(left))
        for name in ready:
            del left[name]
            done[name] = None
    return list(done)
