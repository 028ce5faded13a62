"""The network: ordered streams that break, and everything else that happens to messages.

A *stream* joins a client (agent or AppMaster) to the master and keeps order, as gRPC's do. Messages
are late; one is lost, and with it the stream, which each side notices at a time of its own; a
partition holds messages back, or outlasts the keep-alive and breaks the stream; either process
ends, and what it has sent may still arrive.

Streams of nodes have further faults, which the protocol must tolerate because full reports heal
them: single messages vanish, arrive twice, out of order, and orders of a dead master arrive under a
new one (``Peer.ghost``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from hrm.runtime.clock import Clock
from hrm.sim.actors.sleepers import MASTER, Sleepers

__all__ = ["Network", "Peer", "Stream"]

KEEPALIVE_S = 2.5
CALL_TIMEOUT_S = 3.0
_HOP_S = 0.001
_STREAMS_PRUNED_AT = 200


class Peer(Protocol):
    """One end of a stream."""

    def received(self, message: Any) -> None: ...

    def closed(self) -> None:
        """The stream is over for this end."""

    def ghost(self, message: Any) -> None:
        """A message arrived after its stream had ended: dropped where streams keep order."""
        return


class _ClosedPeer(Peer):
    """An end whose process is gone."""

    def received(self, message: Any) -> None:
        pass

    def closed(self) -> None:
        pass


class Network:
    """``partitioned_until_s``: until when a client cannot reach the master; ``hosts``: of clients
    that cannot reach it either when their machine cannot. ``faults_stopped`` ends all faults."""

    def __init__(
        self, clock: Clock, chance: Random, rates: dict[str, float], sleepers: Sleepers
    ) -> None:
        self.clock = clock
        self.sleepers = sleepers
        self.chance = chance
        self.rates = dict(rates)
        self.partitioned_until_s: dict[str, float] = {}
        self.hosts: dict[str, str] = {}
        self.injected: Counter[str] = Counter()
        self._streams: list[Stream] = []

    def opened(self, stream: Stream) -> None:
        if len(self._streams) >= _STREAMS_PRUNED_AT:
            self._streams = [each for each in self._streams if not each.is_over]
        self._streams.append(stream)

    def sleep(self, process: str, for_s: float) -> None:
        """Let a process sleep. Others give up their connections to it when it has not answered
        their keep-alive; it notices when it wakes."""
        self.sleepers.sleep(process, for_s)
        for stream in self._streams:
            if process in stream.processes and not stream.is_over and for_s > KEEPALIVE_S:
                direction = 0 if process == MASTER else 1
                self.clock.after(KEEPALIVE_S, stream.sleeper_missed, direction)

    def revoke(self, client: str, for_s: float) -> None:
        """Its token is revoked: the master ends its streams at once, and takes none from it until
        it has another."""
        self.partitioned_until_s[client] = self.clock.now + for_s
        for stream in self._streams:
            if stream.name == client and not stream.is_over:
                stream.cut()

    def happens(self, kind: str) -> bool:
        """Does a fault of this kind happen now? Counts it if so."""
        rate = self.rates.get(kind, 0.0)
        if rate and self.chance.random() < rate:
            self.injected[kind] += 1
            return True
        return False

    def faults_stopped(self) -> None:
        self.rates = {}
        self.partitioned_until_s.clear()

    def partition_end_s(self, client: str) -> float:
        until_s = self.partitioned_until_s
        return max(until_s.get(client, 0.0), until_s.get(self.hosts.get(client, ""), 0.0))

    def delay_s(self) -> float:
        if self.happens("delay"):
            return self.chance.uniform(0.05, 2.0)
        return _HOP_S * (1.0 + self.chance.random())

    def call(
        self,
        client: str,
        serve: Callable[[Callable[[Any], None]], None],
        on_reply: Callable[[Any], None],
        process: str = "",
    ) -> None:
        """A unary call: ``serve(reply)`` runs at the master; ``answered(None)`` is a failure.

        ``on_reply`` is called once. ``process``: the caller's, where it is not ``client``.
        """
        sleepers, process = self.sleepers, process or client
        open_ = [True]

        def finish(result: Any) -> None:
            if open_[0]:
                open_[0] = False
                on_reply(result)

        def reply(result: Any) -> None:
            if self.happens("loss") or self.partition_end_s(client) > self.clock.now:
                return
            self.clock.after(self.delay_s(), sleepers.deliver, process, finish, result)

        self.clock.after(CALL_TIMEOUT_S, sleepers.ring, process, finish, None)
        if not self.happens("loss") and self.partition_end_s(client) <= self.clock.now:
            self.clock.after(self.delay_s(), sleepers.deliver, MASTER, serve, reply)


class Stream:
    """One stream. ``strict``: it only ever loses messages by breaking. ``processes``: the client's
    and the server's; ``name`` is the client's to the network.

    Invariants: after ``client`` or ``server`` is deaf, that side neither gets nor sends anything;
    what arrives in one direction arrives in the order of sending, unless it is not strict.
    """

    def __init__(
        self, network: Network, name: str, client: Peer, *, strict: bool, process: str = ""
    ) -> None:
        self.network = network
        self.name = name
        self.processes = (process or name, MASTER)
        network.opened(self)
        self.client: Peer = client
        self.server: Peer = _ClosedPeer()
        self._strict = strict
        self._broken = False
        self._server_died = False
        self._last_arrival = [0.0, 0.0]

    def send_to_server(self, message: Any) -> None:
        if not isinstance(self.client, _ClosedPeer):
            self._send(0, message)

    def send_to_client(self, message: Any) -> None:
        if not isinstance(self.server, _ClosedPeer):
            self._send(1, message)

    @property
    def is_over(self) -> bool:
        return isinstance(self.client, _ClosedPeer) and isinstance(self.server, _ClosedPeer)

    def sleeper_missed(self, direction: int) -> None:
        """The end that messages of ``direction`` go to sleeps, and the other one gives it up."""
        process = self.processes[1 - direction]
        other = self.client if direction == 0 else self.server
        if self.network.sleepers.is_asleep(process) and not isinstance(other, _ClosedPeer):
            self._close(1 - direction)
            self._close(direction)

    def cut(self) -> None:
        """The master takes nothing more, and the client learns of it as soon as it can."""
        self._broken = True
        self.server, peer = _ClosedPeer(), self.server
        peer.closed()
        self.network.clock.after(_HOP_S, self._close, 1)

    def close_client(self) -> None:
        """The client ends the stream, or its process does; the master notices in time."""
        self.client = _ClosedPeer()
        self._close_later(0)

    def close_server(self) -> None:
        """The master ends the stream; the client gets what was sent, then notices."""
        self.server = _ClosedPeer()
        self._close_later(1)

    def kill_server(self) -> None:
        """The master's process ends."""
        self._server_died = True
        self.close_server()

    def _close_later(self, direction: int) -> None:
        clock = self.network.clock
        partition_left_s = self.network.partition_end_s(self.name) - clock.now
        if self._broken or partition_left_s > 0:
            at_s = clock.now + KEEPALIVE_S
        else:
            at_s = max(self._last_arrival[direction], clock.now + _HOP_S)
        clock.at(at_s, self._close, direction)

    def _close(self, direction: int) -> None:
        process = self.processes[1 - direction]
        self.network.sleepers.deliver(process, self._closed, direction)

    def _closed(self, direction: int) -> None:
        if direction == 0:
            peer, self.server = self.server, _ClosedPeer()
        else:
            peer, self.client = self.client, _ClosedPeer()
        peer.closed()

    def _break(self) -> None:
        """Nothing arrives any more; both sides notice, each in its time."""
        if not self._broken:
            self._broken = True
            clock, chance = self.network.clock, self.network.chance
            for direction in (0, 1):
                clock.after(chance.uniform(0.05, KEEPALIVE_S), self._close, direction)

    def _send(self, direction: int, message: Any) -> None:
        network, clock = self.network, self.network.clock
        if self._broken:
            return
        earliest_s = clock.now
        client_partition_end_s = network.partition_end_s(self.name)
        if client_partition_end_s > clock.now:
            if client_partition_end_s - clock.now > KEEPALIVE_S:
                self._break()
                return
            earliest_s = client_partition_end_s
        if network.happens("loss"):
            self._break()
            return
        if not self._strict and network.happens("vanish"):
            return
        arrival_s = earliest_s + network.delay_s()
        if self._strict or not network.happens("reorder"):
            arrival_s = max(arrival_s, self._last_arrival[direction])
            self._last_arrival[direction] = arrival_s
        else:
            arrival_s = earliest_s + network.chance.uniform(0.0, 1.0)
        clock.at(arrival_s, self._arrive, direction, message)
        if not self._strict and network.happens("duplicate"):
            later_s = network.chance.uniform(0.0, 1.0)
            clock.at(arrival_s + later_s, self._arrive, direction, message)

    def _arrive(self, direction: int, message: Any) -> None:
        process = self.processes[1 - direction]
        self.network.sleepers.deliver(process, self._taken, direction, message)

    def _taken(self, direction: int, message: Any) -> None:
        peer = self.server if direction == 0 else self.client
        if self._server_died and direction == 1 and not self._strict:
            self.network.clock.after(
                self.network.chance.uniform(0.0, 4.0), self._haunt, self.client, message
            )
        if not self._broken:
            peer.received(message)

    def _haunt(self, peer: Peer, message: Any) -> None:
        if self.network.rates:
            self.network.injected["ghost"] += 1
            self.network.sleepers.deliver(self.processes[0], peer.ghost, message)
