"""``python -m benchmarks.pipelines.simulated``: pipeline tasks in a simulated cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.pipelines.measured_run import simulate
from benchmarks.pipelines.pair_laws import laws_of, pairs_of
from benchmarks.pipelines.run_measures import Result
from benchmarks.typed_command import run_typed
from hrm.cli.console import Output, note, print_json, stdout
from hrm.errors import InvalidRequest
from hrm.pipelines.sim.policies import policies
from hrm.pipelines.sim.profiles import load
from hrm.pipelines.sim.scenario import Scenario, workers

__all__ = ["main"]

_SHOWN = {
    "throughput": "throughput, tasks/min",
    "arrival_cap": "arrivals, tasks/min",
    "whole": "all tasks over all time, tasks/min",
    "response_p50_s": "response p50, s",
    "response_p95_s": "response p95, s",
    "slowdown": "response over the ideal, mean",
    "gpu_utilisation": "GPU utilisation",
    "gpu_busy": "GPUs with work on them",
    "gpu_work": "work done in a busy GPU-second, s",
    "balance": "load balance (0.5 to 1)",
    "load": "mean load",
    "decision_p50_us": "decision p50, µs",
    "decision_p99_us": "decision p99, µs",
    "failed": "tasks failed",
    "fallbacks": "fallbacks",
    "refused": "starts refused",
    "retries": "runs out of memory",
}


def _simulated(
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Tasks a minute.")] = 50.0,
    tasks: Annotated[int, typer.Option("--tasks", min=1, max=100_000)] = 300,
    cluster_policy: Annotated[
        str, typer.Option("--cluster-policy", help="random, ect, min-wait, ldwp-set, ...")
    ] = "min-wait",
    node_policy: Annotated[
        str, typer.Option("--node-policy", help="random, mct, pats, iawp, iawp:cosine, ...")
    ] = "mct",
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=1_000, help="Of the paper's mix of types.")
    ] = 11,
    world: Annotated[
        str,
        typer.Option("--world", help="Interference: measured, measured-mps, overload or none."),
    ] = "measured",
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", help="Measured pairs (Gavel's or iGniter's form) for the world."),
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option("--profiles", help="A table of subtask profiles (JSON).")
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Estimates begin without any history.")
    ] = False,
    own: Annotated[
        bool, typer.Option("--own-estimates", help="Nodes do not learn from each other.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="A table for people, JSON for programs.")
    ] = Output.TABLE,
) -> None:
    """Run pipeline tasks on a simulated cluster of CPUs and GPUs, in virtual time.

    The same arguments give the same run, to the bit; its hash is shown.
    """
    if pairs is not None and not world.startswith("measured"):
        raise InvalidRequest(f"--pairs {pairs}: only a measured world has pairs, not {world!r}")
    table = load(profiles)
    scenario = Scenario(
        profiles=table,
        rate_per_min=rate,
        tasks=tasks,
        workers=workers(nodes),
        world=world,
        laws=laws_of(pairs_of(pairs)) if pairs else None,
        seed=seed,
    )
    note(f"{tasks} tasks at {rate:g}/min on {nodes} nodes; GPU times: {table.about}")
    chosen = policies(cluster_policy, node_policy, scenario, known=not cold, shared=not own)
    result = simulate(scenario, chosen)
    values = result.values()
    if output is Output.JSON:
        print_json(
            {
                "cluster_policy": cluster_policy,
                "node_policy": node_policy,
                "seed": seed,
                "log_hash": result.log_hash,
                "gpu_times_measured": table.gpu_measured,
                **{name: value for name, value in values.items() if value == value},
            }
        )
        return
    stdout().print(_table(result, f"{cluster_policy} + {node_policy}, seed {seed}"))


def _table(result: Result, title: str) -> Table:
    values = result.values()
    shown = Table(title=title)
    shown.add_column("figure")
    shown.add_column("value", justify="right")
    for name, words in _SHOWN.items():
        shown.add_row(words, f"{values[name]:.4g}")
    shown.add_row("event log", result.log_hash[:16])
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """One run, shown; the exit status."""
    return run_typed(_simulated, "benchmarks.pipelines.simulated", arguments)


if __name__ == "__main__":
    sys.exit(main())
