"""Schedulers in processes of their own with a real master and real agents, and kills of them.

The light test has containers of ``sh`` in place of Spark's executors; the gang test is all Spark.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hrm import policies, rpc
from hrm.v1 import admin_pb2, application_pb2, application_pb2_grpc, common_pb2
from tests.integration.conftest import APPS, Cluster
from tests.master.test_services import registration
from tests.scheduler.test_daemon import TIMEOUT_S, until
from tests.scheduler.test_daemon import Cluster as Daemons
from tests.spark_tools import SparkTools

GPU_MIB = 2000
SLOW_POLICY = """
import os
import time
from pathlib import Path

from hrm.policies.min_wait import MinWait


class Slow(MinWait):
    '''Makes up its mind once the file of that name is gone; says that it thinks by another.'''

    def place(self, view, placement, now):
        gate = Path(os.environ["GATE"])
        while gate.exists():
            gate.with_suffix(".thinking").touch()
            time.sleep(0.02)
        return super().place(view, placement, now)
"""
WORK = 'echo "GPU $CUDA_VISIBLE_DEVICES"; until [ -e "$END" ]; do sleep 0.05; done'


class Application:
    """An AppMaster without a driver: it requests executors and tracks them."""

    def __init__(self, daemons: Daemons, application_id: str, session: Any) -> None:
        self.daemons = daemons
        self.application_id = application_id
        self._session = session
        self.containers: dict[str, common_pb2.ContainerStatus] = {}
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, daemons: Daemons, key: str, end: Path) -> Application:
        launch = common_pb2.SparkLaunch(environment={"COMMAND": WORK, "END": str(end)})
        request = registration(
            submission_key=key, declared_class=common_pb2.WORKLOAD_CLASS_STREAM, launch=launch
        )
        registered = await daemons.applications.Register(request, timeout=TIMEOUT_S)
        session = daemons.applications.Session()
        attach = application_pb2.AttachApplication(
            application_id=registered.application_id, epoch=registered.epoch
        )
        await session.write(application_pb2.ApplicationUpdate(attach=attach))
        await session.read()
        return cls(daemons, registered.application_id, session)

    async def ask(self, *executors: str) -> None:
        resources = common_pb2.Resources(vcores=1, memory_mib=64, gpu_memory_mib=GPU_MIB // 4)
        container_request = application_pb2.RequestContainers(
            containers=[
                application_pb2.ContainerRequest(executor_id=x, resources=resources, gpus=1)
                for x in executors
            ]
        )
        await self._session.write(application_pb2.ApplicationUpdate(request=container_request))
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for notice in self._session:
            if notice.HasField("container"):
                self.containers[notice.container.executor_id] = notice.container
            for status in notice.changed.containers:
                self.containers[status.executor_id] = status

    async def show(self) -> admin_pb2.Application:
        return await self.daemons.show(self.application_id)

    def all_in(self, state: int, many: int) -> bool:
        return [each.state for each in self.containers.values()] == [state] * many

    async def succeed(self) -> None:
        finished = application_pb2.ApplicationFinished(state="APPLICATION_STATE_SUCCEEDED")
        await self._session.write(application_pb2.ApplicationUpdate(finished=finished))
        assert self._following is not None
        await asyncio.wait_for(self._following, TIMEOUT_S)


def put_policy(folder: Path) -> None:
    """A package with the policy ``slow``, as an installer would leave it."""
    info = folder / "thinker-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "thinker.py").write_text(SLOW_POLICY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thinker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{policies.GROUP}]\nslow = thinker:Slow\n")


@asynccontextmanager
async def daemons_in(directory: Path) -> AsyncIterator[Daemons]:
    """A master, the schedulers ``east`` (whose policy waits while the gate exists) and ``west``,
    and an agent with a declared GPU."""
    put_policy(directory / "site")
    daemons = Daemons(directory)
    daemons.environment["GATE"] = str(directory / "gate")
    daemons.environment["HRM_AGENT_GPUS"] = json.dumps([{"memory_mib": GPU_MIB}])
    path = [str(directory / "site"), daemons.environment["PYTHONPATH"]]
    daemons.environment["PYTHONPATH"] = os.pathsep.join(path)
    agent = None
    try:
        await daemons.start_master(lease_timeout_s="60", scheduler_timeout_s="60")
        daemons.start_scheduler("east", "--placement-policy", "slow")
        await until(partial(subscribed, daemons, "east"), "east to subscribe")
        daemons.start_scheduler("west")
        await until(partial(subscribed, daemons, "west"), "west to subscribe")
        agent = start_agent(daemons)

        async def joined() -> bool:
            cluster = await cluster_of(daemons)
            return bool(cluster.nodes_alive == 1)

        await until(joined, "the agent to register")
        yield daemons
    finally:
        if agent is not None:
            await end_agent(agent)
        await daemons.close()


def start_agent(daemons: Daemons) -> subprocess.Popen[bytes]:
    settings = {
        "master": daemons.address,
        "name": "node-1",
        "work_dir": str(daemons.directory / "work"),
        "token_file": str(daemons.directory / "token"),
        "cores": 4,
        "memory_mib": 1024,
        "stop_grace_s": 2.0,
        "run_as": "off",
    }
    with (daemons.directory / "agent.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.agent.plain_agent", json.dumps(settings)],
            env=daemons.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


async def end_agent(agent: subprocess.Popen[bytes]) -> None:
    agent.terminate()
    try:
        await asyncio.to_thread(agent.wait, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait(TIMEOUT_S)


async def cluster_of(daemons: Daemons) -> admin_pb2.Cluster:
    found: admin_pb2.Cluster = await daemons.admin.GetCluster(
        admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S
    )
    return found


async def subscribed(daemons: Daemons, name: str) -> bool:
    return name in await daemons.scheduler_names()


@pytest.mark.timeout(120)
async def test_a_scheduler_killed_with_the_lease_in_its_hands_costs_nothing(
    tmp_path: Path,
) -> None:
    gate, end = tmp_path / "gate", tmp_path / "end"
    async with daemons_in(tmp_path) as daemons:
        apps = [await Application.begin(daemons, f"key-{n}", end) for n in range(3)]
        by = {(await app.show()).scheduler: app for app in apps}
        assert set(by) == {"scheduler-1", "east", "west"}
        gate.touch()
        await by["east"].ask("1", "2")
        await until(gate.with_suffix(".thinking").exists, "east to think")
        assert (await cluster_of(daemons)).lease.holder == "east"
        await by["west"].ask("1")
        daemons.schedulers["east"].kill()
        await until(lambda: by["west"].all_in(common_pb2.CONTAINER_STATE_RUNNING, 1), "west")
        await until(lambda: by["east"].all_in(common_pb2.CONTAINER_STATE_RUNNING, 2), "others")
        shown = await by["east"].show()
        assert shown.scheduler in ("scheduler-1", "west")
        assert {c.resource_unit_id for c in shown.containers} == {"node-1/gpu0"}
        assert not (await cluster_of(daemons)).lease.holder
        await by["scheduler-1"].ask("1")
        await until(lambda: by["scheduler-1"].all_in(common_pb2.CONTAINER_STATE_RUNNING, 1), "it")

        end.touch()
        for app, many in zip((by["east"], by["west"], by["scheduler-1"]), (2, 1, 1), strict=True):
            await until(partial(app.all_in, common_pb2.CONTAINER_STATE_ENDED, many), "the ends")
            assert {each.end.exit_code for each in app.containers.values()} == {0}
            await app.succeed()
            state = (await app.show()).state
            assert state == common_pb2.APPLICATION_STATE_SUCCEEDED
        printed = [path.read_text() for path in (tmp_path / "work").glob("containers/*/stdout")]
        assert printed == ["GPU 0\n"] * 4
        cluster = await cluster_of(daemons)
        assert cluster.free == cluster.capacity


@pytest.fixture
def gang_cluster(tmp_path: Path, _tools: SparkTools) -> Iterator[Cluster]:
    """Four slots, one scheduler in the master."""
    subject = Cluster(tmp_path / "gangs", _tools)
    subject.up("--nodes", "2", "--cores", "2", "--memory", "3g", "--schedulers", "1")
    yield subject
    subject.down()


@pytest.fixture
def schedulers(gang_cluster: Cluster) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """``schedulers(name)``: one more, in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        log = gang_cluster.directory / f"{name}.log"
        arguments = ("scheduler", "--master", gang_cluster.address, "--name", name)
        started.append(gang_cluster.start(log, *arguments))
        return started[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


async def take_a_turn(cluster: Cluster) -> None:
    """Register an application and leave it: the next one goes to the next scheduler."""
    token = rpc.read_token(cluster.state / "token")
    async with rpc.channel(cluster.address, token) as channel:
        stub: Any = application_pb2_grpc.ApplicationServiceStub(channel)
        await stub.Register(registration(name="nobody"), timeout=TIMEOUT_S)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_two_gangs_of_which_one_fits_run_one_after_the_other(
    gang_cluster: Cluster,
    schedulers: Callable[[str], subprocess.Popen[bytes]],
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    """Each needs three of the four slots. The second has no executor while the first runs, though
    one slot is free; nor is it affected when its scheduler is killed meanwhile."""
    cluster = gang_cluster

    def names() -> list[str]:
        return [each["name"] for each in cluster.ask("status")["schedulers"]]

    processes = {}
    for name in ("east", "west"):
        processes[name] = schedulers(name)
        eventually(lambda name=name: name in names(), 30.0, f"{name} subscribes")
    asyncio.run(take_a_turn(cluster))
    gang = ("--conf", "spark.executor.instances=3", "--conf", "spark.hrm.gang.min=3")
    stop = tmp_path / "stop"
    first = cluster.submit(*gang, str(APPS / "elastic.py"), str(stop))

    def shown(name: str) -> dict[str, Any]:
        return cluster.application(name) or {"containers_running": 0, "containers_pending": 0}

    eventually(lambda: shown("elastic")["containers_running"] == 3, 60.0, "the first runs")
    assert shown("elastic")["scheduler"] == "east"
    second = cluster.submit(*gang, str(APPS / "total.py"), "6", "0")
    eventually(lambda: shown("total")["containers_pending"] == 3, 60.0, "the second asks")
    waiting = shown("total")
    assert waiting["scheduler"] == "west"
    assert "spark.hrm.gang.min" in cluster.ask("app", "why", waiting["application_id"])["summary"]
    assert cluster.free_vcores() == 1

    processes["west"].kill()
    eventually(lambda: shown("total")["scheduler"] != "west", 30.0, "another takes over")
    eventually(lambda: "TOTAL 4950" in first.output(), 60.0, "the first has its answer")
    states = {c["state"] for c in shown("total")["containers"]}
    assert states == {"CONTAINER_STATE_PENDING"}
    stopped_at_s = time.time()
    stop.touch()
    assert first.wait() == 0, first.output()
    assert second.wait() == 0, second.output()
    assert "TOTAL 332833500" in second.output()
    done = shown("total")
    assert done["state"] == "APPLICATION_STATE_SUCCEEDED"
    assert len(done["containers"]) == 3
    assert all(float(c["assigned_at_s"]) > stopped_at_s for c in done["containers"])
    assert shown("elastic")["state"] == "APPLICATION_STATE_SUCCEEDED"
    eventually(lambda: cluster.free_vcores() == 4, 10.0, "all vcores are free again")
