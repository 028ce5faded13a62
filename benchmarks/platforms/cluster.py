"""A master and two nodes of unlike speed, each a platform, with a queue for each tenant."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from benchmarks.clusters import Shape
from benchmarks.platforms.plan import FAST, SLOW, Division, Plan
from benchmarks.platforms.throttle import Throttle
from benchmarks.processes import BenchmarkError, tail, wait_until
from benchmarks.processes import Started as StartedProcess
from benchmarks.processes import start as start_process
from benchmarks.startup import Started

__all__ = ["NODES", "UnlikeNodes", "shape_of"]

NODES = {"node-1": FAST, "node-2": SLOW}
_NODE_LIMIT_S = 60.0
_STOP_LIMIT_S = 30.0


def shape_of(plan: Plan) -> Shape:
    """Two nodes; executors of one core, as many as a tenant has a part in."""
    memory_mib = plan.executor_memory_mib + plan.executor_overhead_mib
    return Shape(
        nodes=len(NODES),
        cores_per_node=plan.slots,
        memory_per_node_mib=plan.slots * memory_mib,
        executor_memory_mib=plan.executor_memory_mib,
        executor_overhead_mib=plan.executor_overhead_mib,
        executors=plan.executors,
        executor_cores=1,
        shuffle_partitions=1,
    )


class UnlikeNodes(Started):
    """``hrm up`` starts the fast node; the slow one joins it. ``division``: None: as by default."""

    name = "platforms"

    def __init__(self, plan: Plan, directory: Path, division: Division | None) -> None:
        super().__init__(shape_of(plan), directory)
        self.plan = plan
        self._division = division
        self._slow: StartedProcess | None = None
        self.throttle = Throttle(
            self.state_dir / "nodes" / "node-2", plan.quota_cores, plan.start_cpu_s
        )

    def configure(self) -> None:
        memory_mib = self.plan.executors * self.shape.memory_per_node_mib // self.plan.slots
        guaranteed = f'{{ cores = {self.plan.executors}, memory = "{memory_mib}m" }}'
        tables = [
            f'[queues."{tenant.queue}"]\nguaranteed = {guaranteed}\n'
            for tenant in self.plan.tenants
        ]
        (self.state_dir / "hrm.toml").write_text("\n".join([self._master_table(), *tables]))

    def _master_table(self) -> str:
        if self._division is None:
            return ""
        return (
            "[master]\n"
            f'platform_division = "{self._division.policy}"\n'
            f'platform_affinity = "{self._division.measure}"\n'
            f"platform_move_after_s = {self.plan.move_after_s:g}\n"
        )

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "HRM_AGENT_PLATFORM": FAST,
            "HRM_AGENT_LABELS": f"speed={FAST}",
            "HRM_AGENT_ISOLATION": "cgroup1",
        }

    def up_command(self) -> list[str]:
        command = super().up_command()
        command[command.index("--nodes") + 1] = "1"
        return command

    def start(self) -> None:
        super().start()
        work_dir = self.state_dir / "nodes" / "node-2"
        command = self.command(
            "agent", "--master", self.master[len("hrm://") :], "--name", "node-2",
            "--port", 0, "--log-port", 0, "--work-dir", work_dir, "--run-as", "off",
            "--cores", self.shape.cores_per_node, "--memory-mib", self.shape.memory_per_node_mib,
            "--platform", SLOW, "--labels", f"speed={SLOW}", "--cpu-limit", "quota",
            "--token-file", self.token_file,
        )  # fmt: skip
        environment = {**self.environment(), "HRM_HOME": str(self.state_dir)}
        log = self.directory / "node-2.log"
        self._slow = start_process(command, log=log, environment=environment)
        wait_until(self._all_nodes, _NODE_LIMIT_S, "the slow node to join")
        self.throttle.start()
        self.settle()

    def settle(self) -> None:
        if self._slow is not None:
            super().settle()

    def _all_nodes(self) -> bool:
        assert self._slow is not None, "it is started first"
        if not self._slow.running:
            raise BenchmarkError(f"the slow node's agent ended:\n{tail(self._slow.log)}")
        return len(self.nodes()) == len(NODES)

    def stop(self) -> None:
        self.throttle.stop()
        if self._slow is not None and self._slow.running:
            os.kill(self._slow.process.pid, signal.SIGINT)  # it ends its containers then
            with contextlib.suppress(BenchmarkError):
                self._slow.wait(_STOP_LIMIT_S)
        super().stop()

    def platforms_of(self, application: str) -> dict[str, str]:
        """The platform of each executor of an application that a node has begun to launch."""
        found = {}
        for node, platform in NODES.items():
            for path in (self.state_dir / "nodes" / node / "containers").glob("*/container.json"):
                spec: dict[str, Any] = json.loads(path.read_text())["spec"]
                if spec["applicationId"] == application:
                    found[spec["executorId"]] = platform
        return found
