"""Views of queues for terminals, built from the messages of QueueService."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table

from hrm.cli import console
from hrm.cli.console import plain
from hrm.cli.render import NAME_SHOWN, age, class_name, memory, priority_text

if TYPE_CHECKING:
    from hrm.v1 import queues_pb2 as pb

__all__ = [
    "change_view",
    "fairness_view",
    "platforms_view",
    "queue_view",
    "queues_table",
    "supposed_view",
    "waiting_table",
]

_LISTED_MAX = 10
_QUOTAS = ("guaranteed", "maximum")
_VALUES = (
    "weight", "max_running", "order", "interrupts", "maximum_class", "preemptible", "driver_share",
    "minimum_user_limit", "user_limit_factor",
)  # fmt: skip
_NAMES = ("submitters", "administrators")


def queues_table(queues: Iterable[pb.Queue]) -> RenderableType:
    """``hrm queues``: the tree, one line a queue; amounts are vcores, memory and, where there are
    any, the memory of GPUs."""
    listed = list(queues)
    has_gpus = any(queue.maximum.gpu_memory_mib or queue.used.gpu_memory_mib for queue in listed)
    table = console.table(
        "QUEUE", ">GUARANTEED", ">MAXIMUM", ">SHARE NOW", ">USED", ">BORROWED", ">PENDING",
        ">APPS RUN/ALL", ">WAITING",
    )  # fmt: skip
    top = min((queue.name.count(".") for queue in listed), default=0)
    for queue in listed:
        depth = queue.name.count(".") - top
        name = queue.name if not depth else queue.name.rpartition(".")[2]
        amounts = (
            queue.guaranteed, queue.maximum, queue.share, queue.used, queue.borrowed, queue.pending
        )  # fmt: skip
        table.add_row(
            "  " * depth + plain(name),
            *(_amounts(each, has_gpus=has_gpus) for each in amounts),
            f"{queue.running}/{queue.applications}",
            str(queue.waiting_total) if queue.is_leaf else "",
        )
    return table


def waiting_table(queues: Iterable[pb.Queue]) -> RenderableType:
    """The applications that wait, in the order of their queues."""
    listed = list(queues)
    has_classes = any(wait.priority_class for queue in listed for wait in queue.waiting)
    table = console.table(
        "QUEUE", ">POSITION", *(["PRIORITY"] if has_classes else []), "APPLICATION", "USER",
        ">CONTAINERS", "REASON", "WHY",
    )  # fmt: skip
    for queue in listed:
        for wait in queue.waiting:
            table.add_row(
                plain(queue.name),
                str(wait.position),
                *([priority_text(wait)] if has_classes else []),
                plain(wait.application_id),
                plain(wait.user, NAME_SHOWN),
                str(wait.containers),
                plain(wait.reason),
                plain(wait.why),
            )
    return table


def fairness_view(response: pb.ListQueuesResponse) -> RenderableType:
    """``hrm queues --fairness``: the leaves that were observed, and how alike they were served."""
    table = console.table(
        "QUEUE", ">DUE CORES", ">HELD", ">SPEED", ">THROUGHPUT", ">BUSY", ">WAITED P50", ">P90",
        ">P99", ">WAITING NOW",
    )  # fmt: skip
    for queue in response.queues:
        if not queue.is_leaf:
            continue
        seen = queue.observed
        has_cores = queue.HasField("observed") and (seen.entitled_cores or seen.held_cores)
        table.add_row(
            plain(queue.name),
            f"{seen.entitled_cores:.4g}" if has_cores else "-",
            f"{seen.held_cores:.4g}" if has_cores else "-",
            f"{seen.speed:.2f}" if seen.HasField("speed") else "-",
            _throughput(seen),
            f"{seen.busy:.0%}" if seen.HasField("busy") else "-",
            *(
                age(getattr(seen, each)) if seen.HasField(each) else "-"
                for each in ("wait_p50_s", "wait_p90_s", "wait_p99_s")
            ),
            age(queue.longest_wait_s) if queue.pending.cores else "-",
        )
    return Group(table, "", plain(_fairness(response.fairness)))


def platforms_view(queues: Iterable[pb.Queue]) -> RenderableType:
    """``hrm queues --platforms``: cores by leaf and platform, what it has of what it may have."""
    listed = [queue for queue in queues if queue.platforms]
    if not listed:
        return plain(
            "no queue's share is divided: there is one platform only (agents' --platform), no "
            "queue wants anything, or the master's platform_division is none"
        )
    names = sorted({part.platform for queue in listed for part in queue.platforms})
    table = console.table("QUEUE", *(f">{plain(name)}" for name in names), ">AFFINITY")
    for queue in listed:
        parts = {part.platform: part for part in queue.platforms}
        there = [parts[name] for name in names if name in parts]
        table.add_row(
            plain(queue.name),
            *(
                f"{parts[name].held_cores:.4g} of {parts[name].cores}" if name in parts else "-"
                for name in names
            ),
            " ".join(f"{part.affinity:.3g}" for part in there),
        )
    return table


def _throughput(seen: pb.QueueObserved) -> str:
    """In brackets where it does not count any more, or not yet."""
    if not seen.HasField("throughput"):
        return "-"
    return f"{seen.throughput:.2f}" if seen.takes_part else f"({seen.throughput:.2f})"


def _fairness(fairness: pb.QueueFairness) -> str:
    lately = f"half of what counts is of the last {age(fairness.half_life_s)}"
    if not fairness.HasField("fairness"):
        few = "1 queue takes part" if fairness.queues == 1 else "0 queues take part"
        why = "none got anything" if fairness.queues > 1 else few
        return f"fairness: unknown, {why}; {lately}"
    spread = f"{fairness.spread:.3g}" if fairness.HasField("spread") else "infinite"
    known = f"known for {fairness.with_speeds} of them"
    speeds = known if fairness.with_speeds else "unknown, each counts as 1"
    return (
        f"fairness {fairness.fairness:.3f} over {fairness.queues} queues (Jain's index "
        f"{fairness.jain:.3f}, greatest throughput over least {spread}); {lately}; speeds of "
        f"platforms {speeds}"
    )


def queue_view(queue: pb.Queue) -> RenderableType:
    """``hrm queue show``: what is stated of it, what it has, what waits in it."""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("[bold]queue[/]", plain(queue.name))
    for name, text in _stated(queue.stated):
        facts.add_row(f"[bold]{name}[/]", plain(text))
    if queue.in_file:
        facts.add_row("[bold]stated in[/]", "hrm.toml of the master, which counts when it starts")
    if queue.past_use:
        facts.add_row("[bold]past use[/]", f"{queue.past_use:.1%} of the cluster, borrowed lately")
    if queue.classes:
        facts.add_row("[bold]classes[/]", plain(", ".join(map(_class_count, queue.classes))))
    parts: list[RenderableType] = [facts, "", queues_table([queue])]
    if queue.waiting:
        parts += ["", waiting_table([queue])]
    return Group(*parts)


def _class_count(count: pb.QueueClass) -> str:
    name = class_name(count.priority_class)
    return f"{count.applications} {name} ({count.waiting} waiting)"


def change_view(response: pb.ChangeQueuesResponse, removed: Iterable[str]) -> RenderableType:
    """What was, or would be, changed."""
    facts = Table.grid(padding=(0, 2))
    for stated in response.queues:
        texts = [f"{name} {text}" for name, text in _stated(stated)]
        facts.add_row(f"[bold]{plain(stated.name)}[/]", plain("; ".join(texts) or "all by default"))
    for name in removed:
        facts.add_row(f"[bold]{plain(name)}[/]", "removed")
    preempted = response.preempted_containers
    text = _listed(preempted) if preempted else "none"
    facts.add_row("[bold]preempted containers[/]", plain(text))
    held = response.held_back_applications
    facts.add_row("[bold]applications that get no more[/]", plain(_listed(held) or "none"))
    return facts


def supposed_view(request: pb.WhatIfRequest, response: pb.WhatIfResponse) -> RenderableType:
    """``hrm whatif``."""
    asked = request.resources
    gpu = f", {memory(asked.gpu_memory_mib)} GPU memory" if asked.gpu_memory_mib else ""
    whose = f", of {request.user}" if request.user else ""
    rows = {
        "executors": f"{request.executors} of {asked.vcores} vcores, {memory(asked.memory_mib)}"
        f"{gpu} in {request.queue}{whose}",
        "at once": f"{response.at_once} would start on what is free",
    }
    if response.by_preemption:
        victims = [f"{each.container_id} ({each.application_id})" for each in response.preempted]
        rows["by preemption"] = (
            f"{response.by_preemption} would start within {age(response.grace_s)}; these would end "
            f"for them: {_listed(victims)}"
        )
    if response.later:
        wait = f", the first for about {age(response.later_s)}" if response.later_s >= 1 else ""
        rows["later"] = f"{response.later} would wait{wait}: {response.why}"
    facts = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        facts.add_row(f"[bold]{name}[/]", plain(text))
    return facts


def _stated(stated: pb.QueueStated) -> list[tuple[str, str]]:
    """What is stated of a queue, in words."""
    keys = [key for key in (*_QUOTAS, *_VALUES, *_NAMES) if stated.HasField(key)]
    return [(key.replace("_", " "), _value(key, getattr(stated, key))) for key in keys]


def _value(key: str, value: Any) -> str:
    if key in _QUOTAS:
        return _quota(value)
    if key in _NAMES:
        return ", ".join(value.names) or "nobody"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quota(quota: pb.QueueQuota) -> str:
    each = {"cores": quota.cores, "memory": quota.memory, "GPU memory": quota.gpu_memory}
    if len({*each.values()}) == 1:
        return f"{quota.cores} of each resource"
    return ", ".join(f"{name} {amount}" for name, amount in each.items() if amount)


def _amounts(amounts: pb.QueueAmounts, *, has_gpus: bool) -> str:
    if not (amounts.cores or amounts.memory_mib or amounts.gpu_memory_mib):
        return "-"
    text = f"{amounts.cores:.4g}, {memory(round(amounts.memory_mib))}"
    return f"{text}, {memory(round(amounts.gpu_memory_mib))}" if has_gpus else text


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:_LISTED_MAX])
    more = len(listed) - _LISTED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
