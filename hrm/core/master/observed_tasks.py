"""Run times of tasks, as drivers report them, with the node and the company that they had.

A driver says how long its tasks took on which of its executors; the master knows at which node
each is, and what runs there with it. One core of an executor is the task's; the others of the node
are held by more of its kind, by other applications, or by none. That is how the node is when the
report arrives, seconds after the tasks; drivers on nodes compute little, and do not count.

What an application reports changes estimates of its own kind alone, and only for executors that
run for it now. Its reports are bounded in time: ``ENTRIES_MAX`` in ``WINDOW_S`` seconds.

Limits: cores that are held may idle. A task is taken to have one core.
"""

from __future__ import annotations

from hrm.core.master.entities import Application, Node
from hrm.core.master.state import MasterState
from hrm.core.tenancy.affinities import ApplicationKind, kind_of
from hrm.core.vocabulary.model import ContainerState, ExecutorTasks, NodeName, container_id_of

__all__ = ["ENTRIES_MAX", "WINDOW_S", "observed"]

ENTRIES_MAX = 400
"""Of one application, in a window; drivers send 200 every ten seconds at most while tasks run."""

WINDOW_S = 5.0

LEAST_S = 0.001
MOST_S = 1e8
"""Tasks count as if they had taken so long at least, and at most."""


def observed(
    master_state: MasterState, app: Application, tasks: tuple[ExecutorTasks, ...], now: float
) -> None:
    """Learn from what an application has reported."""
    if not tasks or app.is_driver:
        return
    if not app.tasks_since_s <= now < app.tasks_since_s + WINDOW_S:
        app.tasks_since_s, app.tasks_taken = now, 0
    taken = tasks[: max(0, ENTRIES_MAX - app.tasks_taken)]
    app.tasks_taken += len(taken)
    queue, name = str(app.record.queue), app.record.name
    own = kind_of(queue, name)
    on_node: dict[NodeName, _OnNode] = {}
    for each in taken:
        container = app.containers.get(container_id_of(app.application_id, each.executor_id))
        if container is None or container.node is None:
            continue
        node = master_state.nodes.get(container.node)
        if node is None or container.state is not ContainerState.RUNNING:
            continue
        there = on_node.get(node.name)
        if there is None:
            there = on_node[node.name] = _OnNode(master_state, node, own)
        master_state.affinities.observe(
            queue,
            name,
            each.stage,
            node.platform,
            each.tasks,
            min(max(each.run_s / each.tasks, LEAST_S), MOST_S),
            there.load,
            there.company,
            each.input_bytes / each.tasks,
        )
        # No more than its cores could have run: reports are bounded by what is there.
        cores, ran_s = container.request.resources.vcores, now - container.started_at_s
        run_s = min(each.run_s, max(0.0, cores * ran_s))
        master_state.queue_fairness.ran(own, node.platform, run_s)


class _OnNode:
    """For a task of kind ``own``, ``load``: the part of the node's other cores that running
    executors hold; ``company``: the parts of these cores by kind."""

    def __init__(self, master_state: MasterState, node: Node, own: ApplicationKind) -> None:
        cores: dict[ApplicationKind, int] = {}
        names: dict[tuple[str, str], ApplicationKind] = {}
        for container in node.containers.values():
            if container.state is not ContainerState.RUNNING:
                continue
            app = master_state.applications[container.application_id]
            if app.is_driver:
                continue
            stated = (str(app.record.queue), app.record.name)
            kind = names.get(stated)
            if kind is None:
                kind = names[stated] = kind_of(*stated)
            cores[kind] = cores.get(kind, 0) + container.request.resources.vcores
        cores[own] = max(0, cores.get(own, 0) - 1)
        others = sum(unit.own_capacity.vcores for unit in node.units) - 1
        held = sum(cores.values())
        others = max(others, held, 1)
        self.load = held / others
        self.company = {kind: held / others for kind, held in cores.items() if held}
