"""Links to logs, requested of the master and signed by the agent that has the log."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio

from hrm import rpc, tls
from hrm.core.vocabulary.model import ApplicationId
from hrm.errors import NotFound, Unsatisfiable
from hrm.master.log_sources import LogSources
from hrm.v1 import admin_pb2, node_pb2, node_pb2_grpc

__all__ = ["link"]

TIMEOUT_S = 10.0


async def link(
    request: admin_pb2.LinkLogRequest,
    sources: LogSources,
    to_agent: Callable[[str], grpc.aio.Channel],
) -> node_pb2.LogLink:
    """The link that the agent returns.

    Raises:
        InvalidRequest: the requester's name is malformed.
        NotFound: there is no such log.
        Unsatisfiable: its agent does not respond, or not with a link.
    """
    container_id, node = await sources.find(
        ApplicationId(request.application_id), request.executor_id
    )
    ask = node_pb2.LinkContainerLogRequest(
        container_id=container_id, stream=request.stream or "stderr", asker=request.asker
    )
    async with to_agent(node.endpoint) as channel:
        stub = node_pb2_grpc.AgentServiceStub(channel)
        try:
            answer: node_pb2.LogLink = await stub.LinkLog(ask, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            details = error.details() or str(error.code())
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise NotFound(f"{node.name}: {details}") from error
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise rpc.error_from(error, node.endpoint) from error
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                details = "its HRM is older than this master's; upgrade it"
            unsafe = tls.failure(node.endpoint, details)
            raise Unsatisfiable(
                f"the agent of {node.name} gives no link: {unsafe.message if unsafe else details}; "
                f"see hrm nodes"
            ) from error
    return answer
