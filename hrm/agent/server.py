"""What an agent listens on: logs of its containers.

Each of two endpoints has its own key: gRPC what the master shows (``NodeAuthority``); log pages
over HTTP, links that expire (``log_links``).
"""

from __future__ import annotations

import asyncio
import contextlib

from hrm import rpc_server
from hrm.agent.containers.logs import LogPages, Logs, LogService
from hrm.config import AgentSettings
from hrm.connections import ConnectionWatch
from hrm.errors import Unavailable
from hrm.identity.registry import NodeAuthority
from hrm.tls_server import ServerTls, listen
from hrm.v1 import node_pb2_grpc

__all__ = ["serve"]

_SERVER_GRACE_S = 1.0


async def serve(
    stack: contextlib.AsyncExitStack,
    settings: AgentSettings,
    authority: NodeAuthority,
    logs: Logs,
    *,
    secure: ServerTls | None,
) -> str:
    """Serve until ``stack`` closes; returns the endpoint to report to the master. Sets the address
    of the pages in ``logs``. ``secure``: the TLS of connections over the network, None: clear text.

    Raises:
        InvalidConfig: clear text is not allowed at its address.
        Unavailable: a port is in use, or the address is not this machine's.
    """
    watch = ConnectionWatch()
    server = rpc_server.server(
        authority,
        streams_max=settings.streams_max,
        connections_max=settings.connections_max,
        watch=watch,
    )
    node_pb2_grpc.add_AgentServiceServicer_to_server(LogService(logs), server)
    wanted = f"{settings.host}:{settings.port}"
    port = listen(server, wanted, secure, allow_clear_text=settings.allow_clear_text)
    await server.start()
    stack.push_async_callback(server.stop, _SERVER_GRACE_S)
    watch.ports.add(port)
    stack.callback(asyncio.create_task(watch.run()).cancel)
    try:
        pages = await LogPages(logs, secure).start(settings.host, settings.log_port)
    except OSError as error:
        raise Unavailable(
            f"cannot serve log pages on {settings.host}:{settings.log_port}: "
            f"{error.strerror}; choose another port with --log-port"
        ) from error
    stack.callback(pages.close)
    logs.address = f"{settings.host}:{pages.sockets[0].getsockname()[1]}"
    return f"{settings.host}:{port}"
