"""Requests for a GPU to the machine's agent, over a socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.errors import Unavailable
from hrm.pipelines.client import local
from hrm.pipelines.client.local import LocalGpus
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc


class _Agent(pipeline_pb2_grpc.GpuServiceServicer):
    def __init__(self) -> None:
        self.asked: list[pb.AcquireGpuRequest] = []

    def Acquire(self, request: Any, context: Any) -> Iterator[pb.GpuGrant]:  # noqa: N802
        self.asked.append(request)
        yield pb.GpuGrant(index=3, uuid="GPU-3")


class _SilentService(pipeline_pb2_grpc.GpuServiceServicer):
    """An agent that hangs until its caller has disconnected."""

    def Acquire(self, request: Any, context: Any) -> Iterator[pb.GpuGrant]:  # noqa: N802
        gone = threading.Event()
        context.add_callback(gone.set)
        gone.wait(30)
        yield from ()


def test_an_agent_that_hangs_is_not_waited_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "REPLY_LIMIT_S", 0.2)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        pipeline_pb2_grpc.add_GpuServiceServicer_to_server(_SilentService(), server)
        server.add_insecure_port(f"unix:{tmp_path / 's'}")
        server.start()
        gpus = LocalGpus(str(tmp_path / "s"))
        try:
            with (
                pytest.raises(
                    Unavailable, match=r"did not respond to k within .* s; look at its log"
                ),
                gpus.share("k", wait_s=0.1),
            ):
                pass
        finally:
            gpus.close()
            server.stop(None).wait(10)


def test_not_to_wait_is_not_to_wait_for_ever(tmp_path: Path) -> None:
    agent, path = _Agent(), tmp_path / "s"
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        pipeline_pb2_grpc.add_GpuServiceServicer_to_server(agent, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        gpus = LocalGpus(str(path))
        try:
            with gpus.share("k", wait_s=0.0) as share:
                assert (share.index, share.uuid) == (3, "GPU-3")
        finally:
            gpus.close()
            server.stop(None).wait(10)
    assert 0 < agent.asked[0].wait_s < 0.1, "0 asks for a wait without a limit"
