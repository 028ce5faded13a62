"""The runs of all arms as one JSON object, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks import common
from benchmarks.common import Ratio
from benchmarks.one_pool.arms import Run
from benchmarks.one_pool.plan import ALONE, CHAOS, HALVES, POOL, Plan, bound_ratio
from benchmarks.scheduling.cells import percentile
from benchmarks.sharing.measures import percentile_ratio
from benchmarks.sharing.report import is_greatest, shown_ratio

__all__ = ["Taken", "document", "report"]

_COUNTS = ("wrong", "failed", "lost", "twice")
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(slots=True)
class Taken:
    """Everything measured: arm → runs, and runs that failed, in words."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def of(self, arm: str) -> list[Run]:
        return self.runs.get(arm, [])


def _known(runs: Sequence[Run], value: Callable[[Run], float | None]) -> list[float]:
    return [x for run in runs if (x := value(run)) is not None]


def _ratio(
    taken: Taken, above: str, below: str, value: Callable[[Run], float | None]
) -> Ratio | None:
    ours, peers = _known(taken.of(above), value), _known(taken.of(below), value)
    return common.ratio_of_medians(ours, peers) if ours and peers else None


def _ratios(taken: Taken, plan: Plan) -> dict[str, Ratio | None]:
    ours, alone = ([x for run in taken.of(arm) for x in run.durations_s] for arm in (POOL, ALONE))
    p99 = percentile_ratio(ours, alone, 0.99) if ours and alone else None
    return {
        "makespan_ratio": _ratio(taken, HALVES, POOL, lambda run: run.makespan_s),
        "utilisation_ratio": _ratio(
            taken, POOL, HALVES, lambda run: run.utilisation(plan.capacity)
        ),
        "backlog_utilisation_ratio": _ratio(
            taken, POOL, HALVES, lambda run: run.backlog_utilisation(plan.capacity)
        ),
        "stream_p99_ratio": p99,
    }


def _bound(taken: Taken) -> float | None:
    """By what halves took, where either kind has its own slots: what any division could gain."""
    works = taken.of(HALVES)
    if not works or not all(run.slot_s for run in works):
        return None
    spark_s, pipeline_s = (
        common.median([getattr(run, name) for run in works])
        for name in ("spark_slot_s", "pipeline_slot_s")
    )
    return bound_ratio(spark_s, pipeline_s)


def _arm_figures(runs: Sequence[Run], plan: Plan) -> dict[str, Any]:
    """Medians over the runs; of micro-batches, over all of them; sums of what went wrong."""

    def middle(value: Callable[[Run], float | None]) -> float | None:
        known = _known(runs, value)
        return round(common.median(known), 4) if known else None

    durations_s = [x for run in runs for x in run.durations_s]

    def slowest(kind: str) -> float | None:
        return middle(lambda run: run.response_p95_s.get(kind))

    return {
        "makespan_s": middle(lambda run: run.makespan_s),
        "jobs_s": middle(lambda run: max(run.jobs_s, default=None)),
        "tasks_s": middle(lambda run: run.tasks_s),
        "utilisation": middle(lambda run: run.utilisation(plan.capacity)),
        "backlog_utilisation": middle(lambda run: run.backlog_utilisation(plan.capacity)),
        "backlog_s": middle(lambda run: run.backlog_s or None),
        "held_part": middle(lambda run: run.held_part),
        "spark_slot_s": middle(lambda run: run.spark_slot_s or None),
        "pipeline_slot_s": middle(lambda run: run.pipeline_slot_s or None),
        **{
            f"stream_{name}_s": round(percentile(durations_s, share), 3) if durations_s else None
            for name, share in _SHARES.items()
        },
        "micro_batches": len(durations_s),
        "late": sum(run.late for run in runs),
        **{f"{kind}_task_p95_s": slowest(kind) for kind in ("batch", "stream")},
        "tasks": sum(run.tasks for run in runs),
        "again": sum(run.again for run in runs),
        "preempted": {
            kind: [run.preempted.get(kind, 0) for run in runs]
            for kind in sorted({kind for run in runs for kind in run.preempted})
        },
        "machine_busy_runs": [round(run.machine_busy, 4) for run in runs],
        **{name: sum(getattr(run, name) for run in runs) for name in _COUNTS},
    }


def document(taken: Taken, plan: Plan) -> dict[str, Any]:
    """Everything as one JSON object; the names on top are for comparison over time."""
    ratios = _ratios(taken, plan)
    runs = [run for each in taken.runs.values() for run in each]
    failed = taken.failures + [f"{run.arm}: {text}" for run in runs for text in run.complaints]
    return {
        "benchmark": "one-pool",
        **{name: ratio and round(ratio.value, 4) for name, ratio in ratios.items()},
        "makespan_bound_ratio": (bound := _bound(taken)) and round(bound, 4),
        **{name: sum(getattr(run, name) for run in runs) for name in _COUNTS},
        "answers_right": not failed,
        "failures": failed,
        "intervals": {name: ratio and ratio.as_json() for name, ratio in ratios.items()},
        "arms": {arm: _arm_figures(each, plan) for arm, each in taken.runs.items() if each},
        "plan": asdict(plan),
        "capacity": plan.capacity,
        "job_names": plan.job_names,
        "runs": {arm: [asdict(run) for run in each] for arm, each in taken.runs.items()},
    }


def report(document: dict[str, Any]) -> str:
    """The Markdown below the head of the results file."""
    parts = [
        _about(document),
        f"## One pool against two halves\n\n{_ratio_table(document)}",
        f"## Each arm\n\n{_arm_table(document)}",
        f"## The stream and the tasks\n\n{_latency_table(document)}",
    ]
    if document["runs"].get(CHAOS):
        parts.append(f"## Killed midway\n\n{_chaos(document)}")
    parts.append(f"## Results\n\n{_results(document)}")
    return "\n\n".join(parts)


def _about(document: dict[str, Any]) -> str:
    plan = document["plan"]
    offer = plan["offer"]
    return (
        f"{offer['nodes']} nodes, {document['capacity']} slots, on the machine's cores above. "
        "Slots are not cores: Spark tasks read from a paced store, and they and steps of pipelines "
        f"mostly wait. At once: the Spark jobs {', '.join(document['job_names'])}, "
        f"{offer['backlog']} at a time, each of {offer['batch_executors']} executors of "
        f"{offer['slots']} slots; {plan['tasks']} pipeline tasks of one to three steps of "
        f"{plan['step_s_min']:g} to {plan['step_s_max']:g} s, every {plan['stream_every']}th of "
        "class stream; and a structured-streaming Top-K whose load rises and falls once in "
        f"{offer['window_s']:g} s. *pool*: one pool, default settings. *halves*: half of the nodes "
        "for Spark, half for pipelines, by labels. *alone*: the stream by itself. "
        f"{offer['runs']} runs of each, interleaved; medians."
    )


def _ratio_table(document: dict[str, Any]) -> str:
    words = {
        "makespan_ratio": "makespan, halves over pool",
        "utilisation_ratio": "slots used until the last end, pool over halves",
        "backlog_utilisation_ratio": "slots used while work waits, pool over halves",
        "stream_p99_ratio": f"{_longest(document)}, pool over alone",
    }
    rows: list[list[object]] = []
    for name, text in words.items():
        ratio = document["intervals"][name]
        rows.append([text, None if ratio is None else shown_ratio(ratio)])
    shown = common.table(["ratio", ""], rows)
    bound = document["makespan_bound_ratio"]
    headroom = "" if bound is None else (
        f" The work of halves, on any slot and without a gap, would give a makespan's ratio of "
        f"{bound:.2f}."
    )  # fmt: skip
    runs = document["plan"]["offer"]["runs"]
    brackets = {
        1: "One run of each arm, so nothing says how much runs differ.",
        2: "In brackets: the least and the greatest ratio of a run to a run, no 95 % interval.",
    }.get(runs, f"In brackets: bootstrap intervals over {runs} runs of each arm{common.few(runs)}.")
    return f"{shown}\n\n{brackets}{headroom}"


def _longest(document: dict[str, Any]) -> str:
    counts = [each["micro_batches"] for each in document["arms"].values()]
    most = max(counts, default=0)
    return f"longest micro-batch of {most}" if is_greatest(most, 0.99) else "p99 of micro-batches"


def _arm_table(document: dict[str, Any]) -> str:
    columns = {
        "makespan_s": "makespan, s", "jobs_s": "last job, s", "tasks_s": "last task, s",
        "utilisation": "slots used", "backlog_utilisation": "while work waits",
        "backlog_s": "work waits, s", "spark_slot_s": "by Spark, slot s",
        "pipeline_slot_s": "by pipelines, slot s",
        "held_part": "cores held while a container waits",
    }  # fmt: skip
    rows = []
    for arm, each in document["arms"].items():
        lost = "; ".join(
            f"{name} {', '.join(map(str, counts))}" for name, counts in each["preempted"].items()
        )
        busy = ", ".join(f"{x:.2f}" for x in each["machine_busy_runs"])
        rows.append([arm, *(each[column] for column in columns), lost or "0", busy])
    header = ["arm", *columns.values(), "preempted, run by run", "machine busy"]
    return (
        f"{common.table(header, rows)}\n\n*Slots used*: time that Spark tasks which succeeded and "
        "steps of pipelines held a slot, over slots and time; what starts or idles in a slot does "
        "not use it. *Work waits*: a task of a submitted Spark stage, or a pipeline task that has "
        "not begun, waits for a slot. *Cores held while a container waits*: by containers, one of "
        "which had been requested for more than a second; a Spark job requests no more than its "
        "maximum."
    )


def _latency_table(document: dict[str, Any]) -> str:
    columns = {
        "stream_p50_s": "micro-batch p50, s", "stream_p95_s": "p95, s", "stream_p99_s": "p99, s",
        "late": "late", "micro_batches": "of", "stream_task_p95_s": "task of class stream p95, s",
        "batch_task_p95_s": "of class batch p95, s",
    }  # fmt: skip
    rows = [[arm, *(each[column] for column in columns)] for arm, each in document["arms"].items()]
    return (
        f"{common.table(['arm', *columns.values()], rows)}\n\nMicro-batches that began in the "
        "window; *late*: longer than the trigger's interval. Tasks: from submission to end."
    )


def _chaos(document: dict[str, Any]) -> str:
    lines = []
    for run in document["runs"][CHAOS]:
        for death in run["deaths"]:
            back = "not again" if death["back_s"] is None else (
                f"again after {death['back_s'] - death['died_s']:.1f} s"
            )  # fmt: skip
            at = f"SIGKILL {death['died_s']:.0f} s after the beginning"
            lines.append(f"- `{death['name']}`: {at}; started {back}")
    return "\n".join(lines)


def _results(document: dict[str, Any]) -> str:
    counts = ", ".join(f"{name} {document[name]}" for name in _COUNTS)
    tasks = sum(each["tasks"] for each in document["arms"].values())
    again = sum(each["again"] for each in document["arms"].values())
    counted = f"Of {tasks} pipeline tasks: {counts}; {again} were placed again."
    if document["answers_right"]:
        return (
            f"{counted} All right: every task against a count without HRM, the stream's Top-K "
            "after every micro-batch, every Spark job against a Python Counter and DuckDB."
        )
    return "\n".join([counted, "", *(f"- {text.splitlines()[0]}" for text in document["failures"])])
