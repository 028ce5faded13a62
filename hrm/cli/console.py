"""The two places a command may write to: stdout for data, stderr for everything else.

A pipe has no width, so lines that go into one are not folded or truncated: ``hrm apps | grep …``
must see whole names. Names and messages come from other parties (``hrm.text``): what goes into a
table passes ``plain``, a line ``error_line``, ``note`` or ``line``, a document ``print_json``. Logs
go as bytes into a file or a pipe, and as ``less`` shows them to a terminal (``LogWriter``).
"""

from __future__ import annotations

import codecs
import json
import os
import sys
import traceback
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hrm import text
from hrm.errors import HrmError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = [
    "LogWriter",
    "Output",
    "error_line",
    "json_line",
    "line",
    "note",
    "one_line",
    "plain",
    "print_json",
    "report_failure",
    "stderr",
    "stdout",
    "table",
    "view",
]

_PIPE_WIDTH = 10_000


class Output(StrEnum):
    """How a command shows its data."""

    TABLE = "table"
    JSON = "json"


def stdout() -> Console:
    """The console for data. Created on each call: tests and callers replace ``sys.stdout``."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=width is not None)


def stderr() -> Console:
    """The console for progress, notes and errors."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def one_line(message: str) -> str:
    """``message`` with all white space runs, line breaks among them, as single spaces."""
    return " ".join(message.split())


def plain(value: str, limit: int | None = None) -> str:
    """``value`` as part of a table or a view: nothing in it acts, on the terminal or as markup."""
    from rich.markup import escape

    return escape(text.shown(value, limit))


def table(*columns: str) -> Table:
    """An unframed table; a column whose name begins with ``>`` is right-aligned."""
    from hrm.cli.row_table import RowTable

    made = RowTable()
    for column in columns:
        right = column.startswith(">")
        made.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    return made


def error_line(message: str) -> None:
    """``error: message`` as one line on stderr."""
    stderr().print(f"[bold red]error:[/] {plain(one_line(message))}")


def report_failure(error: HrmError | BrokenPipeError) -> int:
    """What a command ends with after ``error``: its message on stderr, and the exit status."""
    if isinstance(error, BrokenPipeError):
        # The reader of the pipe closed it (`hrm app logs ID | head`). Python would flush once
        # more at exit, and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if os.environ.get("HRM_DEBUG") == "1":
        traceback.print_exc()
    error_line(error.message)
    return 1


def note(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(text.shown(one_line(message) if "\n" in message else message) + "\n")


def print_json(value: Any) -> None:
    """``value`` on stdout, indented for people, sorted as given."""
    sys.stdout.write(text.json_shown(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def json_line(value: Any) -> None:
    """``value`` on stdout as one line, for programs that read line by line."""
    sys.stdout.write(text.json_shown(json.dumps(value, ensure_ascii=False)) + "\n")
    sys.stdout.flush()


def view(renderable: RenderableType) -> None:
    """A table or a view on stdout; into a pipe without the blanks that pad its last column."""
    if sys.stdout.isatty():
        stdout().print(renderable, crop=False)  # long tables are not fitted to the width
        return
    screen = stdout()
    with screen.capture() as captured:
        screen.print(renderable)
    lines = captured.get().removesuffix("\n").split("\n")
    sys.stdout.write("".join(f"{each.rstrip(' ')}\n" for each in lines))


def line(message: str) -> None:
    """One line of data on stdout."""
    sys.stdout.write(text.shown(message) + "\n")


class LogWriter:
    """Bytes of a log on stdout: as they are into a file or a pipe; on a terminal with invisible
    characters escaped, because a log may contain control sequences from outside."""

    def __init__(self) -> None:
        self._escapes = sys.stdout.isatty()
        # A chunk may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
        self._held = ""

    def write(self, data: bytes, *, last: bool = False) -> None:
        if not self._escapes:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        decoded = self._held + self._decoder.decode(data, last)
        self._held = ""
        if decoded.endswith("\r") and not last:  # a line break may follow
            decoded, self._held = decoded[:-1], "\r"
        sys.stdout.write(text.shown_lines(decoded))
        sys.stdout.flush()
