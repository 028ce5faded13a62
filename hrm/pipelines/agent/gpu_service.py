"""GpuService: programs on this machine ask its agent for a share of a GPU."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from hrm import rpc_server
from hrm.core.vocabulary.model import WorkloadClass
from hrm.errors import HrmError, InvalidRequest
from hrm.pipelines.agent.runtime import PipelineRuntime
from hrm.pipelines.core.node_messages import GpuAsked
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc
from hrm.wire import codec

__all__ = ["GpuService"]


class GpuService(pipeline_pb2_grpc.GpuServiceServicer):
    """A claim lives as long as its call: the caller's death ends both."""

    def __init__(self, runtime: PipelineRuntime) -> None:
        self._runtime = runtime
        self._numbers = itertools.count(1)

    async def Acquire(  # noqa: N802
        self, request: pb.AcquireGpuRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GpuGrant]:
        holder = f"{next(self._numbers)} ({context.peer()})"
        try:
            asked = _asked(request, holder)
            wait_s = _wait_s(request.wait_s)
            try:
                number = await asyncio.wait_for(self._runtime.acquire(asked), wait_s)
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"no GPU had room for {asked.kind[:80]!r} within {request.wait_s:g} s",
                )
            gpu = self._runtime.share.gpus[number]
            yield pb.GpuGrant(index=number, uuid=gpu.uuid, declared=gpu.declared)
            await asyncio.Event().wait()  # until the caller hangs up, which cancels this
        except HrmError as error:
            await rpc_server.abort(context, error)
        finally:
            self._runtime.release(holder)


def _wait_s(wait_s: float) -> float | None:
    if not math.isfinite(wait_s) or wait_s < 0:
        raise InvalidRequest("wait_s must be 0 or more")
    return wait_s or None


def _asked(request: pb.AcquireGpuRequest, holder: str) -> GpuAsked:
    size_mb = request.size_mb
    if request.gpu_memory_mib < 0 or not math.isfinite(size_mb) or size_mb < 0:
        raise InvalidRequest("gpu_memory_mib and size_mb must be 0 or more")
    workload = codec.to_class(request.workload_class, "workload_class")
    return GpuAsked(
        now=time.time(),
        holder=holder,
        kind=codec.to_text(request.kind, "kind") or "gpu",
        gpu_memory_mib=request.gpu_memory_mib,
        size_mb=size_mb,
        workload=workload or WorkloadClass.BATCH,
    )
