"""``python -m benchmarks.simulation``: one of the paper's experiments on the terminal.

The table or the JSON goes to stdout, progress to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.simulation import EXPERIMENTS, points_of, run_points, work_of
from benchmarks.simulation.figures import Interval
from benchmarks.typed_command import run_typed
from hrm.cli.console import Output, note, print_json, stdout

__all__ = ["main"]

_SHOWN = {
    "delay_ms": "delay, ms",
    "delay_p99_ms": "p99",
    "stream_delay_ms": "streams' delay, ms",
    "stream_delay_p99_ms": "p99",
    "completion_s": "completion, s",
    "stale": "stale claims",
    "queued": "queued",
    "aborted": "aborted",
    "retries": "retries",
    "master_queue": "master's queue",
}
"""Figures that the table shows, and their columns."""


def _experiment(
    experiment: Annotated[
        str, typer.Argument(help=f"{', '.join(list(EXPERIMENTS)[:-1])} or {list(EXPERIMENTS)[-1]}.")
    ],
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first run's seed.")] = 0,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs a point.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points.")] = False,
    work: Annotated[
        bool,
        typer.Option(
            "--work",
            help="Show instead what each kind of work takes, in a schedule of fixed costs.",
        ),
    ] = False,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="A table for people, JSON for programs.")
    ] = Output.TABLE,
) -> None:
    """Run one of the paper's experiments on the scheduling core, in virtual time.

    A table shows means with their 95 % confidence intervals; JSON has all figures of all runs.
    """
    points = points_of(experiment, quick=quick)
    if work:
        once = {(point.system, point.x): point for point in reversed(points)}  # of each charging
        _show_work(work_of(list(reversed(once.values())), seed=seed), output)
        return
    note(f"{EXPERIMENTS[experiment].about}: {len(points)} points, {runs} runs each")
    rows = run_points(points, seed=seed, runs=runs, on_progress=note)
    if output is Output.JSON:
        print_json({"experiment": experiment, "seed": seed, "runs": runs, "points": rows})
    else:
        stdout().print(_table(EXPERIMENTS[experiment].x_name, rows))


def _show_work(rows: list[dict[str, Any]], output: Output) -> None:
    if output is Output.JSON:
        print_json({"work": rows})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("system", "x", "work", "events", "used, ms", "ms an event"):
        table.add_column(column, justify="left" if column in ("system", "work") else "right")
    for row in rows:
        numbers = (f"{row['used_ms']:.1f}", f"{row['event_ms']:.3f}")
        cells = (row["system"], f"{row['x']:g}", row["kind"], str(row["events"]), *numbers)
        table.add_row(*cells)
    stdout().print(table)


def _table(x_name: str, rows: list[dict[str, Any]]) -> Table:
    shown = {name: word for name, word in _SHOWN.items() if any(name in r["figures"] for r in rows)}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("system", "costs", x_name, *shown.values()):
        table.add_column(column, justify="left" if column in ("system", "costs") else "right")
    for row in rows:
        figures = {name: Interval(**each) for name, each in row["figures"].items()}
        cells = [str(figures[name]) if name in figures else "-" for name in shown]
        table.add_row(row["system"], row["charging"], f"{row['x']:g}", *cells)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an experiment and show it; the exit status."""
    return run_typed(_experiment, "benchmarks.simulation", arguments)


if __name__ == "__main__":
    sys.exit(main())
