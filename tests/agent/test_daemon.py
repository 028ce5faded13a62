"""The agent as a process, against a master that speaks the real protocol: what it runs."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from hrm import rpc
from hrm.agent.containers import shim
from hrm.agent.isolation import DRIVERS, detect
from hrm.errors import InvalidConfig
from hrm.v1 import common_pb2, node_pb2, node_pb2_grpc
from tests.agent.conftest import (
    ENDED,
    FOREVER,
    RUNNING,
    TOKEN,
    TRAPPED,
    Master,
    StartAgent,
    fetched,
    groups_of,
    until,
)

Eventually = Callable[..., Any]
PID_FILE = "../daemon.pid"  # a container's own directory is cleared at its end
SPAWN = (
    f"setsid sh -c 'echo $$ > {PID_FILE}; exec sleep 600' & until test -s {PID_FILE}; do :; done; "
)


async def test_one_container_from_assignment_to_end(
    master: Master, start_agent: StartAgent, eventually: Eventually
) -> None:
    agent = start_agent()
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    assert registration.name == "node-1"
    (unit,) = [one for one in registration.resource_units if not one.HasField("gpu")]
    assert (unit.capacity.vcores, unit.capacity.memory_mib, unit.run_limit) == (2, 1024, 2)

    master.assign("app-1-x1", SPAWN + "echo hello; echo failing >&2; exit 3")
    status = await master.until_state("app-1-x1", ENDED)
    assert status.end.cause == common_pb2.END_CAUSE_EXITED
    assert status.end.exit_code == 3
    assert status.end.message == "exited with code 3: the last line of its stderr: failing"
    work = agent.work_dir / "containers" / "app-1-x1"
    assert agent.stdout_of("app-1-x1") == "hello\n"
    assert shim.start_ticks(int((work.parent / "daemon.pid").read_text())) is None
    eventually(lambda: not (work / "local").exists())

    link = await _linked(registration.endpoint, "app-1-x1")
    assert link.startswith(f"{status.stdout_url}?for=eve&until=")
    assert await asyncio.to_thread(fetched, link) == b"hello\n"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        await asyncio.to_thread(fetched, status.stdout_url)

    master.acknowledge("app-1-x1")
    beats = len(master.heartbeats)
    await master.until(lambda: len(master.heartbeats) > beats + 1)
    assert not master.heartbeats[-1].containers
    assert master.heartbeats[-1].usage.memory_total_mib > 0

    code, out = await agent.end()
    assert code == 0
    isolation = registration.isolation
    target = f"127.0.0.1:{master.port}"
    assert (
        out
        == f"agent node-1 ready (isolation {isolation}, 2 vcores, 1024 MiB) -> master {target}\n"
    )
    assert not (agent.work_dir / "ready.json").exists()
    assert not groups_of(registration.identity)


async def test_a_relative_work_directory_holds_containers_like_any_other(
    master: Master, start_agent: StartAgent
) -> None:
    start_agent(work_dir="work", token_file="token")
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    master.assign("app-1-x1", "echo hello")
    status = await master.until_state("app-1-x1", ENDED)
    assert (status.end.cause, status.end.exit_code) == (common_pb2.END_CAUSE_EXITED, 0), status.end
    link = await _linked(registration.endpoint, "app-1-x1")
    assert await asyncio.to_thread(fetched, link) == b"hello\n"
    assert registration.name == "node-1"


async def _linked(endpoint: str, container_id: str) -> str:
    ask = node_pb2.LinkContainerLogRequest(container_id=container_id, asker="eve")
    async with rpc.channel(endpoint, TOKEN) as channel:
        stub: Any = node_pb2_grpc.AgentServiceStub(channel)
        return str((await stub.LinkLog(ask, timeout=20)).url)


async def test_a_waiting_container_starts_when_capacity_appears(
    master: Master, start_agent: StartAgent
) -> None:
    start_agent(cores=1)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", FOREVER)
    await master.until_state("app-1-x1", RUNNING)
    master.assign("app-1-x2", FOREVER)
    await master.until_state("app-1-x2", common_pb2.CONTAINER_STATE_WAITING)
    master.order_stop("app-1-x1")
    first = await master.until_state("app-1-x1", ENDED)
    assert first.end.cause == common_pb2.END_CAUSE_RELEASED
    assert (first.end.message, first.end.exit_code) == ("no longer needed", 143)
    await master.until_state("app-1-x2", RUNNING)


@pytest.mark.parametrize("signal", ["", "USR1"])
async def test_batch_is_preempted_for_a_stream_without_a_word_of_the_master(
    master: Master, start_agent: StartAgent, signal: str
) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    command = f"trap 'exit 0' {signal or 'PWR'}; echo set; while :; do sleep 0.05; done"
    master.assign("app-1-x1", command, decommission_signal=signal)
    await master.until_state("app-1-x1", RUNNING)
    await master.until(lambda: agent.stdout_of("app-1-x1") == "set\n")
    stream = common_pb2.WORKLOAD_CLASS_STREAM
    master.assign("app-2-x1", FOREVER, workload_class=stream)
    batch = await master.until_state("app-1-x1", ENDED)
    assert (batch.end.cause, batch.end.exit_code) == (common_pb2.END_CAUSE_PREEMPTED, 0)
    assert batch.end.message == "it is preempted for the stream container app-2-x1"
    await master.until_state("app-2-x1", RUNNING)


async def test_one_that_does_not_decommission_is_asked_politely(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", TRAPPED, decommissions=False)
    await master.until(lambda: agent.stdout_of("app-1-x1") == "set\n")
    master.assign("app-2-x1", FOREVER, workload_class=common_pb2.WORKLOAD_CLASS_STREAM)
    batch = await master.until_state("app-1-x1", ENDED)
    assert batch.end.cause == common_pb2.END_CAUSE_PREEMPTED
    assert agent.stdout_of("app-1-x1") == "set\nbye\n"


async def test_a_stop_that_comes_at_once_is_not_lost(
    master: Master, start_agent: StartAgent
) -> None:
    start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", FOREVER)
    master.order_stop("app-1-x1")
    status = await master.until_state("app-1-x1", ENDED)
    assert status.end.cause == common_pb2.END_CAUSE_RELEASED


@pytest.mark.parametrize("isolation", DRIVERS)
async def test_memory_over_the_limit(
    master: Master, start_agent: StartAgent, isolation: str
) -> None:
    try:
        detect(isolation, "test-over-the-limit", vcores=1)
    except InvalidConfig as error:
        pytest.skip(error.message)
    start_agent(isolation=isolation)
    await master.until(lambda: master.registrations)
    # The shell outlives its child, which the limit kills: the whole container must end.
    memory_filler = 'python3 -I -S -c "x = bytearray(300 << 20); import time; time.sleep(600)"'
    master.assign("app-1-x1", f"{memory_filler}; sleep 600", memory_mib=100)
    status = await master.until_state("app-1-x1", ENDED)
    assert status.end.cause == common_pb2.END_CAUSE_MEMORY_LIMIT
    assert "100 MiB (spark.executor.memory + overhead); raise spark.executor.memoryOverhead" in (
        status.end.message
    )


async def test_usage_reaches_the_master(master: Master, start_agent: StartAgent) -> None:
    start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "sleep 600 & exec sleep 601")
    await master.until(
        lambda: "app-1-x1" in master.statuses and master.statuses["app-1-x1"].usage.processes == 2
    )


async def test_a_command_that_does_not_exist(master: Master, start_agent: StartAgent) -> None:
    start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "true", PATH="/nowhere")
    status = await master.until_state("app-1-x1", ENDED)
    assert status.end.cause == common_pb2.END_CAUSE_LAUNCH_FAILED
    assert status.end.message == (
        "cannot start app-1-x1: cannot execute sh: No such file or directory"
    )


async def test_containers_run_on_while_the_master_is_away(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "until [ -e go ]; do sleep 0.05; done; exit 6")
    await master.until_state("app-1-x1", RUNNING)
    master.assign("app-1-x2", FOREVER)
    await master.until_state("app-1-x2", common_pb2.CONTAINER_STATE_WAITING)
    work = agent.work_dir / "containers" / "app-1-x1"
    await master.until(work.exists)  # it counts as running while it is being launched
    port = master.port
    await master.stop()
    (work / "go").touch()
    master.epoch += 1
    master.statuses.clear()
    await master.start(port)
    # What happened in between is all in the agent's next registration.
    assert (await master.until_state("app-1-x1", ENDED)).end.exit_code == 6
    await master.until_state("app-1-x2", RUNNING)
    assert len(master.registrations) == 2


async def test_orders_of_an_older_master_are_ignored(
    master: Master, start_agent: StartAgent
) -> None:
    master.epoch = 5
    start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", FOREVER)
    await master.until_state("app-1-x1", RUNNING)
    master.epoch = 4
    master.order_stop("app-1-x1")
    master.assign("app-1-x2", FOREVER)
    master.epoch = 5
    master.assign("app-1-x3", FOREVER)
    await master.until_state("app-1-x3", RUNNING)
    assert "app-1-x2" not in master.statuses
    assert master.statuses["app-1-x1"].state == RUNNING


async def test_nonsense_from_the_master_ends_nothing(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent()
    await master.until(lambda: master.registrations)
    master.assign("..", FOREVER)
    master.assign("app-1-x1", FOREVER, memory_mib=-1)
    master.assign("app-1-x2", FOREVER)
    await master.until_state("app-1-x2", RUNNING)
    assert agent.log.count("refused a message of the master") == 2
    assert set(master.statuses) == {"app-1-x2"}


async def test_a_killed_supervisor_is_noticed(master: Master, start_agent: StartAgent) -> None:
    agent = start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", SPAWN + FOREVER)
    work = agent.work_dir / "containers" / "app-1-x1"
    await until(lambda: agent.stdout_of("app-1-x1"))
    os.kill(json.loads((work / "process.json").read_text())["shim_pid"], signal.SIGKILL)
    status = await master.until_state("app-1-x1", ENDED)
    assert status.end.cause == common_pb2.END_CAUSE_LOST
    assert "supervisor ended" in status.end.message
    assert shim.start_ticks(int((work.parent / "daemon.pid").read_text())) is None


async def test_a_node_that_cannot_sample_is_closed_until_it_can(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent()
    await master.until(lambda: master.heartbeats)
    limits = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (8, limits[1]))
    await agent.until_logged("the agent cannot measure usage: Too many open files; raise its limit")
    # Closed, it registers again, for which it needs a descriptor, too.
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, limits)
    await agent.until_logged("no longer")
    await master.until(lambda: len(master.registrations) > 1)
    await master.until(lambda: not any(u.draining for u in master.registrations[-1].resource_units))
    master.assign("app-1-x1", "ulimit -Sn")
    await master.until_state("app-1-x1", ENDED)
    assert agent.stdout_of("app-1-x1").strip() == str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


async def test_a_log_followed_over_grpc(master: Master, start_agent: StartAgent) -> None:
    agent = start_agent()
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    master.assign("app-1-x1", "echo one; until [ -e go ]; do sleep 0.05; done; echo two")
    await master.until_state("app-1-x1", RUNNING)
    async with rpc.channel(registration.endpoint, TOKEN) as channel:
        stub = node_pb2_grpc.AgentServiceStub(channel)
        request = node_pb2.ReadLogRequest(container_id="app-1-x1", stream="stdout", follow=True)
        call = stub.ReadLog(request, timeout=20)
        chunks = aiter(call)
        assert (await anext(chunks)).data == b"one\n"
        (agent.work_dir / "containers" / "app-1-x1" / "go").touch()
        assert b"".join([chunk.data async for chunk in chunks]) == b"two\n"
