"""Processes that do not run for 20 s without noticing (SIGSTOP; a machine that was paused).

A process that finds that it slept gives all others a fresh time limit, so a master that slept ends
no container. To the others, a process that sleeps is gone meanwhile: it comes back.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.application import ENDED, Application
from tests.hostile.attack import Attack, Limits
from tests.hostile.cluster import ROOT, Cluster, Daemon, stopped, wait_until

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(300)]

SLEEP_S = 20.0
AWAKE_S = 6.0
"""How long the cluster is observed after the sleep."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.start_master()
        made.start_agent()
        yield made


def grants(cluster: Cluster) -> None:
    with Application(cluster.address, cluster.token, name="after") as application:
        application.request("1")
        application.wait_running(1)


def test_a_master_that_slept_ends_nothing(cluster: Cluster) -> None:
    master = cluster.daemons[0]
    with (
        Application(cluster.address, cluster.token) as application,
        Attack("4", f"master stopped for {SLEEP_S:g} s", on=master) as seen,
    ):
        application.request("1", "2")
        application.wait_running(2)
        with stopped(master):
            time.sleep(SLEEP_S)
        until_s = time.monotonic() + AWAKE_S
        while time.monotonic() < until_s:
            over = [x for x, status in application.containers.items() if status.state == ENDED]
            assert not over, f"{over} were ended: {application.containers[over[0]].end.message}"
            time.sleep(0.1)
        wait_until(lambda: "node-1" in cluster.alive_nodes(), "the node is alive")
        wait_until(lambda: len(application.running()) == 2, "both run on")
        assert not application.ended, application.ended
        grants(cluster)
        seen.outcome = "both containers run on; it grants"


def test_an_agent_that_slept_comes_back(cluster: Cluster) -> None:
    master, agent = cluster.daemons
    probe = ("status", cluster.address, str(cluster.token_file))
    with (
        Application(cluster.address, cluster.token) as application,
        Attack("4", f"agent stopped for {SLEEP_S:g} s (the master's view)", on=master, probe=probe,
               limits=Limits()) as seen,
    ):  # fmt: skip
        application.request("1")
        application.wait_running(1)
        with stopped(agent):
            time.sleep(SLEEP_S)
        wait_until(lambda: "node-1" in cluster.alive_nodes(), "the node is alive", 30.0)
        assert not application.ended, application.ended
        grants(cluster)
        seen.outcome = "lost after node_timeout_s, then back; its containers are replaced"
    assert not agent.unhandled(), agent.unhandled()[0]


def test_an_application_and_a_scheduler_that_slept_go_on(cluster: Cluster) -> None:
    master = cluster.daemons[0]
    scheduler = cluster.start_scheduler()
    wait_until(lambda: "east" in names(cluster), "the scheduler has subscribed", 30.0)
    outcome_text = cluster.directory / "application.out"
    with outcome_text.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.application", cluster.address,
             str(cluster.token_file), "2"],
            cwd=ROOT, stdout=file, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        wait_until(lambda: outcome_text.read_text().count(", 4, ") >= 2, "its containers run", 30.0)
        words = f"an application and a scheduler stopped for {SLEEP_S:g} s"
        with Attack("4", words, on=master) as seen:
            sleepers = (scheduler, process)
            for one in sleepers:
                (one.process if isinstance(one, Daemon) else one).send_signal(19)
            try:
                time.sleep(SLEEP_S)
                grants(cluster)
            finally:
                for one in sleepers:
                    (one.process if isinstance(one, Daemon) else one).send_signal(18)
            time.sleep(2.0)
            wait_until(lambda: "east" in names(cluster), "the scheduler is back", 30.0)
            assert ", 6, " not in outcome_text.read_text(), outcome_text.read_text()
            grants(cluster)
            seen.outcome = "its containers run on, others are granted theirs; both come back"
    finally:
        process.kill()
        process.wait()
    assert not scheduler.unhandled(), scheduler.unhandled()[0]


def names(cluster: Cluster) -> set[str]:
    return {s.name for s in cluster.status().schedulers}
