"""The runs of all arms as one JSON object, and as Markdown."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks import common
from benchmarks.common import Ratio
from benchmarks.scheduling.cells import percentile
from benchmarks.sharing.arms import Run
from benchmarks.sharing.feedback import Gap
from benchmarks.sharing.measures import percentile_ratio
from benchmarks.sharing.plan import ALONE, Plan

__all__ = ["TARGETS", "Taken", "document", "is_greatest", "report", "shown_ratio", "stretch"]

TARGETS = {
    "utilisation_ratio": 1.25,
    "stream_p99_ratio": 1.1,
    "feedback_gap_ms": 10.0,
}
"""The first is to be reached, the others not to be exceeded."""


_DISTURBED = 0.75
"""A machine that is busy for more of the window than this does other things, too."""

STEPS = ("node", "decide", "launch", "start")
"""Of the time between two containers, as in ``Gap``."""


@dataclass(slots=True)
class Taken:
    """Everything measured: arm → runs; gaps with queues at the node (True) and without."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    gaps: dict[bool, list[Gap]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def of(self, arm: str) -> list[Run]:
        return self.runs.get(arm, [])


def _slot_s(run: Run) -> float:
    return (run.stream.slot_s + run.batch.slot_s) / run.window_s


def _cpu_s(run: Run) -> float:
    return (run.stream.cpu_s + run.batch.cpu_s) / run.window_s


def stretch(ours: Sequence[Run], peers: Sequence[Run]) -> float | None:
    """How much more slot time the same batch jobs cost in ``ours`` than in ``peers``: 1 where tasks
    take as long. None: no job ended on both sides."""
    ratios = []
    for number in {job.number for run in ours for job in run.jobs}:
        sides = [
            [job.slot_s for run in runs for job in run.jobs if job.number == number]
            for runs in (ours, peers)
        ]
        if all(sides):
            ratios.append(common.median(sides[0]) / common.median(sides[1]))
    return common.median(ratios) if ratios else None


def _ratio(taken: Taken, manager: str, value: Any) -> Ratio | None:
    """Shared over split."""
    shared, split = (
        [x for run in taken.of(f"{manager}-{part}") if (x := value(run)) is not None]
        for part in ("shared", "split")
    )
    return common.ratio_of_medians(shared, split) if shared and split else None


def _p99(taken: Taken, arm: str, against: str = ALONE) -> Ratio | None:
    """Over all micro-batches of all runs."""
    ours, alone = ([x for run in taken.of(a) for x in run.durations_s] for a in (arm, against))
    return percentile_ratio(ours, alone, 0.99) if ours and alone else None


def _gap_figures(gaps: Sequence[Gap]) -> dict[str, float]:
    """Percentiles of each step, and of all until the next launch (``node``)."""
    found: dict[str, float] = {"count": len(gaps)}
    for step in STEPS:
        values_ms = [getattr(gap, f"{step}_s") * 1000 for gap in gaps]
        for share in (50, 95):
            found[f"{step}_p{share}_ms"] = round(percentile(values_ms, share / 100), 2)
    return found


def _arm_figures(runs: Sequence[Run], plan: Plan) -> dict[str, Any]:
    """Medians over the runs; of micro-batches, over all of them."""

    def middle(value: Any) -> float:
        return round(common.median([value(run) for run in runs]), 4)

    durations_s = [x for run in runs for x in run.durations_s]
    delays_s = [x for run in runs for x in run.delays_s]
    makespans_s = [run.makespan_s for run in runs if run.makespan_s is not None]
    cores = os.cpu_count() or 1
    return {
        "utilisation": middle(lambda run: _slot_s(run) / plan.capacity),
        "utilisation_stream": middle(lambda run: run.stream.slot_s / run.window_s / plan.capacity),
        "utilisation_batch": middle(lambda run: run.batch.slot_s / run.window_s / plan.capacity),
        "wasted": middle(
            lambda run: (run.stream.wasted_s + run.batch.wasted_s) / run.window_s / plan.capacity
        ),
        "task_cores": middle(_cpu_s),
        "machine_busy": middle(lambda run: run.machine_cpu_s / run.window_s / cores),
        "machine_busy_runs": [round(x.machine_cpu_s / x.window_s / cores, 4) for x in runs],
        "micro_batches": len(durations_s),
        "stream_p50_s": round(percentile(durations_s, 0.5), 3) if durations_s else None,
        "stream_p99_s": round(percentile(durations_s, 0.99), 3) if durations_s else None,
        "late": sum(run.late for run in runs),
        "delay_p50_s": round(percentile(delays_s, 0.5), 3) if delays_s else None,
        "delay_p99_s": round(percentile(delays_s, 0.99), 3) if delays_s else None,
        "jobs_ended": sum(len(run.jobs) for run in runs),
        "makespan_s": round(common.median(makespans_s), 1) if makespans_s else None,
    }


def document(taken: Taken, plan: Plan) -> dict[str, Any]:
    """Everything as one JSON object; the names on top are for comparison over time."""
    ratios: dict[str, Ratio | None] = {}
    for manager in ("hrm", "standalone"):
        prefix = "" if manager == "hrm" else f"{manager}_"
        ratios[f"{prefix}utilisation_ratio"] = _ratio(taken, manager, _slot_s)
        ratios[f"{prefix}cpu_time_ratio"] = _ratio(taken, manager, _cpu_s)
        ratios[f"{prefix}batch_makespan_ratio"] = _ratio(taken, manager, lambda run: run.makespan_s)
        ratios[f"{prefix}stream_p99_ratio"] = _p99(taken, f"{manager}-shared")
    gaps = {queues: _gap_figures(each) for queues, each in taken.gaps.items() if each}
    failed = taken.failures + [
        f"{arm}: {text}" for arm, runs in taken.runs.items() for run in runs
        for text in run.complaints
    ]  # fmt: skip
    return {
        "benchmark": "sharing",
        **{name: ratio and round(ratio.value, 4) for name, ratio in ratios.items()},
        "task_stretch": stretch(taken.of("hrm-shared"), taken.of("hrm-split")),
        "feedback_gap_ms": gaps[True]["node_p50_ms"] if True in gaps else None,
        "feedback_gap_no_queue_ms": gaps[False]["node_p50_ms"] if False in gaps else None,
        "feedback": {"queues" if key else "no_queues": each for key, each in gaps.items()},
        "answers_right": not failed,
        "failures": failed,
        "targets": TARGETS,
        "intervals": {name: ratio and ratio.as_json() for name, ratio in ratios.items()},
        "arms": {arm: _arm_figures(runs, plan) for arm, runs in taken.runs.items() if runs},
        "plan": asdict(plan),
        "runs": {arm: [asdict(run) for run in runs] for arm, runs in taken.runs.items()},
    }


def report(document: dict[str, Any]) -> str:
    """The Markdown below the head of the results file."""
    parts = [_about(document["plan"]), f"## Shared over split\n\n{_ratio_table(document)}"]
    parts.append(f"## Each arm\n\n{_arm_table(document)}")
    parts.append(_reading(document))
    if document["feedback"]:
        parts.append(f"## Between two containers at a node\n\n{_gap_table(document)}")
    parts.append(f"## Answers\n\n{_answers(document)}")
    return "\n\n".join(parts)


def _about(plan: dict[str, Any]) -> str:
    executors = plan["nodes"] * plan["executors_per_node"]
    slots = executors * plan["slots"]
    return (
        f"{plan['nodes']} nodes, {executors} executors of {plan['slots']} slots: {slots} slots, on "
        "the machine's cores above. Slots are not cores: tasks read from a paced store and mostly "
        f"wait for it (batch {plan['batch_bytes_per_s'] // 1024} KiB/s a task, a file of the "
        f"stream {plan['file_s']:g} s). Drivers and daemons run on the same cores. The stream "
        f"(Top-K, a trigger every {plan['trigger_s']:g} s) needs one executor at its base load and "
        f"half of the machines at its peak, and requests and releases executors as its load "
        f"changes; of batch (word count, parts of TPC-H) {plan['backlog']} jobs of "
        f"{plan['batch_executors']} executors are submitted at any time. *Shared*: one pool; "
        "*split*: one node for the stream, one for batch, each a cluster of its own. The same "
        "jobs, files and times in all arms; the window is "
        f"{plan['window_s']:g} s, {plan['runs']} runs of each, interleaved."
    )


def _ratio_table(document: dict[str, Any]) -> str:
    words = {
        "utilisation_ratio": "slot time of tasks that succeeded",
        "cpu_time_ratio": "processor time of these tasks",
        "batch_makespan_ratio": f"until {document['plan']['jobs_counted']} batch jobs have ended",
        "stream_p99_ratio": f"{_longest(document)}, shared over HRM's stream alone",
    }
    rows: list[list[object]] = []
    for name, text in words.items():
        ratios = [document["intervals"][f"{prefix}{name}"] for prefix in ("", "standalone_")]
        cells = [None if ratio is None else shown_ratio(ratio) for ratio in ratios]
        rows.append([text, *cells, _verdict(name, ratios[0])])
    shown = common.table(["ratio", "HRM", "Standalone", "target for HRM"], rows)
    return f"{shown}\n\n{_brackets(document)}"


def shown_ratio(ratio: dict[str, float]) -> str:
    if ratio["low"] == ratio["high"]:
        return f"{ratio['value']:.3f}"
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _verdict(name: str, ratio: dict[str, float] | None) -> str:
    if name not in TARGETS:
        return ""
    most = name != "utilisation_ratio"
    text = f"{'≤' if most else '≥'} {TARGETS[name]:g}"
    if ratio is None:
        return text
    met = ratio["value"] <= TARGETS[name] if most else ratio["value"] >= TARGETS[name]
    within = ratio["low"] < TARGETS[name] < ratio["high"]
    return f"{text}: {'met' if met else 'missed'}{', within the brackets' if within else ''}"


def is_greatest(count: int, share: float) -> bool:
    """Whether the percentile of so many is the greatest of them (nearest rank)."""
    return math.ceil(share * count) >= count


def _micro_batches(document: dict[str, Any]) -> list[int]:
    return sorted({each["micro_batches"] for each in document["arms"].values()} - {0})


def _longest(document: dict[str, Any]) -> str:
    """What the p99 of so many micro-batches is."""
    counts = _micro_batches(document)
    if not counts or not is_greatest(counts[-1], 0.99):
        return "p99 of micro-batches"
    most = f"{counts[-1]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"longest micro-batch of {most}"


def _brackets(document: dict[str, Any]) -> str:
    """What stands in the brackets of the ratios: no more than so few runs can give."""
    runs = document["plan"]["runs"]
    of_runs = {
        1: "One run of each arm, so nothing says how much runs differ.",
        2: "In brackets, of two runs of each arm: the least and the greatest ratio of a run of "
        "one to a run of the other. That is no 95 % interval.",
    }.get(runs, f"In brackets: bootstrap intervals over {runs} runs of each arm{common.few(runs)}.")
    counts = _micro_batches(document)
    greatest = (
        f" The p99 of {counts[-1]} micro-batches or fewer is their greatest; in brackets there: "
        "the middle 95 % of what drawing micro-batches again gives, as if each were independent "
        "of the one before."
        if counts and is_greatest(counts[-1], 0.99)
        else ""
    )
    peer = (
        " Standalone's stream is compared with HRM's alone, too: it was not run without batch."
        if document["intervals"]["standalone_stream_p99_ratio"]
        else ""
    )
    return f"{of_runs}{greatest}{peer}{_disturbed(document)}"


def _disturbed(document: dict[str, Any]) -> str:
    """Names arms in whose runs other things kept the machine busy."""
    busy = {arm: each.get("machine_busy_runs", []) for arm, each in document["arms"].items()}
    loud = {arm: runs for arm, runs in busy.items() if any(x > _DISTURBED for x in runs)}
    if not loud:
        return ""
    named = "; ".join(f"{arm} {', '.join(f'{x:.2f}' for x in runs)}" for arm, runs in loud.items())
    quiet = [x for arm, runs in busy.items() if arm not in loud for x in runs]
    others = f" (in all others {min(quiet):.2f} to {max(quiet):.2f})" if quiet else ""
    return (
        f" **Disturbed:** parts of the window for which the machine was busy, run by run: {named}"
        f"{others}. Ratios with such an arm are as much of what else ran as of the manager."
    )


def _arm_table(document: dict[str, Any]) -> str:
    arms, longest = document["arms"], _longest(document).startswith("longest")
    columns = {
        "utilisation": "slots used", "utilisation_stream": "by the stream",
        "utilisation_batch": "by batch", "wasted": "lost", "task_cores": "cores in tasks",
        "machine_busy": "machine busy", "stream_p50_s": "micro-batch p50, s",
        "stream_p99_s": "longest, s" if longest else "p99, s",
        "late": "late", "micro_batches": "of",
        "delay_p99_s": "file to result p99, s", "makespan_s": "makespan, s",
    }  # fmt: skip
    rows = [[arm, *(each[column] for column in columns)] for arm, each in arms.items()]
    return common.table(["arm", *columns.values()], rows)


def _reading(document: dict[str, Any]) -> str:
    stretched = document["task_stretch"]
    cost = "" if stretched is None else (
        f" The same batch jobs cost {stretched:.2f} times the slot time on HRM's shared pool: that "
        "much of the ratio of slot time is competition for cores, or work done twice after a "
        "preemption whose tasks still succeeded."
    )  # fmt: skip
    return (
        "*Slots used*: time that tasks which succeeded held a slot in the window, over slots and "
        "time; *lost*: the same of attempts that did not, as a part of the pool, too. *Late*: "
        "micro-batches longer than the trigger's interval. *Machine busy*: all processes of the "
        "machine." + cost
    )


def _gap_table(document: dict[str, Any]) -> str:
    words = {
        "node": "one gone until the next is launched",
        "decide": "of it: until the node starts the next",
        "launch": "until the launch begins",
        "start": "then: until its process runs",
    }
    kinds = [kind for kind in ("queues", "no_queues") if kind in document["feedback"]]
    rows = [
        [text, *(document["feedback"][k][f"{step}_{p}_ms"] for k in kinds for p in ("p50", "p95"))]
        for step, text in words.items()
    ]
    counts = {k: document["feedback"][k]["count"] for k in kinds}
    header = [""]
    for kind, count in counts.items():
        name = kind.replace("_", " ")
        upper = "greatest" if is_greatest(count, 0.95) else "p95"
        header += [f"{name}: p50, ms", f"{name}: {upper}, ms"]
    ends = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items())
    gap_ms, target_ms = document["feedback_gap_ms"], TARGETS["feedback_gap_ms"]
    missed = "" if gap_ms is None else (
        f" The target of {target_ms:g} ms is {'met' if gap_ms <= target_ms else 'missed'}: with "
        f"queues {gap_ms:.1f} ms (p50)."
    )  # fmt: skip
    text = (
        "From the end of a container's last process on, by the node's own records: with containers "
        "waiting in the unit's queue, and with none allowed to (`waiting_limit` 0), where the end "
        "travels to the master and a claim back. The second line contains that the node learns of "
        "the end, so what queues save is its difference; where one waits, "
        f"the end and the next start are one decision of the node. Ends: {ends}.{missed}"
    )
    return f"{text}\n\n{common.table(header, rows)}"


def _answers(document: dict[str, Any]) -> str:
    if document["answers_right"]:
        return (
            "All right: the stream's Top-K after every micro-batch, and in the end over all files; "
            "every batch job that ended, against a Python Counter and DuckDB."
        )
    return "\n".join(f"- {text.splitlines()[0]}" for text in document["failures"])
