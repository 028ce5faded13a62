"""The runs of all arms as one JSON object, and as Markdown.

Ratios are of HRM's elasticity over the other arm: below 1, it took less time. *Delivered*: the
first epoch after which a model is within a hundredth of its best accuracy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks import common
from benchmarks.elastic.arms import Run
from benchmarks.elastic.inputs import Expected
from benchmarks.elastic.plan import ARMS, ELASTIC, Plan

__all__ = ["Outcome", "document", "mean_executors", "report"]

_SLICES = 8
"""Columns of the table of executors over time."""


@dataclass(slots=True)
class Outcome:
    """Everything measured; ``expected``: by training, without Spark."""

    expected: dict[str, Expected]
    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def mean_executors(steps: Sequence[tuple[float, int]], begin_s: float, end_s: float) -> float:
    """Over that time, of (when, how many from then on)."""
    total = 0.0
    for (at_s, count), (next_s, _) in zip(steps, [*steps[1:], (end_s, 0)], strict=True):
        total += count * max(0.0, min(next_s, end_s) - max(at_s, begin_s))
    return total / (end_s - begin_s)


_MEASURES: dict[str, Callable[[Run], float]] = {
    "makespan_s": lambda run: run.makespan_s,
    "completion_s": lambda run: statistics.fmean(x.ended_s for x in run.trained),
    "delivered_s": lambda run: statistics.fmean(x.delivered_s for x in run.trained),
    "last_delivered_s": lambda run: max(x.delivered_s for x in run.trained),
}


def _arm(runs: Sequence[Run], plan: Plan) -> dict[str, Any]:
    names = [each.name for each in runs[0].trained]
    by_name = [{each.name: each for each in run.trained} for run in runs]
    found: dict[str, Any] = {}
    for name, measured in _MEASURES.items():
        values = [round(measured(run), 2) for run in runs]
        found[name], found[f"{name}_runs"] = round(common.median(values), 2), values
    found["ended_s"] = {n: round(common.median([x[n].ended_s for x in by_name]), 2) for n in names}
    found["slots_used"] = round(
        common.median(
            [sum(x.task_s for x in run.trained) / run.makespan_s / plan.slots for run in runs]
        ),
        4,
    )
    found["machine_busy_runs"] = [run.machine_busy for run in runs]
    return found


def document(outcome: Outcome, plan: Plan) -> dict[str, Any]:
    """Everything as one JSON object; the names on top are for comparison over time."""
    arms = {name: _arm(runs, plan) for name, runs in outcome.runs.items() if runs}
    ratios = {
        f"{measure.removesuffix('_s')}_over_{arm}": common.ratio_of_medians(
            arms[ELASTIC][f"{measure}_runs"], arms[arm][f"{measure}_runs"]
        )
        for arm in arms
        if arm != ELASTIC and ELASTIC in arms
        for measure in _MEASURES
    }
    failed = outcome.failures + [
        f"{arm}, run {number}: {text}"
        for arm, runs in outcome.runs.items()
        for number, run in enumerate(runs, 1)
        for each in run.trained
        for text in each.complaints
    ]
    return {
        "benchmark": "elastic",
        **{name: round(ratio.value, 4) for name, ratio in ratios.items()},
        "answers_right": not failed,
        "failures": failed,
        "intervals": {name: ratio.as_json() for name, ratio in ratios.items()},
        "arms": arms,
        "about": {name: ARMS[name].about for name in arms},
        "models": {
            name: {
                "accuracy": round(each.final, 4),
                "epochs": len(each.accuracies),
                "gradient_ms": each.gradient_ms,
            }
            for name, each in outcome.expected.items()
        },
        "plan": asdict(plan),
        "runs": {arm: [asdict(run) for run in runs] for arm, runs in outcome.runs.items()},
    }


def report(found: dict[str, Any], plot: str | None) -> str:
    """The Markdown below the head of the results file; ``plot``: the name of its file."""
    parts = [_about(found), f"## Times\n\n{_times(found)}"]
    if found["intervals"]:
        parts.append(f"## HRM's elasticity over the others\n\n{_ratios(found)}")
    if found["arms"]:
        parts.append(f"## Executors over time\n\n{_executors(found, plot)}")
    parts.append(f"## Models\n\n{_models(found)}")
    return "\n\n".join(parts)


def _about(found: dict[str, Any]) -> str:
    plan = found["plan"]
    slots = plan["nodes"] * plan["slots_per_node"]
    held = ", ".join(f"{x['name']} {x['device_s']:g} s" for x in plan["trainings"])
    slowest_ms = max(each["gradient_ms"] for each in found["models"].values())
    return (
        f"{plan['nodes']} nodes of {plan['slots_per_node']} slots on one machine; three "
        f"applications of PyTorch, each in a queue that is guaranteed a third of the {slots} "
        f"slots. An epoch is one Spark job of {plan['tasks']} tasks, each with the gradient of "
        f"{plan['rows']} rows. "
        f"**The gradients are computed, in {slowest_ms:.1f} ms at most; the time that a task "
        f"holds its slot is emulated device time: a wait, {held} for each "
        "task.** So slots, not this machine's cores, are what is short. An application ends after "
        f"{plan['patience']} epochs without {plan['better']:g} more of accuracy, or after "
        f"{max(x['epochs'] for x in plan['trainings'])} epochs, in all arms alike. All begin "
        "at once, when each has a third of the slots. Each run has a new cluster; arms are "
        f"interleaved. Medians, and bootstrap intervals over {plan['runs']} runs"
        f"{common.few(plan['runs'])}."
    )


def _times(found: dict[str, Any]) -> str:
    header = [
        "arm", "all have ended, s (runs)", "mean end, s",
        *(f"{name} ends, s" for name in found["models"]),
        "mean delivered, s", "last delivered, s", "slots used by tasks", "machine busy",
    ]  # fmt: skip
    rows: list[list[object]] = []
    for arm, each in found["arms"].items():
        runs = ", ".join(f"{x:.1f}" for x in each["makespan_s_runs"])
        times = [each["completion_s"], *each["ended_s"].values()]
        times += [each["delivered_s"], each["last_delivered_s"]]
        rows.append(
            [
                f"`{arm}`: {found['about'][arm]}", f"{each['makespan_s']:.1f} ({runs})",
                *(f"{x:.1f}" for x in times), f"{each['slots_used']:.0%}",
                ", ".join(f"{x:.2f}" for x in each["machine_busy_runs"]),
            ]
        )  # fmt: skip
    return (
        f"{common.table(header, rows)}\n\nDelivered: the model's accuracy has come within a "
        "hundredth of its best."
    )


def _ratios(found: dict[str, Any]) -> str:
    shown = {
        "makespan": "all have ended",
        "completion": "mean end",
        "delivered": "mean delivered",
        "last_delivered": "last delivered",
    }
    others = [arm for arm in found["arms"] if arm != ELASTIC]
    rows: list[list[object]] = []
    for measure, label in shown.items():
        each = [found["intervals"][f"{measure}_over_{arm}"] for arm in others]
        rows.append([label, *(f"{x['value']:.3f} [{x['low']:.3f}, {x['high']:.3f}]" for x in each)])
    return common.table(["", *(f"over `{arm}`" for arm in others)], rows)


def _executors(found: dict[str, Any], plot: str | None) -> str:
    rows: list[list[object]] = []
    for arm, runs in found["runs"].items():
        run = runs[0]
        end_s = max(each["ended_s"] for each in run["trained"])
        for each in run["trained"]:
            means = [
                mean_executors(each["executors"], end_s * i / _SLICES, end_s * (i + 1) / _SLICES)
                for i in range(_SLICES)
            ]
            rows.append([arm, each["name"], *(f"{x:.1f}" for x in means)])
    header = ["arm", "training", *(f"{i + 1}/{_SLICES}" for i in range(_SLICES))]
    text = (
        "Registered executors in each arm's first run, the mean of each eighth of its time.\n\n"
        f"{common.table(header, rows)}"
    )
    return text if plot is None else f"![executors over time]({plot})\n\n{text}"


def _models(found: dict[str, Any]) -> str:
    rows = [
        [name, each["epochs"], f"{each['accuracy']:.4f}", f"{each['gradient_ms']:.1f}"]
        for name, each in found["models"].items()
    ]
    header = ["training", "epochs", "accuracy", "gradient of a task, ms"]
    right = (
        "In every run of every arm, each epoch's accuracy was what one process without Spark "
        "computes, to the last digit."
        if found["answers_right"]
        else "\n".join(f"- {text.splitlines()[0]}" for text in found["failures"])
    )
    return f"{common.table(header, rows)}\n\n{right}"
