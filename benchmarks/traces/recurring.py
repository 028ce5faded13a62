"""How far off learned run times are, for applications that come back every night.

    python -m benchmarks.traces.recurring

The trace formats at hand name no application that comes back, so the runs are drawn here, and how
much they vary is stated: an application's run times are log-normal around its own median, with
``sigma`` as the standard deviation of their logarithm. Now and then a run takes three times as
long, fails before its end, or is another user's. Executors of one run differ by a few percent.

What learns is the production table (``hrm.core.vocabulary.run_times``) in the order of nights. The
first half of the nights is learned and not counted; then each run is estimated before it is
learned, so that none is estimated by what came after it. ``bound``: the error if the median of the
application were known, below which no estimate from the past can get. ``regret``: how much longer
containers wait at the units that the default policy chooses by the learned, stated or default run
times than at the best ones (``benchmarks.traces.choices``).

With ``size_sigma`` the inputs vary, log-normally, too, and run times follow them with an exponent
that each application draws, 0.5 to 1. ``stated``: the runs say how much they read
(``spark.hrm.input.size``); ``learned`` says nothing; ``bound`` knows median, size and exponent.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.traces.choices import CHOICES, Pair, regret
from hrm.core.vocabulary.bounds import BOUNDS
from hrm.core.vocabulary.estimate_errors import EstimateErrors
from hrm.core.vocabulary.run_times import RunTimeKey, RunTimeTable, lower_bounds

__all__ = ["Errors", "Workload", "main", "measure"]

SIGMAS = (0.1, 0.2, 0.3, 0.4)
SIZE_SIGMAS = (0.0, 0.7)


_INPUT = 8 << 30
_DEFAULT_S = BOUNDS.default_duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``applications`` that run once in each of ``nights``, the first half of which is learned
    only. ``rare``: the share of runs that take ``slow`` times as long; the same share fails, and of
    the same share another is the user. ``spread``: sigma of executors of one run; ``size_sigma``:
    of inputs."""

    sigma: float
    size_sigma: float = 0.0
    applications: int = 40
    nights: int = 60
    executors: int = 8
    rare: float = 0.05
    slow: float = 3.0
    spread: float = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Medians of relative errors over the executors of the second half, and a 90th percentile; and
    what the estimates cost where units are chosen by them."""

    learned: float
    learned_p90: float
    stated: float
    last_run: float
    default: float
    bound: float
    regret: float
    regret_stated: float
    regret_default: float
    regret_bound: float


def measure(workload: Workload, seed: int) -> Errors:
    """Learn and estimate night after night. Deterministic."""
    draw = random.Random(seed)  # nosec B311
    medians_s = [300.0 * math.exp(draw.gauss(0.0, 1.2)) for _ in range(workload.applications)]
    elasticities = [draw.uniform(0.5, 1.0) for _ in range(workload.applications)]
    table, stated = RunTimeTable(BOUNDS.run_times_kept), RunTimeTable(BOUNDS.run_times_kept)
    last_s = dict[RunTimeKey, float]()
    names = ("learned", "stated", "last", "none", "bound")
    found = {name: EstimateErrors(kept=1_000_000) for name in names}
    pairs: dict[str, list[Pair]] = {"learned": [], "stated": [], "none": [], "bound": []}
    for night in range(workload.nights):
        for number, median_s in enumerate(medians_s):
            user = "other" if draw.random() < workload.rare else "owner"
            key = (f"nightly-{number}", user, 0)
            larger = draw.gauss(0.0, workload.size_sigma)
            size, scaled_s = int(_INPUT * math.exp(larger)), median_s
            scaled_s *= math.exp(elasticities[number] * larger)
            run_s = scaled_s * math.exp(draw.gauss(0.0, workload.sigma))
            if draw.random() < workload.rare:
                run_s *= workload.slow
            took_s = [
                run_s * math.exp(draw.gauss(0.0, workload.spread))
                for _ in range(workload.executors)
            ]
            expected_s, stated_s = _expected_s(table, key, 0), _expected_s(stated, key, size)
            if draw.random() < workload.rare:
                part = draw.random()
                cut_s = [part * x for x in took_s]
                _learn(table, key, lower_bounds(expected_s or _DEFAULT_S, cut_s), 0)
                _learn(stated, key, lower_bounds(stated_s or _DEFAULT_S, cut_s), size)
                continue
            for each_s in took_s if 2 * night >= workload.nights else ():
                found["learned"].ended(expected_s, each_s)
                found["stated"].ended(stated_s, each_s)
                found["last"].ended(last_s.get(key, 0.0), each_s)
                found["none"].ended(_DEFAULT_S, each_s)
                found["bound"].ended(scaled_s, each_s)
            if 2 * night >= workload.nights:
                pairs["learned"].append((expected_s or _DEFAULT_S, took_s[0]))
                pairs["stated"].append((stated_s or _DEFAULT_S, took_s[0]))
                pairs["none"].append((_DEFAULT_S, took_s[0]))
                pairs["bound"].append((scaled_s, took_s[0]))
            _learn(table, key, took_s, 0)
            _learn(stated, key, took_s, size)
            last_s[key] = sum(took_s) / len(took_s)
    return Errors(
        learned=found["learned"].summary().median,
        learned_p90=found["learned"].summary().p90,
        stated=found["stated"].summary().median,
        last_run=found["last"].summary().median,
        default=found["none"].summary().median,
        bound=found["bound"].summary().median,
        regret=regret(pairs["learned"], seed),
        regret_stated=regret(pairs["stated"], seed),
        regret_default=regret(pairs["none"], seed),
        regret_bound=regret(pairs["bound"], seed),
    )


def _expected_s(table: RunTimeTable, key: RunTimeKey, size: int) -> float:
    """The estimate, in seconds; 0 where there is none."""
    known = table.find(key)
    return known.expected_s(size) if known is not None else 0.0


def _learn(table: RunTimeTable, key: RunTimeKey, durations_s: list[float], size: int) -> None:
    if durations_s:
        table.put(table.learned(key, durations_s, size))


def benchmark(seeds: int) -> tuple[dict[str, Any], str]:
    """The document of numbers and the report's text."""
    rows, results = [], dict[str, Any]()
    for size_sigma in SIZE_SIGMAS:
        for sigma in SIGMAS:
            workload = Workload(sigma=sigma, size_sigma=size_sigma)
            runs = [asdict(measure(workload, seed)) for seed in range(seeds)]
            mean = {name: sum(run[name] for run in runs) / seeds for name in runs[0]}
            name = f"{sigma:g}" if not size_sigma else f"{sigma:g}, inputs {size_sigma:g}"
            results[name] = mean
            rows.append([name, *(f"{100 * mean[name]:.1f}" for name in mean)])
    header = (
        "sigma", "learned %", "learned, p90 %", "size stated %", "as the last run %", "default %",
        "bound %", "regret %", "size stated: regret %", "default: regret %",
        "bound: regret %",
    )  # fmt: skip
    stated = Workload(sigma=0.0)
    about = (
        f"{stated.applications} applications, {stated.nights} nights, the first half of them only "
        f"learned, {stated.executors} executors a run; {100 * stated.rare:.0f} % of runs take "
        f"{stated.slow:g} times as long, as many fail, as many are another user's. Median relative "
        f"errors of executors' run times, means over {seeds} seeds. Regret: how much longer "
        f"containers wait at the units chosen than at the best of six, {CHOICES} choices a seed."
    )
    document = {
        "benchmark": "recurring",
        "seeds": seeds,
        "results": results,
        "provenance": common.provenance("benchmarks.traces.recurring", []),
    }
    return document, f"{about}\n\n{common.table(header, rows)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the results; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces.recurring")
    parser.add_argument("--seeds", type=int, default=10, help="default 10")
    common.add_common_arguments(parser)
    given = parser.parse_args(arguments)
    document, body = benchmark(1 if given.quick else given.seeds)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not given.quick:
        title = "Estimates of recurring applications"
        for path in common.write_results("traces-recurring", title, document, body):
            CONSOLE.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
