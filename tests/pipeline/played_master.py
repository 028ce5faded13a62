"""A worker's document, and the master's end of a worker's stream, played by a test."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
from pipeline_samples import sample_steps

from hrm import rpc_server
from hrm.pipelines.worker.document import WorkerDocument
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc
from hrm.wire import pipelines as pw

REPOSITORY = Path(__file__).parents[2]
SAMPLES = "pipeline_samples.sample_steps"
NAME = "pipelines-1-x1"
LIMIT_S = 20.0


def document(directory: Path, **more: Any) -> WorkerDocument:
    values: dict[str, Any] = {
        "container_id": NAME,
        "node": "n1",
        "master": "127.0.0.1:1",
        "token_file": directory / "token",
        "tls_ca": None,
        "allow_clear_text": False,
        "vcores": 2,
        "memory_mib": 1024,
        "gpu_memory_mib": 0,
        "gpu_model": "",
        "gpu_device": None,
        "policy": "pats",
        "import_path": str(REPOSITORY),
        "platform": "",
        "speeds": (1.0, 1.0),
        "device_memory_risk": 0.01,
        "reconnect_delay_max_s": 0.2,
    }
    return WorkerDocument(**(values | more))


class PlayedMaster(pipeline_pb2_grpc.PipelineServiceServicer):
    """It accepts every registration; heartbeats are dropped."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[pb.NodePipelineMessage] = asyncio.Queue()
        self.address = ""
        self._stream: asyncio.Queue[pb.MasterPipelineMessage | None] = asyncio.Queue()

    async def Connect(self, requests: Any, context: Any) -> None:  # noqa: N802
        stream = self._stream = asyncio.Queue()

        async def read() -> None:
            async for message in requests:
                if message.WhichOneof("message") != "load":
                    self.received.put_nowait(message)

        reading = asyncio.create_task(read())
        try:
            registered = pb.PipelineNodeRegistered(heartbeat_interval_s=0.2)
            await context.write(pb.MasterPipelineMessage(registered=registered))
            while (message := await stream.get()) is not None:
                await context.write(message)
        finally:
            reading.cancel()

    async def receive(self, kind: str) -> Any:
        """The next message, which must be of this kind."""
        async with asyncio.timeout(LIMIT_S):
            message = await self.received.get()
        assert message.WhichOneof("message") == kind, message
        return getattr(message, kind)

    def send(self, **fields: Any) -> None:
        self._stream.put_nowait(pb.MasterPipelineMessage(**fields))

    def hang_up(self) -> None:
        self._stream.put_nowait(None)

    def place(self, name: str, pipeline: str, value: object, **more: Any) -> pb.PipelineAttempt:
        """Order a task of one of the sample pipelines; returns its attempt."""
        data, order = placing(name, pipeline, value, **more)
        self.send(data=data)
        self.send(place=order)
        return order.attempt

    async def ended(self, attempt: pb.PipelineAttempt) -> tuple[pb.PipelineTaskEnd, bytes]:
        """The end of this task and its result; what is reported of its runs is dropped."""
        result = b""
        async with asyncio.timeout(LIMIT_S):
            while True:
                message = await self.received.get()
                match message.WhichOneof("message"):
                    case "data":
                        assert message.data.attempt == attempt
                        assert message.data.offset == len(result)
                        result += message.data.data
                    case "ended":
                        assert message.ended.attempt == attempt
                        return message.ended.end, result
                    case kind:
                        assert kind == "run", message


def placing(
    name: str,
    pipeline: str,
    value: object,
    *,
    number: int = 1,
    missing: int = 0,
    result_dir: str = "",
) -> tuple[pb.PipelineData, pb.PlacePipelineTask]:
    """The input of a task of a sample pipeline, and the order to run it. ``missing``: how many
    bytes of the input do not arrive."""
    attempt = pb.PipelineAttempt(task_id=name, attempt=number)
    payload = pickle.dumps(value)
    spec = getattr(sample_steps, pipeline).spec(f"{SAMPLES}:{pipeline}")
    order = pb.PlacePipelineTask(
        attempt=attempt,
        pipeline=pw.from_pipeline(spec),
        size_mb=1.0,
        payload_bytes=len(payload),
        result_format=pb.PIPELINE_RESULT_FORMAT_PICKLE,
        result_dir=result_dir,
    )
    return pb.PipelineData(attempt=attempt, data=payload[: len(payload) - missing]), order


@asynccontextmanager
async def playing() -> AsyncIterator[PlayedMaster]:
    """On a free port of the loopback."""
    master = PlayedMaster()
    server = grpc.aio.server(options=rpc_server.SERVER_OPTIONS)
    pipeline_pb2_grpc.add_PipelineServiceServicer_to_server(master, server)
    master.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield master
    finally:
        await server.stop(0)
