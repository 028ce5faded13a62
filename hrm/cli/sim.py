"""``hrm sim``: ``faults`` injects faults into the scheduling core and reports violations.

Data goes to stdout: the violations as text and one last line of JSON. Progress goes to stderr.
Experiments that only repeat papers or replay traces are not part of the package: ``MOVED`` has the
commands that run them from a checkout.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hrm.cli.console import note
from hrm.errors import InvalidRequest

if TYPE_CHECKING:
    from hrm.sim.run import Result

__all__ = ["MOVED", "app"]

PROGRESS_PERIOD_S = 5.0
SHOWN_PLANS_MAX = 20
TAIL_LINES = 40

MOVED = {
    "run": "python -m benchmarks.simulation",
    "traces": "python -m benchmarks.traces.show",
    "pipelines": "python -m benchmarks.pipelines.simulated",
}
"""Former commands of this group, and what runs instead."""


class _SimGroup(TyperGroup):
    """A group that prints where former commands are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in MOVED:
            raise InvalidRequest(
                f"hrm sim {args[0]} is a benchmark now; in a checkout of HRM's repository, type "
                f"{MOVED[args[0]]}, with the same options"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(no_args_is_help=True)
sim_group = typer.Typer(
    cls=_SimGroup, no_args_is_help=True, help="Run the core in simulated clusters."
)
app.add_typer(sim_group, name="sim")


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
        bool, typer.Option("--shrink", help="Search for a smaller run that also fails.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the summary there, too.")
    ] = None,
) -> None:
    """Inject faults in virtual time; exit status 1 if an invariant was violated.

    One seed gives one history, bit for bit, on every machine.
    """
    from hrm.sim.faults.plan import KINDS, TRAITS, Limits
    from hrm.sim.run import Summary, run_seed
    from hrm.sim.run import shrink as make_small

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
    shown_at_s = time.monotonic()
    for number in range(seed, seed + runs):
        result = run_seed(number, limits)
        summary.add(result)
        if runs <= SHOWN_PLANS_MAX or result.violations:
            typer.echo(result.plan.words())
        if result.violations:
            _show(result)
            if shrink:
                small = make_small(result, on_progress=note)
                typer.echo("shrunk:")
                _show(small)
        if time.monotonic() - shown_at_s > PROGRESS_PERIOD_S:
            shown_at_s = time.monotonic()
            note(f"{summary.runs} of {runs} runs, {summary.violations} with violations")
    line: dict[str, Any] = summary.as_dict()
    if json_file is not None:
        json_file.write_text(json.dumps(line, indent=2) + "\n")
    typer.echo(json.dumps(line))
    if summary.violations:
        raise typer.Exit(1)


def _show(result: Result) -> None:
    """Print a violation: the events before it, the violation, and how to reproduce it."""
    for line in list(result.tail)[-TAIL_LINES:]:
        typer.echo(f"  {line[:300]}")
    for violation in result.violations:
        typer.echo(f"VIOLATION: {violation}")
    typer.echo(f"again: {result.plan.command()}")
