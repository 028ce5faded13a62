"""How ``hrm pipeline`` shows tasks, workers and results; what ``hrm app profile`` shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hrm.cli.console import one_line, plain, table
from hrm.text import shortened

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from hrm.pipelines.client.outcome import TaskResult
    from hrm.v1 import common_pb2, pipeline_pb2

__all__ = [
    "container_uses_view",
    "profiles_view",
    "result_document",
    "results_table",
    "tasks_table",
    "workers_table",
]

SHOWN_CHARACTERS = 60
USE_COLUMNS = 8
"""Of the parts of a run's life; each shows the greatest of those in it."""
_USES = (
    ("time, %", "gpu", 100.0),
    ("memory, MiB", "memory_mib", 1.0),
    ("cores, %", "cores", 100.0),
    ("PCIe, %", "pcie", 100.0),
)


def result_document(text: str, one: TaskResult) -> dict[str, Any]:
    """For JSON. ``value``: itself, if it consists of what JSON has; the ``path`` and ``size`` of a
    ``ResultFile``; None for anything else, of which ``value_repr`` is what Python prints."""
    document = asdict(replace(one, value=None))
    runs = [asdict(run) | {"device": run.device.value} for run in one.runs]
    return {"input": text, **document, **_value(one.value), "runs": runs}


def _value(value: Any) -> dict[str, Any]:
    from hrm.pipelines.client.result_file import ResultFile
    from hrm.pipelines.client.results import is_plain

    if isinstance(value, ResultFile):
        return {"value": {"path": str(value.path), "size": value.size}}
    return {"value": value} if is_plain(value) else {"value": None, "value_repr": _repr(value)}


def _repr(value: Any) -> str:
    """Of any class, so it may raise anything."""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"


def _shown(value: Any) -> str:
    """For a cell: truncated, but for a path, which is of use as a whole."""
    from hrm.pipelines.client.result_file import ResultFile

    if isinstance(value, ResultFile):
        return str(value.path)
    return shortened(one_line(_repr(value)), SHOWN_CHARACTERS)


def results_table(inputs: list[str], results: list[TaskResult]) -> Table:
    rows = table("input", "result", "node", "subtask", "on", ">waited s", ">ran s", "")
    for text, one in zip(inputs, results, strict=True):
        value = "failed" if one.error else _shown(one.value)
        rows.add_row(
            plain(text), plain(value), plain(one.node), "", "", "", f"{one.response_s:.2f}", ""
        )
        for run in one.runs:
            where = f"{run.device.value} {run.number}"
            outcome_text = "" if run.ok else plain(run.outcome)
            times = (f"{run.waited_s:.2f}", f"{run.ran_s:.2f}")
            rows.add_row("", "", "", plain(run.subtask), where, *times, outcome_text)
    return rows


def workers_table(response: pipeline_pb2.ListPipelineTasksResponse) -> Table:
    rows = table(
        "worker", "node", "cores free", "GPU", "tasks", ">expected wait s", ">P90", "state"
    )
    for node in response.nodes:
        capacity, load = node.capacity, node.load
        models = ", ".join(sorted({gpu.model for gpu in capacity.gpus}))
        rows.add_row(
            plain(capacity.node),
            plain(node.node),
            f"{load.free_cores} of {capacity.cores}",
            plain(models),
            str(node.tasks),
            f"{load.expected_wait_s:.1f}",
            f"{load.expected_wait_p90_s:.1f}" if load.expected_wait_p90_s else "",
            "away" if node.away else "",
        )
    rows.caption = f"policy {plain(response.policy)}" + (
        f", replaced {response.policy_faults} times because it failed"
        if response.policy_faults
        else ""
    )
    return rows


def tasks_table(tasks: Iterable[pipeline_pb2.PipelineTaskInfo]) -> Table:
    rows = table(
        "task", "pipeline", "user", "MB", "node", "attempt", "placed by", "steps by", "state"
    )
    for task in tasks:
        steps = sorted(task.runs_placed_by.items(), key=lambda item: (-item[1], item[0]))
        steps_by = ", ".join(f"{decided_by} {count}" for decided_by, count in steps)
        rows.add_row(
            plain(task.task_id), plain(task.pipeline), plain(task.user), f"{task.size_mb:.1f}",
            plain(task.node), str(task.attempt), plain(_by(task.placed_by, task.fallback)),
            plain(_by(steps_by, task.run_fallback)), plain(task.state),
        )  # fmt: skip
    return rows


def profiles_view(profiles: Iterable[pipeline_pb2.PipelineProfile]) -> Group:
    """What steps take, and below it the use of a GPU over their lives."""
    from rich.console import Group

    taken = table(
        *("kind", "input MB", "GPU", ">core s", ">core P90", ">core P99"),
        *(">GPU s", ">GPU P90", ">GPU P99"),
        *(">memory MiB", ">GPU MiB", ">GPU MiB mean", ">GPU ran out"),
    )
    eighths = [f">{part}/{USE_COLUMNS}" for part in range(1, USE_COLUMNS + 1)]
    used = table("kind", "input MB", "GPU", ">runs", "use of the GPU", *eighths)
    for one in profiles:
        where = (plain(one.row.kind), _sizes(one), plain(one.row.gpu_model))
        figures = (
            *(one.cpu_s, one.cpu_p90_s, one.cpu_p99_s, one.gpu_s, one.gpu_p90_s, one.gpu_p99_s),
            *(one.memory_mib, one.gpu_memory_mib, one.gpu_memory_mean_mib, one.out_of_gpu_memory),
        )
        digits = (2, 2, 2, 2, 2, 2, 0, 0, 0, 0)
        taken.add_row(
            *where, *(f"{x:,.{n}f}" if x else "" for x, n in zip(figures, digits, strict=True))
        )
        _add_use(used, (*where, str(one.gpu_use_runs)), one.gpu_use)
    return Group(taken, "", used) if used.rows else Group(taken)


def container_uses_view(uses: Iterable[common_pb2.ContainerGpuUse]) -> Table:
    """What containers of an application used of a GPU over their lives, by node."""
    eighths = [f">{part}/{USE_COLUMNS}" for part in range(1, USE_COLUMNS + 1)]
    rows = table("application", "node", "part", ">GPU MiB", ">runs", "use of the GPU", *eighths)
    for one in uses:
        part = f"{one.part}, profile {one.resource_profile_id}"
        first = (plain(one.application_name), plain(one.node), plain(part))
        _add_use(rows, (*first, f"{one.gpu_memory_mib:,}", f"{one.runs:,}"), one.use)
    return rows


def _add_use(rows: Table, first: tuple[str, ...], use: Sequence[common_pb2.GpuUsePart]) -> None:
    """One row for each resource, the first of them with what it is of; none without a use."""
    width = max(1, len(use) // USE_COLUMNS)
    parts = [use[n : n + width] for n in range(0, len(use), width)]
    for number, (name, field, scale) in enumerate(_USES if parts else ()):
        most = [max(getattr(part, field) for part in held) for held in parts]
        shown = first if number == 0 else ("",) * len(first)
        rows.add_row(*shown, name, *(f"{scale * value:,.0f}" for value in most))


def _sizes(profile: pipeline_pb2.PipelineProfile) -> str:
    if not profile.size_at_most_mb:
        return f"over {profile.size_above_mb:g}"
    return f"{profile.size_above_mb:g} to {profile.size_at_most_mb:g}"


def _by(decided_by: str, fallback: str) -> str:
    """The policy that decided, with the reason in a word if it replaced the learned one."""
    return f"{decided_by} ({fallback.partition(':')[0]})" if fallback else decided_by
