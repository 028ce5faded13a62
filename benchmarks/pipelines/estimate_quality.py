"""How well calibrated the spreads of the table of estimates are: run times, and device memory.

    python -m benchmarks.pipelines.estimate_quality --data DIR [--quick] [--json FILE]

``DIR`` has the directory ``decima_tpch`` of ``docs/traces.md``.

**Run times.** Each stage of the TPC-H queries, as they ran on Spark with up to 100 GB of data, is a
row of the table, and its tasks are runs, in an order drawn by the seed. After so many runs, the
quantiles are compared with the next runs of the stage, which are held out. ``coverage`` is the
share of these that is not longer, ``loss`` the pinball loss over the stage's mean. Parameters of
all methods were chosen on 2 and 5 GB; reported are 10 to 100 GB. Intervals are of the mean over the
22 queries. Methods:

spread      the table's own (``hrm.pipelines.policies.corun.run_spreads``)
log-normal  mean and variance of the logarithms, with Student's t for few runs
latest      exact quantiles of the latest 100 runs: what no sketch of them can do better than
pooled      the mean times one factor for each quantile, from all stages of 2 and 5 GB

**Device memory.** Steps of the measured pipelines (``benchmarks/pipelines/profiles.json``) run
alone with inputs drawn from the sizes that one row of the table stands for; then sets of two to
four with inputs of their own share a GPU, whose memory is drawn around what they need in the mean.
They run out of it if their peaks, all at the same time, are more. The table's device memory was
counted and not measured, and differs little within a row; what the CPU versions were measured to
take differs by several times. Both are reported. ``greatest`` admits by the sum of the greatest
peaks seen, which is what decides without a distribution; ``normal`` and ``log-normal`` are sums of
the same means and variances; ``node`` is what nodes use, the normal one up to the sum of the
greatest, once these are of many runs. Intervals are over seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import stats

from benchmarks import common
from benchmarks.common import CONSOLE
from benchmarks.simulation.figures import interval
from benchmarks.traces.cluster_traces import tpch_jobs
from benchmarks.traces.reading import LoadReport
from hrm.core.vocabulary.bounds import DEVICE_MEMORY_RISK
from hrm.errors import HrmError, InvalidRequest
from hrm.pipelines.core.device_memory import certain
from hrm.pipelines.core.model import SIZE_BUCKETS_MB, Device
from hrm.pipelines.policies.corun.estimate_entry import EstimateEntry
from hrm.pipelines.policies.corun.run_spreads import RUNS_REMEMBERED, PeakSpread
from hrm.pipelines.sim import profiles

__all__ = ["main", "measure_memory", "measure_times", "report"]

SHARES = (0.5, 0.9, 0.99)
AFTER = (1, 3, 10, 30, 100)
HELD_OUT = 50
"""Runs of a stage after those that the quantiles are from, at most."""
CHOSEN_ON = ("tpch_2g", "tpch_5g")
_RUNS_MIN = 40
_PRIOR_VARIANCE, _PRIOR_RUNS = 0.1, 4.0
SEEDS = 10
SETS = 2_000
MEMORY_RUNS = (5, 20, 100)
_WITHIN = (0.7, 1.5)
"""The memory of a GPU, over what the set that shares it needs in the mean."""
Series = tuple[str, str, np.ndarray[Any, Any]]
"""Size of the data, query, and the times of one stage's tasks, seconds."""


class Quantiles(Protocol):
    """What a method makes of the runs of one row so far."""

    def observe(self, seconds: float) -> None: ...

    def quantile_s(self, share: float) -> float: ...


class OfSpread:
    """The table's own entry."""

    def __init__(self) -> None:
        self._entry = EstimateEntry()

    def observe(self, seconds: float) -> None:
        self._entry.ran_alone(Device.CPU, seconds)

    def quantile_s(self, share: float) -> float:
        return self._entry.spreads[Device.CPU].quantile_s(share)


class LogNormal:
    """Mean and variance of the logarithms of the latest runs."""

    def __init__(self) -> None:
        self._runs, self._mean, self._variance = 0, 0.0, 0.0

    def observe(self, seconds: float) -> None:
        self._runs += 1
        weight, log = min(self._runs, RUNS_REMEMBERED), math.log(seconds)
        moved = log - self._mean
        self._mean += moved / weight
        self._variance += (moved * (log - self._mean) - self._variance) / weight

    def quantile_s(self, share: float) -> float:
        known = min(self._runs, RUNS_REMEMBERED)
        pooled = (self._variance * known + _PRIOR_VARIANCE * _PRIOR_RUNS) / (known + _PRIOR_RUNS)
        freedom = known - 1 + _PRIOR_RUNS
        deviations = float(stats.t.ppf(share, freedom))
        return math.exp(self._mean + deviations * math.sqrt(pooled * (1 + 1 / known)))


class Latest:
    """All of the latest runs."""

    def __init__(self) -> None:
        self._times_s: list[float] = []

    def observe(self, seconds: float) -> None:
        self._times_s = [*self._times_s[1 - RUNS_REMEMBERED :], seconds]

    def quantile_s(self, share: float) -> float:
        return float(np.quantile(self._times_s, share, method="weibull"))


class Pooled:
    """The mean, times a factor for each quantile."""

    def __init__(self, factors: Mapping[float, float]) -> None:
        self._entry, self._factors = EstimateEntry(), factors

    def observe(self, seconds: float) -> None:
        self._entry.ran_alone(Device.CPU, seconds)

    def quantile_s(self, share: float) -> float:
        return self._entry.runs[Device.CPU][0] * self._factors[share]


def series_of(data: Path, seed: int) -> list[Series]:
    """Stages with enough tasks, their times in an order drawn by ``seed``.

    Raises:
        InvalidRequest: there is no such data.
    """
    rng = np.random.default_rng(seed)
    found = []
    for job in tpch_jobs(data / "decima_tpch", LoadReport()):
        scale = job.job_id.rpartition("-")[0]
        for task in job.tasks:
            times_s = np.array([time_s for time_s in task.measured_s if time_s > 0])
            if len(times_s) >= _RUNS_MIN:
                found.append((scale, str(job.kind), rng.permutation(times_s)))
    if not any(scale in CHOSEN_ON for scale, _, _ in found):
        raise InvalidRequest(f"{data / 'decima_tpch'} lacks the data of {', '.join(CHOSEN_ON)}")
    return found


def pooled_factors(series: Sequence[Series]) -> dict[float, float]:
    """Of ``CHOSEN_ON``: quantiles of each run over the mean of those before it."""
    ratios = []
    for scale, _, times_s in series:
        if scale in CHOSEN_ON:
            entry = EstimateEntry()
            for time_s in times_s[: AFTER[-1]]:
                if Device.CPU in entry.runs:
                    ratios.append(float(time_s) / entry.runs[Device.CPU][0])
                entry.ran_alone(Device.CPU, float(time_s))
    return {share: float(np.quantile(ratios, share)) for share in SHARES}


def measure_times(series: Sequence[Series]) -> list[dict[str, Any]]:
    """For each method and number of runs: coverage and loss of each quantile."""
    factors = pooled_factors(series)
    methods: dict[str, Callable[[], Quantiles]] = {
        "spread": OfSpread,
        "log-normal": LogNormal,
        "latest": Latest,
        "pooled": lambda: Pooled(factors),
    }
    rows = []
    for name, make in methods.items():
        figures: dict[int, dict[str, list[tuple[list[float], float]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for scale, query, times_s in series:
            if scale not in CHOSEN_ON:
                for after, one in _of_stage(make(), times_s):
                    figures[after][query].append(one)
        for after, queries in sorted(figures.items()):
            coverage = {
                str(share): interval(
                    [float(np.mean([one[0][n] for one in stages])) for stages in queries.values()]
                ).as_json()
                for n, share in enumerate(SHARES)
            }
            losses = [float(np.mean([one[1] for one in stages])) for stages in queries.values()]
            rows.append(
                {
                    "method": name,
                    "runs": after,
                    "stages": sum(map(len, queries.values())),
                    "coverage": coverage,
                    "loss": interval(losses).as_json(),
                }
            )
    return rows


def _of_stage(
    method: Quantiles, times_s: np.ndarray[Any, Any]
) -> list[tuple[int, tuple[list[float], float]]]:
    """By number of runs: the coverage of each quantile, and the mean of their losses."""
    found = []
    for number, time_s in enumerate(times_s):
        if number in AFTER and len(times_s) - number >= HELD_OUT // 5:
            held_out = times_s[number : number + HELD_OUT]
            coverage, losses = [], []
            for share in SHARES:
                at_most_s = method.quantile_s(share)
                coverage.append(float(np.mean(held_out <= at_most_s)))
                over = held_out - at_most_s
                losses.append(float(np.mean(np.maximum(share * over, (share - 1) * over))))
            found.append((number, (coverage, float(np.mean(losses) / times_s.mean()))))
        if number >= AFTER[-1]:
            break
        method.observe(float(time_s))
    return found


def measure_memory(seeds: int, sets: int) -> list[dict[str, Any]]:
    """For device and host memory, and numbers of runs of each row: scores and what is admitted."""
    kinds = [kind for _, kind in sorted(profiles.load().kinds.items()) if kind.log_gpu_s]
    of_kind: dict[str, Callable[[Any, float], float]] = {
        "device memory, counted": lambda kind, size_mb: float(kind.gpu_memory_mib(size_mb)),
        "host memory, measured": lambda kind, size_mb: float(kind.memory_mib(size_mb)),
    }
    found = []
    for what, needs in of_kind.items():
        for runs in MEMORY_RUNS:
            by_seed = [_of_seed(kinds, needs, runs, sets, seed) for seed in range(seeds)]
            names = by_seed[0]
            found.append(
                {
                    "what": what,
                    "runs": runs,
                    **{name: interval([one[name] for one in by_seed]).as_json() for name in names},
                }
            )
    return found


def _of_seed(
    kinds: Sequence[Any], needs: Callable[[Any, float], float], runs: int, sets: int, seed: int
) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    bounds_mb = (5.0, *SIZE_BUCKETS_MB)
    rows = [(kind, bucket) for kind in kinds for bucket in range(len(SIZE_BUCKETS_MB))]

    def peak_mib(row: tuple[Any, int]) -> float:
        low, high = np.log(bounds_mb[row[1] : row[1] + 2])
        return needs(row[0], math.exp(rng.uniform(low, high)))

    spreads, greatest = [], []
    for row in rows:
        spread, most = PeakSpread(), 0.0
        for _ in range(runs):
            reached = peak_mib(row)
            spread, most = spread.observed(reached), max(most, reached)
        spreads.append(spread)
        greatest.append(most)
    outcomes, predicted = [], defaultdict[str, list[float]](list)
    for _ in range(sets):
        chosen = rng.integers(len(rows), size=int(rng.integers(2, 5)))
        together = certain(0.0)
        for number in chosen:
            peak = spreads[number].peak()
            assert peak is not None, "there are runs enough"
            together = together.plus(peak)
        limit_mib = together.mean_mib * rng.uniform(*_WITHIN)
        outcomes.append(float(sum(peak_mib(rows[number]) for number in chosen) > limit_mib))
        predicted["node"].append(together.exceeds(limit_mib))
        squares = math.log1p(together.variance / together.mean_mib**2)
        distance = math.log(limit_mib / together.mean_mib) + squares / 2
        predicted["log-normal"].append(float(stats.norm.sf(distance / math.sqrt(squares))))
        deviations = (limit_mib - together.mean_mib) / math.sqrt(together.variance)
        predicted["normal"].append(float(stats.norm.sf(deviations)))
        predicted["greatest"].append(float(sum(greatest[n] for n in chosen) > limit_mib))
        predicted["never"].append(0.0)
    failed = np.array(outcomes)
    figures = {"failed": float(failed.mean())}
    for name, values in predicted.items():
        given = np.array(values)
        figures[f"brier_{name}"] = float(np.mean((given - failed) ** 2))
        if name != "never":
            admitted = given <= DEVICE_MEMORY_RISK
            figures[f"admitted_{name}"] = float(admitted.mean())
            figures[f"failed_of_admitted_{name}"] = float(
                failed[admitted].mean() if admitted.any() else 0.0
            )
    return figures


def _headline(document: Mapping[str, Any]) -> dict[str, Any]:
    """After the most runs: what quantiles cover, and the score of running out of memory."""
    spread = next(
        row for row in document["times"] if (row["method"], row["runs"]) == ("spread", AFTER[-1])
    )
    covered = {f"covered_p{100 * share:g}": spread["coverage"][str(share)] for share in SHARES}
    return covered | {"brier": document["memory"][-1]["brier_node"]}


def report(document: Mapping[str, Any]) -> str:
    """Markdown from the measurements."""
    times = common.table(
        ["method", "runs", "stages", *(f"P{100 * share:g} covers" for share in SHARES), "loss"],
        [
            [
                row["method"],
                row["runs"],
                row["stages"],
                *(_shown(row["coverage"][str(share)]) for share in SHARES),
                _shown(row["loss"]),
            ]
            for row in document["times"]
        ],
    )
    names = ("node", "normal", "log-normal", "greatest")
    memory = document["memory"]
    scores = common.table(
        ["peaks", "runs", "ran out", *(f"Brier, {name}" for name in (*names, "never"))],
        [
            [row["what"], row["runs"], _shown(row["failed"])]
            + [_shown(row[f"brier_{name}"], 4) for name in (*names, "never")]
            for row in memory
        ],
    )
    admitted = common.table(
        [
            *("peaks", "runs"),
            *(text for name in names for text in (f"{name}: admitted", "of these ran out")),
        ],
        [
            [row["what"], row["runs"]]
            + [
                _shown(row[f"{figure}_{name}"])
                for name in names
                for figure in ("admitted", "failed_of_admitted")
            ]
            for row in memory
        ],
    )
    return (
        "## Run times\n\nShares of held-out runs that are not longer than the quantile, and the "
        "pinball loss, mean of the three, over the stage's mean time; 95 % intervals over "
        f"queries.\n\n{times}\n\n## Running out of device memory\n\nBrier scores, 0 is best, over "
        f"{document['seeds']} seeds of {document['sets']} sets each; what was seen of each row in "
        f"so many runs.\n\n{scores}\n\nWhat may start together at a risk of "
        f"{DEVICE_MEMORY_RISK:.0%}, as a share of all sets, and how many of these ran out of "
        f"memory:\n\n{admitted}"
    )


def _shown(figure: Mapping[str, Any], digits: int = 3) -> str:
    half = figure["high"] - figure["mean"]
    return f"{figure['mean']:.{digits}f} ± {half:.{digits}f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipelines.estimate_quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common.add_common_arguments(parser)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    given = parser.parse_args(arguments)
    seeds, sets = (3, SETS // 10) if given.quick else (SEEDS, SETS)
    try:
        series = series_of(given.data, seed=0)
    except HrmError as error:
        common.note(error.message)
        return 2
    if given.quick:
        series = series[::10]
    document: dict[str, Any] = {
        "benchmark": "pipelines-estimate-quality",
        "provenance": common.provenance(
            "benchmarks.pipelines.estimate_quality", ["numpy", "scipy"]
        ),
        "seeds": seeds,
        "sets": sets,
        "times": measure_times(series),
        "memory": measure_memory(seeds, sets),
    }
    document["headline"] = _headline(document)
    body = report(document)
    sys.stdout.write(body + "\n")
    if given.json:
        common.write_json(given.json, document)
    if not given.quick:
        title = "How well calibrated estimates of run times and device memory are"
        for path in common.write_results("pipelines-estimate-quality", title, document, body):
            CONSOLE.print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
