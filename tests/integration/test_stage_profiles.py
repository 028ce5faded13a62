"""Stage-level scheduling: profiles grow, shrink, are released, or refused with a message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import APPS, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ELASTIC = (
    "--conf", "spark.dynamicAllocation.enabled=true",
    "--conf", "spark.dynamicAllocation.shuffleTracking.enabled=true",
    "--conf", "spark.dynamicAllocation.minExecutors=0",
    "--conf", "spark.dynamicAllocation.maxExecutors=2",
    "--conf", "spark.dynamicAllocation.executorIdleTimeout=2s",
)  # fmt: skip


@pytest.mark.core
def test_each_profile_grows_and_shrinks_and_is_released_with_its_stages(
    cluster: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    stop = tmp_path / "stop"
    app = cluster.submit(*ELASTIC, str(APPS / "stages.py"), "good", str(stop))
    over = lambda: "LARGE" in app.output() or app.process.poll() is not None  # noqa: E731
    eventually(over, 300.0, "the large stage is done")
    assert "LARGE 45" in app.output(), app.output()
    shown = cluster.application("stages-good")
    assert shown is not None
    of_profile: dict[int, list[dict[str, Any]]] = {}
    for container in shown["containers"]:
        of_profile.setdefault(container.get("resource_profile_id", 0), []).append(container)
    assert sorted(of_profile) == [0, 1]
    assert {c["resources"]["vcores"] for c in of_profile[0]} == {"1"}
    assert {c["resources"]["vcores"] for c in of_profile[1]} == {"2"}
    assert len(of_profile[1]) == 2, "it grew to what the stage had work for"
    eventually(lambda: cluster.free_vcores() == 4, 60.0, "nobody holds what the stage had")
    assert app.process.poll() is None
    stop.touch()
    assert app.wait(240.0) == 0, app.output()
    assert "PLAIN AGAIN 45" in app.output(), "the first profile comes back when there is work"


def test_a_profile_that_nothing_can_satisfy_leaves_other_stages_alone(
    cluster: Cluster, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    stop = tmp_path / "stop"
    app = cluster.submit(*ELASTIC, str(APPS / "stages.py"), "shared", str(stop))
    over = lambda: "REFUSED" in app.output() or app.process.poll() is not None  # noqa: E731
    eventually(over, 300.0, "the stage is refused")
    refused = app.output().partition("REFUSED")[2]
    assert "HRM: an executor requests" in refused, app.output()
    assert "lower spark.executor.cores or spark.executor.memory" in refused
    stop.touch()
    assert app.wait(240.0) == 0, app.output()
    assert "PLAIN AGAIN 45" in app.output()
    shown = cluster.application("stages-shared")
    assert shown is not None
    assert shown["state"] == "APPLICATION_STATE_SUCCEEDED", shown["message"]


@pytest.mark.parametrize(
    ("kind", "printed"),
    [
        ("memory", "lower spark.executor.cores or spark.executor.memory"),
        ("gpu", "an executor requests a GPU, but no node of the cluster has one"),
    ],
)
def test_a_profile_that_nothing_can_satisfy_fails_with_the_reason(
    cluster: Cluster, kind: str, printed: str
) -> None:
    app = cluster.submit(*ELASTIC, str(APPS / "stages.py"), kind, "/nonexistent")
    assert app.wait(240.0) != 0
    output = app.output()
    assert "PLAIN 45" in output, "until then all is well"
    assert printed in output
    shown = cluster.application(f"stages-{kind}")
    assert shown is not None
    assert shown["state"] == "APPLICATION_STATE_FAILED"
    assert printed in shown["message"]
