"""Does a scaler of the pool remove, and drain, only what may go?

A machine that its hook is to remove runs nothing but what the master has given up, and has
stopped. What it drains holds no driver, nor the last
executors in service of a stream, and leaves as many nodes in service as there must be. No node
stands drained that nobody has drained: it would do so for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from hrm.core.master.core import MasterCore
from hrm.core.pool.scaler import DrainNodes, ReturnNodes, Scaler, ScalerOrder
from hrm.core.vocabulary.model import (
    DRIVER_PREFIX,
    ContainerSpec,
    ContainerState,
    NodeName,
    NodeState,
    WorkloadClass,
)

if TYPE_CHECKING:
    from hrm.sim.actors.machine_actor import ContainerProcess

__all__ = ["PoolChecks"]


class PoolChecks:
    """Of one run. ``removals``: how many machines have been removed. ``_core``: of the master whose
    state a scaler looked at last."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self.removals = 0
        self._core: MasterCore | None = None

    def removed(self, name: NodeName, processes: Iterable[ContainerProcess]) -> None:
        """The hook ends a machine on which these run."""
        self.removals += 1
        running = [
            x.spec.container_id for x in processes if x.order is None and self._counts(x.spec)
        ]
        if running:
            self._violated(f"{name} is removed from the pool, and runs {', '.join(running)}")

    def _counts(self, spec: ContainerSpec) -> bool:
        """Is it live for the master, or of an application that it may have lost?"""
        assert self._core is not None
        master_state = self._core.master_state
        app = master_state.applications.get(spec.application_id)
        return app is None or spec.container_id in app.containers

    def decided(
        self, core: MasterCore, scaler: Scaler, orders: Iterable[ScalerOrder], others_drain: bool
    ) -> None:
        """A scaler has looked at this master's state, and ordered this. ``others_drain``: so do
        others."""
        self._core = core
        nodes = core.master_state.nodes.values()
        in_service = {node.name for node in nodes if node.state is NodeState.ALIVE}
        known = {*scaler.leaving, *scaler.removed}
        for order in orders:
            if isinstance(order, DrainNodes):
                self._drained(core, scaler, in_service, {NodeName(x) for x in order.names})
            elif isinstance(order, ReturnNodes):
                known |= {*order.names}
        if others_drain:
            return
        for node in nodes:
            if node.state is NodeState.DRAINING and node.name not in known:
                self._violated(f"{node.name} is drained, and nobody will return it to service")

    def _drained(
        self, core: MasterCore, scaler: Scaler, in_service: set[NodeName], going: set[NodeName]
    ) -> None:
        left = in_service - going
        if len(left) < min(scaler.bounds.nodes_min, len(in_service)):
            self._violated(f"{len(left)} nodes are left in service of {len(in_service)}")
        for app in core.master_state.live.values():
            running = ContainerState.RUNNING
            places = {x.node for x in app.containers.values() if x.state is running}
            if app.application_id.startswith(DRIVER_PREFIX) and places & going:
                self._violated(f"{app.application_id} runs on a node that is to be removed")
            is_stream = app.record.workload_class is WorkloadClass.STREAM
            if is_stream and places & in_service and not places & left:
                self._violated(f"no executor of the stream {app.application_id} stays in service")
