"""Messages, lists and numbers of calls as large as a holder of the token can make them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    application_pb2_grpc,
    common_pb2,
    node_pb2,
    node_pb2_grpc,
)
from tests.hostile.application import Application, registration
from tests.hostile.attack import Attack, Limits
from tests.hostile.cluster import Cluster, wait_until

MIB = 1 << 20
REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
OPTIONS = (("grpc.max_send_message_length", 1 << 30), ("grpc.enable_http_proxy", 0))
STORM_S = 5.0
STORM_THREADS = 8
NAMED = 1_500
LARGE = 10_000
MONITORS = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("bounds")) as made:
        made.start_master()
        yield made


class Holder:
    """A holder of the token, with its stubs."""

    def __init__(self, cluster: Cluster) -> None:
        self.channel = grpc.insecure_channel(cluster.address, options=OPTIONS)
        self.call: dict[str, Any] = {
            "metadata": (("authorization", f"Bearer {cluster.token}"),), "timeout": 60,
        }  # fmt: skip
        self.applications = application_pb2_grpc.ApplicationServiceStub(self.channel)
        self.nodes = node_pb2_grpc.NodeServiceStub(self.channel)

    def register(self, **fields: Any) -> str:
        """``accepted``, or the status and the reason."""
        try:
            self.applications.Register(registration(**fields), **self.call)
        except grpc.RpcError as error:
            return f"{error.code().name}: {str(error.details())[:80]}"
        return "accepted"

    def join(self, register: node_pb2.RegisterNode) -> str:
        message = node_pb2.NodeMessage(sequence=1, register=register)
        stream = self.nodes.Connect(iter([message]), **self.call)
        try:
            next(iter(stream))
        except grpc.RpcError as error:
            return f"{error.code().name}: {str(error.details())[:80]}"
        except StopIteration:
            return "ended"
        stream.cancel()
        return "accepted"


@pytest.fixture
def holder(cluster: Cluster) -> Iterator[Holder]:
    made = Holder(cluster)
    yield made
    made.channel.close()


def probe(cluster: Cluster) -> tuple[str, ...]:
    return ("status", cluster.address, str(cluster.token_file))


def is_refused(outcome_text: str) -> bool:
    return outcome_text.startswith(tuple(status.name for status in REFUSALS))


def test_an_environment_of_sixty_megabytes(cluster: Cluster, holder: Holder) -> None:
    environment = {f"NAME_{n}": "x" * 1_000 for n in range(60_000)}
    launch = common_pb2.SparkLaunch(environment=environment)
    limits = Limits(growth_mib=300.0, latency_s=2.0)
    with Attack("11", "an environment of 60 MB", on=cluster.daemons[0], probe=probe(cluster),
                limits=limits) as seen:  # fmt: skip
        seen.outcome = outcome_text = holder.register(launch=launch)
        assert is_refused(outcome_text), outcome_text


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("200,000 Java options", {"java_options": ["-Dx=y"] * 200_000}),
        ("100,000 entries of a class path", {"extra_class_path": ["/x"] * 100_000}),
        ("a variable of 30 MB", {"environment": {"NAME": "x" * (30 * MIB)}}),
        ("variables with NUL and '='", {"environment": {"A\x00=B": "x\x00y"}}),
    ],
)
def test_a_launch_beyond_bounds(
    cluster: Cluster, holder: Holder, words: str, fields: dict[str, Any]
) -> None:
    launch = common_pb2.SparkLaunch(**fields)
    limits = Limits(growth_mib=200.0)
    with Attack("11", words, on=cluster.daemons[0], probe=probe(cluster), limits=limits) as seen:
        seen.outcome = outcome_text = holder.register(launch=launch)
        assert is_refused(outcome_text), outcome_text


@pytest.mark.hostile
def test_a_node_of_many_units(cluster: Cluster, holder: Holder) -> None:
    units = [
        node_pb2.ResourceUnit(
            resource_unit_id=f"many/{n}",
            capacity=common_pb2.Resources(vcores=1, memory_mib=1_024),
            run_limit=1,
        )
        for n in range(300_000)
    ]
    register = node_pb2.RegisterNode(
        name="many", identity="many", incarnation="many-1", endpoint="127.0.0.1:1",
        resource_units=units,
    )  # fmt: skip
    limits = Limits(growth_mib=300.0, latency_s=2.0)
    with Attack("11", "a node of 300,000 resource units", on=cluster.daemons[0],
                probe=probe(cluster), limits=limits) as seen:  # fmt: skip
        seen.outcome = outcome_text = holder.join(register)
        assert is_refused(outcome_text), outcome_text


@pytest.mark.hostile
@pytest.mark.timeout(240)
def test_many_long_names_are_listed(cluster: Cluster, holder: Holder) -> None:
    """Names as long as the master accepts them, more of them than one response can hold."""
    lengths = (60_000, 4_096, 1_024, 253)
    length = next(n for n in lengths if holder.register(**long_names(0, n)) == "accepted")
    limits = Limits(growth_mib=400.0, latency_s=2.0)
    words = f"{NAMED:,} applications with names of {length:,}, then hrm apps"
    with Attack("11", words, on=cluster.daemons[0], probe=probe(cluster), limits=limits) as seen:
        outcome_text = [holder.register(**long_names(n, length)) for n in range(NAMED)]
        done = cluster.hrm("apps", "--all", "--output", "json")
        seen.outcome = (
            f"{outcome_text.count('accepted'):,} accepted; hrm apps ends with {done.returncode}"
        )
        assert done.returncode == 0, done.stderr[-300:]


def long_names(number: int, length: int) -> dict[str, str]:
    """Of different applications of different users."""
    text = f"{number:05d}" + "n" * (length - 5)
    return {"name": text, "user": text, "web_url": text}


@pytest.mark.hostile
def test_a_storm_of_registrations(cluster: Cluster) -> None:
    """As many as some threads can make: others are served, and memory follows the number of live
    applications (``applications_limit``)."""
    ending = threading.Event()
    outcome_text: list[str] = []

    def register() -> None:
        holder = Holder(cluster)
        while not ending.is_set():
            outcome_text.append(holder.register())
        holder.channel.close()

    limits = Limits(growth_mib=100.0)
    words = f"registrations over {STORM_THREADS} connections, {STORM_S:g} s"
    with Attack("11", words, on=cluster.daemons[0], probe=probe(cluster), limits=limits) as seen:
        threads = [threading.Thread(target=register) for _ in range(STORM_THREADS)]
        for thread in threads:
            thread.start()
        time.sleep(STORM_S)
        ending.set()
        for thread in threads:
            thread.join()
        accepted = outcome_text.count("accepted")
        seen.outcome = f"{accepted:,} accepted, {len(outcome_text) - accepted:,} refused"
        assert all(x == "accepted" or is_refused(x) for x in outcome_text), set(outcome_text) - {
            "accepted"
        }


def test_many_ask_for_a_large_application(cluster: Cluster, holder: Holder) -> None:
    """Like a page of a monitor that many users have open: others are served meanwhile."""
    executors = [str(n) for n in range(1, LARGE + 1)]
    admin = admin_pb2_grpc.AdminServiceStub(holder.channel)
    with Application(cluster.address, cluster.token) as application:
        application.request(*executors)
        request = admin_pb2.GetApplicationRequest(application_id=application.application_id)

        def known() -> bool:
            return len(admin.GetApplication(request, **holder.call).containers) == LARGE

        wait_until(known, "all containers to be known")
        words = f"{MONITORS} calls at once for an application of {LARGE:,} containers"
        limits = Limits(growth_mib=300.0, latency_s=1.5)
        with Attack("11", words, on=cluster.daemons[0], probe=probe(cluster),
                    limits=limits) as seen:  # fmt: skip
            calls = [admin.GetApplication.future(request, **holder.call) for _ in range(MONITORS)]
            assert all(len(call.result().containers) == LARGE for call in calls)
            seen.outcome = "all answered"
