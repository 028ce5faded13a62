"""What a machine of the fault simulator records of its containers' use of GPUs.

Uses are those that the plan has, or drawn from the seed by kind (``hrm.sim.faults.gpu_waiters``).
A container is sampled once in each part of its life, as far as it comes, when it ends: what a
driver of Spark does with it is known only then. The record is on the disk, which outlives the
agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hrm.core.vocabulary.bounds import GpuWaiterBounds
from hrm.core.vocabulary.gpu_use import USE_PARTS
from hrm.core.vocabulary.model import ContainerEnd, ContainerId, ContainerSpec
from hrm.policies.shared_gpu.container_uses import ContainerKind, ContainerUses, kind_of
from hrm.policies.shared_gpu.look_ahead import LookAhead
from hrm.policies.shared_gpu.waiters import ProfiledWaiters
from hrm.sim.faults.gpu_waiters import use_of
from hrm.sim.faults.plan import GpuWaitersPlan

if TYPE_CHECKING:
    from hrm.sim.actors.machine_actor import MachineActor

__all__ = ["RecordedUses"]


class RecordedUses:
    """``bounds``: as the plan has them."""

    def __init__(self, machine: MachineActor, plan: GpuWaitersPlan, *, empty: bool = False) -> None:
        self._machine = machine
        self._plan = plan
        self._true = dict(plan.known)
        self._uses = ContainerUses(() if empty else plan.known)
        self._kinds: dict[ContainerId, tuple[ContainerKind, float]] = {}
        self.bounds: GpuWaiterBounds = plan.bounds
        machine.world.oracle.gpu_waiters.machine(machine.name, self._uses.get, plan.bounds)

    def policy(self) -> ProfiledWaiters:
        """For a new agent."""
        return ProfiledWaiters(self._uses, LookAhead())

    def emptied(self) -> RecordedUses:
        """On a new disk."""
        return RecordedUses(self._machine, self._plan, empty=True)

    def began(self, spec: ContainerSpec) -> None:
        kind = kind_of(spec)
        if kind is not None:
            self._kinds[spec.container_id] = kind, self._machine.clock_s()
            self._uses.began(spec, self._machine.clock_s())

    def ended(self, container_id: ContainerId, end: ContainerEnd, *, seen: bool) -> None:
        """``seen``: by the agent that started it."""
        kind, began_s = self._kinds.pop(container_id, (None, 0.0))
        if kind is None or not seen:
            self._uses.forget(container_id)
            return
        now = self._machine.clock_s()
        true = self._true.get(kind)
        parts = use_of(self._machine.world.plan.seed, kind) if true is None else true.parts
        for number, part in enumerate(parts):
            at_s = began_s + (now - began_s) * number / USE_PARTS
            fault = self._uses.sampled(container_id, part, at_s)
            assert not fault, fault
        self._uses.ended(container_id, end, now)
