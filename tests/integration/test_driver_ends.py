"""Drivers on nodes whose application has failed: one that lives on is ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.conftest import APPS, Cluster, executors_of
from tests.integration.test_submissions import submission

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ONE_FAILURE = ("--conf", "spark.hrm.executor.maxFailures=1")
SERVICE = (
    *("--driver-memory", "600m", "--conf", "spark.executor.instances=1", *ONE_FAILURE),
    *("--conf", "spark.hrm.driver.failureGrace=2s"),
)


def fail(cluster: Cluster, application_id: str, eventually: Callable[..., Any]) -> None:
    """Its executor dies by kill -9, the only failure that it may have."""
    ours = [p for p in executors_of(application_id) if str(cluster.state) in " ".join(p.cmdline())]
    (executor,) = ours
    executor.kill()
    eventually(
        lambda: cluster.ask("app", "show", application_id)["state"] == "APPLICATION_STATE_FAILED",
        60.0,
        "the application has failed",
    )


@pytest.mark.core
def test_a_service_that_lives_on_without_its_context_is_ended_and_restarted(
    cluster: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    serves = tmp_path / "serves"
    app = cluster.submit(
        *("--deploy-mode", "cluster", "--supervise", "--name", "service", *SERVICE),
        *(str(APPS / "lingers.py"), str(serves)),
    )

    def serving(times: int) -> dict[str, Any] | None:
        assert app.process.poll() is None, app.output()
        if not serves.exists() or len(serves.read_text().splitlines()) < times:
            return None
        return submission(cluster, "service")

    first = eventually(lambda: serving(1), 180.0, "the service runs")
    fail(cluster, first["application_ids"][-1], eventually)
    second = eventually(lambda: serving(2), 180.0, "another driver serves")
    assert second["attempt"] == 2
    assert len(second["application_ids"]) == 2
    ends = cluster.ask("app", "show", second["submission_id"])["containers"]
    message = next(c["end"]["message"] for c in ends if c.get("end"))
    assert message.startswith("exited with code 1: the driver is ended: 1 executor failed"), message
    cluster.run("submission", "kill", second["submission_id"], "--master", cluster.address)
    assert app.wait(60) != 0


def test_without_supervision_the_submission_fails_with_the_reason(
    cluster: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    serves = tmp_path / "serves"
    app = cluster.submit(
        *("--deploy-mode", "cluster", "--name", "alone", *SERVICE),
        *(str(APPS / "lingers.py"), str(serves)),
    )
    eventually(serves.exists, 180.0, "the service runs")
    found = submission(cluster, "alone")
    assert found is not None
    fail(cluster, found["application_ids"][-1], eventually)
    assert app.wait(60) == 1, app.output()
    ended = submission(cluster, "alone")
    assert ended is not None
    assert ended["state"] == "SUBMISSION_STATE_FAILED"
    assert "the driver is ended: 1 executor failed within 3600 s" in ended["message"]


def test_a_driver_outside_the_cluster_is_left_alone(
    cluster: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """A notebook makes its next context itself."""
    serves = tmp_path / "serves"
    app = cluster.submit(*SERVICE, str(APPS / "lingers.py"), str(serves))
    eventually(serves.exists, 180.0, "the service runs")
    shown = cluster.application("lingers")
    assert shown is not None
    fail(cluster, shown["application_id"], eventually)
    failures = app.output().count("FAILED ")
    eventually(lambda: app.output().count("FAILED ") > failures + 8, 60.0, "it goes on")
    assert app.process.poll() is None
    for process in psutil.Process(app.process.pid).children(recursive=True):
        process.kill()
    app.process.kill()
