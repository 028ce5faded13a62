"""A real cluster for pipelines on this machine: ``hrm master`` and two ``hrm agent``, processes.

The agents declare their resources: no device stands behind their GPUs, GPU versions run on the CPU,
and they share this machine's cores. Two small ones (``SMALL``) that differ, so that policies do. A
learned cluster policy decides only among about as many nodes as it was trained with, and on nodes
like those: for one the agents declare servers of table 4 of the LDWP paper, three (``ldwp-set``) or
seven (``ldwp``), so that there are still enough when one is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.common import REPOSITORY, cache_dir
from benchmarks.processes import (
    MARK,
    BenchmarkError,
    Started,
    new_mark,
    start,
    sweep,
    tail,
    wait_until,
)
from hrm import rpc
from hrm.master.node_policies import NodePolicies
from hrm.master.policy_service import save_modes
from hrm.pipelines.policies import corun
from hrm.pipelines.policies.cluster import LEARNED
from hrm.pipelines.sim.scenario import NODE_TYPES, NodeType
from hrm.pipelines.sim.worker import MEMORY_SHARE
from hrm.policies.guard import GuardMode
from hrm.v1 import admin_pb2, policy_pb2
from hrm.v1.admin_pb2_grpc import AdminServiceStub
from hrm.v1.policy_pb2_grpc import PolicyServiceStub

__all__ = ["Cluster", "Decisions", "Node", "cluster", "nodes_of"]

READY_S = 60.0
_KEPT = ("HRM_DETECTOR_WEIGHTS",)
_ENDED = re.compile(r"\] task ended .*\btask=(\S+)")


class Node(NamedTuple):
    """What a node offers. ``gpu_memory_mib``: of each of its ``gpus``."""

    name: str
    platform: str
    cores: int
    gpu: str
    gpu_memory_mib: int
    memory_mib: int
    gpus: int = 1

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.cores} cores, {self.gpus} GPUs {self.gpu} of "
            f"{self.gpu_memory_mib} MiB, {self.memory_mib} MiB"
        )


SMALL = (Node("n1", "p4", 2, "P4", 4096, 3072), Node("n2", "k80", 1, "K80", 2048, 2048))
_SERVERS = {"ldwp-set": 3, "ldwp": 7}
_TYPES = ("2", "1", "3", "2", "3", "2", "1")


def nodes_of(cluster_policy: str) -> tuple[Node, ...]:
    """The nodes of a cluster under this policy; the second is the one that is killed."""
    count = _SERVERS.get(cluster_policy)
    if count is None:
        return SMALL
    return tuple(_server(f"n{i}", NODE_TYPES[kind]) for i, kind in enumerate(_TYPES[:count], 1))


def _server(name: str, kind: NodeType) -> Node:
    memory_mib = int(MEMORY_SHARE * kind.memory_mib)
    return Node(
        name, f"type-{kind.name}", kind.cores, kind.gpu_model, kind.gpu_memory_mib, memory_mib,
        kind.gpus,
    )  # fmt: skip


class Decisions(NamedTuple):
    """Of a learned policy: calls, those that it decided itself, and why not the others."""

    asked: int
    learned: int
    fallbacks: dict[str, int]


class Cluster:
    """Both stages' policies are the daemons' own settings, learned ones in ``mode``; ``close``
    ends all processes."""

    def __init__(
        self,
        directory: Path,
        cluster_policy: str,
        node_policy: str,
        mode: GuardMode = GuardMode.ON,
    ) -> None:
        self.directory = directory
        self.token_file = directory / "token"
        self.node_policy = node_policy
        self.nodes = nodes_of(cluster_policy)
        self._mark = new_mark()
        self._agents: dict[str, Started] = {}
        state = directory / "master"
        state.mkdir(parents=True)
        if cluster_policy in LEARNED:
            save_modes(state, {cluster_policy: mode})
        name, _ = corun.parse(node_policy)
        if name in corun.LEARNED:
            NodePolicies(state, lambda _order: None, lambda _node: 0.0).set_mode(name, mode)
        self._master = self._start(
            "master",
            *("master", "--port", "0", "--state-dir", str(directory / "master")),
            *("--token-file", str(self.token_file), "--pipeline-policy", cluster_policy),
            *("--heartbeat-interval-s", "0.5", "--node-timeout-s", "5"),
            *("--pipeline-worker-idle-s", "1"),
        )
        address = directory / "master" / "address"
        try:
            self._until(address.exists, "hrm master serves")
        except BaseException:
            self.close()
            raise
        self.address = address.read_text().strip()

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _start(self, name: str, *arguments: str) -> Started:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HRM_") or k in _KEPT}
        environment = {
            **kept,
            MARK: self._mark,
            "NO_COLOR": "1",
            "PYTHONPATH": str(REPOSITORY),
            "HRM_HOME": str(self.directory / "home"),
            "HRM_BENCH_CACHE": str(cache_dir()),
        }
        command = [sys.executable, "-m", "hrm.cli", *arguments]
        # Outside the repository: the pipelines' modules must come with the tasks.
        return start(command, log=self.log(name), environment=environment, directory=self.directory)

    def _until(self, condition: object, what: str) -> None:
        assert callable(condition)

        def holds() -> bool:
            for name, one in {"master": self._master, **self._agents}.items():
                if not one.running:
                    raise BenchmarkError(f"hrm {name} ended:\n{tail(self.log(name))}")
            return bool(condition())

        wait_until(holds, READY_S, what)

    def join(self) -> None:
        """Start the agents and wait until the master has them."""
        for node in self.nodes:
            gpu = {"memory_mib": node.gpu_memory_mib, "name": node.gpu}
            self._agents[node.name] = self._start(
                node.name,
                *("agent", "--master", self.address, "--name", node.name),
                *("--work-dir", str(self.directory / node.name), "--isolation", "none"),
                *("--run-as", "off"),
                *("--token-file", str(self.token_file), "--platform", node.platform),
                # Nothing is pinned: all share this machine's cores.
                *("--cores", str(node.cores), "--memory-mib", str(node.memory_mib)),
                *("--gpus", json.dumps([gpu] * node.gpus)),
                *("--pipeline-policy", self.node_policy),
            )
        self._until(lambda: asyncio.run(self._living()) == len(self.nodes), "the agents join")

    async def _living(self) -> int:
        async with rpc.channel(self.address, rpc.read_token(self.token_file)) as channel:
            request = admin_pb2.ListNodesRequest(states=["NODE_STATE_ALIVE"])
            answer = await AdminServiceStub(channel).ListNodes(request, timeout=READY_S)
        return len(answer.nodes)

    def has(self, name: str, worker: str) -> bool:
        """Whether the node has that worker's directory."""
        return next((self.directory / name).rglob(worker), None) is not None

    def kill(self, name: str) -> None:
        """SIGKILL for the agent and its workers, as when the node itself dies."""
        agent = self._agents.pop(name)
        os.killpg(agent.process.pid, signal.SIGKILL)
        agent.process.wait(10)
        _end_all(self.directory / name)

    def ends_reported(self) -> Counter[str]:
        """How often the master has ended each task, according to its log."""
        text = self.log("master").read_text(errors="replace")
        return Counter(_ENDED.findall(text))

    def refusals(self) -> int:
        """Starts of node policies that were not allowed, or calls that failed; all workers, by
        their logs."""
        total = 0
        for log in self.directory.rglob("stderr*"):
            lines = _events(log, "the node policy was not followed")
            total += sum(max(int(str(one[key])) for one in lines) if lines else 0
                         for key in ("refused", "failed"))  # fmt: skip
        return total

    async def decisions(self) -> dict[str, Decisions]:
        """What each learned policy decided; one of nodes is the sum over those that live."""
        async with rpc.channel(self.address, rpc.read_token(self.token_file)) as channel:
            shown = await PolicyServiceStub(channel).ShowPolicies(policy_pb2.ShowPoliciesRequest())
        found: dict[str, Decisions] = {}
        for one in shown.policies:
            before = found.get(one.policy, Decisions(0, 0, {}))
            why = Counter(before.fallbacks) + Counter(dict(one.fallbacks))
            found[one.policy] = Decisions(
                before.asked + one.asked, before.learned + one.learned, dict(why)
            )
        return found

    def close(self) -> None:
        """End everything, agents first."""
        for one in [*self._agents.values(), self._master]:
            one.end()
        for node in self.nodes:
            _end_all(self.directory / node.name)
        sweep(self._mark)


def _end_all(work_dir: Path) -> None:
    """End what an agent has started, by its directory: containers have an environment of their
    own, and outlive the agent."""
    for process in psutil.process_iter(["cwd", "cmdline"]):
        known = [process.info["cwd"] or "", *(process.info["cmdline"] or ())]
        if any(one.startswith(f"{work_dir}/") for one in known):
            with contextlib.suppress(psutil.Error):
                process.kill()


def _events(log: Path, event: str) -> list[dict[str, object]]:
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            held = json.loads(line)
            if isinstance(held, dict) and held.get("event") == event:
                found.append(held)
    return found


@contextlib.contextmanager
def cluster(
    directory: Path, cluster_policy: str, node_policy: str, mode: GuardMode = GuardMode.ON
) -> Iterator[Cluster]:
    """A running master without agents; ``Cluster.join`` starts them."""
    running = Cluster(directory, cluster_policy, node_policy, mode)
    try:
        yield running
    finally:
        running.close()
