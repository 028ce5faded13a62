"""The agent as a process, against a master that speaks the real protocol."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from benchmarks.processes import free_port
from hrm import ownership, rpc
from hrm.agent.containers import shim
from hrm.agent.isolation import DRIVERS, detect
from hrm.errors import InvalidConfig
from hrm.v1 import common_pb2, node_pb2, node_pb2_grpc
from tests.agent.conftest import ENDED, RUNNING, TOKEN, Master, StartAgent

FOREVER = "echo set; exec sleep 600"
PID_FILE = "../daemon.pid"  # what a container leaves in its own directory goes at its end
SPAWN = (
    f"setsid sh -c 'echo $$ > {PID_FILE}; exec sleep 600' & until test -s {PID_FILE}; do :; done; "
)
TRAPPED = "trap 'echo bye; exit 0' TERM; echo set; while :; do sleep 0.05; done"


async def test_one_container_from_assignment_to_end(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent()
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    assert registration.name == "node-1"
    (unit,) = registration.resource_units
    assert (unit.capacity.vcores, unit.capacity.memory_mib, unit.run_limit) == (2, 1024, 2)

    master.assign("app-1-x1", SPAWN + "echo hello; echo failing >&2; exit 3")
    status = await master.until_state("app-1-x1", ENDED)
    assert status.end.cause == common_pb2.END_CAUSE_EXITED
    assert status.end.exit_code == 3
    assert status.end.message == "exited with code 3: the last line of its stderr: failing"
    work = agent.work_dir / "containers" / "app-1-x1"
    assert agent.said("app-1-x1") == "hello\n"
    assert shim.start_ticks(int((work.parent / "daemon.pid").read_text())) is None
    assert not (work / "local").exists()

    link = await _linked(registration.endpoint, "app-1-x1")
    assert link.startswith(f"{status.stdout_url}?for=eve&until=")
    assert await asyncio.to_thread(_get, link) == b"hello\n"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        await asyncio.to_thread(_get, status.stdout_url)

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
    assert not _groups(registration.identity)


async def test_a_relative_work_directory_holds_containers_like_any_other(
    master: Master, start_agent: StartAgent
) -> None:
    start_agent(work_dir="work", token_file="token")
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    master.assign("app-1-x1", "echo hello")
    status = await master.until_state("app-1-x1", ENDED)
    assert (status.end.cause, status.end.exit_code) == (common_pb2.END_CAUSE_EXITED, 0), status.end
    link = await _linked(registration.endpoint, "app-1-x1")
    assert await asyncio.to_thread(_get, link) == b"hello\n"
    assert registration.name == "node-1"


async def _linked(endpoint: str, container_id: str) -> str:
    ask = node_pb2.LinkContainerLogRequest(container_id=container_id, asker="eve")
    async with rpc.channel(endpoint, TOKEN) as channel:
        stub: Any = node_pb2_grpc.AgentServiceStub(channel)
        return str((await stub.LinkLog(ask, timeout=20)).url)


async def test_what_sparks_ui_shows_opens_under_the_next_agent_too(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(log_port=free_port())
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "echo $SPARK_LOG_URL_STDOUT; exec sleep 600", user="ada")
    await master.until_state("app-1-x1", RUNNING)
    link = await master.until(lambda: agent.said("app-1-x1").strip())
    assert "/containers/app-1-x1/stdout?for=ada&sig=" in link
    assert await asyncio.to_thread(_get, link) == f"{link}\n".encode()
    port = urlsplit(link).port
    await agent.kill()
    agent = start_agent(log_port=port, log_links_keep_s=0.0)
    again = await master.until(lambda: len(master.registrations) == 2 and master.registrations[1])
    assert link not in str(again)
    assert await asyncio.to_thread(_get, link) == f"{link}\n".encode()
    master.order_stop("app-1-x1")
    await master.until_state("app-1-x1", ENDED)
    with pytest.raises(urllib.error.HTTPError, match="410"):
        await asyncio.to_thread(_get, link)


async def test_an_agent_proves_with_a_key_of_its_work_directory_that_it_is_its_node(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent()
    first = await master.until(lambda: master.registrations and master.registrations[0])
    path = agent.work_dir / "ownership-key"
    about = path.stat()
    assert (about.st_mode & 0o777, about.st_uid) == (0o600, os.getuid())
    assert first.ownership_key == path.read_text().strip()
    assert ownership.owner_of(first.ownership_key)
    assert first.identity not in first.ownership_key, "which stands in names of control groups"
    path.chmod(0o644)
    await agent.kill()
    start_agent()
    again = await master.until(lambda: len(master.registrations) == 2 and master.registrations[1])
    assert (again.ownership_key, again.identity) == (first.ownership_key, first.identity)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_an_agent_whose_node_is_anothers_says_so_and_gets_the_name_when_it_is_free(
    master: Master, start_agent: StartAgent
) -> None:
    master.refuse = grpc.StatusCode.PERMISSION_DENIED
    agent = start_agent()
    await agent.until_logged("another live agent has the name")
    master.refuse = None
    await master.until(lambda: master.registrations)
    assert "Traceback" not in agent.log


async def test_a_waiting_container_starts_when_room_appears(
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


async def test_batch_makes_way_for_a_stream_without_a_word_of_the_master(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    command = "trap 'exit 0' PWR; echo set; while :; do sleep 0.05; done"
    master.assign("app-1-x1", command)
    await master.until_state("app-1-x1", RUNNING)
    await master.until(lambda: agent.said("app-1-x1") == "set\n")
    stream = common_pb2.WORKLOAD_CLASS_STREAM
    master.assign("app-2-x1", FOREVER, workload_class=stream)
    batch = await master.until_state("app-1-x1", ENDED)
    assert (batch.end.cause, batch.end.exit_code) == (common_pb2.END_CAUSE_PREEMPTED, 0)
    assert batch.end.message == "it is preempted for the stream container app-2-x1"
    await master.until_state("app-2-x1", RUNNING)


async def test_who_does_not_decommission_is_asked_politely(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", TRAPPED, decommissions=False)
    await master.until(lambda: agent.said("app-1-x1") == "set\n")
    master.assign("app-2-x1", FOREVER, workload_class=common_pb2.WORKLOAD_CLASS_STREAM)
    batch = await master.until_state("app-1-x1", ENDED)
    assert batch.end.cause == common_pb2.END_CAUSE_PREEMPTED
    assert agent.said("app-1-x1") == "set\nbye\n"


async def test_who_makes_way_goes_on_with_it_under_the_next_agent(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    slow = "trap 'echo moving; until [ -f go ]; do sleep 0.05; done; exit 0' PWR; echo set; "
    master.assign("app-1-x1", slow + "while :; do sleep 0.05; done")
    work = agent.work_dir / "containers" / "app-1-x1"
    await master.until(lambda: agent.said("app-1-x1") == "set\n")
    master.assign("app-2-x1", FOREVER, workload_class=common_pb2.WORKLOAD_CLASS_STREAM)
    await master.until_state("app-1-x1", common_pb2.CONTAINER_STATE_STOPPING)
    await master.until(lambda: "moving" in agent.said("app-1-x1"))
    await agent.kill()
    start_agent(cores=1)
    again = await master.until(lambda: len(master.registrations) == 2 and master.registrations[1])
    (adopted,) = again.containers
    assert adopted.state == common_pb2.CONTAINER_STATE_STOPPING
    (work / "go").touch()
    batch = await master.until_state("app-1-x1", ENDED)
    assert (batch.end.cause, batch.end.exit_code) == (common_pb2.END_CAUSE_PREEMPTED, 0)


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
    # The shell lives on when its child dies of the limit: the whole container must end.
    hog = 'python3 -I -S -c "x = bytearray(300 << 20); import time; time.sleep(600)"'
    master.assign("app-1-x1", f"{hog}; sleep 600", memory_mib=100)
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


async def test_an_agent_that_was_killed_adopts_its_containers(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "until [ -e go ]; do sleep 0.05; done; echo done; exit 4")
    master.assign("app-1-x2", "until [ -e go ]; do sleep 0.05; done; exit 5")
    running = await master.until_state("app-1-x1", RUNNING)
    await master.until_state("app-1-x2", RUNNING)
    containers = agent.work_dir / "containers"
    await _until(lambda: (containers / "app-1-x2" / "process.json").exists())
    await _until(lambda: (containers / "app-1-x1" / "process.json").exists())
    await agent.kill()
    (containers / "app-1-x2" / "go").touch()
    await _until(lambda: (containers / "app-1-x2" / "exit.json").exists())

    start_agent()
    second = await master.until(lambda: len(master.registrations) > 1 and master.registrations[1])
    assert second.identity == master.registrations[0].identity
    assert second.incarnation != master.registrations[0].incarnation
    states = {status.container_id: status for status in second.containers}
    assert states["app-1-x1"].state == RUNNING
    assert abs(states["app-1-x1"].started_at_s - running.started_at_s) < 2
    assert states["app-1-x2"].state == ENDED
    assert states["app-1-x2"].end.exit_code == 5
    (containers / "app-1-x1" / "go").touch()
    assert (await master.until_state("app-1-x1", ENDED)).end.exit_code == 4
    assert not [group for group in _groups(second.identity) if group.startswith("app-")]


async def test_an_acknowledged_end_is_not_reported_again(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "true")
    await master.until_state("app-1-x1", ENDED)
    master.acknowledge("app-1-x1")
    await master.until(lambda: master.heartbeats and not master.heartbeats[-1].containers)
    await agent.kill()
    start_agent()
    second = await master.until(lambda: len(master.registrations) > 1 and master.registrations[1])
    assert not second.containers


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
    # What happened in between is all in what the agent says when it comes back.
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


async def test_a_signal_ends_containers_too(master: Master, start_agent: StartAgent) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", TRAPPED)
    await master.until_state("app-1-x1", RUNNING)
    master.assign("app-1-x2", FOREVER)
    await master.until_state("app-1-x2", common_pb2.CONTAINER_STATE_WAITING)
    await _until(lambda: agent.said("app-1-x1") == "set\n")
    code, _ = await agent.end()
    assert code == 0
    assert agent.said("app-1-x1") == "set\nbye\n"
    for name in ("app-1-x1", "app-1-x2"):
        end = (await master.until_state(name, ENDED)).end
        assert end.cause == common_pb2.END_CAUSE_NODE_LOST
        assert end.message == "the agent of node node-1 was shut down, and its containers with it"


async def test_an_agent_that_keeps_containers_is_restarted_under_them(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(cores=1, keep_containers=True)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "trap 'exit 9' TERM; until [ -e go ]; do sleep 0.05; done; exit 4")
    running = await master.until_state("app-1-x1", RUNNING)
    master.assign("app-1-x2", FOREVER)
    await master.until_state("app-1-x2", common_pb2.CONTAINER_STATE_WAITING)
    code, _ = await agent.end()
    assert code == 0
    waited = await master.until_state("app-1-x2", ENDED)
    assert waited.end.cause == common_pb2.END_CAUSE_NODE_LOST
    assert waited.end.message == "the agent of node node-1 is restarted"
    assert master.statuses["app-1-x1"].state == RUNNING
    work = agent.work_dir / "containers" / "app-1-x1"
    assert not (work / "stop.json").exists()

    start_agent(cores=1, keep_containers=True)
    second = await master.until(lambda: len(master.registrations) > 1 and master.registrations[1])
    (adopted,) = second.containers
    assert (adopted.container_id, adopted.state) == ("app-1-x1", RUNNING)
    assert abs(adopted.started_at_s - running.started_at_s) < 2
    (work / "go").touch()
    assert (await master.until_state("app-1-x1", ENDED)).end.exit_code == 4


async def test_what_is_being_started_when_an_agent_is_restarted_is_not_lost(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(keep_containers=True)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", FOREVER)
    await _until((agent.work_dir / "containers" / "app-1-x1").exists)  # it is being launched
    assert (await agent.end())[0] == 0
    start_agent(keep_containers=True)
    second = await master.until(lambda: len(master.registrations) > 1 and master.registrations[1])
    assert [status.state for status in second.containers] == [RUNNING]
    master.order_stop("app-1-x1")
    await master.until_state("app-1-x1", ENDED)


async def test_sigint_ends_containers_that_would_be_kept(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(keep_containers=True)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", FOREVER)
    await master.until_state("app-1-x1", RUNNING)
    agent.process.send_signal(signal.SIGINT)
    assert (await agent.ended())[0] == 0
    end = (await master.until_state("app-1-x1", ENDED)).end
    assert end.cause == common_pb2.END_CAUSE_NODE_LOST


async def test_a_second_signal_hurries(master: Master, start_agent: StartAgent) -> None:
    agent = start_agent(stop_grace_s=600)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "trap '' TERM; echo set; while :; do sleep 0.05; done")
    await _until(lambda: agent.said("app-1-x1") == "set\n")
    agent.process.send_signal(signal.SIGTERM)
    await _until(lambda: "ending containers" in agent.log)
    agent.process.send_signal(signal.SIGTERM)
    assert (await agent.ended())[0] == 0


async def test_a_killed_supervisor_is_noticed(master: Master, start_agent: StartAgent) -> None:
    agent = start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", SPAWN + FOREVER)
    work = agent.work_dir / "containers" / "app-1-x1"
    await _until(lambda: agent.said("app-1-x1"))
    os.kill(json.loads((work / "process.json").read_text())["shim_pid"], signal.SIGKILL)
    status = await master.until_state("app-1-x1", ENDED)
    assert status.end.cause == common_pb2.END_CAUSE_LOST
    assert "supervisor died" in status.end.message
    assert shim.start_ticks(int((work.parent / "daemon.pid").read_text())) is None


async def test_a_wrong_token_is_told_and_the_right_one_is_taken_without_a_restart(
    master: Master, start_agent: StartAgent, tmp_path: Path
) -> None:
    token = tmp_path / "another"
    token.write_text("not-the-token-of-the-tests")
    token.chmod(0o600)
    agent = start_agent(token_file=str(token))
    await _until(lambda: "missing or wrong token; HRM_TOKEN_FILE" in agent.log)
    assert master.registrations == []
    token.write_text(TOKEN)
    await master.until(lambda: master.registrations)


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
    assert agent.said("app-1-x1").strip() == str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


async def test_no_clear_text_to_other_machines_unless_allowed_by_name(
    start_agent: StartAgent,
) -> None:
    agent = start_agent(master="192.0.2.1:7480")
    code, out = await agent.ended()
    assert (code, out) == (2, "")
    assert "will not send the cluster's token to 192.0.2.1:7480" in agent.log.splitlines()[-1]
    agent = start_agent(host="0.0.0.0")
    assert (await agent.ended())[0] == 2
    assert "will not listen on 0.0.0.0 in clear text" in agent.log.splitlines()[-1]
    agent = start_agent(master="192.0.2.1:7480", allow_clear_text=True)
    await _until(lambda: "no master; trying on" in agent.log)


async def test_a_name_that_is_taken_is_one_line(master: Master, start_agent: StartAgent) -> None:
    master.refuse = grpc.StatusCode.ALREADY_EXISTS
    agent = start_agent()
    assert (await agent.ended())[0] == 1
    assert agent.log.splitlines()[-1] == "hrm agent: another live agent has the name"


async def test_one_work_directory_has_one_agent(master: Master, start_agent: StartAgent) -> None:
    first = start_agent()
    await master.until(lambda: master.registrations)
    second = start_agent(name="node-2")
    assert (await second.ended())[0] == 2
    assert f"another agent works in {first.work_dir}" in second.log
    assert first.process.poll() is None


async def test_a_port_in_use_is_one_line(master: Master, start_agent: StartAgent) -> None:
    agent = start_agent(port=master.port)
    assert (await agent.ended())[0] == 1
    last = agent.log.splitlines()[-1]
    assert last.startswith(f"hrm agent: cannot listen on 127.0.0.1:{master.port}: the port is in")


async def test_an_unreachable_master_is_waited_for(master: Master, start_agent: StartAgent) -> None:
    port = master.port
    await master.stop()
    agent = start_agent()
    await _until(lambda: "no master; trying on" in agent.log)
    await master.start(port)
    await master.until(lambda: master.registrations)
    assert agent.log.count("no master; trying on") == 1
    assert (await agent.end())[0] == 0


async def test_an_agent_without_a_master_ends_when_told(
    master: Master, start_agent: StartAgent
) -> None:
    await master.stop()
    agent = start_agent()
    await _until(lambda: "no master; trying on" in agent.log)
    assert (await agent.end())[0] == 0


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


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as page:
        content = page.read()
    assert isinstance(content, bytes)
    return content


def _groups(identity: str) -> list[str]:
    """Names in the cgroup directories of an agent, in every hierarchy."""
    found = Path("/sys/fs/cgroup").glob(f"*/hrm/{identity}/*")
    return [path.name for path in found]


async def _until(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["binary", "pipe"])
async def test_a_damaged_binding_is_left_for_the_settings(
    master: Master, start_agent: StartAgent, tmp_path: Path, how: str
) -> None:
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "binding.json"
    os.mkfifo(path) if how == "pipe" else path.write_bytes(b"\xff\x00{")
    agent = start_agent()
    await master.until(lambda: master.registrations)
    assert "the binding that was kept is unreadable" in agent.log


async def test_a_binary_identity_is_a_new_one(
    master: Master, start_agent: StartAgent, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "identity").write_bytes(b"\xff\x00" * 50)
    start_agent()
    registration = await master.until(lambda: master.registrations and master.registrations[0])
    assert len(registration.identity) == 32


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
async def test_something_else_in_place_of_the_identity_is_one_line(
    start_agent: StartAgent, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "work").mkdir()
    make(tmp_path / "work" / "identity")
    agent = start_agent()
    code, _ = await agent.ended()
    assert code != 0
    assert "cannot use the work directory" in agent.log
    assert "identity is no regular file; remove it" in agent.log
