"""Real agents with join tokens and tokens of their own, and a real master."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from hrm import rpc
from hrm.agent import enrolment
from hrm.config import AgentSettings
from hrm.errors import InvalidConfig
from hrm.identity.roles import AccessRole
from hrm.identity.tokens import id_in, is_join_token, new_token
from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    submission_pb2,
    submission_pb2_grpc,
)
from tests.hostile.application import Application
from tests.hostile.cluster import Cluster, wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as subject:
        subject.start_master()
        yield subject


def token_file(cluster: Cluster, name: str, *words: str) -> Path:
    path = cluster.directory / f"{name}.token"
    made = cluster.hrm("token", "create", *words, "--file", str(path))
    assert made.returncode == 0, made.stderr
    return path


def log_of(cluster: Cluster, application_id: str) -> str:
    chunks = cluster.admin.ReadLogs(
        admin_pb2.ReadLogsRequest(application_id=application_id, stream="stdout"), timeout=20
    )
    return b"".join(chunk.data for chunk in chunks).decode()


def status_of(cluster: Cluster, token_id: str) -> str:
    shown = cluster.hrm("token", "list", "--all", "--output", "json").stdout
    (state,) = [x["state"] for x in json.loads(shown)["tokens"] if x["token_id"] == token_id]
    return str(state)


def test_a_join_token_becomes_the_nodes_own_and_no_other_machines(cluster: Cluster) -> None:
    path = token_file(cluster, "join", "--role", "agent", "--join")
    join = path.read_text().strip()
    assert is_join_token(join)
    first = cluster.start_agent("node-1", token_file=str(path))
    own = path.read_text().strip()
    assert not is_join_token(own) and id_in(own)
    assert path.stat().st_mode & 0o777 == 0o600
    assert status_of(cluster, id_in(join)) == "used"

    copied = cluster.directory / "copied"
    copied.write_text(join)
    copied.chmod(0o600)
    thief = cluster.start_agent("node-2", wait=False, token_file=str(copied))
    assert thief.ended() == 1
    assert "works once, and node node-1 has used it" in thief.log()
    assert copied.read_text() == join, "nothing has changed"

    with Application(cluster.address, cluster.token, command="echo hello; sleep 600") as app:
        app.request("1")
        app.wait_running(1)
        wait_until(lambda: "hello" in log_of(cluster, app.application_id), "its log is read")
    for secret in (own, join, cluster.token):
        assert secret not in first.log() + cluster.daemons[0].log()

    first.end()
    again = cluster.start_agent("node-1", token_file=str(path))
    assert path.read_text().strip() == own, "it starts again with the same"
    assert "enrolled" not in again.log()


def test_a_nodes_token_opens_that_node_and_little_else(cluster: Cluster) -> None:
    path = token_file(cluster, "node-1", "--node", "node-1")
    token = path.read_text().strip()
    other = cluster.start_agent("node-2", wait=False, token_file=str(path))
    assert wait_until(lambda: "is not its name" in other.log(), "it is refused")
    assert "node-2" not in {node.name for node in cluster.nodes()}
    agent = cluster.start_agent("node-1", token_file=str(path))
    with rpc.sync_channel(cluster.address, token) as channel:
        with pytest.raises(grpc.RpcError, match="has the role agent"):
            admin_pb2_grpc.AdminServiceStub(channel).GetCluster(admin_pb2.GetClusterRequest())
        get = submission_pb2_grpc.SubmissionServiceStub(channel).GetFile
        with pytest.raises(grpc.RpcError, match="of yours is here"):
            list(get(submission_pb2.GetFileRequest(sha256="0" * 64)))
    for worthless in (token, cluster.token):
        with rpc.sync_channel(cluster.endpoint(), worthless) as channel:
            link = node_pb2_grpc.AgentServiceStub(channel).LinkLog
            with pytest.raises(grpc.RpcError, match="wrong token"):
                link(node_pb2.LinkContainerLogRequest(container_id="c"), timeout=20)
    revoked = cluster.hrm("token", "revoke", id_in(token))
    assert revoked.returncode == 0
    wait_until(lambda: "was revoked at" in agent.log(), "its stream has ended")


async def test_a_node_that_cannot_keep_its_token_does_not_use_up_the_join_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(new_token(AccessRole.JOINING)[1])
    path.chmod(0o600)
    monkeypatch.setattr(os, "access", lambda *_: False)

    def open_channel() -> grpc.aio.Channel:
        raise AssertionError("the master is called")

    with pytest.raises(InvalidConfig, match=r"holds a join token, and .* cannot be written"):
        await enrolment.enrolled(AgentSettings(token_file=path), "node-1", open_channel)
