"""The runs of ``--queues`` as one JSON object, and as Markdown.

What counts is how long the stream's micro-batches take next to two queues of batch, over how long
they take alone: percentiles of those of all runs. The intervals draw whole runs again, since the
micro-batches of one run depend on each other.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import common
from benchmarks.common import Ratio
from benchmarks.scheduling.cells import percentile
from benchmarks.sharing.arms import Run
from benchmarks.sharing.plan import ALONE, Plan, guarantees
from benchmarks.sharing.report import Taken

__all__ = ["QUEUE_ARMS", "TARGET", "queue_document", "queue_report"]

QUEUE_ARMS = ("hrm-queues", "hrm-shared", ALONE)
TARGET = 1.1
"""Of both ratios of the stream in its queue to the stream alone: not to be exceeded."""

_RESAMPLES = 2_000
_SHARES = {"p50": 0.5, "p95": 0.95}


def percentile_ratio_of_runs(
    ours: Sequence[Run], peers: Sequence[Run], share: float, seed: int = 0
) -> Ratio:
    """The percentile of all micro-batches of ``ours`` over that of ``peers``, with a bootstrap
    interval over the runs of either side."""

    def ratio(ours: Sequence[Run], peers: Sequence[Run]) -> float:
        above, below = ([x for run in runs for x in run.durations_s] for runs in (ours, peers))
        return percentile(above, share) / percentile(below, share)

    generator = random.Random(seed)
    drawn = sorted(
        ratio(generator.choices(ours, k=len(ours)), generator.choices(peers, k=len(peers)))
        for _ in range(_RESAMPLES)
    )
    low, high = (drawn[round(part * (_RESAMPLES - 1))] for part in (0.025, 0.975))
    return Ratio(value=ratio(ours, peers), low=low, high=high)


def _cores(role: str) -> Callable[[Run], float]:
    return lambda run: run.cpu_by_role_s.get(role, 0.0) / run.window_s


def _batch(run: Run) -> float:
    """Slots that batch's tasks which succeeded held, on average."""
    return run.batch.slot_s / run.window_s


def _slowdown(taken: Taken, arm: str, share: float) -> dict[str, float] | None:
    """Of the stream, over the stream alone."""
    ours, alone = taken.of(arm), taken.of(ALONE)
    return percentile_ratio_of_runs(ours, alone, share).as_json() if ours and alone else None


def _batch_kept(taken: Taken) -> dict[str, float] | None:
    """Of the slots that batch has without queues."""
    queued, shared = ([_batch(run) for run in taken.of(arm)] for arm in QUEUE_ARMS[:2])
    return common.ratio_of_medians(queued, shared).as_json() if queued and shared else None


def _figures(runs: Sequence[Run], plan: Plan) -> dict[str, Any]:
    """Percentiles over all micro-batches; else medians over the runs."""

    def middle(value: Callable[[Run], float]) -> float:
        return round(common.median([value(run) for run in runs]), 4)

    cores = os.cpu_count() or 1
    queues = sorted({queue for run in runs for queue in run.preempted})
    roles = sorted({role for run in runs for role in run.cpu_by_role_s})
    at_work = [x for run in runs for x in run.at_work_s]
    durations_s = [x for run in runs for x in run.durations_s]
    delays_s = [x for run in runs for x in run.delays_s]
    others = [
        whole - part
        for run in runs
        for whole, part in zip(run.durations_s, run.at_work_s, strict=True)
    ]
    return {
        **{f"{name}_s": percentile(durations_s, share) for name, share in _SHARES.items()},
        "longest_s": max(durations_s),
        "micro_batches": sum(len(run.durations_s) for run in runs),
        "late": sum(run.late for run in runs),
        "delay_p50_s": round(percentile(delays_s, 0.5), 3),
        "delay_p95_s": round(percentile(delays_s, 0.95), 3),
        "tasks_p50_s": round(percentile(at_work, 0.5), 3),
        "driver_p50_s": round(percentile(others, 0.5), 3),
        "batch_slots": middle(_batch),
        "batch_lost_slots": middle(lambda run: run.batch.wasted_s / run.window_s),
        "stream_slots": middle(lambda run: run.stream.slot_s / run.window_s),
        "jobs_ended": sum(len(run.jobs) for run in runs),
        "preempted": {q: [run.preempted.get(q, 0) for run in runs] for q in queues},
        "machine_busy_runs": [round(x.machine_cpu_s / x.window_s / cores, 4) for x in runs],
        "cores_by_role": {role: middle(_cores(role)) for role in roles},
    }


def queue_document(taken: Taken, plan: Plan) -> dict[str, Any]:
    """Everything as one JSON object; the names on top are for comparison over time."""
    intervals: dict[str, dict[str, float] | None] = {}
    for arm in QUEUE_ARMS[:2]:
        for name, share in _SHARES.items():
            key = f"{arm.removeprefix('hrm-')}_stream_{name}_ratio"
            intervals[key] = _slowdown(taken, arm, share)
    intervals["batch_ratio"] = _batch_kept(taken)
    failed = taken.failures + [
        f"{arm}: {text}" for arm, runs in taken.runs.items() for run in runs
        for text in run.complaints
    ]  # fmt: skip
    return {
        "benchmark": "sharing-queues",
        **{name: ratio and round(ratio["value"], 4) for name, ratio in intervals.items()},
        "target": TARGET,
        "answers_right": not failed,
        "failures": failed,
        "intervals": intervals,
        "guaranteed_percent": guarantees(plan),
        "arms": {arm: _figures(runs, plan) for arm, runs in taken.runs.items() if runs},
        "plan": asdict(plan),
        "runs": {arm: [asdict(run) for run in runs] for arm, runs in taken.runs.items()},
    }


def queue_report(document: dict[str, Any]) -> str:
    """The Markdown below the head of the results file."""
    return "\n\n".join(
        [
            _about(document),
            f"## Over the stream alone\n\n{_ratio_table(document)}",
            f"## Each arm\n\n{_arm_table(document)}",
            f"## Who used the machine\n\n{_role_table(document)}",
            f"## Answers\n\n{_results(document)}",
        ]
    )


def _about(document: dict[str, Any]) -> str:
    plan = document["plan"]
    executors = plan["nodes"] * plan["executors_per_node"]
    queues = ", ".join(
        f"`{name}` {part} %" for name, part in document["guaranteed_percent"].items()
    )
    return (
        f"{plan['nodes']} nodes, {executors} executors of {plan['slots']} slots; slots are not "
        f"cores, tasks mostly wait for a paced store. *hrm-queues*: {queues} guaranteed, "
        f"`queue_reclaim_wait_s` {plan['reclaim_wait_s']:g}; the stream (Top-K, a trigger every "
        f"{plan['trigger_s']:g} s) needs one executor at its base load and its whole guarantee at "
        f"its peak, and of batch two jobs of {plan['batch_executors']} executors are submitted to "
        "either queue at any time. *hrm-shared*: the same stream and the same "
        f"{plan['backlog']} jobs in one queue. *hrm-alone*: the stream by itself. The window is "
        f"{plan['window_s']:g} s, {plan['runs']} runs of each, interleaved."
    )


def _shown(ratio: dict[str, float] | None) -> str | None:
    if ratio is None:
        return None
    if ratio["low"] == ratio["high"]:
        return f"{ratio['value']:.3f}"
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _verdict(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return f"≤ {TARGET:g}"
    met = "met" if ratio["value"] <= TARGET else "missed"
    across = ratio["low"] < TARGET < ratio["high"]
    return f"≤ {TARGET:g}: {met}{', the interval reaches across' if across else ''}"


def _ratio_table(document: dict[str, Any]) -> str:
    intervals = document["intervals"]
    rows: list[list[object]] = []
    for name in _SHARES:
        queued = intervals[f"queues_stream_{name}_ratio"]
        shared = intervals[f"shared_stream_{name}_ratio"]
        rows.append([f"micro-batches, {name}", _shown(queued), _verdict(queued), _shown(shared)])
    batch = _shown(intervals["batch_ratio"])
    rows.append(["slots at work for batch, over hrm-shared", batch, "", None])
    shown = common.table(["ratio", "hrm-queues", "target", "hrm-shared"], rows)
    if document["plan"]["runs"] == 1:
        return f"{shown}\n\nOne run of each arm, so nothing says how much runs differ."
    runs = document["plan"]["runs"]
    return (
        f"{shown}\n\nPercentiles over the micro-batches of {runs} runs; in brackets: bootstrap "
        f"intervals, in which whole runs are drawn again{common.few(runs)}."
    )


def _arm_table(document: dict[str, Any]) -> str:
    columns = {
        "p50_s": "micro-batch p50, s", "p95_s": "p95, s", "longest_s": "longest, s",
        "late": "late", "micro_batches": "of", "tasks_p50_s": "tasks at work p50, s",
        "driver_p50_s": "the rest p50, s", "delay_p95_s": "file to result p95, s",
        "stream_slots": "stream's slots", "batch_slots": "batch's slots",
        "batch_lost_slots": "lost slots", "jobs_ended": "jobs ended",
    }  # fmt: skip
    rows = []
    for arm, each in document["arms"].items():
        lost = "; ".join(
            f"{name.removeprefix('root.') or 'all'} {', '.join(map(str, counts))}"
            for name, counts in each["preempted"].items()
        )
        busy = ", ".join(f"{x:.2f}" for x in each["machine_busy_runs"])
        rows.append([arm, *(each[column] for column in columns), lost or "0", busy])
    header = ["arm", *columns.values(), "executors preempted, run by run", "machine busy"]
    return (
        f"{common.table(header, rows)}\n\n*Late*: longer than the trigger's interval. *Tasks at "
        "work*: the part of a micro-batch in which a task ran; *the rest* is the driver's work, "
        "and waiting for a slot. *Slots*: held by tasks that succeeded, on average over the "
        "window; *lost*: by batch's attempts that did not."
    )


def _role_table(document: dict[str, Any]) -> str:
    arms = document["arms"]
    roles = list(dict.fromkeys(role for each in arms.values() for role in each["cores_by_role"]))
    rows: list[list[object]] = [
        [role, *(each["cores_by_role"].get(role) for each in arms.values())] for role in roles
    ]
    return f"Cores, on average over the window.\n\n{common.table(['', *arms], rows)}"


def _results(document: dict[str, Any]) -> str:
    if document["answers_right"]:
        return (
            "All right: the stream's Top-K after every micro-batch, and in the end over all files; "
            "every batch job that ended, against a Python Counter."
        )
    return "\n".join(f"- {text.splitlines()[0]}" for text in document["failures"])
