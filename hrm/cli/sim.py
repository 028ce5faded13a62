"""``hrm sim``: ``faults`` lets the scheduling core live through faults and says what broke, ``run``
repeats the paper's experiments on it, ``traces`` looks at traces (``hrm.cli.sim_traces``),
``pipelines`` runs pipeline tasks on CPUs and GPUs (``hrm.cli.sim_pipelines``).

Data goes to stdout: of faults, the violations in words and one last line of JSON; of an experiment,
a table or JSON. Progress goes to stderr.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm.cli.console import Output, note, print_json, stdout
from hrm.cli.sim_pipelines import pipelines
from hrm.cli.sim_traces import traces
from hrm.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.table import Table

    from hrm.sim.run import Result

__all__ = ["app"]

PROGRESS_PERIOD_S = 5.0
SHOWN_PLANS_MAX = 20
TAIL_LINES = 40

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

app = typer.Typer(no_args_is_help=True)
sim_group = typer.Typer(no_args_is_help=True, help="Run the core in simulated clusters.")
app.add_typer(sim_group, name="sim")
sim_group.command()(traces)
sim_group.command()(pipelines)


@sim_group.callback()
def _sim() -> None:
    """Run the core in simulated clusters."""


@sim_group.command()
def faults(
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first run's seed.")] = 0,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs, of seed, seed + 1, ...")] = 1,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, max=64, help="Nodes; default: by seed.")
    ] = None,
    applications: Annotated[
        int | None, typer.Option("--applications", min=1, max=64, help="Default: by seed.")
    ] = None,
    horizon: Annotated[
        float | None,
        typer.Option("--horizon", min=2.0, max=3600.0, help="Virtual seconds with faults."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="KIND", help="Leave out a kind of fault or a trait."),
    ] = None,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Look for a smaller run that fails, too.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the summary there, too.")
    ] = None,
) -> None:
    """Live through faults in virtual time; exit status 1 if a promise was broken.

    One seed is one history, to the bit, on every machine.
    """
    from hrm.sim.faults.plan import KINDS, TRAITS, Limits
    from hrm.sim.faults.shrink import shrink as make_small
    from hrm.sim.run import Summary, run_seed

    unknown = sorted(set(without or ()) - {*KINDS, *TRAITS})
    if unknown:
        raise InvalidRequest(
            f"--without {unknown[0]}: no such kind of fault or trait; name one of "
            f"{', '.join((*KINDS, *TRAITS))}"
        )
    if json_file is not None and not json_file.parent.is_dir():
        raise InvalidRequest(f"--json {json_file}: no such directory; create it, or name another")
    limits = Limits(nodes, applications, horizon, frozenset(without or ()))
    summary = Summary()
    told_s = time.monotonic()
    for number in range(seed, seed + runs):
        result = run_seed(number, limits)
        summary.add(result)
        if runs <= SHOWN_PLANS_MAX or result.violations:
            typer.echo(result.plan.words())
        if result.violations:
            _show(result)
            if shrink:
                small = make_small(result, said=note)
                typer.echo("shrunk:")
                _show(small)
        if time.monotonic() - told_s > PROGRESS_PERIOD_S:
            told_s = time.monotonic()
            note(f"{summary.runs} of {runs} runs, {summary.violations} with violations")
    line: dict[str, Any] = summary.as_dict()
    if json_file is not None:
        json_file.write_text(json.dumps(line, indent=2) + "\n")
    typer.echo(json.dumps(line))
    if summary.violations:
        raise typer.Exit(1)


@sim_group.command()
def run(
    experiment: Annotated[
        str, typer.Argument(help="delay, order, load, schedulers, conflicts or mixed.")
    ],
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first run's seed.")] = 0,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs a point.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points.")] = False,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="A table for people, JSON for programs.")
    ] = Output.TABLE,
) -> None:
    """Run one of the paper's experiments on the scheduling core, in virtual time.

    A table shows means with their 95 % confidence intervals; JSON has all figures of all runs.
    """
    from hrm.sim.experiments import EXPERIMENTS, points_of, run_points

    points = points_of(experiment, quick=quick)
    note(f"{EXPERIMENTS[experiment].about}: {len(points)} points, {runs} runs each")
    rows = run_points(points, seed=seed, runs=runs, said=note)
    if output is Output.JSON:
        print_json({"experiment": experiment, "seed": seed, "runs": runs, "points": rows})
    else:
        stdout().print(_experiment_table(EXPERIMENTS[experiment].x_name, rows))


def _experiment_table(x_name: str, rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from hrm.sim.experiments.metrics import Interval

    shown = {name: word for name, word in _SHOWN.items() if any(name in r["figures"] for r in rows)}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("system", "costs", x_name, *shown.values()):
        table.add_column(column, justify="left" if column in ("system", "costs") else "right")
    for row in rows:
        figures = {name: Interval(**each) for name, each in row["figures"].items()}
        cells = [str(figures[name]) if name in figures else "-" for name in shown]
        table.add_row(row["system"], row["charging"], f"{row['x']:g}", *cells)
    return table


def _show(result: Result) -> None:
    """A violation: what led to it, what it is, and how to see it again."""
    for line in list(result.tail)[-TAIL_LINES:]:
        typer.echo(f"  {line[:300]}")
    for violation in result.violations:
        typer.echo(f"VIOLATION: {violation}")
    typer.echo(f"again: {result.plan.command()}")
