"""What an agent listens on: logs of its containers, and the pipelines' share of its GPUs.

Three doors, each with its own key. The master and the command line come over gRPC, with the
cluster's token; browsers read log pages over HTTP, each address with a token of its own in it
(``hrm.agent.logs``); executors of this machine, which hold no token, come through a socket in the
work directory that nobody else can open.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc.aio
import structlog

from hrm import rpc
from hrm.agent.logs import LogPages, Logs, LogService
from hrm.agent.pipeline_gpus import GpuService
from hrm.agent.pipeline_runtime import PipelineRuntime
from hrm.config import AgentSettings
from hrm.errors import InvalidConfig
from hrm.tls_server import ServerTls, listen
from hrm.v1 import node_pb2_grpc, pipeline_pb2_grpc

__all__ = ["gpu_socket", "serve"]

_SOCKET_PATH_MAX = 100
_SERVER_GRACE_S = 1.0
_log = structlog.get_logger("hrm.agent")


async def serve(
    stack: contextlib.AsyncExitStack,
    settings: AgentSettings,
    token: str,
    logs: Logs,
    pipelines: PipelineRuntime | None,
    *,
    socket: Path | None,
    secure: ServerTls | None,
) -> str:
    """Serve until ``stack`` closes; answers the endpoint that the master is to be told. Says to
    ``logs`` where their pages are. ``socket``: for GPUs, from ``gpu_socket``. ``secure``: the TLS
    of what comes over the network, None: clear text.

    Raises:
        InvalidConfig: an address cannot be listened on.
    """
    server = grpc.aio.server(interceptors=[rpc.TokenInterceptor(token)], options=rpc.SERVER_OPTIONS)
    node_pb2_grpc.add_AgentServiceServicer_to_server(LogService(logs), server)
    if pipelines is not None:
        gpus = GpuService(pipelines)
        pipeline_pb2_grpc.add_GpuServiceServicer_to_server(gpus, server)
        await _serve_gpus(stack, gpus, socket)
    try:
        port = listen(server, f"{settings.host}:{settings.port}", secure)
    except RuntimeError as error:
        raise InvalidConfig(
            f"cannot listen on {settings.host}:{settings.port}: the port is in use or the "
            f"address is not this machine's; choose others with --host and --port"
        ) from error
    await server.start()
    stack.push_async_callback(server.stop, _SERVER_GRACE_S)
    try:
        pages = await LogPages(logs, secure).start(settings.host, settings.log_port)
    except OSError as error:
        raise InvalidConfig(
            f"cannot serve log pages on {settings.host}:{settings.log_port}: "
            f"{error.strerror}; choose another port with --log-port"
        ) from error
    stack.callback(pages.close)
    logs.address = f"{settings.host}:{pages.sockets[0].getsockname()[1]}"
    return f"{settings.host}:{port}"


def gpu_socket(work_dir: Path) -> Path | None:
    """Where the socket for GPUs is; None: the system takes no path of this length."""
    path = work_dir.absolute() / "gpus.sock"
    return path if len(str(path).encode()) < _SOCKET_PATH_MAX else None


async def _serve_gpus(
    stack: contextlib.AsyncExitStack, gpus: GpuService, path: Path | None
) -> None:
    """To programs of this machine that hold no token: executors. Who may open the socket may ask,
    and that is whose containers these are."""
    if path is None:
        _log.warning("no socket for GPUs", why="the work directory's path is too long")
        return
    await asyncio.to_thread(path.unlink, missing_ok=True)
    server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
    pipeline_pb2_grpc.add_GpuServiceServicer_to_server(gpus, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await asyncio.to_thread(path.chmod, 0o600)
    stack.push_async_callback(server.stop, _SERVER_GRACE_S)
