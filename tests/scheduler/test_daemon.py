"""Real processes: a master, two ``hrm scheduler``, and a node that reports orders as running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hrm import certificates, rpc
from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    application_pb2,
    application_pb2_grpc,
    common_pb2,
    node_pb2,
    node_pb2_grpc,
)
from tests.master.test_services import node, registration

TIMEOUT_S = 30.0


class Cluster:
    """A master in a process of its own, a node, and schedulers by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.schedulers: dict[str, subprocess.Popen[bytes]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sessions: list[Any] = []
        self.environment = {
            **os.environ,
            "HRM_HOME": str(directory),
            "HRM_TOKEN_FILE": str(directory / "token"),
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log(len(self._processes)).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hrm.cli", *arguments],
                env=self.environment,
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def log(self, number: int = -1) -> Path:
        """The output of process ``number``; the latest one by default."""
        return self.directory / f"{number if number >= 0 else len(self._processes) - 1}.log"

    def start_scheduler(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        arguments = ("--master", self.address, "--name", name, *more)
        self.schedulers[name] = self.start("scheduler", *arguments)
        return self.schedulers[name]

    async def start_master(self, **settings: str) -> None:
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
        self.master = self.start("master", "--port", "0", "--schedulers", "1", *flags)
        address = self.directory / "master" / "address"

        def up() -> bool:
            assert self.master.poll() is None, "the master ended"
            return address.exists() and address.read_text().endswith("\n")

        await until(up, "the master to serve")
        self.address = address.read_text().strip()
        self.channel = rpc.channel(self.address, rpc.read_token(self.directory / "token"))
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.applications: Any = application_pb2_grpc.ApplicationServiceStub(self.channel)

    async def run_node(self) -> None:
        """A node that immediately runs whatever it is sent."""
        stream: Any = node_pb2_grpc.NodeServiceStub(self.channel).Connect()
        await stream.write(node())
        sequence = 1
        async for message in stream:
            if message.WhichOneof("message") == "assign":
                spec = message.assign
                sequence += 1
                status = common_pb2.ContainerStatus(
                    container_id=spec.container_id,
                    application_id=spec.application_id,
                    executor_id=spec.executor_id,
                    workload_class=spec.workload_class,
                    resources=spec.resources,
                    resource_unit_id=spec.resource_unit_id,
                    state=common_pb2.CONTAINER_STATE_RUNNING,
                    node="n1",
                )
                await stream.write(node_pb2.NodeMessage(sequence=sequence, container=status))

    async def submit(
        self, number: int, stream: bool = False, executors: int = 1
    ) -> admin_pb2.Application:
        """Register, attach and request; returns the application as it is right after."""
        declared = common_pb2.WORKLOAD_CLASS_STREAM if stream else 0
        ask = registration(submission_key=f"key-{number}", declared_class=declared)
        registered = await self.applications.Register(ask, timeout=TIMEOUT_S)
        session = self.applications.Session()
        self._sessions.append(session)
        attach = application_pb2.AttachApplication(
            application_id=registered.application_id, epoch=registered.epoch
        )
        await session.write(application_pb2.ApplicationUpdate(attach=attach))
        await session.read()
        request = application_pb2.RequestContainers(
            containers=[
                application_pb2.ContainerRequest(
                    executor_id=str(1 + index),
                    resources=common_pb2.Resources(vcores=1, memory_mib=10),
                )
                for index in range(executors)
            ]
        )
        await session.write(application_pb2.ApplicationUpdate(request=request))
        return await self.show(registered.application_id)

    async def show(self, application_id: str) -> admin_pb2.Application:
        request = admin_pb2.GetApplicationRequest(application_id=application_id)
        found: admin_pb2.Application = await self.admin.GetApplication(request, timeout=TIMEOUT_S)
        return found

    async def scheduler_names(self) -> set[str]:
        cluster = await self.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S)
        return {each.name for each in cluster.schedulers}

    async def close(self) -> None:
        for session in self._sessions:
            session.cancel()
        if hasattr(self, "channel"):
            await self.channel.close(None)
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition, plain or awaited."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                holds = condition()
                if await holds if asyncio.iscoroutine(holds) else holds:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {TIMEOUT_S:.0f} s for {what}") from None


@asynccontextmanager
async def running(directory: Path, *names: str, **settings: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory)
    try:
        await cluster.start_master(**settings)
        serving = asyncio.create_task(cluster.run_node())
        for name in names:
            cluster.start_scheduler(name)
        for name in names:

            async def subscribed(name: str = name) -> bool:
                return name in await cluster.scheduler_names()

            await until(subscribed, f"{name} to subscribe")
        yield cluster
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    finally:
        await cluster.close()


async def runs(cluster: Cluster, app: admin_pb2.Application, executors: int = 1) -> bool:
    return (await cluster.show(app.application_id)).containers_running == executors


async def test_two_processes_and_the_master_place_containers(tmp_path: Path) -> None:
    async with running(tmp_path, "east", "west", lease_scope="candidates") as cluster:
        apps = [await cluster.submit(number, stream=number % 2 == 0) for number in range(4)]
        assert {app.scheduler for app in apps} == {"scheduler-1", "east", "west"}
        for app in apps:
            await until(partial(runs, cluster, app), f"{app.scheduler} to place")
        waiting = [await cluster.submit(number) for number in range(4, 7)]

        async def queued() -> bool:
            shown = [await cluster.show(app.application_id) for app in waiting]
            return all(app.containers_waiting + app.containers_running == 1 for app in shown)

        await until(queued, "the unit to be full and containers to queue there")
        east = cluster.schedulers["east"]
        east.terminate()
        assert await asyncio.to_thread(east.wait, TIMEOUT_S) == 0

        async def gone() -> bool:
            return await cluster.scheduler_names() == {"scheduler-1", "west"}

        await until(gone, "the master to forget east")


@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
async def test_the_jobs_of_a_killed_process_go_to_another(tmp_path: Path, stream: bool) -> None:
    async with running(tmp_path, "east") as cluster:
        cluster.schedulers["east"].send_signal(signal.SIGSTOP)
        apps = [await cluster.submit(number, stream) for number in range(2)]
        (stuck,) = [app for app in apps if app.scheduler == "east"]
        (other,) = [app for app in apps if app.scheduler != "east"]
        await until(lambda: runs(cluster, other), "the master's own scheduler to place")
        assert (await cluster.show(stuck.application_id)).containers_pending == 1
        cluster.schedulers["east"].kill()
        await until(lambda: runs(cluster, stuck), "another scheduler to place")
        assert (await cluster.show(stuck.application_id)).scheduler == "scheduler-1"


async def test_a_process_that_hangs_loses_its_jobs_and_may_come_back(tmp_path: Path) -> None:
    async with running(tmp_path, "east", scheduler_timeout_s="1") as cluster:
        east = cluster.schedulers["east"]
        east.send_signal(signal.SIGSTOP)
        apps = [await cluster.submit(number) for number in range(2)]
        for app in apps:
            await until(partial(runs, cluster, app), "every job to be placed")
        assert await cluster.scheduler_names() == {"scheduler-1"}
        east.send_signal(signal.SIGCONT)

        async def back() -> bool:
            return "east" in await cluster.scheduler_names()

        await until(back, "east to subscribe again")


async def test_mistakes_end_it_with_what_to_change(tmp_path: Path) -> None:
    certificates.make(tmp_path / "theirs", [])
    ca = str(tmp_path / "theirs" / "ca.pem")
    async with running(tmp_path, "east") as cluster:
        for arguments, expected, status in (
            (("--name", "x", "--tls-ca", f"{ca}.old"), b"No such file", 2),
            (("--name", "east"), b"--name", 1),
            (("--name", "a b"), b"letters, digits", 2),
            (("--name", "x", "--placement-policy", "none-such"), b"min-wait", 2),
        ):
            process = cluster.start("scheduler", "--master", cluster.address, *arguments)
            assert await asyncio.to_thread(process.wait, TIMEOUT_S) == status
            assert expected in cluster.log().read_bytes()
        # Without proof that it is the master, the other side may go away again.
        process = cluster.start(
            "scheduler", "--master", cluster.address, "--name", "x", "--tls-ca", ca
        )

        async def reported() -> bool:
            return b"speaks no TLS" in cluster.log().read_bytes()

        await until(reported, "a line about TLS")
        assert process.poll() is None
