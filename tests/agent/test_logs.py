"""Logs of containers: reading across rotations, and pages that only a signed link opens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from hrm import rpc
from hrm.agent.logs import PAGE_BYTES, LogPages, LogReader, Logs, LogService, signature
from hrm.agent.shim import Log
from hrm.v1 import node_pb2, node_pb2_grpc

TOKEN = "the-token-of-the-tests"


def read_all(reader: LogReader) -> bytes:
    pieces = []
    while data := reader.read():
        pieces.append(data)
    return b"".join(pieces)


def test_a_log_is_one_text(tmp_path: Path) -> None:
    log = Log(tmp_path / "stdout", bytes_max=10, files_max=2)
    log.write(b"0123456789abcdefghijABCDEFGHIJ...")
    assert (tmp_path / "stdout").read_bytes() == b"..."
    assert read_all(LogReader(tmp_path / "stdout")) == b"abcdefghijABCDEFGHIJ..."


@pytest.mark.parametrize("tail_bytes", [1, 3, 4, 13, 14, 22, 23, 24, 1000])
def test_the_tail_begins_where_it_should(tmp_path: Path, tail_bytes: int) -> None:
    Log(tmp_path / "stdout", bytes_max=10, files_max=2).write(b"0123456789abcdefghijABC")
    kept = b"0123456789abcdefghijABC"
    assert read_all(LogReader(tmp_path / "stdout", tail_bytes)) == kept[-tail_bytes:]


def test_a_rotation_under_the_reader_loses_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "stdout", bytes_max=10, files_max=4)
    reader = LogReader(tmp_path / "stdout")
    log.write(b"01234")
    assert read_all(reader) == b"01234"
    log.write(b"56789abcdefghijABC")
    assert read_all(reader) == b"56789abcdefghijABC"
    assert read_all(reader) == b""
    log.write(b"DEF")
    assert read_all(reader) == b"DEF"


def test_a_reader_that_was_overtaken_goes_on_with_the_oldest(tmp_path: Path) -> None:
    log = Log(tmp_path / "stdout", bytes_max=10, files_max=1)
    log.write(b"0123")
    reader = LogReader(tmp_path / "stdout")
    assert read_all(reader) == b"0123"
    log.write(b"456789abcdefghijABCDEFGHIJ...")
    # What its open file still holds, then the oldest that is kept.
    assert read_all(reader) == b"456789" + b"ABCDEFGHIJ..."


def test_a_log_that_begins_later(tmp_path: Path) -> None:
    reader = LogReader(tmp_path / "stdout", 100)
    assert reader.read() == b""
    (tmp_path / "stdout").write_bytes(b"here")
    assert read_all(reader) == b"here"


class Node:
    """Logs of one container ``c1``, served like an agent's."""

    def __init__(self, directory: Path) -> None:
        self.over: bool | None = False
        self.logs = Logs(directory, TOKEN, lambda name: self.over if name == "c1" else None)
        self.dir = directory / "c1"
        self.dir.mkdir()
        self.server: asyncio.Server

    async def get(self, target: str, method: str = "GET", accept: str = "*/*") -> tuple[int, str]:
        """Status, and headers with body."""
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"
        return await self.send(head.encode())

    async def send(self, request: bytes) -> tuple[int, str]:
        host, _, port = self.logs.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        async with asyncio.timeout(10):
            answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        return int(answer.split(" ", 2)[1]), answer

    def link(self, stream: str = "stdout") -> str:
        return self.logs.url("c1", stream).removeprefix(f"http://{self.logs.address}")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    server = node.server = await LogPages(node.logs).start("127.0.0.1", 0)
    node.logs.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield node
    server.close()
    await server.wait_closed()


async def test_a_signed_link_opens_its_log(node: Node) -> None:
    (node.dir / "stdout").write_text("hello <b>\n")
    status, answer = await node.get(node.link())
    assert status == 200
    assert answer.endswith("\r\n\r\nhello <b>\n")
    assert "HRM-Log-Range: 0-10/10" in answer
    status, answer = await node.get(node.link(), accept="text/html,*/*")
    assert status == 200
    assert "<pre>hello &lt;b&gt;\n</pre>" in answer
    status, answer = await node.get(node.link(), method="HEAD")
    assert (status, answer.endswith("\r\n\r\n")) == (200, True)


async def test_pages_of_a_long_log(node: Node) -> None:
    text = "".join(f"{number:9d}\n" for number in range(20_000))
    (node.dir / "stdout.1").write_text(text[:100_000])
    (node.dir / "stdout").write_text(text[100_000:])
    pages = {}
    for start in (None, 0, 90_000, 199_990, 999_999):
        where = "" if start is None else f"&start={start}"
        status, answer = await node.get(node.link() + where)
        assert status == 200
        pages[start] = answer.partition("\r\n\r\n")[2]
    assert pages[None] == text[-PAGE_BYTES:]
    assert pages[0] == text[:PAGE_BYTES]
    assert pages[90_000] == text[90_000 : 90_000 + PAGE_BYTES]
    assert pages[199_990] == text[199_990:]
    assert pages[999_999] == ""


async def test_a_signature_opens_nothing_else(node: Node) -> None:
    (node.dir / "stdout").write_text("public")
    (node.dir / "stderr").write_text("secret")
    sig = signature("/containers/c1/stdout", TOKEN)
    for target in (
        "/containers/c1/stdout",
        "/containers/c1/stdout?sig=",
        f"/containers/c1/stdout?sig={sig[:-1]}0{sig[-1]}",
        f"/containers/c1/stderr?sig={sig}",
        f"/containers/c2/stdout?sig={sig}",
        f"/containers/c1/stdout?sig={signature('/containers/c1/stdout', 'other token')}",
        "/containers/c1/stdout?sig=%C3%A9",
    ):
        status, answer = await node.get(target)
        assert status == 403, target
        assert "secret" not in answer
        assert "public" not in answer


@pytest.mark.parametrize(
    "path",
    ["/containers/../stdout", "/containers/./stdout", "/containers/.hidden/stdout"],
)
async def test_an_id_that_is_a_path_is_refused_even_when_signed(node: Node, path: str) -> None:
    (node.dir.parent / "stdout").write_text("outside")
    status, answer = await node.get(f"{path}?sig={signature(path, TOKEN)}")
    assert status == 400
    assert "is no container id" in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /containers/c1/secrets HTTP/1.1\r\n\r\n", 404),
        (b"GET /containers/a/../../etc/stdout HTTP/1.1\r\n\r\n", 404),
        (b"POST /containers/c1/stdout HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 400),
    ],
)
async def test_what_is_no_request_for_a_log(node: Node, request_bytes: bytes, status: int) -> None:
    assert (await node.send(request_bytes))[0] == status


async def test_a_reader_that_takes_nothing_is_let_go(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrm.agent.logs._REQUEST_LIMIT_S", 0.2)
    (node.dir / "stdout").write_bytes(b"&" * PAGE_BYTES)  # &amp; in a page, five times as long
    # As on a network; the loopback takes megabytes before it has enough.
    node.server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    before = asyncio.all_tasks()
    host, _, port = node.logs.address.partition(":")
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.setblocking(False)
        await asyncio.get_running_loop().sock_connect(idle, (host, int(port)))
        request = f"GET {node.link()} HTTP/1.1\r\nAccept: text/html\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(idle, request.encode())
        await asyncio.wait_for(serving(before, some=True), 10)
        await asyncio.wait_for(serving(before, some=False), 10)


async def serving(before: set[asyncio.Task[Any]], *, some: bool) -> None:
    """Wait until the server has a task of its own, or none any more."""
    while bool(asyncio.all_tasks() - before - {asyncio.current_task()}) is not some:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_log_that_is_gone(node: Node) -> None:
    path = "/containers/c9/stdout"
    status, answer = await node.get(f"{path}?sig={signature(path, TOKEN)}")
    assert status == 404
    assert "never ran here" in answer


@pytest.fixture
async def stub(node: Node) -> AsyncIterator[Any]:
    server = grpc.aio.server(interceptors=[rpc.TokenInterceptor(TOKEN)])
    node_pb2_grpc.add_AgentServiceServicer_to_server(LogService(node.logs), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.channel(f"127.0.0.1:{port}", TOKEN) as channel:
        yield node_pb2_grpc.AgentServiceStub(channel)
    await server.stop(None)


async def test_following_ends_with_the_container(node: Node, stub: Any) -> None:
    log = Log(node.dir / "stdout", bytes_max=8, files_max=3)
    log.write(b"one\n")
    request = node_pb2.ReadLogRequest(container_id="c1", stream="stdout", follow=True)
    chunks = aiter(stub.ReadLog(request, timeout=20))
    assert (await anext(chunks)).data == b"one\n"
    log.write(b"two\nthree\n")
    node.over = True
    assert b"".join([chunk.data async for chunk in chunks]) == b"two\nthree\n"


async def test_reading_without_following(node: Node, stub: Any) -> None:
    (node.dir / "stderr").write_bytes(b"x" * 200_000 + b"end")
    request = node_pb2.ReadLogRequest(container_id="c1", stream="stderr", tail_bytes=100_003)
    data = b"".join([chunk.data async for chunk in stub.ReadLog(request, timeout=20)])
    assert data == b"x" * 100_000 + b"end"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"container_id": "c9"}, grpc.StatusCode.NOT_FOUND),
        ({"container_id": "../c1"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"container_id": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"container_id": "c1", "stream": "stdin"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"container_id": "c1", "tail_bytes": -1}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_bad_requests(stub: Any, fields: dict[str, Any], code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in stub.ReadLog(node_pb2.ReadLogRequest(**fields), timeout=20):
            pytest.fail("nothing to read")
    assert raised.value.code() is code
