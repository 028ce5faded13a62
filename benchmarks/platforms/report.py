"""The runs of all arms as one JSON object, and as Markdown.

A tenant's *normalised throughput* is what it did together, in tasks a second from the beginning of
its jobs that count to their end, over what it does alone with as many executors on the platform
that is faster for it. *Fairness* is 1 less the coefficient of variation of the tenants' normalised
throughputs (ddof 0), as in the model of ``benchmarks.fairness``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.platforms.arms import Alone, Together
from benchmarks.platforms.plan import ARMS, FAST, SIMPLE, SLOW, Plan

__all__ = ["TARGETS", "Outcome", "fairness", "normalised", "outcome_document", "outcome_report"]

TARGETS = {"fairness": 0.9, "makespan_ratio": 1.0}
"""Fairness is to be above, the makespan over that of simple fairness below."""


@dataclass(slots=True)
class Outcome:
    """Everything measured: tenants alone, with their part of the slots; with other numbers of slots
    on the fast platform; together, by arm."""

    alone: list[Alone] = field(default_factory=list)
    crowds: list[Alone] = field(default_factory=list)
    together: dict[str, list[Together]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    steps_per_s: float = 0.0

    def ideal_per_s(self, tenant: str) -> float:
        """Tasks a second alone, on the platform that is faster for it; the median where it has run
        there several times."""
        found: dict[str, list[float]] = {}
        for each in self.alone:
            if each.run.tenant == tenant:
                found.setdefault(each.platform, []).append(each.run.tasks_per_s)
        return max(map(common.median, found.values()))


def normalised(outcome: Outcome, together: Together) -> dict[str, float]:
    """Each tenant's throughput over its ideal."""
    return {x.tenant: x.tasks_per_s / outcome.ideal_per_s(x.tenant) for x in together.runs}


def fairness(throughputs: Sequence[float]) -> float:
    """1 less the coefficient of variation."""
    return 1.0 - float(np.std(throughputs)) / float(np.mean(throughputs))


def _arm_figures(outcome: Outcome, runs: Sequence[Together]) -> dict[str, Any]:
    each = [normalised(outcome, run) for run in runs]
    fairnesses = [fairness(list(x.values())) for x in each]
    makespans_s = [run.makespan_s for run in runs]
    parts: dict[str, dict[str, float]] = {}
    times: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for tenant in run.runs:
            for platform, tasks in tenant.by_platform.items():
                of_tenant = parts.setdefault(tenant.tenant, {})
                part = tasks.tasks / tenant.tasks / len(runs)
                of_tenant[platform] = of_tenant.get(platform, 0.0) + part
                times.setdefault(tenant.tenant, {}).setdefault(platform, []).append(tasks.mean_s)
    return {
        "fairness": round(common.median(fairnesses), 4),
        "fairness_runs": [round(x, 4) for x in fairnesses],
        "makespan_s": round(common.median(makespans_s), 2),
        "makespan_s_runs": [round(x, 2) for x in makespans_s],
        "throughput": {name: round(common.median([x[name] for x in each]), 4) for name in each[0]},
        "throughput_runs": [{name: round(x, 4) for name, x in one.items()} for one in each],
        "tasks_by_platform": {
            tenant: {platform: round(part, 4) for platform, part in of_tenant.items()}
            for tenant, of_tenant in parts.items()
        },
        "task_s": {
            tenant: {platform: round(common.median(x), 3) for platform, x in of_tenant.items()}
            for tenant, of_tenant in times.items()
        },
        "preempted_runs": [list(run.preempted) for run in runs],
        "machine_busy_runs": [run.machine_busy for run in runs],
    }


def outcome_document(outcome: Outcome, plan: Plan) -> dict[str, Any]:
    """Everything as one JSON object; the names on top are for comparison over time."""
    arms = {
        arm: _arm_figures(outcome, runs)
        for arm, runs in outcome.together.items()
        if runs and outcome.alone
    }
    ratios = {
        arm: common.ratio_of_medians(each["makespan_s_runs"], arms[SIMPLE]["makespan_s_runs"])
        for arm, each in arms.items()
        if SIMPLE in arms and arm != SIMPLE
    }
    failed = outcome.failures + [
        text
        for run in (
            *(x.run for x in (*outcome.alone, *outcome.crowds)),
            *(x for each in outcome.together.values() for run in each for x in run.runs),
        )
        for text in run.complaints
    ]
    return {
        "benchmark": "platforms",
        **{f"{arm}_fairness": each["fairness"] for arm, each in arms.items()},
        **{f"{arm}_makespan_ratio": round(ratio.value, 4) for arm, ratio in ratios.items()},
        "targets": TARGETS,
        "answers_right": not failed,
        "failures": failed,
        "intervals": {f"{arm}_makespan_ratio": x.as_json() for arm, x in ratios.items()},
        "alone": [_alone(each) for each in outcome.alone],
        "crowds": [_alone(each) for each in outcome.crowds],
        "arms": arms,
        "divisions": {arm: asdict(division) for arm, division in ARMS.items()},
        "steps_per_s": round(outcome.steps_per_s),
        "plan": asdict(plan),
        "runs": {arm: [asdict(run) for run in runs] for arm, runs in outcome.together.items()},
    }


def _alone(each: Alone) -> dict[str, Any]:
    tasks = each.run.by_platform.get(each.platform)
    return {
        "tenant": each.run.tenant,
        "platform": each.platform,
        "executors": each.executors,
        "task_s": None if tasks is None else tasks.mean_s,
        "tasks_per_s": round(each.run.tasks_per_s, 4),
        "machine_busy": each.machine_busy,
    }


def outcome_report(document: dict[str, Any]) -> str:
    """The Markdown below the head of the results file."""
    parts = [_about(document["plan"])]
    if document["arms"]:
        parts.append(f"## Together\n\n{_arm_table(document)}")
        parts.append(f"## Where tasks ran\n\n{_place_table(document)}")
    parts.append(f"## Alone\n\n{_alone_table(document)}")
    if document["crowds"]:
        parts.append(f"## Does the machine bound the fast platform?\n\n{_crowd_table(document)}")
    parts.append(f"## Answers\n\n{_results(document)}")
    return "\n\n".join(parts)


def _about(plan: dict[str, Any]) -> str:
    tenants = "; ".join(
        f"*{each['name']}* {each['wait_s']:g} s of waiting, {each['cpu_s'] * 1000:g} ms of "
        "computing"
        for each in plan["tenants"]
    )
    executors = 2 * plan["slots"] // len(plan["tenants"])
    return (
        f"Two nodes of {plan['slots']} slots, each slot an executor. On the slow one the kernel "
        f"gives each container {plan['quota_cores']:g} cores once it has started; on the fast one "
        f"nothing bounds it. A task of each tenant: {tenants}. Each tenant has a queue that is "
        f"guaranteed a third, and an application of {executors} executors: {plan['jobs']} jobs of "
        f"{plan['tasks']} tasks count. Before that each tenant runs small jobs on both platforms "
        f"for {plan['warm_up_s']:g} s, where labels put it, and without labels for "
        f"{plan['settle_s']:g} s, while shares find their platforms. Each run has a new "
        f"cluster; arms are interleaved, {plan['runs']} runs of each."
    )


def _arm_table(document: dict[str, Any]) -> str:
    tenants = [each["name"] for each in document["plan"]["tenants"]]
    rows: list[list[object]] = []
    for arm, each in document["arms"].items():
        division = document["divisions"][arm]
        ratio = document["intervals"].get(f"{arm}_makespan_ratio")
        measure = "" if arm == SIMPLE else f", {division['measure']}"
        runs = ", ".join(f"{x:.3f}" for x in each["fairness_runs"])
        shown = (
            None
            if ratio is None
            else f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
        )
        preempted = ", ".join(f"{a}+{b}" for a, b in each["preempted_runs"])
        busy = ", ".join(f"{x:.2f}" for x in each["machine_busy_runs"])
        rows.append(
            [
                f"`{division['policy']}`{measure}", f"{each['fairness']:.3f} ({runs})",
                each["makespan_s"], shown, *(each["throughput"][x] for x in tenants),
                preempted, busy,
            ]
        )  # fmt: skip
    header = [
        "division", "fairness (runs)", "makespan, s", "over simple [95 %]",
        *(f"{x}, of its ideal" for x in tenants),
        "preempted before + in jobs that count", "machine busy",
    ]  # fmt: skip
    return (
        f"{common.table(header, rows)}\n\nMedians over the runs. Targets for affinity round robin: "
        f"fairness above {TARGETS['fairness']:g}, a makespan below that of simple fairness."
    )


def _place_table(document: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for arm, each in document["arms"].items():
        for tenant, parts in each["tasks_by_platform"].items():
            times = each["task_s"][tenant]
            rows.append(
                [
                    arm, tenant,
                    *(f"{parts.get(x, 0.0):.0%}" for x in (FAST, SLOW)),
                    *(times.get(x) for x in (FAST, SLOW)),
                ]
            )  # fmt: skip
    header = ["arm", "tenant", "tasks on fast", "on slow", "a task on fast, s", "on slow, s"]
    return common.table(header, rows)


def _alone_table(document: dict[str, Any]) -> str:
    header = ["tenant", "platform", "executors", "a task, s", "tasks a second", "machine busy"]
    columns = ("tenant", "platform", "executors", "task_s", "tasks_per_s", "machine_busy")
    return common.table(header, [[x[key] for key in columns] for x in document["alone"]])


def _crowd_table(document: dict[str, Any]) -> str:
    header = ["tenant", "slots at work", "a task, s", "tasks a second", "machine busy"]
    columns = ("tenant", "executors", "task_s", "tasks_per_s", "machine_busy")
    return common.table(header, [[x[key] for key in columns] for x in document["crowds"]])


def _results(document: dict[str, Any]) -> str:
    if document["answers_right"]:
        return "All right: the sum of every job against one computed without Spark."
    return "\n".join(f"- {text.splitlines()[0]}" for text in document["failures"])
