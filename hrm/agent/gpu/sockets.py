"""The sockets through which programs of this machine request GPUs: one for each user.

Executors hold no token; access to a socket is the permission to request. Where containers run as
their submitters (``run_as``), each user gets one when its first container starts or is adopted
here: ``<work_dir>/gpus/<uid>.sock``. Containers of the agent's own user have
``<work_dir>/gpus.sock``. A socket is created in a directory that only the agent can enter, and
moved to its place once its user owns it, so no other user can ever open it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import structlog

from hrm import rpc_server
from hrm.agent.containers.container_dir import remove_tree
from hrm.agent.run_as import Account
from hrm.config import AgentSettings
from hrm.errors import LaunchFailed
from hrm.pipelines.agent.gpu_service import GpuService
from hrm.pipelines.client.local import SOCKET_VARIABLE
from hrm.v1 import pipeline_pb2_grpc

__all__ = ["GpuSockets"]

SOCKETS_MAX = 256
"""Users of one node that may request its GPUs, until its agent restarts."""
_PATH_BYTES_MAX = 100
_SERVER_GRACE_S = 1.0
_log = structlog.get_logger("hrm.agent")


class GpuSockets:
    """To be served before the first container starts; ``environment_of`` opens what is missing."""

    def __init__(
        self, settings: AgentSettings, account_of: Callable[[str], Account | None]
    ) -> None:
        self._settings = settings
        self._own = settings.work_dir.absolute() / "gpus.sock"
        self._directory = settings.work_dir.absolute() / "gpus"
        self._account_of = account_of
        self._gpus: GpuService | None = None
        self._servers: dict[int | None, grpc.aio.Server | None] = {}
        """By uid, None: the agent's user's; those that could not be opened have none."""
        self._opening = asyncio.Lock()

    async def serve(self, gpus: GpuService) -> None:
        """Open the socket of the agent's own user."""
        self._gpus = gpus
        await asyncio.to_thread(self._prepare)
        await self.environment_of(None)

    def _prepare(self) -> None:
        self._own.unlink(missing_ok=True)
        remove_tree(self._directory)
        self._making.mkdir(mode=0o700, parents=True)
        self._directory.chmod(0o711)

    @property
    def _making(self) -> Path:
        return self._directory / "new"

    def path_of(self, account: Account | None) -> Path:
        """Where this user's socket is, if it is open."""
        return self._own if account is None else self._directory / f"{account.uid}.sock"

    async def environment_of(self, account: Account | None) -> dict[str, str]:
        """What containers of this user need to request a GPU; empty: they cannot."""
        uid = None if account is None else account.uid
        async with self._opening:
            if uid not in self._servers and self._gpus is not None:
                self._servers[uid] = await self._open(account)
        if self._servers.get(uid) is None:
            return {}
        return {SOCKET_VARIABLE: str(self.path_of(account))}

    async def adopted(self, user: str) -> None:
        """A container of ``user`` has outlived an earlier agent, and uses its socket's path."""
        with contextlib.suppress(LaunchFailed):
            await self.environment_of(await asyncio.to_thread(self._account_of, user))

    async def _open(self, account: Account | None) -> grpc.aio.Server | None:
        assert self._gpus is not None
        path = self.path_of(account)
        made = self._making / path.name
        if len(str(made).encode()) >= _PATH_BYTES_MAX:
            _log.warning("no socket for GPUs", why="the work directory's path is too long")
            return None
        if len(self._servers) >= SOCKETS_MAX:
            _log.warning("no socket for GPUs", why=f"{SOCKETS_MAX} users have one already")
            return None
        server = rpc_server.server(
            None,
            streams_max=self._settings.streams_max,
            connections_max=self._settings.connections_max,
        )
        gpus = self._gpus
        if account is not None:  # all users may share the agent's own
            gpus = gpus.of_user(self._settings.gpu_claims_per_user)
        pipeline_pb2_grpc.add_GpuServiceServicer_to_server(gpus, server)
        try:
            server.add_insecure_port(f"unix:{made}")
            await server.start()
            await asyncio.to_thread(_move, made, path, account)
        except (OSError, RuntimeError) as error:
            _log.warning("no socket for GPUs", path=str(path), why=str(error))
            await server.stop(None)
            return None
        return server

    async def close(self) -> None:
        """Close all of them, and end what was granted through them."""
        servers = [one for one in self._servers.values() if one is not None]
        self._servers.clear()
        await asyncio.gather(*(one.stop(_SERVER_GRACE_S) for one in servers))


def _move(made: Path, path: Path, account: Account | None) -> None:
    made.chmod(0o600)
    if account is not None:
        os.chown(made, account.uid, account.gid)
    made.rename(path)
