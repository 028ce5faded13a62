"""Queues with a real Spark: where applications go, what they hold there, and reclaim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ETL, ML = "root.teams.etl", "root.teams.ml"
LIMIT_S = 180.0


@pytest.fixture
def queues(cluster: Cluster, eventually: Callable[..., Any]) -> Iterator[None]:
    """Two queues that are guaranteed a half of the cluster each, and at the end none."""

    def hrm(*arguments: str) -> Any:
        return cluster.run("queue", *arguments, "--master", cluster.address)

    assert hrm("create", "root.teams", "--guaranteed", "100%").returncode == 0
    for name in (ETL, ML):
        done = hrm("create", name, "--guaranteed", "50%")
        assert done.returncode == 0, done.stderr
    yield
    cluster.end_drivers()

    def removed() -> bool:
        return all(hrm("remove", name).returncode == 0 for name in left())

    def left() -> list[str]:
        listed = [x["name"] for x in cluster.ask("queues")["queues"]]
        return [name for name in (ETL, ML, "root.teams") if name in listed]

    eventually(removed, 60.0, "no queue is left")


def observed(cluster: Cluster, queue: str) -> dict[str, Any]:
    """How it was served lately."""
    (found,) = [x for x in cluster.ask("queues", "--fairness")["queues"] if x["name"] == queue]
    return dict(found["observed"])


@pytest.mark.usefixtures("queues")
def test_what_is_borrowed_goes_back_to_the_queue_that_wants_its_guarantee(
    cluster: Cluster, running_app: Callable[..., dict[str, Any]], eventually: Callable[..., Any]
) -> None:
    lender = ["--conf", "spark.executor.instances=4", "--conf", "spark.hrm.class=batch"]
    total = cluster.submit("--queue", "etl", *lender, str(APPS / "total.py"), "8", "600")
    app = running_app("total", 4, LIMIT_S)
    assert app["queue"] == ETL
    shown = cluster.ask("queue", "show", "etl")
    assert (shown["used"]["cores"], shown["borrowed"]["cores"]) == (4, 2)
    supposed = cluster.ask(
        "whatif", "--queue", "ml", "--executors", "2", "--executor-memory", "512m"
    )
    assert (supposed["at_once"], supposed["by_preemption"]) == (0, 2)

    own = ["--conf", "spark.executor.instances=2", "--conf", "spark.yarn.queue=ml"]
    elastic = cluster.submit(*own, str(APPS / "elastic.py"), "2", "300")
    eventually(
        lambda: cluster.ask("queue", "show", "ml")["used"]["cores"] == 2, LIMIT_S, "ml has its half"
    )
    etl = cluster.ask("queue", "show", "etl")
    assert etl["used"]["cores"] == 2, "never less than it is guaranteed"
    assert observed(cluster, ETL)["held_cores"] > 2
    assert observed(cluster, ML)["starts"] > 1
    assert observed(cluster, ML)["wait_p50_s"] > 1, "until others were preempted"
    eventually(
        lambda: observed(cluster, ML).get("busy", 0) > 0.1, LIMIT_S, "its driver reports its tasks"
    )
    ended = [x for x in cluster.ask("app", "show", app["application_id"])["containers"]
             if "end" in x]  # fmt: skip
    assert {x["end"]["cause"] for x in ended} == {"END_CAUSE_PREEMPTED"}
    listed = cluster.ask("apps", "--queue", "teams")["applications"]
    assert {x["queue"] for x in listed} == {ETL, ML}
    refusal = cluster.run("queue", "remove", "etl", "--master", cluster.address)
    assert refusal.returncode == 1
    assert f"{ETL} has 1 live applications" in refusal.stderr
    for each in (total, elastic):
        each.process.kill()


@pytest.mark.usefixtures("queues")
def test_a_submitted_driver_and_its_application_are_in_one_queue(cluster: Cluster) -> None:
    options = ("--queue", "ml", "--conf", "spark.executor.instances=1", "--driver-memory", "512m")
    submitted = cluster.submit(*options, str(APPS / "whoami.py"), program="hrm submit")
    assert submitted.wait(LIMIT_S) == 0, submitted.output()
    listed = cluster.ask("apps", "--all", "--queue", "ml")["applications"]
    assert [app["name"] for app in listed][-2:] == ["whoami.py (driver)", "whoami"]
    assert {app["queue"] for app in listed} == {ML}


def test_a_queue_that_is_not_there_is_refused_at_the_prompt(cluster: Cluster) -> None:
    submitted = cluster.submit("--queue", "nowhere", str(APPS / "whoami.py"))
    assert submitted.wait(LIMIT_S) != 0
    assert "HRM: there is no queue 'nowhere'; there are root.default" in submitted.output()
