"""``hrm master --check``, ``--repair``, ``--backup``, ``--restore``: maintain the master's store.

They are flags of ``hrm master``, so that they find the store by the same settings as the master
does, and they run in place of it.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm import errors
from hrm.cli import console
from hrm.cli.console import Output

if TYPE_CHECKING:
    from hrm.master.store_repair import RepairReport

__all__ = ["PARAMETERS", "is_wanted", "run"]

DAMAGED = 1
LINES_MAX = 100


def _flags(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Check for damage without changing anything.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Recover the readable part of a damaged store; the original is kept."
        ),
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option(
            "--backup", metavar="FILE", help="Copy the store, also while a master serves."
        ),
    ] = None,
    restore: Annotated[
        Path | None,
        typer.Option("--restore", metavar="FILE", help="Put a backup in place of the store."),
    ] = None,
    output: Annotated[
        Output,
        typer.Option("--output", "-o", help="For --check and its like: a table or JSON."),
    ] = Output.TABLE,
) -> None:
    """The signature alone counts."""


PARAMETERS = list(inspect.signature(_flags, eval_str=True).parameters.values())
"""For typer: the flags that ``run`` takes."""


_COMMANDS = ("check", "repair", "backup", "restore")


def is_wanted(flags: dict[str, Any]) -> bool:
    """Whether one of them is given, in place of running a master."""
    return any(flags[name] for name in _COMMANDS)


def run(flags: dict[str, Any], state_dir: Path) -> int:
    """Execute the operation of one of the flags; returns the exit status.

    Raises:
        HrmError: it cannot be done.
    """
    wanted = [name for name in _COMMANDS if flags[name]]
    if len(wanted) > 1:
        raise errors.InvalidConfig(f"--{wanted[0]} and --{wanted[1]} exclude each other")
    from hrm.master import store_repair

    (what,) = wanted
    if what == "check":
        report = store_repair.check(state_dir)
    elif what == "repair":
        report = store_repair.repair(state_dir)
    elif what == "backup":
        report = store_repair.backup(state_dir, flags["backup"].expanduser().absolute())
    else:
        report = store_repair.restore(state_dir, flags["restore"].expanduser().absolute())
    if flags["output"] is Output.JSON:
        console.print_json(report.document())
    else:
        _show(report, what)
    return DAMAGED if what == "check" and report.damage else 0


def _show(report: RepairReport, what: str) -> None:
    table = console.table("KIND", "READABLE")
    for name, count in report.kept.items():
        table.add_row(console.plain(name), str(count))
    console.view(table)
    lost = set(report.lost)
    kind = "repaired" if report.done else "damaged"
    for line in report.damage[:LINES_MAX]:
        console.line(f"{'lost' if line in lost else kind}  {console.one_line(line)}")
    if len(report.damage) > LINES_MAX:
        console.line(f"and {len(report.damage) - LINES_MAX} more: --output json lists all")
    console.note(_summary(report, what))


def _summary(report: RepairReport, what: str) -> str:
    where = f"--state-dir {report.state_dir}"
    if what == "check":
        if not report.damage:
            return f"good: epoch {report.epoch}"
        if report.only_journal:
            return "only the journal of events is damaged: start the master, which begins a new one"
        return f"damaged; hrm master --repair {where} keeps what can be read"
    if what == "backup":
        return f"written: {report.copy} (epoch {report.epoch})"
    kept = f"; what was there is {report.copy}" if report.copy else ""
    if not report.done:
        return f"good: there is nothing to repair (epoch {report.epoch})"
    return f"{report.done}: the next master has epoch {(report.epoch or 0) + 1}{kept}"
