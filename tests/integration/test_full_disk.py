"""A real master whose disk is full, and one whose backup is restored, under agents that live on.

The master's state directory is a file system of one MiB; containers run ``sh``.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hrm import rpc
from hrm.v1 import admin_pb2, application_pb2, common_pb2, events_pb2, events_pb2_grpc
from tests.conftest import PATIENCE, small_disk
from tests.integration.test_schedulers import cluster_of, end_agent, start_agent
from tests.master.test_services import registration
from tests.scheduler.test_daemon import TIMEOUT_S, until
from tests.scheduler.test_daemon import Cluster as Daemons

pytestmark = pytest.mark.timeout(180)

PIECE = 4096
WORK = 'until [ -e "$END" ]; do sleep 0.05; done'
RUNNING, ENDED = common_pb2.CONTAINER_STATE_RUNNING, common_pb2.CONTAINER_STATE_ENDED


class Disk:
    """The file system of a master, and the file that fills it."""

    def __init__(self, directory: Path) -> None:
        self._filler = directory / "filler"

    def fill(self) -> None:
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(PIECE))

    def free_disk(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "master") as directory:
        yield Disk(directory)


class Application:
    """An AppMaster without a driver."""

    def __init__(self, daemons: Daemons, end: Path) -> None:
        self.daemons, self.end = daemons, end
        self.id = ""
        self.session: Any = None

    async def begin(self, key: str) -> Application:
        launch = common_pb2.SparkLaunch(environment={"COMMAND": WORK, "END": str(self.end)})
        request = registration(submission_key=key, launch=launch)
        response = await self.daemons.applications.Register(request, timeout=TIMEOUT_S)
        self.id = response.application_id
        self.session = self.daemons.applications.Session()
        attach = application_pb2.AttachApplication(application_id=self.id, epoch=response.epoch)
        await self.session.write(application_pb2.ApplicationUpdate(attach=attach))
        await self.session.read()
        return self

    async def ask(self, executor: str) -> None:
        request = application_pb2.RequestContainers(
            containers=[
                application_pb2.ContainerRequest(
                    executor_id=executor,
                    resources=common_pb2.Resources(vcores=1, memory_mib=64),
                )
            ]
        )
        await self.session.write(application_pb2.ApplicationUpdate(request=request))

    async def release(self, executor: str) -> None:
        release = application_pb2.ReleaseContainers(executor_ids=[executor])
        await self.session.write(application_pb2.ApplicationUpdate(release=release))

    async def has(self, state: int, *executors: str) -> bool:
        shown = await self.daemons.show(self.id)
        return {x.executor_id for x in shown.containers if x.state == state} == set(executors)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Daemons]:
    """A master, and an agent with a node of four cores."""
    daemons = Daemons(directory)
    agent = None
    try:
        await daemons.start_master()
        agent = start_agent(daemons)
        await until(partial(_alive, daemons), "the agent to register")
        yield daemons
    finally:
        if agent is not None:
            await end_agent(agent)
        await daemons.close()


async def _alive(daemons: Daemons) -> bool:
    return bool((await cluster_of(daemons)).nodes_alive == 1)


async def _is_paused(daemons: Daemons, wanted: bool = True) -> bool:
    return bool((await cluster_of(daemons)).paused) is wanted


async def applications_of(daemons: Daemons) -> set[str]:
    request = admin_pb2.ListApplicationsRequest(include_ended=True, limit=10_000)
    listed = await daemons.admin.ListApplications(request, timeout=TIMEOUT_S)
    return {app.application_id for app in listed.applications}


async def test_a_full_disk_pauses_the_master_and_nothing_acknowledged_is_lost(
    tmp_path: Path, disk: Disk
) -> None:
    end = tmp_path / "end"
    async with serving(tmp_path) as daemons:
        app = await Application(daemons, end).begin("key-0")
        await app.ask("1")
        await until(lambda: app.has(RUNNING, "1"), "its executor")
        acknowledged = {app.id}

        disk.fill()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            for number in range(1, 2_000):
                other = await Application(daemons, end).begin(f"key-{number}")
                acknowledged.add(other.id)
                disk.fill()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the master is paused: the disk of" in (refused.value.details() or "")
        assert str(tmp_path / "master") in (refused.value.details() or "")
        assert rpc.error_from(refused.value, "").message == refused.value.details()

        await app.ask("2")  # what needs no write continues
        await until(lambda: app.has(RUNNING, "1", "2"), "another executor")
        await app.release("1")
        await until(lambda: app.has(RUNNING, "2"), "its end")
        cluster = await cluster_of(daemons)
        assert "is full" in cluster.paused
        shown = await daemons.admin.ListNodes(admin_pb2.ListNodesRequest(), timeout=TIMEOUT_S)
        assert shown.nodes[0].last_heard_s_ago < 5.0
        status = await asyncio.to_thread(_hrm, daemons, "status")
        assert "paused" in status.stdout
        assert "free some space there, and it resumes by itself" in status.stdout
        health = health_pb2_grpc.HealthStub(daemons.channel)
        serves = await health.Check(health_pb2.HealthCheckRequest(service="hrm.v1.AdminService"))
        assert serves.status == health_pb2.HealthCheckResponse.SERVING

        disk.free_disk()
        await until(partial(_is_paused, daemons, False), "the master to resume")
        later = await Application(daemons, end).begin("later")
        acknowledged.add(later.id)
        stub: Any = events_pb2_grpc.EventServiceStub(daemons.channel)
        events = [
            event
            async for page in stub.WatchEvents(events_pb2.WatchEventsRequest(limit=10_000))
            for event in page.events
        ]
        printed = [event.to_state for event in events if event.kind == "master"]
        assert printed == ["paused", "resumed"]

        daemons.master.kill()
        daemons.master.wait(TIMEOUT_S)
        (tmp_path / "master" / "address").unlink()
        await daemons.start_master()
        assert acknowledged <= await applications_of(daemons)
        end.touch()


def _hrm(daemons: Daemons, *arguments: str) -> subprocess.CompletedProcess[str]:
    import sys

    return subprocess.run(
        [sys.executable, "-m", "hrm.cli", *arguments, "--master", daemons.address],
        env=daemons.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 60,
        check=False,
    )


async def test_a_full_disk_at_the_start_is_one_line_and_may_be_tried_again(
    tmp_path: Path, disk: Disk
) -> None:
    daemons = Daemons(tmp_path)
    try:
        for first in (True, False):
            if not first:
                await daemons.start_master()
                daemons.master.kill()
                daemons.master.wait(TIMEOUT_S)
                (tmp_path / "master" / "address").unlink()
            disk.fill()
            failed = daemons.start("master", "--port", "0")
            assert await asyncio.to_thread(failed.wait, TIMEOUT_S) == 1, "systemd tries that again"
            (line,) = daemons.log().read_text().splitlines()
            assert line.startswith("error: the master is paused: the disk of"), line
            disk.free_disk()
        await daemons.start_master()
    finally:
        await daemons.close()


async def test_a_backup_is_restored_under_agents_that_live_on(tmp_path: Path) -> None:
    end, backup = tmp_path / "end", tmp_path / "backup"

    def command(*flags: str) -> subprocess.CompletedProcess[str]:
        import sys

        return subprocess.run(
            [sys.executable, "-m", "hrm.cli", "master", *flags],
            env=daemons.environment, capture_output=True, text=True,
            timeout=PATIENCE * 60, check=False,
        )  # fmt: skip

    async with serving(tmp_path) as daemons:
        app = await Application(daemons, end).begin("key-0")
        await app.ask("1")
        await until(lambda: app.has(RUNNING, "1"), "its executor")
        made = await asyncio.to_thread(command, "--backup", str(backup))
        assert made.returncode == 0, made.stderr
        since = await Application(daemons, end).begin("key-1")
        refused = await asyncio.to_thread(command, "--restore", str(backup))
        assert refused.returncode == 2
        assert "another master uses" in refused.stderr

        for _ in range(2):  # the epoch of the backup is old by now
            daemons.master.kill()
            daemons.master.wait(TIMEOUT_S)
            (tmp_path / "master" / "address").unlink()
            await daemons.channel.close(None)
            port = daemons.address.rpartition(":")[2]
            if _ == 1:
                restored = await asyncio.to_thread(command, "--restore", str(backup))
                assert restored.returncode == 0, restored.stderr
                checked = await asyncio.to_thread(command, "--check")
                assert checked.returncode == 0, checked.stdout
            daemons.environment["HRM_MASTER_PORT"] = port
            await _start_on(daemons, port)
            await until(partial(_alive, daemons), "the agent to come back")

        known = await applications_of(daemons)
        assert app.id in known
        assert since.id not in known, "it was submitted after the backup"
        new = await Application(daemons, end).begin("key-2")
        await new.ask("1")
        await until(lambda: new.has(RUNNING, "1"), "an executor of the restored master")
        end.touch()
        await until(lambda: new.has(ENDED, "1"), "its end")


async def _start_on(daemons: Daemons, port: str) -> None:
    from hrm.v1 import admin_pb2_grpc, application_pb2_grpc

    daemons.master = daemons.start("master", "--port", port)
    address = daemons.directory / "master" / "address"
    await until(lambda: address.exists() and bool(address.read_text()), "the master to serve")
    daemons.channel = rpc.channel(daemons.address, rpc.read_token(daemons.directory / "token"))
    daemons.admin = admin_pb2_grpc.AdminServiceStub(daemons.channel)
    daemons.applications = application_pb2_grpc.ApplicationServiceStub(daemons.channel)
