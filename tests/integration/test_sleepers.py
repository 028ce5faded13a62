"""Real processes that are stopped, and a master whose state is lost: executors live on.

Containers are ``sh`` in place of Spark's executors; an AppMaster without a driver requests them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm import rpc
from hrm.core.vocabulary.bounds import Bounds
from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    application_pb2,
    application_pb2_grpc,
    common_pb2,
    node_pb2_grpc,
)
from tests.conftest import PATIENCE
from tests.integration.test_schedulers import end_agent, start_agent
from tests.master.test_services import node, registration
from tests.scheduler.test_daemon import TIMEOUT_S, Cluster, until

pytestmark = pytest.mark.timeout(240)

NODE_TIMEOUT_S = 2.0 * PATIENCE
SLEEP_S = 2.5 * NODE_TIMEOUT_S
SETTINGS = {
    "--node-timeout-s": NODE_TIMEOUT_S,
    "--application-grace-s": NODE_TIMEOUT_S,
    "--heartbeat-interval-s": 0.2,
}
PATIENT = ("--application-grace-s", "60")
"""With AppMasters: how long a master waits for those that its store does not know."""
RUNNING = common_pb2.CONTAINER_STATE_RUNNING
WORK = 'echo $$; until [ -e "$END" ]; do sleep 0.05; done'


class Daemons(Cluster):
    """A master that keeps its port across restarts, and an agent."""

    port = "0"

    async def serve(self, *more: str) -> None:
        """Start a master; the latest is ``master``."""
        flags = [word for name, value in SETTINGS.items() for word in (name, str(value))]
        self.master = self.start("master", "--port", self.port, "--schedulers", "1", *flags, *more)
        address = self.directory / "master" / "address"
        address.unlink(missing_ok=True)

        def up() -> bool:
            assert self.master.poll() is None, self.log().read_text()
            return address.exists() and address.read_text().endswith("\n")

        await until(up, "the master to serve")
        self.address = address.read_text().strip()
        self.port = self.address.rpartition(":")[2]
        if hasattr(self, "channel"):
            await self.channel.close(None)
        self.channel = rpc.channel(self.address, rpc.read_token(self.directory / "token"))
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.applications: Any = application_pb2_grpc.ApplicationServiceStub(self.channel)

    def kill_master(self) -> None:
        self.master.kill()
        self.master.wait(TIMEOUT_S)

    async def status(self) -> admin_pb2.Cluster:
        request = admin_pb2.GetClusterRequest()
        found: admin_pb2.Cluster = await self.admin.GetCluster(request, timeout=TIMEOUT_S)
        return found

    async def alive(self, many: int = 1) -> bool:
        return bool((await self.status()).nodes_alive == many)

    def hrm(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "hrm.cli", *arguments, "--master", self.address],
            env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        return done.stdout


class AppMaster:
    """Requests one executor, and reconnects when its session has broken."""

    def __init__(self, daemons: Daemons, key: str, end: Path) -> None:
        self.daemons = daemons
        self.key = key
        self.application_id = ""
        self.containers: dict[str, common_pb2.ContainerStatus] = {}
        self._end = end
        self._followed: dict[str, Any] = {}
        self._following: asyncio.Task[None] | None = None

    async def attach(self) -> None:
        launch = common_pb2.SparkLaunch(environment={"COMMAND": WORK, "END": str(self._end)})
        request = registration(
            submission_key=self.key, launch=launch, application_id=self.application_id,
            **self._followed,
        )  # fmt: skip
        response = await self.daemons.applications.Register(request, timeout=TIMEOUT_S)
        assert self.application_id in ("", response.application_id)
        self.application_id = response.application_id
        self._followed = {"followed_epoch": response.epoch, "followed_epoch_id": response.epoch_id}
        self.session = self.daemons.applications.Session()
        attach = application_pb2.AttachApplication(
            application_id=response.application_id, epoch=response.epoch
        )
        await self.session.write(application_pb2.ApplicationUpdate(attach=attach))
        hello = await self.session.read()
        self.containers = {x.executor_id: x for x in hello.attached.containers}
        self._following = asyncio.create_task(self._follow())

    async def come_back(self) -> None:
        """Like an AppMaster: repeatedly, for a while."""

        async def attached() -> bool:
            try:
                await self.attach()
            except Exception as error:
                self.problem = repr(error)
                return False
            return True

        await until(attached, "the master to take the AppMaster back")

    async def ask(self, executor: str) -> None:
        resources = common_pb2.Resources(vcores=1, memory_mib=64)
        container_request = application_pb2.RequestContainers(
            containers=[application_pb2.ContainerRequest(executor_id=executor, resources=resources)]
        )
        await self.session.write(application_pb2.ApplicationUpdate(request=container_request))

    async def _follow(self) -> None:
        async for notice in self.session:
            if notice.HasField("container"):
                self.containers[notice.container.executor_id] = notice.container
            for status in notice.changed.containers:
                self.containers[status.executor_id] = status

    def runs(self, executor: str) -> bool:
        status = self.containers.get(executor)
        return status is not None and status.state == RUNNING

    def leave(self) -> None:
        self.session.cancel()
        if self._following is not None:
            self._following.cancel()


@pytest.fixture
async def daemons(tmp_path: Path) -> AsyncIterator[Daemons]:
    subject = Daemons(tmp_path)
    await subject.serve()
    agent = start_agent(subject)
    subject.agent = agent  # type: ignore[attr-defined]
    try:
        await until(subject.alive, "the agent to register")
        yield subject
    finally:
        (tmp_path / "end").touch()
        agent.send_signal(signal.SIGCONT)
        await end_agent(agent)
        await subject.close()


async def begun(daemons: Daemons, key: str = "key-1") -> tuple[AppMaster, int]:
    """An application with one executor, and that one's process."""
    app = AppMaster(daemons, key, daemons.directory / "end")
    await app.attach()
    await app.ask("1")
    await until(partial(app.runs, "1"), "its executor to run")
    printed = daemons.directory / "work" / "containers" / f"{app.application_id}-x1" / "stdout"
    await until(lambda: printed.exists() and printed.read_text().endswith("\n"), "its first words")
    return app, int(printed.read_text())


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def passes(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    await until(lambda: time.monotonic() > until_s, "time to pass")


async def test_a_master_that_was_stopped_loses_nothing(daemons: Daemons) -> None:
    """Its node and an AppMaster report again a while after it has resumed."""
    staying, pid = await begun(daemons)
    away, other = await begun(daemons, "key-2")
    away.leave()

    async def detached() -> bool:
        shown = await daemons.show(away.application_id)
        return bool(shown.state == common_pb2.APPLICATION_STATE_DETACHED)

    await until(detached, "the master to miss the AppMaster")
    os.kill(daemons.master.pid, signal.SIGSTOP)
    agent = daemons.agent  # type: ignore[attr-defined]
    agent.send_signal(signal.SIGSTOP)
    await passes(SLEEP_S)
    os.kill(daemons.master.pid, signal.SIGCONT)
    await daemons.status()
    await passes(0.3 * NODE_TIMEOUT_S)
    agent.send_signal(signal.SIGCONT)
    await away.come_back()
    await passes(2 * NODE_TIMEOUT_S)
    status = await daemons.status()
    assert (status.nodes_alive, status.nodes_lost, status.applications_ended) == (1, 0, 0)
    assert "lost" not in daemons.hrm("events")
    assert "counts as no component's silence" in daemons.log().read_text()
    assert (staying.runs("1"), away.runs("1")) == (True, True)
    assert (lives(pid), lives(other)) == (True, True)


async def test_a_node_that_was_stopped_and_is_lost_serves_again(daemons: Daemons) -> None:
    """It slept for longer than the others wait; it does not count their silence meanwhile."""
    app, _ = await begun(daemons)
    agent = daemons.agent  # type: ignore[attr-defined]
    agent.send_signal(signal.SIGSTOP)

    async def lost() -> bool:
        return bool((await daemons.status()).nodes_lost == 1)

    await until(lost, "the node to be lost")
    agent.send_signal(signal.SIGCONT)
    await until(daemons.alive, "the node to come back")
    await app.ask("2")
    await until(partial(app.runs, "2"), "another executor to run there")


async def test_a_master_with_an_emptied_state_directory_takes_its_nodes_back(
    daemons: Daemons,
) -> None:
    app, pid = await begun(daemons)
    daemons.kill_master()
    shutil.rmtree(daemons.directory / "master")
    await daemons.serve(*PATIENT)
    await until(daemons.alive, "the agent to follow")
    new, _ = await begun(daemons, "key-2")
    await app.come_back()
    await until(partial(app.runs, "1"), "the old executor to be known")
    assert app.application_id != new.application_id
    assert (await daemons.status()).epoch == 2
    assert lives(pid), "it was never touched"
    assert "epoch raised: from 1 to 2" in daemons.hrm("events")
    assert "epoch 2" in daemons.hrm("status")
    assert "was the state directory emptied" in daemons.log().read_text()
    daemons.kill_master()
    await daemons.serve()
    assert (await daemons.status()).epoch == 3, "it was written down"


async def test_a_master_with_an_older_copy_of_its_state_takes_its_nodes_back(
    daemons: Daemons,
) -> None:
    daemons.kill_master()
    state, copy = daemons.directory / "master", daemons.directory / "copy"
    shutil.copytree(state, copy)
    for _ in range(2):
        await daemons.serve()
        await until(daemons.alive, "the agent to follow")
        daemons.kill_master()
    await daemons.serve()
    await until(daemons.alive, "the agent to follow")
    app, pid = await begun(daemons)
    assert (await daemons.status()).epoch == 4
    daemons.kill_master()
    shutil.rmtree(state)
    shutil.copytree(copy, state)
    await daemons.serve(*PATIENT)
    await until(daemons.alive, "the agent to follow")
    assert (await daemons.status()).epoch == 5
    await begun(daemons, "key-2")
    await app.come_back()
    await until(partial(app.runs, "1"), "the old executor to be known")
    assert lives(pid)


async def test_a_node_that_has_followed_a_later_master_is_named_and_never_alive(
    daemons: Daemons,
) -> None:
    """Its master was replaced, and it registers with the old one again."""
    app, _ = await begun(daemons)
    await passes(Bounds().recovery_window_s + 1.0)
    stream: Any = node_pb2_grpc.NodeServiceStub(daemons.channel).Connect()
    message = node("ahead", "ahead")
    message.register.followed_epoch, message.register.followed_epoch_id = 7, "another"
    await stream.write(message)
    with pytest.raises(grpc.RpcError, match="ahead has followed epoch 7, and this master has 1"):
        await asyncio.wait_for(stream.read(), TIMEOUT_S)
    await app.ask("2")
    why = daemons.hrm("app", "why", app.application_id)
    assert "ahead has followed epoch 7" in " ".join(why.split())
    nodes = await daemons.admin.ListNodes(admin_pb2.ListNodesRequest(), timeout=TIMEOUT_S)
    assert [each.name for each in nodes.nodes] == ["node-1"]
