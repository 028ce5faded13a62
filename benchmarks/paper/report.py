"""The report: every experiment's table with the paper's published values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import common
from benchmarks.simulation import (
    CENTRALISED,
    EXPERIMENTS,
    PAPER_SCHEDULERS,
    ratios,
)
from benchmarks.simulation.figures import Interval

__all__ = ["LIVE_X_NAMES", "PAPER_DELAY_MS", "PAPER_RATIOS", "report", "x_name_of"]

PAPER_DELAY_MS = {60.0: 50.0}
PAPER_RATIOS = {60.0: "about 1", 120.0: "about 0.75", 180.0: "about 0.75"}
"""What survives of figure 6 and of the abstract; the other values of the figures are lost."""

_COMPARED = ("delay", "saturated", "live")
_MEASURED = frozenset({"measured", "live"})
"""Costs that this implementation has. Others are declared or fitted, whatever they are called, and
are in no headline."""
_CALIBRATED = (
    "Costs are chosen such that the centralised system waits 50 ms at 60 jobs, as in the paper; in "
    "`choice-bound` four fifths of a job's cost are declared to be what schedulers do in parallel. "
    "A ratio of these is a property of the chosen costs as much as of HRM: it shows what could be "
    "gained where choice is that expensive, and is no measurement of this implementation."
)
_DECLARED_LIVE = (
    "`live, choice-bound`: a policy on a real master that pauses for each choice; of an earlier "
    "version of this benchmark, and no longer measured. Inside of the master that pause stops all "
    "else, which no central system with such a policy would let happen."
)
TARGETS = {60.0: "1.0", 180.0: "0.5"}
_INTRODUCTION = (
    "What is charged to whom, what the figures mean and how to read them: "
    "[docs/experiments.md](../../docs/experiments.md)."
)

_COLUMNS = {
    "delay_ms": "mean delay, ms",
    "delay_p50_ms": "p50",
    "delay_p95_ms": "p95",
    "delay_p99_ms": "p99",
    "stream_delay_ms": "streams: mean delay, ms",
    "stream_delay_p99_ms": "streams: p99",
    "completion_s": "completion, s",
    "told_ms": "until the job has heard, ms",
    "containers_per_s": "containers/s",
    "stale": "stale claims",
    "queued": "queued",
    "aborted": "aborted",
    "retries": "retries",
    "parked": "parked at most",
    "rounds": "rounds",
    "scheduler_queue": "jobs at the schedulers, mean",
    "scheduler_queue_max": "most",
    "call_ms": "a call to the master meanwhile, ms",
    "master_queue": "master's queue, mean",
    "master_busy": "master busy",
    "schedulers_busy": "schedulers busy",
}
_NOTHING = 0.0005
_UNUSED = ("java", "pyspark")
LIVE_X_NAMES = {"live": "jobs at once", "live-mixed": "streams a second"}
"""The live experiments and their x axes."""

_ABOUT_LIVE = {
    "live": "the same bursts on a real master over gRPC, with 1,050 emulated agents",
    "live-mixed": "streams among batch on a real master, lease on all or on candidates",
}
_READ_LIVE = {
    "live": (
        "Master, scheduler processes, agents and applications share the machine's cores. "
        "Schedulers in one process take turns on one thread, round by round: nothing overlaps, so "
        "they can be no faster than one. Processes overlap where there are cores for them, and "
        "otherwise take time from the master; each of their rounds waits for the master's answer."
    ),
    "live-mixed": (
        "One scheduler in the master and two processes, 15 batch jobs/s; streams fit on a tenth "
        "of the nodes. Rounds inside of the master are not interrupted; a process holds the lease "
        "while it chooses and its claims travel."
    ),
}


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown from the documents of ``results/paper-hrm-NAME.json``."""
    parts = ["# The HRM paper's simulation, on this core", _INTRODUCTION]
    six = f"HRM, {PAPER_SCHEDULERS} schedulers"
    ours = {"delay": six, "saturated": six}
    compared = [name for name in _COMPARED if name in found]
    if compared:
        parts.append("## Delay, HRM over centralised, beside the paper")
        parts.append(_ratio_table(found, ours, measured=True))
        parts += _verdicts(found.get("delay", {}).get("points", []), six)
    if declared := _declared(found, compared):
        parts += ["### The shape, with calibrated costs", _CALIBRATED]
        if any(charging.startswith("live") for charging in declared):
            parts.append(_DECLARED_LIVE)
        parts.append(_ratio_table(found, ours, measured=False))
    for name, document in found.items():
        about = EXPERIMENTS[name].about if name in EXPERIMENTS else _ABOUT_LIVE[name]
        parts += [f"## `{name}`: {about}", _origin(document)]
        if name != "conflicts":
            parts.append(f"![{name}](paper-hrm-{name}.svg)")
        if name in _READ_LIVE:
            parts.append(_READ_LIVE[name])
        parts.append(_points_table(name, document["points"]))
    return "\n\n".join(parts) + "\n"


def _declared(found: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> set[str]:
    """Ways of charging in these experiments that are no measurement."""
    return {row["charging"] for name in names for row in found[name]["points"]} - _MEASURED


def _verdicts(rows: Sequence[dict[str, Any]], ours: str) -> list[str]:
    """Whether the experiment that the targets are of has met them."""
    found = ratios(rows, ours)
    measured = {x: ratio.mean for (charging, x), ratio in found.items() if charging in _MEASURED}
    words = [
        f"{x:g} jobs {measured[x]:.2f} against {target}, "
        f"{'met' if measured[x] <= float(target) else 'missed'}"
        for x, target in TARGETS.items()
        if x in measured
    ]
    return [f"The targets, by `measured`: {'; '.join(words)}."] if words else []


def x_name_of(name: str) -> str:
    """What an experiment's x axis counts."""
    return LIVE_X_NAMES.get(name) or EXPERIMENTS[name].x_name


def _ratio_table(
    found: Mapping[str, Mapping[str, Any]], ours: Mapping[str, str], *, measured: bool
) -> str:
    columns: dict[str, dict[float, Interval]] = {}
    for name in _COMPARED:
        rows = found.get(name, {}).get("points", [])
        systems = dict.fromkeys(row["system"] for row in rows if row["system"] != CENTRALISED)
        for system in systems if name == "live" else [ours[name]]:
            for (charging, x), ratio in ratios(rows, system).items():
                if (charging in _MEASURED) is measured:
                    title = _title(name, system, charging)
                    columns.setdefault(title, {})[x] = ratio
    xs = sorted({x for column in columns.values() for x in column})
    lines = [
        [
            f"{x:g} jobs",
            PAPER_RATIOS.get(x),
            TARGETS.get(x),
            *(column.get(x) for column in columns.values()),
        ]
        for x in xs
    ]
    return common.table(
        ["", "paper", "target", *columns], [[_cell(c) for c in line] for line in lines]
    )


def _title(name: str, system: str, charging: str) -> str:
    if name == "live":
        return f"{charging}, {system}"
    return charging if name == "delay" else f"{charging}, {name}"


def _points_table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    x_name = x_name_of(name)
    shown = [
        column
        for column in _COLUMNS
        if any(row["figures"].get(column, {}).get("mean") for row in rows)
    ]
    lines = []
    for row in rows:
        figures = {key: Interval(**value) for key, value in row["figures"].items()}
        cells = [_cell(figures.get(column)) for column in shown]
        lines.append([row["system"], row["charging"], f"{row['x']:g}", *cells])
    return common.table(["system", "costs", x_name, *(_COLUMNS[c] for c in shown)], lines)


def _cell(value: object) -> str:
    """Three digits and the half width of the interval, unless it is 0."""
    if not isinstance(value, Interval):
        return "-" if value is None else str(value)
    half = value.high - value.mean
    if value.runs < 2 or half <= _NOTHING * abs(value.mean):
        return _digits(value.mean, 3)
    return f"{_digits(value.mean, 3)} ± {_digits(half, 2)}"


def _digits(value: float, count: int) -> str:
    """At least this many digits, and never a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 10**count else f"{value:.{count}g}"


def _origin(document: Mapping[str, Any]) -> str:
    where = document["provenance"]
    about = where["machine"]
    versions = ", ".join(
        f"{key} {value}" for key, value in where["versions"].items() if key not in _UNUSED
    )
    return (
        f"`{where['command']}`, {document['runs']} runs a point, seeds from {document['seed']}; "
        f"{where['date']}, commit {where['commit']}; {about['cpu']}, {about['cores']} cores, load "
        f"{about['load_1m']} at the start{common.speed(about)}; {versions}. "
        "Means ± half of the 95 % interval; without ± where that is below 0.05 %. Columns of zeros "
        "are left out."
    )
