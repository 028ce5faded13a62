"""A link to a log, from the command at the master to the page that the agent serves."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hrm import rpc_server
from hrm.agent.containers.log_links import LogLinks
from hrm.agent.containers.logs import LogPages, Logs, LogService
from hrm.v1 import admin_pb2, application_pb2, node_pb2_grpc
from tests.master.test_services import (
    TIMEOUT_S,
    Running,
    asking_for,
    node,
    refused,
    registration,
    running,
)


@asynccontextmanager
async def agent(master: Running, directory: Path, servicer: Any = None) -> AsyncIterator[Any]:
    """A node ``n1`` that has the logs below ``directory``; its stream."""
    logs = Logs(directory, LogLinks("k" * 64, asked_s=60.0, keep_s=60.0), lambda _: False)
    server = grpc.aio.server(interceptors=[rpc_server.AccessInterceptor(master.token)])
    node_pb2_grpc.add_AgentServiceServicer_to_server(servicer or LogService(logs), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pages = await LogPages(logs).start("127.0.0.1", 0)
    logs.address = f"127.0.0.1:{pages.sockets[0].getsockname()[1]}"
    stream = master.nodes.Connect()
    await stream.write(node(endpoint=f"127.0.0.1:{port}"))
    try:
        yield stream
    finally:
        stream.cancel()
        pages.close()
        await pages.wait_closed()
        await server.stop(None)


async def started(master: Running, stream: Any) -> str:
    """The application that has an executor there."""
    result = await master.applications.Register(registration(), timeout=TIMEOUT_S)
    session = master.applications.Session()
    attach = application_pb2.AttachApplication(
        application_id=result.application_id, epoch=result.epoch
    )
    await session.write(application_pb2.ApplicationUpdate(attach=attach))
    await session.write(asking_for(1))
    async with asyncio.timeout(TIMEOUT_S):
        while (await stream.read()).WhichOneof("message") != "assign":
            pass
    return str(result.application_id)


def ask(application_id: str, **fields: str) -> admin_pb2.LinkLogRequest:
    values = {"stream": "stdout", "asker": "eve", **fields}
    return admin_pb2.LinkLogRequest(application_id=application_id, **values)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as result:
        return bytes(result.read())


async def test_one_that_asks_the_master_gets_a_link_of_the_node(tmp_path: Path) -> None:
    async with running(tmp_path) as master, agent(master, tmp_path) as stream:
        application_id = await started(master, stream)
        (tmp_path / f"{application_id}-x1").mkdir()
        (tmp_path / f"{application_id}-x1" / "stdout").write_text("here")
        link = await master.admin.LinkLog(ask(application_id), timeout=TIMEOUT_S)
        assert "for=eve" in link.url
        assert link.expires_at_s > 0
        assert await asyncio.to_thread(_get, link.url) == b"here"
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "asker"):
            await master.admin.LinkLog(ask(application_id, asker=""), timeout=TIMEOUT_S)
        with refused(grpc.StatusCode.NOT_FOUND, "no such application"):
            await master.admin.LinkLog(ask("app-1"), timeout=TIMEOUT_S)
        with refused(grpc.StatusCode.NOT_FOUND, "executor 7"):
            await master.admin.LinkLog(ask(application_id, executor_id="7"), timeout=TIMEOUT_S)
        shown = await master.admin.GetApplication(
            admin_pb2.GetApplicationRequest(application_id=application_id), timeout=TIMEOUT_S
        )
        assert "sig=" not in str(shown), "what lists containers opens no log"


async def test_an_agent_without_links_or_gone_is_named(tmp_path: Path) -> None:
    class Older(node_pb2_grpc.AgentServiceServicer):
        """Has no LinkLog."""

    async with running(tmp_path) as master:
        async with agent(master, tmp_path, Older()) as stream:
            application_id = await started(master, stream)
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "its HRM is older"):
                await master.admin.LinkLog(ask(application_id), timeout=TIMEOUT_S)
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "the agent of n1 returned no link"):
            await master.admin.LinkLog(ask(application_id), timeout=20)
