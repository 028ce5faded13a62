"""The agent's reports to its master: its identity, the state of its containers, their usage.

The core has each container's state, the tracker its usage, the server the address of its logs. A
report combines the three.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hrm.agent.containers.logs import Logs
from hrm.agent.gpu.mps import Mps
from hrm.agent.machine import Machine
from hrm.agent.parts import StartShortcuts
from hrm.agent.tracker import Sample
from hrm.config import AgentSettings
from hrm.core.messages import commands as c
from hrm.core.node.core import NodeCore
from hrm.core.vocabulary.model import ContainerStatus
from hrm.core.vocabulary.node_requirement import Runtime
from hrm.v1 import node_pb2, policy_pb2
from hrm.wire import node_stream as node_wire

if TYPE_CHECKING:
    from hrm.agent.gpu.use_records import GpuUseRecords  # numpy, which a node without GPUs spares

__all__ = ["Reports"]


class Reports:
    """Builds them. ``sample``: the tracker's latest, None: none yet; ``endpoint`` where this agent
    serves."""

    def __init__(
        self,
        settings: AgentSettings,
        machine: Machine,
        core: NodeCore,
        *,
        logs: Logs,
        mps: Mps,
        shortcuts: StartShortcuts | None,
        runtimes: tuple[Runtime, ...],
        gpu_uses: GpuUseRecords | None,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._core = core
        self._logs = logs
        self._mps = mps
        self._shortcuts = shortcuts
        self._runtimes = runtimes
        self._gpu_uses = gpu_uses
        self.endpoint = ""
        self.sample: Sample | None = None

    def registration(self) -> node_pb2.NodeMessage:
        machine, settings, why = self._machine, self._settings, self._core.closed
        closed = f"closed: no container starts here: {why}" if why else ""
        return node_wire.from_registration(
            self._core.offers,
            [self.status(status) for status in self._core.statuses()],
            self._core.followed,
            self._runtimes,
            name=machine.name,
            identity=machine.identity,
            ownership_key=machine.ownership_key,
            incarnation=machine.incarnation,
            host=settings.host,
            endpoint=self.endpoint,
            isolation=machine.isolation.driver.name,
            spark_versions=[runtime.spark for runtime in self._runtimes],
            labels=settings.labels,
            preemption_grace_s=self._core.preemption_grace_s,
            platform=machine.platform,
            remarks=[remark for remark in (*machine.remarks, self._mps.remark, closed) if remark],
        )

    def heartbeat(self, command: c.SendHeartbeat) -> node_pb2.NodeMessage:
        shortcuts = self._shortcuts.report() if self._shortcuts is not None else ()
        return node_wire.from_heartbeat(
            self.sample.node if self.sample else None,
            [self.status(status) for status in command.statuses],
            shortcuts,
            () if self._gpu_uses is None else self._gpu_uses.news(),
            self._policies(),
        )

    def _policies(self) -> list[policy_pb2.LearnedPolicy]:
        """Learned policies of this agent that have changed."""
        guard = self._gpu_uses.guard if self._gpu_uses is not None else None
        return [] if guard is None else guard.changed(time.time())

    def status(self, status: ContainerStatus) -> ContainerStatus:
        """A container's status with what the core does not know, if the container ever ran."""
        if status.started_at_s != 0.0:
            used = self.sample.containers.get(status.container_id) if self.sample else None
            status = replace(
                status,
                stdout_url=self._logs.page(status.container_id, "stdout"),
                stderr_url=self._logs.page(status.container_id, "stderr"),
                usage=used,
            )
        return status
