"""A read-only HTTP server for a few pages: GET and HEAD, one request a connection.

What a client can use is bounded: connections, the size of a request, the time until its response is
sent. Who may read a page is for the page to decide.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http import HTTPStatus

__all__ = ["HttpPages", "response"]

_HEAD_BYTES_MAX = 8_192
_REQUEST_LIMIT_S = 10.0
_CONNECTIONS_MAX = 64


class HttpPages(ABC):
    """``page``, which is to be overridden, makes the response to one request."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        """``context``: where it is an HTTPS server."""
        self._context = context
        self._serving: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def page(self, target: str, *, wants_html: bool) -> bytes:
        """The response for a path with its query."""

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen; raises OSError when the port is taken."""
        return await asyncio.start_server(
            self._connected, host.strip("[]"), port, limit=_HEAD_BYTES_MAX
        )

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Counted immediately: a connection beyond the bound holds no descriptor."""
        if len(self._serving) >= _CONNECTIONS_MAX:
            if self._context is None:
                writer.write(response(503, "too many readers; try again\n"))
            writer.close() if self._context is None else writer.transport.abort()
            return
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, from the handshake until the response is sent, within the limit."""
        try:
            async with asyncio.timeout(_REQUEST_LIMIT_S):
                if self._context is not None:
                    await writer.start_tls(self._context)
                writer.write(await self._respond(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the reader disconnected or was too slow; no response is possible
        finally:
            writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            return response(400, "the request is too long\n")
        request_line, _, headers = head.partition("\r\n")
        parts = request_line.split(" ")
        if len(parts) != 3:
            return response(400, "this is not HTTP\n")
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return response(405, "these pages can only be read\n")
        wants_html = re.search(r"^accept:[^\r]*text/html", headers, re.I | re.M) is not None
        whole = await self.page(target, wants_html=wants_html)
        return whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == "HEAD" else whole


def response(
    status: int, body: str, kind: str = "text/plain", extra: Mapping[str, str] | None = None
) -> bytes:
    """A whole HTTP response; ``extra``: more headers."""
    payload = body.encode()
    headers = {
        "Content-Type": f"{kind}; charset=utf-8",
        "Content-Length": str(len(payload)),
        "Content-Security-Policy": "default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "Connection": "close",
        **(extra or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode() + payload
