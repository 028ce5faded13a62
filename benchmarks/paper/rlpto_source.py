"""RLPTO's own experiments in simulation: tables II to V and figures 7 to 11, as plain values.

Every method gets the same seeds. Where a figure has no numbers in the source, what is reported is
said with it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper.rlpto_methods import (
    BETAS,
    SETUPS,
    Method,
    baselines,
    beta_method,
    run_twelve,
)
from benchmarks.simulation.figures import interval
from hrm.learn.training_curves import TrainingState, fitted_curve
from hrm.learn.training_jobs import TrainingRun
from hrm.learn.training_workloads import COMBINATIONS

__all__ = [
    "CHECKS",
    "HORIZON_S",
    "SOURCE",
    "TIMES_S",
    "by_workers",
    "checked",
    "combined",
    "tabled",
]

HORIZON_S = 7_200.0
TIMES_S = tuple(1_000.0 * n for n in range(1, 8))
SOURCE = ("fs", "fcfs", "slaq", "dolphin", "tradl")
"""The methods that the source compares with."""
SCALE_NAMES = ("small", "medium", "big")
_WORKERS = (1, 2, 3, 4, 6, 8, 10)
Rows = dict[str, Any]


def tabled(learned: Sequence[Method], seeds: Sequence[int]) -> dict[str, Any]:
    """By table and method: accuracy (%), total time (s), and both with mean workers by scale."""
    found: dict[str, Any] = {}
    for table, setup in SETUPS.items():
        methods = [*baselines(setup), *map(beta_method, BETAS), *learned]
        found[table] = {}
        for method in methods:
            runs = [run_twelve(method, setup, seed) for seed in seeds]
            found[table][method.name] = {
                "accuracy": interval([100.0 * run.accuracy for run in runs]).as_json(),
                "total_s": interval([run.total_s for run in runs]).as_json(),
                "resizes": statistics.fmean(run.figures()["resizes"] for run in runs),
                "scales": _by_scale(runs),
            }
    return found


def _by_scale(runs: Sequence[TrainingRun]) -> dict[str, dict[str, float]]:
    """Figure 7: accuracy (%), run time (s) and mean workers of a job."""
    found = {}
    for scale, name in enumerate(SCALE_NAMES):
        own = [x for run in runs for x in run.outcomes if x.job.scale == scale]
        ran = [x.completed - x.started for x in own]
        found[name] = {
            "accuracy": 100.0 * statistics.fmean(x.accuracy for x in own),
            "run_s": statistics.fmean(ran),
            "workers": sum(x.node_s for x in own) / sum(ran),
        }
    return found


def by_workers(seeds: Sequence[int]) -> list[dict[str, float]]:
    """Figure 9: a medium job of all its epochs, by a fixed number of workers."""
    rows = []
    for workers in _WORKERS:
        times, accuracies = [], []
        for seed in seeds:
            state = TrainingState(fitted_curve(np.random.default_rng([seed, 9]), 1))
            for _ in range(state.curve.epochs_max):
                state.run_epoch(workers)
            times.append(state.curve.epochs_max * state.curve.seconds(workers))
            accuracies.append(100.0 * state.accuracy)
        rows.append({"workers": float(workers), "time_s": statistics.fmean(times),
                     "accuracy": statistics.fmean(accuracies)})  # fmt: skip
    return rows


def combined(learned: Sequence[Method], seeds: Sequence[int]) -> list[Rows]:
    """Figures 10 and 11: the four combinations, each method with its own queue and with one for
    all; points at 1,000 to 7,000 s, and their time average over two hours."""
    setup = SETUPS["II"]
    methods = [*baselines(setup), beta_method(0.0003), *learned]
    rows: list[Rows] = []
    for combination, priorities in COMBINATIONS.items():
        for queue in ("own", "one"):
            for method in methods:
                same = None if queue == "own" else True
                runs = [run_twelve(method, setup, seed, priorities=priorities, by_priority=same)
                        for seed in seeds]  # fmt: skip
                means = [run.mean_points(HORIZON_S) for run in runs]
                rows.append({
                    "combination": combination,
                    "queue": queue,
                    "method": method.name,
                    "points": np.mean([run.points_at(TIMES_S) for run in runs], axis=0).tolist(),
                    "mean_points": interval(means).as_json(),
                    "by_seed": means,
                    "accuracy": 100.0 * statistics.fmean(run.accuracy for run in runs),
                    "interruptions": statistics.fmean(
                        run.figures()["interruptions"] for run in runs
                    ),
                })  # fmt: skip
    return rows


Table = Mapping[str, tuple[float, float]]


def _rlpto(table: Table) -> list[tuple[float, float, float]]:
    return [(beta, *table[f"beta-{beta:g}"]) for beta in BETAS]


def _fall(table: Table) -> bool:
    rows = _rlpto(table)
    return all(a[1] > b[1] and a[2] > b[2] for a, b in itertools.pairwise(rows))


def _most_accurate(table: Table) -> bool:
    best = max(table[name][0] for name in SOURCE)
    return all(accuracy > best for beta, accuracy, _ in _rlpto(table) if beta <= 0.0001)


def _beats_slaq(table: Table) -> bool:
    accuracy, total_s = table["beta-0.0001"]
    return accuracy >= table["slaq"][0] and total_s < table["slaq"][1]


def _slaq_accurate_and_slow(table: Table) -> bool:
    accurate = max(SOURCE, key=lambda name: table[name][0]) == "slaq"
    others = ["fs", "dolphin", "tradl", *(f"beta-{b:g}" for b in BETAS if b > 0.00005)]
    return accurate and all(table["slaq"][1] > table[name][1] for name in others)


def _fcfs_last(table: Table) -> bool:
    names = [*SOURCE, *(f"beta-{beta:g}" for beta in BETAS)]
    slow = max(names, key=lambda name: table[name][1]) == "fcfs"
    return slow and min(names, key=lambda name: table[name][0]) == "fcfs"


def _tradl_fastest(table: Table) -> bool:
    return min(SOURCE, key=lambda name: table[name][1]) == "tradl"


def _dominates(table: Table) -> bool:
    """FS and Dolphin, at 0.0002 and 0.0003 at least."""
    return all(
        table[f"beta-{beta:g}"][0] >= table[name][0] and table[f"beta-{beta:g}"][1] < table[name][1]
        for beta in (0.0002, 0.0003)
        for name in ("fs", "dolphin")
    )


def _front(table: Table) -> bool:
    """No method of ``SOURCE`` is on the front of accuracy and time, and every beta is."""
    names = [*SOURCE, *(f"beta-{beta:g}" for beta in BETAS)]

    def beaten(name: str) -> bool:
        accuracy, total_s = table[name]
        return any(table[x][0] >= accuracy and table[x][1] < total_s for x in names if x != name)

    return all(map(beaten, SOURCE)) and not any(beaten(f"beta-{beta:g}") for beta in BETAS)


def _large_beta_costs(table: Table) -> bool:
    accuracy = table["beta-0.001"][0]
    below = all(accuracy < table[name][0] for name in ("fs", "dolphin", "slaq"))
    return below and all(accuracy > table[name][0] for name in ("tradl", "fcfs"))


CHECKS = {
    "accuracy and time both fall as beta grows": _fall,
    "more accurate than every baseline for beta up to 0.0001": _most_accurate,
    "beta 0.0001 is at least as accurate as SLAQ, and faster": _beats_slaq,
    "SLAQ is the most accurate baseline, and slower than all but FCFS and beta 0.00005":
        _slaq_accurate_and_slow,
    "FCFS is the slowest and the least accurate": _fcfs_last,
    "TRADL is the fastest baseline": _tradl_fastest,
    "beta 0.0002 and 0.0003 dominate FS and Dolphin": _dominates,
    "no baseline is on the Pareto front, every beta is": _front,
    "beta 0.001 is less accurate than FS, Dolphin and SLAQ, more than TRADL and FCFS":
        _large_beta_costs,
}  # fmt: skip
"""What the source says of its tables, as tests of one."""


def checked(table: Table) -> dict[str, bool]:
    """Which of ``CHECKS`` hold. ``table``: accuracy and total time by method."""
    return {claim: check(table) for claim, check in CHECKS.items()}


def first_of(
    rows: Sequence[Rows],
    ours: Sequence[str],
    combination: int,
    queue: str,
    others: Sequence[str] = SOURCE,
) -> bool:
    """Whether the mean of ``ours`` has the highest mean reward of ``others`` as well."""
    own = {row["method"]: row["mean_points"]["mean"] for row in rows
           if (row["combination"], row["queue"]) == (combination, queue)}  # fmt: skip
    mean = statistics.fmean(own[name] for name in ours)
    return all(mean > own[name] for name in others) and math.isfinite(mean)
