"""An agent that cannot have its name, its port, its files or its master, and its messages."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from hrm import ownership_keys
from tests.agent.conftest import TOKEN, Master, StartAgent, until


async def test_an_agent_proves_with_a_key_of_its_work_directory_that_it_is_its_node(
    master: Master, start_agent: StartAgent
) -> None:
    agent = start_agent()
    first = await master.until(lambda: master.registrations and master.registrations[0])
    path = agent.work_dir / "ownership-key"
    about = path.stat()
    assert (about.st_mode & 0o777, about.st_uid) == (0o600, os.getuid())
    assert first.ownership_key == path.read_text().strip()
    assert ownership_keys.owner_of(first.ownership_key)
    assert first.identity not in first.ownership_key, "which stands in names of control groups"
    path.chmod(0o644)
    await agent.kill()
    start_agent()
    again = await master.until(lambda: len(master.registrations) == 2 and master.registrations[1])
    assert (again.ownership_key, again.identity) == (first.ownership_key, first.identity)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_an_agent_whose_node_is_anothers_reports_it_and_gets_the_name_when_it_is_free(
    master: Master, start_agent: StartAgent
) -> None:
    master.refuse = grpc.StatusCode.PERMISSION_DENIED
    agent = start_agent()
    await agent.until_logged("another live agent has the name")
    master.refuse = None
    await master.until(lambda: master.registrations)
    assert "Traceback" not in agent.log


async def test_a_wrong_token_is_reported_and_the_right_one_is_taken_without_a_restart(
    master: Master, start_agent: StartAgent, tmp_path: Path
) -> None:
    token = tmp_path / "another"
    token.write_text("not-the-token-of-the-tests")
    token.chmod(0o600)
    agent = start_agent(token_file=str(token))
    await until(lambda: "missing or wrong token; HRM_TOKEN_FILE" in agent.log)
    assert master.registrations == []
    token.write_text(TOKEN)
    await master.until(lambda: master.registrations)


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
    await until(lambda: "no master; retrying" in agent.log)


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
    assert f"another agent uses {first.work_dir}" in second.log
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
    await until(lambda: "no master; retrying" in agent.log)
    await master.start(port)
    await master.until(lambda: master.registrations)
    assert agent.log.count("no master; retrying") == 1
    assert (await agent.end())[0] == 0


async def test_an_agent_without_a_master_ends_on_request(
    master: Master, start_agent: StartAgent
) -> None:
    await master.stop()
    agent = start_agent()
    await until(lambda: "no master; retrying" in agent.log)
    assert (await agent.end())[0] == 0


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
