"""An agent that is restarted under a supervised driver: master, agent and runner are real ones, and
"spark-submit" is a shell script."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.agent import shim
from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc
from tests.master.test_services import Running, running

LIMIT_S = 40.0
SUBMIT = """#!/bin/sh
echo $$ >> {directory}/pids
until [ -e {directory}/go ]; do sleep 0.1; done
"""


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, driver_lease_s=20, driver_restart_delay_s=0.1) as subject:
        yield subject


StartAgent = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_agent(tmp_path: Path, master: Running) -> Iterator[StartAgent]:
    """Agents of one work directory, of one node that has a Spark of a single script."""
    program = tmp_path / "spark" / "bin" / "spark-submit"
    java = tmp_path / "jdk" / "bin" / "java"
    for path in (program, java, tmp_path / "spark" / "jars" / "spark-core_2.13-4.3.0.jar"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    program.write_text(SUBMIT.format(directory=tmp_path))
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    log = (tmp_path / "agent.log").open("ab")
    agents: list[subprocess.Popen[bytes]] = []

    def start(*, keep: bool) -> subprocess.Popen[bytes]:
        settings = {
            "NAME": "n1", "MASTER": master.address, "TOKEN_FILE": tmp_path / "token",
            "WORK_DIR": tmp_path / "work", "SPARK_HOME": tmp_path / "spark",
            "JAVA_HOME": tmp_path / "jdk", "CORES": 2, "MEMORY_MIB": 2048, "RUN_AS": "off",
            "CLASS_ARCHIVE": False, "RECONNECT_DELAY_MAX_S": 0.5, "KEEP_CONTAINERS": keep,
        }  # fmt: skip
        named = {f"HRM_AGENT_{name}": str(value) for name, value in settings.items()}
        environment = {**os.environ, **named, "HRM_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "hrm.agent"]
        agents.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return agents[-1]

    yield start
    (tmp_path / "go").touch()
    for agent in agents:
        agent.send_signal(signal.SIGINT)
        agent.wait(LIMIT_S)
    log.close()


def pids_of(directory: Path) -> list[int]:
    path = directory / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def submitted(master: Running) -> str:
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, uri="local:/a.jar")
    spec = pb.DriverSpec(
        name="app", user="u", vcores=1, memory_mib=512, heap_mib=256, resources=[main],
        main_class="a.B", supervise=True,
    )  # fmt: skip
    stub = submission_pb2_grpc.SubmissionServiceStub(master.channel)
    sent = await stub.Submit(pb.SubmitRequest(key="k1", driver=spec))
    return str(sent.submission_id)


async def until(
    master: Running, submission_id: str, condition: Callable[[pb.Submission], Any]
) -> pb.Submission:
    stub = submission_pb2_grpc.SubmissionServiceStub(master.channel)
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await stub.Get(pb.GetSubmissionRequest(submission_id=submission_id))
            if condition(found):
                return found  # type: ignore[no-any-return]
            await asyncio.sleep(0.05)


async def test_a_driver_runs_on_while_its_agent_is_restarted(
    master: Running, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent(keep=True)
    submission_id = await submitted(master)
    await until(master, submission_id, lambda _: pids_of(tmp_path))
    lives = set(master.interpreter.node_outboxes)
    agent.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(agent.wait, LIMIT_S) == 0
    (pid,) = pids_of(tmp_path)
    assert shim.start_ticks(pid) is not None, "it runs on, without an agent"
    start_agent(keep=True)
    outboxes = master.interpreter.node_outboxes  # by node and incarnation
    found = await until(master, submission_id, lambda _: bool(set(outboxes) - lives))
    assert (found.state, found.attempt) == (pb.SUBMISSION_STATE_RUNNING, 1)
    (tmp_path / "go").touch()
    ended = (pb.SUBMISSION_STATE_FINISHED, pb.SUBMISSION_STATE_FAILED)
    done = await until(master, submission_id, lambda found: found.state in ended)
    assert (done.state, done.exit_code, done.attempt) == (pb.SUBMISSION_STATE_FINISHED, 0, 1)
    assert pids_of(tmp_path) == [pid], "one driver, from first to last"


async def test_a_driver_that_its_agent_ends_is_started_again_and_the_reason_told(
    master: Running, start_agent: StartAgent, tmp_path: Path
) -> None:
    agent = start_agent(keep=False)
    submission_id = await submitted(master)
    await until(master, submission_id, lambda _: pids_of(tmp_path))
    agent.send_signal(signal.SIGTERM)
    waiting = await until(
        master, submission_id, lambda found: found.state != pb.SUBMISSION_STATE_RUNNING
    )
    assert waiting.message == "the agent of node n1 was shut down, and its containers with it"
    assert await asyncio.to_thread(agent.wait, LIMIT_S) == 0
    (first,) = pids_of(tmp_path)
    assert shim.start_ticks(first) is None
    start_agent(keep=False)
    await until(master, submission_id, lambda _: len(pids_of(tmp_path)) == 2)
    again = await until(
        master, submission_id, lambda found: found.state == pb.SUBMISSION_STATE_RUNNING
    )
    assert again.attempt == 2
