"""A master that speaks the real protocol and decides nothing, and agents for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from hrm import rpc_server
from hrm.core.vocabulary.model import ContainerId
from hrm.tls_server import ServerTls, listen
from hrm.v1 import common_pb2, node_pb2, node_pb2_grpc, policy_pb2
from tests.conftest import PYTHON_PATH

REPOSITORY = Path(__file__).parents[2]
TOKEN = "the-token-of-the-tests"
ENDED = common_pb2.CONTAINER_STATE_ENDED
RUNNING = common_pb2.CONTAINER_STATE_RUNNING
LIMIT_S = 20.0
FOREVER = "echo set; exec sleep 600"
TRAPPED = "trap 'echo bye; exit 0' TERM; echo set; while :; do sleep 0.05; done"


class Master(node_pb2_grpc.NodeServiceServicer):
    """Registers every agent, keeps what it receives, sends what the test orders."""

    def __init__(self) -> None:
        self.epoch = 1
        self.registrations: list[node_pb2.RegisterNode] = []
        self.heartbeats: list[node_pb2.NodeHeartbeat] = []
        self.replies: list[node_pb2.RebindingAnswer] = []
        self.statuses: dict[str, common_pb2.ContainerStatus] = {}
        self.refuse: grpc.StatusCode | None = None
        self.port = 0
        self.secure: ServerTls | None = None
        self._changed = asyncio.Condition()
        self._out: asyncio.Queue[node_pb2.MasterMessage | None] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = grpc.aio.server(
            interceptors=[rpc_server.AccessInterceptor(TOKEN)], options=rpc_server.SERVER_OPTIONS
        )
        node_pb2_grpc.add_NodeServiceServicer_to_server(self, self._server)
        self.port = listen(self._server, f"127.0.0.1:{port}", self.secure, allow_clear_text=False)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def Connect(  # noqa: N802
        self, messages: AsyncIterator[node_pb2.NodeMessage], context: Any
    ) -> AsyncIterator[node_pb2.MasterMessage]:
        if self.refuse is not None:
            await context.abort(self.refuse, "another live agent has the name")
        first = await anext(messages)
        self._out = asyncio.Queue()
        await self._received(first)
        yield self._message(registered=node_pb2.NodeRegistered(heartbeat_interval_s=0.1))
        listening = asyncio.create_task(self._listen(messages))
        try:
            while (message := await self._out.get()) is not None:
                yield message
        finally:
            listening.cancel()

    def _message(self, **fields: Any) -> node_pb2.MasterMessage:
        return node_pb2.MasterMessage(epoch=self.epoch, **fields)

    async def _listen(self, messages: AsyncIterator[node_pb2.NodeMessage]) -> None:
        async for message in messages:
            await self._received(message)
        await self._out.put(None)

    async def _received(self, message: node_pb2.NodeMessage) -> None:
        kind = message.WhichOneof("message")
        if kind == "register":
            self.registrations.append(message.register)
            statuses = list(message.register.containers)
        elif kind == "heartbeat":
            self.heartbeats.append(message.heartbeat)
            statuses = list(message.heartbeat.containers)
        elif kind == "rebinding":
            self.replies.append(message.rebinding)
            statuses = []
        else:
            statuses = [message.container]
        for status in statuses:
            self.statuses[status.container_id] = status
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], object], limit_s: float = LIMIT_S) -> Any:
        """The first true value of ``condition``, tested with every message."""
        async with asyncio.timeout(limit_s), self._changed:
            return await self._changed.wait_for(condition)

    async def until_state(self, container_id: str, state: int) -> common_pb2.ContainerStatus:
        def status() -> common_pb2.ContainerStatus | None:
            found = self.statuses.get(container_id)
            return found if found is not None and found.state == state else None

        found = await self.until(status)
        assert isinstance(found, common_pb2.ContainerStatus)
        return found

    def assign(
        self,
        container_id: str,
        command: str,
        memory_mib: int = 256,
        *,
        unit: int = 0,
        gpu_memory_mib: int = 0,
        workload_class: common_pb2.WorkloadClass = common_pb2.WORKLOAD_CLASS_BATCH,
        decommissions: bool = True,
        decommission_signal: str = "",
        user: str = "",
        application_name: str = "",
        **more: Any,
    ) -> None:
        spec = common_pb2.ContainerSpec(
            container_id=container_id,
            application_id=container_id.rpartition("-x")[0] or "app-1",
            executor_id="1",
            workload_class=workload_class,
            resources=common_pb2.Resources(
                vcores=1, memory_mib=memory_mib, gpu_memory_mib=gpu_memory_mib
            ),
            resource_unit_id=self.registrations[-1].resource_units[unit].resource_unit_id,
            launch=common_pb2.SparkLaunch(
                environment={"COMMAND": command, **more},
                decommissions=decommissions,
                decommission_signal=decommission_signal,
            ),
            user=user,
            application_name=application_name,
        )
        self._out.put_nowait(self._message(assign=spec))

    def rebind(self, request_id: int, **request: Any) -> None:
        message = node_pb2.RebindUnits(request_id=request_id, **request)
        self._out.put_nowait(self._message(rebind=message))

    def order_stop(self, container_id: str, grace_s: float = 5.0) -> None:
        stop = node_pb2.StopContainer(
            container_id=container_id,
            cause=common_pb2.END_CAUSE_RELEASED,
            reason="no longer needed",
            grace_s=grace_s,
        )
        self._out.put_nowait(self._message(stop=stop))

    def order_policy(self, policy: str, mode: str, number: int) -> None:
        order = policy_pb2.PolicyOrder(policy=policy, mode=mode, order=number)
        self._out.put_nowait(self._message(policy=order))

    def acknowledge(self, container_id: ContainerId | str) -> None:
        message = node_pb2.AcknowledgeEnded(container_ids=[container_id])
        self._out.put_nowait(self._message(acknowledge=message))

    def hang_up(self) -> None:
        self._out.put_nowait(None)


@pytest.fixture
async def master() -> AsyncIterator[Master]:
    master = Master()
    await master.start()
    yield master
    await master.stop()


class AgentProcess:
    """One agent in a process of its own."""

    def __init__(self, settings: dict[str, Any], log: Path) -> None:
        self.work_dir = log.parent / settings["work_dir"]
        self._log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.agent.plain_agent", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=log.parent,
                env={**os.environ, "PYTHONPATH": PYTHON_PATH},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def until_logged(self, part: str, limit_s: float = LIMIT_S) -> None:
        async with asyncio.timeout(limit_s):
            while part not in self.log:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)

    def stdout_of(self, container_id: str) -> str:
        """A container's standard output."""
        path = self.work_dir / "containers" / container_id / "stdout"
        return path.read_text() if path.exists() else ""

    def ready(self) -> dict[str, Any]:
        document = json.loads((self.work_dir / "ready.json").read_text())
        assert isinstance(document, dict)
        return document

    async def ended(self, limit_s: float = LIMIT_S) -> tuple[int, str]:
        """Exit status and stdout."""
        out, _ = await asyncio.to_thread(self.process.communicate, timeout=limit_s)
        return self.process.returncode, out.decode()

    async def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        self.process.kill()
        await self.ended()


StartAgent = Callable[..., AgentProcess]


@pytest.fixture
def start_agent(tmp_path: Path, master: Master) -> Iterator[StartAgent]:
    """Start an agent of this test's master; keyword arguments are settings."""
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    agents: list[AgentProcess] = []

    def start(**more: Any) -> AgentProcess:
        settings = {
            "master": f"127.0.0.1:{master.port}",
            "name": "node-1",
            "work_dir": str(tmp_path / "work"),
            "token_file": str(token_file),
            "cores": 2,
            "memory_mib": 1024,
            "usage_interval_s": 0.1,
            "stop_grace_s": 2.0,
            "reconnect_delay_max_s": 0.5,
            "run_as": "off",
            "mps": "off",  # its daemon outlives an agent that a test kills
            **more,
        }
        agents.append(AgentProcess(settings, tmp_path / f"agent-{len(agents)}.log"))
        return agents[-1]

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.terminate()
            try:
                agent.process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                agent.process.kill()
                agent.process.communicate()
        if agent.process.stdout is not None:
            agent.process.stdout.close()
    _end_leftovers(tmp_path)


def _end_leftovers(tmp_path: Path) -> None:
    """A test that fails after killing its agent leaves shims: end them, too."""
    for path in tmp_path.glob("**/process.json"):
        if not path.with_name("exit.json").exists():
            pid = json.loads(path.read_text())["shim_pid"]
            if str(path.parent) in _command_line(pid):
                os.kill(pid, signal.SIGTERM)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def until(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.02)


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as page:
        content = page.read()
    assert isinstance(content, bytes)
    return content


def groups_of(identity: str) -> list[str]:
    """Names in the cgroup directories of an agent, in every hierarchy."""
    found = Path("/sys/fs/cgroup").glob(f"*/hrm/{identity}/*")
    return [path.name for path in found]
