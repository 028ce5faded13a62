"""Limits of one address, for open calls and registrations; a whole cluster behind one passes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.config import MasterSettings
from hrm.errors import LimitReached
from hrm.peer_limits import PeerLimits, address_of
from hrm.v1 import admin_pb2, events_pb2, events_pb2_grpc
from tests.master.test_services import TIMEOUT_S, node, refused, registration, running

REGISTER = "/hrm.v1.ApplicationService/Register"
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Any = Clock(), **given: Any) -> PeerLimits:  # noqa: B008 - it stands still
    return PeerLimits(
        **{"streams": 2, "calls": 2, "registrations_per_s": 1.0, "now": clock, **given}
    )


def test_the_address_is_what_counts_and_not_the_port() -> None:
    assert address_of("ipv4:10.0.0.1:4711") == "10.0.0.1"
    assert address_of("ipv6:%5B::1%5D:4711") == "%5B::1%5D"
    assert address_of("unix:") == "unix"
    bounded = limits()
    with ExitStack() as held:
        for port in (1, 2):
            held.enter_context(bounded.held(f"ipv4:10.0.0.1:{port}", "/a", is_stream=True))
        with pytest.raises(LimitReached, match=r"10.0.0.1 has 2 streams open already \(streams_p"):
            held.enter_context(bounded.held("ipv4:10.0.0.1:3", "/a", is_stream=True))
        held.enter_context(bounded.held("ipv4:10.0.0.2:3", "/a", is_stream=True))
        held.enter_context(bounded.held("ipv4:10.0.0.1:3", "/a", is_stream=False))
    with bounded.held("ipv4:10.0.0.1:4", "/a", is_stream=True):
        pass  # those have ended


def test_registrations_come_in_bursts_and_not_for_long() -> None:
    clock = Clock()
    bounded = limits(clock, calls=100)

    def register(peer: str = "ipv4:10.0.0.1:1") -> None:
        with bounded.held(peer, REGISTER, is_stream=False):
            pass

    for _ in range(10):
        register()
    with pytest.raises(LimitReached, match="registrations_per_s"):
        register()
    register("ipv4:10.0.0.2:1")
    clock.now += 1.0
    register()
    with pytest.raises(LimitReached):
        register()


def test_addresses_that_have_nothing_open_are_forgotten() -> None:
    bounded = limits()
    with bounded.held("ipv4:10.0.0.1:1", "/a", is_stream=True):
        for number in range(25_000):
            with bounded.held(f"unix{number}:x", "/a", is_stream=False):
                pass
        assert len(bounded._peers) <= 10_001
        assert "10.0.0.1" in bounded._peers


def test_a_large_cluster_behind_one_address_stays_below_the_defaults(tmp_path: Path) -> None:
    """10,000 nodes with two streams each, as many sessions, all of which register at once."""
    settings = MasterSettings()
    nodes = applications = 10_000
    assert settings.streams_per_peer >= 2 * nodes + applications
    assert settings.calls_per_peer >= applications
    assert 10 * settings.registrations_per_s >= applications
    assert min(settings.applications_per_user, settings.applications_limit) >= applications
    assert settings.nodes_limit >= nodes


async def test_a_master_states_which_limit_and_what_to_change(tmp_path: Path) -> None:
    few = {"streams_per_peer": 1, "registrations_per_s": 0.1, "event_followers_per_peer": 1}
    async with running(tmp_path, **few) as master:
        stream = master.nodes.Connect(timeout=TIMEOUT_S)
        await stream.write(node())
        await stream.read()
        with refused(EXHAUSTED, "127.0.0.1 has 1 streams open already (streams_per_peer)"):
            other = master.nodes.Connect(timeout=TIMEOUT_S)
            await other.write(node("n2", "i2"))
            await other.read()
        await master.applications.Register(registration(), timeout=TIMEOUT_S)
        with refused(EXHAUSTED, "registrations_per_s"):
            await master.applications.Register(registration(), timeout=TIMEOUT_S)
        await master.admin.GetCluster(admin_pb2.GetClusterRequest(), timeout=TIMEOUT_S)
        stream.cancel()


async def test_followers_are_counted_by_address(tmp_path: Path) -> None:
    async with running(tmp_path, event_followers_per_peer=1) as master:
        stub: Any = events_pb2_grpc.EventServiceStub(master.channel)
        ask = events_pb2.WatchEventsRequest(follow=True)
        first = stub.WatchEvents(ask)
        await first.read()
        with refused(EXHAUSTED, "1 readers from 127.0.0.1 follow already (event_followers_per_"):
            await stub.WatchEvents(ask).read()
        first.cancel()
