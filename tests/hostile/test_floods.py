"""Floods of HTTP/2 at every port, with and without the token: others are still served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.hostile import attacker
from tests.hostile.attack import Attack, Limits
from tests.hostile.cluster import Cluster, Daemon

STATUS = "/hrm.v1.AdminService/GetCluster"
LOG = "/hrm.v1.AgentService/ReadLog"
LONG_S = 6.0

pytestmark = pytest.mark.hostile


class Port(NamedTuple):
    """One port of the cluster: its daemon, address, called method, and another caller."""

    daemon: Daemon
    target: str
    path: str
    token: str
    probe: tuple[str, ...]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("floods")) as made:
        made.start_master()
        made.start_agent()
        yield made


def port(cluster: Cluster, name: str) -> Port:
    master, agent = cluster.daemons
    token_file = str(cluster.token_file)
    if name == "master":
        probe = ("status", cluster.address, token_file)
        return Port(master, cluster.address, STATUS, cluster.token, probe)
    target = cluster.endpoint()
    return Port(agent, target, LOG, cluster.token, ("log", target, token_file))


ENDLESS = Limits(growth_mib=400.0, latency_s=5.0)
"""For header blocks that never end: gRPC reads and drops gigabytes of them per second or two, and
the allocator keeps what it read them into. It does not grow with what more is sent."""


def flood(
    at: Port, attack: str, words: str, *, seconds: float, limits: Limits | None = None, **more: Any
) -> None:
    with Attack("1", words, on=at.daemon, probe=at.probe, limits=limits) as seen:
        tally = attacker.run(attack, at.daemon, target=at.target, seconds=seconds, **more)
        seen.outcome = (
            f"{tally.sent_bytes >> 20} MiB sent over {tally.connections} connections, "
            f"{tally.closed} of them closed"
        )
        assert tally.sent_bytes or tally.refused, "the attack did nothing"


@pytest.mark.parametrize("name", ["master", "agent"])
@pytest.mark.parametrize("with_token", [False, True], ids=["stranger", "token"])
def test_a_long_flood_of_resets(cluster: Cluster, name: str, with_token: bool) -> None:
    at = port(cluster, name)
    words = f"HEADERS and RST_STREAM {'with' if with_token else 'without'} the token, {LONG_S:g} s"
    token = at.token if with_token else ""
    flood(at, "rapid_reset", words, seconds=LONG_S, path=at.path, token=token)


@pytest.mark.parametrize("name", ["master", "agent"])
def test_replies_that_are_never_read(cluster: Cluster, name: str) -> None:
    at = port(cluster, name)
    words = f"calls whose answers are never read, with the token, {LONG_S:g} s"
    flood(at, "slow_reader", words, seconds=LONG_S, path=at.path, token=at.token)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ("continuation_flood", "header blocks that never end"),
        ("ping_flood", "pings whose answers are never read"),
        ("settings_flood", "settings whose answers are never read"),
    ],
)
def test_frames_next_to_calls(cluster: Cluster, attack: str, words: str) -> None:
    limits = ENDLESS if attack == "continuation_flood" else None
    words = f"{words}, {LONG_S:g} s"
    flood(port(cluster, "master"), attack, words, seconds=LONG_S, limits=limits)


@pytest.mark.parametrize("with_token", [False, True], ids=["stranger", "token"])
def test_streams_that_stay_open(cluster: Cluster, with_token: bool) -> None:
    at = port(cluster, "master")
    words = f"streams opened {'with' if with_token else 'without'} the token and left, {LONG_S:g} s"
    token = at.token if with_token else ""
    flood(at, "open_flood", words, seconds=LONG_S, path=at.path, token=token)
