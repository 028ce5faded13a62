"""Real gRPC servers and channels: which servers are trusted, and the errors of all others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]

from hrm import certificates, errors, rpc, rpc_server, tls
from hrm.config import MasterSettings, load
from hrm.pipelines import Client
from hrm.tls_server import ServerTls, listen, server_tls
from tests.conftest import PATIENCE

TOKEN = "the-token-of-the-tests"
SERVING = health_pb2.HealthCheckResponse.SERVING


@asynccontextmanager
async def serving(secure: ServerTls | None) -> AsyncIterator[int]:
    """A server of the health service, as HRM's are; its port."""
    server = grpc.aio.server(
        interceptors=[rpc_server.AccessInterceptor(TOKEN)], options=rpc_server.SERVER_OPTIONS
    )
    health_pb2_grpc.add_HealthServicer_to_server(health_aio.HealthServicer(), server)
    port = listen(server, "127.0.0.1:0", secure, allow_clear_text=False)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def ask(target: str, ca: bytes | None, token: str = TOKEN) -> Any:
    """The server's reply; raises the HrmError of a failed call."""
    try:
        async with rpc.channel(target, token, ca) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE * 20)
            return response.status
    except grpc.RpcError as error:
        raise rpc.error_from(error, target) from error


def ask_blocking(target: str, ca: bytes | None) -> Any:
    with rpc.sync_channel(target, TOKEN, ca) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE * 20).status


class Authority:
    """Certificates in a directory, as made by ``hrm tls``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pair = self.issue("localhost,127.0.0.1")

    def issue(self, host: str) -> certificates.Pair:
        (pair,) = certificates.make(self.directory, [host])
        return pair

    def server(self) -> ServerTls:
        return ServerTls(*self.pair)

    @property
    def ca_path(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def ca(self) -> bytes:
        return self.ca_path.read_bytes()


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


async def test_an_address_and_a_name_are_both_served_and_the_token_counts_as_ever(
    ours: Authority,
) -> None:
    async with serving(ours.server()) as port:
        for host in ("127.0.0.1", "localhost"):
            assert await ask(f"{host}:{port}", ours.ca) == SERVING
        assert await asyncio.to_thread(ask_blocking, f"127.0.0.1:{port}", ours.ca) == SERVING
        with pytest.raises(errors.PermissionDenied, match="wrong token"):
            await ask(f"127.0.0.1:{port}", ours.ca, "another")


async def test_what_does_not_fit_together_is_reported_at_once_with_the_cure(
    ours: Authority, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    async with serving(ours.server()) as port, serving(None) as clear:
        with pytest.raises(errors.TlsFailed, match=r"speaks TLS, and this client .*HRM_TLS_CA"):
            await ask(f"127.0.0.1:{port}", None)
        with pytest.raises(errors.TlsFailed, match=r"speaks no TLS, .*HRM_TLS_CA, .*--tls-cert"):
            await ask(f"127.0.0.1:{clear}", ours.ca)
        with pytest.raises(errors.TlsFailed, match=r"is not trusted .*HRM_TLS_CA"):
            await ask(f"127.0.0.1:{port}", Authority(tmp_path / "theirs").ca)
        assert await ask(f"127.0.0.1:{clear}", None) == SERVING
    assert time.monotonic() - began_s < PATIENCE * 15


async def test_a_certificate_for_another_name_is_no_good(ours: Authority) -> None:
    secure = ServerTls(*ours.issue("node-7,10.0.0.7"))
    async with serving(secure) as port:
        with pytest.raises(errors.TlsFailed, match=r"this name; .*hrm tls DIR --host 127\.0\.0\.1"):
            await ask(f"127.0.0.1:{port}", ours.ca)


async def test_an_absent_server_is_no_matter_of_tls(ours: Authority) -> None:
    async with serving(None) as port:
        pass
    for ca in (None, ours.ca):
        with pytest.raises(errors.Unavailable, match="no HRM master answers") as caught:
            await ask(f"127.0.0.1:{port}", ca)
        assert not isinstance(caught.value, errors.TlsFailed)


async def test_a_client_that_has_patience_has_none_with_this(
    ours: Authority, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)

    def list_tasks(port: int, ca: Path | None) -> None:
        with Client(f"127.0.0.1:{port}", token_path=token, tls_ca=ca, patience_s=300.0) as client:
            client.tasks()

    async with serving(ours.server()) as port, serving(None) as clear:
        with pytest.raises(errors.TlsFailed, match="speaks TLS"):
            await asyncio.to_thread(list_tasks, port, None)
        with pytest.raises(errors.TlsFailed, match="speaks no TLS"):
            await asyncio.to_thread(list_tasks, clear, ours.ca_path)


def test_the_authority_is_the_named_one_or_lies_next_to_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, default_ca = tmp_path / "token", tmp_path / "ca.pem"
    assert tls.ca_file(token) is None
    default_ca.touch()
    assert tls.ca_file(token) == default_ca
    monkeypatch.setenv("HRM_TLS_CA", "/of/the/environment.pem")
    assert tls.ca_file(token) == Path("/of/the/environment.pem")
    assert tls.ca_file(token, "") == Path("/of/the/environment.pem")
    assert tls.ca_file(token, "/given.pem") == Path("/given.pem")
    monkeypatch.setenv("HRM_TLS_CA", "")
    assert tls.ca_file(token) is None, "clear text, on purpose"


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"\xff\xfe"])
def test_an_authority_that_is_none_is_never_clear_text(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.InvalidConfig, match=f"{path}.*: (no certificate|No such file).*HRM"):
        tls.read_ca(path)


def test_a_daemon_has_all_of_it_or_none(ours: Authority, tmp_path: Path) -> None:
    token = tmp_path / "token"
    cert, key = ours.pair

    def made(**settings: Path) -> ServerTls | None:
        return server_tls(load(MasterSettings, token_file=token, **settings))

    assert made() is None
    assert made(tls_ca=ours.ca_path, tls_cert=cert, tls_key=key) is not None
    with pytest.raises(errors.InvalidConfig, match="tls_key is missing"):
        made(tls_ca=ours.ca_path, tls_cert=cert)
    with pytest.raises(errors.InvalidConfig, match="tls_cert is missing"):
        made(tls_ca=ours.ca_path, tls_key=key)
    with pytest.raises(errors.InvalidConfig, match="--tls-ca"):
        made(tls_cert=cert, tls_key=key)
    (tmp_path / "ca.pem").write_bytes(ours.ca)
    with pytest.raises(errors.InvalidConfig, match=r"no certificate; .*--tls-cert"):
        made()
    assert made(tls_cert=cert, tls_key=key) is not None
