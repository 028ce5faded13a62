"""Bugs of nodes: their queues, units and preemption, and the master's view of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hrm.core.master.entities import Container, Node
from hrm.core.master.node_registry import NodeRegistry
from hrm.core.master.reconciliation import NodeReconciler
from hrm.core.master.repartitioning import Repartitioning
from hrm.core.master.state import MasterState
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.claims import Entry
from hrm.core.node import core as node
from hrm.core.node import layout, preemption
from hrm.core.node.auto_partitioning import UtilizationSample, sample_utilization
from hrm.core.node.core import NodeCore
from hrm.core.node.preemption import Preemption
from hrm.core.queue import batch_turn, resource_unit, start_rule
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.scheduling.shared_state import SharedState
from hrm.core.vocabulary import feasibility
from hrm.core.vocabulary.model import (
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    EndCause,
    NodeName,
    ResourceUnit,
    WorkloadClass,
)
from hrm.core.vocabulary.partitioning import Hardware, Partitioning, partition

__all__ = ["BUGS"]


def lost_release(patch: pytest.MonkeyPatch) -> None:
    """What a container held is not returned when it was released."""
    leave = MasterState._leave_unit

    def leave_unit(self: MasterState, container: Container) -> None:
        if container.end is None or container.end.cause is not EndCause.RELEASED:
            leave(self, container)

    patch.setattr(MasterState, "_leave_unit", leave_unit)


def release_ignored(patch: pytest.MonkeyPatch) -> None:
    """The node treats an order to stop as done, and does nothing."""
    patch.setattr(NodeCore, "_stop_running", lambda *_, **__: None)


def closed_with_waiters(patch: pytest.MonkeyPatch) -> None:
    """A node that closes keeps its waiters, which cannot be placed elsewhere."""

    def close(self: NodeCore, event: e.NodeClosed) -> None:
        self.closed = event.why
        self._out.append(c.RegisterAgain(binding=None))

    patch.setattr(NodeCore, "_close", close)


def start_rule_too_wide(patch: pytest.MonkeyPatch) -> None:
    """The node starts one vcore more than its unit has."""

    def fits(demand: feasibility.Vector, offer: feasibility.Vector) -> bool:
        return demand[0] <= offer[0] + 1 and all(
            need <= have for need, have in zip(demand[1:], offer[1:], strict=True)
        )

    for module in (batch_turn, resource_unit, start_rule):
        patch.setattr(module, "fits", fits)


def start_rule_too_narrow(patch: pytest.MonkeyPatch) -> None:
    """Nothing starts that would fill its unit to the last vcore."""

    def fits(demand: feasibility.Vector, offer: feasibility.Vector) -> bool:
        return demand[0] < offer[0] and all(
            need <= have for need, have in zip(demand[1:], offer[1:], strict=True)
        )

    for module in (batch_turn, resource_unit, start_rule):
        patch.setattr(module, "fits", fits)


def grant_to_a_dead_node(patch: pytest.MonkeyPatch) -> None:
    """A lost node's units stay in the table."""
    lose = NodeRegistry._lose

    def lose_but_keep(self: NodeRegistry, node: Node, now: float, why: str) -> None:
        with pytest.MonkeyPatch.context() as kept:
            kept.setattr(NodeRegistry, "_close_rows", lambda *_: None)
            lose(self, node, now, why)

    patch.setattr(NodeRegistry, "_lose", lose_but_keep)


def dead_node_undetected(patch: pytest.MonkeyPatch) -> None:
    """A node's silence is not noticed."""
    patch.setattr(NodeRegistry, "tick", lambda *_: None)


def old_epoch_honoured(patch: pytest.MonkeyPatch) -> None:
    """A node obeys a master that has been replaced."""
    patch.setattr(NodeCore, "accepts", lambda *_: True)


def tombstones_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An order that arrives again after the end starts the container again."""
    patch.setattr(node, "TOMBSTONES", 0)
    patch.setattr(NodeReconciler, "_stop_orphan", lambda *_: None)


def endless_orders(patch: pytest.MonkeyPatch) -> None:
    """Every report of a container that stops leads to another order to stop."""
    apply = NodeReconciler.apply

    def apply_and_stop(
        self: NodeReconciler, node: Node, status: ContainerStatus, now: float
    ) -> None:
        apply(self, node, status, now)
        if status.state is ContainerState.STOPPING:
            self._stop_orphan(node, status.container_id)

    patch.setattr(NodeReconciler, "apply", apply_and_stop)


def device_memory_from_nowhere(patch: pytest.MonkeyPatch) -> None:
    """A GPU has twice its device memory after the node was partitioned again."""

    def too_much(
        name: NodeName, hardware: Hardware, binding: Partitioning
    ) -> tuple[ResourceUnit, ...]:
        units = partition(name, hardware, binding)
        return tuple(
            replace(x, capacity=replace(x.capacity, gpu_memory_mib=2 * x.capacity.gpu_memory_mib))
            for x in units
        )

    patch.setattr(node, "partition", too_much)


def cores_in_two_units(patch: pytest.MonkeyPatch) -> None:
    """Units that share their cores forget each other."""
    patch.setattr(UnitQueue, "join", lambda *_: None)


def borrowed_from_no_unit(patch: pytest.MonkeyPatch) -> None:
    """A node is partitioned again, and what runs still is taken from no other unit."""
    patch.setattr(layout, "_lend", lambda *_: True)


def idle_cores_held_back(patch: pytest.MonkeyPatch) -> None:
    """A unit at which a container runs keeps all that it had until that ends."""
    held_at = layout.held_at

    def everything(queue: UnitQueue) -> feasibility.Vector:
        vcores, memory_mib, *_ = queue.capacity
        return held_at(queue) if not queue.running else (vcores, memory_mib, *held_at(queue)[2:])

    patch.setattr(node, "held_at", everything)


def freed_cores_stay(patch: pytest.MonkeyPatch) -> None:
    """What a container frees that held more than its unit has now does not go to the others."""
    patch.setattr(node, "exceeds", lambda *_: False)


def processes_stay_on_their_cores(patch: pytest.MonkeyPatch) -> None:
    """Running processes are not held on the cores that their units have left."""
    patch.setattr(NodeCore, "_pin", lambda *_: None)


def cause_of_a_stop_lost(patch: pytest.MonkeyPatch) -> None:
    """An order to stop that is sent again says that the container was released."""
    stop_again = NodeReconciler._stop_again

    def released(
        self: NodeReconciler, node: Node, container: Container, status: ContainerStatus, now: float
    ) -> None:
        if container.stop_cause is not None:
            container.stop_cause = EndCause.RELEASED
        stop_again(self, node, container, status, now)

    patch.setattr(NodeReconciler, "_stop_again", released)


def draining_unit_granted(patch: pytest.MonkeyPatch) -> None:
    """A unit that goes is open to claims."""
    add = SharedState.add

    def add_open(self: SharedState, *about: Any) -> int:
        row = add(self, *about)
        self.open[row] = True
        return row

    patch.setattr(SharedState, "add", add_open)


def rebinding_replied_twice(patch: pytest.MonkeyPatch) -> None:
    """The caller is not removed after the reply."""
    reply_received = Repartitioning.reply_received

    def again(self: Repartitioning, event: e.RebindReplied) -> None:
        kept = dict(self.pending)
        reply_received(self, event)
        self.pending = kept

    patch.setattr(Repartitioning, "reply_received", again)


def binding_changed_without_gpus(patch: pytest.MonkeyPatch) -> None:
    """A node without GPUs takes another binding, and refuses the one that it had."""
    rebind = NodeCore._rebind

    def changed(self: NodeCore, event: e.RebindReceived) -> None:
        without = self.hardware is not None and not self.hardware.gpus
        if without and event.mode is not None and not event.concerns_gpus:
            self.binding = replace(self.binding, mode=event.mode)
        rebind(self, event)

    patch.setattr(NodeCore, "_rebind", changed)


def rebinding_never_replied(patch: pytest.MonkeyPatch) -> None:
    """A caller whose node does not reply waits without end."""
    patch.setattr(Repartitioning, "tick", lambda *_: None)


def streams_are_preempted(patch: pytest.MonkeyPatch) -> None:
    """Streams preempt streams, too."""
    victims = preemption._victims

    def any_container(
        free_of: Any, unit: UnitQueue, waiter: Any, owners: Any, now: float, **how: Any
    ) -> Any:
        kept = {queue: dict(queue.running) for queue in free_of.pool}
        for queue, running in kept.items():
            for entry in running.values():
                batch = entry._replace(workload_class=WorkloadClass.BATCH)
                queue.running[entry.container_id] = batch
        chosen = victims(free_of, unit, waiter, owners, now, **how)
        for queue, running in kept.items():
            queue.running.update(running)
        return chosen

    patch.setattr(preemption, "_victims", any_container)


def too_many_are_preempted(patch: pytest.MonkeyPatch) -> None:
    """All batch containers of a unit are preempted where one would be enough."""
    preemptions = preemption.preemptions

    def all_of_them(
        queue: UnitQueue, ending: Any, owners: Any, now: float, **how: Any
    ) -> list[Preemption]:
        chosen = preemptions(queue, ending, owners, now, **how)
        others = [
            Preemption(x.container_id, chosen[-1].waiter)
            for x in queue.running.values()
            if chosen
            and x.workload_class is WorkloadClass.BATCH
            and x.container_id not in ending
            and all(x.container_id != each.victim for each in chosen)
        ]
        return chosen + others

    patch.setattr(node, "preemptions", all_of_them)


def cores_taken_from_a_stream(patch: pytest.MonkeyPatch) -> None:
    """A node takes cores by itself, although a stream waits for them."""

    def blind(*about: Any) -> UtilizationSample:
        return replace(sample_utilization(*about), gpu_stream=False, cpu_stream=False)

    patch.setattr(node, "sample_utilization", blind)


def dead_agents_units(patch: pytest.MonkeyPatch) -> None:
    """The units that a dead agent registered, after its successor had, stay in the table."""
    revive = NodeRegistry._revive

    def adopt(self: NodeRegistry, event: e.NodeReported) -> None:
        node = self.master_state.nodes.get(event.node)
        known = node is not None and event.incarnation in node.incarnations
        if node is not None and known and not node.connected:
            node.incarnation, node.sequence = event.incarnation, event.sequence - 1
            node.connected = True
        revive(self, event)

    patch.setattr(NodeRegistry, "_revive", adopt)


def replacement_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """At its node the replacement of a preempted container waits behind all others."""
    entry = NodeCore._entry

    def without_place(self: NodeCore, spec: ContainerSpec) -> Entry:
        return entry(self, replace(spec, stands_first=False))

    patch.setattr(NodeCore, "_entry", without_place)


def silent_about_preemption(patch: pytest.MonkeyPatch) -> None:
    """A node that preempts no batch does not say so."""
    offers: property = vars(NodeCore)["offers"]
    silent = property(lambda self: tuple(replace(x, preempts=True) for x in offers.__get__(self)))
    patch.setattr(NodeCore, "offers", silent)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    lost_release,
    release_ignored,
    closed_with_waiters,
    start_rule_too_wide,
    start_rule_too_narrow,
    grant_to_a_dead_node,
    dead_node_undetected,
    old_epoch_honoured,
    tombstones_forgotten,
    endless_orders,
    device_memory_from_nowhere,
    cores_in_two_units,
    borrowed_from_no_unit,
    idle_cores_held_back,
    freed_cores_stay,
    processes_stay_on_their_cores,
    cause_of_a_stop_lost,
    draining_unit_granted,
    rebinding_replied_twice,
    binding_changed_without_gpus,
    rebinding_never_replied,
    streams_are_preempted,
    too_many_are_preempted,
    cores_taken_from_a_stream,
    dead_agents_units,
    replacement_at_the_end,
    silent_about_preemption,
]
