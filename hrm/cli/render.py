"""Tables for terminals, built from the messages of AdminService.

One function per view; each takes a protobuf message and returns something rich can print. Times are
ages ("3m12s"): a reader wants to know how long ago. ``--output json`` does not pass here, it shows
the message as protobuf's own JSON.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from hrm import text
from hrm.cli import console
from hrm.cli.console import plain
from hrm.core.vocabulary.model import WORKLOAD_PREFIX
from hrm.v1 import common_pb2

if TYPE_CHECKING:
    from hrm.v1 import admin_pb2, node_pb2, queues_pb2, submission_pb2

__all__ = [
    "age",
    "application_view",
    "applications_table",
    "class_name",
    "cluster_view",
    "delay",
    "ended_after",
    "explanation_view",
    "memory",
    "node_view",
    "nodes_table",
    "priority_text",
    "recovery_line",
    "submissions_table",
]

_HIDDEN = "only its user and operators see that"
NAME_SHOWN = 60
MESSAGE_SHOWN = 300
"""Characters of a name and a message in a list; what shows one thing alone shows them whole."""
_COLOURS = {
    "alive": "green", "running": "green", "succeeded": "green",
    "draining": "yellow", "waiting": "yellow", "pending": "yellow", "detached": "yellow",
    "lost": "red", "failed": "red", "killed": "red",
}  # fmt: skip


def age(seconds: float) -> str:
    """``seconds`` in short form: 0.4s, 12s, 3m12s, 5h02m, 3d04h."""
    if seconds < 0:
        return "0s"  # clocks of two machines differ a little
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def ended_after(submitted_at_s: float, ended_at_s: float) -> str:
    """How long after it was submitted something ended; a dash while it lives."""
    return age(ended_at_s - submitted_at_s) if ended_at_s else "-"


def memory(mib: int) -> str:
    """``mib`` MiB in short form: 512 MiB, 4 GiB, 1.5 GiB."""
    return f"{mib} MiB" if abs(mib) < 1024 else f"{mib / 1024:.1f}".removesuffix(".0") + " GiB"


def cluster_view(cluster: admin_pb2.Cluster) -> RenderableType:
    """``hrm status``."""
    now = time.time()
    free, capacity = cluster.free, cluster.capacity
    rows = {
        "master": f"{cluster.address}  HRM {cluster.version}, epoch {cluster.epoch}, "
        f"up {age(now - cluster.started_at_s)}",
        "nodes": f"{cluster.nodes_alive} alive, {cluster.nodes_draining} draining, "
        f"{cluster.nodes_lost} lost",
        "free": f"{free.vcores} of {capacity.vcores} vcores, "
        f"{memory(free.memory_mib)} of {memory(capacity.memory_mib)}" + _gpu(free, capacity),
        "applications": f"{cluster.applications_live} live, {cluster.applications_ended} ended",
        "containers": f"{cluster.containers_running} running, {cluster.containers_waiting} placed "
        f"and not running yet, {cluster.containers_pending} without a place",
        "places granted": f"{cluster.claims_committed} to start at once, {cluster.claims_queued} "
        f"behind others of the unit; {cluster.claims_aborted} refused (since the start)",
        "run times": _run_time_errors(cluster.run_time_errors),
        "stream lease": f"{cluster.lease.holder}, {cluster.lease.expires_in_s:.1f}s left"
        if cluster.lease.holder
        else "free",
    }
    facts = _facts({name: plain(value) for name, value in rows.items()})
    if cluster.HasField("recovery"):
        facts.add_row("[bold yellow]recovering[/]", recovery_line(cluster.recovery))
    if cluster.calls_refused:
        refused = f"{cluster.calls_refused} for limits of their identities; which: hrm audit"
        facts.add_row("calls refused", plain(refused))
    if cluster.paused:
        facts.add_row("[bold red]paused[/]", f"[red]{plain(cluster.paused)}[/]")
    return Group(facts, "", _schedulers_table(cluster.schedulers))


def _schedulers_table(schedulers: Iterable[admin_pb2.Scheduler]) -> Table:
    table = console.table(
        "SCHEDULER", ">APPS WAITING", ">OLDEST WAITS", ">ROUNDS", ">PLACED", ">RETRIES",
        ">DECIDES P50", ">P99", ">CAPACITY AFTER P50", ">P99",
    )  # fmt: skip
    for scheduler in schedulers:
        counts = (scheduler.rounds, scheduler.placed, scheduler.retries)
        delays_s = (
            scheduler.decision_p50_s, scheduler.decision_p99_s,
            scheduler.capacity_wait_p50_s, scheduler.capacity_wait_p99_s,
        )  # fmt: skip
        table.add_row(
            plain(scheduler.name),
            str(scheduler.queued_jobs),
            age(scheduler.oldest_wait_s) if scheduler.queued_jobs else "-",
            *map(str, counts),
            *map(delay, delays_s),
        )
    return table


def delay(seconds: float) -> str:
    """A time that is mostly short: 2.1ms, 9.3s, 3m12s; a dash where none was measured."""
    if not seconds:
        return "-"
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else age(seconds)


def recovery_line(recovery: admin_pb2.Recovery) -> str:
    """What a master that has restarted waits for, and how long still."""
    back, known = recovery.nodes_back, recovery.nodes_known
    verb = "is" if back == 1 else "are"
    more = " (there may be more, its store has lost some)" if recovery.may_lack_nodes else ""
    return (
        f"{back} of the {known} nodes known before the restart {verb} back{more}; it waits up to "
        f"{age(recovery.ends_in_s)} more for the others, and so does what was requested before"
    )


def _run_time_errors(errors: admin_pb2.RunTimeErrors) -> str:
    """How many run times are known, and how far off the estimates were."""
    learned = f"{errors.learned} learned"
    if not errors.containers and not errors.unknown:
        return f"{learned}; no executor has done its work since this master started"
    unknown = f"{errors.unknown} executors without an estimate"
    if not errors.containers:
        return f"{learned}; {unknown}"
    return (
        f"{learned}; off by {errors.median:.0%} (median), {errors.p90:.0%} (90th percentile) over "
        f"the latest {errors.containers} executors; {unknown}"
    )


def nodes_table(nodes: Iterable[admin_pb2.Node]) -> RenderableType:
    """``hrm nodes``: one line a resource unit."""
    listed = list(nodes)
    with_gpus = any(x.unit.HasField("gpu") for node in listed for x in node.resource_units)
    gpu_column = ["GPU, FREE MEMORY"] if with_gpus else []
    table = console.table(
        "NODE", "STATE", "UNIT", ">FREE VCORES", ">FREE MEMORY", *gpu_column, ">RUNNING",
        ">WAITING S/B", ">CPU", "ISOLATION", "SPARK", ">LAST CONTACT",
    )  # fmt: skip
    for node in listed:
        shown = [plain(node.name), _node_state(node)]
        tail = [
            f"{node.usage.cpu_percent:.0f}%",
            plain(node.isolation),
            plain(",".join(node.spark_versions) or "-"),
            f"{age(node.last_heard_s_ago)} ago",
        ]
        shared = {x.unit.pool for x in node.resource_units if x.unit.pool}
        for status in node.resource_units:
            free, unit = status.free, status.unit
            shares = bool(unit.pool) or unit.resource_unit_id in shared
            memory_mib = unit.capacity.memory_mib - unit.lent.memory_mib
            table.add_row(
                *shown,
                plain(unit.resource_unit_id + _layout_note(unit, shares=shares)),
                f"{free.vcores}/{unit.capacity.vcores - unit.lent.vcores}",
                f"{memory(free.memory_mib)} of {memory(memory_mib)}",
                *([plain(_unit_gpu(status))] if with_gpus else []),
                f"{status.running}/{unit.run_limit}",
                f"{status.waiting_stream}/{status.waiting_batch}",
                *tail,
            )
            shown, tail = ["", ""], ["", "", "", ""]
        if not node.resource_units:
            table.add_row(*shown, *["-"] * (5 + with_gpus), *tail)
    return table


def node_view(node: admin_pb2.Node) -> RenderableType:
    """``hrm node show``: its units, disk, isolation, and its shortcuts to running executors."""
    parts = [nodes_table([node])]
    for more in (_node_facts(node), _shortcuts(node)):
        if more.row_count:
            parts += ["", more]
    return Group(*parts)


def _shortcuts(node: admin_pb2.Node) -> Table:
    table = console.table("SHORTCUT", "STATE", ">USED", ">MISSED", "NOTE")
    for shortcut in node.shortcuts:
        notes = [shortcut.note]
        if shortcut.why_missed:
            notes.append(f"last missed because of: {shortcut.why_missed}")
        counts = (shortcut.used, shortcut.missed)
        table.add_row(
            plain(shortcut.name),
            _state(shortcut.state, ""),
            *map(str, counts),
            plain("; ".join(filter(None, notes)) or "-"),
        )
    return table


def _node_facts(node: admin_pb2.Node) -> Table:
    facts = _facts({})
    usage = node.usage
    if usage.disk_used_mib or usage.disk_free_mib:
        disk = f"containers use {memory(usage.disk_used_mib)}, {memory(usage.disk_free_mib)} free"
        facts.add_row("[bold]disk[/]", disk)
    if node.platform:
        facts.add_row("[bold]platform[/]", plain(node.platform))
    if node.labels:
        facts.add_row("[bold]labels[/]", plain(", ".join(node.labels)))
    for runtime in node.runtimes:
        facts.add_row("[bold]runs[/]", plain(_runtime(runtime)))
    for remark in node.remarks:
        name, separator, text = remark.partition(": ")
        facts.add_row(f"[bold]{plain(name)}[/]" if separator else "", plain(text or remark))
    return facts


def _runtime(runtime: common_pb2.SparkRuntime) -> str:
    versions = {
        "Spark": runtime.spark, "Scala": runtime.scala, "Java": runtime.java,
        "Python": runtime.python,
    }  # fmt: skip
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _facts(rows: Mapping[str, str]) -> Table:
    """A grid of names and values."""
    facts = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        facts.add_row(f"[bold]{name}[/]", value)
    return facts


def _node_state(node: admin_pb2.Node) -> str:
    state = _state(common_pb2.NodeState.Name(node.state), "NODE_STATE_")
    if node.excluded_for_s > 0:
        return f"{state}, [red]excluded[/] for {age(node.excluded_for_s)}: {plain(node.exclusion)}"
    if node.excluded_applications:
        return f"{state}, [yellow]excluded[/] for {node.excluded_applications} of its applications"
    return state


def applications_table(applications: Iterable[admin_pb2.Application]) -> RenderableType:
    """``hrm apps``."""
    now = time.time()
    listed = list(applications)
    has_classes = any(app.priority_class for app in listed)  # few queues have them
    table = console.table(
        "APPLICATION", "NAME", "USER", "QUEUE", *(["PRIORITY"] if has_classes else []), "CLASS",
        "STATE", ">RUN/WAIT/PEND", ">TASKS", ">MEAN WAIT", ">AGE", ">ENDED AFTER", "MESSAGE",
    )  # fmt: skip
    for app in listed:
        table.add_row(
            plain(app.application_id),
            plain(app.name, NAME_SHOWN),
            plain(app.user, NAME_SHOWN),
            plain(app.queue or "-", NAME_SHOWN),
            *([priority_text(app)] if has_classes else []),
            _class(app.workload_class),
            _application_state(app),
            f"{app.containers_running}/{app.containers_waiting}/{app.containers_pending}",
            f"{app.progress.tasks_completed}/{app.progress.tasks_total}"
            if app.HasField("progress")
            else "-",
            age(app.mean_wait_s),
            age(now - app.submitted_at_s),
            ended_after(app.submitted_at_s, app.ended_at_s),
            plain(app.message, MESSAGE_SHOWN),
        )
    return table


def application_view(app: admin_pb2.Application) -> RenderableType:
    """``hrm app show``."""
    now = time.time()
    progress = app.progress
    ended = f"{age(now - app.ended_at_s)} ago" if app.ended_at_s else "-"
    started = (
        f"after {age(app.first_running_at_s - app.submitted_at_s)}"
        if app.first_running_at_s
        else "not yet"
    )
    rows = {
        "application": plain(f"{app.application_id}  {app.name}"),
        "user": plain(app.user),
        "queue": plain(_queue(app)),
        "state": _application_state(app) + plain(f"  {app.message}" if app.message else ""),
        "class": _class(app.workload_class) + plain(f"  ({app.class_evidence or 'by default'})"),
        "Spark": plain(f"{app.spark_version}, driver on {app.driver_host}, {app.web_url or '-'}"),
        "driver's start": plain(app.driver_start or "-"),
        "submitted": f"{age(now - app.submitted_at_s)} ago, first container {started}",
        "ended": ended,
        "scheduler": plain(app.scheduler or "-"),
        "progress": f"{progress.active_jobs} jobs, {progress.active_stages} stages active, "
        f"{progress.completed_stages} stages done; tasks: {progress.tasks_completed} of "
        f"{progress.tasks_total} done, {progress.tasks_running} running, "
        f"{progress.tasks_failed} failed, mean {age(progress.mean_task_s)}",
        "expected run time": ", ".join(_expected_run_time(app, row) for row in app.run_times)
        or "unknown: no executor of an application of this name and user has ended yet",
        "gang start": _gang_start(app),
        "streams": plain(", ".join(progress.streaming_queries) or "-"),
    }
    if app.HasField("training"):
        rows["training"] = _training(app)
    driver = f"where it was submitted ({app.driver_host}), with its log"
    if app.submission_id:
        driver = f"number {app.submission_attempt} of {app.submission_id}; "
        driver += f"its log: hrm app logs {app.application_id} --executor driver"
    rows["driver"] = plain(driver)
    if app.application_id.startswith(WORKLOAD_PREFIX):
        for name in ("Spark", "gang start", "streams"):
            del rows[name]
        rows["driver"] = "the master; its tasks: hrm pipeline list"
    if app.hidden:
        return _facts(_without_hidden(app, rows))
    facts = _facts(rows)
    containers = _containers_table(app.containers, now) if app.containers else "no executors"
    shown = len(app.containers)
    if earlier := max(0, app.containers_total - shown):
        more = f"hrm app show {plain(app.application_id)} --limit {app.containers_total}"
        facts.add_row("[bold]below[/]", f"the latest {shown} executors; {earlier} more: {more}")
    return Group(facts, "", containers)


def _without_hidden(app: admin_pb2.Application, rows: dict[str, str]) -> dict[str, str]:
    """What is left of the facts about an application of which the caller does not see all."""
    left = {
        "class": _class(app.workload_class),
        "Spark": plain(app.spark_version),
        "progress": _HIDDEN,
        "expected run time": _HIDDEN,
        "streams": _HIDDEN,
        "driver": plain(f"number {app.submission_attempt} of {app.submission_id}")
        if app.submission_id
        else _HIDDEN,
        "executors": f"{app.containers_running} running, {app.containers_waiting} waiting, "
        f"{app.containers_pending} pending; where they are: {_HIDDEN}",
    }
    return rows | left


def _queue(app: admin_pb2.Application) -> str:
    if not app.queue:
        return "none: an earlier HRM took it in"
    if app.priority_class:
        times = f", interrupted {app.interruptions} times" if app.interruptions else ""
        return f"{app.queue}, priority {priority_text(app)}{times}"
    return f"{app.queue}, priority {app.priority}" if app.priority else app.queue


def priority_text(of: admin_pb2.Application | queues_pb2.QueueWait) -> str:
    """Its priority in an order of classes, and which that is; ``-`` in another order."""
    if not of.priority_class:
        return "-"
    tenths = of.priority_tenths
    return f"{tenths // 10}.{tenths % 10} {class_name(of.priority_class)}"


def class_name(of: common_pb2.PriorityClass) -> str:
    return common_pb2.PriorityClass.Name(of).removeprefix("PRIORITY_CLASS_").lower()


def _training(app: admin_pb2.Application) -> str:
    """The latest epoch that its driver has reported, and what it may have for that."""
    last = app.training
    accuracy = f", accuracy {last.accuracy:.4f}" if last.HasField("accuracy") else ""
    limit = f"; {app.executors_max} executors at most" if app.HasField("executors_max") else ""
    return f"epoch {last.epoch}: loss {last.loss:.5g}{accuracy}{limit}"


def _gang_start(app: admin_pb2.Application) -> str:
    """A stream has a gang without one being stated, until its first executors have started."""
    if app.gang_min > 1:
        return f"the first {app.gang_min} executors start together"
    if app.workload_class != common_pb2.WORKLOAD_CLASS_STREAM:
        return "off: each executor starts by itself"
    if app.first_running_at_s:
        return "over: what a stream requests after its first executors starts one by one"
    return "a stream: its first executors start together"


def _expected_run_time(app: admin_pb2.Application, row: admin_pb2.RunTime) -> str:
    profile = f"per executor of resource profile {row.resource_profile_id}"
    if not app.input_bytes or not row.mean_input_bytes:
        return f"{age(row.mean_s)} {profile} (mean of {row.containers} that have ended)"
    stated, read = (memory(round(x / 2**20)) for x in (app.input_bytes, row.mean_input_bytes))
    return (
        f"{age(row.expected_s)} {profile} for {stated} of input ({age(row.mean_s)} for {read}: "
        f"mean of {row.containers} that have ended)"
    )


def submissions_table(submissions: Sequence[submission_pb2.Submission]) -> RenderableType:
    """``hrm submissions``; of one submission, with its whole message."""
    from hrm.spark.submit import state_name

    # Few drivers are servers.
    serves = ["CONNECT TO"] if any(each.server_address for each in submissions) else []
    table = console.table(
        "SUBMISSION", "NAME", "USER", "STATE", "DRIVER", "NODE", "APPLICATION", *serves, ">AGE",
        ">ENDED AFTER", "MESSAGE",
    )  # fmt: skip
    for each in submissions:
        cells = (
            each.submission_id, text.shortened(each.name, NAME_SHOWN),
            text.shortened(each.user, NAME_SHOWN), state_name(each.state),
            f"{each.attempt}{' (supervised)' if each.supervise else ''}", each.node or "-",
            each.application_ids[-1] if each.application_ids else "-",
            *([each.server_address or "-"] if serves else []),
            age(time.time() - each.submitted_at_s),
            ended_after(each.submitted_at_s, each.ended_at_s),
            text.shortened(each.message, MESSAGE_SHOWN) if len(submissions) > 1 else each.message,
        )  # fmt: skip
        table.add_row(*map(plain, cells))
    return table


def explanation_view(explanation: admin_pb2.Explanation) -> RenderableType:
    """``hrm app why``: the summary first, then its details."""
    details = [f"  - {plain(detail)}" for detail in explanation.details]
    return "\n".join([plain(explanation.summary), *details])


def _containers_table(
    containers: Sequence[common_pb2.ContainerStatus], now: float
) -> RenderableType:
    table = console.table(
        "EXECUTOR", "STATE", "NODE", ">VCORES", ">MEMORY", ">USED", ">CPU", ">WAITED", ">RAN",
        "END",
    )  # fmt: skip
    for container in containers:
        ended_at_s = container.ended_at_s or now
        started_at_s = container.started_at_s
        end = container.end
        table.add_row(
            plain(container.executor_id),
            _state(common_pb2.ContainerState.Name(container.state), "CONTAINER_STATE_"),
            plain(container.node or "-"),
            str(container.resources.vcores),
            memory(container.resources.memory_mib),
            memory(container.usage.memory_mib),
            f"{container.usage.cpu_percent:.0f}%",
            age((started_at_s or ended_at_s) - container.requested_at_s),
            age(ended_at_s - started_at_s) if started_at_s else "-",
            plain(_end(end)) if container.HasField("end") else "",
        )
    return table


def _end(end: common_pb2.ContainerEnd) -> str:
    cause = common_pb2.EndCause.Name(end.cause).removeprefix("END_CAUSE_").lower()
    code = f" (exit code {end.exit_code})" if end.exit_code >= 0 else ""
    return f"{cause}{code} {end.message}".strip()


def _application_state(app: admin_pb2.Application) -> str:
    return _state(common_pb2.ApplicationState.Name(app.state), "APPLICATION_STATE_")


def _class(workload_class: common_pb2.WorkloadClass) -> str:
    name = common_pb2.WorkloadClass.Name(workload_class).removeprefix("WORKLOAD_CLASS_").lower()
    return "?" if name == "unspecified" else name


def _state(name: str, prefix: str) -> str:
    word = name.removeprefix(prefix).lower()
    colour = _COLOURS.get(word)
    return f"[{colour}]{word}[/]" if colour else plain(word)


def _layout_note(unit: node_pb2.ResourceUnit, *, shares: bool) -> str:
    """What its row does not show: that other units of the node take the same cores and memory
    (``shares``), how it differs from the layout while containers of an earlier one run, and that
    batch is not preempted there."""
    notes = ["shared cores"] if shares else []
    if unit.draining:
        notes.append("draining")
    elif unit.borrowed.vcores:
        notes.append(f"{unit.borrowed.vcores} vcores borrowed")
    if unit.lent.vcores:
        notes.append(f"{unit.lent.vcores} vcores lent")
    if unit.no_preemption:
        notes.append("no preemption")
    return f" ({', '.join(notes)})" if notes else ""


def _unit_gpu(status: admin_pb2.ResourceUnitStatus) -> str:
    """The GPU of a unit and how much of it is free; a declared one is never shown as a real one."""
    if not status.unit.HasField("gpu"):
        return "-"
    gpu = status.unit.gpu
    name = f"{gpu.name} (declared)" if gpu.declared else gpu.name
    many = f"{1 + len(status.unit.more_gpus)} x " if status.unit.more_gpus else ""
    free, all_of_it = status.free.gpu_memory_mib, status.unit.capacity.gpu_memory_mib
    return f"{many}{name.strip()} {memory(free)} of {memory(all_of_it)}".strip()


def _gpu(free: common_pb2.Resources, capacity: common_pb2.Resources) -> str:
    if not capacity.gpu_memory_mib:
        return ""
    return f", {memory(free.gpu_memory_mib)} of {memory(capacity.gpu_memory_mib)} GPU memory"
