"""GpuService: programs on this machine request a share of a GPU from its agent."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from hrm import rpc_server
from hrm.errors import HrmError, LimitReached
from hrm.pipelines.agent.gpu_claims import GpuClaims
from hrm.v1 import pipeline_pb2 as pb
from hrm.v1 import pipeline_pb2_grpc
from hrm.wire import pipelines as pipeline_wire

__all__ = ["GpuService"]


class GpuService(pipeline_pb2_grpc.GpuServiceServicer):
    """A claim lives as long as its call: the caller's death ends both."""

    def __init__(self, claims: GpuClaims) -> None:
        self._held = claims
        self._numbers = itertools.count(1)
        self._claims = 0
        self._claims_max: int | None = None

    def of_user(self, claims_max: int) -> GpuService:
        """The same for the programs of one user, which may have so many claims at a time."""
        service = GpuService(self._held)
        service._numbers, service._claims_max = self._numbers, claims_max
        return service

    async def Acquire(  # noqa: N802
        self, request: pb.AcquireGpuRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GpuGrant]:
        holder = f"{next(self._numbers)} ({context.peer()})"
        self._claims += 1
        try:
            if self._claims_max is not None and self._claims > self._claims_max:
                raise LimitReached(
                    f"this user has {self._claims_max} claims on GPUs of this node already "
                    f"(gpu_claims_per_user); try again, or raise it in hrm.toml [agent]"
                )
            asked, wait_s = pipeline_wire.to_claim(request, holder, time.time())
            try:
                number = await asyncio.wait_for(self._held.acquire(asked), wait_s)
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"no GPU had capacity for {asked.kind[:80]!r} within {request.wait_s:g} s",
                )
            gpu = self._held.share.gpus[number]
            yield pb.GpuGrant(index=number, uuid=gpu.uuid, declared=gpu.declared)
            await asyncio.Event().wait()  # until the caller disconnects, which cancels this
        except HrmError as error:
            await rpc_server.abort(context, error)
        finally:
            self._claims -= 1
            self._held.release(holder)
