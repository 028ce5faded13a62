"""Connections without the token: few per address, and not for long."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm import rpc, rpc_server
from hrm.connections import ConnectionWatch
from hrm.errors import NotFound
from hrm.v1 import application_pb2_grpc, node_pb2, node_pb2_grpc
from tests.hostile import http2


class Refusing(application_pb2_grpc.ApplicationServiceServicer):
    """For each kind of call, a method that refuses it: before, or after, its message is read."""

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotFound("there is none")

    async def Session(self, requests: Any, context: Any) -> Any:  # noqa: N802
        async for _ in requests:
            break
        raise NotFound("there is none")
        yield


class Service(node_pb2_grpc.AgentServiceServicer):
    async def ReadLog(self, request: Any, context: Any) -> Any:  # noqa: N802
        yield node_pb2.LogChunk(data=b"x")


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(
        (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    ) as server:
        yield server, server.getsockname()[1]


def accepted(server: socket.socket, port: int) -> tuple[socket.socket, socket.socket]:
    ours = socket.create_connection(("127.0.0.1", port))
    theirs, _ = server.accept()
    return ours, theirs


def is_closed(connection: socket.socket) -> bool:
    return http2.closed([connection]) == 1


def name(connection: socket.socket) -> str:
    return "ipv4:{}:{}".format(*connection.getsockname())


def test_an_unauthenticated_connection_is_closed_after_its_time_and_one_that_is_known_is_not() -> (
    None
):
    with listening() as (server, port):
        unauthenticated, _kept = accepted(server, port)
        friend, _too = accepted(server, port)
        watch = ConnectionWatch(limit_s=0.0)
        assert watch.check() == 0, "not its port"
        watch = ConnectionWatch(limit_s=0.0)
        watch.ports.add(port)
        watch.known(name(friend))
        assert watch.check() == 1
        assert is_closed(unauthenticated)
        assert not is_closed(friend)
        assert watch.check() == 0, "what is closed is not ours any more"
        for one in (unauthenticated, _kept, friend, _too):
            one.close()


def test_an_unauthenticated_connection_in_its_time_is_left_alone() -> None:
    with listening() as (server, port):
        unauthenticated, kept = accepted(server, port)
        watch = ConnectionWatch(limit_s=60.0)
        watch.ports.add(port)
        assert watch.check() == 0
        assert not is_closed(unauthenticated)
        for one in (unauthenticated, kept):
            one.close()


def test_of_too_many_the_oldest_go_but_none_in_its_first_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("hrm.connections.time.monotonic", lambda: now[0])
    with listening() as (server, port):
        watch = ConnectionWatch(limit_s=60.0, unauthenticated_max=2)
        watch.ports.add(port)
        made = []
        for _ in range(5):
            made.append(accepted(server, port))
            assert watch.check() == 0
            now[0] += 0.24
        now[0] += 0.06  # ages: 1.26, 1.02, 0.78, 0.54, 0.3 s
        assert watch.check() == 2
        assert [is_closed(ours) for ours, _ in made] == [True, True, False, False, False]
        now[0] += 1.0
        assert watch.check() == 1
        assert [is_closed(ours) for ours, _ in made][2:] == [True, False, False]
        for pair in made:
            for one in pair:
                one.close()


async def test_one_that_shows_the_token_is_known_before_its_message_has_come() -> None:
    """A large message takes time, and more bytes than an unauthenticated client may send."""
    watch = ConnectionWatch(limit_s=0.0)
    server = rpc_server.server("t", streams_max=8, connections_max=16, watch=watch)
    node_pb2_grpc.add_AgentServiceServicer_to_server(Service(), server)
    watch.ports.add(port := server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    token_seen = asyncio.Event()
    known = watch.known
    watch.known = lambda peer: (known(peer), token_seen.set())  # type: ignore[assignment, func-returns-value]
    async with rpc.channel(f"127.0.0.1:{port}", "t") as channel:
        begin: Any = channel.stream_stream
        method = "/hrm.v1.AgentService/ReadLog"
        call = begin(method, response_deserializer=node_pb2.LogChunk.FromString)()
        await asyncio.wait_for(token_seen.wait(), 30)
        assert watch.check() == 0
        await call.write(node_pb2.ReadLogRequest().SerializeToString())
        await call.done_writing()
        assert (await call.read()).data == b"x"
    async with rpc.channel(f"127.0.0.1:{port}", "t") as channel:
        begin = channel.stream_stream
        call = begin(method, response_deserializer=node_pb2.LogChunk.FromString)()
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError, match="without a message"):
            await call.read()
    await server.stop(None)


@pytest.mark.parametrize("body", [b"", b"\xff"])
async def test_refused_calls_leave_no_stream_open(body: bytes) -> None:
    """Each is over at once, not only when Python collects garbage."""
    watch = ConnectionWatch()
    server = rpc_server.server("t", streams_max=4, connections_max=16, watch=watch)
    application_pb2_grpc.add_ApplicationServiceServicer_to_server(Refusing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    wanted = grpc.StatusCode.INVALID_ARGUMENT if body else grpc.StatusCode.NOT_FOUND
    gc.collect()
    gc.disable()
    try:
        async with rpc.channel(f"127.0.0.1:{port}", "t") as channel:
            methods = [channel.unary_unary, channel.stream_stream]
            for make, name in zip(methods, ("Register", "Session"), strict=True):
                begin: Any = make
                method = begin(f"/hrm.v1.ApplicationService/{name}")
                for _ in range(40):
                    call = method(body) if name == "Register" else method(iter([body]))
                    async with asyncio.timeout(30):
                        assert await call.code() is wanted, await call.details()
    finally:
        gc.enable()
        await server.stop(None)


async def test_grpc_names_its_callers_as_the_watch_does(eventually: Any, tmp_path: Path) -> None:
    for host in ("127.0.0.1", "[::1]"):
        watch = ConnectionWatch(limit_s=0.0)
        server = rpc_server.server("t", streams_max=8, connections_max=16, watch=watch)
        node_pb2_grpc.add_AgentServiceServicer_to_server(Service(), server)
        try:
            port = server.add_insecure_port(f"{host}:0")
        except RuntimeError:
            assert host == "[::1]", "no IPv6 here"
            continue
        watch.ports.add(port)
        await server.start()
        async with rpc.channel(f"{host}:{port}", "t") as channel:
            stub = node_pb2_grpc.AgentServiceStub(channel)
            assert [x.data async for x in stub.ReadLog(node_pb2.ReadLogRequest())] == [b"x"]
            assert watch.check() == 0, "it has shown the token"
        async with rpc.channel(f"{host}:{port}", "wrong") as channel:
            stub = node_pb2_grpc.AgentServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await anext(aiter(stub.ReadLog(node_pb2.ReadLogRequest())))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert watch.check() == 1, "it has not"
        await server.stop(None)
