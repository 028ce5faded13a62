"""The HRM paper's simulation (section 6.1, figures 6 and 7) on this core, in two modes.

    python -m benchmarks.paper.hrm                      # everything: results/paper-hrm*
    python -m benchmarks.paper.hrm --only load,mixed    # some of it; the report is rewritten
    python -m benchmarks.paper.hrm --quick --json FILE  # ratios of delay, virtual and live

Virtual time: ``benchmarks.simulation``, the production core, its decisions charged to the clock.
Live: a real ``hrm master`` over gRPC with 1,050 emulated agents (``benchmarks.paper.live``):
bursts (``live``), and streams among batch (``live-mixed``). Each experiment leaves
``results/paper-hrm-NAME.json``; report and plots are made from these files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks import common
from benchmarks.common import CONSOLE, RESULTS_DIR
from benchmarks.paper import live, plots
from benchmarks.paper.report import report, x_name_of
from benchmarks.processes import BenchmarkError, interruptible
from benchmarks.simulation import EXPERIMENTS, PAPER_SCHEDULERS, points_of, ratios, run_points

__all__ = ["main"]

MODULE = "benchmarks.paper.hrm"
LIVE, LIVE_MIXED = "live", "live-mixed"
EVERY = (*EXPERIMENTS, LIVE, LIVE_MIXED)
RUNS, QUICK_RUNS, QUICK_LIVE_RUNS = 7, 3, 2
QUICK_HOLD_S = 2.0
OURS = f"HRM, {PAPER_SCHEDULERS} schedulers"
LIVE_OURS = f"HRM, {PAPER_SCHEDULERS} in the master"
LIVE_PROCESSES = f"HRM, 1 + {PAPER_SCHEDULERS - 1} processes"
_KEPT_RUNS = ("delay_ms", "stream_delay_ms")
_SUFFIXES = {"delay": "", "saturated": "_saturated"}
"""Of the ratios that an experiment in virtual time is summed up in."""


def virtual(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """One experiment in virtual time."""
    points = points_of(name, quick=given.quick)
    if given.quick:
        points = [
            replace(point, to_completion=False) for point in points if point.charging == "measured"
        ]
    with Progress(console=CONSOLE, transient=True) as progress:
        task = progress.add_task(f"{name}, {len(points)} points", total=given.runs)
        on_progress: Callable[[str], None] = lambda _: progress.advance(task)  # noqa: E731
        return run_points(points, seed=given.seed, runs=given.runs, on_progress=on_progress)


def short_names(rows: Sequence[dict[str, Any]], ours: str, suffix: str = "") -> dict[str, float]:
    """``delay_ratio_60`` and so on: HRM's mean delay over that of the centralised system, where
    costs are those of this implementation; calibrated costs give shapes, not figures."""
    return {
        f"delay_ratio_{x:g}{suffix}": round(ratio.mean, 4)
        for (charging, x), ratio in ratios(rows, ours).items()
        if charging in ("measured", LIVE)
    }


def thin(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as stored: six digits, and of single runs only what ratios are made from."""

    def short(value: float) -> float:
        return float(f"{value:.6g}")

    return [
        {
            **row,
            "figures": {
                name: {part: short(value) for part, value in figure.items()}
                for name, figure in row["figures"].items()
            },
            "runs": {
                name: [short(value) for value in row["runs"][name]]
                for name in _KEPT_RUNS
                if name in row["runs"]
            },
        }
        for row in rows
    ]


def measure(name: str, given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run one experiment, keep its results."""
    provenance = common.provenance(MODULE, ("numpy", "grpcio", "matplotlib"))
    runs = given.runs
    short: dict[str, float] = {}
    if name in (LIVE, LIVE_MIXED) and given.quick:
        runs = min(runs, QUICK_LIVE_RUNS)
    if name == LIVE:
        hold_s = QUICK_HOLD_S if given.quick else live.HOLD_S
        rows = live.run_bursts(
            tuple(live.SYSTEMS), runs, directory, hold_s=hold_s, seed=given.seed,
            on_progress=CONSOLE.print,
        )  # fmt: skip
        short = short_names(rows, LIVE_OURS, "_live")
        short |= short_names(rows, LIVE_PROCESSES, "_live_processes")
    elif name == LIVE_MIXED:
        rates = live.STREAMS_PER_S[-1:] if given.quick else live.STREAMS_PER_S
        rows = live.run_mixed(
            tuple(live.LEASES), runs, directory, streams_per_s=rates, seed=given.seed,
            on_progress=CONSOLE.print,
        )  # fmt: skip
    else:
        rows = virtual(name, given)
        short = short_names(rows, OURS, _SUFFIXES[name]) if name in _SUFFIXES else {}
    return {
        "experiment": name,
        **short,
        "runs": runs,
        "seed": given.seed,
        "provenance": provenance,
        "points": thin(rows),
    }


def write_report() -> list[Path]:
    """The report and the plots, from the results that exist."""
    found = {}
    for name in EVERY:
        path = RESULTS_DIR / f"paper-hrm-{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
    written = []
    for name, figure, y_name in (
        ("delay", "delay_ms", "mean scheduling delay, ms"),
        ("order", "delay_ms", "mean scheduling delay, ms"),
        ("load", "delay_ms", "mean scheduling delay, ms"),
        ("saturated", "delay_ms", "mean scheduling delay, ms"),
        ("schedulers", "delay_ms", "mean scheduling delay, ms"),
        ("mixed", "stream_delay_p99_ms", "p99 delay of streams, ms"),
        (LIVE, "delay_ms", "mean scheduling delay, ms"),
        (LIVE_MIXED, "stream_delay_p99_ms", "p99 delay of streams, ms"),
    ):
        if name not in found:
            continue
        path = RESULTS_DIR / f"paper-hrm-{name}.svg"
        plots.draw(
            path, found[name]["points"], figure=figure, x_name=x_name_of(name), y_name=y_name,
            logarithmic=name == "schedulers",
        )  # fmt: skip
        written.append(path)
    markdown = RESULTS_DIR / "paper-hrm.md"
    markdown.write_text(report(found))
    return [*written, markdown]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--only", help=f"comma-separated: {','.join(EVERY)}")
    parser.add_argument("--runs", type=int, help=f"runs a point (default {RUNS})")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument(
        "--report", action="store_true", help="measure nothing, write the report from what is there"
    )
    given = parser.parse_args(arguments)
    given.runs = given.runs or (QUICK_RUNS if given.quick else RUNS)
    if given.runs < 1 or given.seed < 0:
        parser.error("--runs must be at least 1 and --seed at least 0")
    default = ["delay", "saturated", LIVE] if given.quick else list(EVERY)
    given.only = given.only.split(",") if given.only else default
    if unknown := [name for name in given.only if name not in EVERY]:
        parser.error(f"no experiment {unknown[0]!r}; there are {', '.join(EVERY)}")
    return given


def benchmark(given: argparse.Namespace) -> None:
    """Run the selected experiments, and write the results."""
    summary: dict[str, Any] = {"benchmark": "paper-hrm"}
    for name in [] if given.report else given.only:
        with tempfile.TemporaryDirectory(prefix="hrm-paper-") as directory:
            document = measure(name, given, Path(directory))
        summary |= {key: value for key, value in document.items() if key.startswith("delay_ratio")}
        summary["provenance"] = document["provenance"]
        if not given.quick:
            common.write_json(RESULTS_DIR / f"paper-hrm-{name}.json", document)
        for key, value in document.items():
            if key.startswith("delay_ratio"):
                CONSOLE.print(f"{key} {value}")
    if not given.quick:
        for path in write_report():
            CONSOLE.print(f"wrote {path}")
    if given.json:
        common.write_json(given.json, summary)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every run counted."""
    given = parse_arguments(arguments)
    try:
        with interruptible(), contextlib.suppress(BrokenPipeError):
            benchmark(given)
    except BenchmarkError as error:
        CONSOLE.print(f"error: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        CONSOLE.print("interrupted; everything that was started has been ended")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
