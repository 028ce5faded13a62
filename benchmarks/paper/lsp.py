"""Forecasts of load, and pools sized by them: LSP against methods that need no network.

    python -m benchmarks.paper.lsp --data DIR --trace DIR     # writes results/paper-lsp.*
    python -m benchmarks.paper.lsp --quick --json FILE        # no data: a made-up series

``--data``: the folder of the traffic of a European provider (``isp_eu_5min.csv.gz``,
``isp_eu_hourly.csv``, ``isp_eu_daily.csv``), of which the source shows its forecasts; ``--trace``:
the folder of Google's jobs of 2011 (``jobs.csv.gz``), for the size of a pool. How it is measured:
``lsp_series`` and ``lsp_pool``.

Source: Lu et al., RLPTO, IEEE TPDS 2023: figures 5 and 6, and the accuracy of 97.1 % that is
claimed for the first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks import common, traces
from benchmarks.common import CONSOLE
from benchmarks.paper import lsp_pool, lsp_report
from benchmarks.paper.lsp_series import SeriesResult, measure
from benchmarks.processes import BenchmarkError, exit_status
from benchmarks.traces.trace_records import TrafficSample
from hrm.errors import HrmError
from hrm.forecast.gru import GruOptions
from hrm.forecast.series import VolumeSeries
from hrm.forecast.steps import DAY, FIVE_MINUTES, HOUR, ForecastStep

__all__ = ["main"]

MODULE = "benchmarks.paper.lsp"
FILES = {
    "5min": (FIVE_MINUTES, "isp_eu_5min.csv.gz"),
    "hour": (HOUR, "isp_eu_hourly.csv"),
    "day": (DAY, "isp_eu_daily.csv"),
}
SEEDS = {"5min": 2, "hour": 3, "day": 5}
OPTIONS = {
    "5min": GruOptions(networks=2, batch=256),
    "hour": GruOptions(),
    "day": GruOptions(),
}
QUICK = GruOptions(networks=1, epochs_max=15, batch=256)
QUICK_DAYS = 60
NODES, FIXED_NODES = 60, 30
"""Of the source's figure 6."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description="Forecasts of load and pools sized by them."
    )
    parser.add_argument("--quick", action="store_true", help="one small network, hours and days")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the provider's traffic (isp_eu_*.csv)"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="DIR", help="folder of Google's jobs of 2011 (jobs.csv.gz)"
    )
    return parser


def _series(given: argparse.Namespace, step: ForecastStep, file: str) -> VolumeSeries:
    """The public series, or, for ``--quick`` without it, one that is made up."""
    if given.data is None:
        return made_up(step, QUICK_DAYS)
    try:
        records, _ = traces.load("internet-traffic", given.data / file)
    except HrmError as error:
        raise BenchmarkError(f"{error.message}; --data is the folder that has {file}") from error
    samples = [each for each in records if isinstance(each, TrafficSample)]
    volumes = np.array([each.bits for each in samples], dtype=float)
    return VolumeSeries(step=step, start_s=samples[0].time_s, values=volumes)


def made_up(step: ForecastStep, days: int) -> VolumeSeries:
    """Days and weeks with a rhythm, and noise that depends on what was before."""
    generator = np.random.default_rng(0)
    count = days * 86_400 // step.seconds
    at = np.arange(count) * step.seconds
    rhythm = 1.0 + 0.5 * np.sin(2 * np.pi * at / 86_400) * (step.seconds < 86_400)
    rhythm *= np.where((at // 86_400) % 7 < 5, 1.0, 0.6)
    noise = np.zeros(count)
    for place in range(1, count):
        noise[place] = 0.8 * noise[place - 1] + generator.normal(0, 0.05)
    return VolumeSeries(step=step, start_s=345_600.0, values=1000 * rhythm * np.exp(noise))


def _arrivals(folder: Path) -> VolumeSeries:
    """Jobs that arrived, by five minutes."""
    try:
        jobs, _ = traces.load_jobs("google-2011-jobs", folder / "jobs.csv.gz")
    except HrmError as error:
        raise BenchmarkError(
            f"{error.message}; --trace is the folder that has jobs.csv.gz"
        ) from error
    seconds = FIVE_MINUTES.seconds
    counts = np.bincount([int(job.arrival_s // seconds) for job in jobs]).astype(float)
    return VolumeSeries(step=FIVE_MINUTES, start_s=0.0, values=counts[:-1])


def _measured(
    given: argparse.Namespace, begin: Callable[[str, int], Callable[[], None]]
) -> tuple[dict[str, SeriesResult], dict[str, Mapping[str, lsp_pool.PoolFigures]]]:
    names = ["hour", "day"] if given.quick else list(FILES)
    results = {}
    for name in names:
        step, file = FILES[name]
        seeds = 1 if given.quick else SEEDS[name]
        options = QUICK if given.quick else OPTIONS[name]
        advance = begin(f"forecasts by {name}", seeds)
        results[name] = measure(_series(given, step, file), seeds, options, advance)
    pools = {}
    if not given.quick:
        traffic = _series(given, *FILES["5min"])
        pools["traffic"] = lsp_pool.compare(traffic, OPTIONS["5min"], begin("pool, traffic", 3))
        if given.trace is not None:
            jobs = _arrivals(given.trace)
            pools["Google's jobs"] = lsp_pool.compare(jobs, OPTIONS["5min"], begin("pool, jobs", 3))
    return results, pools


def _daily(result: SeriesResult) -> dict[str, lsp_pool.FixedDays]:
    """Figure 6: half of the nodes all the time, or by the forecast of each day."""
    forecasts = result.forecasts["LSP"].mean(axis=0)
    return {
        f"fixed {FIXED_NODES}": lsp_pool.daily_pool(
            result.volumes, forecasts, result.first, fixed=FIXED_NODES, nodes_max=NODES
        ),
        "LSP and tasks per busy node": lsp_pool.daily_pool(
            result.volumes, forecasts, result.first, fixed=None, nodes_max=NODES
        ),
    }


def _document(
    results: Mapping[str, SeriesResult],
    pools: Mapping[str, Mapping[str, lsp_pool.PoolFigures]],
    daily: Mapping[str, lsp_pool.FixedDays],
) -> dict[str, Any]:
    document: dict[str, Any] = {f"mase_{n}": r.figures["LSP"].mase for n, r in results.items()}
    others = {n: f.mase for n, f in results["day"].figures.items() if not n.startswith("LSP")}
    best = min(others, key=lambda name: others[name])
    document["best_other_day"] = {"method": best, "mase": others[best]}
    document["series"] = {
        name: {
            "tested": len(result.volumes) - result.first,
            "remarks": list(result.remarks),
            "figures": {
                method: {which: asdict(e) for which, e in found.items()}
                for method, found in result.intervals.items()
            },
            "mase_of_lsp_less": {m: asdict(e) for m, e in result.differences.items()},
        }
        for name, result in results.items()
    }
    document["pools"] = {
        trace: {name: asdict(each) for name, each in found.items()}
        for trace, found in pools.items()
    }
    document["days"] = {
        name: {
            "nodes": each.nodes.tolist(),
            "tasks_per_node": each.tasks_per_node.tolist(),
            "unmet": each.unmet,
            "node_days": each.node_days,
        }
        for name, each in daily.items()
    }
    return document


def benchmark(given: argparse.Namespace) -> None:
    """Measure, print the tables, write the results.

    Raises:
        BenchmarkError: data is not where it should be.
    """
    if given.data is None and not given.quick:
        raise BenchmarkError(
            "--data is missing, the folder of the provider's traffic; --quick goes without it"
        )
    provenance = common.provenance(MODULE, ("numpy", "statsmodels", "torch", "matplotlib"))
    with Progress(console=CONSOLE, transient=True) as progress:

        def begin(name: str, total: int) -> Callable[[], None]:
            task = progress.add_task(name, total=total)
            return lambda: progress.advance(task)

        results, pools = _measured(given, begin)
    daily = _daily(results["day"])
    document = {"provenance": provenance} | _document(results, pools, daily)
    text = lsp_report.body(results, pools, daily, is_public=given.data is not None)
    print(text)
    if given.json:
        common.write_json(given.json, document)
    if not (given.json or given.quick):
        paths = common.write_results("paper-lsp", "Forecasts of load (LSP)", document, text)
        paths += lsp_report.draw(common.RESULTS_DIR, results, daily)
        for path in paths:
            common.note(f"wrote {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if it has measured everything."""
    return exit_status(benchmark, _parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
