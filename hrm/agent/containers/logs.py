"""Logs of containers for users: a stream over gRPC, and pages for the links in Spark's UI.

A log is the files ``stdout.5 … stdout.1, stdout`` read as one text. A reader holds its current file
open, so a rotation meanwhile loses nothing. A browser that follows a link carries no token: the
link is signed and expires (``hrm.agent.containers.log_links``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import html
import os
import re
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc.aio
import structlog

from hrm import rpc_server
from hrm.agent.containers.log_links import LogLinks
from hrm.agent.containers.shim import EXIT_FILE, rotated
from hrm.errors import HrmError, InvalidRequest, NotFound
from hrm.http_pages import HttpPages, response
from hrm.text import shown_lines
from hrm.tls_server import ServerTls
from hrm.v1 import node_pb2, node_pb2_grpc

__all__ = ["STREAMS", "LogPages", "LogReader", "LogService", "Logs"]

log = structlog.get_logger("hrm.agent.logs")

STREAMS = ("stdout", "stderr")
PAGE_BYTES = 65_536
_CHUNK_BYTES = 65_536
_POLL_S = 0.2
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_PATH = re.compile(r"/containers/(?P<id>[^/]+)/(?P<stream>stdout|stderr)")
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""The agent may read everything, and a log's directory may belong to its container. So only regular
files in it are opened, and opening a pipe does not block."""
_NO_LOG = (errno.ENOENT, errno.ELOOP, errno.ENXIO)
"""It is gone, it is a link, it is a socket."""


class LogReader:
    """Reads one log, across rotations, from ``tail_bytes`` before its end (0: from its start)."""

    def __init__(self, path: Path, tail_bytes: int = 0) -> None:
        self._path = path
        self._fd = -1
        self._inode = 0
        files = _files(path)
        skip = max(0, sum(size for _, size in files) - tail_bytes) if tail_bytes else 0
        for file, size in files:
            if skip < size or file == path:
                self._open(file, skip)
                return
            skip -= size

    def _open(self, file: Path, offset: int = 0) -> None:
        self.close()
        try:
            fd = os.open(file, _OPEN_FLAGS)
        except OSError as error:
            if error.errno in _NO_LOG:
                return
            raise
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            os.close(fd)
            return
        self._fd, self._inode = fd, seen.st_ino
        os.lseek(fd, offset, os.SEEK_SET)

    def read(self) -> bytes:
        """The next bytes; empty: nothing more at this moment."""
        if self._fd < 0:
            files = _files(self._path)
            if not files:
                return b""
            self._open(files[0][0])
        while self._fd >= 0:
            # In this order: what is written before the rotation is seen is read from the old file.
            newer = self._newer()
            data = os.read(self._fd, _CHUNK_BYTES)
            if data or newer is None:
                return data
            self._open(newer)
        return b""

    def _newer(self) -> Path | None:
        """The file that follows the open one; None while that is the newest."""
        files = [file for file, _ in _files(self._path)]
        for position, file in enumerate(files):
            with contextlib.suppress(OSError):
                if file.lstat().st_ino == self._inode:
                    return files[position + 1] if position + 1 < len(files) else None
        return files[0] if files else None  # rotated away: continue with the oldest kept

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _files(path: Path) -> list[tuple[Path, int]]:
    """The files of a log with their sizes, oldest first."""
    found: list[tuple[Path, int]] = []
    number = 0
    while True:
        file = rotated(path, number)
        try:
            seen = file.lstat()
            is_file = stat.S_ISREG(seen.st_mode)
        except OSError:
            is_file = False
        if is_file:
            found.append((file, seen.st_size))
        elif number > 0:
            # The newest is missing for an instant while it is rotated.
            return found[::-1]
        number += 1


class Logs:
    """Finds the logs of this node's containers.

    ``is_over(container_id)``: True: it ended; False: it waits or runs; None: the node does not
    have it.
    """

    def __init__(
        self, containers_dir: Path, links: LogLinks, is_over: Callable[[str], bool | None]
    ) -> None:
        self._dir = containers_dir
        self.links = links
        self._is_over = is_over
        self.scheme = "http"
        self.address = ""

    def path(self, container_id: str, stream: str) -> Path:
        """The newest file of a log.

        Raises:
            InvalidRequest: this can be no container, or no stream.
            NotFound: the node has nothing of this container.
        """
        if not _ID.fullmatch(container_id):
            raise InvalidRequest(f"{container_id!r} is no container id")
        if stream not in STREAMS:
            raise InvalidRequest(f"no stream {stream!r}; choose {' or '.join(STREAMS)}")
        path = self._dir / container_id / stream
        if self._is_over(container_id) is None and not path.parent.is_dir():
            raise NotFound(
                f"this node has no log of {container_id}: it never ran here, or its logs were "
                f"removed for their age or size (work_keep_s, logs_mib_max)"
            )
        return path

    def ended(self, container_id: str) -> bool:
        return self._is_over(container_id) is not False

    def ended_at_s(self, container_id: str) -> float | None:
        """When the container ended, from its record; None: it lives."""
        if self._is_over(container_id) is False:
            return None
        try:
            return (self._dir / container_id / EXIT_FILE).stat().st_mtime
        except OSError:
            return None

    def page(self, container_id: str, stream: str) -> str:
        """The address of a log's page, without what opens it."""
        return f"{self.scheme}://{self.address}{_page_path(container_id, stream)}"

    def url(self, container_id: str, stream: str, user: str) -> str:
        """The link that the application's own pages show; ``user``: the application's."""
        query = self.links.of_application(_page_path(container_id, stream), user)
        return f"{self.page(container_id, stream)}?{query}"

    def link(self, container_id: str, stream: str, asker: str) -> tuple[str, float]:
        """A link for ``asker``, and when it expires, seconds since the epoch.

        Raises:
            InvalidRequest: ``asker`` is not a valid name.
        """
        query, expires_at_s = self.links.of_asker(_page_path(container_id, stream), asker)
        return f"{self.page(container_id, stream)}?{query}", expires_at_s


def _page_path(container_id: str, stream: str) -> str:
    return f"/containers/{container_id}/{stream}"


class LogService(node_pb2_grpc.AgentServiceServicer):
    """``AgentService`` of ``node.proto``."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    async def ReadLog(  # noqa: N802 - the contract's name
        self, request: node_pb2.ReadLogRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[node_pb2.LogChunk]:
        try:
            if request.tail_bytes < 0:
                raise InvalidRequest(f"tail_bytes is {request.tail_bytes}; it must not be negative")
            path = self._logs.path(request.container_id, request.stream or "stdout")
        except HrmError as error:
            await rpc_server.abort(context, error)
        reader = LogReader(path, request.tail_bytes)
        try:
            while True:
                # Read before the log: what it wrote before its end is in the file by then.
                ended = not request.follow or self._logs.ended(request.container_id)
                while data := reader.read():
                    yield node_pb2.LogChunk(data=data)
                if ended:
                    return
                await asyncio.sleep(_POLL_S)
        finally:
            reader.close()

    async def LinkLog(  # noqa: N802
        self, request: node_pb2.LinkContainerLogRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> node_pb2.LogLink:
        try:
            stream = request.stream or "stdout"
            self._logs.path(request.container_id, stream)
            url, expires_at_s = self._logs.link(request.container_id, stream, request.asker)
        except HrmError as error:
            await rpc_server.abort(context, error)
        log.info("log link", container=request.container_id, stream=stream, asker=request.asker)
        return node_pb2.LogLink(url=url, expires_at_s=expires_at_s)


class LogPages(HttpPages):
    """The pages of logs: read-only, and only by links that are signed."""

    def __init__(self, logs: Logs, secure: ServerTls | None = None) -> None:
        """``secure``: it is an HTTPS server, and the logs' addresses have that scheme."""
        super().__init__(secure.context() if secure is not None else None)
        self._logs = logs
        logs.scheme = "https" if secure is not None else "http"

    async def page(self, target: str, *, wants_html: bool) -> bytes:
        try:
            url = urlsplit(target)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            start = int(query["start"]) if "start" in query else None
        except ValueError:
            return response(400, "malformed address\n")
        matched = _PATH.fullmatch(url.path)
        if matched is None:
            return response(404, "no such page; logs are at /containers/ID/stdout and stderr\n")
        if not _ID.fullmatch(matched["id"]):
            return response(400, "this is no container id\n")
        refusal = self._logs.links.refusal(url.path, query, self._logs.ended_at_s(matched["id"]))
        if refusal is not None:
            return response(*refusal)
        try:
            path = self._logs.path(matched["id"], matched["stream"])
        except InvalidRequest as error:
            return response(400, f"{error.message}\n")
        except NotFound as error:
            return response(404, f"{error.message}\n")
        first, total, data = _range(path, start)
        text = shown_lines(data.decode("utf-8", errors="replace"))
        if not wants_html:
            extra = {"HRM-Log-Range": f"{first}-{first + len(data)}/{total}"}
            return response(200, text, extra=extra)
        signed = LogLinks.again(query)
        return response(200, _html(url.path, signed, first, total, text), "text/html")


def _range(path: Path, start: int | None) -> tuple[int, int, bytes]:
    """At most a page of the log from byte ``start`` (None: its end): first byte, size, bytes."""
    files = _files(path)
    total = sum(size for _, size in files)
    first = max(0, total - PAGE_BYTES) if start is None else min(max(0, start), total)
    pieces: list[bytes] = []
    bytes_left, skip = min(PAGE_BYTES, total - first), first
    for file, size in files:
        if skip >= size:
            skip -= size
            continue
        with contextlib.suppress(OSError), file.open("rb") as opened:
            opened.seek(skip)
            pieces.append(opened.read(min(bytes_left, size - skip)))
            bytes_left -= len(pieces[-1])
        skip = 0
        if bytes_left <= 0:
            break
    return first, total, b"".join(pieces)


def _html(path: str, signed: str, first: int, total: int, text: str) -> str:
    def link(name: str, start: int | None) -> str:
        where = "" if start is None else f"&start={start}"
        return f'<a href="{path}?{html.escape(signed)}{html.escape(where)}">{name}</a>'

    links = [link("first", 0)]
    if first > 0:
        links.append(link("older", max(0, first - PAGE_BYTES)))
    if first + PAGE_BYTES < total:
        links.append(link("newer", first + PAGE_BYTES))
    links.append(link("latest", None))
    last = min(first + PAGE_BYTES, total)
    title = html.escape(path.removeprefix("/containers/"))
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title>"
        f"<p>{title}: bytes {first} to {last} of {total} kept · {' · '.join(links)}</p>"
        f"<pre>{html.escape(text)}</pre>"
    )
