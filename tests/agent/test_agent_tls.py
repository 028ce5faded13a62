"""An agent whose master speaks TLS, and one whose master does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm import certificates, rpc, tls
from hrm.tls_server import ServerTls
from hrm.v1 import node_pb2, node_pb2_grpc
from tests.agent.conftest import LIMIT_S, TOKEN, Master, StartAgent


@pytest.fixture
def pair(tmp_path: Path) -> certificates.Pair:
    (made,) = certificates.make(tmp_path / "tls", ["127.0.0.1"])
    return made


@pytest.fixture
def settings(pair: certificates.Pair, tmp_path: Path) -> dict[str, Any]:
    """Settings of an agent with TLS."""
    ca = str(tmp_path / "tls" / "ca.pem")
    return {"tls_ca": ca, "tls_cert": str(pair.cert), "tls_key": str(pair.key)}


async def _encrypted(master: Master, pair: certificates.Pair) -> None:
    await master.stop()
    master.secure = ServerTls(*pair)
    await master.start()


async def test_it_registers_and_serves_logs_encrypted(
    master: Master, start_agent: StartAgent, pair: certificates.Pair, settings: dict[str, Any]
) -> None:
    await _encrypted(master, pair)
    start_agent(**settings)
    await master.until(lambda: master.heartbeats)
    (registered,) = master.registrations
    request = node_pb2.ReadLogRequest(container_id="c1")
    ca = tls.read_ca(Path(settings["tls_ca"]))
    for authority, code in ((ca, "NOT_FOUND"), (None, "UNAVAILABLE")):
        async with rpc.channel(registered.endpoint, TOKEN, authority) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                stub = node_pb2_grpc.AgentServiceStub(channel)
                async for _ in stub.ReadLog(request, timeout=LIMIT_S):
                    pytest.fail("nothing to read")
        assert refused.value.code().name == code


async def test_what_uses_no_tls_on_the_masters_port_is_no_master_and_is_outlived(
    master: Master, start_agent: StartAgent, pair: certificates.Pair, settings: dict[str, Any]
) -> None:
    agent = start_agent(**settings)
    await agent.until_logged(f"127.0.0.1:{master.port} speaks no TLS")
    assert master.registrations == []
    port = master.port
    await master.stop()
    master.secure = ServerTls(*pair)
    await master.start(port)
    await master.until(lambda: master.registrations)
    assert agent.process.poll() is None


async def test_an_agent_in_clear_text_is_informed_of_a_master_that_uses_tls(
    master: Master, start_agent: StartAgent, pair: certificates.Pair
) -> None:
    await _encrypted(master, pair)
    agent = start_agent()
    await agent.until_logged(f"127.0.0.1:{master.port} speaks TLS")
    assert master.registrations == []


async def test_a_master_that_proves_itself_and_refuses_the_token_is_the_end(
    master: Master,
    start_agent: StartAgent,
    pair: certificates.Pair,
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    await _encrypted(master, pair)
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-token-of-the-tests")
    wrong.chmod(0o600)
    agent = start_agent(**settings, token_file=str(wrong))
    assert await agent.ended() == (1, "")
    assert "hrm agent: missing or wrong token; HRM_TOKEN_FILE" in agent.log.splitlines()[-1]


async def test_one_that_has_the_authority_and_no_certificate_is_reported(
    master: Master, start_agent: StartAgent, settings: dict[str, Any]
) -> None:
    agent = start_agent(tls_ca=settings["tls_ca"])
    assert (await agent.ended())[0] == 2
    assert "has no certificate; give it one: --tls-cert" in agent.log.splitlines()[-1]
