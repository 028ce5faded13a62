"""Agents that end, by a signal or a crash, and the next ones on the same work directory."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from benchmarks.processes import free_port
from hrm.agent.containers.retention import ACKNOWLEDGED_FILE
from hrm.v1 import common_pb2
from tests.agent.conftest import (
    ENDED,
    FOREVER,
    RUNNING,
    TRAPPED,
    Master,
    StartAgent,
    fetched,
    groups_of,
    until,
)


async def test_what_sparks_ui_shows_opens_under_the_next_agent_too(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(log_port=free_port())
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "echo $SPARK_LOG_URL_STDOUT; exec sleep 600", user="ada")
    await master.until_state("app-1-x1", RUNNING)
    link = await master.until(lambda: agent.stdout_of("app-1-x1").strip())
    assert "/containers/app-1-x1/stdout?for=ada&sig=" in link
    assert await asyncio.to_thread(fetched, link) == f"{link}\n".encode()
    port = urlsplit(link).port
    await agent.kill()
    agent = start_agent(log_port=port, log_links_keep_s=0.0)
    again = await master.until(lambda: len(master.registrations) == 2 and master.registrations[1])
    assert link not in str(again)
    assert await asyncio.to_thread(fetched, link) == f"{link}\n".encode()
    master.order_stop("app-1-x1")
    await master.until_state("app-1-x1", ENDED)
    with pytest.raises(urllib.error.HTTPError, match="410"):
        await asyncio.to_thread(fetched, link)


async def test_one_that_is_preempted_goes_on_with_it_under_the_next_agent(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    slow = "trap 'echo moving; until [ -f go ]; do sleep 0.05; done; exit 0' PWR; echo set; "
    master.assign("app-1-x1", slow + "while :; do sleep 0.05; done")
    work = agent.work_dir / "containers" / "app-1-x1"
    await master.until(lambda: agent.stdout_of("app-1-x1") == "set\n")
    master.assign("app-2-x1", FOREVER, workload_class=common_pb2.WORKLOAD_CLASS_STREAM)
    await master.until_state("app-1-x1", common_pb2.CONTAINER_STATE_STOPPING)
    await master.until(lambda: "moving" in agent.stdout_of("app-1-x1"))
    await agent.kill()
    start_agent(cores=1)
    again = await master.until(lambda: len(master.registrations) == 2 and master.registrations[1])
    (adopted,) = again.containers
    assert adopted.state == common_pb2.CONTAINER_STATE_STOPPING
    (work / "go").touch()
    batch = await master.until_state("app-1-x1", ENDED)
    assert (batch.end.cause, batch.end.exit_code) == (common_pb2.END_CAUSE_PREEMPTED, 0)


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
    await until(lambda: (containers / "app-1-x2" / "process.json").exists())
    await until(lambda: (containers / "app-1-x1" / "process.json").exists())
    await agent.kill()
    (containers / "app-1-x2" / "go").touch()
    await until(lambda: (containers / "app-1-x2" / "exit.json").exists())

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
    assert not [group for group in groups_of(second.identity) if group.startswith("app-")]


async def test_an_acknowledged_end_is_not_reported_again(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent()
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "true")
    await master.until_state("app-1-x1", ENDED)
    master.acknowledge("app-1-x1")
    await master.until(lambda: master.heartbeats and not master.heartbeats[-1].containers)
    # Recorded once its files are removed; one that is killed before that reports the end again.
    await until((agent.work_dir / "containers" / "app-1-x1" / ACKNOWLEDGED_FILE).exists)
    await agent.kill()
    start_agent()
    second = await master.until(lambda: len(master.registrations) > 1 and master.registrations[1])
    assert not second.containers


async def test_a_signal_ends_containers_too(master: Master, start_agent: StartAgent) -> None:
    agent = start_agent(cores=1)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", TRAPPED)
    await master.until_state("app-1-x1", RUNNING)
    master.assign("app-1-x2", FOREVER)
    await master.until_state("app-1-x2", common_pb2.CONTAINER_STATE_WAITING)
    await until(lambda: agent.stdout_of("app-1-x1") == "set\n")
    code, _ = await agent.end()
    assert code == 0
    assert agent.stdout_of("app-1-x1") == "set\nbye\n"
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
    await until((agent.work_dir / "containers" / "app-1-x1").exists)  # it is being launched
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


async def test_a_second_signal_ends_the_grace_period(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent(stop_grace_s=600)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "trap '' TERM; echo set; while :; do sleep 0.05; done")
    await until(lambda: agent.stdout_of("app-1-x1") == "set\n")
    agent.process.send_signal(signal.SIGTERM)
    await until(lambda: "ending containers" in agent.log)
    agent.process.send_signal(signal.SIGTERM)
    assert (await agent.ended())[0] == 0
