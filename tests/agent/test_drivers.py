"""Drivers on a node, under an agent that is restarted and as another user: master, agent and runner
are real ones, and "spark-submit" is a shell script."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm import ownership_keys
from hrm.agent.containers import shim
from hrm.agent.run_as import may_switch
from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc
from tests.master.test_services import Running, running

pytestmark = pytest.mark.timeout(600)
LIMIT_S = 150.0
SUBMIT = """#!/bin/sh
echo $$ >> {directory}/pids
until [ -e {directory}/go ]; do sleep 0.1; done
"""


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Running]:
    # An agent on a busy machine takes long to start: waiting for it must not lose anything.
    patient = {"node_timeout_s": 600.0, "driver_lease_s": 600.0, "driver_restart_delay_s": 0.1}
    async with running(tmp_path, **patient) as subject:
        yield subject


StartAgent = Callable[..., subprocess.Popen[bytes]]


def made_spark(directory: Path, script: str) -> dict[str, Path]:
    """A Spark of a single script, and a Java that does nothing; settings that name them."""
    program = directory / "spark" / "bin" / "spark-submit"
    java = directory / "jdk" / "bin" / "java"
    for path in (program, java, directory / "spark" / "jars" / "spark-core_2.13-4.3.0.jar"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    program.write_text(script)
    (directory / "jdk" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    return {"SPARK_HOME": directory / "spark", "JAVA_HOME": directory / "jdk"}


@pytest.fixture
def start_agent(tmp_path: Path, master: Running) -> Iterator[StartAgent]:
    """Agents of one node; keyword arguments are settings, in capitals."""
    log = (tmp_path / "agent.log").open("ab")
    agents: list[subprocess.Popen[bytes]] = []

    def start(**more: Any) -> subprocess.Popen[bytes]:
        settings = {
            "NAME": "n1", "MASTER": master.address, "TOKEN_FILE": tmp_path / "token",
            "WORK_DIR": tmp_path / "work", "CORES": 2, "MEMORY_MIB": 2048, "RUN_AS": "off",
            "CLASS_ARCHIVE": False, "RECONNECT_DELAY_MAX_S": 0.5, **more,
        }  # fmt: skip
        named = {f"HRM_AGENT_{name}": str(value) for name, value in settings.items()}
        environment = {**os.environ, **named, "HRM_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "hrm.cli", "agent"]
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


async def submitted(master: Running, **fields: Any) -> str:
    values: dict[str, Any] = {
        "name": "app", "user": "u", "vcores": 1, "memory_mib": 512, "heap_mib": 256,
        "main_class": "a.B", "supervise": True,
        "resources": [pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, uri="local:/a.jar")], **fields,
    }  # fmt: skip
    stub = submission_pb2_grpc.SubmissionServiceStub(master.channel)
    request = pb.SubmitRequest(
        key=uuid.uuid4().hex, driver=pb.DriverSpec(**values), ownership_key=ownership_keys.new_key()
    )
    return str((await stub.Submit(request)).submission_id)


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
    settings = {**made_spark(tmp_path, SUBMIT.format(directory=tmp_path)), "KEEP_CONTAINERS": True}
    agent = start_agent(**settings)
    submission_id = await submitted(master)
    await until(master, submission_id, lambda _: pids_of(tmp_path))
    lives = set(master.interpreter.node_outboxes)
    agent.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(agent.wait, LIMIT_S) == 0
    (pid,) = pids_of(tmp_path)
    assert shim.start_ticks(pid) is not None, "it runs on, without an agent"
    start_agent(**settings)
    outboxes = master.interpreter.node_outboxes  # by node and incarnation
    found = await until(master, submission_id, lambda _: bool(set(outboxes) - lives))
    assert (found.state, found.attempt) == (pb.SUBMISSION_STATE_RUNNING, 1)
    (tmp_path / "go").touch()
    ended = (pb.SUBMISSION_STATE_FINISHED, pb.SUBMISSION_STATE_FAILED)
    done = await until(master, submission_id, lambda found: found.state in ended)
    assert (done.state, done.exit_code, done.attempt) == (pb.SUBMISSION_STATE_FINISHED, 0, 1)
    assert pids_of(tmp_path) == [pid], "one driver, from first to last"


async def test_a_driver_that_its_agent_ends_is_started_again_and_the_reason_reported(
    master: Running, start_agent: StartAgent, tmp_path: Path
) -> None:
    settings = made_spark(tmp_path, SUBMIT.format(directory=tmp_path))
    agent = start_agent(**settings)
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
    start_agent(**settings)
    await until(master, submission_id, lambda _: len(pids_of(tmp_path)) == 2)
    again = await until(
        master, submission_id, lambda found: found.state == pb.SUBMISSION_STATE_RUNNING
    )
    assert again.attempt == 2


USER = "games"
"""Every machine has it; its uid is below the default bound."""

REPORTING = """#!/bin/sh
for main; do :; done
id -u; stat -c '%u %a' "$main" "$HRM_TOKEN_FILE" \\
    "$HRM_SUBMISSION_OWNERSHIP_KEY_FILE"; cat "$main"; echo "# changed" >> "$main"
"""
DATA = b"print(1)\n"
DIGEST = hashlib.sha256(DATA).hexdigest()


def _unable() -> str:
    """Why no driver can run as another user here; empty: one can."""
    if not may_switch():
        return "only root can become another user"
    command = [sys.executable, "-c", "import grpc, hrm"]
    try:
        subprocess.run(command, user=USER, check=True, timeout=60, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        return f"other users cannot run {sys.executable}"
    return ""


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    if why := _unable():
        pytest.skip(why)
    path = Path(tempfile.mkdtemp(prefix="hrm-drivers-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


async def test_a_driver_of_another_user_has_its_files_and_the_next_one_finds_them(
    master: Running, start_agent: StartAgent, open_dir: Path
) -> None:
    uid = pwd.getpwnam(USER).pw_uid
    work = open_dir / "work"
    start_agent(
        **made_spark(open_dir, REPORTING), WORK_DIR=work, RUN_AS="submitter", RUN_AS_UID_MIN=1
    )
    stub = submission_pb2_grpc.SubmissionServiceStub(master.channel)
    digest = pb.FileDigest(sha256=DIGEST, size_bytes=len(DATA), name="a.jar")
    await stub.PutPiece(pb.PutPieceRequest(file=digest, data=DATA))
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, name="a.jar", file=digest)
    kept = work / "files" / str(uid) / DIGEST
    ended = (pb.SUBMISSION_STATE_FINISHED, pb.SUBMISSION_STATE_FAILED)
    for attempt in ("first", "second"):
        submission_id = await submitted(master, user=USER, resources=[main], supervise=False)
        done = await until(master, submission_id, lambda found: found.state in ended)
        assert done.state == pb.SUBMISSION_STATE_FINISHED, done.message
        output = (work / "containers" / f"{submission_id}-x1" / "stdout").read_text()
        assert output.splitlines() == [str(uid), *[f"{uid} 600"] * 3, "print(1)"], attempt
        assert kept.read_bytes() == DATA
        assert (kept.stat().st_uid, kept.stat().st_mode & 0o077) == (uid, 0)
        assert (kept.stat().st_mtime > 1000) or attempt == "first", "the second has used it"
        os.utime(kept, (1.0, 1.0))
    assert (work / "files").stat().st_uid == os.getuid()
