"""Benchmarks with typed options like those of ``hrm``: the same help, outputs and errors."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence

import typer

from hrm.cli.console import error_line
from hrm.errors import HrmError

__all__ = ["run_typed"]


def run_typed(
    command: Callable[..., None], module: str, arguments: Sequence[str] | None = None
) -> int:
    """Run ``python -m module`` with these arguments (None: the process's own); the exit status.

    An ``HrmError`` becomes one line ``error: …`` on stderr and status 1; with ``HRM_DEBUG=1`` the
    traceback comes first.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(command)
    try:
        app(args=None if arguments is None else list(arguments), prog_name=f"python -m {module}")
    except HrmError as error:
        if os.environ.get("HRM_DEBUG") == "1":
            traceback.print_exc()
        error_line(error.message)
        return 1
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0
