"""Generated messages over all RPCs of all services, to real processes.

None may leave an unhandled error in a log, have a reply that blames the daemon (UNKNOWN, INTERNAL),
be served without the token, or cost more memory than is stated here; and afterwards the cluster
grants a container as before. A harmful case is named by seed and index, and
``python -m tests.hostile.send SEED INDEX`` sends it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from hrm.v1 import admin_pb2
from tests.hostile.application import Application
from tests.hostile.attack import Attack, Limits
from tests.hostile.cluster import Cluster, wait_until
from tests.hostile.messages import Case, Messages, methods
from tests.hostile.send import Sent, Victims, send, targets_of

SEED = int(os.environ.get("HRM_HOSTILE_SEED", "1"))
QUICK = 2_000
MANY = int(os.environ.get("HRM_HOSTILE_MESSAGES", "100000"))
LOT = 1_000
"""The logs are checked after so many; the harmful case is then searched for in its lot."""
GROWTH_MIB = 300.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.start_master()
        made.start_agent(gpus=[{"memory_mib": 1024}])
        made.start_scheduler()
        yield made


def test_every_method_of_the_contract_has_messages() -> None:
    messages = Messages(1, {})
    found = {case.path: case for case in map(messages.case, range(20 * len(messages.methods)))}
    assert len(found) == len(messages.methods) == len(methods())
    again = Messages(1, {})
    assert all(again.case(case.index) == case for case in found.values())


def lots(messages: Messages, number: int) -> Iterator[list[Case]]:
    """Cases until they hold ``number`` messages."""
    index = sent = 0
    while sent < number:
        lot = [messages.case(n) for n in range(index, index + LOT)]
        while lot and sent + sum(len(c.messages) for c in lot) > number + LOT:
            lot = lot[: len(lot) // 2]
        index, sent = index + len(lot), sent + sum(len(c.messages) for c in lot)
        yield lot


def bombard(cluster: Cluster, number: int) -> str:
    """Sends ``number`` messages and checks all but memory; returns a summary of the replies."""
    known: dict[str, int] = {}
    problems: list[str] = []
    total = Sent()
    with Application(cluster.address, cluster.token) as application:
        application.request("1")
        application.wait_running(1)
        victims = Victims.of(cluster, application)
        messages = Messages(SEED, victims.known())
        targets, token = targets_of(cluster), cluster.token
        for lot in lots(messages, number):
            sent = send(lot, targets, token)
            messages.known = victims.known()
            total.cases += sent.cases
            total.messages += sent.messages
            total.statuses += sent.statuses
            total.replied |= sent.replied
            problems += sent.wrong
            problems += new_errors(cluster, known, lot)
            dead = [d.name for d in cluster.daemons if not d.alive()]
            assert not dead, f"{dead} died in cases {lot[0].index} to {lot[-1].index}"
    assert not problems, f"seed {SEED}:\n" + "\n".join(islice(problems, 40))
    missed = {f"/{m.containing_service.full_name}/{m.name}" for m in methods()} - total.replied
    assert not missed, f"no case got beyond the token: {sorted(missed)}"
    outcome_text = ", ".join(f"{name} {n:,}" for name, n in total.statuses.most_common(4))
    return (
        f"{total.messages:,} messages in {total.cases:,} calls, no unhandled error; {outcome_text}"
    )


def new_errors(cluster: Cluster, known: dict[str, int], lot: list[Case]) -> list[str]:
    found = []
    for daemon in cluster.daemons:
        errors = daemon.unhandled()
        for text in errors[known.get(daemon.name, 0) :]:
            where = f"cases {lot[0].index} to {lot[-1].index}"
            found.append(f"{daemon.name}, {where}:\n{text}")
        known[daemon.name] = len(errors)
    return found


def still_grants(cluster: Cluster) -> None:
    """A container of a new application runs, on the node that is real."""
    cluster.admin.DrainNodes(admin_pb2.DrainNodesRequest(names=["node-1"], undo=True), timeout=20)
    wait_until(lambda: "node-1" in cluster.alive_nodes(), "the node is in service")
    wait_until(
        lambda: not [n for n in cluster.alive_nodes() if n.startswith("hostile")],
        "nodes that never were are lost",
        60.0,
    )
    with Application(cluster.address, cluster.token, name="after") as application:
        application.request("1")
        application.wait_running(1)


def test_some_thousand_messages(cluster: Cluster) -> None:
    probe = ("status", cluster.address, str(cluster.token_file))
    limits = Limits(growth_mib=GROWTH_MIB, latency_s=10.0)
    with Attack("14", "generated messages, the quick part", on=cluster.daemons[0],
                probe=probe, limits=limits) as attack:  # fmt: skip
        attack.outcome = bombard(cluster, QUICK)
    still_grants(cluster)


@pytest.mark.hostile
@pytest.mark.timeout(900)
def test_a_hundred_thousand_messages(cluster: Cluster) -> None:
    master, agent = cluster.daemons[:2]
    probe = ("status", cluster.address, str(cluster.token_file))
    limits = Limits(growth_mib=GROWTH_MIB, latency_s=5.0)
    name = f"{MANY:,} generated messages over all RPCs"
    with (
        Attack("14", name, on=agent, limits=limits) as aside,
        Attack("14", name, on=master, probe=probe, limits=limits) as attack,
    ):
        attack.outcome = bombard(cluster, MANY)
        aside.outcome = "the same messages; its containers run"
    still_grants(cluster)
