"""The tables of ``benchmarks.paper.dqngpu``: headroom, figures 7 to 10, and variations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.simulation.figures import interval

__all__ = ["body_of"]

REFERENCE, ORACLE = "sjf-packed", "oracle"
PUBLISHED = {
    "GPU_heavy": "SJF 4,807 s, DqnGPU 4,891, DeepRM mean 5,530",
    "GPU_light": "SJF 2,295 s, DqnGPU 1,214",
    "memory_heavy": "SJF shortest, no number",
    "memory_light": "DqnGPU 3,928 s, shortest",
    "random": "DqnGPU 2,481 s; SJF 2,295 by its ratio 1.081",
}
PRICES = {"g3.xlarge": 0.75, "g4dn.xlarge": 0.528, "g4dn.4xlarge": 1.204}
"""US dollars per hour, table 4."""
_SHIPS = "look-ahead, pairs"
_OURS = (_SHIPS, "dqngpu-ddqn", "dqngpu-ddqn, pairs")
_SUFFIXES = {"": _SHIPS, "_learned": "dqngpu-ddqn", "_learned_pairs": "dqngpu-ddqn, pairs",
             "_guarded": "guarded", "_guarded_pairs": "guarded, pairs"}  # fmt: skip

Runs = dict[str, list[dict[str, Any]]]


def _sets(runs: Sequence[dict[str, Any]], figure: str) -> list[float]:
    """By set of jobs, the mean over trainings."""
    held: dict[int, list[float]] = {}
    for each in runs:
        held.setdefault(each["seed"], []).append(float(each[figure]))
    return [statistics.fmean(held[seed]) for seed in sorted(held)]


def _gains(runs: Runs, name: str, reference: str = REFERENCE) -> list[float]:
    pairs = zip(_sets(runs[name], "makespan_s"), _sets(runs[reference], "makespan_s"), strict=True)
    return [100.0 * (1.0 - ours / theirs) for ours, theirs in pairs]


def _shown(values: Sequence[float]) -> str:
    found = interval(values)
    return f"{found.mean:.1f} ± {found.high - found.mean:.1f}"


def _mean(runs: Sequence[dict[str, Any]], figure: str) -> float:
    return statistics.fmean(_sets(runs, figure))


def _headroom(by_workload: dict[str, Runs]) -> str:
    header = ["workload", "oracle, % shorter", "bound, % shorter", *_OURS, "best heuristic"]
    rows = []
    for workload, runs in by_workload.items():
        bound = statistics.fmean(each["bound_s"] for each in runs[ORACLE])
        packed = _mean(runs[REFERENCE], "makespan_s")
        row: list[object] = [workload, _shown(_gains(runs, ORACLE)),
                             f"{100 * (1 - bound / packed):.1f}"]  # fmt: skip
        row += [_shown(_gains(runs, name)) if name in runs else "-" for name in _OURS]
        plain = [name for name in runs if runs[name][0]["training"] < 0
                 and name not in (ORACLE, "search on profiles", "sjf", _SHIPS)]  # fmt: skip
        best = max(plain, key=lambda name: statistics.fmean(_gains(runs, name)))
        rows.append([*row, f"{best} {_shown(_gains(runs, best))}"])
    return common.table(header, rows)


def _shares(document: dict[str, Any]) -> str:
    header = ["workload", *_SUFFIXES.values()]
    rows = []
    for workload in document["headroom"]:
        row = [workload]
        for suffix in _SUFFIXES:
            share = document[f"share_of_headroom{suffix}"][workload]
            limits = document[f"share_of_headroom_interval{suffix}"][workload]
            shown = "-"
            if share is not None:
                low, high = limits
                shown = f"{100 * share:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
            row.append(shown)
        rows.append(row)
    return common.table(header, rows)


def _unslowed(document: dict[str, Any], workload: str) -> str:
    header = ["method", "jobs as fast as alone", "makespan, % shorter than packed SJF"]
    rows = []
    for each in document["unslowed"][workload]:
        jobs, gain = each["not_slowed"], each["makespan_gain"]
        rows.append([
            each["method"], f"{jobs['mean']:.1f} ± {jobs['high'] - jobs['mean']:.1f}",
            f"{100 * gain['mean']:.1f} ± {100 * (gain['high'] - gain['mean']):.1f}",
        ])  # fmt: skip
    return common.table(header, rows)


def _decisions(document: dict[str, Any]) -> str:
    rows = [[name, *(f"{each:.1f}" for each in took.values())]
            for name, took in document["decision_ms"].items()]  # fmt: skip
    return common.table(["workload", "median", "99th percentile", "longest"], rows)


def _figure_7(runs: Runs) -> str:
    header = ["method", "makespan, s", "% shorter than packed SJF", "slowdown", "p95", "GPU, %",
              "memory, %", "memory at peak, %", "work per busy s", "out of memory"]  # fmt: skip
    rows = []
    for name, held in runs.items():
        rows.append([
            name, _shown(_sets(held, "makespan_s")), _shown(_gains(runs, name)),
            f"{_mean(held, 'slowdown_mean'):.2f}", f"{_mean(held, 'slowdown_p95'):.2f}",
            *(f"{100 * _mean(held, figure):.0f}" for figure in ("gpu", "memory", "memory_peak")),
            f"{_mean(held, 'work_per_busy_s'):.2f}", f"{_mean(held, 'failures'):.1f}",
        ])  # fmt: skip
    return common.table(header, rows)


def _figure_8(runs: Runs) -> str:
    header = ["method", "none (2 %)", "< 10 %", "10-20 %", ">= 20 %"]
    rows = []
    for name, held in runs.items():
        classes = np.mean([each["classes"] for each in held], axis=0)
        rows.append([name, *(f"{each:.1f}" for each in classes)])
    return common.table(header, rows)


def _figure_9(runs: Runs, trained_s: dict[str, float]) -> str:
    """Over SJF's total time, with the training spread over as many sets of jobs."""
    header = ["method", "alone", "and training / 1", "/ 10", "/ 100"]
    base = _mean(runs["sjf"], "makespan_s")
    rows = []
    for name, held in runs.items():
        own = _mean(held, "makespan_s")
        extra = trained_s.get(name)
        totals = [None if extra is None else (own + extra / sets) / base for sets in (1, 10, 100)]
        rows.append([name, own / base, *totals])
    return common.table(header, rows)


def _figure_10(runs: Runs) -> str:
    """Table 4: one shared card in place of two or four exclusive ones, for the same jobs."""
    header = ["method", "time over SJF's", "saved against 2 x g3.xlarge", "against 4 x g4dn.xlarge"]
    base = _mean(runs["sjf"], "makespan_s")
    rows = []
    for name, held in runs.items():
        ratio = _mean(held, "makespan_s") / base
        shared = ratio * PRICES["g4dn.4xlarge"]
        saved = [100 * (1 - shared / (count * PRICES[kind]))
                 for count, kind in ((2, "g3.xlarge"), (4, "g4dn.xlarge"))]  # fmt: skip
        rows.append([name, ratio, *(f"{each:.1f} %" for each in saved)])
    return common.table(header, rows)


def _variations(found: dict[str, Any]) -> str:
    header = ["variation", "workload", "packed SJF, s", "out of memory", *_OURS, "ljf-packed",
              "tetris", "fastest-together", "out of memory, ddqn"]  # fmt: skip
    rows = []
    for name, by_workload in found.items():
        for workload, runs in by_workload.items():
            row: list[object] = [name, workload, f"{_mean(runs[REFERENCE], 'makespan_s'):.0f}",
                                 f"{_mean(runs[REFERENCE], 'failures'):.1f}"]  # fmt: skip
            row += [
                _shown(_gains(runs, method)) if method in runs else "-"
                for method in (*_OURS, "ljf-packed", "tetris", "fastest-together")
            ]
            row.append(f"{_mean(runs['dqngpu-ddqn'], 'failures'):.1f}")
            rows.append(row)
    return common.table(header, rows)


_ABOUT = """\
{sets} sets of {jobs} jobs of each workload, all queued at 0, and {trainings} trainings; means with
95 % intervals over sets, of which each first has the mean of its trainings. All methods have the
same capacity rule (limits 1, memory *stretched*: whatever slows jobs down, true profiles do not run
out of memory) and the same restarts. *max*, *mean*: of constant beliefs; *pairs*: the measured
slowdowns of pairs are given, too; *guarded*: behind the guard that it would be used with. *oracle*:
the best of a local search of {tries} schedules that knows every slowdown and begins with the best
method's, and of all methods; *search on profiles*: a search that believes that nothing is slowed.
Which measured kind of job stands for which application is drawn for each set, by rank
(`benchmarks/paper/dqngpu_workloads.py`).
"""


def body_of(document: dict[str, Any]) -> str:
    """All tables as Markdown."""
    runs, trained_s = document["runs"], document["trained_s"]
    parts = [_ABOUT.format(
        sets=document["sets"], jobs=document["jobs"], tries=document["tries"],
        trainings=len(document["trained"]),
    )]  # fmt: skip
    titles = {"pairs": "slowdowns of measured pairs", "none": "nothing slows down"}
    for world, by_workload in runs.items():
        parts += [f"## Headroom and gains: {titles[world]}", _headroom(by_workload)]
    parts += ["## Shares of the headroom: slowdowns of measured pairs",
              "Sums of gains over the oracle's, with 95 % intervals of a bootstrap over sets.",
              _shares(document),
              "## Decisions of what ships: processor time, ms", _decisions(document)]  # fmt: skip
    for world, by_workload in runs.items():
        for workload, held in by_workload.items():
            parts += [f"## Figure 7, {workload}: {titles[world]}",
                      f"Published: {PUBLISHED[workload]}.", _figure_7(held)]  # fmt: skip
    random = runs["pairs"].get("random")
    if random is not None:
        parts += ["## Figure 8: jobs by their slowdown, random workload, measured pairs",
                  _figure_8(random),
                  "What 20 of 30 without a slowdown cost: *gain* is what a job that joins has to "
                  "add to the sum of all speeds, as far as pairs tell.",
                  _unslowed(document, "random"),
                  "## Figure 9: total time over SJF's, random workload, measured pairs",
                  _figure_9(random, trained_s),
                  "## Figure 10: cost, random workload, measured pairs",
                  "Saved = 1 - (time over SJF's x 1.204) / (2 x 0.75, or 4 x 0.528), dollars.",
                  _figure_10(random)]  # fmt: skip
    parts += ["## Variations, measured pairs: % shorter than packed SJF",
              _variations(document["variations"])]  # fmt: skip
    return "\n\n".join(parts)
