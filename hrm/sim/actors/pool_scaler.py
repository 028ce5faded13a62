"""``hrm autoscale`` in virtual time, and the machines that its hook ends and starts.

A look reads the master's state at one moment. Drains are calls, which a master that dies leaves
without an answer: the look ends there, and the next one begins again. The hook takes a while,
fails, or says otherwise than it did; the process dies, and another one goes on from what was
written last. A machine that was removed comes again under its old name, with an empty disk.

It ends with the faults: whatever was removed is there again then.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from hrm.core.master.core import MasterCore
from hrm.core.master.entities import Application
from hrm.core.master.queue_report import queue_statuses
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.pool.sample import (
    PoolApplication,
    PoolNode,
    PoolQueue,
    held_share,
    pool_sample,
)
from hrm.core.pool.scaler import (
    Amount,
    CallHook,
    DrainNodes,
    PoolSample,
    ReturnNodes,
    Scaler,
    ScalerOrder,
)
from hrm.core.queue.resource_unit import UnitQueue
from hrm.core.tenancy.queue_spec import Quota
from hrm.core.tenancy.queue_status import WITHOUT_PLACE, QueueStatus
from hrm.core.tenancy.queue_tree import Governed
from hrm.core.vocabulary.model import ContainerState, NodeName, NodeState, WorkloadClass
from hrm.sim.actors.machine_actor import MachineActor
from hrm.sim.actors.sleepers import MASTER
from hrm.sim.faults.plan import source

if TYPE_CHECKING:
    from hrm.sim.world import World

__all__ = ["PoolScaler"]

_ELSEWHERE = (ContainerState.PENDING, ContainerState.ENDED)
_BOOT_S = (0.2, 2.5)


class PoolScaler:
    """``removed``: machines that the hook has ended and not started again. ``returned``: nodes that
    somebody else has returned to service, and when. An impostor may have got any name: what is
    removed then is the machine whose name it took."""

    def __init__(self, world: World) -> None:
        self.removed: set[NodeName] = set()
        self.returned: dict[NodeName, float] = {}
        self._world = world
        self._chance = source(world.plan.seed, "pool scaler")
        self._look = 0
        self._is_calling = False
        self._written: dict[str, Any] = {}
        if world.plan.scaling is not None:
            self._scaling = world.plan.scaling
            self._scaler = Scaler(self._scaling.bounds)
            world.clock.after(self._scaling.interval_s, self._tick)

    def faults_stopped(self) -> None:
        """Whatever it has removed is to come back."""
        self._look += 1
        self.removed.clear()

    # --- a look at the pool ---------------------------------------------------------------------

    def _tick(self) -> None:
        world = self._world
        if world.faults_stopped:
            return
        world.clock.after(self._scaling.interval_s, self._tick)
        if self._chance.random() < self._scaling.dies:
            world.log.emit("scaler", "dies, and another goes on")
            self._scaler = Scaler(self._scaling.bounds)
            self._scaler.restore(self._written)
            self._look, self._is_calling = self._look + 1, False
        if self._is_calling:
            return
        core = world.master.core
        if core is None or world.sleepers.is_asleep(MASTER):
            return
        self._scaler.interrupted()
        self._look += 1
        sample = _sample(core, world.clock.now)
        orders = self._scaler.sampled(sample)
        self._written = self._scaler.as_json()
        if orders:
            world.log.emit("scaler", "; ".join(map(str, orders)))
        self._world.oracle.pool.decided(core, self._scaler, orders, self._others_drain(core))
        self._carry_out(self._look, orders)

    def _others_drain(self, core: MasterCore) -> bool:
        """May a node be drained by somebody else, or by a scaler that nothing is known of?"""
        injected = self._world.network.injected
        return (injected["drain"] + injected["old-store"]) > 0

    def _carry_out(self, look: int, orders: list[ScalerOrder]) -> None:
        if look != self._look or self._world.faults_stopped:
            return
        if not orders:
            self._scaler.carried_out()
            self._written = self._scaler.as_json()
            return
        match orders[0]:
            case DrainNodes() | ReturnNodes() as order:
                self._drain(look, order, orders[1:])
            case CallHook() as call:
                self._is_calling = True
                self._world.clock.after(
                    self._chance.uniform(0.0, self._scaling.takes_s), self._hook, look, call
                )

    def _drain(self, look: int, order: DrainNodes | ReturnNodes, rest: list[ScalerOrder]) -> None:
        world, undo = self._world, isinstance(order, ReturnNodes)
        names = tuple(map(NodeName, order.names))

        def replied(result: c.Reply | c.Refuse) -> None:
            if isinstance(result, c.Reply):
                self._carry_out(look, rest)

        world.master.call(
            lambda call_id: e.DrainRequested(
                now=world.clock.now, call_id=call_id, nodes=names, undo=undo, reason=order.reason
            ),
            replied,
        )

    # --- the hook -------------------------------------------------------------------------------

    def _hook(self, look: int, call: CallHook) -> None:
        world = self._world
        self._is_calling = False
        if world.faults_stopped or look != self._look:
            return  # the process that called it has died
        fails = self._chance.random() < self._scaling.fails
        lies = self._chance.random() < self._scaling.lies
        world.log.emit("hook", f"fails: {fails}, lies: {lies}")
        if fails == lies:
            self._change_machines(call)
        following = self._scaler.hook_ended(not fails, world.clock.now)
        self._carry_out(look, following)

    def _change_machines(self, call: CallHook) -> None:
        world = self._world
        machines = {machine.name: machine for machine in world.machines}
        for name in map(NodeName, call.remove):
            machine = machines[name]
            if name not in self.returned and not world.network.injected["impostor"]:
                world.oracle.pool.removed(name, machine.processes.values())
            machine.crash()
            self.removed.add(name)
        there = [m for m in world.machines if m.name not in self.removed | world.gone]
        for name in sorted(self.removed)[: max(0, call.wanted_nodes - len(there))]:
            if name not in call.remove:
                world.clock.after(self._chance.uniform(*_BOOT_S), self._boot, machines[name])

    def _boot(self, machine: MachineActor) -> None:
        if machine.name in self.removed and machine.name not in self._world.gone:
            self.removed.discard(machine.name)
            machine.come_back(with_disk=False)


def _sample(core: MasterCore, now: float) -> PoolSample:
    """What ``hrm.autoscale.feed`` reads of the master's lists."""
    master_state = core.master_state
    nodes = [
        PoolNode(
            name=node.name,
            is_open=node.state is NodeState.ALIVE,
            containers=sum(
                map(_held, map(master_state.state.find, [x.unit_id for x in node.units]))
            ),
            capacity=_capacity(node.units),
        )
        for node in master_state.nodes.values()
        if node.state is not NodeState.LOST
    ]
    queues = map(_queue, queue_statuses(master_state, core.placement.queues))
    apps = map(_application, master_state.live.values())
    complete = master_state.sees_all(now)
    return pool_sample(now, nodes, apps, queues, None, is_complete=complete)


def _held(unit: UnitQueue | None) -> int:
    """Containers that hold or await something of a unit."""
    if unit is None:
        return 0
    waiting = (unit.stream_waiting, unit.batch_waiting, unit.yielding_waiting)
    return len(unit.running) + sum(map(len, waiting))


def _capacity(units: tuple[Any, ...]) -> Amount:
    each = [unit.capacity for unit in units]
    return (
        float(sum(x.vcores for x in each)),
        float(sum(x.memory_mib for x in each)),
        float(sum(x.gpu_memory_mib for x in each)),
    )


def _application(app: Application) -> PoolApplication:
    return PoolApplication(
        name=app.application_id,
        is_batch=app.record.workload_class is WorkloadClass.BATCH,
        executors=Counter(
            x.node for x in app.containers.values() if x.node and x.state not in _ELSEWHERE
        ),
        running_on=frozenset(
            x.node for x in app.containers.values() if x.node and x.state is ContainerState.RUNNING
        ),
    )


def _queue(status: QueueStatus) -> PoolQueue:
    waits = [(wait.reason, wait.containers) for wait in status.waiting]
    return PoolQueue(
        name=status.spec.name,
        is_leaf=status.is_leaf,
        used=status.used,
        pending=status.pending,
        maximum=_in_numbers(status.spec.maximum, status.maximum, math.inf),
        guaranteed=_in_numbers(status.spec.guaranteed, status.guaranteed, 0.0),
        held_share=held_share(waits, status.waiting_total - len(waits)),
        is_without_place=any(reason in WITHOUT_PLACE for reason, _ in waits),
    )


def _in_numbers(quota: Quota, amounts: Governed, otherwise: float) -> Amount:
    cores, memory, gpus = (
        otherwise if stated is None or stated.is_part else amount
        for stated, amount in zip(quota, amounts, strict=True)
    )
    return (cores, memory, gpus)
