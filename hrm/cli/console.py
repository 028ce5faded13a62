"""The two places a command may write to: stdout for data, stderr for everything else.

rich keeps to ``NO_COLOR`` by itself. A pipe has no width, so lines that go into one are not folded
or cut: ``hrm apps | grep …`` must see whole names.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Output", "error_line", "note", "one_line", "print_json", "stderr", "stdout"]

_PIPE_WIDTH = 10_000


class Output(StrEnum):
    """How a command shows its data."""

    TABLE = "table"
    JSON = "json"


def stdout() -> Console:
    """The console for data. Made anew each time: tests and callers replace ``sys.stdout``."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=width is not None)


def stderr() -> Console:
    """The console for progress, notes and errors."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def one_line(text: str) -> str:
    """``text`` with all white space runs, line breaks among them, as single spaces."""
    return " ".join(text.split())


def error_line(message: str) -> None:
    """``error: message`` as one line on stderr."""
    stderr().print(f"[bold red]error:[/] {_plain(one_line(message))}")


def note(message: str) -> None:
    """One line on stderr."""
    stderr().print(_plain(message))


def print_json(value: Any) -> None:
    """``value`` on stdout, indented for people, sorted as given."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
