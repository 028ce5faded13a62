"""Unauthenticated clients at a port: floods of calls, of frames and of connections."""

from __future__ import annotations

import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm import rpc
from hrm.v1 import admin_pb2, admin_pb2_grpc, common_pb2, node_pb2, node_pb2_grpc
from tests.conftest import PATIENCE
from tests.hostile import http2
from tests.hostile.conftest import Daemon, Start
from tests.hostile.witness import Witness

GROWTH_MAX_MIB = {"": 100.0, "headers without an end": 400.0}
"""gRPC discards headers that it has read, later than it reads; the memory does not stay."""
WAIT_MAX_S = 5.0
"""On an idle machine it is less than one; without bounds it is 30 and more."""
SECONDS = 2.0
CALL = "/hrm.v1.AdminService/GetCluster"
STREAM = "/hrm.v1.NodeService/Connect"
LOG = "/hrm.v1.AgentService/ReadLog"


def ask_master(channel: grpc.Channel, limit_s: float) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    stub.GetCluster(admin_pb2.GetClusterRequest(), timeout=limit_s)


def ask_agent(channel: grpc.Channel, limit_s: float) -> None:
    stub = node_pb2_grpc.AgentServiceStub(channel)
    request = node_pb2.ReadLogRequest(container_id="app-1-x1")
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.ReadLog(request, timeout=limit_s))
    if caught.value.code() is not grpc.StatusCode.NOT_FOUND:
        raise caught.value


Attack = Callable[[Daemon, str, str], http2.Tally]
ATTACKS: dict[str, Attack] = {
    "calls begun and taken back": lambda at, call, _: http2.rapid_reset(
        at.target, call, seconds=SECONDS
    ),
    "with the token": lambda at, call, _: http2.rapid_reset(
        at.target, call, token=at.token, seconds=SECONDS
    ),
    "streams begun and taken back, with the token": lambda at, _, stream: http2.rapid_reset(
        at.target, stream, token=at.token, seconds=SECONDS
    ),
    "calls left open": lambda at, call, _: http2.open_flood(at.target, call, seconds=SECONDS),
    "headers without an end": lambda at, *_: http2.continuation_flood(at.target, seconds=SECONDS),
    "pings": lambda at, *_: http2.ping_flood(at.target, seconds=SECONDS),
    "settings": lambda at, *_: http2.settings_flood(at.target, seconds=SECONDS),
    "answers that nobody reads": lambda at, call, _: http2.slow_reader(
        at.target, call, token=at.token, seconds=SECONDS
    ),
}


def survives(daemon: Daemon, ask: Any, attack: str, call: str, stream: str) -> None:
    with Witness(daemon.pid, daemon.target, daemon.token, ask) as seen:
        tally = ATTACKS[attack](daemon, call, stream)
    assert tally.sent_bytes > 0
    assert seen.failures == []
    assert seen.grown_mib <= GROWTH_MAX_MIB.get(attack, GROWTH_MAX_MIB[""])
    assert seen.worst_s <= PATIENCE * WAIT_MAX_S
    assert len(seen.waits_s) > 0
    assert daemon.process.poll() is None
    assert "Traceback" not in daemon.output()


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_a_master_under_a_flood(master: Daemon, attack: str) -> None:
    survives(master, ask_master, attack, CALL, STREAM)


@pytest.mark.parametrize("attack", ["calls begun and taken back", "pings"])
def test_an_agent_under_a_flood(agent: Daemon, attack: str) -> None:
    survives(agent, ask_agent, attack, LOG, LOG)


@pytest.mark.parametrize("preface", [False, True], ids=["silent", "greeting"])
def test_idle_connections_do_not_shut_others_out(
    master: Daemon, preface: bool, eventually: Any
) -> None:
    with (
        Witness(master.pid, master.target, master.token, ask_master) as seen,
        http2.idle(master.target, 600, preface=preface) as held,
    ):
        # All but a few, which are within their time.
        eventually(lambda: http2.closed(held) >= 600 - 40, 20.0)
    assert len(held) == 600
    assert seen.failures == []
    assert seen.worst_s <= PATIENCE * WAIT_MAX_S


def test_a_node_outlives_more_connections_than_it_may_have_descriptors(
    start: Start, agent: Daemon, master: Daemon, eventually: Any
) -> None:
    """With a limit that cannot be raised, connections leave enough for its own work."""
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (400, 400))
    with http2.idle(agent.target, 1_100):
        for _ in range(20):
            assert sum(1 for _ in Path(f"/proc/{agent.pid}/fd").iterdir()) < 400
            with rpc.sync_channel(agent.target, agent.token) as channel, suppress(grpc.RpcError):
                ask_agent(channel, 5.0)
    assert "Too many open files" not in agent.output()
    assert "Errno 24" not in agent.output()


@pytest.mark.timeout(300)
def test_an_agent_outlives_what_has_taken_its_masters_port(
    start: Start, agent: Daemon, master: Daemon, eventually: Any, tmp_path: Any
) -> None:
    """Garbage, and refusals of the token, from the port of a master that is down: to a node that
    was up, and to one that starts."""
    port = master.target.rpartition(":")[2]
    master.end()
    squatter = socket.create_server(("127.0.0.1", int(port)))
    with squatter:
        late = start("agent", "--master", master.target, "--name", "node-2", "--work-dir", "late")
        squatter.settimeout(PATIENCE * 20.0)
        for _ in range(4):
            connection, _ = squatter.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        refused = start("master", "--port", port)
        assert refused.process.wait(PATIENCE * 30.0) == 1, "the documented unit tries again"
        assert f"cannot listen on {master.target}" in refused.output()
    other = start("master", "--port", port, "--token-file", "token-2", "--state-dir", "state-2")
    eventually(lambda: "missing or wrong token" in late.output(), 30.0)
    other.process.send_signal(signal.SIGTERM)
    other.process.wait(PATIENCE * 20.0)
    start("master", "--port", port)

    def nodes() -> set[str]:
        with rpc.sync_channel(master.target, master.token) as channel:
            try:
                stub = admin_pb2_grpc.AdminServiceStub(channel)
                listed = stub.ListNodes(admin_pb2.ListNodesRequest(), timeout=2.0)
            except grpc.RpcError:
                return set()
        return {node.name for node in listed.nodes if node.state == common_pb2.NODE_STATE_ALIVE}

    eventually(lambda: nodes() == {"node-1", "node-2"}, 40.0)
    assert agent.process.poll() is None
    assert late.process.poll() is None
