"""Logs of containers: reading across rotations, and pages that only a signed link opens."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc.aio
import pytest

from hrm import certificates, rpc, rpc_server
from hrm.agent.containers.log_links import LogLinks
from hrm.agent.containers.logs import PAGE_BYTES, LogPages, LogReader, Logs, LogService
from hrm.agent.containers.shim import EXIT_FILE, CappedLog
from hrm.tls_server import ServerTls
from hrm.v1 import node_pb2, node_pb2_grpc
from tests.hostile_text import unseen

TOKEN = "the-token-of-the-tests"
KEY = "the ownership key of this node"


def read_all(reader: LogReader) -> bytes:
    pieces = []
    while data := reader.read():
        pieces.append(data)
    return b"".join(pieces)


def test_a_log_is_one_text(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "stdout", bytes_max=10, files_max=2)
    log.write(b"0123456789abcdefghijABCDEFGHIJ...")
    assert (tmp_path / "stdout").read_bytes() == b"..."
    assert read_all(LogReader(tmp_path / "stdout")) == b"abcdefghijABCDEFGHIJ..."


def test_what_is_no_file_in_place_of_a_log_is_not_read(tmp_path: Path) -> None:
    """The agent may read more than the creator of these."""
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "kept").write_bytes(b"newest")
    (tmp_path / "kept.1").symlink_to(tmp_path / "secret")
    (tmp_path / "kept.2").write_bytes(b"beyond the end")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        for name in ("link", "pipe", "socket"):
            assert read_all(LogReader(tmp_path / name)) == b""
            assert read_all(LogReader(tmp_path / name, 100)) == b""
    assert read_all(LogReader(tmp_path / "kept")) == b"newest"


@pytest.mark.parametrize("tail_bytes", [1, 3, 4, 13, 14, 22, 23, 24, 1000])
def test_the_tail_begins_where_it_should(tmp_path: Path, tail_bytes: int) -> None:
    CappedLog(tmp_path / "stdout", bytes_max=10, files_max=2).write(b"0123456789abcdefghijABC")
    kept = b"0123456789abcdefghijABC"
    assert read_all(LogReader(tmp_path / "stdout", tail_bytes)) == kept[-tail_bytes:]


def test_a_rotation_under_the_reader_loses_nothing(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "stdout", bytes_max=10, files_max=4)
    reader = LogReader(tmp_path / "stdout")
    log.write(b"01234")
    assert read_all(reader) == b"01234"
    log.write(b"56789abcdefghijABC")
    assert read_all(reader) == b"56789abcdefghijABC"
    assert read_all(reader) == b""
    log.write(b"DEF")
    assert read_all(reader) == b"DEF"


def test_a_reader_that_was_overtaken_goes_on_with_the_oldest(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "stdout", bytes_max=10, files_max=1)
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
        self.now = 1_800_000_000.0
        self.links = LogLinks(KEY, asked_s=3600.0, keep_s=600.0, clock=lambda: self.now)
        self.logs = Logs(directory, self.links, lambda name: self.over if name == "c1" else None)
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
            response = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        return int(response.split(" ", 2)[1]), response

    def link(self, stream: str = "stdout") -> str:
        return self.target(self.logs.url("c1", stream, "ada"))

    def asked(self, stream: str = "stdout") -> str:
        return self.target(self.logs.link("c1", stream, "eve")[0])

    def target(self, url: str) -> str:
        return url.removeprefix(f"http://{self.logs.address}")

    def end(self, at_s: float) -> None:
        """Its container ended at that time, according to its record."""
        self.over = True
        (self.dir / EXIT_FILE).write_text("{}")
        os.utime(self.dir / EXIT_FILE, (at_s, at_s))


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
    status, response = await node.get(node.link())
    assert status == 200
    assert response.endswith("\r\n\r\nhello <b>\n")
    assert "HRM-Log-Range: 0-10/10" in response
    status, response = await node.get(node.link(), accept="text/html,*/*")
    assert status == 200
    assert "<pre>hello &lt;b&gt;\n</pre>" in response
    status, response = await node.get(node.link(), method="HEAD")
    assert (status, response.endswith("\r\n\r\n")) == (200, True)


async def test_pages_of_a_long_log(node: Node) -> None:
    text = "".join(f"{number:9d}\n" for number in range(20_000))
    (node.dir / "stdout.1").write_text(text[:100_000])
    (node.dir / "stdout").write_text(text[100_000:])
    pages = {}
    for start in (None, 0, 90_000, 199_990, 999_999):
        where = "" if start is None else f"&start={start}"
        status, response = await node.get(node.link() + where)
        assert status == 200
        pages[start] = response.partition("\r\n\r\n")[2]
    assert pages[None] == text[-PAGE_BYTES:]
    assert pages[0] == text[:PAGE_BYTES]
    assert pages[90_000] == text[90_000 : 90_000 + PAGE_BYTES]
    assert pages[199_990] == text[199_990:]
    assert pages[999_999] == ""


async def test_a_signature_opens_nothing_else(node: Node) -> None:
    (node.dir / "stdout").write_text("public")
    (node.dir / "stderr").write_text("secret")
    path = "/containers/c1/stdout"
    good, other = node.link().partition("?")[2], LogLinks("other key", asked_s=9.0, keep_s=9.0)
    asked = node.asked().partition("?")[2]
    until = parse_qs(asked)["until"][0]
    for target in (
        path,
        f"{path}?sig=",
        f"{path}?{good[:-2]}0{good[-1]}",
        f"{path}?{good.replace('ada', 'eve')}",
        f"/containers/c1/stderr?{good}",
        f"/containers/c2/stdout?{good}",
        f"{path}?{other.of_application(path, 'ada')}",
        f"{path}?{asked.replace(until, str(int(until) + 1))}",
        f"{path}?{asked.replace(f'&until={until}', '')}",
        f"{path}?{asked.replace('eve', 'ada')}",
        f"{path}?sig=%C3%A9",
        f"{path}?until=nan&sig=x",
    ):
        status, response = await node.get(target)
        assert status == 403, target
        assert "hrm app logs" in response, "how to get one"
        assert "secret" not in response
        assert "public" not in response


@pytest.mark.parametrize(
    "path",
    ["/containers/../stdout", "/containers/./stdout", "/containers/.hidden/stdout"],
)
async def test_an_id_that_is_a_path_is_refused_even_when_signed(node: Node, path: str) -> None:
    (node.dir.parent / "stdout").write_text("outside")
    status, response = await node.get(f"{path}?{node.links.of_application(path, 'ada')}")
    assert status == 400
    assert "is no container id" in response


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
    monkeypatch.setattr("hrm.http_pages._REQUEST_LIMIT_S", 0.2)
    (node.dir / "stdout").write_bytes(b"&" * PAGE_BYTES)  # &amp; in a page, five times as long
    # Like a network; the loopback buffers megabytes.
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
    """Wait until the server has a task of its own, or has none left."""
    while bool(asyncio.all_tasks() - before - {asyncio.current_task()}) is not some:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("accept", ["text/html", "*/*"])
async def test_pages_show_a_log_and_nothing_in_it_acts(node: Node, accept: str) -> None:
    (node.dir / "stdout").write_bytes(b"a\r\n\x1b[2J\x00\tb\xe2\x80\xae\xff<i>\n")
    status, response = await node.get(node.link(), accept=accept)
    body = response.partition("\r\n\r\n")[2]
    assert status == 200
    assert unseen(body, allowed="\n\t") == []
    tag = "&lt;i&gt;" if accept == "text/html" else "<i>"
    assert f"a\n\\x1b[2J\\x00\tb\\u202e\ufffd{tag}\n" in body


async def test_a_log_that_is_gone(node: Node) -> None:
    path = "/containers/c9/stdout"
    status, response = await node.get(f"{path}?{node.links.of_application(path, 'ada')}")
    assert status == 404
    assert "never ran here" in response


async def test_what_sparks_pages_show_opens_while_the_container_lives_and_a_time_after(
    node: Node,
) -> None:
    (node.dir / "stdout").write_text("here")
    link, asked = node.link(), node.asked()
    for _ in range(2):
        assert (await node.get(link))[0] == 200
        node.now += 365 * 86_400.0
    node.end(node.now)
    node.now += 600.0
    for over in (True, None):  # the agent still has it; only its directory has it
        node.over = over
        assert (await node.get(link))[0] == 200
    node.now += 1.0
    status, response = await node.get(link)
    assert status == 410
    assert "more than 600 s ago (log_links_keep_s)" in response
    assert "here" not in response
    assert (await node.get(asked))[0] == 410
    assert (await node.get(node.asked()))[0] == 200, "who asks again may read it"


async def test_a_link_is_for_one_that_asked_and_for_a_while(node: Node) -> None:
    (node.dir / "stdout").write_text("here")
    url, expires_at_s = node.logs.link("c1", "stdout", "eve")
    assert expires_at_s == node.now + 3600.0
    assert parse_qs(urlsplit(url).query)["for"] == ["eve"]
    assert url != node.logs.link("c1", "stdout", "ada")[0]
    assert (await node.get(node.target(url)))[0] == 200
    node.now += 3601.0
    status, response = await node.get(node.target(url))
    assert status == 410
    assert "its time is over (log_link_s); for a link: hrm app logs " in response
    assert "--stream stdout --link" in response
    node.end(node.now)
    assert (await node.get(node.asked()))[0] == 200, "of a container that has ended, too"


async def test_pages_lead_on_by_the_same_link(node: Node) -> None:
    (node.dir / "stdout").write_bytes(b"x" * 3 * PAGE_BYTES)
    for link in (node.link(), node.asked()):
        _, response = await node.get(link, accept="text/html")
        targets = [html.unescape(x) for x in re.findall(r'href="([^"]+)"', response)]
        assert len(targets) == 3
        for target in targets:
            assert (await node.get(target))[0] == 200, target


async def test_links_outlive_the_agent_and_are_of_its_node_alone(tmp_path: Path) -> None:
    def link(key: str) -> str:
        links = LogLinks(key, asked_s=1.0, keep_s=1.0)
        return Logs(tmp_path, links, lambda _: False).url("c1", "stdout", "ada")

    assert link(KEY) == link(KEY) != link(KEY + "x")
    assert KEY not in link(KEY)


async def test_no_browser_keeps_a_page_or_passes_its_link_on(node: Node) -> None:
    (node.dir / "stdout").write_text("here")
    for target in (node.link(), "/containers/c1/stdout", "/"):
        for accept in ("*/*", "text/html"):
            head = (await node.get(target, accept=accept))[1].partition("\r\n\r\n")[0]
            assert "Cache-Control: no-store\r\n" in head
            assert "Referrer-Policy: no-referrer\r\n" in head
            assert "X-Content-Type-Options: nosniff\r\n" in head


@pytest.fixture
async def stub(node: Node) -> AsyncIterator[Any]:
    server = grpc.aio.server(interceptors=[rpc_server.AccessInterceptor(TOKEN)])
    node_pb2_grpc.add_AgentServiceServicer_to_server(LogService(node.logs), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.channel(f"127.0.0.1:{port}", TOKEN) as channel:
        yield node_pb2_grpc.AgentServiceStub(channel)
    await server.stop(None)


async def test_following_ends_with_the_container(node: Node, stub: Any) -> None:
    log = CappedLog(node.dir / "stdout", bytes_max=8, files_max=3)
    log.write(b"one\n")
    request = node_pb2.ReadLogRequest(container_id="c1", stream="stdout", follow=True)
    chunks = aiter(stub.ReadLog(request, timeout=20))
    assert (await anext(chunks)).data == b"one\n"
    log.write(b"two\nthree\n")
    node.over = True
    assert b"".join([chunk.data async for chunk in chunks]) == b"two\nthree\n"


async def test_a_link_is_asked_for_with_the_token(node: Node, stub: Any) -> None:
    (node.dir / "stderr").write_text("here")
    ask = node_pb2.LinkContainerLogRequest(container_id="c1", stream="stderr", asker="eve")
    link = await stub.LinkLog(ask, timeout=20)
    assert link.expires_at_s == node.now + 3600.0
    status, response = await node.get(node.target(link.url))
    assert (status, response.endswith("here")) == (200, True)
    for fields, code in (
        ({"container_id": "c9"}, grpc.StatusCode.NOT_FOUND),
        ({"container_id": "../c1"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"stream": "stdin"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"asker": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"asker": "e\nve"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"asker": "e" * 129}, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        bad = node_pb2.LinkContainerLogRequest(container_id="c1", stream="stdout", asker="eve")
        bad.MergeFrom(node_pb2.LinkContainerLogRequest(**fields))
        if "asker" in fields:
            bad.asker = fields["asker"]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.LinkLog(bad, timeout=20)
        assert raised.value.code() is code, fields


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


async def test_silent_readers_hold_a_bounded_number_of_places_and_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrm.http_pages._REQUEST_LIMIT_S", 0.5)
    (pair,) = certificates.make(tmp_path / "tls", ["127.0.0.1"])
    for secure in (None, ServerTls(*pair)):
        logs = Logs(tmp_path, LogLinks(KEY, asked_s=1.0, keep_s=1.0), lambda _: None)
        server = await LogPages(logs, secure).start("127.0.0.1", 0)
        address = server.sockets[0].getsockname()[:2]
        held = [await asyncio.open_connection(*address) for _ in range(80)]
        async with asyncio.timeout(20):
            # 16 are beyond the bound; nothing was sent on the others, not even a handshake.
            for reader, _ in reversed(held):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
        for _, writer in held:
            writer.close()
        server.close()
