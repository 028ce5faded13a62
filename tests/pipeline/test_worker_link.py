"""A worker's stream to the master reconnects, whatever ended it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio

from hrm import rpc, rpc_server
from hrm.pipelines.worker.link import WorkerLink
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc


class _Master(pipeline_pb2_grpc.PipelineServiceServicer):
    """It accepts every registration and sends nothing more."""

    def __init__(self) -> None:
        self.registered: asyncio.Queue[pb.NodePipelineMessage] = asyncio.Queue()

    async def Connect(self, requests: Any, context: Any) -> None:  # noqa: N802
        registered = pb.PipelineNodeRegistered(heartbeat_interval_s=60.0)
        async for message in requests:
            self.registered.put_nowait(message)
            await context.write(pb.MasterPipelineMessage(registered=registered))


def _failing() -> Iterator[pb.NodePipelineMessage]:
    raise OSError("a result cannot be read")
    yield


async def test_what_cannot_be_reported_ends_the_stream_and_not_the_link() -> None:
    master, up = _Master(), asyncio.Event()
    server = grpc.aio.server(options=rpc_server.SERVER_OPTIONS)
    pipeline_pb2_grpc.add_PipelineServiceServicer_to_server(master, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    link = WorkerLink(
        target=f"127.0.0.1:{port}",
        open_channel=lambda: rpc.channel(f"127.0.0.1:{port}", "t"),
        register=pb.RegisterPipelineNode,
        on_up=lambda _estimates: up.set(),
        on_message=lambda _message: None,
        load=pb.PipelineLoad,
        delay_max_s=0.2,
    )
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(20.0):
            await master.registered.get()
            await up.wait()
            link.send_each(_failing())
            again = await master.registered.get()
        assert again.WhichOneof("message") == "register"
    finally:
        await link.close(1.0)
        async with asyncio.timeout(20.0):
            await running
        await server.stop(0)
