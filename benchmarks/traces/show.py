"""``python -m benchmarks.traces.show``: summary of a trace file, and the formats that can be read.

The summary goes to stdout; bad rows are listed on stderr, so that no pipe hides them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.traces import FORMATS, find_format
from benchmarks.traces.summary import describe
from benchmarks.typed_command import run_typed
from hrm.cli.console import Output, note, plain, print_json, stdout
from hrm.cli.render import age
from hrm.errors import InvalidRequest

__all__ = ["main"]

_SHOWN_MESSAGES = 5


def _show(
    format_name: Annotated[
        str | None, typer.Argument(metavar="[FORMAT]", help="Left out: list the formats.")
    ] = None,
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A file, or the directory that has it.")
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="How to show it.")
    ] = Output.TABLE,
) -> None:
    """Summarise a trace of a real cluster, or list the formats that can be read."""
    if format_name is None:
        listed = [{"format": x.name, "holds": x.rows, "origin": x.origin} for x in FORMATS.values()]
        if output is Output.JSON:
            print_json(listed)
        else:
            stdout().print(_formats(listed))
        return
    known = find_format(format_name)
    if path is None:
        raise InvalidRequest(
            f"name the file: python -m benchmarks.traces.show {known.name} PATH; "
            f"the data is {known.origin}"
        )
    summary = describe(known.name, path)
    if output is Output.JSON:
        print_json(summary)
    else:
        stdout().print(_facts(summary))
    rows = summary["rows"]
    for message in rows["messages"][:_SHOWN_MESSAGES]:
        note(message)
    if rows["rows_bad"] > _SHOWN_MESSAGES:
        note(f"{rows['rows_bad']} bad rows in all")


def _formats(listed: list[dict[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("FORMAT", "HOLDS", "PUBLISHED AS"):
        table.add_column(column, overflow="fold")
    for each in listed:
        table.add_row(each["format"], each["holds"], plain(each["origin"]))
    return table


def _facts(summary: dict[str, Any]) -> Table:
    rows = summary["rows"]
    facts = {
        "format": f"{summary['format']}: {summary['holds']}",
        "published as": summary["origin"],
    }
    if "jobs" in summary:
        with_parents = summary["tasks_with_parents"]
        facts["jobs"] = f"{summary['jobs']} in {age(summary['span_s'])}" + (
            f", {summary['jobs_together']} of several GPUs" * bool(summary["jobs_together"])
        )
        facts["tasks"] = f"{summary['tasks']} of {summary['instances']} instances" + (
            f", {with_parents} wait for others" * bool(with_parents)
        )
        facts["users, kinds"] = f"{summary['users']}, {summary['kinds']}"
        facts["work"] = (
            f"{summary['work_vcore_s'] / 3600:.1f} vcore hours, "
            f"{summary['work_gpu_s'] / 3600:.1f} GPU hours"
        )
    else:
        facts["records"] = str(summary["records"])
    for name, spread in summary.get("per_instance", summary.get("fields", {})).items():
        facts[name] = f"mean {spread['mean']:.6g}, {spread['min']:.6g} to {spread['max']:.6g}"
    facts["rows"] = f"{rows['rows_read']} read, {rows['rows_taken']} taken"
    facts["bad rows"] = _counts(rows["rows_bad"], rows["bad"])
    facts["left out"] = _counts(rows["rows_left_out"], rows["left_out"])
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(f"[bold]{plain(name)}[/]", plain(value))
    return table


def _counts(total: int, reasons: dict[str, int]) -> str:
    words = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f"{total}: {words}" if total else "0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Show a trace or the formats; returns the exit status."""
    return run_typed(_show, "benchmarks.traces.show", arguments)


if __name__ == "__main__":
    sys.exit(main())
